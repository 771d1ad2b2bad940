"""A script with a mistake: its author sees the script's own traceback, with the job's id and state.

understudy job run examples/failing.py
"""

from pyspark.sql import SparkSession


def share(part, whole):
    return part / whole


def summarise(spark):
    flights = spark.createDataFrame([("UA", 3), ("AA", 5)], ["carrier", "delay"])
    late = flights.filter("delay > 10")
    return share(late.filter("carrier = 'UA'").count(), late.count())


spark = SparkSession.builder.appName("failing").getOrCreate()
print("the share of late flights that are United's is", summarise(spark))
