"""A process is as before after sessions of PySpark's Connect client."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import grpc
import pytest
from pyspark.sql import SparkSession

from runtime.spark.connect_session import CONNECT_MODE, connect_session
from runtime.spark.errors import DriverLostError


class Builder:
    """PySpark's builder, as far as its effect on the process goes; its session is itself."""

    ended = 0

    @property
    def client(self) -> Builder:
        return self

    def set_retry_policies(self, policies: list[Any]) -> None:
        self.policies = policies

    def remote(self, url: str) -> Builder:
        self.url = url
        return self

    def create(self) -> Builder:
        if self.url == "sc://broken":
            raise RuntimeError(self.url)
        os.environ[CONNECT_MODE] = "1"
        return self

    def stop(self) -> None:
        self.ended += 1


class Driver:
    """The process behind the endpoint."""

    alive = True
    loss = "the Spark driver (process 7) has ended"


class Unavailable(grpc.RpcError):
    """The error of a call that nothing answers."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


DRIVER: Any = Driver()


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_as_before_when_the_last_session_has_ended(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder()
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setenv(CONNECT_MODE, "")  # it is restored after the test
    os.environ.pop(CONNECT_MODE)
    if before is not None:
        os.environ[CONNECT_MODE] = before

    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(connect_session("sc://here", DRIVER))
    second.enter_context(connect_session("sc://here", DRIVER))
    first.close()
    assert os.environ[CONNECT_MODE] == "1", "the second session still needs it"
    second.close()
    assert os.environ.get(CONNECT_MODE) == before
    assert builder.ended == 2

    with pytest.raises(RuntimeError, match="sc://broken"), connect_session("sc://broken", DRIVER):
        pass
    with pytest.raises(ValueError, match="in it"), connect_session("sc://here", DRIVER):
        raise ValueError("in it")
    assert os.environ.get(CONNECT_MODE) == before
    assert builder.ended == 3


def test_calls_are_repeated_only_while_the_driver_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, driver = Builder(), Driver()
    served: Any = driver
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setenv(CONNECT_MODE, "")

    repeated = []

    def work() -> None:
        with connect_session("sc://here", served):
            [policy] = builder.policies
            repeated.append(policy.can_retry(Unavailable()))
            driver.alive = False
            repeated.append(policy.can_retry(Unavailable()))
            raise Unavailable

    with pytest.raises(DriverLostError, match="process 7"):
        work()
    assert repeated == [True, False]
    assert builder.ended == 1
