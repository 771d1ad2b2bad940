"""A job's handle as a future, over a cluster that is made up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from actors.errors import ClientClosed
from runtime.client import NoAnswerError
from runtime.errors import JobCancelledError, JobFailedError, NotebookError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.notebook import AsyncCluster, Cluster, Job, as_completed, wait
from runtime.notebook.ends import ASKS, JobEnds
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import ErrorInfo, FailureKind, JobStatus
from runtime.spark.function_task import _dumps
from tests.waiting import PATIENCE_S

TRACE = 'Traceback (most recent call last):\n  File "cell", line 1, in f\nLimitError: 3\n'


class LimitError(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


_DETAILS: dict[str, Any] = {field.name: None for field in fields(JobDetails)}


class FakeClient:
    """A client whose jobs end when a test says so.

    Args:
        tells: whether it tells of ends; one that does not is to be asked now and then.
    """

    sees_files = True

    def __init__(self, tells: bool = True) -> None:
        self.tells = tells
        self.states: dict[JobID, JobStatus] = {}
        self.values: dict[JobID, Any] = {}
        self.error: Exception | None = None
        self.waiting: dict[JobID, list[Callable[[], object]]] = {}
        self.most_waiting = 0
        self.many_wait = threading.Event()
        self.was_listed = threading.Event()

    def submit(self, graph: JobGraph, main: Path, libraries: Any) -> JobID:
        self.states[graph.job_id] = JobStatus.RUNNING
        return graph.job_id

    def end(self, job_id: JobID, status: JobStatus = JobStatus.FINISHED, value: Any = None) -> None:
        self.values[job_id] = value
        self.states[job_id] = status
        self.wake(job_id)

    def wake(self, job_id: JobID) -> None:
        for wake in self.waiting.pop(job_id, []):
            wake()

    def status_of(self, job_id: JobID) -> JobStatus:
        if self.error is not None:
            raise self.error
        if job_id not in self.states:
            raise JobNotFoundError(f"no job {job_id}")
        return self.states[job_id]

    def on_end(self, job_id: JobID, wake: Callable[[], object]) -> bool:
        if not self.tells:
            return False
        if self.error is not None:
            raise self.error
        self.waiting.setdefault(job_id, []).append(wake)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        if len(self.waiting) == ASKS:
            self.many_wait.set()
        if self.states.get(job_id, JobStatus.FAILED).is_globally_terminal:
            self.wake(job_id)
        return True

    def result(self, job_id: JobID) -> None:
        over = threading.Event()
        while not self.status_of(job_id).is_globally_terminal:
            self.on_end(job_id, over.set)
            over.wait(PATIENCE_S)

    def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        status, value = self.status_of(job_id), self.values[job_id]
        failure = None
        if status is JobStatus.FAILED:
            kind = FailureKind.USER_CODE if isinstance(value, Exception) else FailureKind.SPARK_LOST
            failure = ErrorInfo(kind, type(value).__name__, str(value), TRACE, "f")
        stamps = {"CREATED": 1, status.value: 3}
        return ArchivedExecutionGraph(job_id, "f", JobKind.SCRIPT, status, stamps, (), (), failure, (), 0, "none")

    def function_result(self, job_id: JobID) -> bytes:
        return _dumps(self.values[job_id], "it")

    def function_error(self, job_id: JobID) -> bytes | None:
        return _dumps(self.values[job_id], "it") if isinstance(self.values[job_id], Exception) else None

    def list_jobs(self) -> list[JobDetails]:
        self.was_listed.set()
        return [
            JobDetails(**{**_DETAILS, "job_id": job_id, "status": status}) for job_id, status in self.states.items()
        ]

    def close(self) -> None:
        pass


@pytest.fixture
def client() -> Any:
    return FakeClient()


@pytest.fixture
def cluster(client: Any) -> Cluster:
    return Cluster(client)


def f(*_args: Any, **_kwargs: Any) -> int:
    return 1


def test_a_handle_is_a_future(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    assert (job.done(), job.running(), job.cancelled()) == (False, True, False)
    with pytest.raises(TimeoutError, match=r"not over after 0\.01 s; it keeps running"):
        job.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        job.exception(timeout=0)
    client.end(job.id, value=[1])
    assert job.result(timeout=PATIENCE_S) == [1]
    assert job.result() is job.result(), "as of a future, it is one object"
    assert job.exception() is None
    assert (job.done(), job.running(), job.cancelled()) == (True, False, False)


def test_a_wait_with_a_timeout_ends_with_the_job(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    threading.Timer(0.05, client.end, [job.id]).start()
    assert job.result(timeout=PATIENCE_S) is None


def test_the_functions_own_exception_is_raised_with_the_jobs_traceback_as_its_cause(
    client: Any, cluster: Cluster
) -> None:
    job = cluster.submit(f)
    client.end(job.id, JobStatus.FAILED, LimitError(3))
    with pytest.raises(LimitError) as caught:
        job.result()
    assert caught.value.limit == 3
    cause = caught.value.__cause__
    assert isinstance(cause, JobFailedError)
    assert cause.job_id == job.id
    assert TRACE.rstrip() in "".join(cause.__notes__)
    assert job.exception() is caught.value


@pytest.mark.parametrize(
    "make",
    [
        lambda cluster, job: cluster.job(job.id),  # somebody else may have submitted it: nothing of it is unpickled
        lambda cluster, job: Job(cluster.client, job.id),
        lambda cluster, job: cluster.jobs()[0],
    ],
)
def test_nothing_of_a_job_that_this_handle_did_not_submit_is_unpickled(
    client: Any, cluster: Cluster, make: Callable[[Cluster, Job[Any]], Job[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.spark.function_task.pickle.loads", pytest.fail)
    job = cluster.submit(f)
    client.end(job.id, JobStatus.FAILED, LimitError(3))
    with pytest.raises(JobFailedError, match="LimitError: 3") as caught:
        make(cluster, job).result()
    assert caught.value.details == TRACE
    client.end(job.id, JobStatus.FINISHED, LimitError(3))
    assert make(cluster, job).result().job_id == job.id


def test_an_exception_that_cannot_be_made_here_is_a_failed_job(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    client.function_error = lambda _: b"\x80no pickle"
    client.end(job.id, JobStatus.FAILED, LimitError(3))
    with pytest.raises(JobFailedError, match="LimitError: 3"):
        job.result()


def test_a_cancelled_job_raises_a_cancelled_error(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    client.end(job.id, JobStatus.CANCELED)
    assert job.cancelled()
    for ask in (job.result, job.exception):
        with pytest.raises(concurrent.futures.CancelledError, match="is CANCELED") as caught:
            ask()
        assert isinstance(caught.value, JobCancelledError)
        assert caught.value.job_id == job.id
    assert job.cancelled()


def test_a_trouble_of_the_clusters_is_raised_and_not_kept(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    client.end(job.id, value=5)
    client.error = NoAnswerError("nobody")
    with pytest.raises(NoAnswerError):
        job.exception()
    client.error = None
    assert job.result() == 5


def test_callbacks_are_called_once_with_the_handle_on_one_thread_for_all_jobs(client: Any, cluster: Cluster) -> None:
    jobs = cluster.map(f, range(3))
    called: list[tuple[Job[int], str]] = []
    over = threading.Barrier(2, timeout=PATIENCE_S)

    def note(job: Job[int]) -> None:
        called.append((job, threading.current_thread().name))
        over.wait()

    for job in jobs:
        job.add_done_callback(note)
        job.add_done_callback(lambda _: 1 / 0)  # is logged, and harms nobody
    for job in reversed(jobs):
        client.end(job.id)
        over.wait()
    assert called == [(job, "understudy-job-ends") for job in reversed(jobs)]
    late: list[Job[int]] = []
    jobs[0].result()
    jobs[0].add_done_callback(late.append)
    assert late == jobs[:1], "of a job that is over, at once"


def test_a_callback_may_wait_for_another_job(client: Any, cluster: Cluster) -> None:
    first, second = cluster.map(f, range(2))
    found: list[int] = []
    over = threading.Event()

    def then(_: Job[int]) -> None:
        client.end(second.id, value=7)
        found.append(second.result(timeout=PATIENCE_S))
        over.set()

    first.add_done_callback(then)
    client.end(first.id)
    assert over.wait(PATIENCE_S)
    assert found == [7]


async def test_a_job_is_awaited_without_a_thread_of_its_own(client: Any, cluster: Cluster) -> None:
    jobs = cluster.map(f, range(50))
    before = threading.active_count()
    gathered = asyncio.gather(*jobs)
    await asyncio.sleep(0)
    await asyncio.to_thread(client.many_wait.wait, PATIENCE_S)
    assert threading.active_count() <= before + 2, "one that notices ends, and one of this test's"
    for number, job in enumerate(jobs):
        client.end(job.id, value=number)
    assert await gathered == list(range(50))


async def test_awaiting_raises_what_result_does_and_its_end_leaves_the_job_alone(client: Any, cluster: Cluster) -> None:
    failing, cancelled, going_on = cluster.map(f, range(3))
    client.end(failing.id, JobStatus.FAILED, LimitError(4))
    client.end(cancelled.id, JobStatus.CANCELED)
    with pytest.raises(LimitError):
        await failing
    with pytest.raises(JobCancelledError):
        await cancelled
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(going_on, 0.01)
    other = asyncio.ensure_future(going_on)  # the wait of one is not that of another
    await asyncio.sleep(0)
    client.end(going_on.id, value=1)
    assert await other == 1


def test_a_loop_that_ends_before_the_job_is_not_missed(
    client: Any, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    job = cluster.submit(f)

    async def wait_a_moment() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.01)
        task = asyncio.ensure_future(job)  # is cancelled with the loop
        await asyncio.sleep(0.01)
        assert not task.done()

    asyncio.run(wait_a_moment())
    client.end(job.id, value=2)
    assert job.result() == 2
    assert wait([job], PATIENCE_S).done == {job}
    assert caplog.records == []


def test_jobs_are_waited_for_as_futures_are(client: Any, cluster: Cluster) -> None:
    first, second, third = cluster.map(f, range(3))
    assert wait([first, second], 0.01) == (set(), {first, second})
    client.end(second.id)
    assert wait([first, second], return_when=concurrent.futures.FIRST_COMPLETED) == ({second}, {first})
    client.end(first.id, JobStatus.FAILED, ValueError("x"))
    found = wait([first, second, third], return_when=concurrent.futures.FIRST_EXCEPTION)
    assert first in found.done
    assert third in found.not_done
    client.end(third.id)
    assert wait([first, second, third]).done == {first, second, third}
    assert wait([]) == (set(), set())
    with pytest.raises(ValueError, match="'soon' is none of"):
        wait([first], return_when="soon")


def test_jobs_come_as_they_end(client: Any, cluster: Cluster) -> None:
    first, second, third = jobs = cluster.map(f, range(3))
    again = cluster.job(first.id)
    client.end(second.id)
    coming = as_completed([*jobs, again], timeout=PATIENCE_S)
    assert next(coming) is second
    client.end(first.id)
    assert {next(coming), next(coming)} == {first, again}
    client.end(third.id)
    assert list(coming) == [third]
    assert list(as_completed([])) == []
    with pytest.raises(TimeoutError, match=r"of 2 jobs are not over after 0\.01 s"):
        list(as_completed([first, cluster.submit(f)], timeout=0.01))


def test_results_are_gathered_in_order(client: Any, cluster: Cluster) -> None:
    first, second, third = jobs = cluster.map(f, range(3))
    client.end(third.id, value=3)
    client.end(second.id, JobStatus.FAILED, LimitError(2))
    client.end(first.id, value=1)
    with pytest.raises(LimitError):
        cluster.gather(jobs)
    assert cluster.gather(jobs, errors="skip") == [1, 3]
    assert cluster.gather([third, first]) == [3, 1]
    with pytest.raises(ValueError, match="neither"):
        cluster.gather(jobs, errors="none")  # type: ignore[arg-type]


def test_few_jobs_wait_at_the_cluster_and_the_others_are_found_in_its_list(
    client: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.notebook.ends.LOOK_S", 0.001)
    jobs = cluster.map(f, range(ASKS * 3))

    def end_all() -> None:
        client.was_listed.wait(PATIENCE_S)
        for job in jobs:
            client.end(job.id)

    threading.Thread(target=end_all).start()
    assert wait(jobs, PATIENCE_S).not_done == set()
    assert client.most_waiting <= ASKS
    assert client.was_listed.is_set()


def test_a_client_that_tells_nothing_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.notebook.ends.LOOK_S", 0.001)
    monkeypatch.setattr("runtime.notebook.job.LOOK_S", 0.001)
    client: Any = FakeClient(tells=False)
    job = Cluster(client).submit(f)
    assert wait([job], 0.01).not_done == {job}
    threading.Timer(0.02, client.end, [job.id]).start()
    assert wait([job], PATIENCE_S).done == {job}
    assert job.result(timeout=PATIENCE_S) is None


def test_a_job_that_goes_on_is_asked_for_again(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    over = threading.Event()
    job.add_done_callback(lambda _: over.set())
    for _ in range(3):
        while job.id not in client.waiting:
            over.wait(0.001)
        client.wake(job.id)  # as the cluster answers after some seconds
    assert not over.is_set()
    client.end(job.id)
    assert over.wait(PATIENCE_S)


def test_what_cannot_be_noticed_is_raised(client: Any, cluster: Cluster) -> None:
    forgotten, lost, closed = cluster.map(f, range(3))
    called: list[Job[int]] = []
    forgotten.add_done_callback(called.append)
    del client.states[forgotten.id]
    client.wake(forgotten.id)
    with pytest.raises(JobNotFoundError):
        wait([forgotten], PATIENCE_S)
    assert called == [forgotten]
    client.error = NoAnswerError("nobody answers")
    with pytest.raises(NoAnswerError):
        wait([lost], PATIENCE_S)
    client.error = None
    end = closed._end()
    cluster.close()
    with pytest.raises(ClientClosed):
        end.result(PATIENCE_S)


def test_a_result_that_cannot_be_unpickled_here_is_no_error_of_the_function(
    client: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("module_of_the_job")
    exec("class Thing:\n    pass\n", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    thing = module.Thing()
    job = cluster.submit(f)
    client.end(job.id, value=thing)
    pickled = client.function_result(job.id)
    client.function_result = lambda _: pickled
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(JobFailedError, match="cannot be unpickled here: ModuleNotFoundError") as caught:
        job.result(PATIENCE_S)
    assert caught.value.job_id == job.id
    assert isinstance(job.exception(), JobFailedError)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # the user makes it importable, and asks again
    assert isinstance(job.result(PATIENCE_S), module.Thing)


class SealedError(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def test_an_error_that_takes_no_attributes_is_raised_with_its_cause(client: Any, cluster: Cluster) -> None:
    job = cluster.submit(f)
    client.end(job.id, JobStatus.FAILED, SealedError("x"))
    with pytest.raises(SealedError) as caught:
        job.result(PATIENCE_S)
    assert isinstance(caught.value.__cause__, JobFailedError)


def test_the_thread_ends_when_nothing_is_waited_for(client: Any) -> None:
    ends = JobEnds(client)
    job_id = JobID.random()
    client.states[job_id] = JobStatus.FINISHED
    ends.of(job_id).result(PATIENCE_S)
    thread = ends._thread
    if thread is not None:
        thread.join(PATIENCE_S)
    assert ends._thread is None
    ends.of(job_id).result(PATIENCE_S)


# --------------------------------------------------------------------- options


def test_options_are_apart_from_the_functions_own_arguments(client: Any, cluster: Cluster) -> None:
    job = cluster.options(name="x", priority=2).submit(f, name="own", priority="mine")
    assert job._graph is not None
    assert (job._graph.name, job._graph.priority) == ("x", 2)
    own = cluster.submit(lambda name: name, name="own")
    assert own._graph is not None
    assert own._graph.name == "function"
    named = cluster.options(name="each").map(f, range(2))
    assert [job._graph and job._graph.name for job in named] == ["each", "each"]
    with pytest.raises(NotebookError, match="'nam' is not an option"):
        cluster.options(nam="x")  # type: ignore[call-arg]
    with pytest.raises(NotebookError, match="cannot have one job_id"):
        cluster.options(job_id="0" * 32).map(f, range(2))


@pytest.mark.parametrize("work", [lambda day: day, "job.py"])
def test_an_option_among_the_arguments_is_told_where_it_belongs(client: Any, cluster: Cluster, work: Any) -> None:
    with pytest.raises(NotebookError) as caught:
        cluster.submit(work, py_files=["a.py"])
    assert "cluster.options(py_files=...).submit(...)" in caught.value.remedy
    assert client.states == {}


def test_nothing_of_a_map_is_submitted_where_an_item_cannot_travel(client: Any, cluster: Cluster) -> None:
    from runtime.spark.errors import FunctionTaskError

    with pytest.raises(FunctionTaskError):
        cluster.map(f, [1, threading.Lock()])
    assert client.states == {}
    assert [len(cluster.map(f, "abc", (1, 2))), cluster.map(f, [])] == [2, []]


# ----------------------------------------------------------------- coroutines


async def test_a_cluster_for_coroutines(client: Any) -> None:
    async with AsyncCluster(Cluster(client)) as cluster:
        job = await cluster.submit(f)
        assert await job.status() is JobStatus.RUNNING
        assert not await job.done()
        with pytest.raises(TimeoutError, match="it keeps running"):
            await job.result(timeout=0.01)
        called: asyncio.Queue[Any] = asyncio.Queue()
        job.add_done_callback(called.put_nowait)
        client.end(job.id, value=8)
        assert await called.get() is job
        assert (await job, await job.result(), await job.exception()) == (8, 8, None)
        named, _ = await cluster.options(name="x").map(f, range(2))
        client.end(named.id, JobStatus.FAILED, LimitError(1))
        assert isinstance(await named.exception(), LimitError)
        assert (await (await cluster.job(job.id)).info()).job_id == job.id
