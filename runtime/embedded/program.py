"""The program's end of its task: a Unix socket to which the TaskExecutor connects, again after it was replaced."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from runtime.checkpoint.lease import LocationInUseError
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.spec import TaskSpec, decode_spec
from runtime.spark.task.control import FailedQuery
from runtime.spark.wire import BlockingChannel, Message
from runtime.threads import thread_stacks

_DETACHED = object()


class ProgramControl:
    """Takes the program's task, and speaks for it.

    Args:
        path: of the socket, in a directory of mode 0700.
        on_run: called with the spec, on a thread of its own, when a TaskExecutor has attached.
        on_cancel: called when the job is to end: stops the program's streaming queries.
    """

    def __init__(self, path: Path, on_run: Callable[[TaskSpec], None], on_cancel: Callable[[], None]) -> None:
        self._on_run = on_run
        self._on_cancel = on_cancel
        self._channel: BlockingChannel | None = None
        self._changed = threading.Condition()
        self._answers: dict[int, SimpleQueue[Any]] = {}
        self._known: dict[str, tuple[QueryLocation, int]] = {}
        self._closed = False
        self.failed_queries: Callable[[], list[FailedQuery]] = list
        """As `TaskControl.failed_queries`."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()
        threading.Thread(target=self._serve, name="understudy-program", daemon=True).start()

    def tell(self, kind: str, **values: Any) -> bool:
        """Send a message to the TaskExecutor; whether there was one."""
        channel = self._channel
        if channel is None:
            return False
        try:
            channel.send({"type": kind, **values})
        except OSError:
            return False
        return True

    def tell_query(self, query: QueryLocation, batch_id: int, note: str) -> None:
        """As `TaskControl.tell_query`. A TaskExecutor that comes later is told, too."""
        self._known[query.name] = query, batch_id
        self.tell("query", name=query.name, location=query.location, sink=query.sink, batch=batch_id, note=note)

    def tell_note(self, text: str) -> None:
        """As `TaskControl.tell_note`."""
        self.tell("note", text=text)

    def tell_known(self) -> None:
        """Tell a TaskExecutor that is new what runs; it takes the leases anew."""
        for query, batch_id in list(self._known.values()):
            if "://" not in query.location:
                with contextlib.suppress(LocationInUseError):  # the query runs: nothing is gained by its end
                    self.acquire_lease(query.location, is_running=True)
            self.tell("query", name=query.name, location=query.location, sink=query.sink, batch=batch_id, note="")

    def acquire_lease(self, location: str, *, is_running: bool = False) -> None:
        """As `TaskControl.acquire_lease`; waits for a TaskExecutor while there is none.

        *is_running*: the query runs already, so that the attempt does not end where nobody knows who else writes there.

        Raises:
            LocationInUseError: somebody else writes to the location.
        """
        while self._await_channel():
            answer: SimpleQueue[Any] = SimpleQueue()
            number = id(answer)
            self._answers[number] = answer
            try:
                if not self.tell("lease", number=number, location=location, is_running=is_running):
                    continue
                error = answer.get()
            finally:
                self._answers.pop(number, None)
            if error is _DETACHED:
                continue
            if error is not None:
                raise LocationInUseError(str(error))
            return

    def close(self) -> None:
        """The program needs its task no longer: say that it has finished, and take no other."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.tell("finished", result={})
        self._hang_up()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _await_channel(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._channel is not None)
            return not self._closed

    def _hang_up(self) -> None:
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            channel = BlockingChannel(connection)
            try:
                while (message := channel.receive()) is not None:
                    self._handle(channel, message)
            except OSError:
                pass  # the TaskExecutor is gone: another one comes
            finally:
                self._detached(connection)

    def _detached(self, connection: socket.socket) -> None:
        with self._changed:
            self._channel = None
        for answer in list(self._answers.values()):
            answer.put(_DETACHED)
        connection.close()

    def _handle(self, channel: BlockingChannel, message: Message) -> None:
        match message.get("type"):
            case "run":
                with self._changed:
                    self._channel = channel
                    self._changed.notify_all()
                spec = decode_spec(message["spec"])
                threading.Thread(target=self._on_run, args=(spec,), name="understudy-attach", daemon=True).start()
            case "cancel":
                threading.Thread(target=self._cancel, name="understudy-cancel", daemon=True).start()
            case "lease":
                answer = self._answers.get(message.get("number", 0))
                if answer is not None:
                    answer.put(message.get("error"))
            case "dump_threads":
                self.tell("threads", number=message.get("number"), threads=thread_stacks())
            case "failed_queries":
                threading.Thread(target=self._tell_failed, args=(message,), name="failed-queries", daemon=True).start()

    def _tell_failed(self, message: Message) -> None:
        self.tell("failed_queries", number=message.get("number"), queries=self.failed_queries())

    def _cancel(self) -> None:
        self._on_cancel()
        self.tell("canceled")
        self._hang_up()


def same_process_socket(directory: Path) -> Path:
    """The path of the socket in a directory for sockets."""
    return directory / f"program-{os.getpid()}.sock"
