"""The driver's command line, its archive of classes, and the processes around it; no JVM."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.spark.driver.api import DriverInfo
from runtime.spark.driver.cds import ArchiveBuild, link_options, prune, publish, sharing
from runtime.spark.driver.java import Java
from runtime.spark.driver.launch import (
    DriverOptions,
    archive_key,
    class_path,
    command,
    environment,
    log_configuration,
    module_options,
    spark_conf,
)
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import DriverLostError
from runtime.spark.process import ProcessHandle, start_time
from runtime.spark.spec import STOP_ACTIVE_RUN
from tests.waiting import PATIENCE_S

JAVA = Java("/opt/jdk", "21.0.8", "option")
VERSIONS = ("17.0.15", "21.0.8", "25.0.2")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory below those that nobody else may write to, or that are sticky; `tmp_path` may be anywhere."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "jars"
    directory.mkdir()
    for name in ("a.jar", "b.jar"):
        (directory / name).write_text(name)
    return sorted(directory.iterdir())


@pytest.fixture
def options(tmp_path: Path) -> DriverOptions:
    work_dir = tmp_path / "a driver"
    work_dir.mkdir()
    return DriverOptions(work_dir, tmp_path / "spark.log", conf={"spark.plugins": "mine", "spark.master": "yarn"})


def test_a_class_that_spark_replaces_is_sparks() -> None:
    """With the class of the library, Spark's functions of sketches fail on Java 25: `Unsupported JDK Major Version`."""
    replaced = "org/apache/datasketches/memory/internal/ResourceImpl.class"
    having = [jar.name for jar in class_path() if jar.name.startswith(("spark-catalyst", "datasketches-memory"))]
    assert len(having) == 2
    assert having[0].startswith("spark-catalyst")
    with zipfile.ZipFile(next(jar for jar in class_path() if jar.name == having[0])) as jar:
        assert replaced in jar.namelist()


def test_jars_come_after_sparks_own(options: DriverOptions, jars: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine.jar"
    with_jars = replace(options, jars=(mine,))
    command(JAVA, with_jars, jars, [])
    arguments = (options.work_dir / "java.args").read_text()
    assert os.pathsep.join(map(str, [*jars, mine])) in arguments
    assert spark_conf(replace(with_jars, master="yarn"))["spark.jars"] == str(mine)
    assert "spark.jars" not in spark_conf(options)


def test_a_local_driver_serves_no_jar_at_its_port(options: DriverOptions, tmp_path: Path) -> None:
    """Spark asks nobody for a secret who names a jar there, whatever spark.authenticate says."""
    given = {"spark.jars": "/a.jar, file:/b.jar,file:///c.jar,hdfs://h/d.jar,local:/e.jar"}
    conf = spark_conf(replace(options, conf=given, jars=(tmp_path / "mine.jar",)))
    assert conf["spark.jars"].split(",") == [
        "local:/a.jar",
        "local:/b.jar",
        "local:///c.jar",
        "hdfs://h/d.jar",
        "local:/e.jar",
        f"local:{tmp_path / 'mine.jar'}",
    ]


def test_settings_that_keep_the_driver_private_cannot_be_overridden(options: DriverOptions) -> None:
    conf = spark_conf(options)
    assert conf["spark.master"] == "local[*]"
    assert conf["spark.plugins"] == "org.apache.spark.sql.connect.SparkConnectPlugin,mine"
    assert conf["spark.authenticate"] == "true"
    bound = {key: value for key, value in conf.items() if key.endswith(("bindAddress", "binding.address", "host"))}
    assert set(bound.values()) == {"127.0.0.1"}


def test_no_setting_lets_the_start_of_a_query_stop_another_one(options: DriverOptions) -> None:
    assert spark_conf(replace(options, conf={STOP_ACTIVE_RUN: "true"}))[STOP_ACTIVE_RUN] == "false"


def test_command_line_is_an_argument_file(options: DriverOptions, jars: list[Path]) -> None:
    line = command(JAVA, options, jars, ["-Xshare:auto"])
    assert line == ["/opt/jdk/bin/java", f"@{options.work_dir / 'java.args'}"]
    arguments = (options.work_dir / "java.args").read_text().splitlines()
    assert '"-Xmx1g"' in arguments
    assert '"-Xss16m"' in arguments, "a query that is stopped inside foreachBatch needs it"
    assert '"-Xshare:auto"' in arguments
    assert not any("add-modules" in argument for argument in arguments)
    assert (options.work_dir / "java.args").stat().st_mode & 0o777 == 0o600


def test_sparks_log_is_bounded_as_the_others_are(options: DriverOptions, jars: list[Path]) -> None:
    command(JAVA, replace(options, log_max_bytes=3 << 20, log_backups=0), jars, [])
    written = (options.work_dir / "log4j2.properties").read_text()
    assert "appender.file.policies.size.size = 3072KB\nappender.file.strategy.type" in written
    assert "appender.file.strategy.max = 1\n" in written
    assert "%replace{%d{yyyy" in written, "its own braces are as they were"


def test_environment_does_not_pass_on_the_settings_of_another_spark(
    options: DriverOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn")
    env = environment(JAVA, options, Path("/x"), "token")
    assert "SPARK_CONF_DIR" not in env
    assert "PYSPARK_SUBMIT_ARGS" not in env
    assert env["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(("given", "seed"), [(None, "0"), ("", "0"), ("7", "7"), ("random", "random")])
def test_hashes_are_seeded_as_by_spark_submit_unless_the_environment_says_otherwise(
    options: DriverOptions, monkeypatch: pytest.MonkeyPatch, given: str | None, seed: str
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)
    assert environment(JAVA, options, Path("/x"), "token")["PYTHONHASHSEED"] == seed
    assert spark_conf(options)["spark.executorEnv.PYTHONHASHSEED"] == seed
    mine = replace(options, conf={"spark.executorEnv.PYTHONHASHSEED": "3"})
    assert spark_conf(mine)["spark.executorEnv.PYTHONHASHSEED"] == "3"


def test_python_workers_find_a_users_modules_before_ours(
    options: DriverOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, "", "/first", "/second"]))
    assert environment(JAVA, options, Path("/x"), "token")["PYTHONPATH"].split(os.pathsep) == [
        "/first",
        "/second",
        root,
    ]


def test_first_start_records_classes_and_the_next_uses_the_archive(
    tmp_path: Path, place: Path, jars: list[Path]
) -> None:
    cache = place / "cache"
    first = sharing(cache, JAVA, jars, tmp_path)
    assert first.options == (f"-XX:DumpLoadedClassList={tmp_path / 'classes.list'}",)
    archive = cache / f"{archive_key(JAVA, jars)}.jsa"
    archive.touch()
    second = sharing(cache, JAVA, jars, tmp_path)
    assert second.class_list is None
    assert f"-XX:SharedArchiveFile={archive}" in second.options
    second.reject()
    assert not archive.exists()
    assert sharing(cache, JAVA, jars, tmp_path).class_list is not None


def test_an_archive_is_not_taken_from_where_others_may_write(
    tmp_path: Path, place: Path, jars: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    cache = place / "cache"
    cache.mkdir()
    (cache / f"{archive_key(JAVA, jars)}.jsa").touch()
    for mode in (0o777, 0o1777, 0o770, 0o702):
        cache.chmod(mode)
        assert sharing(cache, JAVA, jars, tmp_path).options == (), "nor are classes recorded for it"
    assert "spark.cds.cache-dir" in caplog.text
    cache.chmod(0o755)
    assert sharing(cache, JAVA, jars, tmp_path).archive is not None


def test_an_archive_is_not_taken_from_below_a_directory_of_others(
    tmp_path: Path, place: Path, jars: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may write there can rename what is in it, and put a directory of that name there."""
    cache = place / "shared" / "cache"
    cache.mkdir(parents=True)
    (cache / f"{archive_key(JAVA, jars)}.jsa").touch()
    link = place / "link"
    link.symlink_to(cache)
    for mode in (0o777, 0o775):
        cache.parent.chmod(mode)
        for directory in (cache, link):
            assert sharing(directory, JAVA, jars, tmp_path).archive is None
        assert f"others may write to {cache.parent}; set spark.cds.cache-dir" in caplog.text
    cache.parent.chmod(0o1777)  # as /tmp: there nobody renames what is another's
    assert sharing(cache, JAVA, jars, tmp_path).archive is not None


def test_an_archive_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, archive, steps = tmp_path / "a.1.tmp", tmp_path / "a.jsa", list[tuple[str, bool]]()
    temporary.write_bytes(b"classes")

    def synced(descriptor: int) -> None:
        steps.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, archive.exists()))

    monkeypatch.setattr(os, "fsync", synced)
    publish(temporary, archive)
    assert steps == [("a.1.tmp", False), (tmp_path.name, True)]


def test_java_computes_with_vectors_where_it_has_them(tmp_path: Path) -> None:
    java = Java(str(tmp_path), "17.0.15", "option")
    keys = {archive_key(java, [])}
    for listed, is_added in ((None, False), ("java.base jdk.zipfs", False), ("java.base jdk.incubator.vector", True)):
        if listed is not None:
            (tmp_path / "release").write_text(f'JAVA_VERSION="17.0.15"\nMODULES="{listed}"\n')
        assert ("--add-modules=jdk.incubator.vector" in module_options(java)) is is_added
        keys.add(archive_key(java, []))
    assert len(keys) == 2, "classes are archived for one set of modules"


def test_arrow_reaches_memory_on_a_java_that_warns_of_it(tmp_path: Path) -> None:
    option = "--sun-misc-unsafe-memory-access=allow"  # older ones do not start with it
    versions = {version: option in module_options(Java(str(tmp_path), version, "option")) for version in VERSIONS}
    assert versions == {"17.0.15": False, "21.0.8": False, "25.0.2": True}


def test_the_archive_of_a_java_that_can_has_linked_classes(tmp_path: Path) -> None:
    options = {version: link_options(Java(str(tmp_path), version, "option")) for version in VERSIONS}
    assert options == {"17.0.15": (), "21.0.8": (), "25.0.2": ("-XX:+AOTClassLinking",)}


def test_other_jars_or_another_java_have_another_archive(jars: list[Path]) -> None:
    key = archive_key(JAVA, jars)
    assert archive_key(Java("/opt/jdk", "21.0.9", "option"), jars) != key
    jars[0].write_text("another")
    assert archive_key(JAVA, jars) != key


def test_a_directory_that_cannot_be_used_is_no_failure(tmp_path: Path, jars: list[Path]) -> None:
    (tmp_path / "file").touch()
    assert sharing(tmp_path / "file" / "cds", JAVA, jars, tmp_path).options == ()
    assert sharing(None, JAVA, jars, tmp_path).options == ()


def test_the_last_used_archives_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.jsa"
        path.touch()
        os.utime(path, (number, number))
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.jsa", "4.jsa"]


def info(tmp_path: Path, pid: int, started: int, class_list: str = "") -> DriverInfo:
    return DriverInfo(
        pid, started, "4.3.0", "local[1]", str(tmp_path), str(tmp_path / "spark.log"), 1, "gateway-secret", 2, "token",
        "/opt/jdk", "21.0.8", class_list,
    )  # fmt: skip


async def test_no_archive_is_built_of_a_driver_that_ran_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    classes = tmp_path / "classes.list"
    classes.write_text("java/lang/Object id: 0\n")
    assert await ArchiveBuild(cache, info(tmp_path, 1, 1, str(classes))).run() is None
    assert await ArchiveBuild(cache, info(tmp_path, 1, 1)).run() is None
    assert not list(cache.glob("*.jsa"))


async def test_driver_file_is_private_and_comes_back(tmp_path: Path) -> None:
    written = info(tmp_path, 1, 2)
    written.write()
    assert written.file.stat().st_mode & 0o777 == 0o600
    assert DriverInfo.read(written.file) == written


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}'])
async def test_a_driver_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "driver.json").write_text(text)
    with pytest.raises(DriverLostError, match="cannot be read"):
        await LocalDriver.adopt(tmp_path / "driver.json")
    with pytest.raises(DriverLostError, match="does not exist"):
        await LocalDriver.adopt(tmp_path / "nowhere.json")


async def test_another_process_under_the_same_number_is_not_adopted(tmp_path: Path) -> None:
    started = start_time(os.getpid())
    assert started is not None
    with pytest.raises(DriverLostError, match="is gone"):
        await LocalDriver.adopt(info(tmp_path, os.getpid(), started - 1))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_the_end_of_a_process_is_noticed(child: subprocess.Popen[bytes]) -> None:
    started = start_time(child.pid)
    assert started is not None
    handle = ProcessHandle(child.pid, started)
    assert handle.alive
    assert not await handle.wait(0.01)
    waiting = asyncio.create_task(handle.wait(PATIENCE_S))
    handle.send_signal(9)
    assert await waiting
    assert not handle.alive
    assert start_time(child.pid) is None  # a zombie
    child.wait()
    handle.send_signal(9)  # no error
    handle.close()
    with pytest.raises(ProcessLookupError):
        ProcessHandle(child.pid, started)


def test_the_log_of_spark_is_where_it_was_asked_for() -> None:
    written = log_configuration(Path("/home/j\u00fcrgen/p%d/\U0001f600/spark.log"), 1 << 20, 2)
    escaped = r"/home/j\u00fcrgen/p%d/\ud83d\ude00/spark.log"
    assert f"fileName = {escaped}\n" in written
    assert f"filePattern = {escaped.replace('%', '%%')}.%i\n" in written
    assert written.isascii()
