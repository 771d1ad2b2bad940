"""The Spark code of `examples/flight_delays.py` without the runtime: `python -m tests.bench.bare_flights DRIVER_JSON`.

It opens a Connect session of a running driver, and for each directory that it reads on its standard input it runs the
whole job, in order and in that session, and answers with the seconds that it took. What goes over a blocking edge in
the pipeline is written and read here too: it is the work of Spark, and the job asks for it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from examples import flight_delays as job
from runtime.spark.driver.api import DriverInfo
from runtime.spark.spec import ConnectEndpoint


def run(spark: SparkSession, out: Path) -> None:
    """The job, once."""
    ctx: Any = SimpleNamespace(spark=spark, parameters={"out": str(out)})

    def blocking(name: str, frame: Any) -> Any:
        path = str(out / "results" / name)
        frame.write.mode("overwrite").option("compression", "uncompressed").parquet(path)
        return spark.read.parquet(path)

    flights = job.clean_flights(ctx, job.read_flights(ctx))
    joined = blocking("joined", job.join(ctx, flights, job.clean_weather(ctx, job.read_weather(ctx))))
    carriers = blocking("carriers", job.by_carrier(ctx, joined, job.read_airlines(ctx)))
    airports = blocking("airports", job.by_airport(ctx, joined, job.read_airports(ctx)))
    job.report(ctx, carriers, airports, blocking("hours", job.by_hour(ctx, joined)))


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # the tables
        call()
    return time.perf_counter() - began


def main() -> int:
    """Serve until the standard input ends."""
    info = DriverInfo.read(Path(sys.argv[1]))
    endpoint = ConnectEndpoint(info.connect_port, info.connect_token, "00000000-0000-4000-8000-00000000bafe")
    spark = SparkSession.builder.remote(endpoint.url).getOrCreate()
    for line in sys.stdin:
        out = Path(line.strip())
        print(_seconds(lambda out=out: run(spark, out)), flush=True)  # type: ignore[misc]
    return 0


if __name__ == "__main__":
    sys.exit(main())
