"""Where spans go: files, and a real HTTP server; neither is waited for, and nothing grows while one is away."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from conf.errors import InvalidValueError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.spans import Span
from runtime.jobmaster.traces import (
    FILE,
    FILES,
    Collector,
    JobTraces,
    RefusedError,
    SpanFiles,
    SpanSender,
    senders_of,
    sends_traces,
)
from runtime.protocol.execution_state import ExecutionState
from runtime.trace_context import JobTrace
from tests.unit.test_execution_graph import Driver
from tests.unit.test_job_spans import ONE_TASK, report
from tests.waiting import PATIENCE_S

RESOURCE = {"service.name": "understudy"}


def a_span(number: int = 0) -> Span:
    return Span("a" * 32, f"{number:016x}", "", "job x", 1, 2)


def names_in(request: Any) -> list[str]:
    return [span["name"] for of in request["resourceSpans"] for scope in of["scopeSpans"] for span in scope["spans"]]


class Destination:
    """Notes spans; fails as often as it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.came: list[Span] = []
        self.calls = 0
        self.changed = threading.Condition()
        self.may_take = threading.Event()
        self.may_take.set()

    def write(self, spans: Sequence[Span]) -> int:
        with self.changed:
            self.calls += 1
            self.changed.notify_all()
        assert self.may_take.wait(PATIENCE_S)
        if self.failures:
            raise self.failures.pop(0)
        with self.changed:
            self.came += spans
            self.changed.notify_all()
        return 0

    def await_calls(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.calls >= count, PATIENCE_S)


def test_spans_that_fail_are_sent_again_in_order_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    there = Destination(OSError("away"), OSError("away"))
    sender = SpanSender("there", there.write, pause_s=0.0)
    sender.put([a_span(1), a_span(2)])
    sender.put([a_span(3)])
    there.await_calls(3)
    sender.close(PATIENCE_S)
    assert there.came == [a_span(1), a_span(2), a_span(3)]
    assert (sender.exported, sender.dropped) == (3, 0)
    assert caplog.messages == ["spans do not get into there: away", "spans get into there again"]


def test_a_destination_that_hangs_delays_nobody_and_its_queue_is_bounded() -> None:
    there = Destination()
    there.may_take.clear()
    sender = SpanSender("there", there.write, most=3)
    sender.put([a_span(1)])
    there.await_calls(1)  # from here on its thread hangs
    sender.put([a_span(2), a_span(3), a_span(4)])
    sender.put([a_span(5)])
    assert sender.dropped == 2
    sender.close(0.0)
    assert sender.dropped == 5
    there.may_take.set()


def test_the_end_tries_once_more_and_counts_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    there = Destination(*[OSError("away")] * 100)
    sender = SpanSender("there", there.write, pause_s=PATIENCE_S)
    sender.put([a_span(1)])
    there.await_calls(1)
    sender.close(PATIENCE_S)
    assert there.calls == 2
    assert sender.dropped == 1
    assert caplog.messages[-1] == "1 spans did not get into there: away"
    sender.put([a_span(2)])
    assert (sender.dropped, there.calls) == (2, 2)


def test_what_is_refused_is_not_sent_again() -> None:
    there = Destination(RefusedError("status 400"))
    sender = SpanSender("there", there.write)
    sender.put([a_span(1)])
    there.await_calls(1)
    sender.put([a_span(2)])
    sender.close(PATIENCE_S)
    assert there.came == [a_span(2)]
    assert (sender.exported, sender.dropped) == (1, 1)


def test_a_sender_without_spans_has_no_thread() -> None:
    sender = SpanSender("there", Destination().write)
    before = threading.active_count()
    sender.put([])
    assert threading.active_count() == before
    sender.close(PATIENCE_S)


def test_files_are_private_and_bounded(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    files = SpanFiles(directory, 4000 * FILES, RESOURCE)
    for number in range(200):
        assert files.write([a_span(number)]) == 0
    found = sorted(directory.iterdir())
    assert len(found) == FILES
    assert directory / FILE in found
    assert all(path.stat().st_size <= 4000 and stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    assert all(names_in(line) == ["job x"] for line in lines)
    last = json.loads((directory / FILE).read_text().splitlines()[-1])
    assert last["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"] == f"{199:016x}"


class Server(ThreadingHTTPServer):
    """A collector: answers with `status` and `answer`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.answer = b"{}"
        self.asked: list[tuple[str, bytes, str | None, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.asked.append((self.path, body, self.headers["Content-Type"], self.headers["Authorization"]))
        self.send_response(server.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(server.answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def collector(server: Server, user: str = "") -> Collector:
    return Collector(f"http://{user}127.0.0.1:{server.server_address[1]}/", RESOURCE)


def test_a_collector_gets_otlp_by_http_and_its_password_is_in_no_name(server: Server) -> None:
    sends = collector(server, "me:hidden@")
    assert sends.write([a_span()]) == 0
    ((path, body, media, user),) = server.asked
    assert (path, media, user) == ("/v1/traces", "application/json", "Basic bWU6aGlkZGVu")
    assert names_in(json.loads(body)) == ["job x"]
    assert "hidden" not in sends.name


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_collector_is_asked_again(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(OSError, match=str(status)):
        collector(server).write([a_span()])


@pytest.mark.parametrize("status", [307, 400, 401, 404, 500])
def test_a_refusal_and_a_redirect_are_final(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(RefusedError, match=str(status)):
        collector(server).write([a_span()])
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"no"}}', 1),
        (b'{"partialSuccess":{"rejectedSpans":99}}', 2),
        (b'{"partialSuccess":{}}', 0),
        (b"no JSON", 0),
        (b"[]", 0),
    ],
)
def test_spans_that_a_collector_rejects_are_counted(server: Server, answer: bytes, refused: int) -> None:
    server.answer = answer
    assert collector(server).write([a_span(1), a_span(2)]) == refused


def test_a_collector_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match="refused"):
        Collector("http://127.0.0.1:1", RESOURCE).write([a_span()])


def test_traces_are_off_unless_they_have_a_place_to_go(tmp_path: Path) -> None:
    off = Configuration.from_dict({})
    assert not sends_traces(off)
    assert senders_of(off) == []
    both = Configuration.from_dict({"traces.directory": str(tmp_path), "traces.otlp.endpoint": "http://127.0.0.1:4318"})
    assert sends_traces(both)
    assert len(senders_of(both)) == 2


class Endpoint:
    """Keeps the timers of a JobMaster."""

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def schedule_run_async(self, delay_s: float, action: Any) -> None:
        self.timers.append(action)


def test_a_job_sends_each_span_once_and_looks_once_for_many_changes() -> None:
    driver = Driver(graph=ONE_TASK)
    there = Destination()
    sender = SpanSender("there", there.write)
    endpoint: Any = Endpoint()
    trace = JobTrace.of(driver.job.job_id, "", is_on=True)
    traces = JobTraces(endpoint, trace, driver.job, [sender], lambda: driver.graph.archive())
    driver.start()
    for _ in range(5):
        traces.changed()
    assert len(endpoint.timers) == 1
    driver.assign("a")
    traces.collect()
    report(driver, "a", ExecutionState.RUNNING, ExecutionState.FINISHED)
    traces.collect()
    traces.collect()
    sender.close(PATIENCE_S)
    assert [span.name for span in there.came].count("slot") == 1
    assert len({span.span_id for span in there.came}) == len(there.came)
    assert f"job {driver.job.name}" in {span.name for span in there.came}
    assert traces.counts() == {"numSpansExported": len(there.came), "numSpansDropped": 0}


def test_a_defect_of_traces_keeps_no_job_from_its_end(caplog: pytest.LogCaptureFixture) -> None:
    def take() -> None:
        raise KeyError("a defect")

    endpoint: Any = Endpoint()
    job = JobGraph.for_script("x")
    JobTraces(endpoint, JobTrace.of(job.job_id, "", is_on=True), job, [], take).collect()
    assert caplog.messages == [f"the spans of job {job.job_id} are missing"]


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://h:99999", "http://h:x", "http://", "http://h/?q=1", "http://h:0", "http://h i"]
)
def test_an_endpoint_that_is_none_is_refused_before_any_job_runs(url: str) -> None:
    with pytest.raises(InvalidValueError, match="traces"):
        Configuration.from_dict({"traces.otlp.endpoint": url})


def test_a_job_master_that_no_longer_leads_sends_nothing() -> None:
    there = Destination()
    sender = SpanSender("there", there.write)
    job = JobGraph.for_script("x")
    endpoint: Any = Endpoint()
    JobTraces(endpoint, JobTrace.of(JobID("a" * 32), "", is_on=True), job, [sender], lambda: None).collect()
    sender.close(PATIENCE_S)
    assert there.calls == 0
