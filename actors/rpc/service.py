"""The RPC service of a process: listens, dispatches, makes gateways (Flink's `RpcService` and `RpcServer`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import functools
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from actors.address import ActorAddress
from actors.errors import (
    ActorError,
    ActorSystemError,
    AskTimeout,
    EndpointStateError,
    RecipientUnreachable,
    UnknownActor,
    WireError,
)
from actors.rpc import codec, wire
from actors.rpc.codec import MethodSpec
from actors.rpc.connection import ServerConnection
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from actors.rpc.peer import Peer
from actors.rpc.tables import MethodTable, method_table, proxy_type

log = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)


@dataclass(frozen=True, slots=True)
class RpcConfig:
    """Settings of an RPC service.

    Args:
        system: name of the actor system, the part before ``@`` in addresses.
        bind_host: address to listen on; loopback by default.
        port: TCP port; 0 takes a free one.
        socket_dir: directory of the Unix sockets of this machine's processes, or None for TCP only.
        frame_size: largest message in bytes.
        ask_timeout_s: default time allowed for an ask, in seconds.
        connect_timeout_s: time allowed for making a connection, in seconds.
    """

    system: str = "understudy"
    bind_host: str = "127.0.0.1"
    port: int = 0
    socket_dir: Path | None = None
    frame_size: int = 10 * 1024 * 1024
    ask_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0


class RpcService:
    """Serves the endpoints of this process and reaches those of others. All of it runs on one event loop's thread.

    A process that only calls (a client) never listens: leave out `listen`.

    Args:
        loop: the event loop that drives it.
        secret: the cluster secret.
        config: see `RpcConfig`.
    """

    decode_error = staticmethod(codec.decode_error)

    def __init__(self, loop: asyncio.AbstractEventLoop, secret: bytes, config: RpcConfig) -> None:
        self.loop = loop
        self.secret = secret
        self.config = config
        self.frame_size = config.frame_size
        self.encoder = wire.FrameEncoder(config.frame_size)
        self.connections: set[ServerConnection] = set()
        self.port = config.port
        self._endpoints: dict[str, tuple[RpcEndpoint, MethodTable]] = {}
        self._peers: dict[tuple[str, int], Peer] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._thread = threading.get_ident()
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    # ------------------------------------------------------------------ serving

    async def listen(self) -> None:
        """Open the ports: TCP on the bind host and, with a socket directory, a Unix socket (mode 0600).

        Raises:
            ActorSystemError: the port is taken, the address is not this machine's, or the Unix socket cannot be made.
        """
        self._thread = threading.get_ident()
        host, port = self.config.bind_host, self.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                reason = f"port {port} of {host} is taken; stop what holds it, or set jobmanager.rpc.port to another"
            else:
                reason = f"cannot listen on {host}:{port}: {error.strerror}"
            raise ActorSystemError(reason) from error
        self.port = sock.getsockname()[1]
        self._servers.append(await self.loop.create_server(lambda: ServerConnection(self), sock=sock, backlog=512))
        path = self._socket_path(self.port)
        if path is not None:
            path.unlink(missing_ok=True)
            previous = os.umask(0o177)
            try:
                server = await self.loop.create_unix_server(lambda: ServerConnection(self), path=path, backlog=512)
            except OSError as error:
                self._servers.pop().close()
                raise ActorSystemError(
                    f"cannot listen on the Unix socket {path}: {error.strerror or error}; "
                    "its directory has to exist, and its path to be at most 107 bytes long"
                ) from error
            finally:
                os.umask(previous)
            self._servers.append(server)

    def _socket_path(self, port: int) -> Path | None:
        return None if self.config.socket_dir is None else self.config.socket_dir / f"rpc-{port}"

    def address_of(self, path: str) -> ActorAddress:
        """The full address of *path* in this process."""
        return ActorAddress(self.config.system, self.config.bind_host, self.port, path)

    async def start_server(self, endpoint: RpcEndpoint) -> ActorAddress:
        """Register *endpoint*, start it, and return its address; on an error of its `on_start` it is not registered.

        Raises:
            ActorSystemError: the name is taken, or the endpoint does not implement all of its gateways.
        """
        if endpoint.path in self._endpoints:
            raise ActorSystemError(f"an actor named {endpoint.path} runs in this process already")
        table = method_table(endpoint)
        self._endpoints[endpoint.path] = (endpoint, table)
        try:
            await endpoint.start()
        except BaseException:
            del self._endpoints[endpoint.path]
            await endpoint.stop()
            raise
        return endpoint.address

    async def stop_server(self, endpoint: RpcEndpoint) -> None:
        """Stop *endpoint* and free its name."""
        try:
            await endpoint.stop()
        finally:
            self._endpoints.pop(endpoint.path, None)

    def dispatch(self, message: list[Any], connection: ServerConnection) -> None:
        """Run one received ASK or TELL; called on the main thread, in the order of arrival."""
        kind = message[0]
        if kind == wire.ASK:
            _, correlation, path, name, args, token = message
        elif kind == wire.TELL:
            _, path, name, args, token = message
            correlation = None
        else:
            raise WireError(f"a client sent a message of kind {kind}")
        try:
            entry = self._endpoints.get(path)
            if entry is None:
                raise UnknownActor(f"no actor {path} lives at {self.config.bind_host}:{self.port}")
            endpoint, table = entry
            if not endpoint.running:
                raise EndpointStateError(f"{path} is starting or stopping; try again")
            endpoint.check_token(_fencing_token(token))
            method = table.get(name)
            if method is None:
                raise UnknownActor(f"{path} has no method {name!r}")
            spec, handler, is_coroutine = method
            values = spec.decode_arguments(args)
        except (ActorError, ValueError, TypeError, LookupError) as error:
            self._reply_error(connection, correlation, path, name, error)
            return
        if is_coroutine:
            endpoint.pending_starts += 1
            task = self.loop.create_task(self._run(endpoint, spec, handler, values, correlation, connection))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif endpoint.pending_starts:
            # An earlier message of this endpoint waits for its first step: queue behind it, so that order holds.
            self.loop.call_soon(self._call, endpoint, spec, handler, values, correlation, connection)
        else:
            self._call(endpoint, spec, handler, values, correlation, connection)

    def _call(
        self,
        endpoint: RpcEndpoint,
        spec: MethodSpec,
        handler: Callable[..., Any],
        values: list[Any],
        correlation: int | None,
        connection: ServerConnection,
    ) -> None:
        try:
            result = handler(*values)
        except Exception as error:  # a handler's failure is the asker's to know, whatever it is
            self._reply_error(connection, correlation, endpoint.path, spec.name, error)
        else:
            self._reply(connection, correlation, endpoint.path, spec, result)

    async def _run(
        self,
        endpoint: RpcEndpoint,
        spec: MethodSpec,
        handler: Callable[..., Any],
        values: list[Any],
        correlation: int | None,
        connection: ServerConnection,
    ) -> None:
        endpoint.pending_starts -= 1
        try:
            result = await handler(*values)
        except asyncio.CancelledError:
            stopped = EndpointStateError(f"{endpoint.path} was stopped before it had answered {spec.name}()")
            self._reply_error(connection, correlation, endpoint.path, spec.name, stopped)
            raise
        except Exception as error:  # as in _call
            self._reply_error(connection, correlation, endpoint.path, spec.name, error)
        else:
            self._reply(connection, correlation, endpoint.path, spec, result)

    def _reply(
        self, connection: ServerConnection, correlation: int | None, path: str, spec: MethodSpec, result: Any
    ) -> None:
        if correlation is None:
            return
        try:
            value = result if spec.encode_result is None else spec.encode_result(result)
            frame = self.encoder.encode([wire.REPLY, correlation, value])
        except Exception as error:  # a result that cannot be encoded must not leave the asker waiting
            self._reply_error(connection, correlation, path, spec.name, error)
            return
        connection.send(frame)

    def _reply_error(
        self, connection: ServerConnection, correlation: int | None, path: str, name: str, error: Exception
    ) -> None:
        if correlation is None:
            log.warning(
                "the message %s to %s failed: %s", name, path, error, exc_info=not isinstance(error, ActorError)
            )
            return
        connection.send(self.encoder.encode([wire.ERROR, correlation, *codec.encode_error(error)]))

    # ------------------------------------------------------------------ calling

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """A gateway to the actor at *address*; the connection is made by the first call and made anew when it broke.

        Args:
            address: the actor's address or its text form.
            gateway_type: the interface that it implements.
            token: the leadership that the calls are meant for, for fenced endpoints.
            timeout_s: time allowed for each ask, in seconds (default ``rpc.ask-timeout``).

        Raises:
            AddressError: *address* is no actor address.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return cast("G", proxy_type(gateway_type)(self, target, token, timeout_s or self.config.ask_timeout_s))

    def ask(
        self, target: ActorAddress, spec: MethodSpec, arguments: list[Any], token: FencingToken | None, timeout_s: float
    ) -> Ask[Any]:
        """Send an ask (used by the generated gateways)."""
        message = [
            wire.ASK,
            0,
            target.path,
            spec.name,
            arguments,
            None if token is None else [token.epoch, token.session],
        ]
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
        def timed_out() -> Exception:
            return AskTimeout(f"{target} did not answer {spec.name}() within {timeout_s:g} s; its outcome is unknown")

        try:
            self._peer(target).ask(message, spec.decode_result, future, timeout_s, timed_out)
        except ActorError as error:
            if not future.done():
                future.set_exception(error)

    def tell(self, target: ActorAddress, name: str, arguments: list[Any], token: FencingToken | None) -> None:
        """Send a tell (used by the generated gateways): at most once, no reply, never an error to the caller."""
        message = [wire.TELL, target.path, name, arguments, None if token is None else [token.epoch, token.session]]
        if threading.get_ident() == self._thread or self._closed:
            self._send_tell(target, message)
        else:
            self.loop.call_soon_threadsafe(self._send_tell, target, message)

    def _send_tell(self, target: ActorAddress, message: list[Any]) -> None:
        try:
            self._peer(target).send(self.encoder.encode(message))
        except ActorError as error:
            log.warning("a message to %s was not sent: %s", target, error)

    def _check_open(self) -> None:
        if self._closed:
            raise RecipientUnreachable("the RPC service was closed")

    def _peer(self, target: ActorAddress) -> Peer:
        self._check_open()
        key = (target.host, target.port)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(self, target.host, target.port)
        return peer

    def forget_peer(self, key: tuple[str, int], peer: Peer) -> None:
        """A connection ended: the next call makes a new one."""
        if self._peers.get(key) is peer:
            del self._peers[key]

    def local_socket(self, host: str, port: int) -> Path | None:
        """The Unix socket of the process that listens on *port* of this machine, where there is one."""
        path = self._socket_path(port)
        if path is None or not (host == self.config.bind_host or host.startswith("127.") or host == "localhost"):
            return None
        return path if path.exists() else None

    async def close(self) -> None:
        """Stop all endpoints, close every connection and port, remove the Unix socket."""
        for endpoint, _ in list(self._endpoints.values()):
            try:
                await self.stop_server(endpoint)
            except Exception:  # the other endpoints, and the ports, have to be closed all the same
                log.exception("%s failed to stop", endpoint.path)
        for server in self._servers:
            server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        self._closed = True
        for peer in list(self._peers.values()):
            peer.close()
        path = self._socket_path(self.port)
        if path is not None and self._servers:
            path.unlink(missing_ok=True)
        self._servers.clear()


def _fencing_token(fields: Any) -> FencingToken | None:
    if fields is None:
        return None
    if not isinstance(fields, list) or [type(value) for value in fields] != [int, str]:
        raise WireError("malformed fencing token: not [epoch, session]")
    return FencingToken(*fields)


def _copy_outcome(outer: concurrent.futures.Future[Any], inner: asyncio.Future[Any]) -> None:
    if inner.cancelled():
        outer.cancel()
        return
    error = inner.exception()
    if not outer.set_running_or_notify_cancel():
        return  # its asker has given up waiting (a cancelled await in another loop); there is nobody to tell
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())
