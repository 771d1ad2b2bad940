"""The only Thespian actor: it hosts any endpoint in a process of its own, on an asyncio loop embedded into Thespian."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ThespianWatch, WatchMessage

from actors.own_modules import import_own
from actors.process.diagnostics import Diagnostics
from actors.process.logs import LogConfig, configure_logging
from actors.process.loops import EmbeddedLoop
from actors.process.thespian_base import set_process_name
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.service import RpcConfig, RpcService
from actors.service_system import start_actor_system

logger = logging.getLogger(__name__)

EX_SOFTWARE = 70
"""Exit status of a process whose own code failed (``sysexits.h``)."""


# Thespian replaces the root logger in each actor by one that sends every record over its transport (66 us to
# 1.6 ms a line). Here the root logger of the process that started the system is kept, to restore it in the actor.
_ROOT, _MANAGER = logging.root, logging.Logger.manager
STOP_DEADLINE_S = 10.0
FIRST_TURNS = 3
"""Turns of the loop after an endpoint's start, so that asks of the start are sent before `HostStarted`.

Thespian takes some milliseconds to deliver `HostStarted`; the replies travel during that time.
"""

EndpointFactory = Callable[..., Awaitable[RpcEndpoint]]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Order to a host: the endpoint to run. Plain data: it names code by import path, never sends it.

    Args:
        name: name of the actor.
        factory: ``package.module:function``, a coroutine function ``(service, **arguments) -> RpcEndpoint``.
        arguments: plain keyword arguments of the factory.
        rpc: settings of the process's RPC service.
        secret_file: file with the cluster secret.
        log: log settings of the process.
        prepare: ``package.module:function``, a coroutine function ``(service, **arguments)`` that prepares a spare
            process for an endpoint like this one. It gets the *arguments* of another actor, so it must not use those
            that differ between actors.
        recorder: ``package.module:function`` and a file; the function returns the `CallRecorder` of the process's RPC
            service for this file. None for no recorder.
        nonce: correlates the answer.
        own_node: whether the factory makes the node of the process itself, like the factory of an `ActorSystem`'s host.
    """

    name: str
    factory: str
    arguments: dict[str, Any]
    rpc: RpcConfig
    secret_file: Path
    log: LogConfig
    prepare: str = ""
    recorder: tuple[str, Path] | None = None
    nonce: str = ""
    own_node: bool = False

    def spare(self) -> HostSpare:
        """Return the order to start a spare process for an endpoint like this one."""
        return HostSpare(self.rpc, self.secret_file, self.prepare, self.recorder, self.arguments)


@dataclass(frozen=True, slots=True)
class HostSpare:
    """Order to a spare host: it listens, prepares, and waits for its `HostSpec`.

    Args:
        rpc, secret_file, prepare, recorder, arguments: as in the later `HostSpec`; the arguments are those of another
            actor.
        nonce: correlates the answer.
    """

    rpc: RpcConfig
    secret_file: Path
    prepare: str = ""
    recorder: tuple[str, Path] | None = None
    arguments: dict[str, Any] = field(default_factory=dict, compare=False)
    nonce: str = ""

    def fits(self, spec: HostSpec) -> bool:
        """Return whether this spare host can run *spec*; a spec without *prepare* fits any preparation."""
        own, wanted = ((each.rpc, each.secret_file, each.recorder) for each in (self, spec))
        return own == wanted and spec.prepare in ("", self.prepare)


@dataclass(frozen=True, slots=True)
class HostReady:
    """A spare host listens."""

    nonce: str
    pid: int


@dataclass(frozen=True, slots=True)
class HostStarted:
    """The endpoint runs and its port is open."""

    nonce: str
    pid: int
    address: str


@dataclass(frozen=True, slots=True)
class HostFailed:
    """The endpoint could not be started."""

    nonce: str
    error: str
    details: str = field(repr=False, default="")


class HostActor(Actor):  # type: ignore[misc]  # Thespian is untyped
    """Runs one endpoint. Every `receiveMessage` returns the watch, because Thespian drops a watch that is not returned.

    No exception may reach Thespian, which would run the handler a second time.
    """

    def __init__(self) -> None:
        self._embedded: EmbeddedLoop | None = None
        self._service: RpcService | None = None
        self._stopping = False

    def receiveMessage(self, message: Any, sender: Any) -> ThespianWatch | None:  # noqa: N802  # Thespian's name
        """Thespian's entry: a turn of the loop, the start order, or the exit request."""
        try:
            if isinstance(message, WatchMessage):
                if self._embedded is not None:
                    self._embedded.turn()
            elif isinstance(message, HostSpec):
                self.send(sender, self._start(message))
            elif isinstance(message, HostSpare):
                self.send(sender, self._prepare(message))
            elif isinstance(message, ActorExitRequest):
                self._stop()
        except BaseException:
            logger.critical("the host of %s failed; its process ends", self._name(), exc_info=True)
            os._exit(EX_SOFTWARE)
        return None if self._embedded is None else ThespianWatch([self._embedded.fileno()])

    def _name(self) -> str:
        return "an actor" if self._service is None else str(self._service.address_of("/"))

    def _prepare(self, spare: HostSpare) -> HostReady | HostFailed:
        _restore_logging()
        set_process_name("us-spare")
        embedded = self._embed()
        try:
            with embedded.outside_thespian():
                embedded.loop.run_until_complete(self._make_ready(spare, embedded.loop))
        except Exception as error:  # any error goes to the process that ordered the start
            return _failure(spare, error)
        return HostReady(spare.nonce, os.getpid())

    def _embed(self) -> EmbeddedLoop:
        for number in (signal.SIGINT, signal.SIGHUP):
            # The terminal's signals are for the command line, not the cluster.
            signal.signal(number, signal.SIG_IGN)
        self._embedded = embedded = EmbeddedLoop()
        return embedded

    def _start(self, spec: HostSpec) -> HostStarted | HostFailed:
        _restore_logging()
        configure_logging(spec.log)
        set_process_name(f"us-{spec.name}")
        embedded = self._embedded or self._embed()
        try:
            with embedded.outside_thespian():
                return embedded.loop.run_until_complete(self._start_endpoint(spec, embedded.loop))
        except Exception as error:  # any error goes to the process that ordered the start
            logger.critical("%s could not be started: %s", spec.name, error, exc_info=True)
            return _failure(spec, error)

    async def _listen(self, order: HostSpec | HostSpare, loop: asyncio.AbstractEventLoop) -> RpcService:
        recorder = None if order.recorder is None else _named(order.recorder[0])(order.recorder[1])
        self._service = service = RpcService(loop, order.secret_file.read_bytes().strip(), order.rpc, recorder)
        await service.listen()
        return service

    async def _make_ready(self, spare: HostSpare, loop: asyncio.AbstractEventLoop) -> None:
        service = await self._listen(spare, loop)
        await start_actor_system(service)
        if spare.prepare:
            await _named(spare.prepare)(service, **spare.arguments)

    async def _start_endpoint(self, spec: HostSpec, loop: asyncio.AbstractEventLoop) -> HostStarted:
        service = self._service
        if service is None:
            service = await self._listen(spec, loop)
            if not spec.own_node:
                await start_actor_system(service)
        factory: EndpointFactory = _named(spec.factory)
        endpoint = await factory(service, spec.name, **spec.arguments)
        await service.start_server(Diagnostics(service))
        address = await service.start_server(endpoint)
        endpoint.termination.add_done_callback(self._endpoint_ended)
        for _ in range(FIRST_TURNS):
            await asyncio.sleep(0)
        return HostStarted(spec.nonce, os.getpid(), str(address))

    def _endpoint_ended(self, _termination: object) -> None:
        """End the process when its actor has stopped for any reason, so that the supervisor notices."""
        if not self._stopping:
            logger.critical("the actor of %s has stopped; its process ends", self._name())
            logging.shutdown()
            os._exit(EX_SOFTWARE)

    def _stop(self) -> None:
        self._stopping = True
        if self._embedded is None or self._service is None:
            return
        with self._embedded.outside_thespian():
            try:
                self._embedded.loop.run_until_complete(asyncio.wait_for(self._service.close(), STOP_DEADLINE_S))
            except TimeoutError:
                logger.error(
                    "%s did not stop within %g s; its process ends all the same", self._name(), STOP_DEADLINE_S
                )
        self._embedded = None
        logging.shutdown()


def _named(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    found: Callable[..., Any] = getattr(import_own(module), function)
    return found


def _failure(spec: HostSpec | HostSpare, error: Exception) -> HostFailed:
    details = "".join(traceback.format_exception(error))
    return HostFailed(spec.nonce, f"{type(error).__name__}: {error}", details)


def _restore_logging() -> None:
    logging.root = _ROOT
    logging.Logger.root = _ROOT
    logging.Logger.manager = _MANAGER
