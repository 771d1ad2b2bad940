"""Calls from plain threads: an ask passes through no loop and no other thread.

An `ActorClient` has one `BlockingConnection` to each process; it opens a new one after a break or a fork. A calling
thread encodes and sends its frame under a lock. A thread that waits for a reply becomes the *reader* when no other
thread reads. It resolves the asks of all threads until its own is done, and then passes the role on (the
leader/follower pattern). A `Helper` thread does the work for which no thread waits: callbacks, awaits, and tells that
are held back for a moment. It starts when it is first needed.

A KeyboardInterrupt can come between any two steps of the main thread. So each step of reading may run twice (`Intake`),
and the role is a lock that C calls acquire and release. An interrupted *send* ends the connection, because it is
unknown how much of the frame has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, AskTimeout, RecipientUnreachable, WireError, why_unreachable
from actors.rpc import codec, wire
from actors.rpc import connection as loop_connection
from actors.rpc.codec import MethodSpec
from actors.rpc.config import RpcConfig
from actors.rpc.connection import LARGE_READ_SIZE, READ_SIZE, again, connection_error, is_cut_off, set_tcp_options
from actors.rpc.gateway import Ask
from actors.rpc.offload import ThreadOffloader, get_by_thread
from actors.rpc.security import PROOF_SIZE, ClientHandshake, check_peer_is_us, far_end
from actors.rpc.tls import TlsStream
from actors.rpc.wire import Tags, seal, unseal

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_SIZE = 64 * 1024
"""Bytes of held back tells that are sent at once."""
HIGH_WATER = 1024 * 1024
"""Unsent bytes beyond which a calling thread waits."""
FLUSH_S = QUIET_S = 0.001
"""A tell that follows another within `QUIET_S` seconds is held back for up to `FLUSH_S` seconds."""
STALE_S = 0.005
"""Idle seconds after which a connection is checked before its next use."""
SWEEP = 1000
"""Number of pending asks from which on the connection removes those that have timed out."""
SLICE_S = 0.1
"""Seconds after which a follower checks whether any thread reads."""
RETRY_S = 0.002
TICK_S = 1.0
"""Longest wait of one receive."""
_RECEIVE_TIMEOUT = struct.pack("@ll", int(TICK_S), 0)

DONT_WAIT = (socket.MSG_DONTWAIT,)
_MAY_WAIT = (0,)
TRY = (False,)

_Checked = tuple[Tags, Sequence[bytes], int]
"""State of the record check: tags of the next records, checked but unhandled bytes, least size of the next record."""

Established = tuple[socket.socket, TlsStream | None, tuple[Tags, Tags] | None]
"""A connected, blocking socket; its TLS, None without; the tags of sent and of received records, None without records.
"""


class ThreadAsk(Ask[T]):
    """An ask under way over a `BlockingConnection`.

    Args:
        target: the recipient.
        spec: the called method.
        timeout_s: timeout in seconds, from now on.
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
        connection.helper.check_may_block()
        until = self.deadline if timeout is None else min(self.deadline, time.monotonic() + timeout)
        connection.wait(self, until)
        if not self._is_done:
            if timeout is not None and time.monotonic() < self.deadline:
                raise AskTimeout(f"no reply within {timeout:g} s")
            self.expire()
        return self._outcome()

    def done(self) -> bool:
        """Return whether the reply or a failure has come."""
        if not self._is_done and self.connection is not None:
            self.connection.look()
            if not self._is_done and time.monotonic() >= self.deadline:
                self.expire()
        return self._is_done

    def exception(self) -> BaseException | None:
        """Return the failure of an ask that is done; None for a reply. Fetches a result that was offloaded."""
        if self._fetch is not None:
            self._load()
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call *callback* with this ask when the reply has come, on any thread of the client."""
        self._callbacks.append(callback)
        if self._is_done:
            self.run_callbacks()
        elif self.connection is not None:
            self.connection.helper.demand(self)
            if self._is_done:
                self.run_callbacks()

    def _load(self) -> None:
        """Fetch an offloaded result. The thread that needs it calls this, because the reader has to serve others."""
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
        """Return whether the ask is done, without reading the socket."""
        return self._is_done

    @property
    def has_callbacks(self) -> bool:
        """Return whether callbacks are registered."""
        return bool(self._callbacks)

    def answer(self, value: Any) -> None:
        """Set the reply. It may be called twice, because the next reader repeats the work of an interrupted one."""
        try:
            self.resolve(self._spec.decode_result(value), None)
        except WireError as error:
            self.resolve(None, error)

    def answer_apart(self, fetch: Callable[[], Any]) -> None:
        """Set an offloaded reply; *fetch* returns its value, and may block and raise `ActorError`."""
        if not self._is_done:
            self._fetching = threading.Lock()
            self._fetch = fetch
        self.resolve(None, None)

    def when_done(self, action: Callable[[], object]) -> None:
        """Call *action*, which must not block, when the ask has an outcome. Call this before sending the ask."""
        self._finally = action

    def resolve(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome unless it is set, and wake the threads in `result`; the caller runs the callbacks."""
        if not self._is_done:
            self._value, self._error = value, error
            self._is_done = True
            if self._finally is not None:
                self._finally()
        for queue in self.waiting:
            queue.put(None)

    def expire(self) -> None:
        """End the ask with `AskTimeout`."""
        if self.connection is not None:
            self.connection.pending.pop(self.correlation, None)
        self.resolve(
            None,
            AskTimeout(
                f"{self._target} did not answer {self._spec.name}() within {self._timeout_s:g} s; "
                "its outcome is unknown"
            ),
        )
        self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run each callback once, also when other threads do the same. Hold none of the connection's locks."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # another thread was faster
            try:
                callback(self)
            except Exception:  # as in concurrent.futures: the other callbacks still have to run
                logger.exception("a callback of an ask to %s failed", self._target)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Stale(Exception):
    """The connection has ended, and nothing of the call was sent; the caller opens a new one."""


class BlockingConnection:
    """The only connection of a client to another process. All threads share it; messages of a thread keep their order.

    Args:
        host: host of the other process.
        port: its port.
        secret: the cluster secret.
        config: see `RpcConfig`.
        tls: for TLS over TCP; None without certificates.
        offloader: fetches offloaded results; None to reject them.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        config: RpcConfig,
        tls: ssl.SSLContext | None,
        offloader: ThreadOffloader | None,
    ) -> None:
        self.broken: ActorError | None = None
        self._establish = partial(establish, host, port, secret, config, tls)
        self._lock = threading.RLock()  # guards sending and the asks registered by it
        self._encoder = wire.FrameEncoder(config.frame_size)
        self._last_id = 0
        self._sweep_at = SWEEP
        self._outbox = Outbox()
        self.sock: socket.socket | None = None
        self._role = threading.Lock()  # held by the reader
        self._followers: deque[SimpleQueue[None]] = deque()
        self._intake = Intake(config.frame_size, self._handle)
        self.pending: dict[int, ThreadAsk[Any]] = {}
        self._callbacks: deque[ThreadAsk[Any]] = deque()
        self._offloader = offloader
        if offloader is not None:  # an earlier release takes each announcement for one of a client that fetches
            self._outbox.put(self._encoder.encode(wire.Announcement(config.caller).message()))
        self._dead: socket.socket | None = None
        self._used_at = 0.0
        self._check_at = float("inf")
        self.helper = Helper(self)

    # ------------------------------------------------------------------ calling

    def ask(self, ask: ThreadAsk[Any], fields: tuple[Any, ...]) -> None:
        """Send an ask; raises `Stale`, or `WireError` when it cannot be sent."""
        with self._lock:
            self._check_alive(ask.made_at)
            self._used_at = ask.made_at
            correlation = self._last_id = self._last_id + 1
            frame = self._encoder.encode([wire.ASK, correlation, *fields])
            ask.connection, ask.correlation = self, correlation
            self.pending[correlation] = ask
            self._outbox.put(frame)
            if not self._push():
                self.helper.flush_soon()
        if self._callbacks:
            self.run_callbacks()
        if len(self.pending) > self._sweep_at:
            self._sweep()

    def tell(self, fields: tuple[Any, ...]) -> None:
        """Send a tell: at once after a pause, else within `FLUSH_S`, together with later ones. Raises as `ask`."""
        now = time.monotonic()
        with self._lock:
            self._check_alive(now)
            frame = self._encoder.encode([wire.TELL, *fields])
            self._outbox.put(frame)
            if self.sock is not None and (self._outbox.size > BATCH_SIZE or now - self._used_at > QUIET_S):
                self._used_at = now
                if self._push():
                    return
        self.helper.flush_soon()

    def _check_alive(self, now: float) -> None:
        if now >= self._check_at:
            self.check_cut_off(now)
        if self.broken is not None:
            raise Stale
        if self.sock is None or self.pending or now - self._used_at < STALE_S:
            return
        # No thread reads an idle connection, so its end is still unseen: check now.
        try:
            if self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # the connection has ended in any case
        self.end(RecipientUnreachable("the connection broke"))
        raise Stale

    def check_cut_off(self, now: float) -> None:
        """End the connection if its peer is cut off; call this before and during each wait. It checks now and then."""
        if now < self._check_at:
            return
        with self._lock:
            self._check_at = now + loop_connection.CUT_OFF_CHECK_S
            if self.sock is not None and self.broken is None and is_cut_off(self.sock):
                self.end(RecipientUnreachable("the connection broke: the peer is cut off"))

    @property
    def unsent(self) -> int:
        """Number of bytes that wait in this process."""
        return self._outbox.unsent

    def _push(self) -> bool:
        """Send as much as the kernel takes, under the lock; return whether that was all."""
        sock = self.sock
        if sock is None:
            return not self.unsent
        try:
            return self._outbox.push(sock)
        except OSError as error:
            self._last_words()
            self.end(RecipientUnreachable(f"the connection broke: {error}"))
            return True
        except BaseException:
            self.end(RecipientUnreachable("the connection was given up: a thread was interrupted while it sent"))
            raise

    def push(self) -> bool:
        """Send as much as the kernel takes; return whether that was all."""
        with self._lock:
            return self._push()

    def make_room(self, until: float) -> bool:
        """Read and wait until at most half of `HIGH_WATER` is unsent; return False when *until* comes first."""
        while self.broken is None and self.unsent > HIGH_WATER // 2:
            now = time.monotonic()
            if now >= until:
                return False
            self.check_cut_off(now)
            held: list[bool] = []
            try:
                held.extend(map(self._role.acquire, TRY))
                if held[0] and self.sock is None:
                    self.establish(until)
                self.pump(held[0], min(SLICE_S, until - time.monotonic()))
            finally:
                if held and held[0]:
                    self._role.release()
            self.pass_on()
            self.run_callbacks()
        return True

    def pump(self, reads: bool, timeout_s: float) -> None:
        """Wait until data can be sent, or received if the caller is the reader; then send and receive."""
        sock = self.sock
        if sock is None:
            time.sleep(max(0.0, min(timeout_s, RETRY_S)))
            return
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed by another thread
            poll.register(sock, (select.POLLOUT if self.unsent else 0) | (select.POLLIN if reads else 0))
        events = poll.poll(max(0.0, timeout_s) * 1000)
        if events and events[0][1] & ~select.POLLOUT and reads:
            self.receive(DONT_WAIT)
        self.push()

    def _sweep(self) -> None:
        """Expire asks that have timed out without any thread waiting for them."""
        now = time.monotonic()
        with self._lock:
            overdue = [ask for ask in self.pending.values() if ask.deadline < now]
        for ask in overdue:
            ask.expire()
        self._sweep_at = max(SWEEP, 2 * len(self.pending))

    # ------------------------------------------------------------------ the beginning

    def establish(self, until: float) -> None:
        """Connect; the reader calls this. When *until* comes first, the next reader starts again."""
        try:
            connected = self._establish(until)
        except ActorError as error:
            self.end(error)
            return
        if connected is None:
            return
        sock, tls, tags = connected
        with self._lock:
            if self.broken is not None:
                sock.close()
                return
            if tls is not None:
                self._outbox.tls = tls
                self._intake.decrypt_with(tls, self._outbox.tls_lock)
            if tags is not None:
                self._outbox.tags, receives = tags
                self._intake.check_with(receives)
            self.sock = sock
            self._used_at = time.monotonic()
            if sock.family != socket.AF_UNIX:
                self._check_at = self._used_at + loop_connection.CUT_OFF_CHECK_S
            if not self._push():
                self.helper.wake()

    # ------------------------------------------------------------------ the end

    def _last_words(self) -> None:
        """Read the reason that a server sends before it closes the connection, unless another thread reads."""
        if self._role.acquire(blocking=False):
            try:
                self.receive(DONT_WAIT)
            finally:
                self._role.release()

    def end(self, error: ActorError) -> None:
        """End the connection: all pending asks fail with *error*, and the next call opens a new one."""
        with self._lock:
            if self.broken is not None:
                return
            self.broken = error
            pending, self.pending = self.pending, {}
            self._outbox.clear()
            sock, self.sock = self.sock, None
        for ask in pending.values():
            ask.resolve(None, again(error))
            if ask.has_callbacks:
                self._callbacks.append(ask)
        while self._followers:
            with contextlib.suppress(IndexError):
                self._followers.popleft().put(None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the reader
            self._dead = sock
            self.dispose()
        self.helper.end()

    def dispose(self) -> None:
        """Close the socket of an ended connection once no thread reads it any more."""
        if self._dead is not None and self._role.acquire(blocking=False):
            try:
                if self._dead is not None:
                    self._dead.close()
                    self._dead = None
            finally:
                self._role.release()

    def close(self, error: ActorError, flush_s: float = 0.0) -> None:
        """Send buffered frames for at most *flush_s* seconds, then end the connection."""
        until = time.monotonic() + flush_s
        while self.broken is None and self.unsent and time.monotonic() < until:
            self.push()
            if self.unsent:
                self.helper.wake()
                time.sleep(RETRY_S)
        self.end(error)
        self.run_callbacks()
        self.helper.join()

    def abandon(self) -> None:
        """Leave the connection to the parent, in a forked child; threads of the parent may hold its locks."""
        self._lock, self._role = threading.RLock(), threading.Lock()
        self._followers.clear()
        self.helper.abandon()
        if self.sock is not None:
            self.sock.close()  # closes this process's descriptor only; the peer does not notice
            self.sock = None
        self.end(RecipientUnreachable("the process was forked; the replies to its parent's asks arrive there"))

    # ------------------------------------------------------------------ waiting

    def wait(self, ask: ThreadAsk[Any], until: float) -> None:
        """Wait until *ask* is done, or until *until*: as the reader if there is none, else as a follower."""
        while not ask.is_done:
            held: list[bool] = []
            try:
                # The interpreter checks for signals after each call, so acquiring the lock and recording that must be
                # one step.
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
        if self._followers or self.helper.wants_role or self.broken is not None:
            self.pass_on()
        if self._callbacks:
            self.run_callbacks()

    def _lead(self, ask: ThreadAsk[Any], until: float) -> None:
        if self._intake.waits:
            self._take(self._intake.decode)
        if self.sock is None and self.broken is None:
            self.establish(until)
        while not ask.is_done and self.broken is None:
            now = time.monotonic()
            left = until - now
            if left <= 0:
                self.receive(DONT_WAIT)
                return
            self.check_cut_off(now)
            if self.unsent or left < TICK_S:
                if self.unsent:
                    self.push()
                self.pump(True, min(left, TICK_S))
            else:
                self.receive(_MAY_WAIT)

    def _follow(self, ask: ThreadAsk[Any], until: float) -> None:
        queue: SimpleQueue[None] = SimpleQueue()
        ask.waiting = (*ask.waiting, queue)
        self._followers.append(queue)
        try:
            if not ask.is_done and self._role.locked():
                # In slices: an interrupted reader may not have passed its role on.
                with contextlib.suppress(Empty):
                    queue.get(timeout=max(0.0, min(SLICE_S, until - time.monotonic())))
        finally:
            ask.waiting = tuple(other for other in ask.waiting if other is not queue)
            with contextlib.suppress(ValueError):
                self._followers.remove(queue)

    def pass_on(self) -> None:
        """Wake a follower, or the helper, to become the reader if no thread reads."""
        if self.broken is not None:
            self.dispose()
        if not self._role.locked():
            with contextlib.suppress(IndexError):
                self._followers.popleft().put(None)
            self.helper.role_is_free()

    def look(self) -> None:
        """Read received data without waiting."""
        held: list[bool] = []
        try:
            held.extend(map(self._role.acquire, TRY))
            if held[0]:
                if self.sock is None:
                    self.helper.wake()
                else:
                    self.receive(DONT_WAIT)
        finally:
            if held and held[0]:
                self._role.release()
        self.pass_on()
        self.run_callbacks()

    # ------------------------------------------------------------------ the reader's work

    def try_lead(self) -> bool:
        """Become the reader; the helper calls this."""
        return self._role.acquire(blocking=False)

    def retire(self) -> None:
        """Give up the role of the reader."""
        self._role.release()
        self.pass_on()

    def receive(self, flags: tuple[int]) -> None:
        """Read once, and resolve the asks whose replies came."""
        sock = self.sock
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

    def _handle(self, message: list[Any]) -> None:
        kind, correlation = message[0], message[1]
        if kind not in (wire.REPLY, wire.ERROR, wire.OFFLOADED):
            raise WireError(f"the server sent a message of kind {kind}")
        ask = self.pending.get(correlation)
        if ask is None:
            if kind == wire.ERROR and correlation == 0:
                raise connection_error(message)
            return  # the reply to an ask that has timed out already
        if kind == wire.REPLY:
            ask.answer(message[2])
        elif kind == wire.OFFLOADED:
            if self._offloader is None or type(message[2]) is not str:
                raise WireError("malformed frame: an offloaded result that was not asked for, or whose key is not text")
            ask.answer_apart(partial(get_by_thread, self._offloader, message[2]))
        else:
            ask.resolve(None, codec.decode_error(message[2], message[3], message[4]))
        if ask.has_callbacks:
            self._callbacks.append(ask)
        self.pending.pop(correlation, None)

    def run_callbacks(self) -> None:
        """Run the callbacks of resolved asks, with no lock held."""
        while self._callbacks:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._callbacks.popleft().run_callbacks()


class Outbox:
    """Frames in their order, and the unsent rest of the last data. Used under the connection's lock.

    Attributes:
        tags: if set, the sent data becomes records with these tags.
        tls: if set, it encrypts the sent data; `tls_lock` guards it, because the reader uses it too.
        size: bytes of the frames, without the rest of the data that is being sent.
    """

    def __init__(self) -> None:
        self.size = 0
        self.tags: Tags | None = None
        self.tls: TlsStream | None = None
        self.tls_lock = threading.Lock()
        self._frames: list[bytes] = []
        self._rest: bytes | memoryview = b""

    @property
    def unsent(self) -> int:
        """Number of bytes that wait in this process."""
        return self.size + len(self._rest)

    def put(self, frame: bytes) -> None:
        """Queue a frame."""
        self._frames.append(frame)
        self.size += len(frame)

    def push(self, sock: socket.socket) -> bool:
        """Send as much as the kernel takes, without waiting; return whether that was all.

        Raises:
            OSError: the connection has ended.
        """
        try:
            while True:
                if not self._rest:
                    frames = self._frames
                    if not frames:
                        return True
                    data = frames[0] if len(frames) == 1 else b"".join(frames)
                    frames.clear()
                    self.size = 0
                    if self.tags is not None:
                        data = seal(self.tags, data)
                    self._rest = data if self.tls is None else self._encrypt(self.tls, data)
                sent = sock.send(self._rest, socket.MSG_DONTWAIT)
                self._rest = b"" if sent == len(self._rest) else memoryview(self._rest)[sent:]
        except BlockingIOError:
            return False

    def _encrypt(self, tls: TlsStream, data: bytes) -> bytes:
        with self.tls_lock:
            tls.send(data)
            return tls.outgoing()

    def clear(self) -> None:
        """Drop all unsent data."""
        self._frames.clear()
        self.size, self._rest = 0, b""


class Intake:
    """Reads a socket and passes on each message. Only the connection's present reader uses it.

    A KeyboardInterrupt may end any step, and the next reader continues. The C call that reads a piece also stores it.
    The C call that removes a record also stores that the record was checked. A message may be passed on twice.

    Args:
        maximum: largest body of a frame, in bytes.
        handle: called with each message.
    """

    def __init__(self, maximum: int, handle: Callable[[list[Any]], None]) -> None:
        self._maximum = maximum
        self._handle = handle
        self._tls: TlsStream | None = None
        self._tls_lock = threading.Lock()
        self._encrypted: list[bytes] = []
        self._records: list[Any] = []
        """On a connection with records: `_Checked`, then the received pieces that are not checked yet."""
        self._pieces: list[bytes] = []
        self._inbox = self._pieces
        self._read_size = (READ_SIZE,)

    def decrypt_with(self, tls: TlsStream, lock: threading.Lock) -> None:
        """Decrypt with *tls* from now on; *lock* guards it, because the senders use it too."""
        self._tls, self._tls_lock = tls, lock
        self._inbox = self._encrypted

    def check_with(self, tags: Tags) -> None:
        """Expect records with these tags from now on."""
        self._records.append((tags, (), 0))
        self._inbox = self._records

    @property
    def waits(self) -> bool:
        """Return whether received data is not handled, or not recorded as handled."""
        records = self._records
        return bool(self._pieces or self._encrypted or (records and (len(records) > 1 or records[0][1])))

    def receive(self, sock: socket.socket, flags: tuple[int]) -> None:
        """Read once, and handle the complete messages.

        Args:
            sock: a blocking socket.
            flags: flags of `socket.recv`, in a tuple.

        Raises:
            BlockingIOError: no data has come.
            OSError, ActorError: the connection has ended; `RecipientUnreachable` when the peer has closed it.
        """
        # The interpreter checks for signals between calls: with ``data = sock.recv(...)`` an interrupt could come
        # after the bytes are read and before they are stored.
        self._inbox.extend(map(sock.recv, self._read_size, flags))
        self.decode()

    def decode(self) -> None:
        """Handle the complete messages; raises as `receive`."""
        if self._records:
            self._decode_records(self._records)
            return
        if self._tls is not None:
            self._decrypt(self._tls)
        if self._pieces:
            self._pieces[:] = self._take_frames(self._pieces)

    def _take_frames(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Handle the complete frames of *pieces*, and return the rest."""
        if not pieces[-1]:
            raise RecipientUnreachable("the connection broke")
        data = pieces[0]
        if len(pieces) > 1:
            if len(data) >= wire.HEADER_SIZE and sum(map(len, pieces)) < wire.frame_end(data, 0, self._maximum):
                return pieces
            data = b"".join(pieces)
        position, end = 0, len(data)
        while end - position >= wire.HEADER_SIZE:
            stop = wire.frame_end(data, position, self._maximum)
            if stop > end:
                break
            self._handle(wire.parse(data[position + wire.HEADER_SIZE : stop]))
            position = stop
        self._read_size = (LARGE_READ_SIZE if end >= READ_SIZE else READ_SIZE,)
        if position == end:
            return ()
        return (data[position:] if position else data,)

    def _decode_records(self, records: list[Any]) -> None:
        """Check the received records, and handle the complete messages in them; each step may run twice."""
        checked: _Checked = records[0]
        tags, pieces, needed = checked
        if len(records) > 1:
            data = records[-1]
            if not data:
                raise RecipientUnreachable("the connection broke")
            if len(records) > 2:
                if sum(map(len, records[1:])) < needed:
                    return
                data = b"".join(records[1:])
            tags = tags.copy()
            payloads, used, needed = unseal(tags, data)
            left = (data[used:],) if used < len(data) else ()
            pieces = (*pieces, *payloads) if pieces else payloads
            if pieces:
                pieces = self._take_frames(pieces)
            records[:] = ((tags, pieces, needed), *left)
        elif pieces:
            records[0] = (tags, self._take_frames(pieces), needed)

    def _decrypt(self, tls: TlsStream) -> None:
        """Decrypt received data. This step must not run twice: an interrupted caller has to end the connection."""
        while self._encrypted:
            data = self._encrypted.pop(0)
            if data:
                with self._tls_lock:
                    data = tls.receive(data)
                if not data:
                    continue
            self._pieces.append(data)

    @property
    def repeatable(self) -> bool:
        """Return whether an interrupted `receive` can be repeated."""
        return self._tls is None


class Helper:
    """Thread that does the work for which no caller waits. It starts when it is first needed.

    While it has nothing to do, it sleeps and leaves the socket to the callers.

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
        """Wake the thread to check for work."""
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
        """Send the frames that the connection holds back within `FLUSH_S`."""
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S
            self.wake()

    def demand(self, ask: ThreadAsk[Any]) -> None:
        """Read until the ask is answered or expires, because no thread waits for it."""
        self._demanded[ask.correlation] = ask
        self.wake()

    def role_is_free(self) -> None:
        """Wake the thread if it wants to read; called when no thread reads."""
        if self.wants_role:
            self.wake()

    def check_may_block(self) -> None:
        """Raise RuntimeError when the caller is this thread, which would wait for itself."""
        if threading.get_ident() == self._ident:
            raise RuntimeError("Ask.result() would block the client's own thread; await it, or add a callback, instead")

    def end(self) -> None:
        """Stop the thread; callable from any thread."""
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
        """Forget the thread, in a forked child; only the parent has it."""
        self._mutex = threading.Lock()
        self._ended = True
        self._thread, self._ident = None, 0
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    # ------------------------------------------------------------------ its own

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # an interrupt made the caller start a second helper thread
        self._ident = threading.get_ident()
        held = False
        try:
            while not self._ended and self._connection.broken is None:
                held = self._step(held)
        except Exception as error:  # else asks would wait for ever
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
        """Do one round of work; return whether this thread is the reader."""
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
        if busy:
            now = time.monotonic()
            connection.check_cut_off(now)
            check_at = now + loop_connection.CUT_OFF_CHECK_S
            nearest = check_at if nearest is None else min(nearest, check_at)
        self._poll(held, writes, nearest)
        return held

    def _poll(self, held: bool, writes: bool, nearest: float | None) -> None:
        connection = self._connection
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        mask = (select.POLLIN if held else 0) | (select.POLLOUT if writes else 0)
        if mask and connection.sock is not None:
            with contextlib.suppress(ValueError):  # closed by another thread
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
                connection.receive(DONT_WAIT)
            if events & ~select.POLLIN:
                connection.push()
        connection.run_callbacks()

    def _expire(self) -> float | None:
        """Forget asks that are done, expire overdue ones, and return the nearest deadline."""
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


def establish(
    host: str, port: int, secret: bytes, config: RpcConfig, context: ssl.SSLContext | None, until: float
) -> Established | None:
    """Open an authenticated connection, over TCP with TLS if there is a context; return None when *until* comes first.

    Raises:
        RecipientUnreachable: nothing listens there, or it does not answer.
        AuthenticationError, WireError: the handshake failed.
    """
    sock: socket.socket | None = None
    by = time.monotonic() + config.connect_timeout_s
    try:
        sock = connect(config.local_socket(host, port), host, port, min(by, until))
        by = time.monotonic() + loop_connection.HANDSHAKE_TIMEOUT_S
        tls = None
        if context is not None and sock.family != socket.AF_UNIX:
            tls = TlsStream(context, server_side=False)
        handshake = authenticate(sock, secret, tls, min(by, until))
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, ActorError) or not isinstance(error, OSError | UnicodeError):
            raise
        late = isinstance(error, TimeoutError)
        if late and until < by:
            return None
        if late and sock is not None:
            raise RecipientUnreachable(f"no handshake within {loop_connection.HANDSHAKE_TIMEOUT_S:g} s") from error
        raise RecipientUnreachable(f"nothing can be reached at {host}:{port} ({why_unreachable(error)})") from error
    return sock, tls, handshake.tags() if tls is None and sock.family != socket.AF_UNIX else None


def connect(local: Path | None, host: str, port: int, until: float) -> socket.socket:
    """Return a connected socket: to *local*, or by TCP when that is None.

    Raises:
        OSError: the connection fails; TimeoutError at *until*.
        AuthenticationError: another user listens at *local*.
    """
    if local is not None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            while True:
                sock.settimeout(_left(until))
                try:
                    sock.connect(str(local))
                    check_peer_is_us(sock)
                    return sock
                except BlockingIOError:
                    time.sleep(RETRY_S)  # its backlog is full
        except BaseException:
            sock.close()
            raise
    sock = socket.create_connection((host, port), timeout=_left(until))
    set_tcp_options(sock)
    return sock


def authenticate(sock: socket.socket, secret: bytes, tls: TlsStream | None, until: float) -> ClientHandshake:
    """Set up TLS if there is one, then run the handshake; raises TimeoutError at *until*.

    Raises:
        AuthenticationError, WireError: as `ClientHandshake.receive` and `TlsStream.receive`.
        RecipientUnreachable: the server closed the connection during the handshake.
    """
    handshake = ClientHandshake(secret, "rpc", far_end(sock))
    received = bytearray()
    outgoing = handshake.hello()
    while True:
        sock.settimeout(_left(until))
        if tls is not None:
            tls.send(outgoing)
            outgoing = tls.outgoing()
        try:
            sock.sendall(outgoing)
            outgoing = b""
            if handshake.done:
                return handshake
            data = sock.recv(PROOF_SIZE - len(received) if tls is None else 65536)
        except ConnectionError:
            data = b""
        if not data:
            raise RecipientUnreachable(
                "the connection broke during the handshake: the process ended, or only one side has TLS"
            )
        received += data if tls is None else tls.receive(data)
        if len(received) >= PROOF_SIZE:
            outgoing = handshake.receive(bytes(received[:PROOF_SIZE]))


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
