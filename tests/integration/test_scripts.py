"""Ordinary PySpark programs, unchanged, as jobs: those that PySpark itself brings as examples, and how programs end."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster
from tests.job_files import write_job

TEXT = "to be or not to be\nthat is the question\n"


def pyspark_directory() -> Path:
    """Where PySpark is installed, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


EXAMPLES = pyspark_directory() / "examples" / "src" / "main" / "python"


def test_pysparks_own_pi(cluster: Cluster) -> None:
    done = cluster.run("job", "run", str(EXAMPLES / "pi.py"), "--", "3")
    words = done.stdout.split()
    assert words[:-1] == ["Pi", "is", "roughly"]
    assert abs(float(words[-1]) - 3.14159) < 0.05


def test_pysparks_own_word_count(cluster: Cluster, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    done = cluster.run("job", "run", str(EXAMPLES / "wordcount.py"), "--", str(text))
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        word: str(count) for word, count in Counter(TEXT.split()).items()
    }


def test_pysparks_own_k_means(cluster: Cluster) -> None:
    data = pyspark_directory() / "data" / "mllib" / "kmeans_data.txt"
    done = cluster.run("job", "run", str(EXAMPLES / "kmeans.py"), "--", str(data), "2", "0.001")
    assert "Final centers: [" in done.stdout
    assert "0.1" in done.stdout
    assert "9.1" in done.stdout, "the two clusters of the example's data are around 0.1 and 9.1"


@pytest.mark.parametrize(
    ("text", "state", "status", "kind"),
    [
        ("import sys; sys.exit(3)", "FAILED", 3, "user-code"),
        ("raise SystemExit('no input')", "FAILED", 1, "user-code"),
        ("import os; print('bye', flush=True); os._exit(0)", "FINISHED", 0, None),
    ],
)
def test_the_exit_status_of_a_script_is_its_own(
    cluster: Cluster, tmp_path: Path, text: str, state: str, status: int, kind: str | None
) -> None:
    job_id = cluster.submit(write_job(tmp_path, text))
    (attempt,) = cluster.await_status(job_id, state)["tasks"][0]["attempts"]
    assert attempt["exit_status"] == status
    assert (attempt["error"] or {}).get("kind") == kind


LEAVES_A_QUERY = """\
import atexit, sys
from pyspark.sql import SparkSession

atexit.register(print, "bye")
builder = SparkSession.builder.config("spark.hadoop.fs.s3a.secret.key", "hunter2")
spark = builder.config("spark.executor.memory", "7g").config("spark.ssl.keyPassword", "hunter3").getOrCreate()
print("hadoop", spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == "hunter2")
query = spark.readStream.format("rate").load().writeStream.queryName("left").format("noop").start()
print("started", query.isActive)
"""


def test_a_script_is_told_what_is_not_as_in_a_program_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    shared = ("-D", "task.spark-driver=shared")  # its text names a file system's settings
    job_id = cluster.submit(write_job(tmp_path, LEAVES_A_QUERY), options=shared)
    cluster.await_status(job_id, "FINISHED")
    logs = cluster.run("job", "logs", job_id)
    assert "hadoop True\nstarted True\nbye\n" in logs.stdout
    assert "its streaming query left was active: the query is stopped" in logs.stderr
    assert "the setting spark.executor.memory=7g is ignored" in logs.stderr
    assert "the setting spark.ssl.keyPassword=****** is ignored" in logs.stderr
    assert "hunter" not in logs.stderr
