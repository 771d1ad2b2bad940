"""Compare the table of orders with the log: each event must be in it exactly once.

understudy job run count.py LOG
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

written = sum(path.read_bytes().count(b"\n") for path in Path(sys.argv[1]).iterdir())
orders = SparkSession.builder.getOrCreate().table("orders")
rows, events = orders.select(f.count("*"), f.countDistinct("partition", "offset")).first()
print(f"{written} events in the log, {rows} rows in the table")
print(f"{written - events} lost, {rows - events} doubled; columns: {', '.join(orders.columns)}")
if "country" in orders.columns:
    print(dict(orders.groupBy("country").count().orderBy("country").collect()))
sys.exit(int(rows != events or events != written))
