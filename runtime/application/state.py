"""Decides the next step of an application, and its result. Pure (Flink's `ApplicationDispatcherBootstrap`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runtime.ids import JobID
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.execution_state import JobStatus

MAX_LOSSES = 3
"""Most times that main() is run again after its process was lost."""


class MainOutcome(Enum):
    """End of a run of main()."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    """Main() raised an exception, or left with another exit status than 0."""
    LOST = "LOST"
    """Its process was killed."""


@dataclass(frozen=True, slots=True)
class MainEnd:
    """The end of a run of main().

    Args:
        outcome: in one word.
        error: reason in one line, if it did not finish.
        traceback: the user's own, or empty.
        job_id: the job whose failure or cancellation main() did not handle, if this was the reason.
        exit_status: status with which main() ended the program; None if it did not.
    """

    outcome: MainOutcome
    error: str = ""
    traceback: str = ""
    job_id: JobID | None = None
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class ApplicationResult:
    """Result of an application; *error* and *traceback* are empty if it SUCCEEDED.

    *exit_status* is that of a main() that ended the program with one; else None.
    """

    status: ApplicationStatus
    error: str = ""
    traceback: str = ""
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class RunMain:
    """Run main(), for the first time or again."""


@dataclass(frozen=True, slots=True)
class StopMain:
    """End the process of main()."""


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """Cancel these jobs, then ask for the next step again."""

    job_ids: tuple[JobID, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Main() or a job still runs: ask for the next step again later."""


Instruction = RunMain | StopMain | CancelJobs | Wait | ApplicationResult


class ApplicationState:
    """State of main(); the cluster has the state of the jobs.

    If the process with this state is lost, the next one starts with a new state, and runs main() again. The executes of
    that run find the jobs of the run before.
    """

    def __init__(self) -> None:
        self._is_running = False
        self._is_cancelled = False
        self._end: MainEnd | None = None
        self._losses = 0

    def cancel(self) -> None:
        """Cancel the application; from then on main() is not run again."""
        self._is_cancelled = True

    def main_started(self) -> None:
        """Note that main() runs."""
        self._is_running, self._end = True, None

    def main_ended(self, end: MainEnd) -> None:
        """Note that main() has ended."""
        self._is_running, self._end = False, end
        self._losses += end.outcome is MainOutcome.LOST

    def next(self, jobs: Mapping[JobID, JobStatus]) -> Instruction:
        """Return the next step, which in the end is an `ApplicationResult`.

        Args:
            jobs: all jobs of the cluster; they are ignored while main() runs.
        """
        if self._is_running:
            return StopMain() if self._is_cancelled else Wait()
        is_lost = self._end is not None and self._end.outcome is MainOutcome.LOST
        if not self._is_cancelled and (self._end is None or (is_lost and self._losses <= MAX_LOSSES)):
            return RunMain()
        going = tuple(job_id for job_id, status in jobs.items() if not status.is_globally_terminal)
        if going:
            has_finished = self._end is not None and self._end.outcome is MainOutcome.FINISHED
            return Wait() if has_finished and not self._is_cancelled else CancelJobs(going)
        return self._result(jobs)

    def _result(self, jobs: Mapping[JobID, JobStatus]) -> ApplicationResult:
        if self._is_cancelled or self._end is None:
            return ApplicationResult(ApplicationStatus.CANCELED, "the application was cancelled")
        if self._end.outcome is not MainOutcome.FINISHED:
            cause = None if self._end.job_id is None else jobs.get(self._end.job_id)
            status = ApplicationStatus.CANCELED if cause is JobStatus.CANCELED else ApplicationStatus.FAILED
            return ApplicationResult(status, self._end.error, self._end.traceback, self._end.exit_status)
        for end in (JobStatus.FAILED, JobStatus.CANCELED):
            ended = [job_id for job_id, status in jobs.items() if status is end]
            if ended:
                return ApplicationResult(ApplicationStatus.of(end), f"job {ended[0]} is {end.value}")
        return ApplicationResult(ApplicationStatus.SUCCEEDED)


class ExecuteIds:
    """The ids of the jobs of one run of main(): the n-th execute of a name has the same id in each run.

    So a run after a failover finds the jobs of the run before, including ended ones with their results. (Flink allows
    only one execute if main() may run again, with ``$internal.pipeline.job-id``.)
    """

    def __init__(self, application_id: str) -> None:
        self._application_id = application_id
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> JobID:
        """Return the id of the next job with this name."""
        number = self._counts[name] = self._counts.get(name, 0) + 1
        return JobID.from_name("execute", self._application_id, name, str(number))
