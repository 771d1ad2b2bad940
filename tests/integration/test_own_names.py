"""A project whose modules are called as our packages are: its own win, in tasks and in Spark's workers, everywhere."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import ROOT, Cluster
from tests.command_server import COMMANDS
from tests.job_files import write_job
from tests.waiting import PATIENCE_S

PROJECT = {
    "actors/__init__.py": "",
    "actors/players.py": "NAME = 'Olivier'\n",
    "blob.py": "NAME = 'monster'\n",
    "conf/__init__.py": "",
    "conf/rates.py": "RATE = 7\n",
    "runtime.py": """\
def described(number):
    import conf.rates
    from actors import players
    from blob import NAME
    return f"{players.NAME} {NAME} {number * conf.rates.RATE}"
""",
}
"""`described(6)` needs all of them."""

DESCRIBED = "Olivier monster 42"

SCRIPT = """\
from pyspark.sql import SparkSession, functions as F
import actors.players, blob, conf.rates, runtime

def in_worker(_):
    import runtime as late
    return late.described(6) if late is runtime else "another one"

spark = SparkSession.builder.getOrCreate()
print("here", runtime.described(6))
print("rdd", spark.sparkContext.range(2).map(in_worker).distinct().collect())
print("udf", [row[0] for row in spark.range(2).select(F.udf(in_worker)("id")).distinct().collect()])
"""

PIPELINE = """\
from pyspark.sql import functions as F
from understudy import Context, Pipeline
import runtime

def in_worker(_):
    import actors.players, blob, conf.rates
    return runtime.described(6)

def numbers(ctx: Context):
    return ctx.spark.range(2)

def show(ctx: Context, numbers):
    print("here", runtime.described(6), Context.__module__)
    print("udf", [row[0] for row in numbers.select(F.udf(in_worker)("id")).distinct().collect()])

def pipeline(argv):
    import conf.rates
    assert conf.rates.RATE == 7, "on the client's side too"
    job = Pipeline("own names")
    job.source("numbers", numbers).sink("show", show)
    return job
"""

STREAM = """\
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
import runtime

places = Path(sys.argv[1])
second = places / "in" / "second.txt"

def in_worker(number):
    import blob, conf.rates
    return runtime.described(6)

def note(batch, number):
    import conf.rates
    with (places / "seen").open("a") as seen:
        found = [row[0] for row in batch.select(F.udf(in_worker)("value")).collect()]
        print(number, runtime.described(6), found, file=seen)

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.text(str(places / "in"))
writer = rows.writeStream.queryName("own").trigger(availableNow=True).foreachBatch(note)
writer.start().awaitTermination()
if not second.exists():
    second.write_text("2\\n")
    os.kill(os.getpid(), signal.SIGKILL)
"""

STREAM_PIPELINE = """\
from pathlib import Path
from pyspark.sql import functions as F
from understudy import Context, Parameter, Pipeline, parse_parameters
import runtime

def note(batch, number):
    import conf.rates
    from blob import NAME
    udf = F.udf(lambda value: runtime.described(6))
    found = [row[0] for row in batch.select(udf("value")).collect()]
    with open(PLACE, "a") as seen:
        print(number, runtime.described(6), found, file=seen)

PLACE = {place!r}

def watch(ctx: Context):
    rows = ctx.spark.readStream.text({rows!r})
    rows.writeStream.queryName("own").trigger(availableNow=True).foreachBatch(note).start().awaitTermination()
    second = Path({rows!r}, "second.txt")
    if not second.exists():
        second.write_text("2\\n")
        raise ValueError("once")

def pipeline(argv):
    job = Pipeline("stream")
    job.sink("watch", watch)
    return job
"""

PROGRAM = """\
import conf.rates, runtime
from understudy import JobFailedError, connect
from pyspark.sql import functions as F

class Described:
    def __init__(self, spark):
        udf = F.udf(lambda number: runtime.described(number), "string")
        self.here = runtime.described(conf.rates.RATE - 1)
        self.there = [row[0] for row in spark.range(6, 7).select(udf("id")).collect()]

def describe(spark):
    described = Described(spark)
    return described.here, described.there, conf.rates

with connect() as cluster:
    here, there, module = cluster.options(py_files=[{zip!r}]).submit(describe).result()
    print(here, there, module is conf.rates)
    print(cluster.options(py_files=[{zip!r}]).submit({pipeline!r}).result())
    try:
        cluster.options(py_files=[{zip!r}]).submit(lambda: conf.rates.NONE).result()
    except AttributeError as error:
        print("failed:", "AttributeError" in str(error.__cause__), isinstance(error.__cause__, JobFailedError))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the project."""
    directory = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory


@pytest.fixture(scope="module")
def deliveries(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """The options that bring the project along."""
    made = tmp_path_factory.mktemp("made")
    with zipfile.ZipFile(made / "project.zip", "w") as packed:
        for name in PROJECT:
            packed.write(project / name, name)
    with tarfile.open(made / "project.tar.gz", "w:gz") as archive:
        for name in PROJECT:
            archive.add(project / name, name)
    info = "own_names-1.0.dist-info"
    shutil.copy(made / "project.zip", wheel := made / "own_names-1.0-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "a") as packed:
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: own_names\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    with zipfile.ZipFile(made / "packages.zip", "w") as packed:
        for name in PROJECT:
            if "/" in name:
                packed.write(project / name, name)
    modules = [part for name in ("blob.py", "runtime.py") for part in ("--py-files", str(project / name))]
    return {
        "zip": ("--py-files", str(made / "project.zip")),
        "wheel": ("--package", str(wheel)),
        "archive": ("--py-archive", str(made / "project.tar.gz")),
        "modules": (*modules, "--py-files", str(made / "packages.zip")),
    }


def run(cluster: Cluster, directory: Path, *arguments: str) -> str:
    """Run a command of `understudy` in a directory; returns what it prints."""
    done = COMMANDS.run(cluster.command(*arguments)[3:], cwd=directory, env=os.environ, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cluster.logs()}"
    return done.stdout


def deliveries_of_kinds() -> list[Any]:
    """Each way to bring it along is usual for one kind of job; for the other one it is a long form.

    An archive is usual for the stream, below.
    """
    usual = {("script", "zip"), ("pipeline", "wheel"), ("pipeline", "modules")}
    cells = itertools.product(("script", "pipeline"), ("zip", "wheel", "archive", "modules"))
    return [pytest.param(*cell, marks=() if cell in usual else pytest.mark.slow) for cell in cells]


@pytest.mark.parametrize(("kind", "delivery"), deliveries_of_kinds())
def test_the_projects_modules_win(
    cluster: Cluster, project: Path, deliveries: dict[str, tuple[str, ...]], kind: str, delivery: str
) -> None:
    file = write_job(project, SCRIPT if kind == "script" else PIPELINE, f"{kind}.py")
    shown = run(cluster, project, "job", "run", *deliveries[delivery], str(file))
    if kind == "script":
        assert shown == f"here {DESCRIBED}\nrdd ['{DESCRIBED}']\nudf ['{DESCRIBED}']\n"
    else:
        assert shown == f"here {DESCRIBED} understudy.runtime.api\nudf ['{DESCRIBED}']\n"


def test_a_script_adds_the_project_itself(
    cluster: Cluster, tmp_path: Path, deliveries: dict[str, tuple[str, ...]]
) -> None:
    text = (
        "from pyspark.sql import SparkSession\n"
        "context = SparkSession.builder.getOrCreate().sparkContext\n"
        f"context.addPyFile({deliveries['zip'][1]!r})\n"
        "import runtime\n"
        "print(runtime.described(6), context.range(1).map(lambda _: runtime.described(6)).collect())\n"
    )
    assert run(cluster, tmp_path, "job", "run", str(write_job(tmp_path, text))) == f"{DESCRIBED} ['{DESCRIBED}']\n"


@pytest.mark.slow  # the cells above show it of a first start
def test_a_stream_and_its_restart(
    cluster: Cluster, project: Path, tmp_path: Path, deliveries: dict[str, tuple[str, ...]]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "first.txt").write_text("1\n")
    script = write_job(tmp_path, STREAM)
    run(cluster, project, "job", "run", *deliveries["archive"], str(script), "--", str(tmp_path))
    line = f"{DESCRIBED} ['{DESCRIBED}']"
    assert (tmp_path / "seen").read_text().splitlines() == [f"0 {line}", f"1 {line}"]


@pytest.mark.slow
def test_a_pipelines_stream_and_its_restart(
    cluster: Cluster, project: Path, tmp_path: Path, deliveries: dict[str, tuple[str, ...]]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "first.txt").write_text("1\n")
    text = STREAM_PIPELINE.replace("{place!r}", repr(str(tmp_path / "seen")))
    file = write_job(project, text.replace("{rows!r}", repr(str(tmp_path / "in"))), "stream.py")
    restarted = ("-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.delay=100ms")
    run(cluster, project, "job", "run", *restarted, *deliveries["zip"], str(file))
    line = f"{DESCRIBED} ['{DESCRIBED}']"
    assert (tmp_path / "seen").read_text().splitlines() == [f"0 {line}", f"1 {line}"]


@pytest.mark.slow
def test_a_function_and_a_file_of_a_program_beside_the_project(
    cluster: Cluster,
    project: Path,
    tmp_path: Path,
    deliveries: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "config.yaml").write_text(f"cluster.runtime-dir: {cluster.directory}\n")
    monkeypatch.setenv("UNDERSTUDY_CONF_DIR", str(tmp_path))
    pipeline = write_job(project, PIPELINE, "flow.py")
    program = project / "program.py"
    program.write_text(
        PROGRAM.replace("{zip!r}", repr(deliveries["zip"][1])).replace("{pipeline!r}", repr(str(pipeline)))
    )
    done = subprocess.run(
        [sys.executable, str(program)], cwd=project, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == f"{DESCRIBED} ['{DESCRIBED}'] True"
    assert "SUCCEEDED" in second
    assert third == "failed: True True"


APPLICATION = """\
import sys
import conf.rates, runtime
from understudy import connect

def describe(spark):
    return spark.sparkContext.range(1).map(lambda _: runtime.described(6)).collect()

with connect() as cluster:
    print(runtime.described(6), cluster.submit(describe).result())
"""


@pytest.mark.slow
def test_the_main_of_an_application_whose_cluster_starts_in_the_projects_directory(
    project: Path, tmp_path: Path, deliveries: dict[str, tuple[str, ...]]
) -> None:
    cluster = Cluster(tmp_path / "c")
    file = write_job(tmp_path, APPLICATION, "application.py")
    shown = run(cluster, project, "job", "run", "--target", "application", *deliveries["zip"], str(file))
    assert f"{DESCRIBED} ['{DESCRIBED}']" in shown
    assert cluster.processes() == {}


def test_the_command_line_in_a_directory_with_modules_of_our_names(
    cluster: Cluster, project: Path, tmp_path: Path
) -> None:
    status = run(cluster, project, "status")
    console = [str(Path(sys.executable).with_name("understudy"))]
    for command in (console, [sys.executable, "-m", "understudy"], [sys.executable, "-m", "runtime.cluster"]):
        place = project
        if command[-1] == "runtime.cluster":  # Python itself takes a `runtime.py` of the directory for it
            place = tmp_path
            for name in ("blob.py", "conf"):
                (tmp_path / name).symlink_to(project / name)
        done = subprocess.run(
            [*command, *cluster.command("status")[3:]],
            cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[0] == status.splitlines()[0]


def test_our_own_names_stay_where_nobody_else_has_them(cluster: Cluster, tmp_path: Path) -> None:
    text = (
        "import actors, blob.key, conf.configuration, understudy\n"
        "from runtime.api import Pipeline\n"
        "print(Pipeline is understudy.Pipeline, actors.Props is understudy.Props, conf.configuration.__name__)\n"
    )
    shown = run(cluster, ROOT, "job", "run", str(write_job(tmp_path, text)))
    assert shown == "True True understudy.conf.configuration\n"
