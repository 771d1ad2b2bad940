"""The built wheel, installed in an environment of its own, far from the checkout: all is in it, and a job runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import ROOT, Cluster
from tests.waiting import PATIENCE_S

PACKAGES = ("conf", "actors", "blob", "runtime", "understudy")
METADATA = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
MINORS = (11, 12, 13)
LEFT_OUT = {"__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources: a build leaves its traces where they are."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in METADATA:
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "examples", source / "examples")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(directory), str(source)], check=True, capture_output=True)
    [built] = directory.glob("understudy_spark-*.whl")
    return built


def _files_of(package: str) -> Iterator[str]:
    for root, directories, names in os.walk(ROOT / package):
        directories[:] = [name for name in directories if name not in LEFT_OUT]
        yield from (str(Path(root, name).relative_to(ROOT)) for name in names)


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        inside = {name for name in names if ".data/" not in name}
        data = {name.partition(".data/data/")[2] for name in names if ".data/" in name}
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        described = Parser().parsestr(archive.read(metadata).decode())
    assert inside == {name for package in PACKAGES for name in _files_of(package)}
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside
    assert {"conf/config.yaml", "conf/kubernetes/60-master.yaml", "runtime/rest/static/index.html"} <= inside
    assert data == {f"share/understudy/{name}" for name in _files_of("examples")}
    assert "share/understudy/examples/monitoring/grafana/datasources.yaml" in data
    assert described["Name"] == "understudy-spark"
    assert {"java", "redis-server", "notebook", "examples", "s3", "docs"} <= set(
        described.get_all("Provides-Extra") or ()
    )


def interpreters() -> list[str]:
    """One of each Python that the package is for and this machine has."""
    found = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        places = [shutil.which(name), *sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))]
        for place in filter(None, places):
            asked = subprocess.run([place, "-c", "import venv, sys; print(sys.version_info[1])"], capture_output=True)
            if asked.returncode == 0 and asked.stdout.strip() == str(minor).encode():
                found.setdefault(minor, str(place))
    return list(found.values())


def oldest_first() -> list[Any]:
    """Interpreters; what the oldest takes is usual, and the others are long forms."""
    return [pytest.param(each, marks=pytest.mark.slow if number else ()) for number, each in enumerate(interpreters())]


@pytest.mark.parametrize("python", oldest_first())
def test_every_python_takes_its_code(wheel: Path, python: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [python, "-W", "error", "-m", "compileall", "-q", "-j", "2", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters())
def test_the_demo_runs_on_every_python(wheel: Path, python: str, tmp_path: Path) -> None:
    """Installed with what it needs by pip in a fresh environment, and run in an empty directory."""
    bin_dir, empty = tmp_path / "venv" / "bin", tmp_path / "empty"
    subprocess.run([python, "-m", "venv", str(bin_dir.parent)], check=True)
    extras = f"understudy-spark[java,redis-server,examples] @ {wheel.as_uri()}"
    subprocess.run([str(bin_dir / "pip"), "install", "--quiet", extras], check=True)
    subprocess.run([str(bin_dir / "pip"), "check"], check=True)
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    settings = ("-D", "jobmanager.rpc.port=0", "-D", "rest.port=0", "--out", str(tmp_path / "delays"))
    done = subprocess.run(
        [str(bin_dir / "understudy"), "demo", *settings],
        cwd=empty,
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "delays").rglob("*.parquet"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel; what it needs is found where this interpreter has it."""
    directory = tmp_path_factory.mktemp("venv")
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    site = sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)})
    # A line of a .pth adds a directory, and does not read the .pth files in it: an editable install stays unseen.
    Path(site, "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin"


def test_a_job_runs_far_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(ROOT / "examples" / "word_count.py", empty)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    cluster = Cluster(tmp_path / "c")

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{cluster.logs()}"
        return done.stdout

    where = run(str(installed / "python"), "-c", "import conf, actors, blob, runtime; print(runtime.__file__)")
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert "Understudy" in run(str(installed / "understudy"), "--help")
    settings = ("-D", f"cluster.runtime-dir={cluster.directory}", "-D", "jobmanager.rpc.port=0", "-D", "rest.port=0")
    understudy = str(installed / "understudy")
    run(understudy, "start", *settings)
    try:
        assert "4 x and" in run(understudy, "job", "run", *settings, "word_count.py")
    finally:
        run(understudy, "stop", *settings)
    assert cluster.processes() == {}
