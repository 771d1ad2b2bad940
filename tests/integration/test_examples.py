"""The examples of docs/examples.md, run as a reader runs them: they print what the page shows."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from tests.cluster_harness import ROOT, Cluster, await_value
from tests.gallery import NOTEBOOKS, executed, stable_outputs
from tests.integration.test_tutorials import matches
from tests.job_files import write_job
from tests.waiting import PATIENCE_S

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text()


def shown(command: str) -> str:
    """The output that the page shows behind the block which ends with *command*."""
    [found] = re.findall(rf"{re.escape(command)}\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.fixture
def environ(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user of the tests' cluster, with `understudy` on the path."""
    (tmp_path / "config.yaml").write_text(f"cluster.runtime-dir: {cluster.directory}\n")
    (tmp_path / "bin").mkdir()
    for name, module in (("understudy", " -m understudy"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "UNDERSTUDY_CONF_DIR": str(tmp_path)}


def run(command: list[str], environ: dict[str, str], status: int = 0, stderr: int = subprocess.PIPE) -> str:
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == status, f"{done.stdout}{done.stderr or ''}"
    return done.stdout


def test_no_event_is_lost_or_doubled_by_an_upgrade(cluster: Cluster, tmp_path: Path) -> None:
    directory, log, out = EXAMPLES / "event_table", str(tmp_path / "log"), tmp_path / "orders"
    append = [sys.executable, str(directory / "event_log.py"), log, "--events"]
    subprocess.run([*append, "3000"], check=True)
    first = cluster.submit(directory / "orders.py", log, str(out))
    try:
        await_value(lambda: list(out.glob("_spark_metadata/0")))
        subprocess.run([*append, "3000"], check=True)  # while it runs, and may be in the middle of a batch
        savepoint = cluster.run("job", "stop", first, "--savepoint", str(tmp_path / "savepoints")).stdout.strip()
        subprocess.run([*append, "1000"], check=True)  # while no query runs
        batches = set(out.glob("_spark_metadata/*"))
        second = cluster.submit(directory / "orders_v2.py", log, str(out), options=("--from", savepoint))
        await_value(lambda: set(out.glob("_spark_metadata/*")) - batches)
        cluster.run("job", "stop", "--drain", second, "--savepoint", str(tmp_path / "savepoints"))
        counted = cluster.run("job", "run", str(directory / "count.py"), log).stdout.splitlines()
        assert counted[0] == "7000 events in the log, 7000 rows in the table"
        assert counted[1] == "0 lost, 0 doubled; columns: partition, offset, customer, cents, country"
        assert re.fullmatch(r"\{None: \d+, 'DK': \d+, 'FR': \d+, 'JP': \d+\}", counted[2])
    finally:
        drop = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().sql('DROP TABLE orders')\n"
        cluster.run("job", "run", str(write_job(tmp_path, drop)))


def test_models_are_trained_and_one_fails_alone(environ: dict[str, str]) -> None:
    printed = run([sys.executable, str(EXAMPLES / "train_models.py")], environ)
    assert matches(shown("python examples/train_models.py"), printed)


def test_a_pipeline_of_sql(environ: dict[str, str]) -> None:
    directory = EXAMPLES / "sql_pipeline"
    command = ["understudy", "job", "run", str(directory / "revenue.py"), "--data", str(directory)]
    printed = run(command, environ)
    assert printed == shown("understudy job run revenue.py --data .")
    with (directory / "customers.csv").open() as customers, (directory / "orders.csv").open() as orders:
        countries = {row["id"]: row["country"] for row in csv.DictReader(customers)}
        cents: Counter[tuple[str, str]] = Counter()
        for row in csv.DictReader(orders):
            if row["state"] == "paid":
                cents[countries[row["customer"]], row["day"][:7]] += int(row["cents"])
    words = [line.split() for line in printed.splitlines()]
    assert {(country, month): float(revenue) for country, month, _, revenue, _ in words} == {
        key: total / 100 for key, total in cents.items()
    }


# That of the models maps a function over jobs as train_models.py does, and is executed as the other one.
LONG = {"models"}


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in LONG else ()) for path in NOTEBOOKS],
)
def test_a_notebook_shows_what_is_stored_in_it(
    notebook: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_CONF_DIR", environ["UNDERSTUDY_CONF_DIR"])
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    stored = stable_outputs(nbformat.read(notebook, as_version=4))
    assert any(stored)
    assert stable_outputs(executed(notebook, str(tmp_path))) == stored
