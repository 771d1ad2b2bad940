"""Decisions of ``understudy job upgrade``: what fits, how the new version does, what to do after a kill. Pure.

*Blue* is the job whose code is replaced, and *green* the job with the new version. *Back* is the job with blue's
version after an undo. An `Upgrade` is written to the disk before each step. A step that was interrupted is repeated.
The stop has a trigger id and each job an id of its own, so that repeating changes nothing.

    STOPPING ──> STARTING ──> UPGRADED          blue is being stopped; green starts; green has committed a batch
                    └───────────┴──> RETURNING ──> RETURNED
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from runtime.checkpoint.compatibility import Fit, Verdict
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.protocol.execution_state import JobStatus

SETTLE_S = 5.0
"""Seconds without a planned batch after which the sources of the new version count as empty."""


class Step(StrEnum):
    """Progress of an upgrade."""

    STOPPING = "stopping"
    """Blue may have been asked to stop."""
    STARTING = "starting"
    """Blue has ended with its savepoint; green may have been submitted."""
    UPGRADED = "upgraded"
    """Green has committed a batch, or waits for data."""
    RETURNING = "returning"
    """Green is not wanted; back may have been submitted."""
    RETURNED = "returned"
    """Back was submitted."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An upgrade as it is written to the disk.

    Args:
        blue: the job whose code is replaced.
        green: id of the job with the new version.
        back: id of the job with blue's version after an undo.
        trigger_id: of the stop.
        directory: where the savepoint is made; empty for the cluster's directory.
        step: how far it is.
        savepoint: directory of the savepoint with which blue has ended; empty before.
        batches: the last batch of each query in the savepoint, by its name.
        locations: the checkpointLocations of green's queries by their names, once they are known.
        because: why blue's version works again; empty otherwise.
        is_waiting: whether green had no data for a batch when it was last looked at.
        dropped: names of the queries of blue that green does not have.
    """

    blue: JobID
    green: JobID
    back: JobID
    trigger_id: TriggerID
    directory: str = ""
    step: Step = Step.STOPPING
    savepoint: str = ""
    batches: dict[str, int] = field(default_factory=dict)
    locations: dict[str, str] = field(default_factory=dict)
    because: str = ""
    is_waiting: bool = False
    dropped: tuple[str, ...] = ()

    @property
    def working(self) -> JobID:
        """Return the job that works after the last step."""
        match self.step:
            case Step.STOPPING:
                return self.blue
            case Step.RETURNING | Step.RETURNED:
                return self.back
            case _:
                return self.green


class Order(Enum):
    """Request of the user."""

    UPGRADE = "upgrade"
    """Replace the code by a file that is given."""
    FINISH = "finish"
    """Finish an upgrade that was interrupted."""
    UNDO = "undo"
    """Go back to the former version."""


class Action(Enum):
    """Decision on a request."""

    BEGIN = "begin"
    """Begin a new upgrade."""
    GO_ON = "go on"
    """Repeat the step that was interrupted, and those after it."""
    TAKE_BACK = "take back"
    """Forget the upgrade if blue was not asked to stop; else let it stop, and return to its version."""
    RETURN = "return"
    """Return to blue's version, unless green has committed batches that would be lost."""
    REPORT = "report"
    """Say what has become of it; there is nothing to do."""


def decide(known: Upgrade | None, job_id: JobID, order: Order, *, is_same: bool = False) -> Action:
    """Return what to do.

    Args:
        known: the last upgrade of the job, in which it is blue or green; None if there is none.
        job_id: the job.
        order: what the user asks for.
        is_same: whether the file and the arguments are those of the known upgrade.

    Raises:
        ClusterError: the order makes no sense now.
    """
    if known is None or (known.step is Step.UPGRADED and job_id == known.green and order is not Order.UNDO):
        if order is Order.UPGRADE:
            return Action.BEGIN
        if known is not None:
            return Action.GO_ON if known.is_waiting else Action.REPORT
        if order is Order.UNDO:
            raise ClusterError(
                f"no upgrade of job {job_id} can be undone: only the last one can be, and only once",
                "to return to a version before that, upgrade the job that runs now (`understudy job list`) to its "
                "file: understudy job upgrade JOB_ID FILE",
            )
        raise ClusterError(
            f"no upgrade of job {job_id} was interrupted",
            f"give the file of the new version: understudy job upgrade {job_id} FILE",
        )
    match known.step, order:
        case Step.UPGRADED | Step.RETURNED, Order.UPGRADE:
            raise ClusterError(
                f"job {job_id} has ended: job {known.working} has taken its place", f"upgrade job {known.working}"
            )
        case Step.UPGRADED, Order.UNDO:
            return Action.RETURN
        case Step.UPGRADED, Order.FINISH if known.is_waiting:
            return Action.GO_ON  # look again
        case Step.UPGRADED | Step.RETURNED, _:
            return Action.REPORT
        case Step.STOPPING | Step.STARTING, Order.UPGRADE if not is_same:
            raise ClusterError(
                f"an upgrade of job {known.blue} to other code was interrupted",
                f"finish it with `understudy job upgrade {known.blue}`, or undo it with `understudy job upgrade --undo "
                f"{known.blue}`",
            )
        case Step.STOPPING, Order.UNDO:
            return Action.TAKE_BACK
        case Step.STARTING, Order.UNDO:
            return Action.RETURN
        case _:
            return Action.GO_ON


def check_fit(verdicts: Sequence[Verdict], *, accepts_loss: bool) -> None:
    """Check that the queries of a new version can continue from the state of the old one.

    Args:
        verdicts: of `runtime.checkpoint.compatibility.check_job`.
        accepts_loss: whether the user accepts that state is lost.

    Raises:
        ClusterError: a query does not fit, or loses state.
    """
    for verdict in verdicts:
        if verdict.fit is Fit.DOES_NOT_FIT:
            raise ClusterError(
                f"query {verdict.query!r} of the new version does not fit the state: {'; '.join(verdict.reasons)}",
                "; ".join((*verdict.remedies, "see docs/checkpoints.md, What fits; the job runs on")),
            )
    for verdict in verdicts:
        if verdict.fit is Fit.FITS_WITH_LOSS and not accepts_loss:
            raise ClusterError(
                f"query {verdict.query!r} loses state with the new version: {'; '.join(verdict.losses)}",
                "accept it with --yes, or change the new version; the job runs on",
            )


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a query.

    Args:
        before: the last one in the savepoint from which it began.
        committed: the last committed one.
        planned: the last planned one.
    """

    before: int
    committed: int
    planned: int

    @property
    def has_committed(self) -> bool:
        """Return whether a batch was committed since the savepoint."""
        return self.committed > self.before


class Outcome(Enum):
    """Judgement of a job with a new version."""

    WAIT = "wait"
    """Nothing can be said yet."""
    COMMITTED = "committed"
    """The job has committed a batch."""
    IDLE = "idle"
    """The job runs, and its sources have no data for a first batch."""
    FAILED = "failed"
    """The job has failed or ended before its first batch was committed."""


def judge(status: JobStatus, failure: str, queries: Mapping[str, Batches] | None, quiet_s: float) -> Outcome:
    """Judge a job with a new version by its first batches.

    A query that has committed its batches and plans none is waiting for data. Another query may still be at its first
    batch, so all are waited for.

    Args:
        status: of the job.
        failure: the first failure in it; empty if there was none.
        queries: the batches of those queries that began from the savepoint, by name; None before they run.
        quiet_s: seconds since a batch was last planned or committed.
    """
    found = () if queries is None else tuple(queries.values())
    has_committed = any(query.has_committed for query in found)
    if has_committed and (failure or status.is_globally_terminal):
        return Outcome.COMMITTED
    if status is JobStatus.FINISHED and not failure:
        return Outcome.COMMITTED
    if failure or status.is_globally_terminal:
        return Outcome.FAILED
    if queries is None or status is not JobStatus.RUNNING:
        return Outcome.WAIT
    if any(query.planned > query.committed for query in found):
        return Outcome.WAIT
    if all(query.has_committed for query in found):
        return Outcome.COMMITTED
    if quiet_s < SETTLE_S:
        return Outcome.WAIT
    return Outcome.COMMITTED if has_committed else Outcome.IDLE
