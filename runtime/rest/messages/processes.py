"""The processes of the cluster: their actors and their log levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from actors.process.diagnostics import ProcessActors
from runtime.protocol.processes import LogLevelChange
from runtime.rest.messages.common import NO_TIME, Json


def actors(processes: Mapping[str, ProcessActors | None], at_ms: int) -> Json:
    """GET /actors: by process, at *at_ms* (milliseconds since the epoch), so that rates can be made of two answers."""
    return {
        "timestamp": at_ms,
        "processes": [
            {"name": name, "answers": False, "pid": -1, "connections": 0, "dead-letters": 0, "actors": []}
            if process is None
            else {
                "name": name,
                "answers": True,
                "pid": process.pid,
                "connections": process.connections,
                "dead-letters": process.dead_letters,
                "actors": [
                    {
                        "path": actor.path,
                        "kind": actor.kind,
                        "running": actor.is_running,
                        "messages": actor.messages,
                        "mailbox": actor.queued,
                        "handlers": actor.handlers,
                        "epoch": actor.epoch or NO_TIME,
                        "leads-since": actor.leads_since_ms or NO_TIME,
                    }
                    for actor in process.actors
                ],
            }
            for name, process in processes.items()
        ],
    }


def log_levels(processes: Mapping[str, Mapping[str, str] | None]) -> Json:
    """GET /log-levels: by process; one that does not answer has none."""
    return {
        "processes": [
            {"name": name, "answers": levels is not None, "levels": dict(levels or {})}
            for name, levels in processes.items()
        ]
    }


def log_level_changes(changes: Iterable[LogLevelChange]) -> Json:
    """PATCH /log-levels: what became of it in each process that has the logger."""
    return {"changes": [asdict(change) for change in changes]}
