"""Limits of submissions: waiting jobs, and jobs per minute."""

from __future__ import annotations

import pytest

from runtime.ids import JobID
from runtime.queues.admission import WAITING_RETRY_S, Admission, OverLimitError
from runtime.queues.configuration import DEFAULT_QUEUE, Member, parse_queues

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
