"""How far a new Spark driver is warmed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from conf.configuration import Configuration
from runtime.spark.driver import warm
from runtime.spark.errors import DriverCallError, ZygoteError
from runtime.taskexecutor import endpoint
from runtime.taskexecutor.spark_options import warm_up_queries
from runtime.taskexecutor.task import TaskFiles
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("settings", "queries"),
    [
        ({}, 150),
        ({"taskmanager.spark.warm-up-queries": "7"}, 7),
        ({"taskmanager.spark.warm-up-queries": "7", "spark.master": "local[2]"}, 7),
        ({"taskmanager.spark.warm-up-queries": "7", "spark.master": "spark://host:7077"}, 0),
        ({"taskmanager.spark.warm-up-queries": "7", "spark.remote": "sc://host:15002"}, 0),
    ],
)
def test_only_a_driver_that_does_its_own_work(settings: dict[str, str], queries: int) -> None:
    assert warm_up_queries(Configuration.from_dict(settings)) == queries


async def test_a_driver_that_hangs_keeps_no_job_of_our_own_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def hang(endpoint: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(warm, "RELEASE_S", 0.01)
    driver = Mock(open=AsyncMock(), release=hang)
    zygote = Mock(fork=AsyncMock(side_effect=ZygoteError("it cannot fork")))
    with pytest.raises(ZygoteError):
        await asyncio.wait_for(warm.try_driver(driver, zygote, tmp_path), PATIENCE_S)


async def test_a_warm_up_that_fails_keeps_no_processes_from_being_made_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoint, "warm_up", AsyncMock(side_effect=DriverCallError("the disk is full")))
    monkeypatch.setattr(endpoint, "keep_warming", Mock())
    executor: Any = SimpleNamespace(
        _warm_up=True,
        _directory=tmp_path,
        _driver=Mock(),
        _configuration=Configuration(),
        _rest=None,
        spawn=Mock(),
        log=logging.getLogger("test"),
    )
    pool = Mock(fill=AsyncMock())
    await endpoint.TaskExecutor._warm(executor, Mock(), pool)
    pool.fill.assert_awaited_once()
    assert "the Spark driver is not warm: the disk is full" in caplog.text


def test_a_line_for_the_user_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TaskFiles(Mock(), tmp_path / "removed by its job", Mock()).tell_user("it is ended by force")
    assert "the user was not told" in caplog.text
    assert "it is ended by force" in caplog.text
