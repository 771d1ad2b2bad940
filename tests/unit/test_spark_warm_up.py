"""How far a new Spark driver is warmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from conf.configuration import Configuration
from runtime.spark.driver import warm
from runtime.spark.errors import ZygoteError
from runtime.taskexecutor.spark_options import warm_up_queries
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
