"""The workload ``upgrade``: the cluster of `cluster`, whose hosts change to a later release while jobs and faults go on.

Both releases are the code of this tree. They differ in what they say that they support: the former one has the first
feature level, the later one also a second, at which each stored format has another version. A process has the release
of its host as it starts. An upgrade of a host ends its processes, and they start again.

Clients ask for the final level (``cluster finalize``) again and again, also too early. Checks, beside those of
`cluster`:

- *an upgrade ends*: when all hosts have the later release, and the faults are over, the level is raised.
- *a level stays*: it never falls.
- A job whose stored values a process cannot read fails, or does not end: that is a check of `cluster`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import ClassVar

from runtime import feature_level
from runtime.feature_level import Format
from runtime.ha.keys import ClusterKeys
from runtime.protocol.errors import FeatureLevelHeldError
from runtime.rest.backend import ClusterBackend
from tests.simulation.faults import Fault, add_kinds
from tests.simulation.kernel import Kernel, SimProcess
from tests.simulation.patches import Patch, add_patches
from tests.simulation.workloads.cluster import CLUSTER, Cluster
from tests.simulation.world import World

FORMER: dict[int, Mapping[Format, int]] = {1: feature_level.VERSIONS[1]}
LATER: dict[int, Mapping[Format, int]] = {**FORMER, 2: {of: version + 1 for of, version in FORMER[1].items()}}
HOSTS = ("master1", "master2", "worker1", "worker2")


class Versions(Mapping[int, Mapping[Format, int]]):
    """`feature_level.VERSIONS` of the release that the current process runs."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def _rows(self) -> Mapping[int, Mapping[Format, int]]:
        process = self._kernel.current
        return LATER if process is None or process.local.get("is_later", True) else FORMER

    def __getitem__(self, level: int) -> Mapping[Format, int]:
        return self._rows()[level]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


class Upgrade(Cluster):
    """See the module."""

    name: ClassVar[str] = "upgrade"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.kernel.devices["upgrade"] = self
        self.upgraded: set[str] = set()
        self._rng = world.kernel.random("upgrade")
        self._level = 1

    def build(self) -> None:
        self.world.kernel.on_start.append(self._started)
        super().build()

    def _started(self, process: SimProcess) -> None:
        """Give a process the release of its host; clients have the later one once all hosts do."""
        host = process.host.name
        process.local["is_later"] = host in self.upgraded if host in HOSTS else self._is_complete

    @property
    def _is_complete(self) -> bool:
        return self.upgraded == set(HOSTS)

    def upgrade(self, name: str) -> None:
        """Exchange the release of a host: end its processes, which start again."""
        self.upgraded.add(name)
        for process in list(self.world.kernel.hosts[name].processes):
            process.kill()

    def plan(self, rng: random.Random) -> list[Fault]:
        faults = super().plan(rng)
        order = list(HOSTS)
        rng.shuffle(order)
        times = sorted(rng.uniform(5.0, self.faults_s - 2.0) for _ in order)
        faults += [Fault(round(at_s, 6), "upgrade", (name,)) for at_s, name in zip(times, order, strict=True)]
        return sorted(faults, key=lambda fault: fault.at_s)

    # ------------------------------------------------------------------ clients

    async def _list(self, backend: ClusterBackend) -> None:
        await super()._list(backend)
        if self._rng.random() < 0.3:
            await self._finalize(backend)

    async def _finalize(self, backend: ClusterBackend) -> None:
        """Ask for the newest level that all components support."""
        try:
            change = await backend.finalize_feature_level()
        except FeatureLevelHeldError:
            self.world.count("level held")
            return
        self.world.kernel.trace("level", change.before, change.level)
        self.world.count(f"level {change.level}")

    # ------------------------------------------------------------------ checks

    def _stored_level(self) -> int:
        assert self.world.redis is not None
        found = self.world.redis.master.data.values.get(ClusterKeys(CLUSTER).feature_level)
        return int(found["level"]) if isinstance(found, dict) and "level" in found else self._level

    def check_often(self) -> None:
        super().check_often()
        level = self._stored_level()
        if level < self._level:
            self.world.fail("a level stays", f"it was {self._level}, and is {level}")
        self._level = level

    def check_healed(self) -> None:
        super().check_healed()
        if self._is_complete and self._stored_level() != max(LATER):
            self.world.fail("an upgrade ends", f"all hosts have the later release, the level is {self._stored_level()}")


def _upgrade(world: World, name: str) -> bool:
    workload = world.kernel.devices.get("upgrade")
    assert isinstance(workload, Upgrade)
    workload.upgrade(name)
    return True


def _patches(kernel: Kernel) -> list[Patch]:
    return [(feature_level, "VERSIONS", Versions(kernel))] if "upgrade" in kernel.devices else []


add_kinds({"upgrade": _upgrade})
add_patches(_patches)
