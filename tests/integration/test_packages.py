"""Maven packages of a cluster and of a job, without a network: one repository is a directory that the test makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.environment.claims import Claim
from runtime.spark.driver.packages import LOCK
from tests.cluster_harness import Cluster, await_value
from tests.integration.test_settings import OWN, maven_repository
from tests.job_files import write_job

FIND = (
    "from pyspark.sql import SparkSession\n"
    "spark = SparkSession.builder.getOrCreate()\n"
    "loader = spark.sparkContext._jvm.java.lang.ClassLoader.getSystemClassLoader()\n"
    "print(loader.getResource('marker.txt') is not None, spark.conf.get('spark.jars.packages'))\n"
)


def test_packages_of_a_cluster_that_fetches_nothing_from_the_network(
    make_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its own driver starts with them, a job with the same ones shares it, and others end their job with one line."""
    directory = tmp_path_factory.mktemp("p")  # of a short name: the line has to name it whole
    repository = maven_repository(directory / "m2").as_uri()
    cluster = make_cluster(
        "taskmanager.spark.packages.offline=true",
        "spark.jars.packages=org.example:marker:1.0",
        f"spark.jars.repositories={repository}",
        f"spark.jars.ivy={directory / 'ivy'}",
        "cluster.start-timeout=10 min",
    )
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
