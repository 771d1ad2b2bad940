"""A job in Python: its handle, which is a future, and the display of its progress."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import functools
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar

from runtime.checkpoint import errors as _errors  # noqa: F401  # so that errors of the cluster have these types
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.client import ClusterClient
from runtime.cluster.views import JobView, job_progress, view_of_job
from runtime.errors import ClusterError, JobCancelledError, JobFailedError, SavepointFailedError
from runtime.ids import JobID, TriggerID
from runtime.job_logs import TASK_LOGS
from runtime.jobgraph.job_graph import ExchangeMode, JobEdge, JobGraph, JobVertex
from runtime.jobgraph.svg import explain_svg
from runtime.notebook.ends import LOOK_S, RETRY_S, JobEnds
from runtime.notebook.html import checkpoints_html, job_html
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.execution_state import FailureKind, JobStatus
from runtime.protocol.places import is_url
from runtime.spark.function_task import load_error, load_result

if TYPE_CHECKING:
    from runtime.cluster.documents import RescaledJob
    from runtime.cluster.rescaling import JobRescaler

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """Outcome of a job: its result, or the error that `Job.result` raises.

    It is not *final* if another attempt to read it may succeed in this process.
    """

    value: T
    error: Exception | None = None
    is_final: bool = True

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value

    def exception(self) -> Exception | None:
        if isinstance(self.error, JobCancelledError):
            raise self.error
        return self.error


class Job(Generic[T]):
    """A handle of a job, and a future of its result; made by `Cluster.submit` and `Cluster.job`.

    It has the methods of a `concurrent.futures.Future`, and may be awaited in a coroutine: ``await job``. The job does
    not depend on its handle: dropping the handle cancels nothing.

    Args:
        client: connected to the cluster.
        job_id: the job.
        graph: the graph as it was submitted, if known.
        returns: whether it is a function whose return value is the result.
        details: its line in a list of jobs, if it comes from one.
        ends: notices the ends of the client's jobs; None: the handle makes its own.
    """

    def __init__(
        self,
        client: ClusterClient,
        job_id: JobID,
        *,
        graph: JobGraph | None = None,
        returns: bool = False,
        details: JobDetails | None = None,
        ends: JobEnds | None = None,
    ) -> None:
        self._client = client
        self._ends = JobEnds(client) if ends is None else ends
        self._outcome: _Outcome[T] | None = None
        self.id = job_id
        self.details = details
        self._graph = graph
        self._returns = returns

    @property
    def name(self) -> str:
        """Its name; raises `JobNotFoundError`."""
        return self.info().name

    @property
    def status(self) -> JobStatus:
        """Its state now; raises `JobNotFoundError`."""
        return self._client.status_of(self.id)

    def info(self) -> ArchivedExecutionGraph:
        """Return all that the cluster knows of it now; raises `JobNotFoundError`."""
        return self._client.job(self.id)

    # ---------------------------------------------------------------------- end

    def result(self, timeout: float | None = None) -> T:
        """Wait for its end, and return its result.

        Args:
            timeout: seconds to wait at most; None: for ever. An interrupt (Ctrl-C) does not affect the job either.

        Returns:
            the function's return value, if this handle has submitted a function; else a `JobResult`.

        Raises:
            Exception: the function's own exception, if this handle has submitted a function. Its ``__cause__`` is a
                `JobFailedError`, which shows the traceback of the job.
            JobFailedError: the job has failed otherwise; ``details`` is the user's own traceback. Or its return value
                was not kept, or cannot be unpickled here.
            JobCancelledError: it was cancelled; a `concurrent.futures.CancelledError`.
            TimeoutError: it is not over after *timeout*, and keeps running.
            JobNotFoundError: the cluster has forgotten it.
        """
        return self._await_outcome(timeout).result()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for its end, and return the error that `result` would raise; None if it has finished.

        An error of the request to the cluster is raised, not returned, to distinguish it from failures of the job.

        Raises:
            JobCancelledError: it was cancelled.
            TimeoutError: it is not over after *timeout*, and keeps running.
        """
        return self._await_outcome(timeout).exception()

    def done(self) -> bool:
        """Return whether it is over: finished, failed or cancelled. Raises `JobNotFoundError`."""
        return self._outcome is not None or self.status.is_globally_terminal

    def running(self) -> bool:
        """Return whether it runs now: it is not over, restarting or being stopped. Raises `JobNotFoundError`."""
        return self._outcome is None and self.status is JobStatus.RUNNING

    def cancelled(self) -> bool:
        """Return whether it was cancelled, and nothing of it runs any more. Raises `JobNotFoundError`."""
        if self._outcome is not None:
            return isinstance(self._outcome.error, JobCancelledError)
        return self.status is JobStatus.CANCELED

    def add_done_callback(self, callback: Callable[[Job[T]], object]) -> None:
        """Call *callback* with this handle when the job is over; at once if it is over already.

        It runs on the thread that notices the ends of all jobs, so it should not take long; its exceptions are logged.
        It is also called when the cluster cannot be queried any more: then `result` raises that error.
        """
        self._end().add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        return (await self._outcome_later(None)).result()

    async def _outcome_later(self, timeout: float | None) -> _Outcome[T]:
        """Return the outcome once the job is over, as `_await_outcome` does, in a coroutine."""
        if self._outcome is not None:
            return self._outcome
        end = asyncio.wrap_future(self._end())
        try:
            if not (await asyncio.wait({end}, timeout=timeout))[0]:
                raise self._goes_on(timeout)
            end.result()  # raises why the cluster cannot be queried
        finally:
            end.cancel()  # cancels this wait only
        return await asyncio.to_thread(self._read_outcome)

    def _end(self) -> Future[None]:
        """Return a future of its end, the same for all handles of the job from one `Cluster`."""
        if self._outcome is not None:
            over: Future[None] = Future()
            over.set_result(None)
            return over
        return self._ends.of(self.id)

    def _await_outcome(self, timeout: float | None) -> _Outcome[T]:
        if self._outcome is None:
            self._await_end(timeout)
        return self._read_outcome()

    def _await_end(self, timeout: float | None) -> None:
        if timeout is None:
            self._client.result(self.id)
            return
        deadline, asked = time.monotonic() + timeout, float("-inf")
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._goes_on(timeout)
            if time.monotonic() - asked < RETRY_S:  # a leader has ended, and the next one is not ready
                time.sleep(min(RETRY_S, left))
            woken, asked = threading.Event(), time.monotonic()
            is_told = self._client.on_end(self.id, woken.set)
            woken.wait(left if is_told else min(left, LOOK_S))

    def _goes_on(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"job {self.id} is not over after {timeout:g} s; it keeps running")

    def _read_outcome(self) -> _Outcome[T]:
        """Return the outcome of the job, which is over."""
        if self._outcome is not None:
            return self._outcome
        outcome = self._outcome_of(self.info())
        if outcome.is_final:
            self._outcome = outcome
        return outcome

    def _outcome_of(self, job: ArchivedExecutionGraph) -> _Outcome[Any]:
        if job.status is not JobStatus.FINISHED:
            failed = _failure_of(job)
            return _Outcome(None, self._own_error(job, failed) or failed)
        if not self._returns:
            return _Outcome(job.result())
        data = self._client.function_result(self.id)
        if data is None:
            lost = JobFailedError(
                f"job {self.id} has finished, but its return value was not kept",
                "its TaskExecutor could not reach the BlobServer; run it again",
            )
            lost.job_id = self.id
            return _Outcome(None, lost)
        try:
            return _Outcome(load_result(data))
        except Exception as error:  # unpickling may raise anything, which is not the function's error
            strange = JobFailedError(
                f"job {self.id} has finished, but its return value cannot be unpickled here: "
                f"{type(error).__name__}: {error}",
                "make its modules importable here and ask again, or return plain values and pandas DataFrames",
            )
            strange.job_id, strange.__cause__ = self.id, error
            return _Outcome(None, strange, is_final=False)

    def _own_error(self, job: ArchivedExecutionGraph, failed: JobFailedError) -> Exception | None:
        """Return a copy of the exception of the function that this handle submitted; None for any other failure.

        Unpickling data that a job wrote is as safe as for its result: the function is the caller's own.
        """
        if not self._returns or job.status is not JobStatus.FAILED:
            return None
        if job.failure is None or job.failure.kind is not FailureKind.USER_CODE:
            return None
        data = self._client.function_error(self.id)
        if data is None or (error := load_error(data)) is None:
            return None
        if failed.details:
            failed.add_note(f"In the job:\n\n{failed.details.rstrip()}")
        object.__setattr__(error, "__cause__", failed)  # its class may refuse to have attributes set
        failed.function_error = error
        return error

    def progress(self) -> None:
        """Show its progress until it is over: live bars in Jupyter and on a terminal, lines elsewhere.

        An interrupt (Ctrl-C) ends the display, not the job.
        """
        with NotebookProgress() if in_notebook() else job_progress() as display:
            for job in self._client.watch(self.id):
                display.update(view_of_job(job))

    def cancel(self) -> JobStatus:
        """Cancel it, and return its final state when nothing of it runs any more."""
        try:
            self._client.cancel(self.id)
        except JobAlreadyTerminatedError:
            return self.status
        self._client.result(self.id)
        return self.status

    # --------------------------------------------------------------------- logs

    def logs(self, name: str | None = None) -> Logs:
        """Return the output of its tasks so far, the first attempts first.

        Args:
            name: ``stdout`` or ``stderr``, unchanged; None: both, with a title above each.
        """
        found = [(log, content) for log, content in self._client.logs(self.id) if content]
        if name is not None:
            return Logs("".join(content.decode(errors="replace") for log, content in found if log.name == name))
        titled = [
            f"--- {log.task}, attempt {log.attempt + 1}, {log.name}\n{content.decode(errors='replace')}"
            for log, content in found
            if log.name in TASK_LOGS
        ]
        return Logs("\n".join(titled))

    # -------------------------------------------------------------- checkpoints

    def checkpoint(self) -> Path:
        """Take a checkpoint of its streaming queries now; returns its directory. Raises `SavepointFailedError`."""
        return Path(_place(self._client.trigger_checkpoint(self.id), f"checkpoint of job {self.id}"))

    def savepoint(self, directory: str | Path | None = None) -> Path | str:
        """Make a savepoint of its streaming queries; the job keeps running.

        Args:
            directory: parent directory, or its URL (``s3://bucket/savepoints``); None: the cluster's
                ``execution.checkpointing.savepoint-url``, or else ``savepoint-dir``.

        Returns:
            the savepoint's own directory, for ``submit(..., from_savepoint=...)``; a text if it is a URL.

        Raises:
            SavepointFailedError: the savepoint could not be made.
            CheckpointError: the URL cannot be written to.
            JobAlreadyTerminatedError: the job is over.
        """
        return _place(self._client.trigger_savepoint(self.id, directory), f"savepoint of job {self.id}")

    def stop(self, directory: str | Path | None = None, *, drain: bool = False) -> Path | str:
        """Stop its queries between two batches, make a savepoint, and wait for the job's end; as `savepoint`.

        With *drain* the queries first process all data of their sources. Raises `SavepointFailedError` also if they
        have not, or if the job has ended otherwise; the message names the savepoint if there is one.
        """
        status, job_status = self._client.stop_and_await_end(self.id, directory, drain=drain)
        path = _place(status, f"savepoint of job {self.id}")
        if failure := self._client.stop_failure(status, job_status):
            raise SavepointFailedError(
                f"job {self.id} was not stopped as requested: {failure}", "`Job.info` shows what became of it"
            )
        return path

    def rescale(
        self,
        partitions: int,
        *,
        query: str | None = None,
        directory: str | Path | None = None,
        java_home: str | None = None,
        compact_interval: int = DEFAULT_COMPACT_INTERVAL,
    ) -> RescaledJob:
        """Give the state of its streaming queries another number of partitions, as ``understudy job rescale``.

        It makes a savepoint, and rescales a copy of it in a Spark of this process while the job runs. Then the job's
        tasks restart from the copy. They repeat the batches since the savepoint, in file sinks exactly once. If a step
        fails, the job continues as it was. This process has to see the cluster's files.

        Args:
            partitions: the new number.
            query: name of the only query to rescale. Default: all with state.
            directory: parent directory of the two savepoints; None: ``execution.checkpointing.savepoint-dir``.
            java_home: the Java to use, None to find one.
            compact_interval: ``spark.sql.streaming.fileSink.log.compactInterval`` of the job's sessions.

        Returns:
            the directories of the two savepoints, ``savepoint`` (the rescaled one) and ``original``.

        Raises:
            SavepointError: its state does not fit, or it has a query without a file sink.
            ClusterError: it has no savepoint, or this process does not see the cluster's files.
            SparkError: Spark cannot be started, or fails.
            JobAlreadyTerminatedError: the job is over.
        """
        target = None if directory is None else Path(directory)
        queries = () if query is None else (query,)
        return self._rescaler(java_home, compact_interval).rescale(self.id, partitions, *queries, directory=target)

    def undo_rescale(
        self,
        *,
        directory: str | Path | None = None,
        java_home: str | None = None,
        compact_interval: int = DEFAULT_COMPACT_INTERVAL,
    ) -> RescaledJob:
        """Return to the number of partitions before its last rescale, as ``understudy job rescale --undo``.

        If no query has committed a batch since, the job restarts from the savepoint from before the rescale. Otherwise
        its present state is rescaled to the former number, as `rescale` does it; no row is lost or written twice.

        Args:
            directory: as of `rescale`.
            java_home: as of `rescale`.
            compact_interval: as of `rescale`.

        Returns:
            the directories of the savepoint from which the job restarts, and of the one before.

        Raises:
            SavepointError: it was not rescaled since its last rollback, or its savepoints of the rescale are gone.
            Exception: as `rescale`.
        """
        target = None if directory is None else Path(directory)
        return self._rescaler(java_home, compact_interval).undo(self.id, target)

    def rescale_in_cluster(
        self, partitions: int | None, *, query: str | None = None, directory: str | Path | None = None
    ) -> Path:
        """Have the cluster do `rescale` or `undo_rescale` in one of its slots, and wait for it.

        So it needs no Spark and no files here, and works by HTTP. A job of the same owner does it, as after
        ``understudy job rescale --detach``; it is in the cluster's list of jobs, and continues if this call is
        interrupted.

        Args:
            partitions: the new number; None for the one before the last rescale.
            query: as of `rescale`; not with None.
            directory: as of `rescale`; the cluster's machines have to see it.

        Returns:
            the directory of the savepoint from which the job's tasks restart.

        Raises:
            SavepointError: *partitions* is not a number of partitions.
            ClusterError: the job could not be rescaled, and continues as it was.
            JobAlreadyTerminatedError: the job is over.
        """
        target, wanted = None if directory is None else Path(directory), TriggerID.random()
        self._client.trigger_rescale(self.id, partitions, query or "", target, wanted)
        status = self._client.await_rescale(self.id, wanted)
        if status.state is not OperationState.COMPLETED:
            raise ClusterError(status.error, f"job {self.id} continues as it was; `understudy job list` shows both")
        return Path(status.path)

    def _rescaler(self, java_home: str | None, compact_interval: int) -> JobRescaler:
        from runtime.cluster.rescaling import JobRescaler

        return JobRescaler(self._client, java_home, compact_interval)

    def checkpoints(self) -> Checkpoints:
        """Return the figures of its checkpoints."""
        return Checkpoints(self._client.checkpoint_statistics(self.id))

    # -------------------------------------------------------------------- shown

    def graph_svg(self) -> str:
        """Return its graph as ``understudy job explain --format svg`` draws it."""
        return explain_svg(self._graph or graph_of(self.info()))

    def __repr__(self) -> str:
        return f"<Job {self.id}>"  # sends no request: a debugger may show it

    def _repr_html_(self) -> str:
        job = self.info()
        picture = base64.b64encode(explain_svg(self._graph or graph_of(job)).encode()).decode()
        return job_html(view_of_job(job), picture) + checkpoints_html(job.checkpoints)


def _on_a_thread(
    method: Callable[Concatenate[Job[Any], P], R],
) -> Callable[Concatenate[AsyncJob[Any], P], Coroutine[Any, Any, R]]:
    """Make a method of `AsyncJob` from the same method of `Job`."""

    @functools.wraps(method)
    async def call(job: AsyncJob[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, job.job, *args, **kwargs)

    return call


class AsyncJob(Generic[T]):
    """A handle of a job for coroutines: ``await job`` returns its result. Made by `AsyncCluster`.

    Waiting for its end occupies no thread. The other methods are those of `Job`, to be awaited; each is called by
    `asyncio.to_thread`.

    Args:
        job: its handle for plain threads.
    """

    def __init__(self, job: Job[T]) -> None:
        self.job = job
        self.id = job.id

    def __await__(self) -> Generator[Any, None, T]:
        return self.job.__await__()

    async def result(self, timeout: float | None = None) -> T:
        """Wait for its end, and return its result; raises as `Job.result`."""
        return (await self.job._outcome_later(timeout)).result()

    async def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for its end, and return the error that `result` would raise; as `Job.exception`."""
        return (await self.job._outcome_later(timeout)).exception()

    async def status(self) -> JobStatus:
        """Return its state now; raises `JobNotFoundError`."""
        return await asyncio.to_thread(lambda: self.job.status)

    def add_done_callback(self, callback: Callable[[AsyncJob[T]], object]) -> None:
        """Call *callback* with this handle, on the present event loop, when the job is over."""
        loop = asyncio.get_running_loop()
        self.job.add_done_callback(lambda _: loop.call_soon_threadsafe(callback, self))

    done = _on_a_thread(Job.done)
    running = _on_a_thread(Job.running)
    cancelled = _on_a_thread(Job.cancelled)
    cancel = _on_a_thread(Job.cancel)
    info = _on_a_thread(Job.info)
    logs = _on_a_thread(Job.logs)
    checkpoint = _on_a_thread(Job.checkpoint)
    savepoint = _on_a_thread(Job.savepoint)
    stop = _on_a_thread(Job.stop)
    rescale = _on_a_thread(Job.rescale)
    undo_rescale = _on_a_thread(Job.undo_rescale)
    rescale_in_cluster = _on_a_thread(Job.rescale_in_cluster)
    checkpoints = _on_a_thread(Job.checkpoints)

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id}>"


class Logs(str):
    """Text that is shown unchanged, not as a Python string with quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


class Checkpoints:
    """The figures of a job's checkpoints, shown as a table; ``statistics`` has all of them."""

    def __init__(self, statistics: CheckpointStatsSnapshot) -> None:
        self.statistics = statistics

    def __repr__(self) -> str:
        counts = self.statistics.counts
        return f"<Checkpoints: {counts.completed} completed, {counts.in_progress} in progress, {counts.failed} failed>"

    def _repr_html_(self) -> str:
        return checkpoints_html(self.statistics) or "no checkpoints"


def graph_of(job: ArchivedExecutionGraph) -> JobGraph:
    """Return the graph of another client's job as far as the cluster knows it: edges between tasks are blocking."""
    task_of = {vertex.id: vertex.task for vertex in job.vertices}
    edges = [
        JobEdge(
            source,
            vertex.id,
            exchange=ExchangeMode.PIPELINED if task_of[source] == vertex.task else ExchangeMode.BLOCKING,
        )
        for vertex in job.vertices
        for source in vertex.inputs
    ]
    vertices = tuple(JobVertex(vertex.id, vertex.name, None, vertex.role) for vertex in job.vertices)
    return JobGraph(job.job_id, job.name, job.kind, vertices, tuple(edges))


def _failure_of(job: ArchivedExecutionGraph) -> JobFailedError:
    what = f"job {job.job_id} ({job.name}) is {job.status.value}"
    remedy = f"job.logs() shows its output, `understudy job info {job.job_id}` its attempts"
    kind = JobCancelledError if job.status is JobStatus.CANCELED else JobFailedError
    if job.failure is None:
        failed = kind(what, remedy)
    else:
        remedy = job.failure.kind.remedy or remedy
        where = f" in task {job.failure.task!r}" if job.failure.task else ""
        text = f"{what}{where}: {job.failure.type}: {job.failure.message}"
        failed = kind(text, remedy, job.failure.traceback)
    failed.job_id = job.job_id
    return failed


class DoneAndNotDone(NamedTuple):
    """Result of `wait`: the jobs that are over, and the others."""

    done: set[Job[Any]]
    not_done: set[Job[Any]]


def wait(jobs: Iterable[Job[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED) -> DoneAndNotDone:
    """Wait for jobs; as `concurrent.futures.wait`. The jobs may be of several clusters.

    Args:
        jobs: handles of jobs.
        timeout: seconds to wait at most; None: for ever. Afterwards no error is raised.
        return_when: ``ALL_COMPLETED``; ``FIRST_COMPLETED``: until one of them is over; ``FIRST_EXCEPTION``: until one
            of them has failed or was cancelled, or all are over. Constants of `concurrent.futures`.

    Raises:
        ValueError: *return_when* is none of these.
        ActorError: a cluster does not answer.
        JobNotFoundError: a cluster has forgotten a job.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when={return_when!r} is none of ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION")
    waiting = _by_end(jobs)
    done: set[Job[Any]] = set()
    deadline = None if timeout is None else time.monotonic() + timeout
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        until = ALL_COMPLETED if return_when == ALL_COMPLETED else FIRST_COMPLETED
        ended = concurrent.futures.wait(waiting, left, until).done
        new = [job for end in ended for job in _of_end(end, waiting.pop(end))]
        done.update(new)
        if not ended or (new and return_when == FIRST_COMPLETED):
            break
        if return_when == FIRST_EXCEPTION and any(job.status is not JobStatus.FINISHED for job in new):
            break
    return DoneAndNotDone(done, {job for others in waiting.values() for job in others})


def as_completed(jobs: Iterable[Job[T]], timeout: float | None = None) -> Iterator[Job[T]]:
    """Yield jobs as they end; as `concurrent.futures.as_completed`. The jobs may be of several clusters.

    Args:
        jobs: handles of jobs.
        timeout: seconds to wait at most, from the request for the first job on; None: for ever.

    Raises:
        TimeoutError: some jobs are not over after that time; they keep running.
        ActorError: a cluster does not answer.
        JobNotFoundError: a cluster has forgotten a job.
    """
    waiting = _by_end(jobs)
    count = sum(map(len, waiting.values()))
    try:
        for end in concurrent.futures.as_completed(list(waiting), timeout):
            yield from _of_end(end, waiting.pop(end))
    except concurrent.futures.TimeoutError:
        left = sum(map(len, waiting.values()))
        raise TimeoutError(f"{left} of {count} jobs are not over after {timeout:g} s; they keep running") from None


def _by_end(jobs: Iterable[Job[T]]) -> dict[Future[None], list[Job[T]]]:
    found: dict[Future[None], list[Job[T]]] = {}
    for job in dict.fromkeys(jobs):
        found.setdefault(job._end(), []).append(job)
    return found


def _of_end(end: Future[None], jobs: list[Job[T]]) -> list[Job[T]]:
    end.result()  # raises why the cluster cannot be queried
    return jobs


def _place(status: OperationStatus, what: str) -> Path | str:
    if status.state is not OperationState.COMPLETED:
        raise SavepointFailedError(
            f"the {what} failed: {status.error}", "the job still runs; fix the cause and try again"
        )
    return status.path if is_url(status.path) else Path(status.path)


class NotebookProgress:
    """The `JobProgress` of a notebook: replaces its own output (IPython's ``update_display``), without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def update(self, job: JobView) -> None:
        """Draw the job if its display has changed."""
        from IPython import display

        html = job_html(job)
        if html == self._shown:
            return
        self._shown = html
        if self._handle is None:
            self._handle = display.display(_html(html), display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            self._handle.update(_html(html))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def _html(text: str) -> Any:
    from IPython import display

    return display.HTML(text)  # type: ignore[no-untyped-call, unused-ignore]


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (IPython on a terminal is none)."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
