"""`understudy history` on what a real cluster has left. The cluster has no TaskExecutor, and so no Spark."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

from tests.cluster_harness import Cluster, await_value
from tests.job_files import TRIVIAL, write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

SETTINGS = ("high-availability.type=none", "taskmanager.count=0", "history.interval=200 ms")


def test_jobs_figures_and_audit_lines_stay_after_a_stop(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = Cluster(own_cluster.directory, SETTINGS)
    cluster.run("start")
    file = write_job(tmp_path, TRIVIAL)
    cancelled, left = cluster.submit(file), cluster.submit(file)
    rest = RestClient.of(cluster)
    assert rest.ask("PATCH", f"/jobs/{cancelled}").status == 202
    cluster.await_status(cancelled, "CANCELED")
    history = cluster.directory / "history"
    await_value(lambda: (history / "running" / f"{left}.job").exists())
    await_value(lambda: 1 in rest.get("/figures")["jobs-running"])
    assert rest.get("/audit")["lines"][0]["action"] == "PATCH /jobs/{jobid}"
    assert [job["state"] for job in rest.get("/jobs/overview")["jobs"] if job["jid"] == left] != ["SUSPENDED"]
    young = cluster.submit(file)
    cluster.run("stop")

    server = subprocess.Popen(
        cluster.command("history", "--port", "0"), stdout=subprocess.PIPE, text=True, cwd=cluster.tree
    )
    try:
        assert server.stdout is not None
        found = re.fullmatch(r"the history of own: (http://127\.0\.0\.1:\d+)/\n", server.stdout.readline())
        assert found is not None
        # the token outlives the cluster, as the server does
        shown = RestClient(found[1], (cluster.directory / "rest-token").read_text().strip())
        states = {job["jid"]: (job["state"], job["end-time"] > 0) for job in shown.get("/jobs/overview")["jobs"]}
        assert states == {cancelled: ("CANCELED", True), left: ("SUSPENDED", True), young: ("SUSPENDED", True)}
        assert len(shown.get(f"/jobs/{left}")["vertices"]) == 1, "its tasks, as they were last seen"
        assert shown.get(f"/jobs/{cancelled}/execution-result")["status"] == {"id": "COMPLETED"}
        figures = shown.get("/figures")
        assert figures["timestamps"]
        assert 1 in figures["jobs-running"]
        lines = shown.get(f"/audit?job={cancelled}")["lines"]
        assert [(line["action"], line["outcome"]) for line in lines] == [
            ("PATCH /jobs/{jobid}", "done"),
            ("dispatcher/submit_job", "done"),
        ]
        assert shown.get("/config")["clusters"] == [{"name": "own", "directory": str(cluster.directory), "damaged": []}]
        refused = shown.ask("PATCH", f"/jobs/{left}")
        assert refused.status == 405
        assert "history of own, which can only be read" in refused.json["errors"][0]
        assert RestClient(found[1], "").ask("GET", "/jobs/overview").status == 401
        assert shown.ask("GET", "/").status == 200
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE_S)
    assert server.returncode == 130
