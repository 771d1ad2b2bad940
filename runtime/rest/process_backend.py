"""What the web endpoint asks each process of itself: its actors, its log levels; a part of `runtime.rest.backend`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from actors.errors import ActorError
from actors.process.diagnostics import DiagnosticsGateway, ProcessActors
from runtime.gateways.messages import ClusterStatus, TaskManagerView
from runtime.gateways.processes import LogLevelChange, chosen, log_level_changes, process_addresses

T = TypeVar("T")

ASK_TIMEOUT_S = 3.0
ASKS_AT_ONCE = 64


class ProcessBackend(Protocol):
    """What the handlers need; the errors are those of `runtime.rest.backend.Backend`."""

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        """The actors of each process, by its name; None where it does not answer."""

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        """The log levels of each process, by its name; None where it does not answer."""

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        """Change the level of a logger in one process or in all; raises `UnknownProcessError`, `LogLevelError`."""


class ClusterProcesses(ABC):
    """The part of `ClusterBackend`."""

    @abstractmethod
    async def status(self) -> ClusterStatus:
        """The processes of all masters that answer."""

    @abstractmethod
    async def task_managers(self) -> list[TaskManagerView]:
        """The registered TaskExecutors."""

    @abstractmethod
    def _diagnostics(self, address: str) -> DiagnosticsGateway:
        """A gateway to the diagnostics of the process of the actor there, whose asks take `ASK_TIMEOUT_S`."""

    async def _addresses(self) -> dict[str, str]:
        return process_addresses(await self.status(), await self.task_managers())

    async def _ask_all(
        self, addresses: Mapping[str, str], question: Callable[[DiagnosticsGateway], Awaitable[T]]
    ) -> dict[str, T | ActorError]:
        room = asyncio.Semaphore(ASKS_AT_ONCE)

        async def ask(address: str) -> T | ActorError:
            async with room:
                try:
                    return await question(self._diagnostics(address))
                except ActorError as error:  # it has ended, stands still, or refuses: what is told of it
                    return error

        names = sorted(addresses)
        answers = await asyncio.gather(*(ask(addresses[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        told = await self._ask_all(await self._addresses(), lambda process: process.request_actors())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        told = await self._ask_all(await self._addresses(), lambda process: process.request_log_levels())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        addresses = await self._addresses()
        meant = {name: addresses[name] for name in chosen(addresses, process)}
        return log_level_changes(
            await self._ask_all(meant, lambda one: one.set_log_level(logger, level)), logger, level
        )
