"""A real job's trace: from the span of its client to its Spark jobs, also when its JobMaster is killed."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import PAUSED, write_job

SAYS_ITS_TRACE = """\
import os, sys
from pathlib import Path

Path(sys.argv[1] + ".trace").write_text(os.environ.get("TRACEPARENT", ""))
"""

COUNTS = """\
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().range(10).count()
"""


def spans_in(directory: Path, trace_id: str) -> dict[str, dict[str, Any]]:
    """The spans of a trace in a cluster's files, by their ids."""
    found = {}
    for path in directory.glob("*.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found |= {span["spanId"]: span for span in scope["spans"] if span["traceId"] == trace_id}
    return found


PIPELINE = """\
from understudy import Pipeline


def rows(ctx):
    return ctx.spark.range(100).repartition(2)


def total(ctx, rows):
    assert rows.count() == 100
    assert ctx.spark.range(3).count() == 3


def pipeline(argv):
    made = Pipeline("totals")
    made.source("rows", rows).sink("total", total)
    return made
"""


def test_the_spark_jobs_of_a_pipeline_are_below_its_task(cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, PIPELINE))
    trace_id = cluster.await_status(job_id, "FINISHED")["trace_id"]

    def whole() -> dict[str, dict[str, Any]]:
        found = spans_in(cluster.directory / "traces", trace_id)
        return found if any(span["name"].startswith("job ") for span in found.values()) else {}

    found = await_value(whole)
    tasks = {span["spanId"]: span for span in found.values() if span["name"].startswith("task ")}
    jobs = [span for span in found.values() if span["name"] == "spark job"]
    assert len(jobs) >= 2
    for span in jobs:
        task = tasks[span["parentSpanId"]]
        assert int(task["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) <= int(task["endTimeUnixNano"])


def test_a_job_is_one_tree_below_its_clients_span_though_its_job_master_is_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_id, client = secrets.token_hex(16), secrets.token_hex(8)
    monkeypatch.setenv("TRACEPARENT", f"00-{trace_id}-{client}-01")
    job = WaitingJob.start(cluster, tmp_path, text=SAYS_ITS_TRACE + PAUSED + COUNTS)
    former = cluster.pid_of(f"jobmaster-{job.job_id}")
    os.kill(former, signal.SIGKILL)
    await_value(lambda: cluster.pid_of(f"jobmaster-{job.job_id}") != former)
    cluster.await_status(job.job_id, "RUNNING")
    job.release()
    assert cluster.await_status(job.job_id, "FINISHED")["trace_id"] == trace_id
    directory = cluster.directory / "traces"

    def whole() -> dict[str, dict[str, Any]]:
        found = spans_in(directory, trace_id)
        return found if any(span["name"].startswith("job ") for span in found.values()) else {}

    found = await_value(whole)
    roots = [span for span in found.values() if span["parentSpanId"] not in found]
    assert [(span["name"].split()[0], span["parentSpanId"]) for span in roots] == [("job", client)]
    (task,) = [span for span in found.values() if span["name"].startswith("task ")]
    assert Path(f"{job.gate}.trace").read_text() == f"00-{trace_id}-{task['spanId']}-01"
    assert [event["name"] for event in task["events"]] == ["RECONCILING"]
    names = {span["name"] for span in found.values() if span["parentSpanId"] == task["spanId"]}
    assert {"slot", "deploy", "run", "spark job"} <= names
    lines = "\n".join(path.read_text() for path in (cluster.directory / "log").glob("*.log"))
    assert re.search(rf"component=jobmaster-{job.job_id}.* trace_id={trace_id} - job .* is FINISHED", lines)
    assert re.search(rf"component=taskmanager-.* trace_id={trace_id} span_id={task['spanId']} - ", lines)
