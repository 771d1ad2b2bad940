"""Turns and threads of a node (Akka's `Dispatcher`): all its actors run on one loop, a turn each."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from actors.core.cell import Cell

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

POST_LIMIT = 10_000
"""How many calls of other threads may wait; whoever has more waits itself."""

TURNS = 64

_get_ident = threading.get_ident


class Dispatcher:
    """Gives cells their turns, and other threads a way in.

    Args:
        loop: the event loop; to be made on that loop's thread.
        turn_budget_s: for how long cells have their turns before the loop sees to I/O and timers again; None: 64 turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_budget_s: float | None) -> None:
        self.loop = loop
        self.thread = _get_ident()
        self.is_closed = False
        self._turn_budget_s = turn_budget_s
        self._run_queue: deque[Cell] = deque()
        self._running = False
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._post_pending = False
        self._room = threading.Event()
        self._background: set[asyncio.Task[Any]] = set()

    def schedule(self, cell: Cell) -> None:
        """Have the cell take a turn soon. Cells take their turns one after the other in one callback of the loop."""
        self._run_queue.append(cell)
        if not self._running:
            self._running = True
            self.loop.call_soon(self._run_turns)

    def _run_turns(self) -> None:
        queue = self._run_queue
        budget_s = self._turn_budget_s
        ends = 0.0 if budget_s is None else time.perf_counter() + budget_s
        left = TURNS
        try:
            while queue:
                cell = queue.popleft()
                try:
                    contextvars.Context().run(cell.turn)
                except BaseException:  # an interrupt; the cell goes on if the loop does
                    cell.interrupted()
                    raise
                if budget_s is None:
                    left -= 1
                    if not left:
                        break
                elif time.perf_counter() >= ends:
                    break
        finally:
            if queue:
                self.loop.call_soon(self._run_turns)
            else:
                self._running = False

    def post(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call *callback* on the loop, in the order of the calls; from any thread. False when the node has ended.

        When too many calls of other threads wait already, the calling thread waits until there is room.
        """
        if _get_ident() == self.thread:
            if not self.is_closed:
                self.loop.call_soon(callback, *args)
            return not self.is_closed
        while len(self._posted) >= POST_LIMIT and not self.is_closed:
            self._room.clear()
            if len(self._posted) >= POST_LIMIT:
                self._room.wait(1.0)
        if self.is_closed:
            return False
        self._posted.append((callback, args))
        if not self._post_pending:
            self._post_pending = True
            try:
                self.loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:  # the loop was closed just now
                return False
        return True

    def _run_posted(self) -> None:
        self._post_pending = False  # before the first is taken: what comes after that asks for another run
        posted = self._posted
        for _ in range(len(posted)):
            callback, args = posted.popleft()
            try:
                callback(*args)
            except Exception:  # it is nobody else's to see
                log.exception("a call from another thread failed")
        self._room.set()

    def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a blocking function in a thread of the loop's executor."""
        call: Callable[[], T] = functools.partial(function, *args, **kwargs)
        return self.loop.run_in_executor(None, contextvars.copy_context().run, call)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the actors."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def run_on_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop: at once, when this is its thread."""
        if _get_ident() == self.thread:
            function(*args)
        else:
            self.post(function, *args)

    def close_dispatcher(self) -> None:
        """No call of other threads is taken any more; those that were are carried out."""
        self.is_closed = True
        self._running = True  # no turn is asked for any more
        for task in self._background:
            task.cancel()
        self._run_posted()
