"""Diagnostics of each process of a system, and its log levels, which can be changed while it runs.

The endpoint is separate from the hosted actor, so it still answers while that actor is busy or waits for a reply.
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
"""Most actors that are not endpoints in one answer."""

ROOT = "root"
INHERITED = "INHERITED"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@wire_error
class LogLevelError(ActorError):
    """The level or the logger does not exist in the process."""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """An actor of a process.

    Args:
        path: its path.
        kind: the name of its class.
        is_running: whether it takes messages.
        messages: asks and tells by gateways since its start.
        queued: messages whose handlers have not started: the depth of its mailbox.
        handlers: handlers that are coroutines and have not ended, including queued ones.
        epoch: epoch of its leadership; 0 while it does not lead, and for an actor without leader election.
        leads_since_ms: start of its leadership, in milliseconds since 1970; 0 like *epoch*.
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
        pid: pid of the process.
        connections: present connections of other processes to it.
        dead_letters: messages for unknown actors or methods since its start.
        actors: its actors, sorted by path.
    """

    pid: int
    connections: int
    dead_letters: int
    actors: tuple[ActorInfo, ...]


class DiagnosticsGateway(RpcGateway):
    """Interface of the diagnostics. It is not fenced: a process answers whether or not it leads."""

    @reads
    def request_log_levels(self) -> Ask[dict[str, str]]:
        """Return the level of ``root`` and of each logger that has a level of its own."""
        raise NotImplementedError

    def set_log_level(self, logger: str, level: str) -> Ask[str]:
        """Set the level of a logger until the process ends; return the previous level.

        Args:
            logger: ``root``, the name of a logger of the process, or of a package that contains one.
            level: a level name; ``INHERITED`` for the level of the parent logger (not for ``root``).

        Raises:
            LogLevelError: the logger or the level does not exist.
        """
        raise NotImplementedError

    @reads
    def request_actors(self) -> Ask[ProcessActors]:
        """Return the actors of the process, its dead letters and its connections."""
        raise NotImplementedError


class Diagnostics(RpcEndpoint, DiagnosticsGateway):
    """The diagnostics of a process; each process has one, until its RPC service is closed."""

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
    """Return the address of the `Diagnostics` in the process of the actor at *address*."""
    return (ActorAddress.parse(address) if isinstance(address, str) else address).with_path(PATH)


def log_levels() -> dict[str, str]:
    """Return the level of ``root`` and of each logger of this process that has a level of its own."""
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
        raise LogLevelError(f"{level[:40]!r} is not a log level: one of {', '.join(words)}")
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
