"""`doctor`: each check finds what is wrong, and says how to mend it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conf.configuration import Configuration
from conf.options import RestOptions
from runtime.cluster import doctor as doctor_module
from runtime.cluster.cli import cli
from runtime.cluster.doctor import (
    check_clock,
    check_java,
    check_memory,
    check_permissions,
    check_python,
    check_spark,
    describe_cluster,
    doctor_checks,
)
from runtime.environment.directory import ClusterDirectory
from runtime.errors import PreflightError
from runtime.ids import InstanceID, ResourceID
from runtime.protocol.messages import ClusterOverview, TaskExecutorRegistration, TaskManagerView
from tests.json_output import parsed

NAMES = [
    "Python",
    "runtime directory",
    "disk space",
    "open files",
    "jobmanager.rpc.port",
    "web endpoint",
    "Java",
    "Redis",
    "Spark",
    "Spark master",
    "memory",
    "clock",
    "permissions",
    "web access",
]
PORTS = {"jobmanager.rpc.port", "web endpoint"}


def java(directory: Path, script: str) -> Path:
    """A Java home, as far as it is looked at."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    (directory / "release").write_text('JAVA_VERSION="21.0.1"\n')
    return directory


def run(directory: Path, *words: str, **options: Any) -> Result:
    home = java(directory / "java", "exit 0") if not (directory / "java").exists() else directory / "java"
    settings = {
        "cluster.runtime-dir": directory / "cluster",
        "env.java.home": home,
        "jobmanager.rpc.port": 0,
        "rest.port": 0,
        "blob.disk-reserve": 1,
        "spark.driver.memory": "256 mb",
        **options,
    }
    given = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    return CliRunner().invoke(cli, ["doctor", *given, *words])


@pytest.fixture(autouse=True)
def _a_redis_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "describe_redis", lambda configuration: "redis-server 7")


def test_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "FOUND", "REMEDY"]
    assert lines[-1] == f"all {len(NAMES)} checks are well"  # the port is any, and the configuration is one more
    told = parsed(("doctor",), run(tmp_path, "--json").stdout)
    assert told["ok"] is True
    others = [name for name in NAMES[1:] if name != "jobmanager.rpc.port"]
    assert [check["name"] for check in told["checks"]] == ["Python", "configuration", *others]
    assert all(check["ok"] and check["detail"] and not check["remedy"] for check in told["checks"])
    assert not (tmp_path / "cluster").exists(), "whoever looks changes nothing"


def test_everything_that_fails_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_redis(configuration: Configuration) -> str:
        raise doctor_module.HaError("Redis at r.example is version 5.0")

    monkeypatch.setattr(doctor_module, "describe_redis", no_redis)
    done = run(tmp_path, "--json", **{"spark.driver.memory": "900000 gb", "env.java.home": tmp_path / "none"})
    assert done.exit_code == 1
    told = parsed(("doctor",), done.stdout)
    assert told["ok"] is False
    failed = {check["name"]: check for check in told["checks"] if not check["ok"]}
    assert set(failed) == {"Java", "Redis", "memory"}
    assert all(check["remedy"] for check in failed.values())
    assert "JAVA_HOME" in failed["Java"]["remedy"]
    assert "JAVA_HOME" not in failed["Java"]["detail"]
    assert "high-availability.redis.url" in failed["Redis"]["remedy"]
    assert run(tmp_path, **{"spark.driver.memory": "900000 gb"}).stdout.endswith("2 of 14 checks failed\n")


def test_a_web_endpoint_that_asks_nobody_for_the_token_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", **{"rest.authentication.enabled": "false"})
    assert done.exit_code == 1
    (failed,) = [check for check in parsed(("doctor",), done.stdout)["checks"] if not check["ok"]]
    assert failed["name"] == "web access"
    assert "every user of this machine may run code as" in failed["detail"]
    assert "set it to true" in failed["remedy"]


def test_the_web_endpoint_of_a_cluster_that_runs_is_looked_at_as_it_was_started(tmp_path: Path) -> None:
    asked = Configuration.from_dict({"cluster.runtime-dir": tmp_path / "cluster"})
    directory = ClusterDirectory(tmp_path / "cluster")
    directory.create()
    asked.set(RestOptions.TOKEN_ENABLED, False).write(directory.configuration_file)
    with directory.acquire():
        (check,) = [check for check in doctor_checks(asked) if check.name == "web access"]
        with pytest.raises(PreflightError, match="every user of this machine"):
            check.run()


def test_what_is_a_mistake_of_ours_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "check_spark", lambda: str(1 // 0))
    assert isinstance(run(tmp_path).exception, ZeroDivisionError)


def test_ports_of_a_cluster_that_runs_are_its_own(tmp_path: Path) -> None:
    configuration = Configuration.from_dict({"cluster.runtime-dir": tmp_path / "cluster"})
    before = [check.name for check in doctor_checks(configuration)]
    assert before == NAMES
    directory = ClusterDirectory(tmp_path / "cluster")
    directory.create()
    with directory.acquire():
        names = [check.name for check in doctor_checks(configuration, start_spark=True)]
    assert set(before) - set(names) == PORTS
    assert names[-2:] == ["cluster", "Spark driver"]


def test_python_and_spark_of_this_machine_are_well() -> None:
    assert check_python().startswith("Python 3.")
    assert check_spark().startswith("PySpark 4.")


def test_spark_that_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "MODULES", ("json", "no_such_module", "no_such.package"))
    with pytest.raises(PreflightError, match=r"lacks no_such_module, no_such\.package for Spark Connect") as caught:
        check_spark()
    assert "pyspark[connect]" in caught.value.remedy

    def no_jars() -> list[Path]:
        raise doctor_module.SparkError("no jars")

    monkeypatch.setattr(doctor_module, "class_path", no_jars)
    with pytest.raises(PreflightError, match="is incomplete: no jars"):
        check_spark()


def test_java_has_to_run(tmp_path: Path) -> None:
    assert check_java(str(java(tmp_path / "good", "exit 0"))).startswith("Java 21.0.1 in ")
    broken = java(tmp_path / "broken", "echo libjvm.so is missing >&2; exit 3")
    with pytest.raises(PreflightError, match=r"broken/bin/java does not run: libjvm\.so is missing"):
        check_java(str(broken))
    silent = java(tmp_path / "silent", "exit 3")
    with pytest.raises(PreflightError, match="exit status 3"):
        check_java(str(silent))
    (silent / "bin" / "java").write_bytes(b"\x7fELF no program")
    with pytest.raises(PreflightError, match="does not run: ") as caught:
        check_java(str(silent))
    assert caught.value.remedy


def test_memory() -> None:
    assert check_memory(2 << 30, 4 << 30) == "2048 MB of 4096 MB for Spark drivers"
    with pytest.raises(PreflightError, match="may take 8192 MB, the machine has 4096 MB") as caught:
        check_memory(8 << 30, 4 << 30)
    assert "spark.driver.memory" in caught.value.remedy


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    now = time.time()
    assert check_clock([], now) == check_clock([tmp_path / "gone"], now)
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    os.utime(tmp_path / "b", (now + 30, now + 30))
    assert check_clock(tmp_path.glob("*"), now)
    os.utime(tmp_path / "b", (now + 7200, now + 7200))
    with pytest.raises(PreflightError, match=r"the clock is 7200 s behind the last change of .*/b"):
        check_clock(tmp_path.glob("*"), now)


def test_permissions(tmp_path: Path) -> None:
    root, secret, user = tmp_path / "cluster", tmp_path / "secret", os.geteuid()
    assert check_permissions(root, [secret], user) == f"{root} does not exist yet"
    root.mkdir(mode=0o700)
    secret.touch(mode=0o600)
    assert check_permissions(root, [secret, tmp_path / "none"], user) == f"{root} is private to this user"
    secret.chmod(0o640)
    with pytest.raises(PreflightError, match=r"other users may use .*/secret \(mode 640\)") as caught:
        check_permissions(root, [secret], user)
    assert caught.value.remedy == f"`chmod 600 {secret}`"
    root.chmod(0o755)
    with pytest.raises(PreflightError, match=r"other users may use .*/cluster \(mode 755\)") as caught:
        check_permissions(root, [], user)
    assert caught.value.remedy == f"`chmod 700 {root}`"
    with pytest.raises(PreflightError, match=f"belongs to user {user}, not to {user + 1}"):
        check_permissions(root, [], user + 1)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755, "it is told, not changed"


def test_a_cluster_without_task_executors_is_not_well_and_a_replaced_driver_is_told() -> None:
    registration = TaskExecutorRegistration(
        ResourceID("tm-0"), "x", 1, 2, "4", "17", "local[2]", 7, 1 << 30, spark_loss="yesterday: stopped"
    )
    overview = ClusterOverview(1, 2, 2, 0, 0, 0, 0, 0)
    workers = [TaskManagerView(registration, InstanceID("0" * 32), 2, 0, 0)]
    assert "the Spark driver of tm-0 was replaced; yesterday: stopped" in describe_cluster(overview, workers, 1)
    with pytest.raises(PreflightError, match="no TaskExecutor is registered"):
        describe_cluster(ClusterOverview(0, 0, 0, 1, 1, 0, 0, 0), [], 1)
    assert "0 TaskExecutor" in describe_cluster(ClusterOverview(0, 0, 0, 0, 0, 0, 0, 0), [], 0), "started on demand"
