"""The processes of a cluster as those that can be asked of themselves: where, and what a change of log levels came to.

Pure: the web endpoint asks them with `await`, the client without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.errors import ActorError
from actors.process.diagnostics import LogLevelError
from runtime.protocol.errors import GatewayError
from runtime.protocol.messages import ClusterStatus, TaskManagerView


class UnknownProcessError(GatewayError):
    """The cluster has no process of that name that can be asked."""


@dataclass(frozen=True, slots=True)
class LogLevelChange:
    """What became of a change in one process.

    Args:
        process: its name.
        logger: ``root``, or a logger's name.
        level: what was wanted.
        was: the level before; empty when that is not known.
        error: why it is not known whether it was changed; empty when it was.
    """

    process: str
    logger: str
    level: str
    was: str = ""
    error: str = ""


def process_addresses(status: ClusterStatus, task_managers: Iterable[TaskManagerView]) -> dict[str, str]:
    """Where each process that can be asked listens, by its name: masters, their components, TaskExecutors."""
    found = {process.name: process.address for process in status.processes if process.address.startswith("akka")}
    return found | {view.registration.resource_id: view.registration.address for view in task_managers}


def chosen(names: Iterable[str], process: str | None) -> list[str]:
    """The processes that are meant: that one, or all; raises `UnknownProcessError`."""
    known = sorted(names)
    if process is None:
        return known
    if process not in known:
        raise UnknownProcessError(f"no process {process[:80]!r} can be asked; there are {', '.join(known)}")
    return [process]


def log_level_changes(outcomes: Mapping[str, str | BaseException], logger: str, level: str) -> list[LogLevelChange]:
    """What a change came to, from each process's answer. Processes without such a logger are left out.

    Raises:
        LogLevelError: it was nowhere changed, since there is no such level or logger.
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
