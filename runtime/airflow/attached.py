"""Carries out what `runtime.airflow.task_jobs` decides: finds or submits a task's job, follows it, and cancels it.

Nothing here imports Airflow. Errors that a user can act on become a `TaskFailedError`, on one line.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from actors.errors import ActorError
from blob.errors import BlobConnectionError, BlobError
from conf.errors import ConfigurationError
from runtime.airflow.task_jobs import Access, OutputLines, Patience, TaskInstanceKey, Work, first_step, one_line
from runtime.client import NoAnswerError
from runtime.cluster.logs import LogFollower, OutputPiece
from runtime.errors import ClusterError
from runtime.ha.errors import HaError
from runtime.ids import JobID
from runtime.jobgraph.errors import JobGraphError
from runtime.notebook import Cluster, JobCancelledError, connect
from runtime.protocol.errors import GatewayError, JobAlreadyTerminatedError, JobNotFoundError, JobNotReachableError
from runtime.protocol.execution_state import JobStatus
from runtime.spark.errors import SparkError

T = TypeVar("T")

PAUSE_S = 1.0
"""Seconds between two requests to a cluster that does not answer."""
CANCEL_TRIES = 50
CANCEL_PAUSE_S = 0.1

_READABLE = (
    ActorError,
    BlobError,
    ClusterError,
    ConfigurationError,
    GatewayError,
    HaError,
    JobGraphError,
    SparkError,
    OSError,
)


class TaskFailedError(ClusterError):
    """A task cannot begin, or its job has not finished: the cause on one line."""


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn an expected error into a `TaskFailedError` whose text is one line with the cause and the remedy."""
    try:
        yield
    except TaskFailedError:
        raise
    except _READABLE as error:
        remedy = str(getattr(error, "remedy", "") or "")
        text = one_line(str(error)) or type(error).__name__
        raise TaskFailedError(f"{text}; {one_line(remedy)}" if remedy else text, remedy) from error


def open_cluster(access: Access, answer_s: float | None = None) -> Cluster:
    """Connect to a cluster.

    Args:
        access: names it.
        answer_s: seconds to wait for an answer. Default: ``client.timeout``.

    Raises:
        TaskFailedError: it cannot be reached, or does not accept the token.
    """
    settings = dict(access.settings)
    if answer_s is not None:
        settings.setdefault("client.timeout", f"{answer_s:g} s")
    with readable_errors():
        return connect(
            access.address,
            token=access.token,
            ca_file=access.ca_file,
            secret_file=access.secret_file,
            config=access.config,
            settings=settings,
        )


def cancel_job(cluster: Cluster, job_id: JobID, *, is_coming: bool = False) -> bool:
    """Cancel a job, and return whether there was one to cancel.

    Args:
        cluster: where it runs.
        job_id: the job.
        is_coming: whether its submission may be under way. It is then awaited for some seconds.

    Raises:
        TaskFailedError: the cluster does not answer.
    """
    with readable_errors():
        for left in range(CANCEL_TRIES if is_coming else 1, 0, -1):
            try:
                cluster.client.cancel(job_id)
            except JobAlreadyTerminatedError:
                return False
            except JobNotFoundError:
                if left > 1:
                    time.sleep(CANCEL_PAUSE_S)
            else:
                return True
        return False


class AttachedJob:
    """The job of a task instance, as one try sees it.

    Args:
        cluster: where it runs.
        say: receives the lines for the task's log.
        patience_s: seconds for which the cluster may not answer before the task fails.
    """

    def __init__(self, cluster: Cluster, say: Callable[[str], object], patience_s: float) -> None:
        self._cluster = cluster
        self._say = say
        self._patience = Patience(patience_s)
        self.job_id: JobID | None = None
        """Its id, once it is known: before it is submitted."""
        self.is_submitting = False
        """Whether its submission is under way."""

    def begin(self, key: TaskInstanceKey, try_number: int, work: Work) -> JobID:
        """Find the job of a task instance, or submit it; return its id once the cluster has persisted it.

        Raises:
            TaskFailedError: the job is not accepted, or the cluster does not answer.
        """
        if "job_id" in work.options:
            raise TaskFailedError(
                "the options of a task have a job_id, but its job has an id of its own: leave it out", ""
            )
        with readable_errors():
            states: dict[JobID, JobStatus] = {}
            if try_number > 1:
                jobs = self._answer(self._cluster.client.list_jobs)
                states = {job.job_id: job.status for job in jobs}
            step = first_step(key, try_number, states)
            self.job_id = step.job_id
            for left in step.cancels:
                self._say(f"job {left} of this task from before it was cleared is cancelled")
                self._answer(lambda: self._cancel_and_wait(left))  # noqa: B023
            if not step.submits:
                self._say(f"found job {step.job_id} of an earlier try: {states[step.job_id].value}")
                return step.job_id
            if step.former is not None:
                self._say(f"the job of an earlier try is {step.former.value}: this try submits a new one")
            self.is_submitting = True
            submitter = self._cluster.options(**{**work.options, "job_id": step.job_id})
            self._answer(lambda: submitter.submit(work.script, *work.args))
            self.is_submitting = False
            self._say(f"job {step.job_id} was submitted")
            return step.job_id

    def page(self) -> str:
        """Return the URL of the job on the cluster's web page; empty if there is none, or no answer."""
        return self._cluster.client.web_page(self.job_id)

    def state(self) -> JobStatus:
        """Return its state now; raises `TaskFailedError`."""
        with readable_errors():
            return self._answer(lambda: self._cluster.client.status_of(self._id))

    def follow(self, job_id: JobID) -> None:
        """Show a job's output until it is over.

        Raises:
            TaskFailedError: it has failed or was cancelled, or the cluster does not answer.
        """
        self.job_id = job_id
        lines = OutputLines()

        def show(piece: OutputPiece) -> None:
            for line in lines.add(piece.task, piece.attempt, piece.name, piece.data):
                self._say(line)
            if piece.note:
                self._say(piece.note)

        follower = LogFollower(self._cluster.client, show)
        with readable_errors():
            self._answer(lambda: follower.follow(job_id, lambda _: self._patience.answered()))
            for line in lines.finish():
                self._say(line)
            self._raise_failure()

    def cancel(self) -> None:
        """Cancel the job, as `cancel_job` does."""
        if cancel_job(self._cluster, self._id):
            self._say(f"job {self.job_id} is cancelled")

    @property
    def _id(self) -> JobID:
        if self.job_id is None:
            raise TaskFailedError("this task has no job yet", "")
        return self.job_id

    def _raise_failure(self) -> None:
        try:
            error = self._answer(lambda: self._cluster.job(self._id).exception())
        except JobCancelledError as cancelled:
            error = cancelled
        if error is not None:
            raise TaskFailedError(one_line(str(error)), "")

    def _cancel_and_wait(self, job_id: JobID) -> None:
        with contextlib.suppress(JobNotFoundError):
            self._cluster.job(job_id).cancel()

    def _answer(self, question: Callable[[], T]) -> T:
        """Return the cluster's answer. Every call of this class may be repeated, and is, while no answer comes."""
        while True:
            try:
                answer = question()
            except (NoAnswerError, JobNotReachableError, BlobConnectionError) as error:
                if self._patience.is_over(time.monotonic()):
                    raise
                self._say(f"{one_line(str(error))}; asks again")
                time.sleep(PAUSE_S)
            else:
                self._patience.answered()
                return answer
