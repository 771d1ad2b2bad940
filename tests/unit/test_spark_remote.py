"""An existing Spark Connect endpoint: its URL, what of it is shown, what is refused there; no Spark."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import SparkOptions
from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.api import DriverInfo
from runtime.spark.driver.remote import RemoteDriver, adopt_driver, check_remote, shown_url
from runtime.spark.errors import DriverLostError, DriverStartError, UnsupportedByEndpointError
from runtime.spark.process import start_time
from runtime.spark.spec import ConnectEndpoint
from runtime.spark.task.streaming import refuse_streaming_queries
from runtime.taskexecutor.spark_options import remote_options
from tests.waiting import PATIENCE_S

URL = "sc://localhost:1/;token=nobody-may-see"


@pytest.mark.parametrize("url", ["sc://a", "sc://a:15002", "sc://a/", "sc://[::1]:1/;use_ssl=true;token=x;"])
def test_urls_that_are_taken(url: str) -> None:
    taken = Configuration.from_dict({"spark.remote": url}).get(SparkOptions.REMOTE)
    assert taken is not None
    assert taken.reveal() == url


@pytest.mark.parametrize("url", ["a:1", "sc://", "sc://a:1/path", "sc://a/;token", "sc://a/;session_id=x", "http://a"])
def test_nonsense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sc://HOST:PORT"):
        Configuration.from_dict({"spark.remote": url})


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    configuration = Configuration.from_dict({"spark.remote": URL})
    assert configuration.to_dict(redacted=True)["spark.remote"] == "sc://localhost:1/;******"
    assert shown_url(URL) == "sc://localhost:1"
    options = remote_options(configuration, tmp_path, tmp_path / "log")
    assert options is not None
    assert (options.url, options.shown, options.failures) == (URL, "sc://localhost:1", 2)
    for value in (options, ConnectEndpoint(0, "", "id", remote=URL), _info(tmp_path)):
        assert "nobody-may-see" not in repr(value)


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("sc://a:1", "sc://a:1/;session_id=s;user_id=u"),
        ("sc://a:1/", "sc://a:1/;session_id=s;user_id=u"),
        ("sc://a:1/;token=t", "sc://a:1/;token=t;session_id=s;user_id=u"),
        ("sc://a:1/;token=t;", "sc://a:1/;token=t;session_id=s;user_id=u"),
    ],
)
def test_sessions_are_named_behind_what_there_is(remote: str, url: str) -> None:
    assert ConnectEndpoint(0, "", "s", "u", remote).url == url


def test_nobody_at_the_endpoint_is_one_line() -> None:
    with pytest.raises(
        DriverStartError, match=r"sc://localhost:1 does not answer \(UNAVAILABLE.*spark\.remote"
    ) as caught:
        check_remote(URL)
    assert "nobody-may-see" not in str(caught.value)
    assert "\n" not in str(caught.value)


def _info(directory: Path) -> DriverInfo:
    """An endpoint that this process watches."""
    pid = os.getpid()
    return DriverInfo(pid, start_time(pid) or 0, "4.1", "sc://localhost:1", str(directory), "log", remote=URL)


async def test_what_needs_the_jvm_is_refused(tmp_path: Path) -> None:
    _info(tmp_path).write()
    driver = await adopt_driver(tmp_path / "driver.json")
    assert isinstance(driver, RemoteDriver)
    with pytest.raises(UnsupportedByEndpointError, match="make it a pipeline"):
        await driver.open(JobKind.SCRIPT, "attempt")
    session = await driver.open(JobKind.PIPELINE, "attempt")
    assert isinstance(session, ConnectEndpoint)
    assert session.remote == URL
    assert await driver.streaming_queries(session) == []
    assert [file.name for file in (tmp_path / "sessions").iterdir()] == [session.session_id]
    with pytest.raises(DriverLostError, match="UNAVAILABLE"):
        await asyncio.wait_for(driver.reset(), PATIENCE_S)
    await driver.close()


def test_streaming_queries_are_refused() -> None:
    class Writer:
        def start(self) -> None: ...

        def toTable(self, name: str) -> None: ...  # noqa: N802

    refuse_streaming_queries(Writer)
    with pytest.raises(UnsupportedByEndpointError, match="neither checkpointed nor restored"):
        Writer().start()
    with pytest.raises(UnsupportedByEndpointError):
        Writer().toTable("t")
