"""Sends the spans of a job's trace: to files, and to an OpenTelemetry collector by OTLP/HTTP.

Neither delays the job. Each destination has a thread and a bounded queue; spans that find the queue full are dropped
and counted. Spans are computed a moment after something of the job has changed (`runtime.jobmaster.spans`). A span is
sent once by each JobMaster of a job. A successor may send it again, with the same id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from conf.files import append_line
from conf.options import ClusterOptions, TraceOptions
from runtime import __version__
from runtime.alarm import Alarm
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.spans import Span, Value, otlp_json, spans_of
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.trace_context import JobTrace

DELAY_S = 0.5
"""Seconds from a change of the job until its spans are sent: all changes in it take one look."""
CLOSE_S = 2.0
"""Seconds that the end of a JobMaster waits for the last spans to arrive."""
MOST_WAITING = 2048
"""Number of spans that wait for a destination (OpenTelemetry's ``OTEL_BSP_MAX_QUEUE_SIZE``)."""
MOST_AT_ONCE = 512
"""Number of spans in one request (OpenTelemetry's ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE``)."""
FILE = "traces.jsonl"
FILES = 4
"""Number of files that share `traces.max-size`, the present one included."""
ANSWER_S = 10.0
MOST_OF_AN_ANSWER = 64 * 1024
_BUSY = (429, 502, 503, 504)
"""Answers of a collector after which the same request may be repeated (OTLP specification)."""

logger = logging.getLogger(__name__)

Write = Callable[[Sequence[Span]], int]
"""Delivers spans and returns how many were refused. Raises OSError if the same call may succeed later, and
`RefusedError` if it never will."""


class RefusedError(Exception):
    """The destination refuses these spans, and would refuse them again."""


class SpanSender:
    """Delivers spans to one destination, from a thread of its own that ends with the process.

    Args:
        name: of the destination, for the log.
        write: delivers; called on the thread.
        most: number of spans that may wait.
        pause_s: seconds from a failure to the next attempt.
    """

    def __init__(self, name: str, write: Write, *, most: int = MOST_WAITING, pause_s: float = 1.0) -> None:
        self._name = name
        self._write = write
        self._most = most
        self._pause_s = pause_s
        self._waiting: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._complaint = ""
        self.exported = 0
        self.dropped = 0

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans, as far as there is room. Returns at once."""
        with self._changed:
            room = 0 if self._closing else self._most - len(self._waiting)
            self._waiting.extend(spans[:room])
            self.dropped += max(len(spans) - room, 0)
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._run, name=f"spans to {self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Try the waiting spans a last time, and drop those that do not arrive. Blocks for at most *timeout_s*."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            if self.dropped:
                logger.warning("%d spans did not get into %s: %s", self.dropped, self._name, self._complaint or "late")

    def _run(self) -> None:
        while batch := self._next():
            is_last = self._closing
            try:
                refused, complaint = self._write(batch), ""
            except OSError as error:
                self._complain(str(error) or type(error).__name__)
                if is_last:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, self._pause_s)
                continue
            except RefusedError as error:
                refused, complaint = len(batch), str(error)
            self._complain(complaint)
            with self._changed:
                if not self._waiting:
                    return  # `close` has given up, and counted them
                for _ in batch:
                    self._waiting.popleft()
                self.dropped += refused
                self.exported += len(batch) - refused

    def _next(self) -> list[Span]:
        """Wait for spans and return the next ones, which stay in the queue; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return list(islice(self._waiting, MOST_AT_ONCE))

    def _complain(self, complaint: str) -> None:
        """Log a new failure once, and its end."""
        if complaint and complaint != self._complaint:
            logger.warning("spans do not get into %s: %s", self._name, complaint)
        elif self._complaint and not complaint:
            logger.info("spans get into %s again", self._name)
        self._complaint = complaint


class SpanFiles:
    """Appends spans to files that all JobMasters of a machine share, and deletes the oldest ones.

    Each line is one request of OTLP/JSON, as the collector's receiver ``otlpjsonfile`` reads it.

    Args:
        directory: of the files.
        max_bytes: of all of them together; the last line may exceed it.
        resource: attributes of the sender.
    """

    def __init__(self, directory: Path, max_bytes: int, resource: Mapping[str, Value]) -> None:
        self._path = directory / FILE
        self._most = max_bytes // FILES
        self._resource = resource

    def write(self, spans: Sequence[Span]) -> int:
        """Append a line. A loss of power may lose the last ones. Raises OSError."""
        append_line(self._path, _encoded(spans, self._resource), self._most, self._set_aside)
        return 0

    def _set_aside(self) -> None:
        self._path.rename(self._path.with_name(f"traces-{time.time_ns():020d}.jsonl"))
        for surplus in sorted(self._path.parent.glob("traces-*.jsonl"))[: 1 - FILES]:
            surplus.unlink(missing_ok=True)


class Collector:
    """Sends spans to an OpenTelemetry collector by OTLP/HTTP with JSON.

    Args:
        url: of the collector, with user and password if it requires them.
        resource: attributes of the sender.
    """

    def __init__(self, url: str, resource: Mapping[str, Value]) -> None:
        parts = urlsplit(url)
        user, _, self._place = parts.netloc.rpartition("@")
        self._path = f"{parts.path.rstrip('/')}/v1/traces"
        self._host, self._port = parts.hostname or "", parts.port
        self._is_private = parts.scheme == "https"
        self._tls: ssl.SSLContext | None = None
        self._resource = resource
        self._headers = {"Content-Type": "application/json"}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
        self.name = f"{parts.scheme}://{self._place}{self._path}"

    def write(self, spans: Sequence[Span]) -> int:
        """Send a request, without following redirects; see `Write`."""
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.request("POST", self._path, _encoded(spans, self._resource), self._headers)
                response = connection.getresponse()
                body = response.read(MOST_OF_AN_ANSWER)
        except (http.client.HTTPException, UnicodeError) as error:  # UnicodeError: of a name that is not a host's
            raise OSError(f"the request fails: {error!r}") from error
        if response.status in _BUSY:
            raise OSError(f"status {response.status}")
        if not 200 <= response.status < 300:
            raise RefusedError(f"status {response.status}")
        return min(_rejected(body), len(spans))

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_private:
            return http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        if self._tls is None:  # it reads the system's authorities, which takes a while
            self._tls = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=ANSWER_S, context=self._tls)


def _rejected(body: bytes) -> int:
    """Return how many spans of a request a collector has refused, by its answer."""
    try:
        found = json.loads(body)["partialSuccess"]["rejectedSpans"]
        return max(int(found), 0)  # a 64-bit number is a text
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _encoded(spans: Sequence[Span], resource: Mapping[str, Value]) -> bytes:
    return json.dumps(otlp_json(spans, resource), separators=(",", ":")).encode()


def sends_traces(configuration: Configuration) -> bool:
    """Return whether the cluster sends traces anywhere."""
    get = configuration.get
    return get(TraceOptions.DIRECTORY) is not None or get(TraceOptions.ENDPOINT) is not None


def senders_of(configuration: Configuration) -> list[SpanSender]:
    """Return a sender for each configured destination."""
    resource: dict[str, Value] = {
        "service.name": "understudy",
        "service.version": __version__,
        "understudy.cluster.id": configuration.get(ClusterOptions.ID),
    }
    found = []
    directory, url = configuration.get(TraceOptions.DIRECTORY), configuration.get(TraceOptions.ENDPOINT)
    if directory is not None:
        files = SpanFiles(directory, configuration.get(TraceOptions.MAX_SIZE), resource)
        found.append(SpanSender(str(directory / FILE), files.write))
    if url is not None:
        collector = Collector(url.reveal(), resource)
        found.append(SpanSender(collector.name, collector.write))
    return found


class JobTraces:
    """Sends the spans of one job as they end.

    Args:
        endpoint: the JobMaster, on whose main thread everything here runs.
        trace: of the job.
        job: as it was submitted.
        senders: the destinations.
        take: returns the present state of the job; None if this JobMaster does not lead any more.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        trace: JobTrace,
        job: JobGraph,
        senders: Sequence[SpanSender],
        take: Callable[[], ArchivedExecutionGraph | None],
    ) -> None:
        self._endpoint = endpoint
        self._trace = trace
        self._job = job
        self._senders = senders
        self._take = take
        self._sent: set[str] = set()
        self._alarm = Alarm(endpoint, self.collect)

    def changed(self) -> None:
        """Send soon what has ended."""
        self._alarm.set_in(DELAY_S)

    def collect(self) -> None:
        """Send the spans that have ended and were not sent. Raises nothing: a defect here must not keep a job."""
        try:
            graph = self._take()
            if graph is None:
                return
            spans = spans_of(self._trace, self._job, graph)
        except Exception:
            logger.exception("the spans of job %s are missing", self._job.job_id)
            return
        new = [span for span in spans if span.span_id not in self._sent]
        self._sent = {span.span_id for span in spans}  # no longer those of attempts that the graph has forgotten
        if new:
            for sender in self._senders:
                sender.put(new)

    def counts(self) -> dict[str, int]:
        """Return how many spans have arrived and how many were dropped, at all destinations together."""
        return {
            "numSpansExported": sum(sender.exported for sender in self._senders),
            "numSpansDropped": sum(sender.dropped for sender in self._senders),
        }

    async def close(self) -> None:
        """Wait a moment for the last spans to arrive."""
        await asyncio.gather(*(self._endpoint.run_blocking(sender.close, CLOSE_S) for sender in self._senders))
