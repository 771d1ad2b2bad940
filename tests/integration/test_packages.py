"""Packages of a cluster and of a job, without a network: from directories that the tests make, Maven's and pip's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.environment.claims import Claim
from runtime.spark.driver.packages import LOCK
from tests.cluster_harness import Cluster, await_value, started
from tests.integration.test_job_libraries import wheel
from tests.integration.test_settings import OWN, maven_repository
from tests.job_files import write_job

FIND = (
    "from pyspark.sql import SparkSession\n"
    "spark = SparkSession.builder.getOrCreate()\n"
    "loader = spark.sparkContext._jvm.java.lang.ClassLoader.getSystemClassLoader()\n"
    "print(loader.getResource('marker.txt') is not None, spark.conf.get('spark.jars.packages'))\n"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("p")  # of a short name: a line has to name it whole


@pytest.fixture(scope="module")
def repository(directory: Path) -> str:
    """The address of a repository of Maven."""
    return maven_repository(directory / "m2").as_uri()


@pytest.fixture(scope="module")
def offline(directory: Path, repository: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that takes packages from directories alone, Maven's and pip's."""
    yield from started(
        tmp_path_factory.mktemp("c"),
        "taskmanager.spark.packages.offline=true",
        "spark.jars.packages=org.example:marker:1.0",
        f"spark.jars.repositories={repository}",
        f"spark.jars.ivy={directory / 'ivy'}",
        f"taskmanager.python.pip-options=--no-index --find-links {directory}",
        "cluster.start-timeout=10 min",
    )


def test_requirements_are_installed_with_the_options_of_the_cluster(offline: Cluster, directory: Path) -> None:
    wheel(directory, "3.0")
    requirements = directory / "requirements.txt"
    requirements.write_text("library_probe >= 2\n")
    script = write_job(directory, "import library_probe\nprint(library_probe.VERSION)\n", "probe.py")
    assert offline.run("job", "run", "--requirements", str(requirements), str(script)).stdout == "3.0\n"


def test_packages_of_a_cluster_that_fetches_nothing_from_the_network(
    offline: Cluster, directory: Path, repository: str
) -> None:
    """Its own driver starts with them, a job with the same ones shares it, and others end their job with one line."""
    cluster = offline
    script = write_job(directory, FIND)
    same = ("--packages", "org.example:marker:1.0", "--repositories", repository)
    done = cluster.run("job", "run", *same, str(script))
    assert done.stdout == "True org.example:marker:1.0\n"
    assert OWN not in done.stderr
    assert "ignored" not in done.stderr

    elsewhere = "https://repo.example/maven"
    asked = ("--packages", "org.example:missing:2.0,org.example:marker:1.0", "--repositories", elsewhere)
    failed = cluster.run("job", "run", *asked, str(script), check=False)
    assert failed.returncode == 1
    assert failed.stdout == ""
    # one line: it is not restarted
    (line,) = [line for line in failed.stderr.splitlines() if "org.example:missing:2.0 not found" in line]
    assert f"copy the package into {directory / 'ivy'}" in line
    assert "taskmanager.spark.packages.offline forbids the network" in line
    assert elsewhere not in line, "it was not asked"
    assert "Traceback" not in failed.stderr

    delta = cluster.run("job", "run", "--table-format", "delta:9.9", str(script), check=False)
    assert "spark.jars.packages: io.delta:delta-spark_4.3_2.13:9.9 not found: " in delta.stderr

    other = Claim(directory / "ivy" / LOCK)
    assert other.try_acquire()  # as a driver that fetches into the same cache
    waits = cluster.submit(script, options=asked)
    await_value(lambda: cluster.job(waits)["tasks"][0]["state"] == "INITIALIZING")
    cluster.run("job", "cancel", waits)
    cluster.await_status(waits, "CANCELED")
    other.release()
