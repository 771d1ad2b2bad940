"""A task process's side of its control socket: what it tells, and how a cancel gets into the user's code."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, MappingProxyType

from actors.own_modules import wire_name
from runtime.spark.errors import STOP_REFUSED, PartitionNotFoundError, TaskCancelled
from runtime.spark.messages import (
    Answer,
    Ask,
    Cancel,
    ErrorDescription,
    FromTask,
    LeaseAnswer,
    LeaseRequest,
    Question,
    ToTask,
    pack,
    unpack_to_task,
)
from runtime.spark.wire import BlockingChannel
from runtime.threads import thread_stacks

_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1])

_STOP_HINT = (
    "a script cannot stop the SparkContext that it shares with other jobs; use spark.stop(), or submit the job with "
    "--own-driver"
)

_MAX_TEXT = 200_000
"""Characters of a traceback that travel; Java's may be very long. The first lines and the last ones are kept."""


def describe(error: BaseException, files: Mapping[str, str] = MappingProxyType({})) -> ErrorDescription:
    """Return an error of the job's code as its author knows it: without our frames and runpy's.

    *files* maps paths of the job's files to the names to be shown.
    """
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _clean(summary, files, set())
    kind = type(error)
    text = str(error)
    if STOP_REFUSED in text:
        text = f"{_STOP_HINT}: {text}"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{wire_name(kind.__module__)}."
    lost = error.vertex_id if isinstance(error, PartitionNotFoundError) else None
    trace = _clip("".join(summary.format()))
    return ErrorDescription(f"{module}{kind.__qualname__}", _clip(text), trace, _error_class(error), lost)


def _clean(summary: traceback.TracebackException, files: Mapping[str, str], seen: set[int]) -> None:
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


class DetachedError(Exception):
    """The TaskExecutor has closed its end of the control socket, and has not answered."""


def _end_orphaned() -> None:
    os._exit(EXIT_ORPHANED)


class TaskControl:
    """The task's end of the control socket: it tells from any thread, and is asked on a thread of its own.

    Args:
        channel: the socket.
        on_cancel: called on a thread of its own when the task is to end.
        on_end: called when the TaskExecutor has closed its end. A task process ends then.
    """

    def __init__(
        self, channel: BlockingChannel, on_cancel: Callable[[], None], on_end: Callable[[], None] = _end_orphaned
    ) -> None:
        self._channel = channel
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._leases: dict[int, SimpleQueue[LeaseAnswer | None]] = {}
        self._has_ended = False
        self.failed_queries: Callable[[], list[FailedQuery]] = list
        """Gives the streaming queries that have failed and were not started again."""

    def start(self) -> None:
        """Serve on a thread of its own."""
        threading.Thread(target=self.serve, name="task-control", daemon=True).start()

    def tell(self, message: FromTask) -> bool:
        """Send a message; whether there was a TaskExecutor. One that is gone ends the task by the reading side."""
        try:
            self._channel.send(pack(message))
        except OSError:
            return False
        return True

    def acquire_lease(self, location: str, *, is_running: bool = False) -> None:
        """Have the TaskExecutor see to it that nobody else writes to a checkpointLocation.

        Args:
            location: the checkpointLocation.
            is_running: see `LeaseRequest`.

        Raises:
            LocationInUseError: somebody does.
            DetachedError: there is no TaskExecutor any more.
        """
        waiting: SimpleQueue[LeaseAnswer | None] = SimpleQueue()
        number = id(waiting)
        self._leases[number] = waiting
        try:
            is_asked = not self._has_ended and self.tell(LeaseRequest(number, location, is_running))
            answer = waiting.get() if is_asked else None
        finally:
            del self._leases[number]
        if answer is None:
            raise DetachedError
        if answer.error is not None:
            from runtime.checkpoint.lease import LocationInUseError  # most tasks have no streaming query

            raise LocationInUseError(answer.error)

    def serve(self) -> None:
        """Answer the TaskExecutor until it closes its end."""
        while (message := self._channel.receive()) is not None:
            self._handle(unpack_to_task(message))
        self._has_ended = True
        for waiting in list(self._leases.values()):
            waiting.put(None)
        self._on_end()

    def _handle(self, message: ToTask) -> None:
        match message:
            case Cancel():
                threading.Thread(target=self._on_cancel, name="cancel", daemon=True).start()
            case LeaseAnswer() if (waiting := self._leases.get(message.number)) is not None:
                waiting.put(message)
            case Ask(number, Question.THREADS):
                self.tell(Answer(number, thread_stacks()))
            case Ask(number):  # on a thread of its own, for Spark has to be asked
                threading.Thread(target=self._tell_failed, args=(number,), name="failed-queries", daemon=True).start()

    def _tell_failed(self, number: int) -> None:
        self.tell(Answer(number, self.failed_queries()))
