"""A driver on an older Java than that of the other tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from tests.older_java import OLDER, older_java
from tests.waiting import PATIENCE_S


async def test_a_driver_runs_python_functions_with_arrow_on_an_older_java(tmp_path: Path) -> None:
    options = DriverOptions(
        work_dir=tmp_path / "driver",
        log_file=tmp_path / "driver.log",
        java_home=str(older_java()),
        master="local[1]",
        archive_dir=None,
        die_with_parent=True,
        start_timeout=PATIENCE_S,
    )
    driver = await LocalDriver.start(options)
    try:
        assert int(driver.info.java_version.partition(".")[0]) < OLDER
        endpoint = await driver.open_session()
        assert await asyncio.to_thread(add_one, endpoint.url) == [1, 2, 3]
    finally:
        await driver.stop()


def add_one(url: str) -> list[int]:
    """Return the sum of each of three numbers and one, computed by a function in Python that gets Arrow's batches."""
    import pandas as pd
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).create()
    try:
        rows = spark.range(3).mapInPandas(lambda frames: (frame + 1 for frame in frames), "id LONG")
        return sorted(pd.Series(row.id for row in rows.collect()).tolist())
    finally:
        spark.stop()
