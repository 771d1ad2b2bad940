"""The program's end of its task: a Unix socket to which the TaskExecutor connects, and so does its successor."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from runtime.checkpoint.lease import LocationInUseError
from runtime.spark.errors import WireError
from runtime.spark.messages import Canceled, Finished, FromTask, QueryStarts, Run, unpack_to_task
from runtime.spark.spec import TaskSpec
from runtime.spark.task.control import DetachedError, FailedQuery, TaskControl
from runtime.spark.task.start_gate import StartGate
from runtime.spark.wire import BlockingChannel


class ProgramControl:
    """Receives the program's task, and sends its messages, by a `TaskControl` for each TaskExecutor that connects.

    Args:
        path: of the socket, in a directory of mode 0700.
        on_run: called with the spec, on a separate thread, when a TaskExecutor has attached.
        on_cancel: called when the job is cancelled: stops the program's streaming queries.
    """

    def __init__(self, path: Path, on_run: Callable[[TaskSpec], None], on_cancel: Callable[[], None]) -> None:
        self._on_run = on_run
        self._on_cancel = on_cancel
        self._control: TaskControl | None = None
        self._connection: socket.socket | None = None
        self._changed = threading.Condition()
        self._known: dict[str, QueryStarts] = {}
        self._closed = False
        self.failed_queries: Callable[[], list[FailedQuery]] = list
        """See `TaskControl.failed_queries`."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()
        threading.Thread(target=self._serve, name="understudy-program", daemon=True).start()

    def tell(self, message: FromTask) -> bool:
        """Send a message to the TaskExecutor; return whether one was connected.

        Starts of queries are also kept for later TaskExecutors, see `tell_known`.
        """
        if isinstance(message, QueryStarts):
            self._known[message.query.name] = message
        control = self._control
        return control is not None and control.tell(message)

    def tell_known(self) -> None:
        """Report the running queries to a new TaskExecutor, which acquires their leases again."""
        for known in list(self._known.values()):
            with contextlib.suppress(LocationInUseError):  # the query already runs: ending it would gain nothing
                self.acquire_lease(known.query.location, is_running=True)
            self.tell(QueryStarts(known.query, known.batch))

    def acquire_lease(self, location: str, *, is_running: bool = False) -> None:
        """Acquire a lease as `TaskControl.acquire_lease`; wait for a TaskExecutor while none is connected.

        Raises:
            LocationInUseError: another query writes to the location.
        """
        while (control := self._await_control()) is not None:
            with contextlib.suppress(DetachedError):  # another TaskExecutor comes
                control.acquire_lease(location, is_running=is_running)
                return

    def close(self) -> None:
        """Report that the task has finished, and accept no other: the program leaves the cluster."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.tell(Finished())
        self._hang_up()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _await_control(self) -> TaskControl | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._control is not None)
            return None if self._closed else self._control

    def _hang_up(self) -> None:
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(OSError, WireError):  # if this TaskExecutor ends, another one comes
                self._take_task(connection)

    def _take_task(self, connection: socket.socket) -> None:
        channel = BlockingChannel(connection)
        message = channel.receive()
        order = None if message is None else unpack_to_task(message)
        if not isinstance(order, Run):
            return
        control = TaskControl(channel, self._cancel, self._detached)
        control.failed_queries = lambda: self.failed_queries()
        with self._changed:
            self._connection, self._control = connection, control
            self._changed.notify_all()
        threading.Thread(target=self._on_run, args=(order.spec,), name="understudy-attach", daemon=True).start()
        control.serve()

    @property
    def starts(self) -> StartGate:
        """The gate that queries pass at their start; without a TaskExecutor it is open."""
        control = self._control
        return StartGate() if control is None else control.starts

    def _detached(self) -> None:
        with self._changed:
            self._connection = self._control = None

    def _cancel(self) -> None:
        self._on_cancel()
        self.tell(Canceled())
        self._hang_up()


def same_process_socket(directory: Path) -> Path:
    """Return the path of the socket in a directory for sockets."""
    return directory / f"program-{os.getpid()}.sock"
