"""Pipelines on a real cluster: the page's own example, every edge's meaning, and results that are lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb

from runtime.spark.driver.java import find_java, launcher_home
from tests.cluster_harness import ROOT, Cluster, await_value
from tests.job_files import write_job
from tests.waiting import PATIENCE_S

PAGE = ROOT / "docs" / "pipelines.md"

EDGES = '''
"""Says which partition each row is in, by each kind of edge, and what plain Spark makes of the same."""

from pyspark.sql import functions as F

from runtime.api import Pipeline

def rows(ctx):
    return ctx.spark.range(0, 1000, 1, 5).selectExpr("id", "id % 40 AS k")


def names(ctx):
    return ctx.spark.range(40).selectExpr("id AS k", "concat('name ', id) AS name")


def keep(ctx, frame):
    return frame


def place(ctx, frame):
    return frame.withColumn("partition", F.spark_partition_id()).withColumn("vertex", F.lit(ctx.vertex_name))


def join(ctx, frame, names):
    ctx.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # by the hint alone
    joined = frame.join(names, "k").withColumn("partition", F.lit(-1)).withColumn("vertex", F.lit(ctx.vertex_name))
    joined.explain()
    return joined


def write(ctx, *placed):
    plain = rows(ctx).repartition(4, "k").withColumn("partition", F.spark_partition_id())
    for table in (plain.withColumn("vertex", F.lit("plain")), *placed):
        table.select("id", "k", "partition", "vertex").write.mode("append").parquet(ctx.parameters["out"])


def pipeline(argv):
    p = Pipeline("edges", {"out": argv[0]})
    placed = []
    for exchange in ("pipelined", "blocking"):
        source, small = p.source(f"rows {exchange}", rows), p.source(f"names {exchange}", names)
        for kind in ("forward", "hash", "rebalance"):
            stream = source.hash("k") if kind == "hash" else getattr(source, kind)()
            settings = {} if kind == "forward" else {"parallelism": 4}
            placed.append(stream.then(f"{kind} {exchange}", place, exchange=exchange, **settings))
        placed.append(source.then(f"broadcast {exchange}", join, small.broadcast(), exchange=exchange))
    p.sink("write", write, *placed)
    return p
'''

LOSSES = """
import time
from pathlib import Path

from runtime.api import Pipeline


def began(ctx):
    with open(f"{ctx.parameters['gate']}.{ctx.vertex_name}", "a") as file:
        file.write("x")


def first(ctx):
    began(ctx)
    if ctx.attempt == 0:
        raise ValueError("not at the first attempt")
    return ctx.spark.range(100)


def second(ctx, first):
    began(ctx)
    return first.selectExpr("id", "id * 2 AS double")


def third(ctx, second):
    began(ctx)
    while not Path(ctx.parameters["gate"]).exists():
        time.sleep(0.05)
    print("total", second.selectExpr("sum(double) AS total").first().total)


def pipeline(argv):
    p = Pipeline("losses", {"gate": argv[0]})
    p.source("first", first, retries=1).blocking().then("second", second).blocking().sink("third", third)
    return p
"""


def test_the_pages_example_runs_on_a_cluster_and_without_one(cluster: Cluster, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    job, test = (text for language, text in blocks if language == "python")
    (explained,) = (text for language, text in blocks if language == "text")
    file = write_job(tmp_path, job, "spending.py")
    write_job(tmp_path, test, "test_spending.py")
    assert cluster.run("job", "explain", str(file)).stdout == explained
    java = str(launcher_home(find_java(), tmp_path / "java"))
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 2\nspark.ui.enabled false\n")
    environment = {**os.environ, "JAVA_HOME": java, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    environment["SPARK_CONF_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_spending.py")]
    tested = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
    assert cluster.run("job", "run", str(file), "--", "--orders", "100").stdout == "dk 2 18\nfr 3 29\n"
    wrong = cluster.run("job", "run", str(file), "--", "--orders", "many", check=False)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: parameter --orders is 'many': it must be a whole number\n"


def test_every_edge_means_on_a_cluster_what_it_means_in_spark(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cluster.run("job", "run", str(write_job(tmp_path, EDGES, "edges.py")), "--", str(out))
    read = f"read_parquet('{out}/*.parquet')"
    plain = f"(SELECT * FROM {read} WHERE vertex = 'plain')"
    expected = [(number, number % 40) for number in range(1000)]
    for exchange in ("pipelined", "blocking"):
        for kind in ("forward", "hash", "rebalance", "broadcast"):
            mine = f"(SELECT * FROM {read} WHERE vertex = '{kind} {exchange}')"
            assert duckdb.sql(f"SELECT id, k FROM {mine} ORDER BY id").fetchall() == expected, (kind, exchange)
        placed = f"(SELECT id, partition FROM {read} WHERE vertex = 'hash {exchange}')"
        differing = f"SELECT count(*) FROM {placed} a JOIN {plain} b USING (id) WHERE a.partition <> b.partition"
        assert duckdb.sql(differing).fetchall() == [(0,)], "each row is where plain Spark has it"
        sizes = duckdb.sql(f"SELECT partition, count(*) FROM {read} WHERE vertex = 'rebalance {exchange}' GROUP BY 1")
        assert sorted(sizes.fetchall()) == [(number, 250) for number in range(4)]
    partitions = duckdb.sql(f"SELECT DISTINCT partition FROM {read} WHERE vertex = 'forward pipelined'").fetchall()
    assert sorted(partitions) == [(number,) for number in range(5)], "those of the source"
    job_id = next(job["job_id"] for job in cluster.json("job", "list") if job["name"] == "edges")
    assert len(cluster.job(job_id)["tasks"]) == 3
    assert cluster.run("job", "logs", job_id).stdout.count("BroadcastHashJoin") >= 2


def test_what_is_lost_is_made_again_from_as_far_back_as_necessary(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def began() -> dict[str, int]:
        return {name: Path(f"{gate}.{name}").stat().st_size for name in ("first", "second", "third")}

    job_id = cluster.submit(write_job(tmp_path, LOSSES, "losses.py"), str(gate))
    await_value(Path(f"{gate}.third").exists)
    results = cluster.directory / "jobs" / job_id / "results"
    tasks = {task["name"]: task for task in cluster.job(job_id)["tasks"]}
    announced = {name: task["attempts"][-1]["partitions"] for name, task in tasks.items()}
    assert announced["third"] == []
    (first,), (second,) = announced["first"], announced["second"]
    assert second["path"] == f"{results}/{tasks['second']['id']}/attempt-0"
    files = list(Path(second["path"]).glob("part-*"))
    assert (second["subpartitions"], second["bytes"]) == (len(files), sum(file.stat().st_size for file in files))
    await_value(lambda: not Path(first["path"]).exists())  # it was read, and is released
    for file in files:
        file.unlink()
    gate.touch()
    job = cluster.await_status(job_id, "FINISHED")
    assert "total 9900" in cluster.run("job", "logs", job_id).stdout
    assert began() == {"first": 3, "second": 2, "third": 2}
    assert [failure["kind"] for failure in job["failure_history"]] == ["user-code", "result-lost"]
    assert job["failure_history"][1]["lost_result"] == tasks["second"]["id"]
    assert job["restarts"] == 2
