"""Diagnostics of each process of a system, and its log levels, which may be changed while it runs.

It stands beside the hosted actor, so that one that is busy or stuck in a question of its own still tells where.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import os
from dataclasses import dataclass

from actors.address import ActorAddress
from actors.core.cell import Cell
from actors.errors import ActorError
from actors.rpc.codec import wire_error
from actors.rpc.dispatch import Served
from actors.rpc.endpoint import SYSTEM, FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, reads, rpc_sync
from actors.rpc.service import RpcService

PATH = "/system/diagnostics"
"""The same in every process."""

OTHERS_SHOWN = 1000
"""How many actors that are no endpoints are told of."""

ROOT = "root"
INHERITED = "INHERITED"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@wire_error
class LogLevelError(ActorError):
    """No such level, or no such logger in the process."""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """An actor of a process.

    Args:
        path: its path.
        kind: the name of its class.
        is_running: whether it takes messages.
        messages: asks and tells by gateways that it got since its start.
        queued: messages whose handlers have not begun: the depth of its mailbox.
        handlers: handlers that are coroutines and have not ended, the queued ones too.
        epoch: of its leadership; 0 while it does not lead, and for one that nobody elects.
        leads_since_ms: since when, in milliseconds since the epoch of 1970; 0 likewise.
    """

    path: str
    kind: str
    is_running: bool
    messages: int
    queued: int
    handlers: int
    epoch: int = 0
    leads_since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProcessActors:
    """The actors of a process.

    Args:
        pid: the process.
        connections: of others to it, at present.
        dead_letters: messages that came for actors or methods that are not there, since its start.
        actors: by path.
    """

    pid: int
    connections: int
    dead_letters: int
    actors: tuple[ActorInfo, ...]


class DiagnosticsGateway(RpcGateway):
    """Not fenced: a process tells of itself whether or not it leads."""

    @reads
    def request_log_levels(self) -> Ask[dict[str, str]]:
        """The level of ``root`` and of each logger that has one of its own."""
        raise NotImplementedError

    def set_log_level(self, logger: str, level: str) -> Ask[str]:
        """Set the level of a logger, until the process ends; returns the one before.

        Args:
            logger: ``root``, or the name of a logger that the process has, or of a package with such.
            level: a level name; ``INHERITED`` for that of what is above it (not for ``root``).

        Raises:
            LogLevelError: there is none of that name.
        """
        raise NotImplementedError

    @reads
    def request_actors(self) -> Ask[ProcessActors]:
        """The actors of the process, its dead letters, its connections."""
        raise NotImplementedError


class Diagnostics(RpcEndpoint, DiagnosticsGateway):
    """One in each process, until its RPC service is closed."""

    parent_path = SYSTEM

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "diagnostics")

    @rpc_sync
    def request_log_levels(self) -> dict[str, str]:
        return log_levels()

    @rpc_sync
    def set_log_level(self, logger: str, level: str) -> str:
        before = set_log_level(logger, level)
        self.log.warning("the log level of %s is %s, it was %s", logger, level, before)
        return before

    @rpc_sync
    def request_actors(self) -> ProcessActors:
        figures = self.service.statistics()
        endpoints = {served.endpoint.path: _info(served) for served in self.service.served()}
        others = (_info_of_cell(cell) for path, cell in self.service.node.cells.items() if path not in endpoints)
        shown = itertools.chain(endpoints.values(), itertools.islice(others, OTHERS_SHOWN))
        actors = tuple(sorted(shown, key=lambda actor: actor.path))
        return ProcessActors(os.getpid(), figures.connections, figures.dead_letters, actors)


def _info(served: Served) -> ActorInfo:
    endpoint = served.endpoint
    token = endpoint.fencing_token if isinstance(endpoint, FencedRpcEndpoint) else None
    return ActorInfo(
        endpoint.path,
        type(endpoint).__name__,
        endpoint.running,
        served.received,
        served.queued,
        len(served.tasks),
        0 if token is None else token.epoch,
        endpoint.leads_since_ms if isinstance(endpoint, FencedRpcEndpoint) and token is not None else 0,
    )


def _info_of_cell(cell: Cell) -> ActorInfo:
    kind = "(starting)" if cell.actor is None else type(cell.actor).__name__
    return ActorInfo(cell.ref.path, kind, not cell.is_occupied, 0, len(cell.mailbox), int(cell.is_occupied))


def diagnostics_at(address: ActorAddress | str) -> ActorAddress:
    """The address of the `Diagnostics` in the process of the actor at *address*."""
    return (ActorAddress.parse(address) if isinstance(address, str) else address).with_path(PATH)


def log_levels() -> dict[str, str]:
    """The level of ``root`` and of each logger of this process that has one of its own."""
    own = {
        name: logging.getLevelName(logger.level)
        for name, logger in sorted(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {ROOT: logging.getLevelName(logging.root.level), **own}


def set_log_level(name: str, level: str) -> str:
    """Set the level of a logger of this process; see `DiagnosticsGateway.set_log_level`."""
    if level not in LEVELS and (level != INHERITED or name == ROOT):
        words = LEVELS if name == ROOT else (*LEVELS, INHERITED)
        raise LogLevelError(f"{level[:40]!r} is no log level: one of {', '.join(words)}")
    known = logging.root.manager.loggerDict  # a package has an entry as soon as one of its modules has a logger
    if name != ROOT and name not in known:
        like = difflib.get_close_matches(name[:200], known, 1)
        raise LogLevelError(
            f"no logger {name[:200]!r} is in process {os.getpid()}" + (f"; {like[0]} is" if like else "")
        )
    logger = logging.root if name == ROOT else logging.getLogger(name)
    before = logging.getLevelName(logger.level) if logger.level else INHERITED
    logger.setLevel(logging.NOTSET if level == INHERITED else level)
    return before
