"""The RPC service of a process (Flink's `RpcService` and `RpcServer`): it serves endpoints and creates gateways.

A `Listener` listens at each port: TCP on the bind host and, with a socket directory, a Unix socket of mode 0600. A
`Peer` reaches another process: over its Unix socket if both share a directory of sockets, else over TCP.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from actors.address import ActorAddress
from actors.core.node import Node
from actors.errors import (
    ActorError,
    ActorSystemError,
    AskTimeout,
    AuthenticationError,
    FrameTooLarge,
    RecipientUnreachable,
    why_unreachable,
)
from actors.rpc import wire
from actors.rpc.codec import MethodSpec, proxy_type
from actors.rpc.config import RpcConfig
from actors.rpc.connection import ClientConnection, Poller, ServerConnection
from actors.rpc.dispatch import CallRecorder, Dispatcher, Served
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.fencing import Fence
from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from actors.rpc.offload import Offload, Offloader
from actors.rpc.security import check_peer_is_us
from actors.rpc.tls import TlsStream

__all__ = ["RpcConfig", "RpcService", "RpcStatistics"]

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)

BACKLOG = 512
ACCEPTS_AT_ONCE = 64
ACCEPT_RETRY_S = 1.0
CONNECT_RETRY_S = 0.002
REPORT_S = 60.0
STOP_DEADLINE_S = 5.0
"""Seconds that actors other than endpoints have to stop when the service is closed."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class RpcStatistics:
    """Statistics of an RPC service.

    Args:
        connections: present connections of other processes to this one.
        messages: asks and tells received since the start.
        queued: messages whose handlers have not started.
        running: handlers that are coroutines and have not ended, including queued ones.
        dead_letters: messages to unknown actors, and calls of unknown methods, since the start.
    """

    connections: int
    messages: int
    queued: int
    running: int
    dead_letters: int


class RpcService:
    """Serves the endpoints of this process and reaches those of others. It runs on the thread of one event loop.

    A process that only calls (a client) does not call `listen`. A process without an event loop should use
    `actors.client.ActorClient`.

    Args:
        loop: the event loop on which it runs.
        secret: the cluster secret.
        config: see `RpcConfig`.
        recorder: records the calls of clients that change something. A service with one announces itself as a component
            of the cluster, whose calls are not recorded elsewhere. It is closed with the service.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        secret: bytes,
        config: RpcConfig,
        recorder: CallRecorder | None = None,
    ) -> None:
        self.loop = loop
        self.secret = secret
        self.config = config
        self.recorder = recorder
        self.frame_size = config.frame_size
        self.encoder = wire.FrameEncoder(config.frame_size)
        self.poller = Poller(loop)
        self.connections: set[ServerConnection] = set()
        self.unauthenticated: dict[ServerConnection, None] = {}
        self.port = config.port
        self.offload = Offload(loop)
        self._dispatcher = Dispatcher(loop, self.encoder, lambda: self._node, self.offload)
        self.dispatch = self._dispatcher.dispatch
        self._peers: dict[tuple[str, int], Peer] = {}
        self._listeners: list[Listener] = []
        self._thread = threading.get_ident()
        self._node: Node | None = None
        self._closed = False
        self._tls = None if config.tls is None else config.tls.contexts()

    def tls_stream(self, sock: socket.socket, *, server_side: bool) -> TlsStream | None:
        """Return the TLS of one connection; None for Unix sockets, or for a service without certificates."""
        if self._tls is None or sock.family == socket.AF_UNIX:
            return None
        return TlsStream(self._tls[0 if server_side else 1], server_side=server_side)

    def use_offloader(self, offloader: Offloader) -> None:
        """Use *offloader* for arguments and results of asks that exceed a frame; the service closes it at its end.

        Call this before the first call: a connection announces only at its start that it accepts offloaded results.
        """
        self.offload.offloader = offloader

    # ------------------------------------------------------------------ serving

    async def listen(self) -> None:
        """Open the ports: TCP on the bind host and, with a socket directory, a Unix socket (mode 0600).

        Raises:
            ActorSystemError: the port is taken, the address is not this machine's, or the Unix socket cannot be
                created.
        """
        self._thread = threading.get_ident()
        listener, self.port = listen_tcp(self)
        self._listeners.append(listener)
        path = self.config.unix_socket(self.port)
        if path is not None:
            try:
                self._listeners.append(listen_unix(self, path))
            except BaseException:
                self._listeners.pop().close()
                raise

    def address_of(self, path: str) -> ActorAddress:
        """Return the full address of *path* in this process."""
        return ActorAddress(self.config.system, self.config.bind_host, self.port, path)

    async def start_server(self, endpoint: RpcEndpoint) -> ActorAddress:
        """Register *endpoint*, start it, and return its address; unregister it if its `on_start` fails.

        Raises:
            ActorSystemError: the name is taken, or the endpoint does not implement all of its gateways.
        """
        await self._dispatcher.start(endpoint, self.node)
        return endpoint.address

    @property
    def node(self) -> Node:
        """The actors of this process, including its endpoints; created with the first of them."""
        if self._node is None:
            address = self.address_of("/")
            self._node = Node(self.loop, address.system, address, secrets.randbits(62) + 1)
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        assert self._node is None, "the endpoints of this process are actors of another node"
        self._node = node

    def started(self, endpoint: RpcEndpoint) -> None:
        """Record that an endpoint accepts calls; the endpoint calls this."""
        self._dispatcher.started(endpoint)

    async def stopped(self, endpoint: RpcEndpoint, error: BaseException | None) -> None:
        """Record that an endpoint has stopped, or failed to start with *error*; the endpoint calls this."""
        await self._dispatcher.stopped(endpoint, error)

    async def stop_server(self, endpoint: RpcEndpoint) -> None:
        """Stop *endpoint* and free its name; its unanswered asks end in `EndpointStateError`."""
        await self._dispatcher.stop(endpoint)

    # ------------------------------------------------------------------ calling

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | Fence | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """Return a gateway to the actor at *address*; its first call opens the connection, also after a break.

        Args:
            address: the actor's address or its text form.
            gateway_type: the interface that it implements.
            token: the leadership that the calls address, for fenced endpoints; in the gateways of a leader a `Fence`
                with that leadership and its own.
            timeout_s: timeout of each ask, in seconds; default: ``rpc.ask-timeout``.

        Raises:
            AddressError: *address* is not an actor address.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return cast("G", proxy_type(gateway_type)(self, target, token, timeout_s or self.config.ask_timeout_s))

    def connect(self, address: ActorAddress | str) -> None:
        """Start connecting to the process of *address*, so that the first call need not wait. That call gets any error.

        Raises:
            AddressError: *address* is not an actor address.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        with contextlib.suppress(RecipientUnreachable):  # the service is closed
            self._peer(target)

    def ask(
        self,
        target: ActorAddress,
        spec: MethodSpec,
        arguments: list[Any],
        token: FencingToken | Fence | None,
        timeout_s: float,
    ) -> Ask[Any]:
        """Send an ask (used by the generated gateways)."""
        message = [wire.ASK, 0, target.path, spec.name, arguments, token]
        if threading.get_ident() == self._thread:
            future: asyncio.Future[Any] = self.loop.create_future()
            self._send_ask(target, spec, message, future, timeout_s)
            return Ask(future, self.loop, timeout_s)
        outer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def send() -> None:
            inner: asyncio.Future[Any] = self.loop.create_future()
            inner.add_done_callback(functools.partial(_copy_outcome, outer))
            self._send_ask(target, spec, message, inner, timeout_s)

        try:
            self._check_open()
            self.loop.call_soon_threadsafe(send)
        except RecipientUnreachable as error:
            outer.set_exception(error)
        return Ask(outer, self.loop, timeout_s)

    def _send_ask(
        self, target: ActorAddress, spec: MethodSpec, message: list[Any], future: asyncio.Future[Any], timeout_s: float
    ) -> None:
        token = message[5]
        try:
            peer = self._peer(target)
            peer.check_room()
            if token is not None:
                message[5] = token.fields()
                if type(token) is Fence:
                    future.add_done_callback(token.answered)
            peer.ask(
                message, spec.decode_result, future, timeout_s, functools.partial(_timed_out, target, spec, timeout_s)
            )
        except FrameTooLarge as error:
            if self.offload.offloader is not None and type(message[4]) is list:
                message[5] = token  # the fence checks the lease again after the upload
                self.offload.spawn(self._offload_ask(target, spec, message, future, timeout_s))
            elif not future.done():
                future.set_exception(error)
        except ActorError as error:
            if not future.done():
                future.set_exception(error)

    async def _offload_ask(
        self, target: ActorAddress, spec: MethodSpec, message: list[Any], future: asyncio.Future[Any], timeout_s: float
    ) -> None:
        """Send an ask whose arguments do not fit into a frame; keep the uploaded arguments until it is answered."""
        deadline = self.loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                key, _ = await self.offload.put(message[4])
        except TimeoutError:
            if not future.done():
                future.set_exception(_timed_out(target, spec, timeout_s))
        except asyncio.CancelledError:
            if not future.done():
                future.set_exception(RecipientUnreachable("the RPC service was closed"))
            raise
        except ActorError as error:
            if not future.done():
                future.set_exception(error)
        else:
            future.add_done_callback(lambda _: self.offload.release(key))
            if not future.done():
                message[4] = key
                self._send_ask(target, spec, message, future, max(0.0, deadline - self.loop.time()))

    def tell(self, target: ActorAddress, name: str, arguments: list[Any], token: FencingToken | Fence | None) -> None:
        """Send a tell (used by the generated gateways): at most once, no reply, never an error to the caller."""
        message = [wire.TELL, target.path, name, arguments, token]
        if threading.get_ident() == self._thread or self._closed:
            self._send_tell(target, message)
        else:
            self.loop.call_soon_threadsafe(self._send_tell, target, message)

    def _send_tell(self, target: ActorAddress, message: list[Any]) -> None:
        token = message[4]
        try:
            if token is not None:
                message[4] = token.fields()
            self._peer(target).tell(self.encoder.encode(message))
        except ActorError as error:
            logger.warning("a message to %s was not sent: %s", target, error)

    def unsent(self, key: tuple[str, int]) -> int:
        """Return the number of bytes that wait to be sent to the process at host and port."""
        peer = self._peers.get(key)
        return 0 if peer is None else peer.unsent

    @property
    def caller(self) -> ServerConnection | None:
        """The connection whose message a plain handler is handling; only that handler may use it."""
        return self._dispatcher.caller

    def statistics(self) -> RpcStatistics:
        """Return the present statistics."""
        served = self._dispatcher.served.values()
        return RpcStatistics(
            len(self.connections),
            self._dispatcher.received,
            sum(one.queued for one in served),
            sum(len(one.tasks) for one in served),
            0 if self._node is None else self._node.dead_letters_count,
        )

    def served(self) -> list[Served]:
        """Return the present endpoints."""
        return list(self._dispatcher.served.values())

    def _check_open(self) -> None:
        if self._closed:
            raise RecipientUnreachable("the RPC service was closed")

    def _peer(self, target: ActorAddress) -> Peer:
        self._check_open()
        key = (target.host, target.port)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(self, target.host, target.port, target.system)
        return peer

    def forget_peer(self, key: tuple[str, int], peer: Peer) -> None:
        """Forget a connection that has ended; the next call opens a new one."""
        if self._peers.get(key) is peer:
            del self._peers[key]

    async def close(self) -> None:
        """Stop all endpoints, close every connection and port, remove the Unix socket."""
        await self._stop_actors()
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close()
        self._closed = True
        for peer in list(self._peers.values()):
            peer.close()
        await self.offload.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        path = self.config.unix_socket(self.port)
        if path is not None and self._listeners:
            path.unlink(missing_ok=True)
        self._listeners.clear()

    async def _stop_actors(self) -> None:
        """Stop endpoints that are ordinary actors, then all other actors, then the endpoints that carry messages."""
        node = self._node
        for served in self.served():
            if node is not None and served.endpoint.path in node.cells:
                await self.stop_server(served.endpoint)
        if node is not None and node.root is not None and not node.is_closed:
            node.root.terminate(STOP_DEADLINE_S)
            try:
                await asyncio.wrap_future(node.terminated)
            except ActorError as error:
                logger.warning("%s", error)
        for served in self.served():
            await self.stop_server(served.endpoint)
        if node is not None:
            node.close()


class Listener:
    """One listening socket; it turns accepted connections into `ServerConnection` objects.

    Args:
        service: the service of the connections.
        sock: a bound socket.
    """

    def __init__(self, service: RpcService, sock: socket.socket) -> None:
        self._service = service
        self._sock = sock
        self._retry: asyncio.TimerHandle | None = None
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._watch()

    def _watch(self) -> None:
        self._retry = None
        self._service.poller.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("no connection can be accepted for %g s: %s", ACCEPT_RETRY_S, error.strerror)
                self._service.poller.remove_reader(self._sock.fileno())
                self._retry = self._service.loop.call_later(ACCEPT_RETRY_S, self._watch)
                return
            sock.setblocking(False)
            self._serve(sock, f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local peer")

    def _serve(self, sock: socket.socket, peer: str) -> None:
        service = self._service
        if sock.family == socket.AF_UNIX:
            try:
                check_peer_is_us(sock)
            except AuthenticationError as error:
                logger.warning("refused %s: %s", peer, error)
                sock.close()
                return
        ServerConnection(service, peer).attach(sock, service.tls_stream(sock, server_side=True))
        if len(service.unauthenticated) > service.config.unauthenticated:
            next(iter(service.unauthenticated)).make_way()

    def close(self) -> None:
        """Stop listening."""
        if self._retry is not None:
            self._retry.cancel()
        else:
            self._service.poller.remove_reader(self._sock.fileno())
        self._sock.close()


def listen_tcp(service: RpcService) -> tuple[Listener, int]:
    """Listen on the configured host and port; return the listener and its port. Raises `ActorSystemError`."""
    host, port = service.config.bind_host, service.config.port
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        return Listener(service, sock), sock.getsockname()[1]
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken; stop what holds it, or set jobmanager.rpc.port to another"
        else:
            reason = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ActorSystemError(reason) from error


def listen_unix(service: RpcService, path: Path) -> Listener:
    """Listen on a Unix socket at *path* that only this user may use; raises `ActorSystemError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        return Listener(service, sock)
    except OSError as error:
        sock.close()
        raise ActorSystemError(
            f"cannot listen on the Unix socket {path}: {error.strerror or error}; "
            "its directory has to exist, and its path to be at most 107 bytes long"
        ) from error
    finally:
        os.umask(previous)


class Peer:
    """The only connection of this process to another; calls made while it opens are sent after that, in order.

    Args:
        service: its RPC service.
        host: host of the other process.
        port: its TCP port; on this machine its Unix socket is used instead (`RpcConfig.local_socket`).
        system: the name of its actor system.
    """

    def __init__(self, service: RpcService, host: str, port: int, system: str) -> None:
        self._service = service
        self._system = system
        self._key = (host, port)
        self._connection = ClientConnection(service, self._closed)
        self._limit = service.config.outbox_size
        self.dropped = 0
        """Number of dropped tells."""
        self._reported_at = float("-inf")
        self.ask = self._connection.ask
        self._task = service.loop.create_task(self._open(host, port))

    async def _open(self, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(self._service.config.connect_timeout_s):
                local = self._service.config.local_socket(host, port, self._system)
                sock = await (self._connect_tcp(host, port) if local is None else self._connect_unix(local))
            self._connection.attach(sock, self._service.tls_stream(sock, server_side=False))
        except (OSError, TimeoutError, UnicodeError) as error:
            reason = why_unreachable(error)
            self._connection.fail(RecipientUnreachable(f"nothing can be reached at {host}:{port} ({reason})"))
        except AuthenticationError as error:
            self._connection.fail(error)

    async def _connect_unix(self, path: Path) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(str(path))
                    check_peer_is_us(sock)
                    return sock
                except BlockingIOError:  # its backlog is full; asyncio's sock_connect would report success
                    await asyncio.sleep(CONNECT_RETRY_S)
        except BaseException:
            sock.close()
            raise

    async def _connect_tcp(self, host: str, port: int) -> socket.socket:
        loop = self._service.loop
        try:  # a numeric address needs no look-up in a thread
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        refusal: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                return sock
            except OSError as error:
                sock.close()
                refusal = refusal or error
            except BaseException:
                sock.close()
                raise
        raise refusal or OSError(f"{host} has no address")

    @property
    def unsent(self) -> int:
        """Number of bytes that wait for the other process."""
        return self._connection.unsent

    def check_room(self) -> None:
        """Raise `RecipientUnreachable` when more bytes wait for the other process than ``outbox_size``."""
        if self._connection.unsent > self._limit:
            host, port = self._key
            raise RecipientUnreachable(
                f"{host}:{port} takes nothing: {self._connection.unsent} bytes wait for it already; "
                "it hangs, or is sent more than it can do"
            )

    def tell(self, frame: bytes) -> None:
        """Send a TELL; when too many bytes wait already, drop and count it, and log that at most once a minute."""
        if self._connection.unsent <= self._limit:
            self._connection.send(frame)
            return
        self.dropped += 1
        now = self._service.loop.time()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            host, port = self._key
            logger.warning(
                "%s:%d takes nothing: %d messages to it were dropped so far, for %d bytes wait for it already",
                host,
                port,
                self.dropped,
                self._connection.unsent,
            )

    def _closed(self, _reason: ActorError) -> None:
        self._service.forget_peer(self._key, self)

    def close(self) -> None:
        """Close the connection, or stop opening it."""
        self._task.cancel()
        self._connection.close()


def _timed_out(target: ActorAddress, spec: MethodSpec, timeout_s: float) -> AskTimeout:
    return AskTimeout(f"{target} did not answer {spec.name}() within {timeout_s:g} s; its outcome is unknown")


def _copy_outcome(outer: concurrent.futures.Future[Any], inner: asyncio.Future[Any]) -> None:
    if inner.cancelled():
        outer.cancel()
        return
    error = inner.exception()
    if not outer.set_running_or_notify_cancel():
        return  # the asker has stopped waiting (a cancelled await in another loop)
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())
