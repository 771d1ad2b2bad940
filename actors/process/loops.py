"""Event loops: one that runs inside a Thespian actor (`EmbeddedLoop`), and one in a thread of its own (`LoopThread`).

asyncio calls its selector to sleep. The selector of an embedded loop arms a timerfd and stops the loop instead. It also
calls the RPC layer's connections directly, without asyncio's machinery. The module uses only public interfaces of
asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import selectors
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import Context
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, Unpack

LINGER_S = 0.01
TURN_BUDGET_S = 0.05
"""Thespian's own messages, such as the order to end, wait for `LINGER_S` and this together at most."""
MAX_EVENTS = 256

Callback = Callable[[], object]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_ITIMERSPEC = struct.Struct("@4q")
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerFd:
    """Linux's timerfd (in the standard library only since Python 3.13)."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def arm(self, delay_s: float | None) -> None:
        """Fire after *delay_s* seconds (at least a nanosecond), or never for None."""
        nanoseconds = 0 if delay_s is None else max(1, int(delay_s * 1e9))
        specification = _ITIMERSPEC.pack(0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        if _libc.timerfd_settime(self.fd, 0, specification, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)


class YieldingSelector(selectors.BaseSelector):
    """Stops the loop instead of sleeping in it, and runs *direct* callbacks itself.

    A direct callback costs one call. A callback of asyncio costs a Handle, a pass through the loop and a context run:
    several times as much as an ask. While only direct callbacks run and none of them gives asyncio work (`touched`),
    the loop stays in the selector.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._direct: dict[int, _Direct] = {}
        self.loop: DirectLoop | None = None
        self.timer = _TimerFd()
        self._epoll.register(self.timer.fd, select.EPOLLIN)
        self.turn_ends = 0.0
        self.blocking = False
        self.touched = False

    # ------------------------------------------------------------------ asyncio's side

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        if fd in self._keys or fd in self._direct:
            raise KeyError(f"{fileobj!r} is registered already")
        self._epoll.register(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        key = self._keys.pop(fd)
        with contextlib.suppress(OSError):  # closed already: the kernel has forgotten it
            self._epoll.unregister(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        if events != self._keys[fd].events:
            self._epoll.modify(fd, _mask(events))
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_descriptor(fileobj)]

    def fileno(self) -> int:
        return self._epoll.fileno()

    # ------------------------------------------------------------------ direct callbacks

    def set_direct(self, fd: int, reader: Callback | None, writer: Callback | None) -> None:
        """Set the callbacks for when *fd* can be read or written; with neither, stop watching it."""
        known = self._direct.get(fd)
        if reader is None and writer is None:
            if known is not None:
                del self._direct[fd]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(fd)
            return
        mask = (select.EPOLLIN if reader else 0) | (select.EPOLLOUT if writer else 0)
        if known is None:
            if fd in self._keys:
                raise KeyError(f"descriptor {fd} is registered with asyncio already")
            self._epoll.register(fd, mask)
        elif known.mask != mask:
            self._epoll.modify(fd, mask)
        self._direct[fd] = _Direct(mask, reader, writer)

    def direct(self, fd: int) -> tuple[Callback | None, Callback | None]:
        """Return the callbacks of *fd*."""
        known = self._direct.get(fd)
        return (None, None) if known is None else (known.reader, known.writer)

    # ------------------------------------------------------------------ waiting

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.blocking or self.loop is None:
            return self._wait(timeout)[0]
        now = time.monotonic()
        due = None if timeout is None else now + timeout
        while True:
            over_budget = now >= self.turn_ends
            wait = 0.0 if over_budget else LINGER_S
            if due is not None:
                wait = min(wait, max(due - now, 0.0))
            events, called = self._wait(wait)
            if over_budget:
                # Thespian has to run now; ready work continues right after that.
                self.timer.arm(0.0)
                self.loop.stop()
                return events
            if events or self.touched:
                return events
            now = time.monotonic()
            if due is not None and now >= due:
                return events
            if not called:
                self.timer.arm(None if due is None else due - now)
                self.loop.stop()
                return events

    def _wait(self, timeout: float | None) -> tuple[list[tuple[selectors.SelectorKey, int]], bool]:
        """Return the events for asyncio, and whether direct callbacks were called.

        The timer is drained here, before it can be armed again. A later drain would swallow the requested wake-up, and
        the loop would sleep although work is ready.
        """
        self.touched = False
        events: list[tuple[selectors.SelectorKey, int]] = []
        called = False
        try:
            polled = self._epoll.poll(timeout, MAX_EVENTS)
        except InterruptedError:
            return events, False
        for fd, mask in polled:
            direct = self._direct.get(fd)
            if direct is not None:
                called = True
                self._call(direct, mask)
            elif fd == self.timer.fd:
                self.timer.drain()
            elif (key := self._keys.get(fd)) is not None:
                ready = (selectors.EVENT_WRITE if mask & ~select.EPOLLIN else 0) | (
                    selectors.EVENT_READ if mask & ~select.EPOLLOUT else 0
                )
                if ready & key.events:
                    events.append((key, ready & key.events))
        return events, called

    def _call(self, direct: _Direct, mask: int) -> None:
        # Reader and writer both have to learn of an error or a hang-up.
        for callback, wanted in ((direct.reader, mask & ~select.EPOLLOUT), (direct.writer, mask & ~select.EPOLLIN)):
            if callback is None or not wanted:
                continue
            try:
                callback()
            except Exception as error:  # as asyncio handles errors of its own callbacks
                if self.loop is None:
                    raise
                self.loop.call_exception_handler(
                    {"message": f"Exception in direct callback {callback!r}", "exception": error}
                )

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._direct.clear()
        with contextlib.suppress(OSError):
            os.close(self.timer.fd)


class _Direct(NamedTuple):
    mask: int
    reader: Callback | None
    writer: Callback | None


def _descriptor(fileobj: Any) -> int:
    fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
    if fd < 0:
        raise ValueError(f"invalid file descriptor {fd}")
    return int(fd)


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )


class DirectLoop(asyncio.SelectorEventLoop):
    """An event loop with direct readers and writers: plain callables that its selector calls.

    They have to be short, and may do anything that a callback of the loop may. Their errors go to the loop's exception
    handler. Watch a descriptor either with these or with asyncio's own `add_reader`, not with both.
    """

    def __init__(self, selector: YieldingSelector) -> None:
        self._direct_selector = selector
        super().__init__(selector)
        selector.loop = self

    def add_direct_reader(self, fd: int, callback: Callback) -> None:
        """Call *callback* whenever *fd* can be read, until `remove_direct_reader`."""
        self._direct_selector.set_direct(fd, callback, self._direct_selector.direct(fd)[1])

    def remove_direct_reader(self, fd: int) -> None:
        """Stop watching for input."""
        self._direct_selector.set_direct(fd, None, self._direct_selector.direct(fd)[1])

    def add_direct_writer(self, fd: int, callback: Callback) -> None:
        """Call *callback* whenever *fd* can be written, until `remove_direct_writer`."""
        self._direct_selector.set_direct(fd, self._direct_selector.direct(fd)[0], callback)

    def remove_direct_writer(self, fd: int) -> None:
        """Stop watching for room."""
        self._direct_selector.set_direct(fd, self._direct_selector.direct(fd)[0], None)

    # All work of asyncio arrives through these three (call_later uses call_at; C futures and tasks call them by name).

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call the base method, and note that the loop has work."""
        self._direct_selector.touched = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call the base method, and note that the loop has work."""
        self._direct_selector.touched = True
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call the base method, and note that the time of the next wake-up may have changed."""
        self._direct_selector.touched = True
        return super().call_at(when, callback, *args, context=context)


class EmbeddedLoop:
    """An asyncio event loop that runs inside a Thespian actor, one turn at a time.

    Thespian watches one descriptor (`ThespianWatch`): the loop's own epoll. When it is ready, the actor takes a turn:

    1. It runs the loop until that has nothing to do.
    2. It waits for `LINGER_S` more. The next message of a serial asker, or the next answer of a call that passes
       through, arrives in that time. That saves a wake-up by Thespian (30 us of CPU).
    3. It returns to Thespian.

    Timers reach Thespian through a timerfd in the same epoll. The actor passes `fileno()` to `ThespianWatch`, and calls
    `turn()` on each wake-up.
    """

    def __init__(self) -> None:
        self._selector = YieldingSelector()
        self.loop = DirectLoop(self._selector)
        asyncio.set_event_loop(self.loop)

    def fileno(self) -> int:
        """Return the epoll descriptor, which is readable whenever the loop has work."""
        return self._selector.fileno()

    def turn(self) -> None:
        """Run the loop until it has nothing to do for `LINGER_S`, at most about `TURN_BUDGET_S` seconds."""
        self._selector.turn_ends = time.monotonic() + TURN_BUDGET_S
        self.loop.run_forever()

    @contextlib.contextmanager
    def outside_thespian(self) -> Iterator[None]:
        """Let the loop sleep like an ordinary one in this context (`run_until_complete` at start and stop)."""
        self._selector.blocking = True
        try:
            yield
        finally:
            self._selector.blocking = False
            if not self.loop.is_closed():
                self._selector.timer.arm(0.0)  # request a turn for work that has become ready in this context

    def close(self) -> None:
        """Close the loop and its descriptors."""
        self.loop.close()


class LoopThread:
    """An event loop in a daemon thread, for processes without a loop.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @property
    def is_here(self) -> bool:
        """Return whether the caller is on the loop's thread."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        """Stop the loop and end the thread; idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
