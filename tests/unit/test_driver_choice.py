"""Which scripts get a Spark driver of their own."""

from __future__ import annotations

import pytest

from conf.options import SparkDriverChoice
from runtime.taskexecutor.services import own_driver_reason

AUTO, SHARED, OWN = SparkDriverChoice.AUTO, SparkDriverChoice.SHARED, SparkDriverChoice.OWN


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("from pyspark.streaming import StreamingContext", "DStreams"),
        ("sc._jsc.hadoopConfiguration().set('a', 'b')", "Hadoop's configuration"),
        ("spark.conf.set('fs.s3a.access.key', key)", "file system"),
        ("builder.config('spark.hadoop.fs.azure.account.key.x', key)", "file system"),
        ("spark.sql('add  jar /x.jar')", "jars while it runs"),
        ("spark._jvm.java.lang.System.exit(3)", "ends its JVM"),
        ("sc._jsc.sc().addSparkListener(listener)", "listener"),
        ("import sys; sys.exit(3)", ""),
        ("spark.read.parquet('s3a://bucket/x')", ""),
        ("spark.range(3).count()", ""),
    ],
)
def test_what_a_scripts_text_tells(text: str, word: str) -> None:
    reason = own_driver_reason(AUTO, text, [])
    assert word in reason
    assert bool(reason) == bool(word)
    assert own_driver_reason(SHARED, text, []) == ""


def test_what_is_asked_for_holds() -> None:
    assert "task.spark-driver" in own_driver_reason(OWN, "", [])
    for choice in SparkDriverChoice:
        assert own_driver_reason(choice, "", ["a.jar", "b.jar"]) == "brings jars (a.jar, b.jar)"
