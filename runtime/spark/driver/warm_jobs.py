"""The jobs that the package itself runs on a driver, as a pipeline and as a script (see `runtime.spark.driver.warm`).

A fresh driver runs the warm-up jobs before its first job, once as a pipeline and once as a script. They make the JVM
load and compile the code that nearly every job needs, and start the Python daemon with pandas and pyarrow. The
class-data-sharing archive is built from the classes that they load.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession, functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from runtime.spark.task.pipeline import VertexContext


def source(ctx: VertexContext) -> DataFrame:
    """Return rows with a key and a text."""
    return ctx.spark.range(2000).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS text", "id / 3.0 AS x")


def warm_pipeline(ctx: VertexContext, rows: DataFrame) -> None:
    """Run a Python function, a join and an aggregation, write and read Parquet, and fetch rows to the client."""
    exercise(ctx.spark, rows, ctx.parameters["directory"])


def small_queries(ctx: VertexContext, rows: DataFrame) -> None:
    """Run queries like those of small jobs, each a different one."""
    for number in range(ctx.parameters["queries"]):
        ctx.spark.range(1000 + number).selectExpr("sum(id) AS total").first()
        if number % 5 == 0:
            rows.where(f"id > {number}").groupBy("k").agg(functions.avg("x").alias("x")).orderBy("k").collect()


def exercise(spark: Any, rows: Any, directory: str) -> None:
    """Run the queries."""
    rows.selectExpr("sum(id)").collect()
    rows.limit(20).select(functions.udf(_length, "long")("text")).collect()
    keys = rows.select("k").distinct().withColumn("name", functions.concat(functions.lit("key "), functions.col("k")))
    table = rows.join(keys, "k").groupBy("name").agg(functions.avg("x").alias("x"), functions.count("*").alias("n"))
    table.write.mode("overwrite").option("compression", "uncompressed").parquet(directory)
    spark.read.parquet(directory).orderBy(functions.desc("n")).toPandas()
    spark.createDataFrame([(1, "a"), (2, "b")], ["id", "text"]).createOrReplaceTempView("warm")
    spark.sql("SELECT text, count(*) AS n FROM warm WHERE id > 0 GROUP BY text HAVING n > 0").show()


def _length(text: str) -> int:
    return len(text)


def _script(directory: str) -> None:
    spark = SparkSession.builder.appName("warm-up").getOrCreate()
    spark.sparkContext.parallelize(range(100), 2).map(str).map(_length).sum()
    rows = spark.range(2000).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS text", "id / 3.0 AS x")
    exercise(spark, rows, directory)


def _trial() -> None:
    """Run one Spark task with one Python function, by which a driver shows that it still runs jobs."""
    SparkSession.builder.getOrCreate().sparkContext.parallelize([20], 1).map(str).collect()


if __name__ == "__main__":
    if sys.argv[1:]:
        _script(sys.argv[1])
    else:
        _trial()
