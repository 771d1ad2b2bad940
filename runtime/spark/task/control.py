"""A task process's side of its control socket: what it tells, and how a cancel gets into the user's code."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import STOP_REFUSED, QueryLostError, TaskCancelled
from runtime.spark.wire import BlockingChannel, Message
from runtime.threads import thread_stacks

_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1])

_STOP_HINT = (
    "a script cannot stop the SparkContext that it shares with other jobs; use spark.stop(), or submit the job with "
    "--own-driver"
)

_MAX_TEXT = 200_000
"""Characters of a traceback that travel; Java's may be very long. The first lines and the last ones are kept."""


def describe(error: BaseException, files: dict[str, str]) -> dict[str, Any]:
    """Return an error as plain data: `type`, `message`, `error_class` (PySpark's condition, or None), `traceback`.

    `files` maps paths of the job's files to the names to be shown.
    """
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _clean(summary, files, set())
    kind = type(error)
    text = str(error)
    if STOP_REFUSED in text:
        text = f"{_STOP_HINT}: {text}"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return {
        "type": f"{module}{kind.__qualname__}",
        "message": _clip(text),
        "error_class": _error_class(error),
        "traceback": _clip("".join(summary.format())),
    }


def _clean(summary: traceback.TracebackException, files: dict[str, str], seen: set[int]) -> None:
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not frame.filename.startswith((_OWN_DIRECTORY, "<frozen"))]
    for frame in kept:
        frame.filename = files.get(frame.filename, frame.filename)
    summary.stack = traceback.StackSummary.from_list(kept)
    file = getattr(summary, "filename", None)  # of a SyntaxError
    if file is not None:
        summary.filename = files.get(file, file)
    for linked in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        if linked is not None:
            _clean(linked, files, seen)


def _error_class(error: BaseException) -> str | None:
    """The error condition of PySpark's exceptions, such as TABLE_OR_VIEW_NOT_FOUND."""
    for name in ("getCondition", "getErrorClass"):
        method = getattr(error, name, None)
        if callable(method):
            try:
                value = method()
            except Exception:  # a Java exception whose JVM is gone cannot say
                return None
            return None if value is None else str(value)
    return None


def _clip(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - _MAX_TEXT} characters left out ...\n{text[-half:]}"


EXIT_ORPHANED = 137
"""Exit status of a task whose TaskExecutor closed its end of the control socket."""

_CALL_GRACE = 5.0
"""Seconds that a call into the JVM may take to return after its Spark jobs were cancelled."""

FailedQuery = tuple[str, str, str]
"""Run id, name and error of a streaming query that has failed."""


class Cancellation:
    """Raises `TaskCancelled` in the main thread, once the task's Spark jobs have been cancelled.

    The exception is raised by a SIGTERM to the main thread, which interrupts whatever blocks there; a SIGTERM from
    outside is a cancel too. While the main thread is in a call into the JVM, the exception waits for the call's return:
    a Py4J connection that is left in the middle of a call would give its late answer to the next one.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._stop_spark: Callable[[], None] | None = None
        self._deliver = False
        self._signals = 0  # of our own that have not come in yet
        self._depth = 0
        self._closed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """Take SIGTERM; to be called on the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def on_request(self, stop_spark: Callable[[], None]) -> None:
        """Say how the task's Spark jobs are cancelled. A cancel that came before is carried out now."""
        self._stop_spark = stop_spark
        self.checkpoint()

    def checkpoint(self) -> None:
        """Raise `TaskCancelled` where a cancel was requested."""
        if self.requested.is_set() and not self._closed:
            raise TaskCancelled("the task was cancelled")

    def request(self) -> None:
        """Cancel the task; to be called on another thread than the main one."""
        with self._lock:
            if self._closed:
                return
            self.requested.set()
            try:
                if self._stop_spark is not None:
                    self._stop_spark()
            finally:
                self._raise_in_main_thread()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call into the JVM on the main thread, which a cancel does not tear."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._deliver:
                self._deliver = False
                raise TaskCancelled("the task was cancelled")

    def close(self) -> None:
        """From now on nothing is raised: the user's code is over."""
        self._closed = True

    def _raise_in_main_thread(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        self._deliver = True
        self._signals += 1
        signal.pthread_kill(main, signal.SIGTERM)
        deadline = time.monotonic() + _CALL_GRACE
        while self._deliver and not self._closed and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._deliver and not self._closed:
            self._depth = 0
            self._signals += 1
            signal.pthread_kill(main, signal.SIGTERM)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._closed:
            return
        if self._signals == 0:
            threading.Thread(target=self.request, name="cancel", daemon=True).start()
            return
        self._signals -= 1
        if self._deliver and self._depth == 0:
            self._deliver = False
            raise TaskCancelled("the task was cancelled")


class TaskControl:
    """The control socket: what the task tells goes out from any thread, a cancel comes in on a thread of its own."""

    def __init__(self, channel: BlockingChannel, cancellation: Cancellation) -> None:
        self._channel = channel
        self._cancellation = cancellation
        self._leases: dict[int, SimpleQueue[str | None]] = {}
        self.failed_queries: Callable[[], list[FailedQuery]] = list
        """What gives the streaming queries that have failed and were not started again."""

    def start(self) -> None:
        """Start to read."""
        threading.Thread(target=self._read, name="task-control", daemon=True).start()

    def tell(self, kind: str, **values: Any) -> None:
        """Send a message. A TaskExecutor that is gone ends the task by the reading side."""
        with contextlib.suppress(OSError):
            self._channel.send({"type": kind, **values})

    def tell_query(self, query: QueryLocation, batch_id: int, note: str) -> None:
        """Say that the task is about to start a streaming query.

        Args:
            query: the query.
            batch_id: the last batch that it has committed.
            note: what state was put back for it, and why; empty where it goes on from its own files.
        """
        self.tell("query", name=query.name, location=query.location, sink=query.sink, batch=batch_id, note=note)

    def tell_note(self, text: str) -> None:
        """Say what is to be added to the failure of the task, if it fails."""
        self.tell("note", text=text)

    def tell_query_failed(self, name: str, error: BaseException) -> None:
        """Say that a streaming query has failed, or is lost, and that the task's code does nothing about it."""
        if isinstance(error, QueryLostError):
            self.tell("query_lost", name=name)
        else:
            self.tell("query_failed", name=name, error=describe(error, {}))

    def acquire_lease(self, location: str) -> None:
        """Have the TaskExecutor see to it that nobody else writes to a checkpointLocation.

        Raises:
            LocationInUseError: somebody does.
        """
        answer: SimpleQueue[str | None] = SimpleQueue()
        number = id(answer)
        self._leases[number] = answer
        try:
            self.tell("lease", number=number, location=location)
            error = answer.get()
        finally:
            del self._leases[number]
        if error is not None:
            from runtime.checkpoint.lease import LocationInUseError  # most tasks have no streaming query

            raise LocationInUseError(error)

    def _read(self) -> None:
        while (message := self._channel.receive()) is not None:
            self._handle(message)
        os._exit(EXIT_ORPHANED)

    def _handle(self, message: Message) -> None:
        match message.get("type"):
            case "cancel":
                threading.Thread(target=self._cancellation.request, name="cancel", daemon=True).start()
            case "lease":
                if (answer := self._leases.get(message.get("number", 0))) is not None:
                    answer.put(message.get("error"))
            case "dump_threads":
                self.tell("threads", number=message.get("number"), threads=thread_stacks())
            case "failed_queries":
                threading.Thread(target=self._tell_failed, args=(message,), name="failed-queries", daemon=True).start()

    def _tell_failed(self, message: Message) -> None:
        """On a thread of its own, for Spark has to be asked."""
        self.tell("failed_queries", number=message.get("number"), queries=self.failed_queries())
