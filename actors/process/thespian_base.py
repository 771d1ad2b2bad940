"""Thespian's multi-process TCP base, hardened: the one module that touches its private parts, pinned to its version.

What stock Thespian 4.0.1 does, and what is done about it here:

- every socket binds all interfaces: here, loopback only;
- whatever arrives is unpickled: here, only what carries a keyed BLAKE2 tag, checked first, whose key are random bytes
  that only this process and those forked from it have: what was recorded of another run is refused. All systems of a
  process have the same one, since Thespian keeps it in a place that they share;
- a peer may announce any length: here, control messages are small, and so is the limit;
- anybody may hold connections open until the process has no descriptor left, and ends: here, there may be 64 on which
  no message with a good tag has come yet, and the oldest gives way;
- actors outlive a killed admin or parent as orphans: here, they get a parent-death signal;
- a forked process keeps its parent's sockets open, so that a closed port still takes connections, which then hang, and
  a closed connection does not end: here, it lets go of them first;
- its log file lies in the shared temporary directory: here, it is off, and the runtime's own logging is put back.

Thespian carries creation, exit and placement of actors and nothing else: no payload, no job, goes over it.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import pickle
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import thespian
from thespian.system import multiprocTCPBase, utilis
from thespian.system.transport import IPBase, TCPTransport, streamBuffer

from actors.errors import ActorSystemError

SUPPORTED_VERSION = "4.0.1"
TAG_SIZE = 32
MAXIMUM_MESSAGE = 1024 * 1024
MAXIMUM_STRANGERS = 64
ADOPTION_DEADLINE_S = 5.0
GUARDIAN_PID = "Understudy Guardian"

_STANDARD_ERROR = 2
_RUN_KEY = os.urandom(32)  # inherited by whatever is forked from here, and known to nobody else

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have this process killed when its parent dies (Linux's parent-death signal)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process, so that it sees them end and they see it die."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_process_name(name: str) -> None:
    """Name shown by ``ps -o comm`` and ``top`` (15 characters)."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def drop_inherited_sockets() -> None:
    """Let go of the stream sockets that this process has from its parent, listening or connected, and its epolls.

    Each is replaced by the null device rather than closed: the objects of the parent's that are copied here may still
    close it, and then close that, and not another file that has got the number since. Standard input, output and
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
    except FileNotFoundError:  # the descriptor by which the list was read, which is closed by now
        return False
    if not target.startswith("socket:"):
        return target == "anon_inode:[eventpoll]"
    sock = socket.socket(fileno=int(entry.name))
    try:
        return sock.type == socket.SOCK_STREAM
    finally:
        sock.detach()


class _TaggedPickle:
    """Pickle whose bytes carry a keyed tag, verified before anything is unpickled.

    Args:
        key: of 32 bytes; this process's own by default.
    """

    def __init__(self, key: bytes = _RUN_KEY) -> None:
        self._key = key

    def _tag(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=TAG_SIZE).digest()

    def dumps(self, value: Any) -> bytes:
        data = pickle.dumps(value)
        return self._tag(data) + data

    def loads(self, data: bytes) -> Any:
        tag, body = data[:TAG_SIZE], data[TAG_SIZE:]
        if not hmac.compare_digest(tag, self._tag(body)):
            raise ValueError("a message without this system's tag was refused")
        return pickle.loads(body)  # noqa: S301  # the tag proves that it comes from a process of this system


class _BoundedReceiveBuffer(streamBuffer.ReceiveBuffer):  # type: ignore[misc]  # Thespian is untyped
    """Refuses a length that no control message has, before buffering it; Thespian then closes the socket."""

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
        if isinstance(init, TCPTransport.TCPEndpoint):
            drop_inherited_sockets()
            _tie_to_parent(init)
        super().__init__(init, *args)

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
        # The admin is forked twice; it is ours only when the process in between has gone and the subreaper has it.
        guardian = int(os.environ[GUARDIAN_ENV])
        deadline = time.monotonic() + ADOPTION_DEADLINE_S
        while os.getppid() != guardian:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.001)
    die_with_parent()


GUARDIAN_ENV = "UNDERSTUDY_GUARDIAN_PID"


class HardenedSystemBase(multiprocTCPBase.ActorSystemBase):  # type: ignore[misc]
    """The system base to be given to `thespian.actors.ActorSystem`."""

    transportType = HardenedTransport  # noqa: N815  # Thespian's name

    def post(self, address: Any, message: Any) -> None:
        """Begin to send; Thespian's own `tell` would wait a minute for the acknowledgement of a deaf actor."""
        self._tx_to_actor(address, message)

    def transmit(self, timeout_s: float) -> bool:
        """Go on sending for at most *timeout_s* seconds; whether everything that was posted has been taken."""
        return bool(self._run_transport(timedelta(seconds=timeout_s), txonly=True) == 0)


def harden() -> None:
    """Prepare this process (and so all that it forks) for hardened systems.

    Raises:
        ActorSystemError: another version of Thespian is installed than the one that this module was written against.
    """
    version = thespian.__version__ if hasattr(thespian, "__version__") else _installed_version()
    if version != SUPPORTED_VERSION:
        raise ActorSystemError(
            f"thespian {version} is installed; only {SUPPORTED_VERSION} is supported: pip install it"
        )
    tagged = _TaggedPickle()
    TCPTransport.serializer = tagged
    TCPTransport.ReceiveBuffer = _BoundedReceiveBuffer
    TCPTransport.ackMsg = streamBuffer.toSendBuffer(streamBuffer.ackPacket, tagged.dumps)
    TCPTransport.ackDataErrMsg = streamBuffer.toSendBuffer(streamBuffer.ackDataErrPacket, tagged.dumps)
    IPBase.IPActorAddress.bindArgs = property(lambda address: (("127.0.0.1", address.sockname[1]),))
    os.environ["THESPIAN_BASE_IPADDR"] = "127.0.0.1"
    os.environ[GUARDIAN_ENV] = str(os.getpid())
    utilis.thesplog_control(tmpFileMaxSize=0, useLogging=False)


def _installed_version() -> str:
    from importlib.metadata import version

    return version("thespian")
