"""Two users of a real cluster with a file of queues: limits, refusals, order, and what the waiting ones wait for."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import ROOT, Cluster, await_value
from tests.command_server import COMMANDS
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

GATED = """\
import sys, time
from pathlib import Path

Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
LIMITS = """\
users:
  ada: {slots: 1, waiting-jobs: 1}
"""
ORDER = """\
queues:
  urgent: {priority: 1, users: [ada]}
  etl: {groups: [data], running-jobs: 1}
groups:
  data: {members: [ada, bob]}
users:
  eve: {submissions-per-minute: 1}
"""


class People:
    """A cluster with one TaskExecutor of two slots, and the users ada, bob and eve, who use it by HTTP."""

    def __init__(self, cluster: Cluster, file: Path, directory: Path) -> None:
        self.cluster = cluster
        self.file = file
        self.directory = directory
        self.rest = RestClient.of(cluster)
        self.script = write_job(directory, GATED)
        self.tokens = {}
        for user in ("ada", "bob", "eve"):
            cluster.run("user", "add", user, "--role=user")
            self.tokens[user] = cluster.json("token", "add", user)["token"]

    def understudy(self, user: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as a user, who has nothing but the token and the URL."""
        own = {name: text for name, text in os.environ.items() if not name.startswith("UNDERSTUDY_")}
        home = self.directory / f"home-of-{user}"
        home.mkdir(exist_ok=True)
        token = {"UNDERSTUDY_URL": self.rest.url, "UNDERSTUDY_TOKEN": self.tokens[user]}
        done = COMMANDS.run(arguments, cwd=ROOT, env={**own, "HOME": str(home), **token}, timeout=PATIENCE_S)
        assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.cluster.logs()}"
        return done

    def run(self, user: str, name: str, *options: str) -> str:
        """Submit a job that runs until `open`; returns its id."""
        command = ("job", "run", "--detach", "--name", name, *options, str(self.script), "--", str(self.gate(name)))
        return self.understudy(user, *command).stdout.strip()

    def gate(self, name: str) -> Path:
        return self.directory / name

    def open(self, *names: str) -> None:
        for name in names:
            self.gate(name).touch()

    def await_begun(self, name: str) -> None:
        await_value(self.directory.joinpath(f"{name}.began").exists)

    def has_begun(self, name: str) -> bool:
        return self.directory.joinpath(f"{name}.began").exists()

    def await_reason(self, job_id: str) -> str:
        """Wait until `job list` says what a job waits for; return that."""

        def look() -> str:
            with self.cluster.client() as client:
                return next((job.waiting_for for job in client.list_jobs() if job.job_id == job_id), "")

        found: str = await_value(look)
        return found

    def write(self, text: str) -> None:
        """Change the file in one step: nobody reads half of it."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def use(self, text: str, *queues: str) -> None:
        """Change the file, and wait until its queues are in use."""
        self.write(text)
        await_value(lambda: [each["name"] for each in self.queues()["queues"]] == list(queues))

    def queues(self) -> Any:
        return self.cluster.json("queue", "list")

    def end(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.cluster.await_status(job_id, "FINISHED")


@pytest.fixture
def people(make_cluster: Callable[..., Cluster], tmp_path: Path) -> People:
    file = tmp_path / "queues.yaml"
    file.write_text(LIMITS)
    return People(make_cluster(f"queues.file={file}", "security.users.isolation=false"), file, tmp_path)


def test_limits_hold_refusals_say_what_to_do_and_urgent_jobs_come_first(people: People) -> None:
    # ada may hold one slot: her second job waits although the other slot is free, and her third is refused.
    first = people.run("ada", "a-1")
    people.await_begun("a-1")
    second = people.run("ada", "a-2")
    reason = people.await_reason(second)
    assert reason == "1 slot for task 'a-2', 1st in queue default; user ada uses 1 of 1 slots"
    shown = people.understudy("bob", "job", "list").stdout
    assert "WAITS FOR" in shown
    assert reason in shown
    assert f"waits for {reason}" in people.understudy("ada", "job", "info", second).stdout
    (line,) = [job for job in people.rest.get("/v1/jobs/overview")["jobs"] if job["jid"] == second]
    assert line["waiting-for"] == reason
    (queue,) = people.queues()["queues"]
    assert (queue["slots"], queue["waiting"], [user["user"] for user in queue["users"]]) == (1, 1, ["ada"])
    assert reason in people.understudy("bob", "queue", "list").stdout
    told = replace(people.rest, token=people.tokens["bob"]).get("/v1/queues")
    assert [(each["job_id"], each["place"], each["reason"]) for each in told["waiting"]] == [(second, 1, reason)]
    assert (told["running"], told["has_file"], told["problem"]) == ([first], True, "")

    refused = people.understudy("ada", "job", "run", "--detach", str(people.script), "--", "x", check=False)
    problem = "user ada has 1 of 1 waiting jobs; submit again in 10 s"
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert problem in refused.stderr
    assert refused.stderr.count("\n") == 1
    ada = replace(people.rest, token=people.tokens["ada"])
    reply = ada.post_form("/v1/scripts", ("script", "job.py", GATED.encode()))
    assert (reply.status, reply.headers["retry-after"]) == (429, "10")
    assert problem in json.loads(reply.body)["errors"][0]

    third = people.run("bob", "b-1")
    people.await_begun("b-1")
    assert not people.has_begun("a-2"), "a slot is free for it, and it may not have it"
    people.open("a-1")
    people.await_begun("a-2")
    people.open("a-2", "b-1")
    people.end(first, second, third)

    # The file changes: a job of the urgent queue overtakes those that wait in the other one.
    people.use(ORDER, "urgent", "etl", "default")
    holders = [people.run("ada", name, "--queue", "default") for name in ("h-1", "h-2")]
    for name in ("h-1", "h-2"):
        people.await_begun(name)
    etl = people.run("bob", "e-1")
    assert people.await_reason(etl).startswith("1 slot for task 'e-1', 1st in queue etl; the cluster has 2 slot(s)")
    urgent = people.run("ada", "u-1")
    assert people.await_reason(urgent).startswith("1 slot for task 'u-1', 1st in queue urgent; ")
    assert [each["job_id"] for each in people.queues()["waiting"]] == [urgent, etl]
    people.open("h-1")
    people.await_begun("u-1")
    assert not people.has_begun("e-1")

    for options, words in (
        (("--queue", "urgent"), "'urgent' may not be used by user bob; job.queue can be etl, default"),
        (("--queue", "nowhere"), "'nowhere' does not exist; job.queue can be etl, default"),
    ):
        refused = people.understudy("bob", "job", "run", "--detach", *options, str(people.script), check=False)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr

    eve = replace(people.rest, token=people.tokens["eve"])
    replies = [eve.post_form("/v1/scripts", ("script", "job.py", b"pass")) for _ in range(2)]
    assert [reply.status for reply in replies] == [202, 429]
    assert "user eve has submitted 1 of 1 jobs per minute; submit again in " in replies[1].json["errors"][0]
    assert 1 <= int(replies[1].headers["retry-after"]) <= 60

    people.open("u-1", "h-2", "e-1")
    people.end(*holders, urgent, etl, replies[0].json["jobid"])

    # A wrong file leaves the last one in use, and says so.
    people.write("queues: {urgent: {slots: 0}}")
    problem = await_value(lambda: people.queues()["problem"])
    assert "queues.urgent.slots: '0' must be a whole number from 1" in problem
    assert "warning: the file of queues is not used as it is" in people.understudy("bob", "queue", "list").stderr
    checked = people.understudy("bob", "queue", "check", str(people.file), check=False)
    assert checked.returncode == 1
    assert "must be a whole number from 1" in checked.stderr


def test_an_upload_over_the_limit_of_its_user_stores_nothing(people: People) -> None:
    people.write("each-user: {blob-mb: 1}")
    blobs = people.cluster.directory / "blob"
    large = people.directory / "large.zip"
    large.write_bytes(bytes(2 << 20))

    def kept() -> list[Path]:
        return [path for path in blobs.rglob("*") if path.is_file() and path.name not in ("lock", "fence")]

    def refusal() -> str:
        command = ("job", "run", "--detach", "--name", "large", "--py-files", str(large), str(people.script), "--", "x")
        return people.understudy("ada", *command, check=False).stderr

    # The Dispatcher reads the file of limits again within a second.
    await_value(lambda: "may hold 1 MB of blobs" in refusal())
    before = kept()
    told = r"error: job 'large' was not accepted: its files have [3-9] MB, and user ada may hold 1 MB of blobs;"
    said = refusal()
    assert re.search(told, said)
    assert "large.zip (2.0 MB)" in said, said
    ada = replace(people.rest, token=people.tokens["ada"])
    reply = ada.post_form("/v1/scripts", ("script", "job.py", GATED.encode()), ("py-file", "l.zip", large.read_bytes()))
    assert reply.status == 400
    assert kept() == before
