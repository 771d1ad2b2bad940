"""The packages of a release: two builds of a commit are equal, and the previous release works beside the checkout."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import release
from tests.cluster_harness import Cluster, await_value, started
from tests.job_files import TRIVIAL
from tests.older_java import older_java
from tests.standalone_spark import spark_environment
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(
    not release.is_clone(), reason="packages are built from a commit, and this is not a clone"
)
"""The release before the checkout; before the first one the last commit stands for it."""

NOTEBOOK = """\
import sys
from understudy import connect

with connect(settings={"cluster.runtime-dir": sys.argv[1]}) as cluster:
    print("counted", cluster.submit(lambda spark: spark.range(1000).count()).result())
"""

EMBEDDED = """\
import sys
from pyspark.sql import SparkSession
from understudy import EmbeddedCluster

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with EmbeddedCluster(spark) as cluster:
    print("ready", cluster.directory, cluster.job.id, flush=True)
    sys.stdin.readline()
    print("counted", spark.range(1000).count())
"""


def _build(clone: Path, **environ: str) -> dict[str, bytes]:
    """Clone the checkout's commit, build it there as `make dist` does, and return the packages by name."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(release.ROOT), str(clone)], check=True)
    subprocess.run(
        [sys.executable, "-m", "tests.release"],
        cwd=clone,
        env={**os.environ, **environ, "PYTHONPATH": str(clone)},
        umask=int(environ.get("UMASK", "022"), 8),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {package.name: package.read_bytes() for package in (clone / "dist").iterdir()}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the packages of a build in one clone."""
    return _build(tmp_path_factory.mktemp("first") / "clone")


def test_two_builds_are_equal(packages: dict[str, bytes], tmp_path: Path) -> None:
    """In another directory, at another time, with another umask, time zone, language and order of sets."""
    clone = tmp_path / "another" / "place"
    other = _build(clone, UMASK="077", TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="1", SOURCE_DATE_EPOCH="1")
    assert len(packages) == 2
    assert other.keys() == packages.keys()
    assert [name for name in packages if packages[name] != other[name]] == []
    # The comparison sees a difference: the same files in a commit of another second.
    later = {**os.environ, "GIT_COMMITTER_DATE": "2030-01-01T00:00:00Z"}
    author = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(
        ["git", *author, "commit", "--quiet", "--amend", "--no-edit", "--no-verify"], cwd=clone, env=later, check=True
    )
    amended = {package.name: package.read_bytes() for package in release.build("HEAD", tmp_path / "amended", clone)}
    assert [name for name in packages if packages[name] == amended[name]] == []


def test_times_are_those_of_the_commit(packages: dict[str, bytes], tmp_path: Path) -> None:
    epoch = release.commit_time("HEAD")
    for name, content in packages.items():
        (tmp_path / name).write_bytes(content)
    [wheel], [sdist] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert len({member.date_time for member in archive.infolist()}) == 1
        assert {member.external_attr >> 16 & 0o777 for member in archive.infolist()} <= {0o644, 0o755, 0o664}
    with tarfile.open(sdist) as source:
        assert {(member.mtime, member.uid, member.uname) for member in source} == {(epoch, 0, "")}
    assert gzip.decompress(sdist.read_bytes())
    assert int.from_bytes(sdist.read_bytes()[4:8], "little") == epoch


def test_the_source_distribution_builds_the_same_files(packages: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in packages.items():
        (tmp_path / name).write_bytes(content)
    [wheel], [sdist] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path / "again"), str(sdist)], check=True)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / "again" / wheel.name) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


@pytest.fixture
def previous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the previous release."""
    tree = release.export_previous(tmp_path_factory.mktemp("previous") / "tree")
    yield from started(tmp_path_factory.mktemp("c"), tree=tree)


@pytest.mark.slow
def test_commands_of_either_release_work_with_a_cluster_of_the_previous_one(previous: Cluster, tmp_path: Path) -> None:
    present = replace(previous, tree=release.ROOT)
    file = tmp_path / "trivial.py"
    file.write_text(TRIVIAL)
    for commands in (previous, present):
        assert "sum 499500" in commands.run("job", "run", str(file)).stdout
        told = json.loads(commands.run("status", "--json").stdout)  # of either release: it may have another schema
        assert len(told["task_executors"]) == 1
        assert counted(commands, tmp_path) == "counted 1000\n"
    # A master of the checkout joins, and takes over. The TaskExecutor is still one of the previous release.
    present.run("start-master")
    os.kill(previous.pid_of("master"), signal.SIGKILL)
    await_value(lambda: present.leaders().get("dispatcher") == "dispatcher-1")
    for commands in (previous, present):
        assert "sum 499500" in commands.run("job", "run", str(file)).stdout
        assert counted(commands, tmp_path) == "counted 1000\n"


def counted(cluster: Cluster, directory: Path) -> str:
    """Return what a notebook of a release prints that submits a function to a cluster."""
    (directory / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(directory / "notebook.py"), str(cluster.directory)],
        env={**os.environ, "PYTHONPATH": str(cluster.tree)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # notebooks and commands of both releases are tried above
@pytest.mark.parametrize("is_previous", [True, False], ids=["previous", "present"])
def test_commands_of_the_other_release_work_with_an_embedded_cluster(tmp_path: Path, *, is_previous: bool) -> None:
    trees = [release.export_previous(tmp_path / "tree"), release.ROOT]
    own, other = trees if is_previous else trees[::-1]
    script = tmp_path / "program.py"
    script.write_text(EMBEDDED)
    environment = spark_environment(tmp_path) | {"PYTHONPATH": str(own)}
    if is_previous:
        environment["JAVA_HOME"] = str(older_java())
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as program,
    ):
        assert program.stdout is not None
        ready = program.stdout.readline().split()
        assert ready, (tmp_path / "errors").read_text()
        cluster = Cluster(Path(ready[1]), tree=other)
        listed = json.loads(cluster.run("job", "list", "--json").stdout)
        shown = json.loads(cluster.run("job", "info", ready[2], "--json").stdout)
        assert (ready[2] in json.dumps(listed), shown["state"]) == (True, "RUNNING")
        said, _ = program.communicate("\n", PATIENCE_S)
    assert (program.returncode, said) == (0, "counted 1000\n"), (tmp_path / "errors").read_text()
