"""Rehearsals of queries with other sources than files, on Spark, without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet

from runtime.checkpoint.files import list_names
from runtime.checkpoint.rehearsal import decode_result
from tests.kafka_broker import PARTITIONS
from tests.rehearsed_sources import BEFORE, LAST


def rows_in(directory: Path) -> list[tuple[object, ...]]:
    """Return the rows of a batch in one order."""
    rows = pyarrow.parquet.read_table(directory).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def test_a_function_gets_for_each_version_the_rows_of_the_job_whatever_source_it_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rehearsed_sources", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors, out = json.loads(done.stdout), tmp_path / "out"
    assert (errors["blue"], errors["green"]) == ("", "")
    for number in range(BEFORE + 1, LAST + 1):
        real, blue, green = (rows_in(out / colour / str(number)) for colour in ("None", "blue", "green"))
        assert real == blue == green
        assert {row[0] for row in real} == {-2, -1, *range(PARTITIONS)}
    present, new = (decode_result((tmp_path / name / "result.json").read_bytes()) for name in ("present", "new"))
    assert (present.is_called, new.is_called) == (True, True)
    assert [(batch.rows, batch.digest) for batch in present.batches] == [
        (batch.rows, batch.digest) for batch in new.batches
    ]
    cause = f"the function of foreachBatch of query 'all' has failed in batch {LAST}: LookupError: not today"
    assert errors["fails"] == f"CheckpointError: {cause}"
    assert list_names(out / "failing") == [str(LAST - 1)]
    assert "TicksReader has a method commit" in errors["commits"]
    assert not (out / "committing").exists()
