"""How far a new Spark driver is warmed."""

from __future__ import annotations

import pytest

from conf.configuration import Configuration
from runtime.taskexecutor.spark_options import warm_up_queries


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
