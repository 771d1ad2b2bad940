"""The orders of a log as a table, which Structured Streaming keeps up to date.

understudy job run --detach orders.py LOG OUT

The query writes parquet files to OUT, and `orders` is a table over them. Savepoints know the query by its name.
"""

import sys

from event_log import EventLog
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

COLUMNS = "partition INT, offset BIGINT, customer INT, cents BIGINT"

log, out = sys.argv[1:]
spark = SparkSession.builder.appName("orders").getOrCreate()
spark.dataSource.register(EventLog)
spark.sql(f"CREATE TABLE IF NOT EXISTS orders ({COLUMNS}) USING parquet LOCATION '{out}'")
spark.sql(f"ALTER TABLE orders SET LOCATION '{out}'")  # of an earlier run with another OUT

events = spark.readStream.format("event-log").load(log)
orders = events.withColumn("order", f.from_json("value", "customer INT, cents BIGINT"))
query = (
    orders.select("partition", "offset", "order.*")
    .writeStream.queryName("orders")
    .option("checkpointLocation", f"{out}.checkpoint")
    .trigger(processingTime="500 milliseconds")
    .start(out)
)
query.awaitTermination()
