"""The archive of Spark's classes from which the drivers of the tests start (`python -m tests.class_archive`).

`make test` builds it beside the static checks, where the machine has none yet. A cluster that runs a Spark job takes 25
seconds of a core with it, and 40 without. The clusters of tests are not warmed, so they build none themselves.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import tests.conftest  # noqa: F401  # the options of the JVMs of tests
from runtime.spark.driver.cds import ArchiveBuild
from runtime.spark.driver.java import find_java
from runtime.spark.driver.launch import DriverOptions, archive_key, class_path, default_archive_dir
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.warm import warm_up
from runtime.spark.task.zygote_client import Zygote
from tests.streaming_rows import Source
from tests.waiting import PATIENCE_S


async def build(archives: Path) -> Path | None:
    """Return the archive of this Java and Spark, after building it if there is none; None if that failed."""
    archive = archives / f"{archive_key(find_java(), class_path())}.jsa"
    if archive.exists():
        return archive
    with tempfile.TemporaryDirectory(prefix="archive-") as name:
        directory = Path(name)
        options = DriverOptions(
            work_dir=directory / "driver",
            log_file=directory / "driver.log",
            master="local[2]",
            archive_dir=archives,
            die_with_parent=True,
            start_timeout=PATIENCE_S,
        )
        driver, zygote = await asyncio.gather(LocalDriver.start(options), Zygote.start(directory / "zygote.log"))
        try:
            await warm_up(driver, zygote, directory / "warm-up")
            endpoint = await driver.open_session()
            await asyncio.to_thread(run_stream, endpoint.url, directory)
        finally:
            await zygote.stop()
            await driver.stop()
        return await ArchiveBuild(archives, driver.info, idle_only=False).run()


def run_stream(url: str, directory: Path) -> None:
    """Run a query with state, which the warm-up does not: its classes are those that most tests load afterwards."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    source = Source(directory / "in")
    source.write(2)
    spark = SparkSession.builder.remote(url).create()
    try:
        rows = spark.readStream.schema("at TIMESTAMP, key STRING").json(str(source.directory))
        spark.conf.set("spark.sql.shuffle.partitions", "2")  # of 200 by default, which take 30 s of a core
        counts = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), "key").count()
        writer = counts.writeStream.option("checkpointLocation", str(directory / "live")).format("parquet")
        writer.trigger(availableNow=True).start(str(directory / "out")).awaitTermination()
    finally:
        spark.stop()


def main() -> None:
    """Build it; the tests run without one, too."""
    archive = asyncio.run(build(default_archive_dir()))
    print("Spark's classes:", archive or "there is no archive, and the tests take longer")  # noqa: T201


if __name__ == "__main__":
    main()
