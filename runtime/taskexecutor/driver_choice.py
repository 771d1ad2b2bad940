"""Whether a script gets a Spark driver of its own (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conf.options import SparkDriverChoice

_HINTS = (
    (r"\bStreamingContext\b", "uses DStreams, and a driver runs the streams of one program only"),
    (
        r"\bhadoopConfiguration\b",
        "changes Hadoop's configuration, and the tasks of a driver share its open file systems",
    ),
    (
        r"\bfs\.(s3[an]?|azure|abfss?|wasbs?|adl|gs|oss|obs|cosn|swift)\.",
        "configures a file system, and the tasks of a driver share its open file systems",
    ),
    (r"\bADD\s+JARS?\b|\baddJar\b", "adds jars while it runs, which every task of a driver would get"),
    (r"\baddSparkListener\b", "adds a listener to Spark, which would hear of the other tasks too"),
    (r"\bSystem\.exit\b|\bgetRuntime\(\)|\bRuntime\.halt\b", "ends its JVM, which would be the other tasks' too"),
)
"""What in a script's text tells that it cannot share a driver, and why."""


def own_driver_reason(choice: SparkDriverChoice, text: str, jars: Sequence[str]) -> str:
    """Why a script runs on a Spark driver of its own, as a predicate; empty where it shares the TaskExecutor's.

    The text is a hint only. What it does not show, a library's code for instance, the shared driver refuses or undoes;
    see `runtime.spark.script_application`.

    Args:
        choice: ``task.spark-driver``.
        text: the script.
        jars: names of the jars that the job brings.
    """
    if jars:  # a script attaches to the driver's one context, whose class path they would change
        return f"brings jars ({', '.join(jars)})"
    if choice is SparkDriverChoice.OWN:
        return "is to have one (task.spark-driver)"
    if choice is SparkDriverChoice.AUTO:
        for pattern, reason in _HINTS:
            if re.search(pattern, text, re.IGNORECASE):
                return reason
    return ""
