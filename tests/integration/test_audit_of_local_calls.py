"""The audit log of a whole cluster: local commands, which use the secret, and requests by HTTP have one line each.

The cluster has no TaskExecutor, and so no Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime.client import user_name
from tests.cluster_harness import Cluster
from tests.job_files import TRIVIAL, write_job
from tests.rest_client import RestClient

SETTINGS = ("high-availability.type=none", "taskmanager.count=0")


def test_local_commands_have_lines_and_requests_by_http_have_one_each(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = Cluster(own_cluster.directory, SETTINGS)
    cluster.run("start")
    rest, file = RestClient.of(cluster), write_job(tmp_path, TRIVIAL)
    local, by_http = cluster.submit(file), cluster.submit(file)
    assert rest.ask("PATCH", f"/jobs/{by_http}").status == 202
    cluster.run("job", "cancel", local)
    cluster.await_status(local, "CANCELED")
    assert cluster.run("job", "cancel", local, check=False).returncode != 0
    cluster.run("user", "add", "bob", "--role", "viewer")
    cluster.run("log-level", "root", "INFO")
    cluster.run("stop")
    log = cluster.directory / "audit" / "audit.jsonl"
    me = f"local:{user_name()}"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    def of_http() -> list[tuple[str, str, str, str]]:
        return [
            (line["user"], line["action"], line["target"], line["outcome"])
            for line in lines()
            if line["role"] != "local"
        ]

    found = [(line["action"], line["target"], line["outcome"]) for line in lines() if line["role"] == "local"]
    level = ("diagnostics/set_log_level", "root", "done")
    assert level in found
    assert [each for each in found if each != level] == [
        ("dispatcher/submit_job", local, "done"),
        ("dispatcher/submit_job", by_http, "done"),
        ("dispatcher/cancel_job", local, "done"),
        ("dispatcher/cancel_job", local, "rejected"),
        ("dispatcher/add_user", "bob viewer", "done"),
        ("master/shut_down_cluster", "", "done"),
    ]
    assert of_http() == [("", "PATCH /jobs/{jobid}", by_http, "done")]
    assert {line["user"] for line in lines() if line["role"] == "local"} == {me}
    assert all(line["source"].startswith("unix:") for line in lines() if line["role"] == "local")
    (refused,) = [line for line in lines() if line["outcome"] == "rejected"]
    assert "is CANCELED already" in refused["reason"]
