"""The thread behind a `BlockingConnection`: for tells held back, and for asks that no thread waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

from actors.errors import RecipientUnreachable

if TYPE_CHECKING:
    from actors.rpc.blocking import BlockingConnection
    from actors.rpc.thread_ask import ThreadAsk

logger = logging.getLogger(__name__)

FLUSH_S = 0.001


class Helper:
    """Started when first needed; asleep, with the socket left to the callers, whenever it has nothing to do.

    Args:
        connection: the connection that it serves.
    """

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        self._ident = 0
        self._event = -1
        self._signalled = False
        self._ended = False
        self._flush_at: float | None = None
        self._demanded: dict[int, ThreadAsk[Any]] = {}
        self.wants_role = False

    # ------------------------------------------------------------------ for the callers' threads

    def wake(self) -> None:
        """Look again at what there is to do."""
        if self._signalled:
            return
        with self._mutex:
            if self._ended:
                return
            if self._event < 0:
                self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="understudy-client", daemon=True)
                thread.start()
                self._thread = thread
            self._signalled = True
            os.eventfd_write(self._event, 1)

    def flush_soon(self) -> None:
        """Send in a moment what the connection holds back."""
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S
            self.wake()

    def demand(self, ask: ThreadAsk[Any]) -> None:
        """See to it that the ask is answered or expires; nobody waits for it."""
        self._demanded[ask.correlation] = ask
        self.wake()

    def role_is_free(self) -> None:
        """Nobody reads now."""
        if self.wants_role:
            self.wake()

    def runs_here(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self._ident

    def end(self) -> None:
        """Stop; may be called by any thread."""
        with self._mutex:
            self._ended = True
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def join(self) -> None:
        """Wait for the end of the thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._mutex = threading.Lock()
        self._ended = True
        self._thread, self._ident = None, 0
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    # ------------------------------------------------------------------ its own

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # an interrupt hit a thread that had just started this one, and then started another
        self._ident = threading.get_ident()
        held = False
        try:
            while not self._ended and self._connection.broken is None:
                held = self._step(held)
        except Exception as error:  # else who waits for its work would never be told
            logger.exception("the helper of a connection failed")
            self._connection.end(RecipientUnreachable(f"the connection was given up: {error}"))
        finally:
            if held:
                self._connection.retire()
            self._connection.run_callbacks()
            with self._mutex:
                self._ended = True
                os.close(self._event)
                self._event = -1
            self._connection.pass_on()

    def _step(self, held: bool) -> bool:
        """One round of work; returns whether it is the reader."""
        connection = self._connection
        nearest = self._expire()
        if self._flush_at is not None and time.monotonic() >= self._flush_at:
            self._flush_at = None
            connection.push()
        writes = self._flush_at is None and connection.unsent > 0
        busy = writes or bool(self._demanded)
        self.wants_role = busy and not held
        if busy and not held:
            held = connection.try_lead()
        elif held and not busy:
            connection.retire()
            return False
        if held and connection.sock is None:
            connection.establish(float("inf") if nearest is None else nearest)
            return held
        self._poll(held, writes, nearest)
        return held

    def _poll(self, held: bool, writes: bool, nearest: float | None) -> None:
        connection = self._connection
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        mask = (select.POLLIN if held else 0) | (select.POLLOUT if writes else 0)
        if mask and connection.sock is not None:
            with contextlib.suppress(ValueError):  # closed meanwhile
                poll.register(connection.sock, mask)
        due = [at for at in (self._flush_at, nearest) if at is not None]
        timeout_ms = max(0.0, min(due) - time.monotonic()) * 1000 if due else None
        for fd, events in poll.poll(timeout_ms):
            if fd == self._event:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
                self._signalled = False
                continue
            if events & ~select.POLLOUT and held:
                connection.receive_now()
            if events & ~select.POLLIN:
                connection.push()
        connection.run_callbacks()

    def _expire(self) -> float | None:
        """Forget what is done, end what is overdue; returns the nearest deadline."""
        nearest: float | None = None
        now = time.monotonic()
        for correlation, ask in list(self._demanded.items()):
            if ask.is_done:
                del self._demanded[correlation]
            elif ask.deadline <= now:
                del self._demanded[correlation]
                ask.expire()
            elif nearest is None or ask.deadline < nearest:
                nearest = ask.deadline
        return nearest
