"""Actor systems over processes (Akka's `ActorSystem`)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import fcntl
import ipaddress
import logging
import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from actors.address import ActorAddress
from actors.errors import ActorError, AddressError
from actors.process.host import HostSpec
from actors.process.logs import LogConfig
from actors.process.loops import LoopThread
from actors.process.system import ProcessActorSystem
from actors.remote.endpoint import NodeEndpoint
from actors.remote.gateway import NodeId
from actors.remote.heartbeats import Pulse
from actors.remote.remote import Remoting
from actors.remote.root import RootPlacing
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcConfig, RpcService
from actors.system_api import ActorSystemBase
from actors.system_client import ActorSystemClient
from actors.system_config import SystemConfig

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIRECTORY_PREFIX = "understudy-actors-"
_LOCK = "lock"
_SOCKET_PATH_LIMIT = 107
_systems: weakref.WeakSet[ActorSystem] = weakref.WeakSet()
"""Systems of this process, and of the process that it was forked from."""


class ActorSystem(ActorSystemBase):
    """An actor system whose actors run in processes of their own, in shared processes, and in this process.

    Start it before this process has threads that hold locks, because the system forks the processes of its actors from
    this one. They know what ``__main__`` has defined by then. Several systems may run in a process. Any thread may use
    them.

    SIGTERM terminates the system and then ends the process by that signal (Akka's shutdown hook). This requires that
    the system is created in the main thread and that nothing else handles the signal by then. A second SIGTERM ends the
    process at once.

    Args:
        name: name of the system: letters, digits, ``_`` and ``-``.
        host: address at which others reach this machine, and on which the system listens; default: loopback.
        port: port of the system; 0 takes a free one.
        secret_file: file with the secret shared by all systems and clients that talk to each other. The system creates
            it (mode 0600) when it does not exist. None: a new secret in the system's own directory, see `secret_file`.
        config: see `SystemConfig`.

    Raises:
        ActorSystemError: the port is taken, the host is not this machine's, or Thespian's admin does not start.
        ValueError: *name* or *host* is none.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        secret_file: Path | str | None = None,
        config: SystemConfig | None = None,
    ) -> None:
        _check(name, host)
        self._config = config or SystemConfig()
        self._pid = os.getpid()
        self._ended = threading.Lock()
        self._is_terminated = False
        _sweep()
        self._directory, self._lock = _make_directory()
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_directory)
            self.secret_file = Path(secret_file) if secret_file is not None else self._directory / "secret"
            secret = load_or_create_secret(self.secret_file)
            self._processes = ProcessActorSystem()
            undo.callback(self._processes.shutdown)
            self._thread = LoopThread(f"actors-{name}")
            undo.callback(self._thread.close)
            self._thread.run(self._start(name, host, port, secret))
            undo.pop_all()
        self._at_exit = _terminate_at_exit(self)
        atexit.register(self._at_exit)
        _systems.add(self)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _sigterm)

    async def _start(self, name: str, host: str, port: int, secret: bytes) -> None:
        uid = secrets.randbits(62) + 1
        rpc = self._rpc(name, host, port)
        self._service = service = RpcService(self._thread.loop, secret, rpc)
        await service.listen()
        try:
            self._pulse = Pulse(secret, name, host, uid, rpc.tls)
            me = NodeId(name, host, service.port, uid, host, service.port, uid, self._pulse.port)
            self._remoting = remoting = Remoting(service, me, self._config)
            self.node = node = remoting.node
            node.system = self
            endpoint = NodeEndpoint(remoting)
            self._placing = RootPlacing(
                remoting, self._processes, self._host_spec(me, rpc), endpoint.host_here, self._config.shared_hosts
            )
            remoting.placing = self._placing
            node.terminated.add_done_callback(self._guardians_ended)
            await service.start_server(endpoint)
        except BaseException:
            await service.close()
            raise

    def _rpc(self, name: str, host: str, port: int) -> RpcConfig:
        sockets: Path | None = self._directory
        if len(str(self._directory)) + len("/rpc-65535") > _SOCKET_PATH_LIMIT:
            sockets = None  # a temporary directory of such a name leaves TCP
        return RpcConfig(
            system=name,
            bind_host=host,
            port=port,
            socket_dir=sockets,
            shares_host=True,
            frame_size=self._config.frame_size,
            ask_timeout_s=self._config.ask_timeout_s,
            tls=self._config.tls,
        )

    def _host_spec(self, root: NodeId, rpc: RpcConfig) -> Callable[[str, int], HostSpec]:
        config = self._config
        host_rpc = dataclasses.replace(rpc, port=0)

        def make(name: str, uid: int) -> HostSpec:
            return HostSpec(
                name=name,
                factory="actors.service_system:start_hosted_node",
                arguments={"uid": uid, "root": root, "config": config},
                rpc=host_rpc,
                secret_file=self.secret_file.absolute(),
                log=LogConfig(config.log_file, config.log_level),
                own_node=True,
            )

        return make

    # ------------------------------------------------------------------ use

    @property
    def processes(self) -> dict[str, int]:
        """The pids of its host processes, by name."""
        return self.on_loop(lambda: self._placing.processes)

    @staticmethod
    def connect(
        address: str | ActorAddress, secret_file: Path | str, config: SystemConfig | None = None
    ) -> ActorSystemClient:
        """Connect to a running system from a process without one: a notebook, a script.

        Args:
            address: the system's address, ``akka.tcp://<system>@<host>:<port>``, with or without a path.
            secret_file: file with the system's secret.
            config: settings; a client uses the timeouts, the frame size and TLS.

        Raises:
            AddressError: *address* is not an address.
            RecipientUnreachable: nothing listens there.
            AuthenticationError: the system has another secret.
        """
        return ActorSystemClient(address, secret_file, config)

    # ------------------------------------------------------------------ end

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Stop all actors, children first, then all processes, and wait until all have ended. Idempotent.

        When an actor calls it, it returns at once, and the system ends in the background.

        Args:
            timeout_s: seconds until actors that still run are cancelled; host processes are killed some seconds later.
        """
        if os.getpid() != self._pid:
            return  # this process was forked from the system's process
        if self._thread.is_here:
            threading.Thread(target=self.terminate, args=(timeout_s,), name="actors-terminate").start()
            return
        with self._ended:
            if self._is_terminated:
                return
            self._is_terminated = True
            try:
                self._thread.run(self._stop(timeout_s))
            finally:
                self._thread.close()
                self._processes.shutdown()
                self._remove_directory()
                atexit.unregister(self._at_exit)  # last, so that the interpreter's exit waits for all this

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)

    def _guardians_ended(self, _terminated: object) -> None:
        """Terminate the system after all actors have stopped: on request, or because a guardian failed."""
        if not self._is_terminated:
            threading.Thread(target=self.terminate, name="actors-terminate").start()

    async def _stop(self, timeout_s: float) -> None:
        root = self.node.root
        if root is not None:
            root.terminate(timeout_s)
            try:
                await asyncio.wrap_future(self.node.terminated)
            except ActorError as error:
                logger.warning("%s", error)
        await self._placing.close(timeout_s)
        await self._service.close()
        self._pulse.close()


def _check(name: str, host: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of an actor system: it takes letters, digits, _ and -")
    try:
        is_unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a host name
        is_unspecified = False
    if is_unspecified:
        raise AddressError(f"{host} is not an address that others could reach; give this machine's own")


def _terminate_at_exit(system: ActorSystem) -> Callable[[], None]:
    """Return a function that terminates the system at exit unless it was terminated or collected before."""
    known = weakref.ref(system)

    def terminate() -> None:
        forgotten = known()
        if forgotten is not None:
            forgotten.terminate()

    return terminate


def _sigterm(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # another one ends the process at once
    # In a thread of its own: the main thread may be within `terminate`, or hold any lock.
    threading.Thread(target=_terminate_all, args=(number,), name="actors-sigterm").start()


def _terminate_all(number: int) -> None:
    try:
        for system in list(_systems):
            system.terminate()  # waits where it is being terminated already
    finally:
        os.kill(os.getpid(), number)


def _make_directory() -> tuple[Path, int]:
    """Create a private directory with a lock file, locked by this process and those forked from it.

    Returns:
        The directory and the descriptor of the lock.
    """
    made = Path(tempfile.mkdtemp(prefix=f".{_DIRECTORY_PREFIX}"))
    lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # `_sweep` finds directories by name, so it gets that name only once it is locked.
    return made.rename(made.with_name(made.name.removeprefix("."))), lock


def _sweep() -> None:
    """Remove the directories of systems whose processes were killed before they could remove them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or in use, or being removed by another process
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
