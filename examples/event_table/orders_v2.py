"""The next version of orders.py: it also writes the country of each order.

understudy job run --detach --from SAVEPOINT orders_v2.py LOG OUT

Its query has the same name and source, so it begins at the savepoint's offsets. Earlier rows have no country.
"""

import sys

from event_log import EventLog
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

COLUMNS = "partition INT, offset BIGINT, customer INT, cents BIGINT, country STRING"

log, out = sys.argv[1:]
spark = SparkSession.builder.appName("orders").getOrCreate()
spark.dataSource.register(EventLog)
spark.sql(f"CREATE TABLE IF NOT EXISTS orders ({COLUMNS}) USING parquet LOCATION '{out}'")
spark.sql(f"ALTER TABLE orders SET LOCATION '{out}'")  # of an earlier run with another OUT
if "country" not in spark.table("orders").columns:
    spark.sql("ALTER TABLE orders ADD COLUMNS (country STRING)")

events = spark.readStream.format("event-log").load(log)
orders = events.withColumn("order", f.from_json("value", "customer INT, cents BIGINT, country STRING"))
query = (
    orders.select("partition", "offset", "order.*")
    .writeStream.queryName("orders")
    .option("checkpointLocation", f"{out}.checkpoint")
    .trigger(processingTime="500 milliseconds")
    .start(out)
)
query.awaitTermination()
