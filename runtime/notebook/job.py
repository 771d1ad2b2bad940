"""A job in a notebook: its handle, and how it is shown while it runs."""

from __future__ import annotations

import base64
import sys
import time
from html import escape
from pathlib import Path
from typing import Any, Self

from runtime.client import ClusterClient
from runtime.cluster.progress import job_progress
from runtime.cluster.views import JobView, view_of_job
from runtime.errors import JobFailedError, SavepointFailedError
from runtime.ids import JobID
from runtime.job_logs import TASK_LOGS
from runtime.jobgraph.job_graph import ExchangeMode, JobEdge, JobGraph, JobVertex
from runtime.jobgraph.svg import explain_svg
from runtime.notebook.html import checkpoints_html, job_html
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.execution_state import JobStatus
from runtime.spark.function_task import load_result


class Job:
    """A handle of a job; made by `Cluster.submit` and `Cluster.job`. The job lives without it.

    Args:
        client: speaks to the cluster.
        job_id: the job.
        graph: as it was submitted, where that is known.
        returns: whether it is a function whose return value is the result.
        details: its line in a list, where it comes from one.
    """

    def __init__(
        self,
        client: ClusterClient,
        job_id: JobID,
        *,
        graph: JobGraph | None = None,
        returns: bool = False,
        details: JobDetails | None = None,
    ) -> None:
        self._client = client
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
        """All there is to be said of it now; raises `JobNotFoundError`."""
        return self._client.job(self.id)

    # ---------------------------------------------------------------------- end

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for its end.

        Args:
            timeout_s: how many seconds at most; None: for ever. An interrupt (Ctrl-C) leaves the job alone, too.

        Returns:
            what the function returned, if it was submitted as one by this handle; else a `JobResult`.

        Raises:
            JobFailedError: it has failed, or was cancelled; ``details`` is the user's own traceback.
            TimeoutError: it goes on.
        """
        self._await_end(timeout_s)
        job = self.info()
        if job.status is not JobStatus.FINISHED:
            failure = _failure_of(job)
            failure.job_id = job.job_id
            raise failure
        if not self._returns:
            return job.result()
        data = self._client.function_result(self.id)
        if data is None:
            raise JobFailedError(
                f"job {self.id} has finished, but what it returned was not kept",
                "its TaskExecutor could not reach the BlobServer; run it again",
            )
        return load_result(data)

    def _await_end(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            self._client.result(self.id)
            return
        deadline = time.monotonic() + timeout_s
        for job in self._client.watch(self.id):
            if not job.status.is_globally_terminal and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.id} is not over after {timeout_s:g} s; it goes on")

    def progress(self) -> None:
        """Show it until it is over: live bars in Jupyter and on a terminal, lines elsewhere.

        An interrupt (Ctrl-C) ends the showing, not the job.
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
        """Return what its tasks wrote so far, the first attempts first.

        Args:
            name: ``stdout`` or ``stderr``, as they are; None: both, with a title above each.
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
        return _directory(self._client.trigger_checkpoint(self.id), f"checkpoint of job {self.id}")

    def savepoint(self, directory: str | Path | None = None) -> Path:
        """Make a savepoint of its streaming queries; the job goes on.

        Args:
            directory: where; None for the cluster's ``execution.checkpointing.savepoint-dir``.

        Returns:
            the savepoint's own directory, for ``submit(..., from_savepoint=...)``.

        Raises:
            SavepointFailedError: it could not be made.
            JobAlreadyTerminatedError: the job is over.
        """
        target = None if directory is None else Path(directory)
        return _directory(self._client.trigger_savepoint(self.id, target), f"savepoint of job {self.id}")

    def stop(self, directory: str | Path | None = None, *, drain: bool = False) -> Path:
        """Stop its queries between two batches, make a savepoint, and wait for the job's end; as `savepoint`.

        With *drain* the queries first work off what their sources have. Raises `SavepointFailedError` also where they
        have not, or the job has ended otherwise; the message names the savepoint if there is one.
        """
        target = None if directory is None else Path(directory)
        status, job_status = self._client.stop_and_await_end(self.id, target, drain=drain)
        path = _directory(status, f"savepoint of job {self.id}")
        if failure := self._client.stop_failure(status, job_status):
            raise SavepointFailedError(
                f"job {self.id} was not stopped as asked: {failure}", "`Job.info` shows what became of it"
            )
        return path

    def checkpoints(self) -> Checkpoints:
        """The figures of its checkpoints."""
        return Checkpoints(self._client.checkpoint_statistics(self.id))

    # -------------------------------------------------------------------- shown

    def graph_svg(self) -> str:
        """Its graph as ``understudy job explain --format svg`` draws it."""
        return explain_svg(self._graph or graph_of(self.info()))

    def __repr__(self) -> str:
        return f"<Job {self.id}>"  # asks nobody: a debugger may show it

    def _repr_html_(self) -> str:
        job = self.info()
        picture = base64.b64encode(explain_svg(self._graph or graph_of(job)).encode()).decode()
        return job_html(view_of_job(job), picture) + checkpoints_html(job.checkpoints)


class Logs(str):
    """Text that is shown as it is, not as Python writes a string."""

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
    """The graph of a job as far as the cluster tells it, which somebody else submitted: edges between tasks block."""
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
    if job.failure is None:
        return JobFailedError(what, remedy)
    remedy = job.failure.kind.remedy or remedy
    where = f" in task {job.failure.task!r}" if job.failure.task else ""
    return JobFailedError(f"{what}{where}: {job.failure.type}: {job.failure.message}", remedy, job.failure.traceback)


def _directory(status: OperationStatus, what: str) -> Path:
    if status.state is not OperationState.COMPLETED:
        raise SavepointFailedError(
            f"the {what} failed: {status.error}", "the job goes on; mend the cause and ask again"
        )
    return Path(status.path)


class NotebookProgress:
    """The `JobProgress` of a notebook: draws the same output again (IPython's ``update_display``), without widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def update(self, job: JobView) -> None:
        """Draw the job, if it looks different."""
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
    """Return whether this process is the kernel of a notebook (a terminal's IPython is none)."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
