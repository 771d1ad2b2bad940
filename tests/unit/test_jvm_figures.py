"""What is asked of a JVM for its figures; the JVM's beans are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.driver.jvm import JvmHandles

USAGE = "init = 1(0K) used = 2(0K) committed = 3(0K) max = -1(-1K)"


def usage() -> Any:
    return Mock(toString=lambda: USAGE)


def buffer(name: str) -> Any:
    return Mock(getName=lambda: name, getCount=lambda: 1, getMemoryUsed=lambda: 2, getTotalCapacity=lambda: 3)


def handles(*pools: str) -> JvmHandles:
    """Handles of a JVM that keeps its memory in these pools."""
    beans = Mock(
        getMemoryMXBean=lambda: Mock(getHeapMemoryUsage=usage, getNonHeapMemoryUsage=usage),
        getMemoryPoolMXBeans=lambda: [Mock(getName=lambda name=name: name, getUsage=usage) for name in pools],
        getPlatformMXBeans=lambda _: [buffer("direct"), buffer("mapped")],
        getGarbageCollectorMXBeans=lambda: [
            Mock(getName=lambda: "G1 Young Generation", getCollectionCount=lambda: 4, getCollectionTime=lambda: 5)
        ],
    )
    made = JvmHandles(cast(Any, Mock()))
    made.beans = beans
    return made


@pytest.mark.parametrize(("pools", "has_metaspace"), [(("Metaspace", "CodeCache"), True), (("class storage",), False)])
def test_a_jvm_of_another_kind_has_no_metaspace_and_its_other_figures(
    pools: tuple[str, ...], has_metaspace: bool
) -> None:
    found = DriverGateway.jvm_figures(cast(DriverGateway, SimpleNamespace(_handles=handles(*pools))))
    assert (found["Memory.Heap.Used"], found["Memory.Heap.Committed"], found["Memory.Heap.Max"]) == (2, 3, -1)
    assert ("Memory.Metaspace.Used" in found) == has_metaspace
    assert found["GarbageCollector.G1_Young_Generation.Count"] == found["GarbageCollector.All.Count"] == 4
