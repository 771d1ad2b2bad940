"""The workers of this machine as processes: those that `start` starts, and those that are started on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.cluster.claimed_process import claimed_process
from runtime.cluster.supervisor import Child, Supervisor
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext
from runtime.protocol.master import WorkerProcess

if TYPE_CHECKING:
    from conf.configuration import Configuration

PREFIX = "taskmanager-"


def fixed_workers(configuration: Configuration) -> int:
    """How many workers there are from the start; none where they are started on demand."""
    is_fixed = configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE
    return configuration.get(TaskManagerOptions.COUNT) if is_fixed else 0


def worker_child(context: ComponentContext, index: int, claim: Claim, *, is_kept: bool = True) -> Child:
    """A worker: found running by its claim, which is held, or started."""
    name = f"{PREFIX}{index}"
    return claimed_process(context, name, "worker", "runtime.cluster.worker", (str(index),), claim, is_kept=is_kept)


class OnDemandWorkers:
    """The workers that a ResourceManager asks for. They are not started again here: whether they are needed is its.

    Args:
        context: the surroundings of the components.
        supervisor: of the master.
    """

    def __init__(self, context: ComponentContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._claims: dict[str, Claim] = {}

    def _claim(self, index: int) -> Claim:
        name = f"{PREFIX}{index}"
        if name not in self._claims:
            self._claims[name] = self._context.directory.claim(name)
        return self._claims[name]

    async def start(self) -> WorkerProcess:
        """Start one under the lowest free number. Raises OSError."""
        index = 0
        while self._claim(index).held or not self._claim(index).try_acquire() or await self._adopted(index):
            index += 1
        return await self._supervise(index)

    async def _supervise(self, index: int) -> WorkerProcess:
        child = worker_child(self._context, index, self._claim(index), is_kept=False)
        try:
            running = await self._supervisor.add(child)
        except BaseException:
            self.ended(child.name)
            raise
        return WorkerProcess(child.name, running.pid)

    async def _adopted(self, index: int) -> bool:
        """Whether a worker of that number, whose claim is held now, runs: then it is supervised from now on."""
        if self._claim(index).living() is None:
            return False
        await self._supervise(index)
        return True

    async def list(self) -> list[WorkerProcess]:
        """Those that run, with those whose master has ended: they are adopted."""
        for path in self._context.directory.claims.glob(f"{PREFIX}*"):
            claim = self._claim(int(path.name.removeprefix(PREFIX)))
            if not claim.held and claim.living() is not None and claim.try_acquire():
                await self._adopt_or_release(path.name)
        children = [self._supervisor.children.get(name) for name in self._claims]
        return [
            WorkerProcess(child.name, child.running.pid) for child in children if child is not None and child.running
        ]

    async def _adopt_or_release(self, name: str) -> None:
        if not await self._adopted(int(name.removeprefix(PREFIX))):
            self.ended(name)

    async def stop(self, name: str) -> bool:
        """Stop one; returns whether it has ended, which is not known of one that another master looks after."""
        await self.list()
        if name not in self._claims or not self._claims[name].held:
            return name in self._claims and self._claims[name].living() is None
        await self._supervisor.remove(name)
        self.ended(name)
        return True

    def let_go(self) -> None:
        """Leave those that run to another master."""
        for claim in self._claims.values():
            claim.release()

    def ended(self, name: str) -> None:
        """Its number is free again; no error when it is none of these."""
        claim = self._claims.get(name)
        if claim is not None:
            claim.forget()
