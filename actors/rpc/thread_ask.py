"""The `Ask` of a plain thread: who waits for it reads the connection himself (`actors.rpc.blocking`)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, AskTimeout, WireError
from actors.rpc.gateway import Ask

if TYPE_CHECKING:
    from queue import SimpleQueue

    from actors.rpc.blocking import BlockingConnection
    from actors.rpc.codec import MethodSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ThreadAsk(Ask[T]):
    """An ask under way over a `BlockingConnection`.

    Args:
        target: the recipient.
        spec: the method asked.
        timeout_s: time allowed, in seconds, from now on.
    """

    __slots__ = (
        "_callbacks",
        "_error",
        "_fetch",
        "_fetching",
        "_finally",
        "_is_done",
        "_spec",
        "_target",
        "_timeout_s",
        "_value",
        "connection",
        "correlation",
        "deadline",
        "made_at",
        "waiting",
    )

    def __init__(self, target: ActorAddress, spec: MethodSpec, timeout_s: float) -> None:
        self.connection: BlockingConnection | None = None
        self.correlation = 0
        self.made_at = time.monotonic()
        self.deadline = self.made_at + timeout_s
        self.waiting: tuple[SimpleQueue[None], ...] = ()
        self._target = target
        self._spec = spec
        self._timeout_s = timeout_s
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._fetch: Callable[[], Any] | None = None
        self._finally: Callable[[], object] | None = None

    # ------------------------------------------------------------------ the asker's side

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()

            def wake(_: Any) -> None:
                try:
                    loop.call_soon_threadsafe(_wake, woken)
                except RuntimeError:
                    if not loop.is_closed():  # a loop that has ended waits for nothing
                        raise

            self.add_done_callback(wake)
            yield from woken.__await__()
        if self._fetch is not None:
            yield from asyncio.get_running_loop().run_in_executor(None, self._load).__await__()
        return self._outcome()

    def result(self, timeout: float | None = None) -> T:
        """Wait in a plain thread for the reply, at most *timeout* seconds (default: the gateway's ask time-out).

        Raises:
            RuntimeError: called in a done-callback on the client's own thread, where it could only wait for itself.
        """
        if self._is_done:
            return self._outcome()
        connection = self.connection
        assert connection is not None
        connection.check_may_block()
        until = self.deadline if timeout is None else min(self.deadline, time.monotonic() + timeout)
        connection.wait(self, until)
        if not self._is_done:
            if timeout is not None and time.monotonic() < self.deadline:
                raise AskTimeout(f"no reply within {timeout:g} s")
            self.expire()
        return self._outcome()

    def done(self) -> bool:
        """Whether the reply (or its failure) is there."""
        if not self._is_done and self.connection is not None:
            self.connection.look()
            if not self._is_done and time.monotonic() >= self.deadline:
                self.expire()
        return self._is_done

    def exception(self) -> BaseException | None:
        """The failure of an ask that is done; None when it was answered. Fetches a result that was sent apart."""
        if self._fetch is not None:
            self._load()
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call *callback* with this ask when the reply is there, on any thread of the client's."""
        self._callbacks.append(callback)
        if self._is_done:
            self.run_callbacks()
        elif self.connection is not None:
            self.connection.demand(self)
            if self._is_done:
                self.run_callbacks()

    def _load(self) -> None:
        """Fetch a result that was sent apart, by the thread that wants it: who reads has others to serve."""
        with self._fetching:
            if self._fetch is not None:
                try:
                    self._value = self._spec.decode_result(self._fetch())
                except ActorError as error:
                    self._error = error
                self._fetch = None

    def _outcome(self) -> T:
        if self._fetch is not None:
            self._load()
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    # ------------------------------------------------------------------ the connection's side

    @property
    def is_done(self) -> bool:
        """As `done`, without a look at the socket."""
        return self._is_done

    @property
    def has_callbacks(self) -> bool:
        """Whether somebody is to be called back."""
        return bool(self._callbacks)

    def answer(self, value: Any) -> None:
        """The reply came (it may be said twice: an interrupted reader leaves its work to the next)."""
        try:
            self.resolve(self._spec.decode_result(value), None)
        except WireError as error:
            self.resolve(None, error)

    def answer_apart(self, fetch: Callable[[], Any]) -> None:
        """The reply came, and its value is to be had by *fetch*, which may block and raise `ActorError`."""
        if not self._is_done:
            self._fetching = threading.Lock()
            self._fetch = fetch
        self.resolve(None, None)

    def when_done(self, action: Callable[[], object]) -> None:
        """Call *action*, which must not block, once there is an outcome; before the ask is sent."""
        self._finally = action

    def resolve(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome, unless there is one, and wake who waits in `result`; callbacks are another's to run."""
        if not self._is_done:
            self._value, self._error = value, error
            self._is_done = True
            if self._finally is not None:
                self._finally()
        for queue in self.waiting:
            queue.put(None)

    def expire(self) -> None:
        """The time allowed is over."""
        if self.connection is not None:
            self.connection.forget(self.correlation)
        self.resolve(
            None,
            AskTimeout(
                f"{self._target} did not answer {self._spec.name}() within {self._timeout_s:g} s; "
                "its outcome is unknown"
            ),
        )
        self.run_callbacks()

    def run_callbacks(self) -> None:
        """Call back, each once whoever else is at it, with none of the connection's locks held."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # another thread was faster
            try:
                callback(self)
            except Exception:  # as concurrent.futures does: the other callbacks have a right to be called
                logger.exception("a callback of an ask to %s failed", self._target)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
