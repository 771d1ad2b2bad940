"""Rescales savepoints for the commands: ``savepoint rescale``, ``job run --partitions`` and ``job rescale``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.options import CheckpointingOptions, EnvironmentOptions
from runtime.cluster.command_line import waiting
from runtime.cluster.output import clean, say
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.errors import GatewayError

if TYPE_CHECKING:
    from runtime.checkpoint.manifest import Savepoint
    from runtime.checkpoint.rescale import RescalePlan
    from runtime.client import ClusterClient
    from runtime.cluster.documents import RescaledJob


def compact_interval_of(configuration: Configuration) -> int:
    """Return the file sink's compact interval that ``-D`` or the configuration gives; raises `ClusterError`."""
    from runtime.checkpoint.rescale import COMPACT_INTERVAL, DEFAULT_COMPACT_INTERVAL

    interval = configuration.spark_properties().get(COMPACT_INTERVAL, str(DEFAULT_COMPACT_INTERVAL))
    if not interval.isdecimal() or not int(interval):
        raise ClusterError(f"{COMPACT_INTERVAL}: {interval!r} is no number of batches", "give a whole number from 1")
    return int(interval)


def run_plan(configuration: Configuration, plan: RescalePlan, interval: int) -> Savepoint:
    """Rescale a savepoint in a Spark of this command.

    Args:
        configuration: of the command.
        plan: what to do.
        interval: as `compact_interval_of` returns it.

    Raises:
        CheckpointError: the savepoint cannot be rescaled, or the new state is not the same.
        SparkError: Spark cannot be started, or fails.
    """
    from runtime.spark.rescale import rescale

    java_home = configuration.get(EnvironmentOptions.JAVA_HOME)
    return rescale(plan, str(java_home) if java_home else None, interval)


class RescaledStart:
    """The state of a job that starts from a savepoint with another number of partitions.

    Args:
        configuration: of the command.
        name: the savepoint, as the user names it.
        partitions: the number.

    Raises:
        CheckpointError: the savepoint cannot be rescaled. Nothing was written.
        ClusterError: the compact interval is no number.
    """

    def __init__(self, configuration: Configuration, name: str, partitions: int) -> None:
        from runtime.checkpoint.errors import SavepointError
        from runtime.checkpoint.rescale import plan_start
        from runtime.checkpoint.retained import find_state, is_checkpoint

        self._configuration = configuration
        self._partitions = partitions
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
        from runtime.checkpoint.manifest import Savepoint

        plan = self._plan
        if isinstance(plan, Savepoint):
            say(clean(f"{plan.path} has {self._partitions} partitions: the job starts from it as it is"))
            return plan.path
        with waiting(f"rescaling {plan.savepoint.path} to {self._partitions} partitions", "no job was submitted"):
            made = run_plan(self._configuration, plan, self._interval)
        say(clean(f"rescaled to {self._partitions} partitions: {made.path}"))
        return made.path


def rescale_job(
    configuration: Configuration,
    client: ClusterClient,
    job_id: JobID,
    partitions: int,
    query: str | None = None,
    directory: Path | None = None,
) -> RescaledJob:
    """Give the state of a running job another number of partitions.

    1. A savepoint of the job is taken, and checked: state that does not fit is refused.
    2. A copy of it is rescaled and verified, while the job runs.
    3. The job is rolled back to the copy (`ClusterClient.roll_back`): the cluster records that, and restarts the tasks.

    Until step 3 the job is as it was, and its savepoints are removed if a step fails. The cluster finishes step 3, even
    if this process is killed. Batches since the savepoint are repeated, and the output of file sinks is rolled back.

    Args:
        configuration: of the command.
        client: of the cluster.
        job_id: the job.
        partitions: the new number.
        query: name of the only query whose state is rescaled. Default: all with state.
        directory: where the savepoint is made. Default: the cluster's (``execution.checkpointing.savepoint-dir``).

    Raises:
        CheckpointError: the job's state cannot be rescaled; the job continues as it was.
        ClusterError: the same, for another reason.
        SparkError: Spark cannot be started, or fails; the job continues as it was.
        GatewayError, ActorError: as `ClusterClient.trigger_savepoint` and `roll_back`.
    """
    from runtime.checkpoint.errors import CheckpointError, SavepointError
    from runtime.checkpoint.rescale import plan_rescale, rescaled_path, written_twice
    from runtime.cluster.documents import RescaledJob

    if not client.sees_files:
        raise ClusterError(
            "the savepoint is rescaled here, and this client does not see the cluster's files",
            "run the command on a machine that sees them",
        )
    interval = compact_interval_of(configuration)
    remains = f"job {job_id} continues as it was"
    with waiting(f"making a savepoint of job {job_id}", remains):
        status = client.trigger_savepoint(job_id, directory)
    if status.state is not OperationState.COMPLETED:
        raise ClusterError(
            f"no savepoint of job {job_id}: {status.error}", "only a job with running streaming queries can be rescaled"
        )
    original = Path(status.path)
    target = rescaled_path(original, partitions)
    try:
        with waiting(f"rescaling {original} to {partitions} partitions", remains):
            plan = plan_rescale(original, partitions, target, query)
            if names := written_twice(plan.savepoint):
                raise SavepointError(
                    f"query {names[0]!r} has no file sink, so it would write the batches since the savepoint twice",
                    f"repeat no batch: `job stop {job_id}`, and `job run --from` its savepoint with --partitions",
                )
            run_plan(configuration, plan, interval)
    except BaseException:
        _remove(original)
        raise
    left = f"{original} and {target} are left; `understudy job info {job_id}` shows if the job was restored from one"
    try:
        with waiting(f"restarting job {job_id}", left):
            client.roll_back(job_id, target)
    except CheckpointError:
        for path in (original, target):
            _remove(path)
        raise
    except (GatewayError, ActorError):
        say(clean(left))
        raise
    return RescaledJob(job_id, partitions, str(target), str(original))


def _remove(path: Path) -> None:
    """Remove a savepoint that was made in vain; a note says if it stays."""
    from runtime.checkpoint.errors import SavepointError
    from runtime.checkpoint.savepoint import dispose_savepoint

    try:
        dispose_savepoint(path)
    except SavepointError as error:
        say(clean(f"note: {error}"))
