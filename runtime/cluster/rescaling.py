"""Rescales savepoints: for ``savepoint rescale``, ``job run --partitions``, ``job rescale``, and `Job.rescale`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.files import make_private
from conf.options import CheckpointingOptions, EnvironmentOptions
from runtime.checkpoint.errors import CheckpointError, SavepointError
from runtime.checkpoint.manifest import Savepoint
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.checkpoint.names import change_lock
from runtime.checkpoint.rescale import (
    COMPACT_INTERVAL,
    RescalePlan,
    find_undo,
    plan_rescale,
    plan_start,
    rescaled_path,
    written_twice,
)
from runtime.checkpoint.retained import find_state, is_checkpoint
from runtime.checkpoint.savepoint import dispose_savepoint
from runtime.cluster.command_line import waiting
from runtime.cluster.documents import RescaledJob
from runtime.cluster.output import clean, say
from runtime.environment.claims import Claim
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.errors import GatewayError
from runtime.protocol.places import is_url
from runtime.protocol.rescales import Rescale

if TYPE_CHECKING:
    from runtime.client import ClusterClient

logger = logging.getLogger(__name__)

_RESCALED_HERE = "the savepoint is rescaled"
_IN_THE_CLUSTER = "let the cluster do it with --detach (in Python: rescale_in_cluster), or "


def compact_interval_of(configuration: Configuration) -> int:
    """Return the file sink's compact interval that ``-D`` or the configuration gives; raises `ClusterError`."""
    interval = configuration.spark_properties().get(COMPACT_INTERVAL, str(DEFAULT_COMPACT_INTERVAL))
    if not interval.isdecimal() or not int(interval):
        raise ClusterError(f"{COMPACT_INTERVAL}: {interval!r} is not a number of batches", "give a whole number from 1")
    return int(interval)


def java_home_of(configuration: Configuration) -> str | None:
    """Return the Java that the configuration names; None to find one."""
    java_home = configuration.get(EnvironmentOptions.JAVA_HOME)
    return str(java_home) if java_home else None


def run_plan(plan: RescalePlan, java_home: str | None, interval: int) -> Savepoint:
    """Rescale a savepoint in a Spark of this process.

    Args:
        plan: what to do.
        java_home: the Java to use, None to find one.
        interval: as `compact_interval_of` returns it.

    Raises:
        CheckpointError: the savepoint cannot be rescaled, or the new state is not the same.
        SparkError: Spark cannot be started, or fails.
    """
    from runtime.spark.rescale import rescale

    return rescale(plan, java_home, interval)


class RescaledStart:
    """The state of a job that starts from a savepoint with another number of partitions.

    Args:
        configuration: of the command.
        name: the savepoint, as the user names it.
        partitions: the number.

    Raises:
        CheckpointError: the savepoint cannot be rescaled. Nothing was written.
        ClusterError: the compact interval is not a number.
    """

    def __init__(self, configuration: Configuration, name: str, partitions: int) -> None:
        self._java_home = java_home_of(configuration)
        self._partitions = partitions
        if is_url(name):
            raise SavepointError(
                f"{name} is in a remote file system, and only local savepoints can be rescaled",
                f"copy it with `understudy savepoint copy {name} DIRECTORY`, and start from the copy",
            )
        path = find_state(name, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR))
        if is_checkpoint(path):
            raise SavepointError(
                f"{path} is a checkpoint, and only savepoints can be rescaled",
                "start the job from it without --partitions, and stop it with `understudy job stop` for a savepoint",
            )
        self._interval = compact_interval_of(configuration)
        self._plan = plan_start(path, partitions)

    def make(self) -> str:
        """Rescale the savepoint unless that is done already; return the directory to start from.

        Raises:
            CheckpointError, SparkError: as `run_plan`.
        """
        plan = self._plan
        if isinstance(plan, Savepoint):
            say(clean(f"{plan.path} has {self._partitions} partitions: the job starts from it as it is"))
            return plan.path
        with waiting(f"rescaling {plan.savepoint.path} to {self._partitions} partitions", "no job was submitted"):
            made = run_plan(plan, self._java_home, self._interval)
        say(clean(f"rescaled to {self._partitions} partitions: {made.path}"))
        return made.path


@contextlib.contextmanager
def silent(_what: str, _left: str) -> Iterator[None]:
    """Run a step without showing it."""
    yield


@contextlib.contextmanager
def changing(lock: Path, job_id: str) -> Iterator[None]:
    """Let no other process rescale or upgrade a job; the end of this process releases the lock, too.

    Args:
        lock: its file, as `change_lock` names it.
        job_id: the job.

    Raises:
        ClusterError: another process rescales or upgrades the job.
        OSError: the file cannot be written.
    """
    make_private(lock.parent, durable=True)
    claim = Claim(lock)
    if not claim.try_acquire():
        raise ClusterError(f"job {job_id} is being rescaled or upgraded at this moment", "wait until that has ended")
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        claim.release()


class JobSavepoints:
    """Savepoints that a command takes of a running job to change it; `JobRescaler` and `JobUpgrader` use it.

    Args:
        client: of the cluster. This process has to see the cluster's files.
        step: as of `JobRescaler`.
        note: as of `JobRescaler`.
        home: the cluster's local directory of savepoints. Default: the one that the cluster names.
    """

    def __init__(
        self,
        client: ClusterClient,
        step: Callable[[str, str], AbstractContextManager[None]],
        note: Callable[[str], object],
        home: Path | None = None,
    ) -> None:
        self._client = client
        self._home = home
        self._step = step
        self._note = note

    def require_files(self, what: str, otherwise: str = "") -> None:
        """Raise `ClusterError` if this client does not see the cluster's files.

        Args:
            what: the work that needs them, and where it is done.
            otherwise: how the same is done without them; empty if it cannot be done.
        """
        if not self._client.sees_files:
            raise ClusterError(
                f"{what} here, and this client does not see the cluster's files",
                f"{otherwise}run the command on a machine that sees them",
            )

    def directory(self, given: Path | None) -> Path | None:
        """Return the local directory for a savepoint that this command reads; the cluster's own may be remote."""
        return given or self._home or (Path(known) if (known := self._client.overview().savepoint_dir) else None)

    def take(self, job_id: JobID, directory: Path | None, remedy: str, trigger_id: TriggerID | None = None) -> Path:
        """Make a savepoint of a job, which runs on.

        Args:
            job_id: the job.
            directory: where it is made. Default: the cluster's local one.
            remedy: what to do if there is no savepoint.
            trigger_id: of the savepoint, whose name follows from it. Default: a new one.

        Raises:
            ClusterError: there is no savepoint.
            GatewayError, ActorError: as `ClusterClient.trigger_savepoint`.
        """
        with self._step(f"making a savepoint of job {job_id}", f"job {job_id} continues as it was"):
            status = self._client.trigger_savepoint(job_id, self.directory(directory), trigger_id)
        if status.state is not OperationState.COMPLETED:
            raise ClusterError(f"no savepoint of job {job_id}: {status.error}", remedy)
        return Path(status.path)

    def remove(self, path: Path) -> None:
        """Remove a savepoint that is not needed; a note says if it stays."""
        try:
            dispose_savepoint(path)
        except SavepointError as error:
            self._note(f"note: {error}")


class _Record:
    """Reports one rescale to the cluster, which keeps it in the job's history.

    Args:
        client: of the cluster.
        job_id: the job.
        rescale: as it begins.
    """

    def __init__(self, client: ClusterClient, job_id: JobID, rescale: Rescale) -> None:
        self._client = client
        self._job_id = job_id
        self._rescale = rescale
        self._is_kept = False

    @property
    def trigger_id(self) -> TriggerID:
        """Trigger id of the rescale."""
        return self._rescale.trigger_id

    def begin(self) -> None:
        """Begin it; raises RescaleInProgressError if a job of the cluster rescales the job already."""
        self._client.report_rescale(self._job_id, self._rescale)
        self._is_kept = True

    def found(self, partitions: int, before: dict[str, int]) -> None:
        """Report the new number, and the present one of each query to rescale."""
        self._report(replace(self._rescale, partitions=partitions, before=before))

    def fail(self, error: str) -> None:
        """Report that it has failed."""
        self._report(replace(self._rescale, state=OperationState.FAILED, error=error))

    def _report(self, rescale: Rescale) -> None:
        self._rescale = rescale
        if self._is_kept:
            self._client.report_rescale(self._job_id, rescale)


class JobRescaler:
    """Gives the state of running jobs another number of partitions; `understudy job rescale` and `Job.rescale` use it.

    Args:
        client: of the cluster. This process has to see the cluster's files.
        java_home: the Java to use, None to find one.
        compact_interval: `COMPACT_INTERVAL` of the jobs' sessions.
        step: called for each step with what it does, and what is left of it after an interrupt; returns the context in
            which the step runs.
        note: called with each line that the user should read besides the result.
        run: rescales a savepoint. Default: `run_plan`, in a Spark of this process.
        trigger_id: of the rescale and of its savepoint, whose name follows from it. Default: a new one for each.
    """

    def __init__(
        self,
        client: ClusterClient,
        java_home: str | None,
        compact_interval: int,
        *,
        step: Callable[[str, str], AbstractContextManager[None]] = silent,
        note: Callable[[str], object] = logger.warning,
        run: Callable[[RescalePlan], Savepoint] | None = None,
        trigger_id: TriggerID | None = None,
    ) -> None:
        self._client = client
        self._step = step
        self._note = note
        self._run = run or (lambda plan: run_plan(plan, java_home, compact_interval))
        self._trigger_id = trigger_id
        self._savepoints = JobSavepoints(client, step, note)

    @classmethod
    def of_command(cls, configuration: Configuration, client: ClusterClient) -> Self:
        """Return the one of a command, which shows its steps on standard error; raises ClusterError."""
        interval = compact_interval_of(configuration)
        return cls(client, java_home_of(configuration), interval, step=waiting, note=lambda line: say(clean(line)))

    def rescale(self, job_id: JobID, partitions: int, *queries: str, directory: Path | None = None) -> RescaledJob:
        """Give the state of a running job another number of partitions.

        1. A savepoint of the job is taken, and checked: state that does not fit is refused.
        2. A copy of it is rescaled and verified, while the job runs.
        3. The job is rolled back to the copy (`ClusterClient.roll_back`): the cluster records that, and restarts the
           tasks.

        The cluster records the rescale in the job's history. Only one rescale or upgrade of a job runs at a time.
        Until step 3 the job is as it was, and its savepoints are removed if a step fails. The cluster finishes step 3,
        even if this process is killed. Batches since the savepoint are repeated, and the output of file sinks is rolled
        back.

        Args:
            job_id: the job.
            partitions: the new number.
            queries: names of the only queries whose state is rescaled. Default: all with state.
            directory: where the savepoint is made. Default: the cluster's (``execution.checkpointing.savepoint-dir``).

        Raises:
            CheckpointError: the job's state cannot be rescaled; the job continues as it was.
            ClusterError: the same, for another reason, for example because it is being rescaled or upgraded already.
            SparkError: Spark cannot be started, or fails; the job continues as it was.
            GatewayError, ActorError: as `ClusterClient.trigger_savepoint` and `roll_back`.
        """
        self._savepoints.require_files(_RESCALED_HERE, _IN_THE_CLUSTER)
        remedy = "only a job with running streaming queries can be rescaled"
        with self._recorded(job_id, partitions) as record:
            return self._rescale(record, job_id, partitions, queries, directory, remedy)

    @contextlib.contextmanager
    def _recorded(self, job_id: JobID, partitions: int | None) -> Iterator[_Record]:
        """Let no other process rescale or upgrade the job, and record the rescale in the job's history."""
        trigger_id = self._trigger_id or TriggerID.random()
        record = _Record(self._client, job_id, Rescale(trigger_id, partitions, is_undo=partitions is None))
        savepoint_dir = self._client.overview().savepoint_dir
        if not savepoint_dir:
            self._note("note: the cluster has release 0.1.0, and does not refuse a second rescale at the same time")
            yield record
            return
        with changing(change_lock(Path(savepoint_dir), job_id), job_id):
            record.begin()
            try:
                yield record
            except ActorError:
                raise  # the cluster does not answer, and may have rolled the job back
            except Exception as error:
                try:
                    record.fail(str(error) or type(error).__name__)
                except (GatewayError, ActorError) as lost:
                    logger.warning("the history of job %s misses that its rescale has failed: %s", job_id, lost)
                raise

    def _rescale(
        self,
        record: _Record,
        job_id: JobID,
        partitions: int,
        queries: Sequence[str],
        directory: Path | None,
        remedy: str,
    ) -> RescaledJob:
        """Rescale a job; *remedy* is the one if it has no savepoint."""
        original = self._savepoints.take(job_id, directory, remedy, record.trigger_id)
        target = rescaled_path(original, partitions)
        try:
            with self._step(f"rescaling {original} to {partitions} partitions", f"job {job_id} continues as it was"):
                plan = plan_rescale(original, partitions, target, *queries)
                if names := written_twice(plan.savepoint):
                    raise SavepointError(
                        f"query {names[0]!r} has no file sink, so it would write the batches since the savepoint twice",
                        f"repeat no batch: `understudy job stop {job_id}`, and start from its savepoint with "
                        "--partitions",
                    )
                record.found(partitions, plan.before)
                self._run(plan)
        except BaseException:
            self._savepoints.remove(original)
            raise
        left = (
            f"{original} and {target} are left; `understudy job info {job_id}` shows if the job was restored from one"
        )
        try:
            with self._step(f"restarting job {job_id}", left):
                self._client.roll_back(job_id, target, trigger_id=record.trigger_id)
        except CheckpointError:
            for path in (original, target):
                self._savepoints.remove(path)
            raise
        except (GatewayError, ActorError):
            self._note(left)
            raise
        return RescaledJob(job_id, partitions, str(target), str(original))

    def undo(self, job_id: JobID, directory: Path | None = None) -> RescaledJob:
        """Give the state of a running job the number of partitions that it had before its last rescale.

        If no query has committed a batch since, the job is rolled back to the savepoint from before. This also helps a
        job that cannot start from the rescaled state. Otherwise the job's present state is rescaled, so that nothing is
        repeated but the batches that the job commits in the meantime. See `undo_of`.

        Args:
            job_id: the job.
            directory: as of `rescale`.

        Returns:
            the savepoint from which the tasks restart, and the one to which a rollback undoes this.

        Raises:
            SavepointError: the job was not rescaled since its last rollback, the savepoints of that are gone, or its
                queries had different numbers.
            Exception: as `rescale`.
        """
        self._savepoints.require_files(_RESCALED_HERE, _IN_THE_CLUSTER)
        with self._recorded(job_id, None) as record:
            return self._undo(record, job_id, directory)

    def _undo(self, record: _Record, job_id: JobID, directory: Path | None) -> RescaledJob:
        undo = find_undo(job_id, self._client.checkpoint_statistics(job_id).rolled_back_to)
        record.found(undo.partitions, dict.fromkeys(undo.queries, undo.present))
        if not undo.is_unused:
            by_force = f"`understudy job rollback {job_id} --to {undo.original}` repeats all batches since the rescale"
            remedy = f"try again when its queries run; {by_force}"
            return self._rescale(record, job_id, undo.partitions, undo.queries, directory, remedy)
        left = f"`understudy job info {job_id}` shows if the job was restored from {undo.original}"
        with self._step(f"restarting job {job_id} from {undo.original}", left):
            self._client.roll_back(job_id, Path(undo.original), trigger_id=record.trigger_id)
        return RescaledJob(job_id, undo.partitions, undo.original, undo.rescaled)
