"""Who reads a thread's connection: whoever waits and finds nobody else at it (the leader/follower pattern)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from actors.errors import ActorError, RecipientUnreachable, WireError
from actors.rpc import codec, establish, wire
from actors.rpc.connection import connection_error
from actors.rpc.intake import Intake
from actors.rpc.offload import ThreadOffloader, get_by_thread
from actors.rpc.thread_ask import ThreadAsk

SLICE_S = 0.1
DONT_WAIT = (socket.MSG_DONTWAIT,)
_MAY_WAIT = (0,)
TRY = (False,)


class Reader:
    """The reading half of a `BlockingConnection`: the role of the reader, and what he does.

    Args:
        frame_size: largest message in bytes.
    """

    def __init__(self, frame_size: int) -> None:
        self.broken: ActorError | None = None
        self._sock: socket.socket | None = None
        self._role = threading.Lock()  # held by who reads
        self._followers: deque[SimpleQueue[None]] = deque()
        self._intake = Intake(frame_size, self._handle)
        self._pending: dict[int, ThreadAsk[Any]] = {}
        self._callbacks: deque[ThreadAsk[Any]] = deque()
        self._offloader: ThreadOffloader | None = None

    # ------------------------------------------------------------------ the sending half's

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process."""
        raise NotImplementedError

    def push(self) -> bool:
        """Send what there is room for; whether that was all."""
        raise NotImplementedError

    def pump(self, reads: bool, timeout_s: float) -> None:
        """Wait for room, and for input where the caller is the reader, and use it."""
        raise NotImplementedError

    def establish(self, until: float) -> None:
        """Connect, by the reader; when *until* comes first, the next reader begins anew."""
        raise NotImplementedError

    def end(self, error: ActorError) -> None:
        """The connection is over: all that is pending fails with *error*."""
        raise NotImplementedError

    def role_is_free(self) -> None:
        """Nobody reads now, and no thread waits to."""
        raise NotImplementedError

    def dispose(self) -> None:
        """Close the socket of a connection that is over, once nobody reads it any more."""
        raise NotImplementedError

    def start_helper(self) -> None:
        """There is work that no thread does."""
        raise NotImplementedError

    @property
    def helper_waits(self) -> bool:
        """Whether the helper would read."""
        raise NotImplementedError

    # ------------------------------------------------------------------ waiting

    def wait(self, ask: ThreadAsk[Any], until: float) -> None:
        """Return when *ask* is done, or at *until*: as the reader if there is none, else as a follower."""
        while not ask.is_done:
            held: list[bool] = []
            try:
                # The interpreter looks for signals after each call: a lock whose taking had to be noted in a second
                # step could be lost.
                held.extend(map(self._role.acquire, TRY))
                if held[0]:
                    self._lead(ask, until)
            finally:
                if held and held[0]:
                    self._role.release()
            if held[0]:
                break
            if time.monotonic() >= until:
                break
            self._follow(ask, until)
        if self._followers or self.helper_waits or self.broken is not None:
            self.pass_on()
        if self._callbacks:
            self.run_callbacks()

    def _lead(self, ask: ThreadAsk[Any], until: float) -> None:
        if self._intake.waits:
            self._take(self._intake.decode)
        if self._sock is None and self.broken is None:
            self.establish(until)
        while not ask.is_done and self.broken is None:
            left = until - time.monotonic()
            if left <= 0:
                self.receive(DONT_WAIT)
                return
            if self.unsent or left < establish.TICK_S:
                if self.unsent:
                    self.push()
                self.pump(True, left)
            else:
                self.receive(_MAY_WAIT)

    def _follow(self, ask: ThreadAsk[Any], until: float) -> None:
        queue: SimpleQueue[None] = SimpleQueue()
        ask.waiting = (*ask.waiting, queue)
        self._followers.append(queue)
        try:
            if not ask.is_done and self._role.locked():
                # In slices: an interrupted reader may have been unable to hand its role on.
                with contextlib.suppress(Empty):
                    queue.get(timeout=max(0.0, min(SLICE_S, until - time.monotonic())))
        finally:
            ask.waiting = tuple(other for other in ask.waiting if other is not queue)
            with contextlib.suppress(ValueError):
                self._followers.remove(queue)

    def pass_on(self) -> None:
        """Wake one who would read, if nobody does."""
        if self.broken is not None:
            self.dispose()
        if not self._role.locked():
            with contextlib.suppress(IndexError):
                self._followers.popleft().put(None)
            self.role_is_free()

    def look(self) -> None:
        """Read what is there, without waiting."""
        held: list[bool] = []
        try:
            held.extend(map(self._role.acquire, TRY))
            if held[0]:
                if self._sock is None:
                    self.start_helper()
                else:
                    self.receive(DONT_WAIT)
        finally:
            if held and held[0]:
                self._role.release()
        self.pass_on()
        self.run_callbacks()

    # ------------------------------------------------------------------ the reader's work

    def try_lead(self) -> bool:
        """Become the reader (the helper's way)."""
        return self._role.acquire(blocking=False)

    def retire(self) -> None:
        """Be the reader no more."""
        self._role.release()
        self.pass_on()

    def receive(self, flags: tuple[int]) -> None:
        """Read once, and resolve what was answered."""
        sock = self._sock
        if sock is None:
            return
        self._take(self._intake.receive, sock, flags)

    def _take(self, step: Callable[..., None], *args: Any) -> None:
        try:
            step(*args)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(RecipientUnreachable(f"the connection broke: {error}"))
        except ActorError as error:
            self.end(error)
        except BaseException:
            if not self._intake.repeatable:
                self.end(RecipientUnreachable("the connection was given up: a thread was interrupted in decrypting"))
            raise

    def receive_now(self) -> None:
        """Read what is there."""
        self.receive(DONT_WAIT)

    def _handle(self, message: list[Any]) -> None:
        kind, correlation = message[0], message[1]
        if kind not in (wire.REPLY, wire.ERROR, wire.OFFLOADED):
            raise WireError(f"the server sent a message of kind {kind}")
        ask = self._pending.get(correlation)
        if ask is None:
            if kind == wire.ERROR and correlation == 0:
                raise connection_error(message)
            return  # the reply to an ask that has timed out: its asker has been told
        if kind == wire.REPLY:
            ask.answer(message[2])
        elif kind == wire.OFFLOADED:
            if self._offloader is None or type(message[2]) is not str:
                raise WireError("malformed frame: an offloaded result that was not asked for, or whose key is no text")
            ask.answer_apart(partial(get_by_thread, self._offloader, message[2]))
        else:
            ask.resolve(None, codec.decode_error(message[2], message[3], message[4]))
        if ask.has_callbacks:
            self._callbacks.append(ask)
        self._pending.pop(correlation, None)

    def run_callbacks(self) -> None:
        """Call back, with no lock held."""
        while self._callbacks:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._callbacks.popleft().run_callbacks()
