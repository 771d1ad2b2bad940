"""Metrics that are sent to a push gateway: a real HTTP server, which notes what it is sent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from runtime.metrics.prometheus import PushReporter
from tests.waiting import PATIENCE_S

TEXT = "flink_jobmanager_numRunningJobs 1\n"
KEY = "metrics.reporter.promgateway."


class Gateway(ThreadingHTTPServer):
    """Answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.asked: list[tuple[str, str, bytes, str | None]] = []
        self.changed = threading.Condition()
        self.came, self.may_take = threading.Event(), threading.Event()
        self.may_take.set()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        gateway = self.server
        assert isinstance(gateway, Gateway)
        status = gateway.status
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        gateway.came.set()
        if self.command == "PUT":
            assert gateway.may_take.wait(PATIENCE_S)
        with gateway.changed:
            gateway.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
            gateway.changed.notify_all()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"" if status == 200 else b"no such thing\n")

    do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def text() -> str:
    return TEXT


def reporter(url: str, **more: str) -> PushReporter:
    settings = {f"{KEY}hostUrl": url, f"{KEY}interval": "0.1 s", "cluster.id": "here"}
    found = PushReporter.of(
        Configuration.from_dict(settings | {f"{KEY}{key}": value for key, value in more.items()}), text
    )
    assert found is not None
    return found


async def sent(gateway: Gateway, count: int) -> None:
    def wait() -> None:
        with gateway.changed:
            assert gateway.changed.wait_for(lambda: len(gateway.asked) >= count, PATIENCE_S)

    await asyncio.to_thread(wait)


async def test_metrics_are_put_again_and_again_and_forgotten_at_the_end(gateway: Gateway) -> None:
    sends = reporter(f"http://me:a%20word@{gateway.url}/prom/")
    sends.start()
    await sent(gateway, 2)
    await sends.stop(forget=True)
    assert set(gateway.asked[:-1]) == {("PUT", "/prom/metrics/job/here", TEXT.encode(), "Basic bWU6YSB3b3Jk")}
    assert gateway.asked[-1] == ("DELETE", "/prom/metrics/job/here", b"", "Basic bWU6YSB3b3Jk")


async def test_who_only_loses_the_lead_leaves_them_there(gateway: Gateway) -> None:
    sends = reporter(f"http://{gateway.url}", jobName="flights")
    await sends.stop()
    for _ in range(2):  # it may lead again
        begun = len(gateway.asked)
        sends.start()
        await sent(gateway, begun + 1)
        await sends.stop()
    keeps = reporter(f"http://{gateway.url}", jobName="flights", deleteOnShutdown="false")
    keeps.start()
    await sent(gateway, len(gateway.asked) + 1)
    await keeps.stop(forget=True)
    assert {(command, path) for command, path, _, _ in gateway.asked} == {("PUT", "/metrics/job/flights")}


async def test_a_gateway_that_refuses_is_told_of_once(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gateway.status = 404
    sends = reporter(f"http://me:secret@{gateway.url}")
    sends.start()
    await sent(gateway, 3)
    gateway.status = 200
    await sent(gateway, len(gateway.asked) + 2)
    await sends.stop()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("runtime.metrics")]
    assert told == [
        f"the push gateway did not take the metrics ({KEY}hostUrl): status 404: no such thing",
        "the push gateway takes the metrics again",
    ]
    assert "secret" not in caplog.text


class Turns:
    """A lock that says when somebody waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


async def test_what_is_on_its_way_does_not_come_after_the_end(gateway: Gateway) -> None:
    sends, turns = reporter(f"http://{gateway.url}"), Turns()
    sends._gateway._lock = turns  # type: ignore[assignment]
    gateway.may_take.clear()
    sends.start()
    await asyncio.to_thread(gateway.came.wait, PATIENCE_S)  # the metrics are on their way
    end = asyncio.create_task(sends.stop(forget=True))
    async with asyncio.timeout(PATIENCE_S):
        while not (turns.waits.is_set() or gateway.asked):  # noqa: ASYNC110 - of other threads
            await asyncio.sleep(0.005)
    gateway.may_take.set()
    await end
    assert [command for command, *_ in gateway.asked] == ["PUT", "DELETE"]


async def test_metrics_that_cannot_be_had_end_nothing(gateway: Gateway) -> None:
    answers = iter([RuntimeError("nobody leads"), TEXT])

    async def collect() -> str:
        answer = next(answers, TEXT)
        if isinstance(answer, Exception):
            raise answer
        return answer

    settings = {f"{KEY}hostUrl": f"http://{gateway.url}", f"{KEY}interval": "0.1 s"}
    sends = PushReporter.of(Configuration.from_dict(settings), collect)
    assert sends is not None
    sends.start()
    await sent(gateway, 1)
    await sends.stop()


def test_without_an_address_none_are_sent_and_others_than_http_are_refused() -> None:
    assert PushReporter.of(Configuration.from_dict({}), text) is None
    with pytest.raises(ConfigurationError, match=r"http:// or https://"):
        reporter("file:///etc/passwd")
