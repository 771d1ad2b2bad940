"""Options by which the cluster changes the number of partitions of the state of streaming queries by itself."""

from __future__ import annotations

from conf.option import option
from conf.values import Boolean, Duration, Integer, IntegerRange, Number


class AutoscalingOptions:
    """Automatic rescaling of streaming queries (`docs/rescaling.md`, "Automatic rescaling"). It is off by default."""

    PARTITIONS = option(
        "autoscaling.partitions",
        IntegerRange(),
        None,
        "Smallest and largest number of partitions that the cluster may give to the state of a job's streaming "
        "queries. Unset: it changes nothing. `understudy job run --autoscale` sets it for one job.",
    )
    PARTITIONS_PER_CORE = option(
        "autoscaling.partitions-per-core",
        Number(0.1, 100.0, "2"),
        "1",
        "Most partitions for each core of the TaskExecutor's Spark: a core works on one at a time. It does not count "
        "where Spark adds executors by itself, nor below the smallest number of `autoscaling.partitions`.",
    )
    DRY_RUN = option(
        "autoscaling.dry-run",
        Boolean(),
        "false",
        "Only log and show the decisions, and change nothing.",
    )
    INTERVAL = option(
        "autoscaling.interval",
        Duration("30 s", minimum=1.0),
        "30 s",
        "Time between two looks at the queries. For the whole cluster.",
    )
    MAX_LAG = option(
        "autoscaling.max-lag",
        Integer(example="10000"),
        None,
        "Lag above which the number of partitions grows, in the unit of the source's offsets. Unset: the lag is not "
        "judged.",
    )
    PAUSE_BEFORE_INCREASE = option(
        "autoscaling.pause-before-increase",
        Duration("2 min"),
        "2 min",
        "Time after a change before the number may grow. It also counts after a failed attempt, four times as long "
        "after each further one, a day at most.",
    )
    PAUSE_BEFORE_DECREASE = option(
        "autoscaling.pause-before-decrease",
        Duration("30 min"),
        "30 min",
        "Time after a change before the number may shrink.",
    )
    QUIET_TIME = option(
        "autoscaling.quiet-time",
        Duration("15 min"),
        "15 min",
        "Time whose batches all have to be little busy before the number shrinks.",
    )
