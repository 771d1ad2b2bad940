"""Spark's own UI of running drivers: their settings, and how a driver that serves one is found."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.cluster.history_commands import event_log_url
from runtime.errors import ClusterError
from runtime.spark.driver.api import DriverInfo
from runtime.spark.driver.ui import filter_settings, find_uis, is_served, ui_settings
from runtime.spark.process import start_time
from runtime.taskexecutor.spark_options import driver_options

KEY = b"k" * 32
KEY_NAME = "spark.org.apache.spark.ui.JWSFilter.param.secretKey"


@pytest.mark.parametrize(
    ("value", "is_on"), [("true", True), (" TRUE", True), ("false", False), ("", False), ("yes", False)]
)
def test_a_driver_serves_its_ui_if_spark_would(value: str, is_on: bool) -> None:
    assert is_served({"spark.ui.enabled": value}) is is_on
    assert not is_served({})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "true"),
        ({"spark.ui.enabled": "false"}, "false"),
        ({"spark.master": "spark://host:7077"}, "false"),
        ({"spark.master": "spark://host:7077", "spark.ui.enabled": "true"}, "true"),
    ],
)
def test_drivers_of_this_machine_serve_their_ui_unless_it_is_turned_off(
    tmp_path: Path, given: dict[str, str], expected: str
) -> None:
    options = driver_options(Configuration.from_dict(given), tmp_path / "work", tmp_path / "spark.log")
    assert {"spark.ui.enabled": "false", **options.conf}["spark.ui.enabled"] == expected


def test_the_ui_of_a_driver_is_for_those_with_a_token_and_kills_nothing() -> None:
    own = {"spark.ui.port": "4040", "spark.ui.killEnabled": "true", KEY_NAME: "known", "spark.ui.filters": "a.B, c.D"}
    assert ui_settings({}, KEY) == {
        "spark.ui.port": "0",
        "spark.ui.killEnabled": "false",
        "spark.ui.filters": "org.apache.spark.ui.JWSFilter",
        KEY_NAME: "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s",
    }
    settings = {**own, **ui_settings(own, KEY)}
    assert settings["spark.ui.filters"] == "org.apache.spark.ui.JWSFilter,a.B,c.D", "the user's come after it"
    assert (settings["spark.ui.port"], settings["spark.ui.killEnabled"]) == ("4040", "false")
    assert settings[KEY_NAME] == filter_settings({}, KEY)[KEY_NAME]
    twice = filter_settings({"spark.ui.filters": "org.apache.spark.ui.JWSFilter"}, KEY)
    assert twice["spark.ui.filters"] == "org.apache.spark.ui.JWSFilter"


def driver(work_dir: Path, application: str, port: int = 4040) -> DriverInfo:
    work_dir.mkdir(parents=True)
    started = start_time(os.getpid())
    assert started is not None
    info = DriverInfo(
        os.getpid(), started, "4.3.0", "local[2]", str(work_dir), "log", application=application, ui_port=port,
        ui_key=KEY.hex(),
    )  # fmt: skip
    info.write()
    assert KEY.hex() not in repr(info)
    return info


def test_the_drivers_that_run_and_serve_their_ui_are_found(tmp_path: Path) -> None:
    shared = driver(tmp_path / "tm-0" / "spark", "local-1")
    alone = driver(tmp_path / "tm-1" / "tasks" / "job" / "attempt" / "spark", "local-2")
    driver(tmp_path / "tm-2" / "spark", "local-3", port=0)
    ended = driver(tmp_path / "tm-3" / "spark", "local-4")
    replace(ended, start_time=ended.start_time + 1).write()
    (tmp_path / "tm-4" / "spark").mkdir(parents=True)
    (tmp_path / "tm-4" / "spark" / "driver.json").write_text("{")
    assert find_uis(tmp_path) == {"local-1": shared, "local-2": alone}


def test_the_history_server_starts_for_a_ui_without_event_logs(tmp_path: Path) -> None:
    elsewhere = {"spark.eventLog.dir": str(tmp_path / "missing")}
    driver(tmp_path / "tm-0" / "spark", "local-1")
    with pytest.raises(ClusterError, match="missing does not exist"):
        event_log_url(elsewhere, tmp_path)
    assert event_log_url({}, tmp_path) == f"file://{tmp_path}/spark-events"
    assert stat.S_IMODE((tmp_path / "spark-events").stat().st_mode) == 0o700
