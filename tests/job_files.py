"""Job files that the integration tests submit."""

from __future__ import annotations

from pathlib import Path

TRIVIAL = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("trivial").getOrCreate()
print("sum", spark.range(1000).selectExpr("sum(id) AS total").first().total)
"""

# A job that only prints, for where it is enough that one runs: the first job of a Spark driver takes it seconds.
PRINTING = 'print("sum", sum(range(1000)))\n'

# Runs for as long as the file named by its argument is not there; says in other files that it has begun, and each time.
WAITING = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
gate, began = Path(sys.argv[1]), Path(sys.argv[1] + ".began")
with began.open("a") as file:
    file.write("x")

def wait(rows):
    while not gate.exists():
        time.sleep(0.05)
    yield from rows

print("rows", spark.sparkContext.parallelize(range(8), 2).mapPartitions(wait).count())
"""

# The same without a Spark job, for where a task that runs is enough: the first job of a driver takes it seconds.
PAUSED = """\
import sys, time
from pathlib import Path

gate, began = Path(sys.argv[1]), Path(sys.argv[1] + ".began")
with began.open("a") as file:
    file.write("x")
while not gate.exists():
    time.sleep(0.05)
"""

FAILING = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def rate(part, whole):
    return part / whole

print("before the failure")
rate(1, spark.range(5).filter("id > 10").count())
"""

PIPELINE = """\
from runtime.api import Pipeline

def numbers(ctx):
    return ctx.spark.range(ctx.parameters["rows"])

def squares(ctx, numbers):
    return numbers.selectExpr("id", "id * id AS square")

def total(ctx, squares):
    print("attempt", ctx.attempt)
    return squares.selectExpr("sum(square) AS total")

def write(ctx, total):
    total.write.mode("overwrite").parquet(ctx.parameters["out"])
    print("total", total.first().total)

def pipeline(argv):
    p = Pipeline("squares", parameters={"rows": int(argv[0]), "out": argv[1]})
    squared = p.source("numbers", numbers).then("squares", squares)
    squared.blocking().then("total", total).sink("write", write)
    return p
"""


# Two tasks, by a blocking edge; the first one waits for the gate. Each says that it has begun.
GATED_PIPELINE = """\
import time
from pathlib import Path
from runtime.api import Pipeline

def first(ctx):
    with open(ctx.parameters["gate"] + ".first", "a") as file:
        file.write("x")
    while not Path(ctx.parameters["gate"]).exists():
        time.sleep(0.05)
    return ctx.spark.range(100)

def second(ctx, first):
    with open(ctx.parameters["gate"] + ".second", "a") as file:
        file.write("x")
    first.write.mode("overwrite").parquet(ctx.parameters["out"])

def pipeline(argv):
    p = Pipeline("gated", parameters={"gate": argv[0], "out": argv[1]})
    p.source("first", first).blocking().sink("second", second)
    return p
"""

# Does not end when it is told to; only when the file named by its argument is there, or it is killed.
STUBBORN = """\
import signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def write_job(directory: Path, text: str, name: str = "job.py") -> Path:
    """Write a job file and return its path."""
    path = directory / name
    path.write_text(text)
    return path
