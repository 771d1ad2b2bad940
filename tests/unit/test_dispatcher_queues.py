"""The Dispatcher checks submissions by the file of queues, before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from actors.errors import RecipientUnreachable
from actors.rpc.codec import decode_error, encode_error
from blob.errors import BlobConnectionError, BlobNotFound
from blob.offload import Inline
from runtime.dispatcher.endpoint import Dispatcher
from runtime.dispatcher.running_job import RunningJob
from runtime.history.directory import HistoryDirectory
from runtime.ids import AllocationID, JobID
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.errors import (
    PASSING,
    JobIDRejectedError,
    JobNotReachableError,
    JobSubmissionError,
    QueueRejectedError,
    SubmissionLimitError,
)
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from runtime.protocol.queues import QueuesOverview, WaitingRequest
from runtime.rest.errors import retry_after, status_of
from tests.dispatcher_arguments import dispatcher_arguments
from tests.unit.test_rest_messages import graph as archived
from tests.waiting import PATIENCE_S

TERM = LeaderTerm(DISPATCHER, 7, "s")


def graph(number: int, owner: str = "ada", queue: str = "", **settings: str) -> JobGraph:
    made = JobGraph.for_script(f"job {number}", job_id=JobID(f"{number:032x}"))
    main = Artifact("main.py", ArtifactRole.MAIN, "p-" + "0" * 64 + "-" + "0" * 32)
    configuration = {f"job.task.{name}": text for name, text in settings.items()}
    if queue:
        configuration["job.queue"] = queue
    return replace(made.with_artifacts(main), owner=owner, configuration=configuration)


class Storing(Dispatcher):
    """Stores nothing; a submission is `stored` when the test says so."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.stored = asyncio.Event()
        self.stored.set()
        self.storing: list[JobID] = []
        self.failure: Exception | None = None
        self.graphs: dict[JobID, JobGraph] = {}
        self.sizes: dict[JobID, int] = {}
        self._job_blobs = MagicMock()
        self._job_blobs.size_of = AsyncMock(side_effect=lambda job_id, key: self.sizes.get(job_id, 1))
        self._job_blobs.clean_up = AsyncMock(side_effect=lambda job_id, term: self.deleted.append(job_id))
        self.deleted: list[JobID] = []

    async def _keep_blobs(self, job_id: JobID) -> None:
        await asyncio.sleep(0)

    async def _store(self, graph: JobGraph, term: LeaderTerm) -> None:
        self.storing.append(graph.job_id)
        await self.stored.wait()
        if self.failure is not None:
            raise self.failure
        self.graphs[graph.job_id] = graph

    async def _run(self, graph: JobGraph, status: JobStatus) -> None:
        details = JobDetails(graph.job_id, graph.name, graph.kind, status, 1, None, {}, 0, "", owner=graph.owner)
        leader = MagicMock()
        leader.gateway = None
        self._jobs[graph.job_id] = RunningJob(
            details, leader, lambda job_id: None, graph.configuration.get("job.queue", ""), graph.blob_bytes
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queues.yaml"


@pytest.fixture
async def dispatcher(tmp_path: Path, file: Path) -> AsyncIterator[Storing]:
    given = dispatcher_arguments(tmp_path)
    made = Storing(**given, queues=file)
    made._term = TERM
    made._resource_manager = AsyncMock()
    answers(made)
    yield made
    await given["service"].close()


def answers(dispatcher: Dispatcher, *running: int, waiting: tuple[WaitingRequest, ...] = ()) -> None:
    """What the ResourceManager answers."""
    found = QueuesOverview((), waiting, tuple(JobID(f"{number:032x}") for number in running))
    manager = dispatcher._resource_manager.get.return_value  # type: ignore[attr-defined]
    manager.request_queues = AsyncMock(return_value=found)


async def submit(dispatcher: Dispatcher, made: JobGraph) -> JobID:
    return await dispatcher.submit_job(Inline(encode(made)))


@pytest.mark.parametrize(("owner", "is_accepted"), [("ada", True), ("bob", False), ("", True)])
async def test_no_user_submits_under_the_id_of_anothers_job_in_the_history(
    dispatcher: Storing, file: Path, tmp_path: Path, owner: str, is_accepted: bool
) -> None:
    file.write_text("{}")
    dispatcher._history = HistoryDirectory(tmp_path / "history", 1 << 20, 60.0)
    ended = archived(JobStatus.FINISHED, job_id=graph(1).job_id, owner="ada")
    (tmp_path / "1.job").write_bytes(encode(ended))
    dispatcher._history.take_over(tmp_path / "1.job", ended.job_id)
    if is_accepted:
        assert await submit(dispatcher, graph(1, owner)) == ended.job_id
        return
    with pytest.raises(JobIDRejectedError, match="belongs to ada; submit with another id") as refused:
        await submit(dispatcher, graph(1, owner))
    assert status_of(refused.value) == 403
    assert isinstance(decode_error(*encode_error(refused.value)), JobIDRejectedError)
    assert not dispatcher.storing
    assert await submit(dispatcher, graph(2, owner)) == graph(2).job_id


async def test_an_id_whose_file_in_the_history_is_damaged_is_refused(dispatcher: Storing, tmp_path: Path) -> None:
    dispatcher._history = HistoryDirectory(tmp_path / "history", 1 << 20, 60.0)
    (tmp_path / "1.job").write_bytes(b"damaged")
    dispatcher._history.take_over(tmp_path / "1.job", graph(1).job_id)
    with pytest.raises(JobIDRejectedError, match="cannot be read"):
        await submit(dispatcher, graph(1))


async def test_a_job_beyond_the_limit_of_waiting_jobs_is_refused_with_a_time(dispatcher: Storing, file: Path) -> None:
    file.write_text("users: {ada: {waiting-jobs: 1}}")
    await submit(dispatcher, graph(1))
    with pytest.raises(SubmissionLimitError) as refused:
        await submit(dispatcher, graph(2))
    assert str(refused.value) == (
        "job 'job 2' was not accepted: user ada has 1 of 1 waiting jobs; submit again in 10 s"
    )
    assert (status_of(refused.value), retry_after(refused.value)) == (429, {"retry-after": "10"})
    told = decode_error(*encode_error(refused.value))
    assert isinstance(told, SubmissionLimitError)
    assert told.retry_after_s == 10, "as a client receives it"
    assert not isinstance(told, PASSING), "no client repeats it by itself"
    assert list(dispatcher._jobs) == [graph(1).job_id]
    assert await submit(dispatcher, graph(1)) == graph(1).job_id, "a repeated submission is the same job"
    answers(dispatcher, 1)
    await submit(dispatcher, graph(2))
    await submit(dispatcher, graph(3, "bob"))


async def test_two_submissions_at_once_do_not_exceed_a_limit(dispatcher: Storing, file: Path) -> None:
    """Neither is in the list of jobs while the other is checked."""
    file.write_text("each-user: {waiting-jobs: 1}\nusers: {bob: {submissions-per-minute: 1, waiting-jobs: 9}}")
    dispatcher.stored.clear()
    calls = [
        asyncio.create_task(submit(dispatcher, graph(number, owner)))
        for number, owner in ((1, "ada"), (2, "ada"), (3, "bob"), (4, "bob"))
    ]
    async with asyncio.timeout(PATIENCE_S):
        while len(dispatcher.storing) + sum(call.done() for call in calls) < len(calls):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    done = [call for call in calls if call.done()]
    assert len(done) == 2
    assert all(isinstance(call.exception(), SubmissionLimitError) for call in done)
    dispatcher.stored.set()
    accepted = await asyncio.gather(*(call for call in calls if call not in done))
    assert sorted(dispatcher._jobs[job_id].owner for job_id in accepted) == ["ada", "bob"]


async def test_a_job_that_could_not_be_stored_does_not_wait(dispatcher: Storing, file: Path) -> None:
    file.write_text("each-user: {waiting-jobs: 1}")
    dispatcher.failure = JobSubmissionError("the disk is full")
    with pytest.raises(JobSubmissionError, match="the disk is full"):
        await submit(dispatcher, graph(1))
    dispatcher.failure = None
    await submit(dispatcher, graph(2))


async def test_submissions_per_minute_are_counted_until_another_leads(dispatcher: Storing, file: Path) -> None:
    file.write_text("queues: {default: {submissions-per-minute: 1}}")
    await submit(dispatcher, graph(1))
    with pytest.raises(SubmissionLimitError, match=r"queue default has submitted 1 of 1 .*; submit again in \d+ s$"):
        await submit(dispatcher, graph(2, ""))
    file.write_text("queues: {default: {submissions-per-minute: 1000}}")
    await submit(dispatcher, graph(2, ""))


async def test_a_queue_that_the_job_may_not_use_is_refused(dispatcher: Storing, file: Path) -> None:
    file.write_text("queues: {etl: {users: [ada], waiting-jobs: 0}}")
    with pytest.raises(SubmissionLimitError, match="queue etl has 0 of 0 waiting jobs"):
        await submit(dispatcher, graph(1, "ada", "etl"))
    with pytest.raises(QueueRejectedError, match=r"'etl' may not be used by user bob; job\.queue can be default") as no:
        await submit(dispatcher, graph(1, "bob", "etl"))
    assert (status_of(no.value), retry_after(no.value)) == (400, {})
    await submit(dispatcher, graph(1, "ada", "default"))


async def test_a_task_that_takes_more_than_a_limit_can_ever_give_is_refused(dispatcher: Storing, file: Path) -> None:
    file.write_text("each-task: {memory-mb: 512}\nusers: {ada: {memory-mb: 1024}}")
    with pytest.raises(QueueRejectedError) as no:
        await submit(dispatcher, graph(1, memory="2 gb"))
    assert str(no.value) == (
        "job 'job 1' was not accepted: each of its tasks takes 2048 MB of memory, and user ada may use 1024 MB in "
        "total; set job.task.memory to less"
    )
    assert status_of(no.value) == 400
    assert not dispatcher._jobs
    await submit(dispatcher, graph(1, "bob", memory="2 gb"))
    for number in (2, 3, 4):
        await submit(dispatcher, graph(number, memory="1 gb"))
    assert len(dispatcher._jobs) == 4, "they wait for each other"


async def test_a_job_whose_files_are_over_the_limit_of_blobs_is_refused(dispatcher: Storing, file: Path) -> None:
    file.write_text("users: {ada: {blob-mb: 10}}")
    mb = 1 << 20
    dispatcher.sizes = {graph(number).job_id: size for number, size in ((1, 6 * mb), (2, 5 * mb), (3, 4 * mb))}
    dispatcher.sizes[graph(4).job_id] = 10 * mb + 1
    await submit(dispatcher, graph(1))
    with pytest.raises(SubmissionLimitError) as refused:
        await submit(dispatcher, graph(2))
    assert str(refused.value) == (
        "job 'job 2' was not accepted: blobs of user ada: 6 of 10 MB held by jobs that are not over, 5 MB more asked "
        "for; cancel one of these jobs or wait for its end; it ships main.py (5.0 MB); submit again in 10 s"
    )
    await submit(dispatcher, graph(3))
    with pytest.raises(QueueRejectedError, match=r"11 MB, and user ada .* 10 MB of blobs; .*; it ships main.py \("):
        await submit(dispatcher, graph(4))
    await submit(dispatcher, graph(2, "bob"))
    del dispatcher._jobs[graph(1).job_id]
    await submit(dispatcher, graph(5))


async def test_blobs_are_counted_as_the_blob_server_has_them_also_by_the_next_leader(
    dispatcher: Storing, file: Path
) -> None:
    file.write_text("each-user: {blob-mb: 10}")
    dispatcher.sizes = {graph(number).job_id: 6 << 20 for number in (1, 2)}
    (main,) = graph(1).artifacts
    await submit(dispatcher, graph(1).with_artifacts(replace(main, size=-(9 << 20))))
    assert dispatcher.graphs[graph(1).job_id].blob_bytes == 6 << 20, "the size that the client names is not believed"
    dispatcher._jobs.clear()
    dispatcher._admission.clear()
    await dispatcher._run(decode_job_graph(encode(dispatcher.graphs[graph(1).job_id])), JobStatus.RECONCILING)
    with pytest.raises(SubmissionLimitError, match="6 of 10 MB held"):
        await submit(dispatcher, graph(2))


async def test_two_submissions_at_once_do_not_exceed_a_limit_of_blobs(dispatcher: Storing, file: Path) -> None:
    file.write_text("each-user: {blob-mb: 10}")
    dispatcher.sizes = {graph(number).job_id: 6 << 20 for number in (1, 2)}
    dispatcher.stored.clear()
    calls = [asyncio.create_task(submit(dispatcher, graph(number))) for number in (1, 2)]
    async with asyncio.timeout(PATIENCE_S):
        while len(dispatcher.storing) + sum(call.done() for call in calls) < len(calls):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    dispatcher.stored.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [SubmissionLimitError]
    assert len(dispatcher._jobs) == 1


async def test_a_blob_that_another_server_has_received_is_fetched_before_it_is_counted(
    dispatcher: Storing, file: Path
) -> None:
    file.write_text("each-user: {blob-mb: 1}")
    found: list[int | None] = [None, 7, None, None, None, None]
    dispatcher._job_blobs.size_of = AsyncMock(side_effect=lambda job_id, key: found.pop(0))  # type: ignore[method-assign]
    fetch = MagicMock()
    dispatcher._blobs.get_to_stream = fetch  # type: ignore[method-assign]
    await submit(dispatcher, graph(1))
    assert (dispatcher.graphs[graph(1).job_id].blob_bytes, fetch.call_count) == (7, 1)
    with pytest.raises(JobSubmissionError, match=r"job 'job 2' was not accepted: the BlobServer has lost p-0"):
        await submit(dispatcher, graph(2))
    fetch.side_effect = BlobNotFound("no blob")
    with pytest.raises(JobSubmissionError, match=r"job 'job 2' was not accepted: no blob"):
        await submit(dispatcher, graph(2))
    fetch.side_effect = BlobConnectionError("no BlobServer")
    with pytest.raises(JobNotReachableError, match="without the sizes of its files: no BlobServer"):
        await submit(dispatcher, graph(2))
    dispatcher._job_blobs.size_of = AsyncMock(side_effect=RecipientUnreachable("gone"))  # type: ignore[method-assign]
    with pytest.raises(JobNotReachableError, match="without the sizes of its files: gone"):
        await submit(dispatcher, graph(2))


async def admit(dispatcher: Storing, number: int, size_mb: float, owner: str = "ada", upload_id: str = "") -> None:
    await dispatcher.admit_upload(graph(number).job_id, upload_id, int(size_mb * (1 << 20)), owner, f"job {number}")


async def test_an_upload_over_the_limit_is_refused_in_the_words_of_the_submission(
    dispatcher: Storing, file: Path
) -> None:
    file.write_text("each-user: {blob-mb: 10}")
    dispatcher.sizes = {graph(number).job_id: 6 << 20 for number in (1, 2)}
    await admit(dispatcher, 1, 6)
    await submit(dispatcher, graph(1))
    with pytest.raises(SubmissionLimitError) as before_it:
        await admit(dispatcher, 2, 6)
    with pytest.raises(SubmissionLimitError) as after_it:
        await submit(dispatcher, graph(2))
    assert (
        str(before_it.value)
        == str(after_it.value).replace("it ships main.py (6.0 MB); ", "")  # which the client adds before it
        == (
            "job 'job 2' was not accepted: blobs of user ada: 6 of 10 MB held by jobs that are not over, 6 MB more "
            "asked for; cancel one of these jobs or wait for its end; submit again in 10 s"
        )
    )
    with pytest.raises(QueueRejectedError, match="job 'job 2' was not accepted: its files have 11 MB"):
        await admit(dispatcher, 2, 11)
    await admit(dispatcher, 2, 6, "bob")
    await dispatcher.admit_upload(graph(9).job_id, "", 99 << 20, "", "")


async def test_without_a_file_of_queues_every_upload_is_admitted(tmp_path: Path) -> None:
    given = dispatcher_arguments(tmp_path)
    made = Storing(**given)
    made._term = TERM
    await admit(made, 1, 99)
    await made.end_upload(graph(1).job_id, "ada")
    assert made.deleted == []
    await given["service"].close()


async def test_the_files_of_a_refused_job_are_deleted_before_the_answer(dispatcher: Storing, file: Path) -> None:
    """Else the user could not submit again until they expire, because they would count."""
    file.write_text("each-user: {blob-mb: 10, waiting-jobs: 0}")
    for number in (1, 2):
        await admit(dispatcher, number, 9)
        with pytest.raises(SubmissionLimitError, match="waiting jobs"):
            await submit(dispatcher, graph(number))
        assert dispatcher.deleted[-1] == graph(number).job_id


async def test_a_refusal_does_not_delete_the_files_of_another_user_under_the_same_id(
    dispatcher: Storing, file: Path
) -> None:
    file.write_text("each-user: {blob-mb: 10}\nusers: {bob: {waiting-jobs: 0}}")
    await admit(dispatcher, 1, 9)
    with pytest.raises(SubmissionLimitError, match="waiting jobs"):
        await submit(dispatcher, graph(1, "bob"))
    assert dispatcher.deleted == []


async def test_files_that_are_not_deleted_yet_count_until_they_expire(
    dispatcher: Storing, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("each-user: {blob-mb: 10}")
    clock = [100.0]
    monkeypatch.setattr("runtime.dispatcher.endpoint.time.monotonic", lambda: clock[0])
    dispatcher._job_blobs.clean_up.side_effect = RecipientUnreachable("gone")  # type: ignore[attr-defined]
    await admit(dispatcher, 1, 9)
    await dispatcher.end_upload(graph(1).job_id, "ada")
    with pytest.raises(SubmissionLimitError, match="9 MB by uploads, 9 MB more asked for"):
        await admit(dispatcher, 2, 9)
    clock[0] += dispatcher._upload_lifetime_s
    with pytest.raises(SubmissionLimitError):
        await admit(dispatcher, 2, 9)
    dispatcher._job_blobs.clean_up.side_effect = lambda job_id, term: dispatcher.deleted.append(job_id)  # type: ignore[attr-defined]
    await admit(dispatcher, 2, 9)
    assert dispatcher.deleted == [graph(1).job_id]
    await submit(dispatcher, graph(2))
    clock[0] += 2 * dispatcher._upload_lifetime_s
    with pytest.raises(SubmissionLimitError):
        await admit(dispatcher, 3, 9)
    assert dispatcher.deleted == [graph(1).job_id], "the files of a job that runs do not expire"


async def test_only_ones_own_upload_is_ended_and_not_that_of_an_accepted_job(dispatcher: Storing, file: Path) -> None:
    file.write_text("each-user: {blob-mb: 10}")
    job_id = graph(1).job_id
    await admit(dispatcher, 1, 9, upload_id="file")
    await dispatcher.end_upload(job_id, "bob")
    await dispatcher.end_upload(job_id, "")
    with pytest.raises(JobIDRejectedError, match="another user uploads files under this id"):
        await admit(dispatcher, 1, 1, "bob")
    await submit(dispatcher, graph(1))
    await dispatcher.end_upload(job_id, "ada")
    assert dispatcher.deleted == []
    with pytest.raises(SubmissionLimitError, match="9 of 10 MB held"):
        await admit(dispatcher, 2, 9)
    await admit(dispatcher, 1, 1, "an-operator", "another file")
    with pytest.raises(SubmissionLimitError, match="10 of 10 MB held"):
        await admit(dispatcher, 2, 1)


async def test_no_file_is_admitted_while_the_upload_is_being_deleted(dispatcher: Storing, file: Path) -> None:
    """It would be forgotten with the others, though it came after the deletion."""
    file.write_text("each-user: {blob-mb: 10}")
    await admit(dispatcher, 1, 9)
    deleting, deleted = asyncio.Event(), asyncio.Event()

    async def clean_up(job_id: JobID, term: LeaderTerm) -> None:
        deleting.set()
        await deleted.wait()

    dispatcher._job_blobs.clean_up = clean_up  # type: ignore[method-assign]
    ending = asyncio.create_task(dispatcher.end_upload(graph(1).job_id, "ada"))
    await deleting.wait()
    further = asyncio.create_task(admit(dispatcher, 1, 8, upload_id="further"))
    submission = asyncio.create_task(submit(dispatcher, graph(1)))
    await asyncio.sleep(0)
    assert dispatcher._admission.uploader(graph(1).job_id) == "ada"
    deleted.set()
    await asyncio.gather(ending, further, submission)
    with pytest.raises(SubmissionLimitError, match="8 of 10 MB held"):
        await admit(dispatcher, 2, 3)


async def test_without_a_file_of_queues_no_size_is_asked_for_or_believed(tmp_path: Path) -> None:
    given = dispatcher_arguments(tmp_path)
    made = Storing(**given)
    made._term = TERM
    (main,) = graph(1).artifacts
    await submit(made, graph(1).with_artifacts(replace(main, size=5)))
    assert made.graphs[graph(1).job_id].blob_bytes == 0
    made._job_blobs.size_of.assert_not_called()  # type: ignore[attr-defined]
    await given["service"].close()


async def test_no_job_is_accepted_while_the_file_has_never_been_right(dispatcher: Storing, file: Path) -> None:
    with pytest.raises(JobSubmissionError, match=r"before the file of queues is right: .*create the file"):
        await submit(dispatcher, graph(1))
    file.write_text("queues: 7")
    with pytest.raises(JobSubmissionError, match=r"before the file of queues is right: .*'7' is not a map"):
        await submit(dispatcher, graph(1))
    file.write_text("")
    await submit(dispatcher, graph(1))


async def test_without_the_resource_manager_a_limit_is_not_passed(dispatcher: Storing, file: Path) -> None:
    file.write_text("each-user: {waiting-jobs: 1}")
    await submit(dispatcher, graph(1))
    manager = dispatcher._resource_manager.get.return_value  # type: ignore[attr-defined]
    manager.request_queues = AsyncMock(side_effect=RecipientUnreachable("gone"))
    with pytest.raises(JobNotReachableError, match="which jobs wait: gone") as passing:
        await submit(dispatcher, graph(2))
    assert isinstance(passing.value, PASSING), "clients repeat it by themselves"
    await submit(dispatcher, graph(3, "bob"))


async def test_a_list_of_jobs_says_what_each_waits_for(dispatcher: Storing, file: Path) -> None:
    file.write_text("")
    for number in (1, 2, 3):
        await submit(dispatcher, graph(number))
    for number, state in ((1, "SCHEDULED"), (2, "RUNNING")):
        job = dispatcher._jobs[graph(number).job_id]
        job._last_known = replace(job._last_known, tasks_per_state={state: 1}, status=JobStatus.INITIALIZING)
    texts = ["1 slot for task 'a', 2nd in queue default; it is full", "1 slot for task 'b', 3rd in queue default"]
    waits = [
        WaitingRequest(graph(1).job_id, "n", "t", AllocationID(f"{place:032x}"), "ada", "default", place, text)
        for place, text in enumerate(texts, 2)
    ]
    answers(dispatcher, 2, waiting=tuple(waits))
    found = {job.job_id: job.waiting_for for job in (await dispatcher.request_multiple_job_details()).jobs}
    assert found == {graph(1).job_id: texts[0], graph(2).job_id: "", graph(3).job_id: ""}
    manager = dispatcher._resource_manager.get.return_value  # type: ignore[attr-defined]
    manager.request_queues = AsyncMock(side_effect=RecipientUnreachable("gone"))
    assert [job.waiting_for for job in (await dispatcher.request_multiple_job_details()).jobs] == ["", "", ""]
