"""Limits of submissions: waiting jobs, jobs per minute, and blobs, which are checked before the upload too."""

from __future__ import annotations

import pytest

from runtime.ids import JobID
from runtime.queues.admission import ALL_FILES, MOST_UPLOADS, WAITING_RETRY_S, Admission, OverLimitError
from runtime.queues.configuration import DEFAULT_QUEUE, Member, QueueRefusedError, Queues, parse_queues

ADA, BOB, NOBODY = (Member(user, DEFAULT_QUEUE) for user in ("ada", "bob", ""))


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


def test_jobs_without_a_slot_wait_and_a_further_one_is_refused() -> None:
    queues, admission = parse_queues("users: {ada: {waiting-jobs: 1}}", "q"), Admission()
    live = {job(1): ADA, job(2): BOB, job(3): NOBODY}
    assert admission.needs_running(queues, ADA, live)
    assert not admission.needs_running(queues, BOB, live)
    with pytest.raises(OverLimitError, match=r"^user ada has 1 of 1 waiting jobs$") as refused:
        admission.admit(queues, job(4), ADA, live, [], 0.0)
    assert refused.value.retry_after_s == WAITING_RETRY_S
    admission.admit(queues, job(4), BOB, live, [], 0.0)
    admission.admit(queues, job(5), ADA, live, [job(1)], 0.0)


def test_a_job_that_is_being_stored_waits_too() -> None:
    """Another submission comes while the first one is stored: it is not in the list of jobs yet."""
    queues, admission = parse_queues("queues: {default: {waiting-jobs: 1}}", "q"), Admission()
    assert not admission.needs_running(queues, ADA, {})
    admission.admit(queues, job(1), ADA, {}, [], 0.0)
    assert admission.needs_running(queues, BOB, {})
    with pytest.raises(OverLimitError, match="queue default has 1 of 1 waiting jobs"):
        admission.admit(queues, job(2), BOB, {}, [], 0.0)
    admission.admit(queues, job(1), ADA, {}, [], 0.0)
    admission.settle(job(1))
    admission.admit(queues, job(2), BOB, {}, [], 0.0)


def test_no_job_waits_where_none_may() -> None:
    queues, admission = parse_queues("each-user: {waiting-jobs: 0}", "q"), Admission()
    with pytest.raises(OverLimitError, match="0 of 0 waiting jobs"):
        admission.admit(queues, job(1), ADA, {}, [], 0.0)
    admission.admit(queues, job(1), NOBODY, {}, [], 0.0)


def test_so_many_submissions_are_accepted_within_a_minute() -> None:
    queues, admission = parse_queues("each-user: {submissions-per-minute: 2}", "q"), Admission()
    admission.admit(queues, job(1), ADA, {}, [], 0.0)
    admission.admit(queues, job(1), ADA, {}, [], 1.0)
    admission.admit(queues, job(2), ADA, {}, [], 10.5)
    for number in (3, 4, 5):
        with pytest.raises(OverLimitError, match="user ada has submitted 2 of 2 jobs per minute") as refused:
            admission.admit(queues, job(number), ADA, {}, [], 20.0)
        assert refused.value.retry_after_s == 40
    admission.admit(queues, job(6), BOB, {}, [], 20.0)
    admission.admit(queues, job(7), ADA, {}, [], 60.0)
    with pytest.raises(OverLimitError) as refused:
        admission.admit(queues, job(8), ADA, {}, [], 60.0)
    assert refused.value.retry_after_s == 11, "rounded up: earlier it would be refused again"
    admission.clear()
    admission.admit(queues, job(8), ADA, {}, [], 60.0)


def test_a_refused_submission_counts_for_nothing() -> None:
    text = "groups: {g: {members: [ada, bob], submissions-per-minute: 1}}\nusers: {bob: {waiting-jobs: 0}}"
    queues, admission = parse_queues(text, "q"), Admission()
    with pytest.raises(OverLimitError, match="waiting"):
        admission.admit(queues, job(1), BOB, {}, [], 0.0)
    admission.admit(queues, job(2), ADA, {}, [], 0.0)
    with pytest.raises(OverLimitError, match="group g has submitted 1 of 1"):
        admission.admit(queues, job(3), ADA, {}, [], 0.0)


def test_blobs_count_once_while_their_job_is_stored_and_not_after_that_has_failed() -> None:
    queues, admission = parse_queues("each-user: {blob-mb: 10}", "q"), Admission()
    size = 6 << 20
    for _ in range(2):
        admission.admit(queues, job(1), ADA, {}, [], 0.0, blob_bytes=size)
    with pytest.raises(OverLimitError, match="blobs of user ada: 6 of 10 MB held"):
        admission.admit(queues, job(2), ADA, {}, [], 0.0, blob_bytes=size)
    admission.admit(queues, job(2), BOB, {job(1): ADA}, [], 0.0, blob_bytes=size)
    admission.settle(job(1))
    admission.admit(queues, job(3), ADA, {job(1): ADA}, [], 0.0, blob_bytes=size, held_bytes={job(1): 1})
    full = {job(4): BOB}
    admission.admit(queues, job(5), BOB, full, [], 0.0, held_bytes={job(4): 99 << 20})
    assert not {job(1)} & {*admission._under_way_bytes}
    admission.clear()
    assert not admission._under_way_bytes
    admission.admit(queues, job(6), ADA, {}, [], 0.0, blob_bytes=size)


# ------------------------------------------------------------------ uploads

MB = 1 << 20
TEN = "each-user: {blob-mb: 10}"


def uploads(text: str = TEN) -> tuple[Queues, Admission]:
    return parse_queues(text, "q"), Admission()


def test_an_upload_is_refused_before_it_begins_in_the_words_of_a_submission() -> None:
    queues, admission = uploads()
    live, held = {job(1): ADA}, {job(1): 6 * MB}
    with pytest.raises(OverLimitError) as refused:
        admission.admit_upload(queues, job(2), ALL_FILES, 5 * MB, "ada", live, 0.0, held_bytes=held)
    assert str(refused.value) == (
        "blobs of user ada: 6 of 10 MB held by jobs that are not over, 5 MB more asked for; "
        "cancel one of these jobs or wait for its end"
    )
    assert refused.value.retry_after_s == WAITING_RETRY_S
    assert admission.uploader(job(2)) is None, "nothing is counted"
    with pytest.raises(QueueRefusedError, match="its files have 11 MB, and user ada may hold 10 MB of blobs"):
        admission.admit_upload(queues, job(2), ALL_FILES, 10 * MB + 1, "ada", {}, 0.0)
    admission.admit_upload(queues, job(2), ALL_FILES, 4 * MB, "ada", live, 0.0, held_bytes=held)
    admission.admit_upload(queues, job(3), ALL_FILES, 10 * MB, "bob", live, 0.0, held_bytes=held)


def test_an_upload_counts_once_until_it_is_ended() -> None:
    queues, admission = uploads()
    for _ in range(2):
        admission.admit_upload(queues, job(1), ALL_FILES, 6 * MB, "ada", {}, 0.0)
    with pytest.raises(OverLimitError, match=r"0 of 10 MB held by jobs that are not over, 6 MB by uploads, 5 MB more"):
        admission.admit_upload(queues, job(2), ALL_FILES, 5 * MB, "ada", {}, 0.0)
    admission.end_upload(job(1))
    admission.admit_upload(queues, job(2), ALL_FILES, 5 * MB, "ada", {}, 0.0)
    admission.admit_upload(queues, job(2), ALL_FILES, 0, "ada", {}, 0.0)
    assert admission.uploader(job(2)) is None


def test_no_more_is_uploaded_than_was_announced_and_checked() -> None:
    """A client announces 1 MB and sends more: each file counts with what it has."""
    queues, admission = uploads()
    admission.admit_upload(queues, job(1), ALL_FILES, 1 * MB, "ada", {}, 0.0)
    for number in range(2):
        admission.admit_upload(queues, job(1), f"file {number}", 5 * MB, "ada", {}, 0.0)
    admission.admit_upload(queues, job(1), "file 1", 5 * MB, "ada", {}, 0.0)
    with pytest.raises(OverLimitError, match="10 MB by uploads, 1 MB more asked for"):
        admission.admit_upload(queues, job(1), "file 2", 1, "ada", {}, 0.0)
    admission.admit_upload(queues, job(1), "file 1", 0, "ada", {}, 0.0)
    admission.admit_upload(queues, job(1), "file 2", 5 * MB, "ada", {}, 0.0)


def test_files_within_the_announcement_count_with_it() -> None:
    queues, admission = uploads()
    admission.admit_upload(queues, job(1), ALL_FILES, 10 * MB, "ada", {}, 0.0)
    for number in range(5):
        admission.admit_upload(queues, job(1), f"file {number}", 2 * MB, "ada", {}, 0.0)


def test_an_accepted_job_counts_with_all_that_was_uploaded_for_it() -> None:
    """Else a job that names one small file would hold many large ones for nothing."""
    queues, admission = uploads()
    admission.admit_upload(queues, job(1), "file", 8 * MB, "ada", {}, 0.0)
    admission.admit(queues, job(1), ADA, {}, [], 0.0, blob_bytes=1)
    admission.settle(job(1))
    live, held = {job(1): ADA}, {job(1): 1}
    with pytest.raises(OverLimitError, match="8 of 10 MB held by jobs that are not over, 3 MB more asked for"):
        admission.admit_upload(queues, job(2), ALL_FILES, 3 * MB, "ada", live, 0.0, held_bytes=held)
    with pytest.raises(OverLimitError, match="8 of 10 MB held by jobs that are not over, 3 MB more asked for"):
        admission.admit(queues, job(2), ADA, live, [], 0.0, blob_bytes=3 * MB, held_bytes=held)
    with pytest.raises(OverLimitError, match="8 MB by uploads, 3 MB more asked for"):
        admission.admit_upload(queues, job(1), "another", 3 * MB, "ada", live, 0.0, held_bytes=held)
    admission.end_upload(job(1))
    admission.admit(queues, job(2), ADA, {}, [], 0.0, blob_bytes=3 * MB)


def test_a_submission_counts_the_uploads_of_others_in_the_group_but_not_its_own() -> None:
    queues, admission = uploads("groups: {g: {members: [ada, bob], blob-mb: 10}}")
    admission.admit_upload(queues, job(1), ALL_FILES, 6 * MB, "ada", {}, 0.0)
    with pytest.raises(OverLimitError, match=r"blobs of group g: 0 of 10 MB .* 6 MB by uploads, 5 MB more"):
        admission.admit(queues, job(2), BOB, {}, [], 0.0, blob_bytes=5 * MB)
    admission.admit(queues, job(1), ADA, {}, [], 0.0, blob_bytes=6 * MB)
    admission.admit(queues, job(2), BOB, {}, [], 0.0, blob_bytes=4 * MB)


def test_the_limit_of_a_queue_waits_for_the_submission_that_names_it() -> None:
    queues, admission = uploads("queues: {default: {blob-mb: 1}}")
    admission.admit_upload(queues, job(1), ALL_FILES, 5 * MB, "ada", {}, 0.0)
    assert admission.uploader(job(1)) is None, "nothing is counted for a user without a limit"


def test_an_upload_expires_when_its_last_file_is_old_unless_its_job_lives() -> None:
    queues, admission = uploads()
    admission.admit_upload(queues, job(1), "file 1", MB, "ada", {}, 0.0)
    admission.admit_upload(queues, job(2), "file 1", MB, "ada", {}, 0.0)
    admission.admit_upload(queues, job(3), "file 1", MB, "ada", {}, 0.0)
    admission.admit_upload(queues, job(2), "file 2", MB, "ada", {}, 5.0)
    assert admission.expired_uploads([job(3)], 9.0, 10.0) == []
    assert admission.expired_uploads([job(3)], 10.0, 10.0) == [job(1)]
    assert admission.expired_uploads([], 15.0, 10.0) == [job(1), job(2), job(3)]
    assert admission.uploader(job(1)) == "ada", "it counts until its files are deleted"
    admission.clear()
    assert admission.expired_uploads([], 15.0, 10.0) == []


def test_the_number_of_uploads_and_of_their_files_is_bounded() -> None:
    queues, admission = uploads()
    for number in range(MOST_UPLOADS):
        admission.admit_upload(queues, job(number), ALL_FILES, 1, "ada", {}, 0.0)
    with pytest.raises(OverLimitError, match=f"user ada has {MOST_UPLOADS} uploads"):
        admission.admit_upload(queues, job(MOST_UPLOADS), ALL_FILES, 1, "ada", {}, 0.0)
    for number in range(MOST_UPLOADS):
        admission.admit_upload(queues, job(-1 % 2**64), str(number + 1), 1, "bob", {}, 0.0)
    with pytest.raises(OverLimitError, match=f"the job has {MOST_UPLOADS} uploaded files"):
        admission.admit_upload(queues, job(-1 % 2**64), "one more", 1, "bob", {}, 0.0)
