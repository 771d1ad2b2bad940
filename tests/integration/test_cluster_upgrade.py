"""`understudy cluster upgrade` with real clusters: masters are exchanged, and no job notices.

`tests.upgrade` exchanges TaskExecutors too, of real releases and in any order, while processes are killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import __version__
from runtime.cluster.upgrade import CLAIM
from runtime.cluster.upgrade_environment import COMPLETE, Contents, Environment, Wheel, WheelEnvironment
from runtime.cluster.upgrade_plan import UpgradeRefusedError
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from tests import release
from tests.cluster_harness import Cluster, WaitingJob, await_value, started
from tests.fakes.sshd import unused_port
from tests.job_files import PAUSED, TRIVIAL, write_job
from tests.next_release import (
    LEVEL,
    VERSION,
    make_environment,
    make_next_release,
    make_wheel,
    packages_of_this_environment,
)
from tests.unit.test_upgrade_wheel import write_wheel
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not release.is_clone(), reason="the previous release comes from git, which is not here")

_KILLER = """
import os, pathlib, signal, sys
gate = pathlib.Path({gate!r})
if "start-master" in sys.orig_argv and gate.exists():
    gate.unlink()
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)
"""
"""Code at the start of each Python of an environment: kills the upgrade that is about to start a master there, once."""


_QUERYING = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
gate = Path(sys.argv[1])
with Path(sys.argv[1] + ".began").open("a") as file:
    file.write("x")
while not gate.exists():
    assert spark.range(100).count() == 100
    time.sleep(0.1)
"""
"""A job that runs small queries until it is released, and leaves cores of the driver to others."""


@pytest.fixture(scope="module")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release."""
    return release.export_previous(tmp_path_factory.mktemp("previous") / "tree")


@pytest.fixture(scope="module")
def new_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next release."""
    return make_next_release(tmp_path_factory.mktemp("next") / "tree")


def plant_killer(environment: Path, gate: Path) -> None:
    """Kill the next upgrade to an environment between the end of a master and the start of its successor."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (packages / "sitecustomize.py").write_text(_KILLER.format(gate=str(gate)))
    gate.touch()


def versions(cluster: Cluster) -> dict[str, str]:
    """Return the releases of the masters, as the next plan shows them."""
    plan = cluster.json("cluster", "upgrade", "--dry-run")
    return {each["process"]: each["version"] for each in (*plan["steps"], *plan["kept"]) if "master" in each["process"]}


def what_must_stay(cluster: Cluster, job: WaitingJob) -> dict[str, Any]:
    """Return what no exchange of masters may change: processes of the job and of its TaskExecutor, and its attempt."""
    (task,) = cluster.job(job.job_id)["tasks"]
    return {
        "tasks": cluster.tasks_of(job.job_id),
        "attempts": [attempt["attempt_id"] for attempt in task["attempts"]],
        "restarts": cluster.job(job.job_id)["restarts"],
        "starts": job.starts,
        **{name: cluster.pid_of(name) for name in ("taskmanager-0", "tm:taskmanager-0", "redis")},
    }


def page_of(cluster: Cluster, name: str) -> str:
    """Return the address of a web endpoint."""
    with cluster.client() as client:
        (url,) = [view.url for view in client.status().processes if view.name == name]
    return url


@pytest.fixture
def pair(old_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the previous release with a leading master and a standby."""
    yield from started(tmp_path_factory.mktemp("c"), f"rest.port={unused_port()}", masters=2, tree=old_tree)


@pytest.fixture
def single(old_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the previous release with one master."""
    yield from started(tmp_path_factory.mktemp("c"), tree=old_tree)


@pytest.mark.slow
def test_masters_are_exchanged_there_and_back_while_a_job_runs_and_others_are_submitted(
    pair: Cluster, old_tree: Path, new_tree: Path, tmp_path: Path
) -> None:
    upgraded = replace(pair, tree=new_tree)
    job = WaitingJob(
        pair.submit(write_job(tmp_path, _QUERYING, "querying.py"), str(tmp_path / "gate")), tmp_path / "gate"
    )
    await_value(lambda: job.starts == 1)
    pair.await_status(job.job_id, "RUNNING")
    kept = what_must_stay(pair, job)
    page = page_of(pair, "rest")
    file = write_job(tmp_path, TRIVIAL, "trivial.py")
    before = versions(upgraded)
    assert before == {"master": before["master"], "master-1": before["master"]}
    assert VERSION not in before.values()

    # The dry run shows the order, and the one job; it changes nothing.
    plan = upgraded.json("cluster", "upgrade", "--masters-only", "--dry-run")
    assert plan["is_dry_run"]
    assert [(step["process"], step["pid"]) for step in plan["steps"]] == [
        ("master-1", pair.pid_of("master-1")),
        ("master", pair.pid_of("master")),
    ]
    assert [(each["job_id"], each["task_executors"]) for each in plan["jobs"]] == [(job.job_id, ["taskmanager-0"])]
    shown = upgraded.run("cluster", "upgrade", "--dry-run").stdout
    assert "3      taskmanager-0" in shown
    assert "its tasks keep running; taskmanager-0 is exchanged when its tasks there have finished" in shown
    assert versions(upgraded) == before

    # Jobs are submitted and finish while the masters are exchanged.
    command = upgraded.command("cluster", "upgrade", "--masters-only")
    environment = {"PYTHONPATH": str(new_tree)}
    finished = 0
    with subprocess.Popen(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command],
        cwd=new_tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as upgrading:
        while upgrading.poll() is None:
            assert pair.await_status(pair.submit(file), "FINISHED")["restarts"] == 0
            finished += 1
        out, progress = upgrading.communicate(timeout=PATIENCE_S)
    assert upgrading.returncode == 0, progress
    assert [line.split(" (")[0] for line in progress.splitlines()] == [
        "1 of 2: exchanging master-1",
        "2 of 2: exchanging master",
    ]
    assert out.splitlines()[0] == f"all masters run Understudy {VERSION}"
    assert "exchange the TaskExecutors of another release: taskmanager-0" in out
    assert "raise the feature level from 1" in out
    assert versions(upgraded) == {"master": VERSION, "master-1": VERSION}
    assert what_must_stay(upgraded, job) == kept
    assert finished > 1
    assert page_of(upgraded, "rest") == page, "the first master serves its configured port again"

    # Run again, it has nothing to do.
    assert upgraded.json("cluster", "upgrade", "--masters-only")["steps"] == []

    # Back to the previous release, in an environment of its own. The command is killed when it has ended the standby.
    previous = make_environment(tmp_path / "venv", old_tree)
    plant_killer(previous, tmp_path / "kill")
    back = ("cluster", "upgrade", "--masters-only", f"--to={previous}")
    assert upgraded.run(*back, check=False).returncode == -9
    with pair.client() as client:
        assert len(client.status().masters) == 1
    (ended, leading) = upgraded.json(*back, "--dry-run")["steps"]
    assert (ended["pid"], ended["version"]) == (0, "")
    assert leading["version"] == VERSION
    # --rollback finishes it. The cluster was started from a directory of packages, and is again.
    done = upgraded.json("cluster", "upgrade", "--masters-only", "--rollback")
    assert [step["process"] for step in done["steps"]] == [ended["process"], leading["process"]]
    assert (done["python"], done["is_dry_run"]) == (sys.executable, False)
    assert versions(upgraded) == before
    assert what_must_stay(pair, job) == kept

    job.release()
    assert pair.await_status(job.job_id, "FINISHED")["restarts"] == 0
    assert job.starts == 1
    assert "sum 499500" in pair.run("job", "run", str(file)).stdout


def upgrade_from_wheel(cluster: Cluster, wheel: Path, scratch: Path) -> None:
    """Exchange the only master for one of an environment that is made of a wheel, without any index."""
    (scratch / "pip.conf").write_text("[install]\nno-index = true\n")
    shared = packages_of_this_environment(scratch / "shared")
    surroundings = {"PYTHONPATH": f"{cluster.tree}:{shared}", "PIP_CONFIG_FILE": str(scratch / "pip.conf")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        words = ("cluster", "upgrade", "--masters-only", f"--to={wheel}", *words)
        return subprocess.run(
            cluster.command(*words),
            cwd=cluster.tree,
            env={**os.environ, **surroundings},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    directory = ClusterDirectory(cluster.directory)
    planned = run("--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"would make {directory.environments}/{VERSION}-" in planned.stderr
    assert "understudy-spark[" in planned.stderr
    assert VERSION in planned.stdout
    refused = run()
    assert "error: master is the only master" in refused.stderr
    assert not directory.environments.exists(), "nothing is installed for an upgrade that is refused"
    done = run("--yes")
    assert done.returncode == 0, done.stderr
    assert [line.split(" (")[0].split(" into ")[0] for line in done.stderr.splitlines()] == [
        f"installing understudy-spark {VERSION}",
        "1 of 1: exchanging master",
    ]
    [made] = directory.environments.iterdir()
    assert Path(f"/proc/{cluster.pid_of('master')}/cmdline").read_bytes().startswith(bytes(made / "bin" / "python"))
    again = run()
    assert (again.returncode, again.stderr) == (0, ""), "nothing is installed again"


@pytest.mark.slow  # tests/upgrade kills commands and masters
def test_the_only_master_is_exchanged_on_demand_even_if_the_upgrade_is_killed_without_any_master_left(
    single: Cluster, new_tree: Path, tmp_path: Path
) -> None:
    job = WaitingJob.start(single, tmp_path, text=PAUSED)
    kept = what_must_stay(single, job)
    environment = make_environment(tmp_path / "venv", new_tree)
    upgraded = replace(single, tree=new_tree)
    to = ("--masters-only", f"--to={environment}")
    master = single.pid_of("master")
    refused = upgraded.run("cluster", "upgrade", *to, check=False)
    assert refused.returncode == 1
    assert "error: master is the only master" in refused.stderr
    assert "understudy start-master" in refused.stderr
    assert single.pid_of("master") == master

    other = ClusterDirectory(single.directory).claim(CLAIM)  # as another upgrade holds it
    assert other.try_acquire()
    told = upgraded.run("cluster", "upgrade", *to, "--yes", check=False)
    assert (told.returncode, "error: another upgrade of the cluster" in told.stderr) == (1, True)
    other.release()

    plant_killer(environment, tmp_path / "kill")
    assert upgraded.run("cluster", "upgrade", *to, "--yes", check=False).returncode == -9
    assert upgraded.run("status", check=False).returncode == 69
    assert upgraded.tasks_of(job.job_id) == kept["tasks"]
    done = upgraded.run("cluster", "upgrade", *to)
    assert done.stderr == f"starting the master that an interrupted upgrade has ended, with Understudy {VERSION}\n"
    assert versions(upgraded) == {"master": VERSION}
    upgraded.await_status(job.job_id, "RUNNING")
    assert what_must_stay(upgraded, job) == kept

    # Back to what ran before, which was a directory of packages, and to the next release again, from its wheel.
    done = upgraded.json("cluster", "upgrade", "--masters-only", "--yes", "--rollback")
    assert ([step["process"] for step in done["steps"]], done["python"]) == (["master"], sys.executable)
    assert versions(upgraded) != {"master": VERSION}
    upgrade_from_wheel(upgraded, make_wheel(new_tree, tmp_path / "wheel"), tmp_path)
    assert versions(upgraded) == {"master": VERSION}
    upgraded.await_status(job.job_id, "RUNNING")
    assert what_must_stay(upgraded, job) == kept

    # Then the TaskExecutor. Its job has no restart strategy: its task is moved, which is not a failure of it.
    (exchange, finalize) = upgraded.json("cluster", "upgrade", "--masters-only")["to_do"]
    assert "taskmanager-0" in exchange
    assert "finalize" in finalize
    done = upgraded.run("cluster", "upgrade", "--drain-timeout=0s")
    assert "1 of 1: exchanging taskmanager-0" in done.stderr
    assert done.stdout.splitlines()[0] == f"all masters and TaskExecutors run Understudy {VERSION}"
    assert [each["version"] for each in upgraded.json("status")["task_executors"]] == [VERSION]
    moved = upgraded.await_status(job.job_id, "RUNNING")
    assert (moved["failure_history"], moved["restarts"], job.starts) == ([], 1, 2)
    job.release()
    upgraded.await_status(job.job_id, "FINISHED")
    assert upgraded.json("cluster", "upgrade")["to_do"] == [finalize]
    assert upgraded.json("cluster", "finalize")["feature_level"] == LEVEL
    assert upgraded.json("cluster", "upgrade")["to_do"] == []

    # And now there is no way back.
    for cluster, words in ((replace(upgraded, tree=release.ROOT), ()), (upgraded, ("--rollback",))):
        back = cluster.run("cluster", "upgrade", "--yes", *words, check=False)
        assert back.returncode == 1
        assert f"the cluster has feature level {LEVEL}, and Understudy {'' if words else __version__}" in back.stderr
        assert " supports 1" in back.stderr
        assert "Traceback" not in back.stderr


def test_an_environment_without_a_release_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpgradeRefusedError, match="is not a virtual environment: it has no program bin/python"):
        Environment.of(tmp_path)
    empty = make_environment(tmp_path / "empty", None)
    with pytest.raises(UpgradeRefusedError, match=r"has no Understudy that a cluster could run: .*'runtime'") as e:
        Environment.of(empty).target()
    assert f"{empty}/bin/python -m pip install" in e.value.remedy


def test_an_installation_that_fails_is_one_line_and_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages that it needs are only metadata: pip looks at nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    directory = ClusterDirectory(tmp_path / "c")
    wheel = Wheel.read(write_wheel(tmp_path, requires="pyspark"))
    made = WheelEnvironment.of(wheel, directory)
    contents = Contents(f"understudy-spark @ {wheel.path.as_uri()}", "pyspark==4.3.0")
    said: list[str] = []
    with pytest.raises(ClusterError, match="pip ended with No matching distribution found for pyspark") as failed:
        made.make(directory, contents, said.append)
    assert "\n" not in str(failed.value)
    assert not made.is_complete(contents)
    left = made.path / "left"
    left.touch()
    (tmp_path / "packages" / "pyspark-4.3.0.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "pyspark-4.3.0.dist-info" / "METADATA").write_text("Name: pyspark\nVersion: 4.3.0\n")
    made.make(directory, contents, said.append)
    assert made.is_complete(contents)
    assert not left.exists()
    assert (made.path / COMPLETE).exists()
    assert said == [f"installing understudy-spark 0.2.0 into {made.path}"] * 2


def test_the_release_of_an_environment_is_the_one_that_is_installed_there(new_tree: Path, tmp_path: Path) -> None:
    target = Environment.of(make_environment(tmp_path / "venv", new_tree)).target()
    own = Environment.of(None).target()
    assert (target.release.version, target.release.levels.newest) == (VERSION, LEVEL)
    assert (own.release.version, own.python) == (__version__, sys.executable)
    assert target.spark_version == own.spark_version != ""


def test_no_cluster_is_named(tmp_path: Path) -> None:
    for words in ((), ("--dry-run",)):
        told = Cluster(tmp_path / "none").run("cluster", "upgrade", *words, check=False)
        assert told.returncode == 69
        assert "error: no cluster was started in" in told.stderr
