"""A client's connection that plain threads work themselves: no loop and no other thread is in the way of an ask.

A thread that calls encodes and sends its frame under a lock. A thread that waits for a reply and finds nobody reading
becomes the *reader*: it reads, resolves everybody's asks until its own is done, and hands the role on (the
leader/follower pattern). What has no thread that waits (callbacks, awaits, tells held back for a moment) is a
*helper* thread's, which is started when first needed (`actors.rpc.helper`).

A KeyboardInterrupt can come between any two steps of the main thread. So each step of the reading may be done twice
(`actors.rpc.intake`), and the role is a lock taken and given back by C calls; an interrupted *send* ends the
connection, for nobody knows how much of the frame went out.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from actors.errors import ActorError, RecipientUnreachable, WireError
from actors.rpc import codec, establish, wire
from actors.rpc.connection import again, connection_error
from actors.rpc.helper import Helper
from actors.rpc.intake import Intake
from actors.rpc.offload import get_by_thread
from actors.rpc.records import Tags, seal
from actors.rpc.thread_ask import ThreadAsk
from actors.rpc.tls import TlsStream

if TYPE_CHECKING:
    from actors.rpc.threads import ThreadCaller


class Outbox:
    """Frames in their order, and what the kernel did not take of the last. Used under the connection's lock.

    Attributes:
        tags: make records of what is sent, if set.
        tls: encrypts, if set; shared with the reader, hence `tls_lock`.
        size: bytes of the frames, without the rest of the one that is being sent.
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
        """Bytes that wait in this process."""
        return self.size + len(self._rest)

    def put(self, frame: bytes) -> None:
        """Queue a frame."""
        self._frames.append(frame)
        self.size += len(frame)

    def push(self, sock: socket.socket) -> bool:
        """Send what there is room for, without waiting; whether that was all. Raises OSError when it is over."""
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
        """Nothing will be sent any more."""
        self._frames.clear()
        self.size, self._rest = 0, b""


BATCH_SIZE = 64 * 1024
HIGH_WATER = 1024 * 1024
QUIET_S = 0.001
STALE_S = 0.005
SWEEP = 1000
SLICE_S = 0.1
DONT_WAIT = (socket.MSG_DONTWAIT,)
_MAY_WAIT = (0,)
TRY = (False,)


class Stale(Exception):
    """The connection has ended, and nothing of the call was sent: make a new one."""


class BlockingConnection:
    """The one connection of a client to another process, shared by all threads: messages of a thread keep their order.

    Args:
        caller: settings, and the place to leave when it is over.
        host: host of the other process.
        port: its port.
    """

    def __init__(self, caller: ThreadCaller, host: str, port: int) -> None:
        self.broken: ActorError | None = None
        self._caller = caller
        self._host, self._port = host, port
        self._lock = threading.RLock()  # sending, and what is registered by it
        self._encoder = wire.FrameEncoder(caller.config.frame_size)
        self._last_id = 0
        self._sweep_at = SWEEP
        self._outbox = Outbox()
        self._sock: socket.socket | None = None
        self._role = threading.Lock()  # held by the reader
        self._followers: deque[SimpleQueue[None]] = deque()
        self._intake = Intake(caller.config.frame_size, self._handle)
        self._pending: dict[int, ThreadAsk[Any]] = {}
        self._callbacks: deque[ThreadAsk[Any]] = deque()
        self._offloader = caller.offloader
        if caller.offloader is not None:  # say that results may be offloaded
            self._outbox.put(self._encoder.encode([wire.OFFLOADED, 0, "", 0]))
        self._dead: socket.socket | None = None
        self._used_at = 0.0
        self._helper = Helper(self)

    # ------------------------------------------------------------------ calling

    def ask(self, ask: ThreadAsk[Any], fields: tuple[Any, ...]) -> None:
        """Send an ask; raises `Stale`, or the `WireError` of what cannot be sent."""
        with self._lock:
            self._check_alive(ask.made_at)
            self._used_at = ask.made_at
            correlation = self._last_id = self._last_id + 1
            frame = self._encoder.encode([wire.ASK, correlation, *fields])
            ask.connection, ask.correlation = self, correlation
            self._pending[correlation] = ask
            self._outbox.put(frame)
            if not self._push():
                self._helper.flush_soon()
        if self._callbacks:
            self.run_callbacks()
        if len(self._pending) > self._sweep_at:
            self._sweep()

    def tell(self, fields: tuple[Any, ...]) -> None:
        """Send a tell: at once after a pause, else together with what follows, within `QUIET_S`; raises as `ask`."""
        now = time.monotonic()
        with self._lock:
            self._check_alive(now)
            frame = self._encoder.encode([wire.TELL, *fields])
            self._outbox.put(frame)
            if self._sock is not None and (self._outbox.size > BATCH_SIZE or now - self._used_at > QUIET_S):
                self._used_at = now
                if self._push():
                    return
        self._helper.flush_soon()

    def _check_alive(self, now: float) -> None:
        if self.broken is not None:
            raise Stale
        if self._sock is None or self._pending or now - self._used_at < STALE_S:
            return
        # Nobody reads an idle connection, so nobody has seen its end. Now is the time to look.
        try:
            if self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # it is over all the same
        self.end(RecipientUnreachable("the connection broke"))
        raise Stale

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process."""
        return self._outbox.unsent

    def _push(self) -> bool:
        """Send what there is room for, under the lock; whether that was all."""
        sock = self._sock
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
        """Send what there is room for; whether that was all."""
        with self._lock:
            return self._push()

    def make_room(self, until: float) -> bool:
        """Wait, reading meanwhile, until little enough is unsent; whether that came about before *until*."""
        while self.broken is None and self.unsent > HIGH_WATER // 2:
            if time.monotonic() >= until:
                return False
            held: list[bool] = []
            try:
                held.extend(map(self._role.acquire, TRY))
                if held[0] and self._sock is None:
                    self.establish(until)
                self.pump(held[0], min(SLICE_S, until - time.monotonic()))
            finally:
                if held and held[0]:
                    self._role.release()
            self.pass_on()
            self.run_callbacks()
        return True

    def pump(self, reads: bool, timeout_s: float) -> None:
        """Wait for room, and for input where the caller is the reader, and use it."""
        sock = self._sock
        if sock is None:
            time.sleep(max(0.0, min(timeout_s, establish.RETRY_S)))
            return
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed meanwhile
            poll.register(sock, (select.POLLOUT if self.unsent else 0) | (select.POLLIN if reads else 0))
        events = poll.poll(max(0.0, timeout_s) * 1000)
        if events and events[0][1] & ~select.POLLOUT and reads:
            self.receive(DONT_WAIT)
        self.push()

    # ------------------------------------------------------------------ with the helper

    def check_may_block(self) -> None:
        """Raise RuntimeError on the helper's own thread, which could only wait for itself."""
        if self._helper.runs_here():
            raise RuntimeError("Ask.result() would block the client's own thread; await it, or add a callback, instead")

    def role_is_free(self) -> None:
        """Nobody reads now, and no thread waits to."""
        self._helper.role_is_free()

    def start_helper(self) -> None:
        """There is work that no thread does."""
        self._helper.wake()

    @property
    def helper_waits(self) -> bool:
        """Whether the helper would read."""
        return self._helper.wants_role

    def demand(self, ask: ThreadAsk[Any]) -> None:
        """Have the helper see to an ask that no thread waits for."""
        self._helper.demand(ask)

    def forget(self, correlation: int) -> None:
        """An ask waits no more."""
        self._pending.pop(correlation, None)

    def _sweep(self) -> None:
        """Forget asks whose time is over and that nobody ever waited for."""
        now = time.monotonic()
        with self._lock:
            overdue = [ask for ask in self._pending.values() if ask.deadline < now]
        for ask in overdue:
            ask.expire()
        self._sweep_at = max(SWEEP, 2 * len(self._pending))

    # ------------------------------------------------------------------ the beginning

    def establish(self, until: float) -> None:
        """Connect, by the reader; when *until* comes first, the next reader begins anew."""
        try:
            connected = establish.establish(self._caller, self._host, self._port, until)
        except ActorError as error:
            self.end(error)
            return
        if connected is None:
            return
        with self._lock:
            if self.broken is not None:
                connected.sock.close()
                return
            if connected.tls is not None:
                self._outbox.tls = connected.tls
                self._intake.decrypt_with(connected.tls, self._outbox.tls_lock)
            if connected.tags is not None:
                self._outbox.tags, receives = connected.tags
                self._intake.check_with(receives)
            self._sock = connected.sock
            self._used_at = time.monotonic()
            if not self._push():
                self._helper.wake()

    # ------------------------------------------------------------------ the end

    def _last_words(self) -> None:
        """A server that cuts us off says why; what it said may lie unread, if nobody else reads."""
        if self._role.acquire(blocking=False):
            try:
                self.receive(DONT_WAIT)
            finally:
                self._role.release()

    def end(self, error: ActorError) -> None:
        """The connection is over: all that is pending fails with *error*, the next call makes a new one."""
        with self._lock:
            if self.broken is not None:
                return
            self.broken = error
            pending, self._pending = self._pending, {}
            self._outbox.clear()
            sock, self._sock = self._sock, None
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
        self._helper.end()

    def dispose(self) -> None:
        """Close the socket of a connection that is over, once nobody reads it any more."""
        if self._dead is not None and self._role.acquire(blocking=False):
            try:
                if self._dead is not None:
                    self._dead.close()
                    self._dead = None
            finally:
                self._role.release()

    def close(self, error: ActorError, flush_s: float = 0.0) -> None:
        """Send what waits, for at most *flush_s* seconds, and end."""
        until = time.monotonic() + flush_s
        while self.broken is None and self.unsent and time.monotonic() < until:
            self.push()
            if self.unsent:
                self._helper.wake()
                time.sleep(establish.RETRY_S)
        self.end(error)
        self.run_callbacks()
        self._helper.join()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, and so are the threads that may hold its locks."""
        self._lock, self._role = threading.RLock(), threading.Lock()
        self._followers.clear()
        self._helper.abandon()
        if self._sock is not None:
            self._sock.close()  # this process's descriptor only: nothing is said to the peer
            self._sock = None
        self.end(RecipientUnreachable("the process was forked; what its parent asked is answered there"))

    @property
    def sock(self) -> socket.socket | None:
        """The socket, once there is a connection."""
        return self._sock

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
