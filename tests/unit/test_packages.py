"""Maven packages of a driver: what is asked of Ivy, one fetch at a time, and the line for what is not there."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conf.configuration import Configuration
from conf.errors import InvalidValueError
from conf.options import SparkOptions
from conf.registry import is_job_setting, is_pass_through
from runtime.causes import cause_of
from runtime.cluster.job_commands import with_packages
from runtime.jobgraph.errors import InvalidConfigurationError
from runtime.jobgraph.validation import check_configuration
from runtime.spark.driver.jvm import holds
from runtime.spark.driver.packages import LOCK, PackageCache, PackageRequest
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
        }
    )
    options = driver_options(configuration, tmp_path, tmp_path / "log")
    assert options.packages == PackageRequest(
        "a:b:1", tmp_path / "ivy", "x:y", "https://repo.example", settings_file="", offline=True
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
        return [Path("/a.jar")]

    caches = [PackageCache(), PackageCache()]
    assert await asyncio.gather(*(caches[n % 2].fetch(asked, fetch) for n in range(6))) == [[Path("/a.jar")]] * 6
    assert most == 1
    assert stat.S_IMODE(asked.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((asked.directory / LOCK).stat().st_mode) == 0o600


async def test_a_cancelled_fetch_keeps_the_cache_until_ivy_ends(tmp_path: Path) -> None:
    asked, began, end = request(tmp_path), asyncio.Event(), asyncio.Event()

    async def slow(_: PackageRequest) -> list[Path]:
        began.set()
        await end.wait()
        raise PackagesError("nobody waits for this")

    async def quick(_: PackageRequest) -> list[Path]:
        assert end.is_set()
        return []

    cache = PackageCache()
    first = asyncio.create_task(cache.fetch(asked, slow))
    await began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    others = [asyncio.create_task(each.fetch(asked, quick)) for each in (cache, PackageCache())]
    _, waiting = await asyncio.wait(others, timeout=0.3)
    assert len(waiting) == 2
    end.set()
    assert await asyncio.gather(*others) == [[], []]


async def test_a_failed_fetch_frees_the_cache(tmp_path: Path) -> None:
    async def fail(asked: PackageRequest) -> list[Path]:
        raise PackagesError(asked.explain(MISSING))

    async def work(_: PackageRequest) -> list[Path]:
        return []

    cache = PackageCache()
    with pytest.raises(PackagesError, match=r"org\.example:missing:1\.0 not found"):
        await cache.fetch(request(tmp_path), fail)
    assert await cache.fetch(request(tmp_path), work) == []


async def test_a_cache_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def never(_: PackageRequest) -> list[Path]:
        raise AssertionError

    with pytest.raises(PackagesError, match=r"directory .*/file/ivy cannot be used \(Not a directory\); name another"):
        await PackageCache().fetch(request(tmp_path / "file" / "ivy"), never)
    with pytest.raises(PackagesError, match=r"ivySettings=/mine\.xml may name repositories elsewhere"):
        await PackageCache().fetch(request(tmp_path, settings_file="/mine.xml", offline=True), never)
