"""A program of a Spark Connect client, of any release: ``connect_client.py URL DIRECTORY`` prints what it finds.

It runs with `pyspark-client` of that release first on its path, and imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as PySpark's users name it


def found_by(spark: Any, directory: Path) -> dict[str, Any]:
    """Return what one session gives in each way that users work with it."""
    found: dict[str, Any] = {"client": pyspark.__version__, "server": spark.version}
    numbers = spark.range(1000)
    found["sum"] = numbers.where("id % 2 = 0").agg(F.sum("id")).collect()[0][0]
    found["groups"] = [
        row.asDict() for row in numbers.groupBy((F.col("id") % 3).alias("g")).count().sort("g").collect()
    ]

    helper = directory / "client_helper.py"
    helper.write_text("def doubled(number):\n    return 2 * number\n")
    spark.addArtifacts(str(helper), pyfile=True)

    def twice(number: int) -> int:
        from client_helper import doubled  # type: ignore[import-not-found]

        return int(doubled(number))

    found["function"] = [row[0] for row in spark.range(3).select(F.udf(twice, "int")("id")).collect()]
    found["arrow function"] = [
        row[0] for row in spark.range(3).select(F.pandas_udf(lambda s: s + 1, "long")("id")).collect()
    ]
    spark.udf.register("twice", twice, "int")
    spark.range(4).createOrReplaceTempView("numbers")
    found["SQL"] = [
        row[0] for row in spark.sql("SELECT twice(id) FROM numbers WHERE id > :least", {"least": 1}).collect()
    ]
    found["pandas"] = int(spark.createDataFrame(spark.range(5).toPandas()).toPandas()["id"].sum())

    target, place = str(directory / "out"), str(directory / "checkpoint")
    spark.range(10).write.parquet(str(directory / "in"))
    stream = spark.readStream.schema("id LONG").parquet(str(directory / "in"))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", place)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    found["streamed"] = spark.read.parquet(target).count()

    try:
        spark.table("nothing").collect()
    except PySparkException as error:
        found["error"] = error.getErrorClass()
    found["interrupted"] = interrupted(spark)
    found["after it"] = spark.range(2).count()
    return found


def interrupted(spark: Any) -> bool:
    """Return whether a call ends with OPERATION_CANCELED when the session interrupts it."""
    ended: list[str] = []

    def sleep() -> None:
        try:
            spark.range(1).select(F.udf(lambda _: time.sleep(600), "int")("id")).collect()
        except PySparkException as error:
            ended.append(str(error))

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    while sleeping.is_alive():
        spark.interruptAll()
        sleeping.join(0.2)
    return "OPERATION_CANCELED" in ended[0]


if __name__ == "__main__":
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    sys.stdout.write(json.dumps(found_by(session, Path(sys.argv[2]))) + "\n")
    session.stop()
