"""Addresses of the cluster's processes that answer diagnostic calls, and the outcome of a change of log levels.

Pure: it sends nothing. The web endpoint calls these processes with `await`, the client without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.errors import ActorError
from actors.process.diagnostics import LogLevelError
from runtime.protocol.errors import GatewayError
from runtime.protocol.messages import ClusterStatus, TaskManagerView


class UnknownProcessError(GatewayError):
    """The cluster has no process of that name that answers diagnostic calls."""


@dataclass(frozen=True, slots=True)
class LogLevelChange:
    """The outcome of a change of log level in one process.

    Args:
        process: its name.
        logger: ``root``, or a logger's name.
        level: the requested level.
        was: the level before; empty when that is not known.
        error: why it is unknown whether the level was changed; empty when it was changed.
    """

    process: str
    logger: str
    level: str
    was: str = ""
    error: str = ""


def process_addresses(status: ClusterStatus, task_managers: Iterable[TaskManagerView]) -> dict[str, str]:
    """Return the address of each process that answers diagnostic calls, by its name.

    These are masters, their components, and TaskExecutors.
    """
    found = {process.name: process.address for process in status.processes if process.address.startswith("akka")}
    return found | {view.registration.resource_id: view.registration.address for view in task_managers}


def chosen(names: Iterable[str], process: str | None) -> list[str]:
    """Return the chosen process, or all of them for None; raises `UnknownProcessError`."""
    known = sorted(names)
    if process is None:
        return known
    if process not in known:
        raise UnknownProcessError(f"no process {process[:80]!r} can be asked; there are {', '.join(known)}")
    return [process]


def log_level_changes(outcomes: Mapping[str, str | BaseException], logger: str, level: str) -> list[LogLevelChange]:
    """Return the outcome of a change, from each process's answer. Processes without such a logger are left out.

    Raises:
        LogLevelError: no process changed it, since there is no such level or logger.
    """
    changes = []
    refusal: LogLevelError | None = None
    for process, outcome in outcomes.items():
        if isinstance(outcome, str):
            changes.append(LogLevelChange(process, logger, level, outcome))
        elif isinstance(outcome, LogLevelError):
            refusal = outcome
        elif isinstance(outcome, ActorError):
            changes.append(LogLevelChange(process, logger, level, error=str(outcome)))
        else:
            raise outcome
    if refusal is not None and not changes:
        raise refusal
    return changes
