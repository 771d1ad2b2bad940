"""The REST API over the history of clusters: what it serves of made-up archives, and that it changes nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from runtime.cluster.history_commands import open_histories
from runtime.history.figures import FigureFile, Sample
from runtime.ids import JobID
from runtime.job_logs import KeptLog, logs_owner
from runtime.jobgraph.codec import encode
from runtime.protocol.execution_state import JobStatus
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.handlers import ROUTES
from runtime.rest.history import SERVED, history_application
from runtime.users.audit import AuditEntry, AuditLog
from runtime.users.identities import Role
from tests.unit.test_history import KEY, job, write
from tests.unit.test_rest_app import TOKEN, Answer, Site, filled
from tests.unit.test_rest_messages import FIGURES, HISTORY, ID, READ, graph
from tests.unit.test_rest_roles import Users

SUSPENDED = JobID("9" * 32)
NOW_MS = 1_795_000_000_000


class HistorySite(Site):
    """Asks the application of a history server."""

    def __init__(self, *roots: Path, identities: KnownIdentities | None = None) -> None:
        configuration = Configuration.from_dict({"cluster.runtime-dir": str(roots[0]), "web.refresh-interval": "1 ms"})
        self.histories = open_histories(configuration, roots)
        self.app = history_application(
            self.histories,
            configuration,
            "http://localhost:8082",
            asyncio.Event(),
            TOKEN,
            identities or KnownIdentities(nobody),
        )

    async def get(self, target: str) -> Any:
        found = await self.ask("GET", target)
        assert found.status == 200, found.body
        return found.json


def make_cluster(root: Path) -> Path:
    """An archive with a finished job that streamed, one that failed, and one that the cluster did not end."""
    logs = (KeptLog("stdout", 14, 14, KEY),)
    finished = graph(JobStatus.FINISHED, query_histories=(HISTORY,), checkpoints=FIGURES)
    task = finished.tasks[0]
    attempts = (replace(task.attempts[0], logs=logs), *task.attempts[1:])
    finished = replace(finished, tasks=(replace(task, attempts=attempts), *finished.tasks[1:]))
    write(root / "archive" / f"{ID}.job", encode(finished))
    write(root / "history" / "jobs" / f"{job(2).job_id}.job", encode(job(2, JobStatus.FAILED)))
    running = graph(JobStatus.RUNNING, job_id=SUSPENDED)
    write(root / "history" / "running" / f"{SUSPENDED}.job", encode(running), NOW_MS)
    write(root / "blob" / f"job_{logs_owner(ID)}" / f"blob_{KEY}", b"the whole log\n")
    for number in range(3):
        FigureFile(root / "history").append(Sample(NOW_MS + 1_000 * number, slots=4, free_slots=1, rows={ID: 2.5}))
        AuditLog(root / "audit" / "audit.jsonl").write(
            AuditEntry(NOW_MS + number, "ada", "user", "", "PATCH /jobs/{jobid}", ID, "127.0.0.1:5", "done", 202)
        )
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_cluster(tmp_path / "nightly")


@pytest.fixture
def site(root: Path) -> HistorySite:
    return HistorySite(root)


async def test_jobs_of_the_archive_and_of_the_history_are_listed(site: HistorySite) -> None:
    lines = (await site.get("/jobs/overview"))["jobs"]
    assert {line["jid"]: line["state"] for line in lines} == {
        ID: "FINISHED",
        job(2).job_id: "FAILED",
        SUSPENDED: "SUSPENDED",
    }
    counts = await site.get("/overview")
    assert (counts["jobs-running"], counts["jobs-finished"], counts["jobs-failed"]) == (0, 1, 1)
    assert counts["taskmanagers"] == counts["slots-total"] == 0


async def test_an_unfinished_job_is_never_shown_as_running(site: HistorySite) -> None:
    told = await site.get(f"/jobs/{SUSPENDED}")
    assert (told["state"], told["end-time"]) == ("SUSPENDED", NOW_MS)
    assert {vertex["status"] for vertex in told["vertices"]}.isdisjoint({"RUNNING", "SCHEDULED", "DEPLOYING"})
    assert await site.get(f"/jobs/{SUSPENDED}/status") == {"status": "SUSPENDED"}
    result = await site.get(f"/jobs/{SUSPENDED}/execution-result")
    assert result["status"] == {"id": "COMPLETED"}
    assert result["job-execution-result"]["application-status"] == "UNKNOWN"
    for path in ("/jobs/overview", f"/jobs/{SUSPENDED}", f"/jobs/{SUSPENDED}/plan"):
        assert '"RUNNING"' not in json.dumps(await site.get(path)).replace('"RUNNING": ', "")


async def test_every_served_route_answers(site: HistorySite) -> None:
    paths = {route.path for route in ROUTES if route.method == "GET"}
    assert SERVED - {"/openapi.json"} <= paths
    (log,) = (await site.get(f"/jobs/{ID}/logs"))["logs"]
    for path in sorted(SERVED):
        answer = await site.ask("GET", filled(path.replace("{attemptid}", log["attempt-id"])))
        assert answer.status == 200, f"{path}: {answer.body!r}"


async def test_attempts_checkpoints_queries_and_logs_stay(site: HistorySite) -> None:
    told = await site.get(f"/jobs/{ID}/vertices/{READ}/subtasks/0")
    assert told["attempt"] == 1
    assert (await site.get(f"/jobs/{ID}/checkpoints"))["counts"]["completed"] > 0
    assert (await site.get(f"/jobs/{ID}/queries"))["queries"][0]["batches"] == [0, 1]
    (first, *_) = [log for log in (await site.get(f"/jobs/{ID}/logs"))["logs"] if log["attempt"] == 0]
    answer = await site.ask("GET", f"/jobs/{ID}/logs/{first['attempt-id']}/stdout")
    assert (answer.status, answer.body, answer.headers["x-log-complete"]) == (200, b"the whole log\n", "true")


async def test_a_log_that_is_gone_is_one_readable_line(site: HistorySite, root: Path) -> None:
    (root / "blob" / f"job_{logs_owner(ID)}" / f"blob_{KEY}").unlink()
    attempt = next(log for log in (await site.get(f"/jobs/{ID}/logs"))["logs"] if log["attempt"] == 0)
    answer = await site.ask("GET", f"/jobs/{ID}/logs/{attempt['attempt-id']}/stdout")
    assert answer.status == 404
    assert "not in the history any more" in answer.error


async def test_whatever_changes_something_is_refused_with_one_line(site: HistorySite, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    refused = 0
    for route in ROUTES:
        if route.method == "GET" and route.path in SERVED:
            continue
        answer = await site.ask(route.method, filled(route.path), [b"{}"], (b"content-type", route.body.encode()))
        assert answer.status in (404, 405), f"{route.method} {route.path}: {answer.status}"
        if route.method != "GET" or "yarn" in route.path:
            assert answer.status == 405, route.path
        if answer.status == 404 and "there is no such path" in answer.error:
            continue
        assert "history of nightly" in answer.error, route.path
        assert "\n" not in answer.error
        refused += 1
    assert refused > 50
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


async def test_each_request_needs_the_token(site: HistorySite) -> None:
    for path in SERVED:
        assert (await site.ask("GET", filled(path), token=b"wrong")).status == 401
    assert (await site.ask("DELETE", "/cluster", token=b"wrong")).status == 401


async def test_roles_hold_as_in_the_cluster(root: Path) -> None:
    users = Users()
    site = HistorySite(root, identities=users.known())

    async def status(role: Role, path: str) -> int:
        return (await site.ask("GET", path, token=users.tokens[role])).status

    assert [await status(role, "/audit") for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)] == [403, 403, 200]
    assert [await status(role, "/figures") for role in (Role.METRICS, Role.VIEWER)] == [403, 200]
    (log, *_) = (await site.get(f"/jobs/{ID}/logs"))["logs"]
    path = f"/jobs/{ID}/logs/{log['attempt-id']}/stdout"
    assert await status(Role.USER, path) == 403, "it is the log of another"


async def test_it_says_which_cluster_and_that_it_is_a_history(site: HistorySite, root: Path) -> None:
    told = await site.get("/config")
    assert told["features"]["web-history"] is True
    assert told["features"]["web-cancel"] is False
    assert told["clusters"] == [{"name": "nightly", "directory": str(root), "damaged": []}]


async def test_a_damaged_archive_is_said_and_the_rest_is_shown(site: HistorySite, root: Path) -> None:
    path = write(root / "archive" / f"{job(7).job_id}.job", b"no job")
    assert len((await site.get("/jobs/overview"))["jobs"]) == 3
    (line,) = (await site.get("/config"))["clusters"][0]["damaged"]
    assert str(path) in line
    answer = await site.ask("GET", f"/jobs/{job(7).job_id}")
    assert answer.status == 503
    assert "cannot be read" in answer.error
    assert (await site.ask("GET", f"/jobs/{job(8).job_id}")).status == 404


async def test_figures_are_columns_with_the_rates_of_jobs(site: HistorySite) -> None:
    told = await site.get(f"/figures?since={NOW_MS}&until={NOW_MS + 1_000}")
    assert told["timestamps"] == [NOW_MS, NOW_MS + 1_000]
    assert (told["slots-total"], told["heap-used"]) == ([4, 4], [None, None])
    assert (told["cluster"], told["rows-per-second"]) == ("nightly", [2.5, 2.5])
    assert told["jobs"] == [{"jid": ID, "rows-per-second": [2.5, 2.5]}]
    assert (await site.get(f"/figures?since={NOW_MS}&until={NOW_MS + 9_000}&points=1"))["timestamps"] == [
        NOW_MS + 2_000
    ]
    for query in ("since=x", "until=-1", "points=x"):
        assert (await site.ask("GET", f"/figures?{query}")).status == 400


async def test_audit_lines_are_paged_and_filtered(site: HistorySite) -> None:
    first = await site.get("/audit?limit=2")
    assert [line["at-ms"] for line in first["lines"]] == [NOW_MS + 2, NOW_MS + 1]
    last = await site.get(f"/audit?limit=2&after={first['next']}")
    assert [line["at-ms"] for line in last["lines"]] == [NOW_MS]
    assert last["next"] == ""
    assert (await site.get("/audit?user=bob"))["lines"] == []
    assert len((await site.get(f"/audit?job={ID}&since={NOW_MS + 1}"))["lines"]) == 2
    assert (await site.ask("GET", "/audit?after=1-1")).status == 400


async def test_several_clusters_are_shown_as_one_and_each_by_its_name(tmp_path: Path) -> None:
    roots = [make_cluster(tmp_path / "a" / "nightly"), make_cluster(tmp_path / "b" / "nightly")]
    write(roots[1] / "archive" / f"{job(5).job_id}.job", encode(job(5)))
    site = HistorySite(*roots)
    names = [cluster["name"] for cluster in (await site.get("/config"))["clusters"]]
    assert names == [f"nightly ({root})" for root in roots]
    assert len((await site.get("/jobs/overview"))["jobs"]) == 4, "a job that both have is there once"
    assert (await site.get(f"/jobs/{job(5).job_id}"))["state"] == "FINISHED"
    assert (await site.get(f"/audit?cluster={names[1]}"))["cluster"] == names[1]
    answer: Answer = await site.ask("GET", "/figures?cluster=other")
    assert answer.status == 404
    assert "'other'" in answer.error
