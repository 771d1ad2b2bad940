"""The program's end of its task: a Unix socket to which the TaskExecutor connects, again after it was replaced."""

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
from runtime.spark.wire import BlockingChannel


class ProgramControl:
    """Takes the program's task, and speaks for it: by a `TaskControl` for each TaskExecutor that comes.

    Args:
        path: of the socket, in a directory of mode 0700.
        on_run: called with the spec, on a thread of its own, when a TaskExecutor has attached.
        on_cancel: called when the job is to end: stops the program's streaming queries.
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
        """As `TaskControl.failed_queries`."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()
        threading.Thread(target=self._serve, name="understudy-program", daemon=True).start()

    def tell(self, message: FromTask) -> bool:
        """Send a message to the TaskExecutor; whether there was one. One that comes later is told of queries, too."""
        if isinstance(message, QueryStarts):
            self._known[message.query.name] = message
        control = self._control
        return control is not None and control.tell(message)

    def tell_known(self) -> None:
        """Tell a TaskExecutor that is new what runs; it takes the leases anew."""
        for known in list(self._known.values()):
            if "://" not in known.query.location:
                with contextlib.suppress(LocationInUseError):  # the query runs: nothing is gained by its end
                    self.acquire_lease(known.query.location, is_running=True)
            self.tell(QueryStarts(known.query, known.batch))

    def acquire_lease(self, location: str, *, is_running: bool = False) -> None:
        """As `TaskControl.acquire_lease`; waits for a TaskExecutor while there is none.

        Raises:
            LocationInUseError: somebody else writes to the location.
        """
        while (control := self._await_control()) is not None:
            with contextlib.suppress(DetachedError):  # another TaskExecutor comes
                control.acquire_lease(location, is_running=is_running)
                return

    def close(self) -> None:
        """The program needs its task no longer: say that it has finished, and take no other."""
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
            with connection, contextlib.suppress(OSError, WireError):  # a TaskExecutor that is gone: another one comes
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

    def _detached(self) -> None:
        with self._changed:
            self._connection = self._control = None

    def _cancel(self) -> None:
        self._on_cancel()
        self.tell(Canceled())
        self._hang_up()


def same_process_socket(directory: Path) -> Path:
    """The path of the socket in a directory for sockets."""
    return directory / f"program-{os.getpid()}.sock"
