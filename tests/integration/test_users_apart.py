"""Jobs of two users at the same time, and one after the other: never in one Spark driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, await_value
from tests.integration.test_queues import People
from tests.job_files import write_job

# Ada's job leaves what a driver keeps after a job, and has something in it while it runs.
VICTIM = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark._jvm.java.security.Security.setProperty("secret", "of ada")
Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
ATTACK = """\
import sys
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
Path(sys.argv[1]).write_text(str(spark._jvm.java.security.Security.getProperty("secret")))
"""
# The same for pipelines, which share the global temporary views of their driver.
VICTIM_PIPELINE = """\
import time
from pathlib import Path
from runtime.api import Pipeline

def first(ctx):
    gate = ctx.parameters["gate"]
    ctx.spark.range(7).createOrReplaceGlobalTempView("payroll")
    Path(gate + ".began").touch()
    while not Path(gate).exists():
        time.sleep(0.05)
    return ctx.spark.range(1)

def write(ctx, first):
    first.write.mode("overwrite").parquet(ctx.parameters["gate"] + ".out")

def pipeline(argv):
    p = Pipeline("payroll", parameters={"gate": argv[0]})
    p.source("first", first).sink("write", write)
    return p
"""
ATTACK_PIPELINE = """\
from pathlib import Path
from runtime.api import Pipeline

def first(ctx):
    try:
        found = str(ctx.spark.table("global_temp.payroll").count())
    except Exception as error:
        found = "TABLE_OR_VIEW_NOT_FOUND" if "TABLE_OR_VIEW_NOT_FOUND" in str(error) else str(error)
    Path(ctx.parameters["out"]).write_text(found)
    return ctx.spark.range(1)

def write(ctx, first):
    first.write.mode("overwrite").parquet(ctx.parameters["out"] + ".rows")

def pipeline(argv):
    p = Pipeline("attack", parameters={"out": argv[0]})
    p.source("first", first).sink("write", write)
    return p
"""


class Two(People):
    """A cluster without a file of queues and the users ada and bob."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster, directory / "no-file", directory)
        texts = {"victim": VICTIM, "attack": ATTACK, "view": VICTIM_PIPELINE, "look": ATTACK_PIPELINE}
        self.files = {name: write_job(directory, text, f"{name}.py") for name, text in texts.items()}

    def start(self, user: str, file: str, name: str) -> str:
        """Submit a job in a user's name; returns its id."""
        command = ("job", "run", "--detach", "--name", name, str(self.files[file]), "--", str(self.gate(name)))
        return self.understudy(user, *command).stdout.strip()

    def attack(self, file: str, name: str) -> str:
        """Run a job of bob's that looks for what is ada's; returns what it has found."""
        self.end(self.start("bob", file, name))
        return self.gate(name).read_text()

    def drivers(self) -> dict[str, int]:
        """The processes of the Spark drivers, by TaskExecutor."""
        return {each["task_executor"]: each["spark_pid"] for each in self.cluster.json("status")["task_executors"]}

    def place(self, job_id: str) -> str:
        """The TaskExecutor of a job."""
        (name,) = {task["attempts"][-1]["task_executor"] for task in self.cluster.job(job_id)["tasks"]}
        return str(name)


def test_two_users_share_no_driver_at_the_same_time_nor_one_after_the_other(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    people = Two(make_cluster("taskmanager.count=2", "taskmanager.numberOfTaskSlots=3"), tmp_path)
    before = await_value(lambda: people.drivers() if len(people.drivers()) == 2 else None)
    victims = [people.start("ada", "victim", "a-1"), people.start("ada", "view", "a-2")]
    for name in ("a-1", "a-2"):
        people.await_begun(name)
    held = people.start("bob", "victim", "b-1")
    people.await_begun("b-1")
    assert people.place(victims[0]) == people.place(victims[1]) != people.place(held)
    assert people.attack("look", "b-2") == "TABLE_OR_VIEW_NOT_FOUND"
    people.open("b-1")
    people.end(held)
    assert people.drivers() == before, "jobs of one user one after the other keep their driver"

    # Eve is the third of three users: hers waits, and says for what; then she gets a driver of her own.
    people.open("a-2")
    people.end(victims[1])  # the reason below has the number of free slots
    held = people.start("bob", "victim", "b-3")
    people.await_begun("b-3")
    waits = people.start("eve", "attack", "e-1")
    reason = people.await_reason(waits)
    assert "2 TaskExecutor(s) serve other users, and two users share none" in reason
    for words in (("job", "list"), ("job", "info", waits)):
        await_value(lambda: reason in people.understudy("eve", *words).stdout)  # noqa: B023  # called at once
    theirs = people.place(victims[0])
    people.open("a-1")
    people.end(victims[0], waits)
    assert people.gate("e-1").read_text() == "None"
    assert people.place(waits) == theirs
    after = await_value(lambda: people.drivers() if len(people.drivers()) == 2 else None)
    assert {name for name in after if after[name] != before[name]} == {theirs}
    (executor,) = [each for each in people.cluster.json("status")["task_executors"] if each["task_executor"] == theirs]
    assert executor["user"] == "eve"
    assert not executor["spark_loss"], "a renewed driver is not a lost one"
    people.open("b-3")
    people.end(held)


@pytest.mark.slow  # it shows that the test above can fail
def test_without_the_guard_a_job_reads_what_another_users_has_left_in_the_driver(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    people = Two(make_cluster("security.users.isolation=false", "taskmanager.numberOfTaskSlots=3"), tmp_path)
    victims = [people.start("ada", "victim", "a-1"), people.start("ada", "view", "a-2")]
    for name in ("a-1", "a-2"):
        people.await_begun(name)
    people.open("a-1")
    people.end(victims[0])
    assert people.attack("attack", "b-1") == "of ada"
    assert people.attack("look", "b-2") == "7", "ada's view, which her job still has"
    people.open("a-2")
    people.end(victims[1])


@pytest.mark.slow  # unit/test_worker_allocator.py shows whom workers are asked for; test_elastic starts some
def test_workers_on_demand_come_for_each_user(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    people = Two(make_cluster("resourcemanager.driver=process", "taskmanager.numberOfTaskSlots=2"), tmp_path)
    jobs = {user: people.start(user, "victim", user) for user in ("ada", "bob")}
    for user in jobs:
        people.await_begun(user)
    assert len(people.drivers()) == 2
    assert people.place(jobs["ada"]) != people.place(jobs["bob"])
    people.open(*jobs)
    people.end(*jobs.values())
