"""A process is as before after sessions of PySpark's Connect client."""

from __future__ import annotations

import contextlib
import os

import pytest
from pyspark.sql import SparkSession

from runtime.spark.connect_session import CONNECT_MODE, connect_session


class Builder:
    """PySpark's builder, as far as its effect on the process goes; its session is itself."""

    ended = 0

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
    first.enter_context(connect_session("sc://here"))
    second.enter_context(connect_session("sc://here"))
    first.close()
    assert os.environ[CONNECT_MODE] == "1", "the second session still needs it"
    second.close()
    assert os.environ.get(CONNECT_MODE) == before
    assert builder.ended == 2

    with pytest.raises(RuntimeError, match="sc://broken"), connect_session("sc://broken"):
        pass
    with pytest.raises(ValueError, match="in it"), connect_session("sc://here"):
        raise ValueError("in it")
    assert os.environ.get(CONNECT_MODE) == before
    assert builder.ended == 3
