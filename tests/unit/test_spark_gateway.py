"""The driver's gateway over a JVM that is written in Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.errors import DriverCallError


class Registry(dict[str, Any]):
    """Stands for the JVM's map of tasks."""

    def keySet(self) -> list[str]:  # noqa: N802
        return list(self)

    def put(self, name: str, entry: Any) -> None:
        self[name] = entry

    def remove(self, name: str) -> Any:
        return self.pop(name, None)


class Query:
    """Stands for a streaming query, whose first stop may fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.runs = True

    def stop(self) -> None:
        if self.failures:
            self.failures -= 1
            raise NotStopped
        self.runs = False


class NotStopped(Py4JJavaError):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.java_exception = "java.util.concurrent.TimeoutException: Stream Execution thread failed to stop"


class Entry(list[Any]):
    def get(self, index: int) -> Any:
        return self[index]


def test_a_task_stays_known_until_all_of_its_queries_have_stopped() -> None:
    stubborn, other, closed, registry = Query(failures=1), Query(), [], Registry()
    streams = SimpleNamespace(active=lambda: [query for query in (stubborn, other) if query.runs])
    server = SimpleNamespace(shutdown=lambda: closed.append("server"))
    output = SimpleNamespace(close=lambda: closed.append("output"))
    registry["task"] = Entry([server, Entry([SimpleNamespace(streams=lambda: streams)]), output])

    gateway = object.__new__(DriverGateway)
    jvm: dict[str, Any] = {"understudy.tasks": registry}
    context = SimpleNamespace(cancelJobsWithTag=lambda tag: None)
    gateway._handles = cast(Any, SimpleNamespace(properties=jvm))
    gateway._context = SimpleNamespace(sc=lambda: context, statusTracker=lambda: None)
    gateway.__dict__["_applications"] = SimpleNamespace(end=lambda name, session: closed.append(name))

    with pytest.raises(DriverCallError, match="failed to stop"):
        gateway.release_classic("task", True)
    assert not other.runs, "one that does not stop keeps no other running"
    assert gateway.classic_names() == ["task"], "a reset, or a repetition, ends the rest"
    assert closed == []

    gateway.release_classic("task", True)
    assert not stubborn.runs
    assert gateway.classic_names() == []
    assert closed == ["server", "output", "task"]
