"""Maven packages of a driver: what is asked of Ivy, one fetch at a time, and the line for what is not there."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from actors.testkit import VirtualLoop
from conf.configuration import Configuration
from conf.errors import InvalidValueError
from conf.options import SparkOptions
from conf.registry import is_job_setting, is_pass_through
from runtime.causes import cause_of
from runtime.cluster.job_commands import with_packages
from runtime.jobgraph.errors import InvalidConfigurationError
from runtime.jobgraph.validation import check_configuration
from runtime.spark.driver.jvm import holds
from runtime.spark.driver.packages import LOCK, Ivy, PackageCache, PackageRequest
from runtime.spark.errors import PackagesError
from runtime.taskexecutor.spark_options import driver_options

MISSING = "java.lang.RuntimeException: [unresolved dependency: org.example#missing;1.0: not found]"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("org.postgresql:postgresql:42.7.4", "org.postgresql:postgresql:42.7.4"),
        (" a.b:c_2.13:1.0-rc1 , d/e:2 ,a.b:c_2.13:1.0-rc1", "a.b:c_2.13:1.0-rc1,d:e:2"),
        ("a:b:latest.release", "a:b:latest.release"),
    ],
)
def test_coordinates_are_spelled_in_one_way(text: str, found: str) -> None:
    configuration = Configuration.from_dict({"spark.jars.packages": text})
    assert configuration.to_dict()["spark.jars.packages"] == found


@pytest.mark.parametrize("text", ["requests", "a:b", "a:b:1,", "a:b:c:1", "a b:c:1", "a:b:1 c:d:2", "a:b:1\nc", ":b:1"])
def test_malformed_coordinates_are_refused_before_a_job_is_submitted(text: str) -> None:
    with pytest.raises(InvalidValueError, match="expected Maven coordinates GROUP:ARTIFACT:VERSION") as refused:
        with_packages(Configuration(), [text], [], [], None)
    assert refused.value.key == "spark.jars.packages"
    with pytest.raises(InvalidConfigurationError, match="Maven coordinates"):  # REST, notebooks, Python
        check_configuration({"spark.jars.packages": text})


def test_the_options_of_the_command_line_add_to_its_settings() -> None:
    configuration = Configuration.load(overrides=["spark.jars.packages=a:b:1", "spark.x=y"], environ={})
    both = with_packages(configuration, ["c:d:2,e:f:3", "g:h:4"], ["file:///m2", "file:///m2"], ["x:y"], "delta:4.4.1")
    assert both.given_by("-D") == {
        "spark.jars.packages": "a:b:1,c:d:2,e:f:3,g:h:4",
        "spark.jars.repositories": "file:///m2",
        "spark.jars.excludes": "x:y",
        "spark.table-format": "delta:4.4.1",
        "spark.x": "y",
    }
    assert all(map(is_job_setting, both.given_by("-D")))
    assert with_packages(configuration, [], [], [], None) is configuration


@pytest.mark.parametrize("text", ["parquet", "delta:", "delta 4", "iceberg:1:2"])
def test_a_table_format_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="expected delta or iceberg, with :VERSION"):
        with_packages(Configuration(), [], [], [], text)


def test_a_typing_error_in_our_own_key_is_no_setting_of_spark() -> None:
    assert not is_pass_through("spark.table-fromat")
    assert is_pass_through("spark.jars.excludes")


def test_a_driver_is_started_with_the_packages_of_its_configuration(tmp_path: Path) -> None:
    configuration = Configuration.from_dict(
        {
            "cluster.runtime-dir": str(tmp_path),
            "spark.jars.packages": "a:b:1",
            "spark.jars.ivy": str(tmp_path / "ivy"),
            "spark.jars.excludes": "x:y",
            "spark.jars.repositories": "https://repo.example",
            "taskmanager.spark.packages.offline": "true",
            "taskmanager.spark.packages.timeout": "90 s",
        }
    )
    options = driver_options(configuration, tmp_path, tmp_path / "log")
    assert options.packages == PackageRequest(
        "a:b:1", tmp_path / "ivy", "x:y", "https://repo.example", settings_file="", offline=True, timeout_s=90.0
    )
    assert options.conf["spark.jars.packages"] == "a:b:1", "scripts see it"
    assert options.conf["spark.jars.ivy"] == str(tmp_path / "ivy")
    none = driver_options(configuration.set(SparkOptions.PACKAGES, None), tmp_path, tmp_path / "log")
    assert none.packages is None
    assert "spark.jars.ivy" not in none.conf


def test_the_cache_is_the_users_own_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert Configuration().get(SparkOptions.IVY_DIR) == Path("/var/cache/me/understudy/ivy")


def test_a_driver_with_more_packages_holds_those_of_a_script() -> None:
    assert holds("spark.jars.packages", "c:d:2, a:b:1", "a:b:1,c:d:2,e:f:3")
    assert not holds("spark.jars.packages", "c:d:2,a:b:2", "a:b:1,c:d:2")
    assert not holds("spark.jars.packages", "a:b:1", "")


def request(directory: Path, **fields: object) -> PackageRequest:
    return PackageRequest("org.example:missing:1.0,a:b:1", directory, **fields)  # type: ignore[arg-type]


def test_a_package_that_is_nowhere_is_one_line_with_the_repositories_and_the_remedy() -> None:
    asked = request(Path("/ivy"), repositories="https://me:hunter2@repo.example/maven, file:///m2")
    line = asked.explain(MISSING)
    assert line == (
        "spark.jars.packages: org.example:missing:1.0 not found: correct the coordinates, or name a repository that "
        "the machine reaches with --repositories URL; searched: /ivy, ~/.m2/repository, "
        "https://******@repo.example/maven, file:///m2, Maven Central, repos.spark-packages.org"
    )
    assert cause_of(f"PackagesError: {line}").endswith(line), "a command shows all of it"
    assert "; searched: ~/.cache/ivy, " in request(Path.home() / ".cache" / "ivy").explain(MISSING)
    own = request(Path("/ivy"), settings_file="/mine.xml").explain(MISSING)
    assert "; searched: the repositories of spark.jars.ivySettings=/mine.xml" in own
    assert "Central" not in own


def test_offline_the_line_names_no_repository_elsewhere() -> None:
    asked = request(Path("/ivy"), repositories="https://repo.example/maven,file:///m2", offline=True)
    assert asked.explain(MISSING).endswith(
        " not found: taskmanager.spark.packages.offline forbids the network; copy the package into /ivy, or give "
        "--repositories file:///DIR; searched: /ivy, ~/.m2/repository, file:///m2"
    )
    deep = request(Path("/" + "d" * 100), repositories="file:///" + "m" * 200, offline=True).explain(MISSING)
    assert "give --repositories file:///DIR" in cause_of(f"PackagesError: {deep}"), "only the places are cut off"


def test_several_missing_packages_and_other_failures() -> None:
    two = "[unresolved dependency: o#x;1: not found, download failed: o#y;2.0!y.jar, unresolved dependency: o#x;1: no]"
    assert "spark.jars.packages: o:x:1, o:y:2.0 not found: " in request(Path("/ivy")).explain(two)
    other = request(Path("/ivy")).explain("java.lang.Foo: failed to load\n settings " + "x" * 900)
    assert "cannot be resolved: java.lang.Foo: failed to load settings xxx" in other
    assert "\n" not in other
    assert len(other) < 700


def test_offline_settings_know_every_repository_of_the_cache_and_none_elsewhere(tmp_path: Path) -> None:
    asked = request(tmp_path / "i&vy", repositories="https://repo.example/maven, file:///m2", offline=True)
    settings = ElementTree.fromstring(asked.offline_settings())
    roots = {each.attrib["name"]: each.attrib["root"] for each in settings.iter("ibiblio")}
    assert {"central", "spark-packages", "repo-1", "repo-16", "local-m2-cache"} <= roots.keys()
    assert roots["repo-2"] == "file:///m2/"
    assert all(root.startswith("file:///") for root in roots.values())
    assert asked.used_repositories == "", "Spark would add them to the settings"
    assert request(tmp_path, repositories="https://x").used_repositories == "https://x"


# ------------------------------------------------------------------ the cache

A = [Path("/a.jar")]


class FakeIvy(Ivy):
    """Notes that its process has ended.

    Args:
        work: the fetch.
    """

    def __init__(self, work: Callable[[PackageRequest], Awaitable[list[Path]]]) -> None:
        self._work = work
        self.runs = False
        self.began = asyncio.Event()

    async def fetch(self, request: PackageRequest) -> list[Path]:
        self.runs = True
        self.began.set()
        try:
            return await self._work(request)
        finally:
            await asyncio.sleep(0)  # the end of a process takes a moment
            self.runs = False

    def peers(self) -> str:
        assert self.runs
        return "10.0.0.9:443"


async def hang(_: PackageRequest) -> list[Path]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def never(_: PackageRequest) -> list[Path]:
    raise AssertionError


async def quick(_: PackageRequest) -> list[Path]:
    return A


def told_nothing(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


async def test_only_one_fetch_at_a_time_works_in_a_cache(tmp_path: Path) -> None:
    """Also of two drivers: the lock of the second cache is another open file, as that of another process is."""
    asked, running, most = request(tmp_path / "a" / "ivy"), 0, 0

    async def fetch(given: PackageRequest) -> list[Path]:
        nonlocal running, most
        assert given is asked
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return A

    caches = [PackageCache(), PackageCache()]
    fetches = (caches[n % 2].fetch(asked, FakeIvy(fetch), told_nothing) for n in range(6))
    assert await asyncio.gather(*fetches) == [A] * 6
    assert most == 1
    assert stat.S_IMODE(asked.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((asked.directory / LOCK).stat().st_mode) == 0o600


def test_a_fetch_that_hangs_ends_at_its_limit_and_frees_the_cache(tmp_path: Path, loop: VirtualLoop) -> None:
    asked = request(tmp_path, timeout_s=60.0, repositories="https://me:hunter2@repo.example/maven")
    ivy, cache, began = FakeIvy(hang), PackageCache(), loop.time()
    with pytest.raises(PackagesError) as late:
        loop.run_until_complete(cache.fetch(asked, ivy, told_nothing))
    assert loop.time() - began == pytest.approx(60.0)
    assert str(late.value) == (
        "spark.jars.packages: org.example:missing:1.0,a:b:1 not fetched within 60 s "
        "(taskmanager.spark.packages.timeout), Ivy still waited for 10.0.0.9:443: name a repository that answers with "
        f"--repositories URL, or allow more time; searched: {tmp_path}, ~/.m2/repository, "
        "https://******@repo.example/maven, Maven Central, repos.spark-packages.org"
    )
    assert not ivy.runs, "its process has ended before another may use the cache"
    assert loop.run_until_complete(PackageCache().fetch(asked, FakeIvy(quick), told_nothing)) == A


def test_a_cancelled_fetch_ends_its_process_and_frees_the_cache(tmp_path: Path, loop: VirtualLoop) -> None:
    async def cancel() -> None:
        ivy = FakeIvy(hang)
        first = asyncio.create_task(PackageCache().fetch(request(tmp_path), ivy, told_nothing))
        await ivy.began.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not ivy.runs

    loop.run_until_complete(cancel())
    assert loop.run_until_complete(PackageCache().fetch(request(tmp_path), FakeIvy(quick), told_nothing)) == A


@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_fetch_that_waits_says_for_which_process_and_not_for_ever(
    tmp_path: Path, loop: VirtualLoop, is_same_process: bool
) -> None:
    """Its own limit counts, since that of the other fetch may be longer."""
    lines: list[tuple[float, str]] = []
    holder = PackageCache()
    waiter = holder if is_same_process else PackageCache()
    long = PackageRequest("c:d:2", tmp_path, timeout_s=86_400.0)
    asked = request(tmp_path, timeout_s=60.0)

    async def wait() -> None:
        ivy = FakeIvy(hang)
        first = asyncio.create_task(holder.fetch(long, ivy, told_nothing))
        await ivy.began.wait()
        began = loop.time()
        with pytest.raises(PackagesError) as held:
            await waiter.fetch(asked, FakeIvy(never), lambda line: lines.append((loop.time() - began, line)))
        assert loop.time() - began == pytest.approx(60.0, abs=1.0)
        assert str(held.value) == (
            f"spark.jars.packages: org.example:missing:1.0,a:b:1 not fetched, since process {os.getpid()} (it "
            f"fetches c:d:2) has used {tmp_path} for over 60 s (taskmanager.spark.packages.timeout): end it, "
            "or name another directory with -D spark.jars.ivy=DIR"
        )
        assert ivy.runs, "the other fetch is not disturbed"
        first.cancel()
        await asyncio.wait({first})

    loop.run_until_complete(wait())
    ((after, line),) = lines
    assert after == pytest.approx(5.0, abs=1.0)
    assert line == (
        "spark.jars.packages: org.example:missing:1.0,a:b:1 wait for "
        f"process {os.getpid()} (it fetches c:d:2), as only one fetch uses {tmp_path} at a time"
    )


async def test_a_failed_fetch_frees_the_cache(tmp_path: Path) -> None:
    async def fail(asked: PackageRequest) -> list[Path]:
        raise PackagesError(asked.explain(MISSING))

    cache = PackageCache()
    with pytest.raises(PackagesError, match=r"org\.example:missing:1\.0 not found"):
        await cache.fetch(request(tmp_path), FakeIvy(fail), told_nothing)
    assert await cache.fetch(request(tmp_path), FakeIvy(quick), told_nothing) == A


async def test_a_cache_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache, ivy = PackageCache(), FakeIvy(never)
    with pytest.raises(PackagesError, match=r"directory .*/file/ivy cannot be used \(Not a directory\); name another"):
        await cache.fetch(request(tmp_path / "file" / "ivy"), ivy, told_nothing)
    with pytest.raises(PackagesError, match=r"ivySettings=/mine\.xml may name repositories elsewhere"):
        await cache.fetch(request(tmp_path, settings_file="/mine.xml", offline=True), ivy, told_nothing)
