"""A task process's side of its control socket: its messages, and the delivery of a cancel to the user's code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
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
    EndHold,
    EndSession,
    ErrorDescription,
    FromTask,
    LeaseAnswer,
    LeaseRequest,
    Question,
    ToTask,
    pack,
    unpack_to_task,
)
from runtime.spark.task import client_session
from runtime.spark.task.start_gate import StartGate
from runtime.spark.wire import BlockingChannel
from runtime.threads import thread_stacks

_OWN_DIRECTORY = str(Path(__file__).resolve().parents[1])

_HINTS = {
    STOP_REFUSED: "a script cannot stop the SparkContext that it shares with other jobs; use spark.stop(), or submit "
    "the job with --own-driver",
    "Can only upgrade readStore to writeStore with the same stateStoreId": "Spark 4.3 cannot run dropDuplicates by the "
    "keys of the aggregation before it; leave dropDuplicates out, or put repartition with a column between them",
}
"""Cause and remedy of errors whose texts name neither, by a part of the text."""

_MAX_TEXT = 200_000
"""Largest number of characters of a text that travels: its beginning and its end. Java's tracebacks may be longer."""


def describe(error: BaseException, files: Mapping[str, str] = MappingProxyType({})) -> ErrorDescription:
    """Return an error of the job's code without the frames of Understudy and runpy.

    *files* maps paths of the job's files to the names to show.
    """
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _clean(summary, files, set())
    kind = type(error)
    text = _text_of(error)
    text = next((f"{hint}: {text}" for known, hint in _HINTS.items() if known in text), text)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{wire_name(kind.__module__)}."
    lost = error.vertex_id if isinstance(error, PartitionNotFoundError) else None
    name, trace = _fit(f"{module}{kind.__qualname__}"), _fit("".join(summary.format()))
    return ErrorDescription(name, _fit(text), trace, _error_class(error), lost)


def _text_of(error: BaseException) -> str:
    """Return the text of an error; if its own code cannot make one, say so as Python's tracebacks do."""
    try:
        return str(error)
    except Exception:
        return f"<exception str() failed> of {type(error).__qualname__}"


def _fit(text: str) -> str:
    """Return a text that can travel: clipped, and with escapes for what UTF-8 cannot encode.

    Python's names of files that are not UTF-8 have such characters, and errors name the files.
    """
    return _clip(text.encode(errors="backslashreplace").decode())


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
    """Return the error condition of a PySpark exception, such as TABLE_OR_VIEW_NOT_FOUND."""
    for name in ("getCondition", "getErrorClass"):
        method = getattr(error, name, None)
        if callable(method):
            try:
                value = method()
            except Exception:  # a Java exception whose JVM has ended cannot answer
                return None
            return None if value is None else _fit(str(value))
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

    A SIGTERM to the main thread raises the exception, since it interrupts any blocking call; a SIGTERM from outside
    also cancels the task. While the main thread is in a call into the JVM, the exception waits for the call's return:
    otherwise the Py4J connection would pass the late answer to the next call.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._stop_spark: Callable[[], None] | None = None
        self._deliver = False
        self._signals = 0  # signals of this process that have not arrived yet
        self._depth = 0
        self._closed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """Handle SIGTERM; call it on the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def on_request(self, stop_spark: Callable[[], None]) -> None:
        """Set the function that cancels the task's Spark jobs. Raises `TaskCancelled` if a cancel came before."""
        self._stop_spark = stop_spark
        self.checkpoint()

    def checkpoint(self) -> None:
        """Raise `TaskCancelled` if a cancel was requested."""
        if self.requested.is_set() and not self._closed:
            raise TaskCancelled("the task was cancelled")

    def request(self) -> None:
        """Cancel the task; call it on another thread than the main one."""
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
        """Make a call into the JVM on the main thread, which a cancel does not interrupt."""
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
        """Raise nothing from now on: the user's code has ended."""
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
    """The task's end of the control socket: it sends from any thread, and answers questions on its own thread.

    Args:
        channel: the socket.
        on_cancel: called on a separate thread when the task is cancelled.
        on_end: called when the TaskExecutor has closed its end. Default: end the process.
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
        """Returns the streaming queries that have failed and were not started again."""
        self.starts = StartGate()
        """The starts of streaming queries."""

    def start(self) -> None:
        """Run `serve` on a separate thread."""
        threading.Thread(target=self.serve, name="task-control", daemon=True).start()

    def tell(self, message: FromTask) -> bool:
        """Send a message; return whether a TaskExecutor was connected. If it is not, `serve` calls *on_end*."""
        try:
            self._channel.send(pack(message))
        except OSError:
            return False
        return True

    def acquire_lease(self, location: str, *, is_running: bool = False) -> None:
        """Acquire the lease of a checkpointLocation from the TaskExecutor, so that no other query writes there.

        Args:
            location: the checkpointLocation.
            is_running: see `LeaseRequest`.

        Raises:
            LocationInUseError: another query writes there.
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
            from runtime.checkpoint.lease import LocationInUseError  # imported here: most tasks have no streaming query

            raise LocationInUseError(answer.error)

    def serve(self) -> None:
        """Answer the TaskExecutor until it closes its end."""
        while (message := self._channel.receive()) is not None:
            self._handle(unpack_to_task(message))
        self._has_ended = True
        for waiting in list(self._leases.values()):
            waiting.put(None)
        self.starts.decide(sys.maxsize, stops=False)
        self._on_end()

    def _handle(self, message: ToTask) -> None:
        match message:
            case Cancel():
                threading.Thread(target=self._on_cancel, name="cancel", daemon=True).start()
            case EndSession():
                client_session.RELEASED.set()
            case LeaseAnswer() if (waiting := self._leases.get(message.number)) is not None:
                waiting.put(message)
            case Ask(number, Question.THREADS):
                self.tell(Answer(number, [(_fit(name), _fit(stack)) for name, stack in thread_stacks()]))
            case Ask(number, Question.HOLD_STARTS):  # on a separate thread, since it waits
                threading.Thread(target=self._hold_starts, args=(number,), name="hold-starts", daemon=True).start()
            case EndHold(number, stops):
                self.starts.decide(number, stops=stops)
            case Ask(number):  # on a separate thread, since it calls Spark
                threading.Thread(target=self._tell_failed, args=(number,), name="failed-queries", daemon=True).start()

    def _tell_failed(self, number: int) -> None:
        self.tell(Answer(number, self.failed_queries()))

    def _hold_starts(self, number: int) -> None:
        self.tell(Answer(number, [_fit(name) for name in self.starts.hold(number)]))
