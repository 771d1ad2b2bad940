"""Rescales savepoints for the commands: ``savepoint rescale``, and a job that starts with other partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.configuration import Configuration
from conf.options import CheckpointingOptions, EnvironmentOptions
from runtime.cluster.command_line import waiting
from runtime.cluster.output import clean, say
from runtime.errors import ClusterError

if TYPE_CHECKING:
    from runtime.checkpoint.manifest import Savepoint
    from runtime.checkpoint.rescale import RescalePlan


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
