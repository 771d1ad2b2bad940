"""Which of Spark's event logs are removed, and what the settings of a driver that writes one are."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.configuration import Configuration
from conf.options import ClusterOptions, SparkOptions
from runtime.spark.driver import event_logs
from runtime.spark.driver.event_logs import (
    GRACE_S,
    EventLog,
    LogPart,
    Shortening,
    Tidying,
    decide,
    find,
    note_driver,
    tidy,
)
from runtime.spark.driver.launch import spark_conf
from runtime.spark.process import start_time
from runtime.taskexecutor.spark_options import driver_options

OFF = {"taskmanager.spark.event-log.enabled": "false"}
NOW = 1_000_000.0
DAY = 86400.0


def log(name: str, *sizes: int, age: float = 100.0, is_open: bool = False, has_driver: bool | None = False) -> EventLog:
    parts = tuple(
        LogPart(Path(name, f"events_{number}_{name}"), number, size, NOW - age - (len(sizes) - number))
        for number, size in enumerate(sizes, 1)
    )
    return EventLog(name, Path(name), parts, is_open, has_driver, NOW - age)


def removed(decision: Tidying) -> list[str]:
    return [each.application for each in decision.logs]


def test_logs_go_by_age_and_then_the_oldest_by_size() -> None:
    logs = [
        log("new", 40, age=10),
        log("old", 40, age=1000),
        log("middle", 40, age=100),
        log("ancient", 1, age=8 * DAY),
    ]
    assert removed(decide(logs, NOW, 7 * DAY, 1000)) == ["ancient"]
    assert removed(decide(logs, NOW, 7 * DAY, 119)) == ["ancient", "old"]
    assert removed(decide(logs, NOW, 7 * DAY, 40)) == ["ancient", "old", "middle"]
    assert removed(decide(logs, NOW, 7 * DAY, 0)) == ["ancient", "old", "middle", "new"]
    assert decide(logs, NOW, 9 * DAY, 1000) == Tidying()


def test_of_a_running_driver_the_first_and_the_last_part_stay_however_old() -> None:
    idle = log("idle", 10, 20, 30, 40, age=100 * DAY, is_open=True, has_driver=True)
    first, second, third, _ = (part.path for part in idle.parts)
    assert decide([idle], NOW, DAY, 1000) == Tidying()
    assert decide([idle], NOW, DAY, 99).shortenings == (Shortening(first, compacted(second), (second,)),)
    assert decide([idle], NOW, DAY, 0).shortenings == (Shortening(first, compacted(third), (second, third)),)
    ended = log("ended", 50, age=10)
    assert decide([idle, ended], NOW, DAY, 100) == Tidying(logs=(ended,)), "logs of ended drivers go first"
    assert decide([log("short", 5, 5, is_open=True, has_driver=True)], NOW, DAY, 0) == Tidying()
    touched = replace(idle, parts=(*idle.parts[:1], replace(idle.parts[1], changed_s=NOW), *idle.parts[2:]))
    assert decide([touched], NOW, DAY, 99).shortenings[0].removed == (second,), "a gap makes a log unreadable"


def compacted(path: Path) -> Path:
    return path.with_name(f"{path.name}.compact")


def test_the_log_of_a_killed_driver_goes_as_that_of_an_ended_one() -> None:
    killed = log("killed", 10, is_open=True, has_driver=False)
    assert decide([killed], NOW, DAY, 100) == Tidying()
    assert decide([killed], NOW, DAY, 0) == Tidying(logs=(killed,))
    assert decide([replace(killed, has_driver=True)], NOW, DAY, 0) == Tidying()


def test_a_log_of_an_unknown_driver_counts_as_begun_for_a_while() -> None:
    begun = log("begun", 10, age=GRACE_S - 1, is_open=True, has_driver=None)
    assert decide([begun], NOW, 0.0, 0) == Tidying()
    given_up = replace(begun, changed_s=NOW - GRACE_S - 1)
    assert decide([given_up], NOW, DAY, 0) == Tidying(logs=(given_up,))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 100), max_size=5), st.floats(0, 100), st.booleans(), st.sampled_from([True, False])
        ),
        max_size=6,
    ),
    st.floats(0, 100),
    st.integers(0, 300),
)
def test_what_is_left_is_within_the_bounds(
    given: list[tuple[list[int], float, bool, bool]], retention_s: float, max_bytes: int
) -> None:
    logs = [
        log(f"app-{number}", *sizes, age=age, is_open=is_open, has_driver=lives)
        for number, (sizes, age, is_open, lives) in enumerate(given)
    ]
    decision = decide(logs, NOW, retention_s, max_bytes)
    left = [each for each in logs if each not in decision.logs]
    assert all(NOW - each.changed_s <= retention_s for each in left if not each.has_driver)
    assert not any(each.has_driver for each in decision.logs)
    gone = {path for each in decision.shortenings for path in each.removed}
    kept = [part for each in left for part in each.parts if part.path not in gone]
    must = [part for each in left if each.has_driver for part in (*each.parts[:1], *each.parts[1:][-1:])]
    others = sum(part.size for part in kept) - sum(part.size for part in must)
    assert others <= max(0, max_bytes - sum(part.size for part in must)) or others == 0


def write(directory: Path, application: str, *, sizes: tuple[int, ...] = (3,), is_open: bool = True) -> Path:
    made = directory / f"eventlog_v2_{application}"
    made.mkdir(parents=True)
    (made / f"appstatus_{application}{'.inprogress' * is_open}").touch()
    for number, size in enumerate(sizes, 1):
        (made / f"events_{number}_{application}.zstd").write_bytes(b"x" * size)
    for path in (made, *made.iterdir()):  # as Spark sets them
        path.chmod(0o770 if path.is_dir() else 0o660)
    return made


def modes(directory: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}


def test_a_directory_of_logs_is_tidied(tmp_path: Path) -> None:
    started = start_time(os.getpid())
    assert started is not None
    event_logs.prepare(tmp_path / "events")
    directory = tmp_path / "events"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    write(directory, "app-10", sizes=(3,) * 11)
    killed, single = write(directory, "killed"), directory / "plain.zstd"
    single.write_bytes(b"xx")
    note_driver(directory, "app-10", os.getpid(), started)
    note_driver(directory, "killed", os.getpid(), started + 1)
    note_driver(directory, "gone", os.getpid(), started + 1)
    (directory / ".other").touch()
    found = {each.application: each for each in find(directory)}
    assert [part.number for part in found["app-10"].parts] == list(range(1, 12))
    assert {name: each.has_driver for name, each in found.items()} == {"app-10": True, "killed": False, "plain": None}
    now = found["killed"].changed_s
    assert tidy(directory, now, DAY, 1000) == []
    assert sorted(path.name for path in killed.iterdir()) == ["appstatus_killed.inprogress", "events_1_killed.zstd"]
    assert modes(directory) <= {0o700, 0o600, 0o644}  # .other and plain.zstd are not ours
    assert stat.S_IMODE(single.stat().st_mode) == 0o600
    assert not (directory / ".gone.driver").exists()
    assert sorted(tidy(directory, now + 2 * DAY, DAY, 6)) == ["killed", "plain"]
    left = sorted(path.name for path in directory.glob("eventlog_v2_*/events_*"))
    assert left == ["events_10_app-10.zstd.compact", "events_11_app-10.zstd"]
    assert {path.name for path in directory.iterdir()} == {"eventlog_v2_app-10", ".app-10.driver", ".other"}
    assert find(tmp_path / "nothing") == []


def test_a_log_that_is_made_shorter_again_or_was_left_halfway_has_no_gap(tmp_path: Path) -> None:
    started = start_time(os.getpid())
    assert started is not None
    made = write(tmp_path, "app", sizes=(3,) * 5)
    note_driver(tmp_path, "app", os.getpid(), started)

    def left(max_bytes: int) -> list[str]:
        tidy(tmp_path, NOW, DAY, max_bytes)
        return sorted(path.name for path in made.glob("events_*"))

    assert left(12) == ["events_2_app.zstd.compact", "events_3_app.zstd", "events_4_app.zstd", "events_5_app.zstd"]
    made.joinpath("events_2_app.zstd").touch()  # killed before it was removed
    assert left(12)[0] == "events_2_app.zstd.compact"
    assert left(9) == ["events_3_app.zstd.compact", "events_4_app.zstd", "events_5_app.zstd"]
    assert left(0) == ["events_4_app.zstd.compact", "events_5_app.zstd"]
    assert left(0) == ["events_4_app.zstd.compact", "events_5_app.zstd"]


def test_two_workers_that_make_a_log_shorter_leave_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start_time(os.getpid())
    assert started is not None
    made = write(tmp_path, "app", sizes=(3,) * 5)
    note_driver(tmp_path, "app", os.getpid(), started)
    seen = find(tmp_path)
    tidy(tmp_path, NOW, DAY, 12)
    monkeypatch.setattr(event_logs, "find", lambda _: seen)  # the other worker looked before, and removes more
    tidy(tmp_path, NOW, DAY, 0)
    left = sorted(path.name for path in made.glob("events_*"))
    assert left == ["events_2_app.zstd.compact", "events_3_app.zstd", "events_4_app.zstd", "events_5_app.zstd"]


def test_links_are_left_alone(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "events", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch(mode=0o666)
    mode = (elsewhere / "file").stat().st_mode
    event_logs.prepare(directory)
    (directory / "eventlog_v2_link").symlink_to(elsewhere)
    made = write(directory, "app")
    (made / "events_2_app.zstd").symlink_to(elsewhere / "file")
    tidy(directory, NOW * 1e6, 1.0, 0)
    assert (elsewhere / "file").stat().st_mode == mode
    assert not made.exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("true", "cluster's")),
        (OFF, (None, None)),
        ({"spark.eventLog.enabled": "false"}, ("false", "cluster's")),
        ({"spark.eventLog.dir": "file:///mine"}, ("true", "file:///mine")),
        ({**OFF, "spark.eventLog.enabled": "true"}, ("true", None)),
    ],
)
def test_a_users_own_settings_win(tmp_path: Path, given: dict[str, str], expected: tuple[str | None, str]) -> None:
    configuration = Configuration.from_dict({ClusterOptions.RUNTIME_DIR.key: str(tmp_path), **given})
    options = driver_options(configuration, tmp_path / "work", tmp_path / "spark.log")
    conf = spark_conf(options)
    own = (tmp_path / "spark-events").as_uri()
    enabled, directory = conf.get("spark.eventLog.enabled"), conf.get("spark.eventLog.dir")
    assert (enabled, "cluster's" if directory == own else directory) == expected
    if options.event_logs is not None:
        assert event_logs.is_written_to(options.event_logs, conf) is (expected == ("true", "cluster's"))


def test_the_bounds_are_options() -> None:
    configuration = Configuration.from_dict({})
    assert configuration.get(SparkOptions.EVENT_LOG_RETENTION) == 7 * DAY
    assert configuration.get(SparkOptions.EVENT_LOG_MAX_SIZE) == 1 << 30
