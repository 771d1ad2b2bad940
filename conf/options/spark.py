"""Options of the Spark drivers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conf.files import user_cache
from conf.option import computed_option, option
from conf.values import (
    Boolean,
    Duration,
    FilePath,
    Integer,
    MavenCoordinates,
    MemorySize,
    SparkConnectUrl,
    Text,
)

if TYPE_CHECKING:
    from conf.configuration import Configuration

_HOST_PORT = r"[^\s:,/]+:[0-9]{1,5}"


def _cds_cache_dir(_configuration: Configuration) -> Path:
    return user_cache("cds")


def _ivy_dir(_configuration: Configuration) -> Path:
    return user_cache("ivy")


class SparkOptions:
    """The Spark driver of a TaskExecutor. All other keys that start with `spark.` go to Spark unchanged."""

    MASTER = option(
        "spark.master",
        Text(
            "local[4]",
            rf"local(\[([1-9][0-9]*|\*)(,[1-9][0-9]*)?\])?|spark://{_HOST_PORT}(,{_HOST_PORT})*|yarn|k8s://\S+",
            "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL",
        ),
        "local[*]",
        "Spark's master. `local[*]`: the driver itself on all cores of the machine. `local[N]`: the same on N cores. "
        "`spark://HOST:PORT`: a standalone Spark cluster. Or `yarn` or `k8s://https://HOST:PORT`. See "
        "[spark-anywhere.md](spark-anywhere.md).",
    )
    REMOTE = option(
        "spark.remote",
        SparkConnectUrl(),
        None,
        "An existing Spark Connect endpoint, `sc://HOST:PORT/;use_ssl=true;token=...`, instead of the cluster's own "
        "Spark drivers and `spark.master`. It runs pipelines without streaming queries. Understudy never shows the "
        "part after the port; set it in a file of mode 0600. See [spark-anywhere.md](spark-anywhere.md).",
    )
    DRIVER_MEMORY = option(
        "spark.driver.memory",
        MemorySize("2 gb", minimum=256 << 20),
        "2 gb",
        "The heap of each driver JVM.",
    )
    DRIVER_START_TIMEOUT = option(
        "taskmanager.spark.start-timeout",
        Duration("2 min", minimum=1.0),
        "2 min",
        "Time within which a new driver JVM has to answer, and then to create its SparkContext. A master that lets "
        "applications wait, such as YARN, may need more.",
    )
    PACKAGES = option(
        "spark.jars.packages",
        MavenCoordinates(),
        None,
        "Maven packages for the driver's class path, with all that they depend on. Spark's Ivy fetches them on the "
        "TaskExecutor's machine, from Maven Central, `spark.jars.repositories` and that machine's `~/.m2/repository`. "
        "A job may set this option for itself; `understudy job run --packages` does ([scripts.md](scripts.md#packages-"
        "and-table-formats)).",
    )
    IVY_DIR = computed_option(
        "spark.jars.ivy",
        FilePath("/var/cache/understudy/ivy"),
        _ivy_dir,
        "~/.cache/understudy/ivy",
        "The directory, of mode 0700, in which Ivy keeps fetched packages. All clusters of a user share it. A job may "
        "set this option for itself.",
    )
    PACKAGES_OFFLINE = option(
        "taskmanager.spark.packages.offline",
        Boolean(),
        "false",
        "Whether packages are taken only from `spark.jars.ivy`, `~/.m2/repository` and repositories that are "
        "directories (`file:/...`), without the network.",
    )
    PACKAGES_TIMEOUT = option(
        "taskmanager.spark.packages.timeout",
        Duration("10 min", minimum=1.0),
        "10 min",
        "Timeout for the fetch of a driver's packages, and for the wait until no other process of this machine fetches "
        "into `spark.jars.ivy`.",
    )
    TABLE_FORMAT = option(
        "spark.table-format",
        Text("delta:4.4.1", r"(delta|iceberg)(:[A-Za-z0-9_][A-Za-z0-9_.+-]*)?", "delta or iceberg, with :VERSION"),
        None,
        "Sets Spark up for Delta Lake (`delta:VERSION`) or Apache Iceberg (`iceberg:VERSION`). It adds the format's "
        "package for this Spark, its SQL extension, and its catalog as `spark_catalog`. Without `:VERSION` it adds no "
        "package: bring the jar with `--jar` or `spark.jars.packages`. A job may set this option for itself; "
        "`understudy job run --table-format` does.",
    )
    WARM_UP = option(
        "taskmanager.spark.warm-up",
        Boolean(),
        "true",
        "Whether a new driver JVM runs some small jobs before or during the first job. They make Spark load classes "
        "that nearly every job needs. Turn it off for a cluster that runs one short job, which then has all cores. A "
        "driver without warm-up creates no archive of classes (`spark.cds.enabled`), but uses an existing one.",
    )
    WARM_UP_QUERIES = option(
        "taskmanager.spark.warm-up-queries",
        Integer(0, 10_000),
        "150",
        "Number of small queries that a new driver JVM runs after those of `taskmanager.spark.warm-up`, during half of "
        "the time without a task. Java compiles frequent code, so after 150 queries a small job costs half the work. "
        "They take some 40 s of one core. They do not run on a Spark cluster, nor in an embedded program's driver.",
    )
    EVENT_LOG_ENABLED = option(
        "taskmanager.spark.event-log.enabled",
        Boolean(),
        "true",
        "Whether the cluster's drivers write Spark's event logs, into `spark-events` of the runtime directory. "
        "`understudy history-server` shows them ([spark-history.md](spark-history.md)). They cost up to 6 % of a "
        "driver's CPU time. `spark.eventLog.*` settings override the cluster's.",
    )
    EVENT_LOG_RETENTION = option(
        "taskmanager.spark.event-log.retention",
        Duration("7 d"),
        "7 d",
        "Time for which an event log is kept after its last change.",
    )
    EVENT_LOG_MAX_SIZE = option(
        "taskmanager.spark.event-log.max-size",
        MemorySize("1 gb"),
        "1 gb",
        "Most space for event logs on each machine. Beyond it the logs of ended drivers are deleted, the oldest first, "
        "then old parts of those of running drivers.",
    )
    CDS_ENABLED = option(
        "spark.cds.enabled",
        Boolean(),
        "true",
        "Whether to keep an archive of Spark's loaded classes (some 200 MB), which halves the start time of a driver.",
    )
    CDS_CACHE_DIR = computed_option(
        "spark.cds.cache-dir",
        FilePath("/var/cache/understudy/cds"),
        _cds_cache_dir,
        "~/.cache/understudy/cds",
        "The directory of these archives. All clusters of a user share one archive for each version of Java and Spark.",
    )
