"""Options of the Spark drivers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.values import Boolean, Duration, FilePath, Integer, MemorySize, SparkConnectUrl, Text

if TYPE_CHECKING:
    from conf.configuration import Configuration

_HOST_PORT = r"[^\s:,/]+:[0-9]{1,5}"


def _cds_cache_dir(_configuration: Configuration) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "understudy" / "cds"


class SparkOptions:
    """The Spark driver of a TaskManager. Every other key that starts with `spark.` goes to Spark as it is."""

    MASTER = option(
        "spark.master",
        Text(
            "local[4]",
            rf"local(\[([1-9][0-9]*|\*)(,[1-9][0-9]*)?\])?|spark://{_HOST_PORT}(,{_HOST_PORT})*|yarn|k8s://\S+",
            "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL",
        ),
        "local[*]",
        "Where Spark's work is done: `local[*]` in the driver itself on all cores of the machine, `local[N]` on N of "
        "them, `spark://HOST:PORT` on a standalone Spark cluster, `yarn`, `k8s://https://HOST:PORT`. See "
        "[spark-anywhere.md](spark-anywhere.md).",
    )
    REMOTE = option(
        "spark.remote",
        SparkConnectUrl(),
        None,
        "An existing Spark Connect endpoint, `sc://HOST:PORT/;use_ssl=true;token=...`, in the place of Spark drivers "
        "of the cluster's own, and of `spark.master`. It takes pipelines without streaming queries. What follows the "
        "port is never shown; give it in a file of mode 0600. See [spark-anywhere.md](spark-anywhere.md).",
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
        "How long a driver JVM may take until it answers.",
    )
    WARM_UP = option(
        "taskmanager.spark.warm-up",
        Boolean(),
        "true",
        "Run some small jobs in a new driver JVM, before the first job or beside it: Spark loads what nearly every job "
        "needs. Turn it off for a cluster that runs one short job, which then has the cores to itself. A driver that "
        "is not warmed makes no archive of classes (`spark.cds.enabled`), and starts from one that another has made.",
    )
    WARM_UP_QUERIES = option(
        "taskmanager.spark.warm-up-queries",
        Integer(0, 10_000),
        "150",
        "How many small queries a new driver JVM runs while it has no task, half of the time, after those of "
        "`taskmanager.spark.warm-up`: Java compiles what it meets often, and after 150 a small job costs half the "
        "work. They take some 40 s of one core. None are run on a Spark cluster, nor in a driver of your own.",
    )
    CDS_ENABLED = option(
        "spark.cds.enabled",
        Boolean(),
        "true",
        "Keep an archive of Spark's loaded classes, which halves the time that a driver takes to start (some 200 MB).",
    )
    CDS_CACHE_DIR = computed_option(
        "spark.cds.cache-dir",
        FilePath("/var/cache/understudy/cds"),
        _cds_cache_dir,
        "~/.cache/understudy/cds",
        "The directory of those archives; one is made for each Java and Spark, and shared by all clusters of a user.",
    )
