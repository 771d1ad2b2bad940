"""The REST API of a real cluster, by real sockets, while jobs run and processes are killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runtime.job_file import read_job_file
from runtime.jobgraph.json_form import to_json
from runtime.notebook import connect
from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import FAILING, PIPELINE, WAITING, write_job
from tests.rest_client import Reply, RestClient

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def rest(cluster: Cluster) -> RestClient:
    return RestClient.of(cluster)


def line_of(rest: RestClient, job_id: str) -> dict[str, Any]:
    """The job in the overview; empty while it is not there."""
    lines = {job["jid"]: job for job in rest.get("/v1/jobs/overview")["jobs"]}
    return dict(lines.get(job_id, {}))


def test_a_job_is_submitted_shown_and_cancelled(cluster: Cluster, rest: RestClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = rest.submit(WAITING.encode(), "waiting.py", str(gate))
    await_value(lambda: Path(f"{gate}.began").exists())

    def running_line() -> dict[str, Any] | None:
        """The job in the overview once its task is RUNNING; a slow JobMaster's job is RECONCILING, without tasks."""
        line = line_of(rest, job_id)
        return line if line.get("state") == "RUNNING" and line["tasks"]["running"] else None

    line = await_value(running_line)
    assert line["tasks"]["running"] == line["tasks"]["total"] == 1
    assert cluster.job(job_id)["name"] == line["name"] == "waiting"
    await_value(lambda: rest.get("/v1/overview")["jobs-running"] >= 1)

    job = rest.get(f"/jobs/{job_id}")
    (vertex,) = job["vertices"]
    assert (job["state"], vertex["status"], vertex["name"]) == ("RUNNING", "RUNNING", "waiting")
    assert [node["id"] for node in job["plan"]["nodes"]] == [vertex["id"]]
    details = rest.get(f"/jobs/{job_id}/vertices/{vertex['id']}")
    worker = details["subtasks"][0]["taskmanager-id"]
    assert worker in [manager["id"] for manager in rest.get("/taskmanagers")["taskmanagers"]]
    await_value(lambda: rest.get(f"/taskmanagers/{worker}")["allocatedSlots"])
    assert rest.get(f"/jobs/{job_id}/execution-result") == {"status": {"id": "IN_PROGRESS"}}
    await_value(lambda: rest.get(f"/v1/applications/{job_id}")["status"] == "RUNNING")

    assert rest.ask("PATCH", f"/v1/jobs/{job_id}?mode=cancel", b"{}").status == 202
    cluster.await_status(job_id, "CANCELED")
    await_value(lambda: line_of(rest, job_id)["state"] == "CANCELED")
    result = await_value(lambda: rest.get(f"/jobs/{job_id}/execution-result").get("job-execution-result"))
    assert result["application-status"] == "CANCELED"
    again = rest.ask("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    assert again.status == 202, "it is cancelled, as was asked"


def test_a_job_graph_is_submitted_as_json(cluster: Cluster, rest: RestClient, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graph = read_job_file(write_job(tmp_path, PIPELINE, "squares.py"), ["4", str(out)])
    parts = (("graph", "graph.json", to_json(graph).encode()), ("main", "squares.py", PIPELINE.encode()))
    assert rest.post_form("/v1/graphs", parts[0], ("main", "squares.py", b"def (")).status == 400
    for _ in range(2):  # twice is once
        reply = rest.post_form("/v1/graphs", *parts)
        assert (reply.status, reply.json["jobid"]) == (202, graph.job_id)
    cluster.await_status(graph.job_id, "FINISHED")
    assert len(rest.get(f"/jobs/{graph.job_id}")["vertices"]) == 2
    assert "total 14" in cluster.run("job", "logs", graph.job_id).stdout


def test_metrics_are_scraped_with_a_token_that_allows_nothing_else(cluster: Cluster, rest: RestClient) -> None:
    cluster.run("user", "add", "prometheus", "--role=metrics")
    token = cluster.json("token", "add", "prometheus")["token"]
    scraper = replace(rest, token=token)

    def scraped() -> bool:
        """Whether the Dispatcher's are among them; a component that is slow to answer is left out of an answer."""
        reply = scraper.ask("GET", "/metrics/prometheus")
        assert reply.status == 200
        return b"flink_jobmanager_numRunningJobs" in reply.body

    await_value(scraped)
    for method, path in (
        ("GET", "/v1/jobs/overview"),
        ("GET", "/v1/queues"),
        ("GET", "/v1/events"),
        ("GET", "/v1/config"),
        ("GET", "/v1/jobmanager/metrics"),
        ("GET", "/v1/jobmanager/logs/master.log"),
        ("POST", "/v1/scripts"),
        ("POST", "/v1/gateways/dispatcher/list_jobs"),
        ("DELETE", "/v1/cluster"),
    ):
        refused = scraper.ask(method, path)
        assert refused.status == 403, path
        assert "user prometheus has the role metrics; " in refused.json["errors"][0]
    users = {user["name"]: user["role"] for user in cluster.json("user", "list")}
    assert users["prometheus"] == "metrics"
    cluster.run("user", "remove", "prometheus")
    await_value(lambda: scraper.ask("GET", "/metrics/prometheus").status == 401)


def test_metrics_are_those_of_all_processes(cluster: Cluster, rest: RestClient, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id

    def values(path: str) -> dict[str, str]:
        ids = ",".join(row["id"] for row in rest.get(path))
        return {row["id"]: row["value"] for row in rest.get(f"{path}?get={ids}")} if ids else {}

    processes = ("dispatcher", "resourcemanager", "blobserver", "rest")

    def at_work() -> dict[str, str] | None:
        """Those of the components; one that does not answer within some seconds is left out of an answer."""
        found = values("/jobmanager/metrics")
        if found.get("numRunningJobs", "0") == "0" or "taskSlotsTotal" not in found:
            return None
        if not all(f"{process}.Rpc.numConnections" in found for process in processes):
            return None
        return found if int(found["taskSlotsAvailable"]) < int(found["taskSlotsTotal"]) else None

    control = await_value(at_work)
    for process in processes:
        assert int(control[f"{process}.Status.Process.Memory.Resident"]) > 0
        assert int(control[f"{process}.Rpc.numConnections"]) > 0
    assert int(control["dispatcher.numSubmittedJobs"]) > 0
    job = await_value(lambda: (found := values(f"/jobs/{job_id}/metrics")).get("uptime", "0") != "0" and found)
    assert (job["numRestarts"], job["lastCheckpointExternalPath"]) == ("0", "n/a")
    assert int(job["jobmaster.Status.Process.Memory.Resident"]) > 0
    (vertex,) = rest.get(f"/jobs/{job_id}")["vertices"]
    await_value(lambda: values(f"/jobs/{job_id}/vertices/{vertex['id']}/metrics").get("0.attempt") == "0")
    worker = rest.get("/taskmanagers")["taskmanagers"][0]["id"]
    own = await_value(lambda: "TaskPool.numHits" in (found := values(f"/taskmanagers/{worker}/metrics")) and found)
    assert int(own["Status.JVM.Memory.Resident"]) > int(own["Status.Process.Memory.Resident"]) > 0
    running_tasks = "/taskmanagers/metrics?get=numRunningTasks&agg=sum"
    await_value(lambda: [figure for figure in rest.get(running_tasks) if figure["sum"] >= 1])

    asked = set(re.findall(r"flink_\w+", (DOCS / "grafana-dashboard.json").read_text()))
    of_queries = ("batchId", "batchDuration", "RowsPerSecond", "RecordsInPerSecond", "stateBytes", "pendingRecords")

    def untold() -> set[str]:
        text = rest.ask("GET", "/metrics/prometheus").body.decode()
        told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        return {name for name in asked - told if not name.endswith(of_queries)}

    await_value(lambda: untold() == set())
    waiting.release()
    cluster.await_status(job_id, "FINISHED")
    await_value(lambda: f'job_id="{job_id}"' not in rest.ask("GET", "/metrics/prometheus").body.decode())


def test_a_failed_job_tells_the_users_traceback(cluster: Cluster, rest: RestClient) -> None:
    job_id = rest.submit(FAILING.encode(), "failing.py")
    cluster.await_status(job_id, "FAILED")
    await_value(lambda: rest.get(f"/jobs/{job_id}")["state"] == "FAILED")
    first = rest.get(f"/v1/jobs/{job_id}/exceptions?maxExceptions=5")["exceptionHistory"]["entries"][0]
    assert first["exceptionName"] == "ZeroDivisionError"
    assert 'File "failing.py", line 6, in rate' in first["stacktrace"]
    assert rest.get(f"/jobs/{job_id}/execution-result")["job-execution-result"]["failure-cause"]["serialized-throwable"]


def test_logs_and_threads_are_told(cluster: Cluster, rest: RestClient) -> None:
    (worker,) = [manager["id"] for manager in rest.get("/taskmanagers")["taskmanagers"]]
    assert {log["name"] for log in rest.get(f"/taskmanagers/{worker}/logs")["logs"]} >= {"taskexecutor"}
    assert b"taskexecutor" in rest.ask("GET", f"/taskmanagers/{worker}/log").body.lower()
    assert rest.get(f"/taskmanagers/{worker}/thread-dump")["threadInfos"]
    logs = {log["name"]: log["size"] for log in rest.get("/jobmanager/logs")["logs"]}
    assert {"master.log", "dispatcher.log", "rest.log"} <= logs.keys()
    content = rest.ask("GET", "/jobmanager/logs/master.log").body
    assert content.startswith((cluster.directory / "log" / "master.log").read_bytes()[:200])
    secret = (cluster.directory / "secret").read_bytes().strip()
    for name in logs:
        shown = rest.ask("GET", f"/jobmanager/logs/{name}").body
        assert secret not in shown
        assert rest.token.encode() not in shown
    for name in ("../secret", "..%2fsecret", "%2e%2e%2fsecret", "..%252fsecret", "%2fetc%2fpasswd"):
        reply = rest.ask("GET", f"/jobmanager/logs/{name}")
        assert reply.status == 404
        assert secret not in reply.body


def test_strangers_are_told_nothing(cluster: Cluster, rest: RestClient) -> None:
    assert stat.S_IMODE((cluster.directory / "rest-token").stat().st_mode) == 0o600
    strangers = (RestClient(rest.url, ""), RestClient(rest.url, "0" * 64), RestClient(rest.url, rest.token[:-1]))
    for stranger in strangers:
        for method in ("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"):
            for target in ("/v1/jobs/overview", "/cluster", "/openapi.json", "/nothing"):
                reply = stranger.ask(method, target)
                assert reply.status == 401, (method, target)
    told: list[Reply] = [
        rest.ask("GET", "/overview", Host="evil.example.org"),
        rest.ask("GET", "/overview", Origin="http://evil.example.org"),
        rest.ask("GET", "/jobs/not-an-id"),
        rest.ask("POST", "/v1/scripts", b"{", Content_Type="application/json"),
        rest.ask("POST", "/v1/jobs", b"\xac\xed\0\5sr\0"),
        rest.ask("POST", "/v1/scripts", None, Content_Length=str(1 << 40)),
    ]
    assert [reply.status for reply in told] == [403, 403, 400, 415, 400, 413]
    assert all(len(reply.json["errors"]) == 1 for reply in told)


def test_slow_and_broken_peers_keep_nobody_from_being_served(rest: RestClient) -> None:
    address = (urlsplit(rest.url).hostname, urlsplit(rest.url).port)
    slow = [socket.create_connection(address) for _ in range(50)]
    try:
        for number, peer in enumerate(slow):
            peer.sendall([b"", b"GET /jobs/over", b"\x16\x03\x01", b"POST / HTTP/1.1\r\nhost: x\r\n"][number % 4])
        assert rest.get("/v1/overview")["taskmanagers"] == 1
    finally:
        for peer in slow:
            peer.close()
    with socket.create_connection(address) as peer:  # a head without end
        try:
            while True:
                peer.sendall(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 60_000)
        except OSError:
            pass
    assert rest.get("/v1/overview")["taskmanagers"] == 1


def test_a_killed_web_endpoint_comes_back_and_no_job_notices(
    cluster: Cluster, rest: RestClient, tmp_path: Path
) -> None:
    job = WaitingJob.start(cluster, tmp_path)
    before = cluster.pid_of("rest")
    os.kill(before, signal.SIGKILL)
    await_value(lambda: cluster.pid_of("rest") not in (0, before))

    def look() -> bool:
        try:
            reply = rest.ask("GET", f"/v1/jobs/{job.job_id}")  # at the same port, with the same token
        except OSError:
            return False
        assert reply.status in (200, 503), reply.body  # 503 until it knows the leader
        return reply.status == 200 and reply.json["state"] == "RUNNING"

    await_value(look)
    job.release()
    ended = cluster.await_status(job.job_id, "FINISHED")
    assert (ended["restarts"], job.starts) == (0, 1)


def test_the_endpoint_of_another_master_serves_too_and_a_handle_survives_the_loss_of_the_first(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    pair = make_cluster("taskmanager.count=0", "high-availability.lease=5s", masters=2)
    first, second = RestClient.of(pair), RestClient.of(pair, "rest-1")
    assert first.url != second.url
    await_value(lambda: sum(name.startswith("rest") for name in pair.leaders().values()) == 1)
    job_id = second.submit(b"print('waits for a worker')\n", "waits.py")
    await_value(lambda: line_of(first, job_id))
    handle = connect(f"{first.url},{second.url}", token=first.token)
    job = handle.submit(write_job(tmp_path, "print('waits for a worker')\n"))
    assert len({process.name for process in handle.client.status().processes}) >= 8
    os.kill(pair.pid_of("master"), signal.SIGKILL)
    assert not job.status.is_terminal

    def look() -> Any:
        reply = second.ask("GET", f"/v1/jobs/{job_id}")
        assert reply.status in (200, 503), reply.body
        return reply.status == 200 and reply.json["state"] in ("CREATED", "RUNNING")

    await_value(look)
    await_value(lambda: pair.leaders().get("rest") == "rest-1")
    await_value(look)
    assert second.ask("PATCH", f"/v1/jobs/{job_id}").status == 202
    await_value(lambda: line_of(second, job_id).get("state") == "CANCELED")
    await_value(lambda: pair.leaders().get("dispatcher") == "dispatcher-1")
    assert not job.status.is_terminal
    assert job.cancel().value == "CANCELED"
    handle.close()
