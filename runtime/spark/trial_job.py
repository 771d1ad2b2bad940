"""The job by which a driver shows that it still runs jobs: one Spark task with one Python function."""

from __future__ import annotations

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate().sparkContext.parallelize([20], 1).map(str).collect()
