"""Spark's event logs of a real cluster's drivers, and its own History Server behind the proxy.

The cluster's driver is killed once, so that there are the logs of a lost driver and of a running one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from runtime.environment.directory import ClusterDirectory
from runtime.spark.driver.event_logs import EventLog, find, note_driver, tidy
from runtime.spark.driver.ui import encoded
from runtime.spark.history_server import HistoryServer
from runtime.spark.process import start_time
from tests.cluster_harness import Cluster, await_value, paths_below, started
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

SCRIPT = """\
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.range(1000).groupBy((F.col("id") % 7).alias("k")).count().collect()
print(len(rows), spark.sparkContext.applicationId)
"""
PIPELINE = """\
from understudy import Pipeline


def rows(ctx):
    return ctx.spark.range(1000)


def total(ctx, rows):
    print(rows.selectExpr("sum(id) AS total").first().total)


def pipeline(argv):
    made = Pipeline("totals")
    made.source("rows", rows).sink("total", total)
    return made
"""
STREAM = """\
import sys
from pyspark.sql import SparkSession

rows = SparkSession.builder.getOrCreate().readStream.text(f"{sys.argv[1]}/in")
sink = rows.writeStream.queryName("rows").trigger(availableNow=True).option("path", f"{sys.argv[1]}/out")
sink.option("checkpointLocation", f"{sys.argv[1]}/live").start().awaitTermination()
"""
BEGAN_MS = 1_700_000_000_000
"""When applications began whose logs are made up: Spark lists none from before 2010."""


@dataclass
class History:
    """A cluster whose first driver was killed, and `understudy history-server`.

    Args:
        cluster: it has run one job on each driver.
        applications: ids of the killed driver's application, and of the running one's.
        tags: the tags of the Spark jobs of both.
        port: of the proxy.
        server: process of the command.
        link: path and query of the printed link.
    """

    cluster: Cluster
    applications: tuple[str, str]
    tags: tuple[str, str]
    port: int
    server: int
    link: str

    @property
    def jvm(self) -> psutil.Process:
        """The process of Spark's History Server."""
        (child,) = psutil.Process(self.server).children()
        return child

    @property
    def own_port(self) -> int:
        """The port of Spark's History Server itself."""
        (listening,) = [each for each in self.jvm.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"
        return int(listening.laddr.port)

    def get(self, path: str, *, port: int | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Request a page; returns status, headers and text."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            heads = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, heads, answer.read().decode()
        finally:
            connection.close()

    def page(self, path: str) -> str:
        """Request a page with the cluster's token."""
        token = (self.cluster.directory / "rest-token").read_text().strip()
        status, _, text = self.get(path, Authorization=f"Bearer {token}")
        assert status == 200, (path, text)
        return text

    def applications_listed(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each["attempts"][0] for each in json.loads(self.page("/api/v1/applications"))}


def run_job(cluster: Cluster, directory: Path) -> tuple[str, str]:
    """Run a job while no History Server runs; returns its Spark application, and the tag of its Spark jobs."""
    job_id = cluster.submit(write_job(directory, SCRIPT))
    job = cluster.await_status(job_id, "FINISHED")
    (attempt,) = job["tasks"][0]["attempts"]
    application = attempt["spark"]["application"]
    assert cluster.run("job", "logs", job_id).stdout == f"7 {application}\n"
    shown = cluster.run("job", "info", job_id).stdout
    assert re.search(rf"^Spark:? +{application}$", shown, re.MULTILINE), shown
    assert "run `understudy history-server -D " in shown
    return application, attempt["spark"]["tag"]


def driver_of(cluster: Cluster) -> int:
    """The process of the cluster's Spark driver; 0 while there is none."""
    try:
        return int(json.loads((cluster.directory / "tm-0" / "spark" / "driver.json").read_text())["pid"])
    except FileNotFoundError:
        return 0


def await_logged(cluster: Cluster, application: str, tag: str) -> None:
    """Wait until Spark has written down all of its jobs, among them some with a tag; it does so a moment later."""
    directory = cluster.directory / "spark-events" / f"eventlog_v2_{application}"

    def look() -> bool:
        text = "".join(path.read_text() for path in directory.glob("events_*"))
        begun, ended = (text.count(f'"Event":"SparkListenerJob{what}"') for what in ("Start", "End"))
        return tag in text and begun == ended > 0

    await_value(look)


def await_new_driver(cluster: Cluster, killed: int) -> None:
    await_value(lambda: driver_of(cluster) not in (0, killed))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("history")
    # as text, to look for secrets in it
    for cluster in started(directory / "c", "spark.eventLog.compress=false"):
        lost, first = run_job(cluster, directory)
        await_logged(cluster, lost, first)
        killed = driver_of(cluster)
        os.kill(killed, signal.SIGKILL)
        await_new_driver(cluster, killed)
        running, second = run_job(cluster, directory)
        await_logged(cluster, running, second)
        assert lost != running
        server = subprocess.Popen(
            cluster.command("history-server", "--port", "0"), stdout=subprocess.PIPE, text=True, cwd=cluster.tree
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.fullmatch(r"Spark's history: http://127\.0\.0\.1:(\d+)(/login\?code=\S+)\n", line)
            assert found is not None, line
            made = History(cluster, (lost, running), (first, second), int(found[1]), server.pid, found[2])
            jvm = made.jvm
            yield made
            server.terminate()
            assert server.wait(PATIENCE_S) == 0
            assert not jvm.is_running(), "the History Server has ended with its command"
        finally:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
    # A driver that a busy machine does not let end within 10 s is killed, and its log stays open.
    logs = [path for path in (cluster.directory / "log").iterdir() if path.is_file()]
    killed_at_stop = re.compile(r"the Spark driver \d+ did not end within")
    was_killed = any(killed_at_stop.search(path.read_text(errors="replace")) for path in logs)
    log = cluster.directory / "spark-events" / f"eventlog_v2_{running}"
    assert (log / f"appstatus_{running}").exists() is not was_killed


def test_each_driver_has_a_private_event_log(history: History) -> None:
    directory = history.cluster.directory / "spark-events"

    def log(application: str) -> EventLog:
        (found,) = [log for log in find(directory) if log.application == application]
        return found

    lost, running = history.applications
    assert (log(running).is_open, log(running).has_driver, log(running).size > 0) == (True, True, True)
    assert (log(lost).is_open, log(lost).has_driver) == (True, False)
    for path in (directory, *paths_below(directory)):
        with contextlib.suppress(FileNotFoundError):  # the running driver has given it another name
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_no_secret_is_in_an_event_log(history: History) -> None:
    root = history.cluster.directory
    driver = json.loads((root / "tm-0" / "spark" / "driver.json").read_text())
    secrets = [(root / name).read_text().strip() for name in ("secret", "rest-token")]
    secrets += [driver["gateway_secret"], driver["connect_token"], encoded(bytes.fromhex(driver["ui_key"]))]
    files = list((root / "spark-events").rglob("events_*"))
    assert any(b"SparkListenerEnvironmentUpdate" in path.read_bytes() for path in files)
    for path in files:
        assert not [secret for secret in secrets if secret.encode() in path.read_bytes()], path


def test_the_applications_of_running_and_killed_drivers_are_shown_with_their_jobs(history: History) -> None:
    lost, running = history.applications

    def listed() -> tuple[bool, ...]:
        found = history.applications_listed()
        return tuple(found[application]["completed"] for application in (lost, running) if application in found)

    await_value(lambda: listed() == (False, False))  # for Spark, a killed driver has not ended
    for application, tag in zip(history.applications, history.tags, strict=True):
        jobs = json.loads(history.page(f"/api/v1/applications/{application}/jobs"))
        own = [job for job in jobs if tag in job["jobTags"]]
        assert [job["status"] for job in own] == ["SUCCEEDED"] * len(own)
        assert own, "the job's Spark jobs bear the tag that its record names"
        page = history.page(f"/history/{application}/jobs/")
        assert "Spark Jobs" in page
        assert "collect at " in page
    for path in ("/", "/static/webui.js", f"/history/{lost}/SQL/", f"/history/{lost}/stages/"):
        history.page(path)


def test_a_pipelines_spark_jobs_of_a_running_driver_are_shown_by_their_tag(history: History, tmp_path: Path) -> None:
    job_id = history.cluster.submit(write_job(tmp_path, PIPELINE))
    (attempt,) = history.cluster.await_status(job_id, "FINISHED")["tasks"][0]["attempts"]
    application, tag = attempt["spark"]["application"], attempt["spark"]["tag"]
    assert application == history.applications[1]

    def shown() -> list[str]:
        jobs = json.loads(history.page(f"/api/v1/applications/{application}/jobs"))
        return [job["status"] for job in jobs if any(each.startswith(tag) for each in job["jobTags"])]

    assert set(await_value(shown)) <= {"SUCCEEDED", "RUNNING"}


def test_each_attempt_leads_to_its_own_spark_jobs_and_sql_executions(history: History) -> None:
    jobs = {job["job_id"]: history.cluster.job(job["job_id"]) for job in history.cluster.json("job", "list")}
    rest = RestClient.of(history.cluster)
    for application, tag in zip(history.applications, history.tags, strict=True):
        (job_id,) = [key for key, job in jobs.items() if job["tasks"][0]["attempts"][0]["spark"]["tag"] == tag]
        told = rest.get(f"/jobs/{job_id}/spark")
        (attempt,) = told["attempts"]
        assert told["history-server"]["url"] == f"http://127.0.0.1:{history.port}"
        assert (attempt["application"], attempt["tag"], attempt["note"]) == (application, tag, "")
        assert attempt["url"] in history.cluster.run("job", "info", job_id).stdout
        parts = urlsplit(attempt["url"])
        assert parts.netloc == f"127.0.0.1:{history.port}"
        page = history.page(f"{parts.path}?{parts.query}")
        work = json.loads(history.page(f"/attempt.json?{parts.query}"))
        all_jobs = json.loads(history.page(f"/api/v1/applications/{application}/jobs"))
        own = sorted((job["jobId"] for job in all_jobs if tag in job["jobTags"]), reverse=True)
        assert [row["id"] for row in work["jobs"]] == own != []
        (execution,) = work["sql-executions"]
        assert set(execution["jobs"]) <= set(own)
        own_stages = {stage for row in work["jobs"] for stage in row["stages"]}
        assert {row["id"] for row in work["stages"]} <= own_stages
        assert work["stages"], "Spark's own API gives the times of stages"
        assert "Slowest stage: " in page
        for row in (*work["jobs"], execution):
            assert row["path"] in page
            assert f"Details for {'Query' if row is execution else 'Job'} {row['id']}" in history.page(row["path"])


def ui_port(history: History) -> int:
    """The port of the UI of the running driver."""
    driver = json.loads((history.cluster.directory / "tm-0" / "spark" / "driver.json").read_text())
    assert driver["application"] == history.applications[1]
    return int(driver["ui_port"])


def test_the_ui_of_a_running_driver_is_shown_below_its_application(history: History) -> None:
    lost, running = history.applications
    base = f"/live/{running}"
    for page in ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/", "connect/"):
        text = history.page(f"{base}/{page}")
        links = set(re.findall(r'(?:href|src)="(/[^"]*)"', text))
        assert links, page
        assert {link for link in links if not link.startswith(f"{base}/")} == set(), page
    driver = json.loads((history.cluster.directory / "tm-0" / "spark" / "driver.json").read_text())
    for path in (f"{base}/environment/", f"{base}/api/v1/applications/{running}/environment"):
        assert encoded(bytes.fromhex(driver["ui_key"])) not in history.page(path)
    assert "JWSFilter.param.secretKey" in history.page(path), "Spark masks its value"
    assert "Thread dump" in history.page(f"{base}/executors/threadDump/?executorId=driver")
    assert history.page(f"{base}/static/webui.js")
    (own,) = json.loads(history.page(f"{base}/api/v1/applications"))
    assert (own["id"], own["attempts"][0]["completed"]) == (running, False)
    assert "collect at " in history.page(f"{base}/jobs/")
    token = (history.cluster.directory / "rest-token").read_text().strip()
    for path, target in ((base, f"{base}/jobs/"), (f"{base}/", f"{base}/jobs/")):
        status, heads, _ = history.get(path, Authorization=f"Bearer {token}")
        assert (status, heads["location"]) == (302, target)
    status, _, text = history.get(f"/live/{lost}/jobs/", Authorization=f"Bearer {token}")
    assert (status, "it has ended" in text) == (404, True)


def test_who_has_shown_nothing_sees_nothing_of_a_running_driver(history: History) -> None:
    application, port = history.applications[1], ui_port(history)
    token = (history.cluster.directory / "rest-token").read_text().strip()
    shown: tuple[dict[str, str], ...] = ({}, {"Authorization": "Bearer e30.e30."}, {"Authorization": f"Bearer {token}"})
    for path in ("/", "/jobs/", "/environment/", "/api/v1/applications", "/metrics/json/", "/static/webui.js", "/x"):
        for headers in shown:
            status, _, text = history.get(path, port=port, **headers)
            assert status == 403, (path, headers)
            assert application not in text
        assert history.get(f"/live/{application}{path}")[0] == 401, path
    (driver,) = {driver_of(history.cluster)}
    listening = [each for each in psutil.Process(driver).net_connections("tcp") if each.laddr.port == port]
    assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} == {"127.0.0.1"}


def test_a_streaming_query_leads_to_sparks_own_page_of_it(history: History, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a row\n")
    job_id = history.cluster.submit(write_job(tmp_path, STREAM), str(tmp_path))
    (attempt,) = history.cluster.await_status(job_id, "FINISHED")["tasks"][0]["attempts"]
    application, tag = attempt["spark"]["application"], attempt["spark"]["tag"]
    work = json.loads(history.page(f"/attempt.json?application={application}&tag={tag}"))
    (query,) = work["queries"]
    assert (query["name"], query["batch"]) == ("rows", "0")
    page = history.page(query["path"])
    assert "Streaming Query Statistics" in page
    assert query["run-id"] in page


def test_a_users_token_is_checked_by_the_clusters_own_store(history: History) -> None:
    cluster, application = history.cluster, history.applications[1]
    tokens = {}
    for name, role in (("eve", "viewer"), ("ada", "user"), ("olga", "operator")):
        cluster.run("user", "add", name, f"--role={role}")
        tokens[name] = cluster.run("token", "add", name, "--name=laptop").stdout.strip()
    short = cluster.run("token", "add", "olga", "--name=short", "--expires=1s").stdout.strip()

    def seen(token: str, path: str = f"/history/{application}/jobs/") -> int:
        return history.get(path, Authorization=f"Bearer {token}")[0]

    try:
        paths = ("/", f"/history/{application}/jobs/", f"/live/{application}/jobs/", "/api/v1/applications")
        for path in (*paths, "/attempt?application=a&tag=t"):
            assert seen(tokens["eve"], path) == seen(tokens["ada"], path) == 403, path
            assert seen(tokens["olga"], path) in (200, 302, 404), path  # 302: Spark has read the log
        assert seen(tokens["olga"][:-1] + ("0" if tokens["olga"][-1] != "0" else "1")) == 401
        await_value(lambda: seen(short) == 401)
        assert history.get("/")[2].count("your token") == 1, "the form asks for a user's token"
        token_id = tokens["olga"].split("_")[1]
        cluster.run("token", "revoke", token_id)
        await_value(lambda: seen(tokens["olga"]) == 401)
    finally:
        for name in tokens:
            cluster.run("user", "remove", name)


def test_a_browser_logs_in_once_by_the_link(history: History) -> None:
    status, heads, _ = history.get(history.link)
    assert (status, heads["location"]) == (303, "/")
    cookie = heads["set-cookie"].partition(";")[0]
    status, heads, _ = history.get(f"/history/{history.applications[0]}", Cookie=cookie)
    assert status in (301, 302)
    assert heads["location"].endswith(f"/history/{history.applications[0]}/")
    assert history.get("/", Cookie=cookie)[0] == 200
    assert history.get(history.link)[0] == 401, "the link works once"


def test_who_has_shown_nothing_sees_nothing_at_either_port(history: History) -> None:
    application = history.applications[0]
    paths = ("/", "/login", "/static/webui.js", "/api/v1/applications", f"/history/{application}/jobs/", "/nothing")
    paths += (
        f"/api/v1/applications/{application}/logs",
        f"/history/{application}/static/webui.js",
        "/logPage/?logType=",
    )
    shown: tuple[dict[str, str], ...] = ({}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer e30.e30."})
    unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1bmRlcnN0dWR5In0."  # {"alg":"none"}
    shown += ({"Authorization": f"Bearer {unsigned}"}, {"Cookie": f"understudy-history-{history.port}=x"})
    for path in paths:
        for headers in shown:
            status, _, text = history.get(path, **headers)
            assert status == 401, (path, headers)
            assert application not in text
            status, _, text = history.get(path, port=history.own_port, **headers)
            assert status in (401, 403), (path, headers)
            assert application not in text.replace(path, ""), "Jetty repeats what it was asked for"
    token = (history.cluster.directory / "rest-token").read_text().strip()
    assert history.get("/", port=history.own_port, Authorization=f"Bearer {token}")[0] == 403
    evil = {"Authorization": f"Bearer {token}", "Host": "evil.example"}
    assert history.get("/", **evil)[0] == 403


def test_the_key_is_on_no_command_line_and_in_a_private_file(history: History) -> None:
    directory = Path(history.jvm.cwd())
    settings = directory / "history.properties"
    (key,) = re.findall(
        r"^spark\.org\.apache\.spark\.ui\.JWSFilter\.param\.secretKey=(\S+)$", settings.read_text(), re.M
    )
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, settings)] == [0o700, 0o600]
    for pid in (history.server, history.jvm.pid):
        for name in ("cmdline", "environ"):
            assert key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    for path in (history.cluster.directory / "log").iterdir():
        assert key.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_it_shows_a_cluster_that_was_stopped_and_ends_with_ctrl_c(own_cluster: Cluster) -> None:
    own_cluster = replace(own_cluster, settings=("taskmanager.count=0",))
    own_cluster.run("start")
    own_cluster.run("stop")
    application = "ended"
    log = own_cluster.directory / "spark-events" / f"eventlog_v2_{application}"
    log.mkdir(parents=True)
    (log / f"appstatus_{application}").touch()
    end = json.dumps({"Event": "SparkListenerApplicationEnd", "Timestamp": BEGAN_MS + 1000}, separators=(",", ":"))
    (log / f"events_1_{application}").write_text(f"{events(application, 1)}{end}\n")
    server = subprocess.Popen(
        own_cluster.command("history-server", "--port", "0"), stdout=subprocess.PIPE, text=True, cwd=own_cluster.tree
    )
    try:
        assert server.stdout is not None
        port, link = re.findall(r":(\d+)(/login\S+)", server.stdout.readline())[0]
        made = History(own_cluster, (application, ""), ("", ""), int(port), server.pid, link)
        cookie = made.get(link)[1]["set-cookie"].partition(";")[0]
        text = await_value(
            lambda: found if application in (found := made.get("/api/v1/applications", Cookie=cookie)[2]) else None
        )
        assert json.loads(text)[0]["attempts"][0]["completed"] is True
        jvm = made.jvm
        found = ClusterDirectory(own_cluster.directory).history_server_claim().living()
        assert found is not None
        assert (found[0].pid, found[1]) == (server.pid, f"http://127.0.0.1:{port}")
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE_S) == 130
        assert not jvm.is_running()
        assert ClusterDirectory(own_cluster.directory).history_server_claim().living() is None
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


async def test_a_log_that_was_made_shorter_is_read_and_one_with_a_gap_is_not(tmp_path: Path) -> None:
    logs, work = tmp_path / "logs", tmp_path / "work"
    work.mkdir(mode=0o700)
    started = start_time(os.getpid())
    assert started is not None
    for application in ("shorter", "gap"):
        log = logs / f"eventlog_v2_{application}"
        log.mkdir(parents=True)
        (log / f"appstatus_{application}.inprogress").touch()
        for number in range(1, 6):
            (log / f"events_{number}_{application}").write_text(events(application, number))
        note_driver(logs, application, os.getpid(), started)
    (logs / "eventlog_v2_gap" / "events_2_gap").unlink()
    parts = [part for each in find(logs) if each.application == "shorter" for part in each.parts]
    others = sum(part.size for each in find(logs) if each.application == "gap" for part in each.parts)
    tidy(logs, 0.0, 1.0, others + sum(part.size for part in parts[:1] + parts[3:]))
    files = sorted(path.name for path in (logs / "eventlog_v2_shorter").glob("events_*"))
    assert files == ["events_3_shorter.compact", "events_4_shorter", "events_5_shorter"]

    server = await HistoryServer.start(logs.as_uri(), work, work / "server.log", {}, None, PATIENCE_S)
    try:
        jobs = await asyncio.to_thread(await_value, lambda: ask(server, "/applications/shorter/jobs"))
        assert sorted(job["jobId"] for job in jobs) == [1, 4, 5]
        assert await asyncio.to_thread(ask, server, "/applications/gap/jobs") is None
    finally:
        server.stop()


def events(application: str, number: int) -> str:
    """The events of a part of a log: one Spark job, whose id is the part's number."""
    start = {"App Name": application, "App ID": application, "Timestamp": BEGAN_MS, "User": "u"}
    lines = [{"Event": "SparkListenerApplicationStart", **start}] if number == 1 else []
    job = {"Job ID": number, "Submission Time": number, "Stage Infos": [], "Stage IDs": [], "Properties": {}}
    return "".join(
        json.dumps(line, separators=(",", ":")) + "\n" for line in [*lines, {"Event": "SparkListenerJobStart", **job}]
    )


def ask(server: HistoryServer, path: str) -> Any:
    """The answer of a History Server's own API; None if it has none, as at its start."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {server.token()}"})
        answer = connection.getresponse()
        data = answer.read()
        return json.loads(data) if answer.status == 200 else None
    finally:
        connection.close()
