"""Thespian's multi-process TCP base, hardened. No other module touches Thespian's private parts; its version is pinned.

Each entry names a problem of stock Thespian 4.0.1, and the remedy of this module:

- Every socket binds all interfaces. Here: loopback only.
- A process unpickles whatever arrives. Here: only messages with a valid keyed BLAKE2 tag, which is checked first.

  - The key is random. Only this process and those forked from it have it, so a recording of another run is rejected.
    All systems of a process share one key, because Thespian keeps its serializer in a place that they share.
  - The tag also covers sender, recipient and creation time, so a message that is relayed to another port or repeated is
    rejected. An acknowledgement is valid for one message only.

- A wrong acknowledgement ends the process that waits for it. Here: that process sends the message again.
- A peer may announce any length. Here: the limit is small, as control messages are.
- Any peer may hold connections open until the process has no descriptors left, and ends. Here: at most 64 connections
  may be without a validly tagged message; one more closes the oldest.
- Actors outlive a killed admin or parent as orphans. Here: they get a parent-death signal.
- A forked process keeps its parent's sockets open. A closed port then still accepts connections, which hang, and a
  closed connection does not end. Here: the forked process gives them up first.
- The log file is in the shared temporary directory. Here: it is off, and the runtime's own logging is restored.

Thespian only creates, stops and places actors. It carries no payload and no job.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import heapq
import hmac
import importlib.metadata
import os
import pickle
import signal
import socket
import struct
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from thespian.system import multiprocTCPBase, utilis
from thespian.system.transport import IPBase, TCPTransport, streamBuffer

from actors.errors import ActorSystemError

SUPPORTED_VERSION = "4.0.1"
TAG_SIZE = 32
MAXIMUM_MESSAGE = 1024 * 1024
MAXIMUM_STRANGERS = 64
ADOPTION_DEADLINE_S = 5.0
GUARDIAN_PID = "Understudy Guardian"

_NAME = struct.Struct(">Q16s")
_STANDARD_ERROR = 2
_RUN_KEY = os.urandom(32)  # known only to this process and those forked from it

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (Linux's parent-death signal)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_subreaper() -> None:
    """Make orphaned descendants children of this process: it can reap them, and they get the parent-death signal."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_process_name(name: str) -> None:
    """Set the name shown by ``ps -o comm`` and ``top`` (15 characters)."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def drop_inherited_sockets() -> None:
    """Give up the stream sockets (listening or connected) and epolls that this process has inherited from its parent.

    Each descriptor is replaced by the null device rather than closed. Copies of the parent's objects may still close
    it; they then close the null device, not another file that has taken the number since. Standard input, output and
    error stay as they are.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for entry in list(Path("/proc/self/fd").iterdir()):
            descriptor = int(entry.name)
            if descriptor > _STANDARD_ERROR and _is_the_parents(entry):
                os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)


def _is_the_parents(entry: Path) -> bool:
    try:
        target = str(entry.readlink())
    except FileNotFoundError:  # the descriptor that listed the directory is closed by now
        return False
    if not target.startswith("socket:"):
        return target == "anon_inode:[eventpoll]"
    sock = socket.socket(fileno=int(entry.name))
    try:
        return sock.type == socket.SOCK_STREAM
    finally:
        sock.detach()


class Receipts:
    """The recent messages of one process, so that it accepts none of them twice. Pure.

    The name of a message is its creation time on the machine's monotonic clock, and the process that made it. Messages
    older than *since*, or older than the last `REMEMBERED` messages, are rejected.

    Args:
        since: time at which the process's port was prepared, in nanoseconds; earlier messages were for another process.
    """

    REMEMBERED = 4096

    def __init__(self, since: int) -> None:
        self._since = since
        self._taken: set[tuple[int, bytes]] = set()
        self._oldest: list[tuple[int, bytes]] = []

    def is_taken(self, name: tuple[int, bytes]) -> bool:
        """Return whether that message was accepted and is still remembered."""
        return name in self._taken

    def take(self, name: tuple[int, bytes]) -> None:
        """Accept a message.

        Raises:
            ValueError: it was accepted before, or is too old to tell.
        """
        if name[0] <= self._since or name in self._taken:
            raise ValueError("a message that was recorded and sent again was refused")
        self._taken.add(name)
        heapq.heappush(self._oldest, name)
        if len(self._oldest) > self.REMEMBERED:
            oldest = heapq.heappop(self._oldest)
            self._taken.remove(oldest)
            self._since = oldest[0]


class TaggedPickle:
    """Pickle whose bytes carry a keyed tag, verified before anything is unpickled.

        message  tag(32) made_at(8) maker(16) pickle of sender and message
        ack      tag(32) of the kind of acknowledgement and of the tag of the message

    The tag covers the whole message, and the recipient's port, which is not sent.

    Args:
        key: key of 32 bytes; default: this process's own.
    """

    def __init__(self, key: bytes = _RUN_KEY) -> None:
        self._key = key

    def _tag(self, recipient: int, data: bytes) -> bytes:
        return hashlib.blake2b(recipient.to_bytes(2) + data, key=self._key, digest_size=TAG_SIZE).digest()

    def dumps(self, value: Any, recipient: int, name: tuple[int, bytes]) -> bytes:
        """Return the bytes of *value* for the process that listens on the port *recipient*."""
        data = _NAME.pack(*name) + pickle.dumps(value)
        return self._tag(recipient, data) + data

    def name(self, data: bytes, recipient: int) -> tuple[int, bytes]:
        """Return the name of a message that came on the port *recipient*.

        Raises:
            ValueError: no process of this system has sent it to that port.
        """
        tag, rest = data[:TAG_SIZE], data[TAG_SIZE:]
        if not hmac.compare_digest(tag, self._tag(recipient, rest)):
            raise ValueError("a message without this system's tag for its recipient was refused")
        made_at, maker = _NAME.unpack_from(rest)
        return made_at, maker

    def loads(self, data: bytes, recipient: int) -> Any:
        """Return the value of a message; raises as `name`."""
        self.name(data, recipient)
        return pickle.loads(data[TAG_SIZE + _NAME.size :])  # noqa: S301  # the tag proves that this system made it

    def ack(self, kind: str, message: bytes) -> bytes:
        """Return the acknowledgement of *message*."""
        data = message[:TAG_SIZE] + kind.encode()
        return hashlib.blake2b(data, key=self._key, digest_size=TAG_SIZE, person=b"acknowledgement").digest()


def _refuse(_: bytes) -> Any:
    raise ValueError("a message was refused because its tag was not checked")


def _frame(data: bytes) -> bytes:
    return b"%d>%b" % (len(data), data)


def _port(address: Any) -> int:
    return int(address.addressDetails.sockname[1])


class _BoundedReceiveBuffer(streamBuffer.ReceiveBuffer):  # type: ignore[misc]  # Thespian is untyped
    """Rejects a length that no control message has before buffering the message; Thespian then closes the socket."""

    def addMore(self, buf: bytes) -> None:  # noqa: N802  # Thespian's name
        super().addMore(buf)
        if self._size is None:
            if len(self._buf) > 20:
                raise ValueError("no length in front of the message")
        elif not 0 <= self._size <= MAXIMUM_MESSAGE:
            raise ValueError(f"a message of {self._size} bytes was refused")


class HardenedTransport(TCPTransport.TCPTransport):  # type: ignore[misc]
    """Thespian's TCP transport; its constructor runs first in every process of the system."""

    def __init__(self, init: Any, *args: Any) -> None:
        self._pickle = TaggedPickle()
        self._maker = os.urandom(16)
        self._made_at = 0
        self._receipts = Receipts(getattr(init, "prepared_at", time.monotonic_ns()))
        if isinstance(init, TCPTransport.TCPEndpoint):
            drop_inherited_sockets()
            _tie_to_parent(init)
        super().__init__(init, *args)

    def external_transport_clone(self) -> HardenedTransport:
        return HardenedTransport(TCPTransport.ExternalTransportCopy(), self._adminAddr, self.txOnly, False)

    def prepEndpoint(self, *args: Any) -> Any:  # noqa: N802  # Thespian's name
        endpoint = super().prepEndpoint(*args)
        endpoint.prepared_at = time.monotonic_ns()  # no peer can know the address of the new process yet
        endpoint.prepared_by = os.getpid()
        return endpoint

    def serializer(self, intent: Any) -> bytes:
        self._made_at = max(time.monotonic_ns(), self._made_at + 1)
        value, name = (self.myAddress, intent.message), (self._made_at, self._maker)
        return _frame(self._pickle.dumps(value, _port(intent.targetAddr), name))

    def _addedDataToIncoming(self, inc: Any, *args: Any, **options: Any) -> Any:  # noqa: N802  # Thespian's name
        buffer = inc._rData
        if not buffer.isDone():
            return super()._addedDataToIncoming(inc, *args, **options)
        data, port = buffer._buf, _port(self.myAddress)
        buffer._deserialize = partial(self._take, port)
        with _ACKNOWLEDGING:
            TCPTransport.ackMsg = TCPTransport.ackDataErrMsg = b""
            with contextlib.suppress(ValueError):  # a bad tag is rejected below, without an answer
                name = self._pickle.name(data, port)
                TCPTransport.ackMsg = _frame(self._pickle.ack(streamBuffer.ackPacket, data))
                TCPTransport.ackDataErrMsg = _frame(self._pickle.ack(streamBuffer.ackDataErrPacket, data))
                if self._receipts.is_taken(name):  # its sender may have missed the acknowledgement
                    buffer._deserialize = _refuse
                    TCPTransport.ackDataErrMsg = TCPTransport.ackMsg
            return super()._addedDataToIncoming(inc, *args, **options)

    def _take(self, port: int, data: bytes) -> Any:
        self._receipts.take(self._pickle.name(data, port))
        return self._pickle.loads(data, port)

    def _check_XMIT_4_done(self, intent: Any, rcv: bytes) -> Any:  # noqa: N802  # Thespian's name
        intent.ackbuf._deserialize = partial(self._acknowledged, intent)
        try:
            return super()._check_XMIT_4_done(intent, rcv)
        except ValueError:
            intent.backoffPause(True)
            intent.stage = self._XMITStepRetry
            return self._nextTransmitStep(intent)

    def _acknowledged(self, intent: Any, data: bytes) -> Any:
        """Return the acknowledgement of *intent*, or a message that came instead and is accepted later."""
        sent = intent.serMsg.partition(b">")[2]
        for kind in (streamBuffer.ackPacket, streamBuffer.ackDataErrPacket):
            if hmac.compare_digest(data, self._pickle.ack(kind, sent)):
                return kind
        return self._pickle.loads(data, _port(self.myAddress))

    def _acceptNewIncoming(self) -> None:  # noqa: N802  # Thespian's name
        super()._acceptNewIncoming()
        strangers = [
            incoming for incoming in self._incomingSockets.values() if incoming.fromAddress.addressDetails is None
        ]
        if len(strangers) > MAXIMUM_STRANGERS:
            oldest = strangers[0]
            del self._incomingSockets[oldest.socket.fileno()]
            oldest.close()


def _tie_to_parent(init: Any) -> None:
    assigned, parent, admin = init.args[1], init.args[2], init.args[3]
    if assigned == admin and parent != admin:
        # The admin is forked twice; it is our child only once the process in between has ended.
        guardian = int(os.environ[GUARDIAN_ENV])
        deadline = time.monotonic() + ADOPTION_DEADLINE_S
        while os.getppid() != guardian:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.001)
        die_with_parent()
        return
    die_with_parent()
    if os.getppid() != init.prepared_by:  # it died between the fork and the prctl
        os._exit(1)


GUARDIAN_ENV = "UNDERSTUDY_GUARDIAN_PID"
_ACKNOWLEDGING = threading.RLock()
"""Held while a message is acknowledged: Thespian reads the text of acknowledgements from module globals."""


class _Checked:
    """Serializer for Thespian that rejects every message; only `HardenedTransport` reads messages."""

    loads = staticmethod(_refuse)


class HardenedSystemBase(multiprocTCPBase.ActorSystemBase):  # type: ignore[misc]
    """The system base for `thespian.actors.ActorSystem`."""

    transportType = HardenedTransport  # noqa: N815  # Thespian's name

    def post(self, address: Any, message: Any) -> None:
        """Start sending; Thespian's own `tell` would wait a minute for an actor that does not acknowledge."""
        self._tx_to_actor(address, message)

    def transmit(self, timeout_s: float) -> bool:
        """Continue sending for at most *timeout_s* seconds; return whether all posted messages were taken."""
        return bool(self._run_transport(timedelta(seconds=timeout_s), txonly=True) == 0)


def harden() -> None:
    """Prepare this process, and so all processes that it forks, for hardened systems.

    Raises:
        ActorSystemError: another version of Thespian than `SUPPORTED_VERSION` is installed.
    """
    version = importlib.metadata.version("thespian")
    if version != SUPPORTED_VERSION:
        raise ActorSystemError(
            f"thespian {version} is installed; only {SUPPORTED_VERSION} is supported: pip install it"
        )
    TCPTransport.serializer = _Checked
    TCPTransport.ReceiveBuffer = _BoundedReceiveBuffer
    IPBase.IPActorAddress.bindArgs = property(lambda address: (("127.0.0.1", address.sockname[1]),))
    os.environ["THESPIAN_BASE_IPADDR"] = "127.0.0.1"
    os.environ[GUARDIAN_ENV] = str(os.getpid())
    utilis.thesplog_control(tmpFileMaxSize=0, useLogging=False)
