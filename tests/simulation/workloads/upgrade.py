"""Workload ``upgrade``: the cluster of `cluster`, with two releases in it while jobs and faults go on.

Both releases are the code of this tree. They differ in the feature levels that they support: the former one has the
first level, the later one also a second, at which each stored format has another version. A process has the release of
its host as it starts. An upgrade or downgrade of a host ends its processes, and they start again.

Hosts are upgraded in random order, and some are downgraded and upgraded again, also after the level was raised. Clients
request ``cluster finalize`` all the time, also too early. Masters register as in `runtime.cluster.master`, and refuse a
level that they do not support. Checks, beside those of `cluster`:

- *the former release reads it*: before the level is raised, the former release reads whatever is written.
- *a process reads what is stored*: no reader meets a version of a format that it does not know.
- *all components are asked*: the level is not raised beside a registered master or TaskExecutor of the former release.
- *the former release never joins*: once the level is raised, no component of the former release leads, and no master
  or TaskExecutor of it is registered.
- *a refusal is one line*: a master that refuses names the level of the cluster and those of its release.
- *a master is registered*: at the end both are, with their addresses.
- *a level stays*: it never falls.
- *an upgrade ends*: when all hosts have the later release, and the faults are over, the level is raised.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import runtime.jobgraph.codec as codec_module
import runtime.jobmaster.endpoint as job_master_module
from actors.address import ActorAddress
from runtime import feature_level
from runtime.dispatcher.endpoint import Dispatcher
from runtime.feature_level import Component, Format, can_read
from runtime.ha.errors import FeatureLevelUnsupportedError, HaUnreachableError
from runtime.ha.feature_level import FeatureLevelStore
from runtime.ha.keys import ClusterKeys
from runtime.ha.masters import MASTER_PREFIX, MasterRegistration
from runtime.ha.services import RedisHaServices
from runtime.ha.state_handles import ExecutionStore, JobGraphStore
from runtime.jobgraph.codec import decode, decode_job_graph
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.protocol.errors import FeatureLevelHeldError
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.master import MASTER
from runtime.resourcemanager.instance_manager import Instance
from runtime.rest.backend import ClusterBackend
from tests.simulation.faults import Fault, add_kinds
from tests.simulation.kernel import SECOND, Kernel, SimProcess
from tests.simulation.patches import Patch, add_patches
from tests.simulation.workloads.cluster import CLUSTER, PORT, Cluster, here
from tests.simulation.world import World

logger = logging.getLogger(__name__)

FORMER: dict[int, Mapping[Format, int]] = {1: feature_level.VERSIONS[1]}
LATER: dict[int, Mapping[Format, int]] = {**FORMER, 2: {of: version + 1 for of, version in FORMER[1].items()}}
MASTERS = ("master1", "master2")
HOSTS = (*MASTERS, "worker1", "worker2", "client1")
JOINED_S = 1.0
"""Seconds for which a component that does not support a raised level may be registered."""


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
    has_stranger: ClassVar[bool] = False
    faults_s: float = 50.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.kernel.devices["upgrade"] = self
        self.upgraded: set[str] = set()
        self._rng = world.kernel.random("upgrade")
        self._level = 1
        self._joined: dict[str, int] = {}
        self._is_probing = False

    def build(self) -> None:
        self.world.kernel.on_start.append(self._started)
        super().build()

    # ------------------------------------------------------------------ releases

    def _started(self, process: SimProcess) -> None:
        """Give a process the release of its host."""
        process.local["is_later"] = process.host.name in self.upgraded

    @property
    def _is_complete(self) -> bool:
        return self.upgraded == set(HOSTS)

    def exchange(self, name: str, *, is_later: bool) -> None:
        """Exchange the release of a host: end its processes, which start again."""
        (self.upgraded.add if is_later else self.upgraded.discard)(name)
        for process in list(self.world.kernel.hosts[name].processes):
            process.kill()

    def plan(self, rng: random.Random) -> list[Fault]:
        """Return the faults: all hosts are upgraded, and some return for a while, mostly after the level was raised.

        In most runs a master is the last one. Its Dispatcher and ResourceManager are killed, so that those of the later
        release lead, and it is a standby.
        """
        faults = super().plan(rng)
        last_s = self.faults_s - 2.0
        middle_s = last_s * rng.choice((0.35, 0.35, 0.9))

        def between(first_s: float, until_s: float, *kinds: str) -> list[tuple[float, str]]:
            times = sorted(rng.uniform(first_s, until_s) for _ in kinds)
            return [(round(at_s, 6), kind) for at_s, kind in zip(times, kinds, strict=True)]

        standby = rng.choice((*MASTERS, ""))
        for name in rng.sample(HOSTS, len(HOSTS)):
            early_s = middle_s / 2 if standby else middle_s
            early = between(min(4.0, early_s), early_s, "upgrade", *["downgrade", "upgrade"] * rng.choice((0, 0, 1)))
            if name == standby:
                early = between(middle_s, middle_s, "upgrade")
                for role in ("dispatcher", "resourcemanager") * 2:
                    at_s = round(rng.uniform(early_s, middle_s - 2.0), 6)
                    faults.append(Fault(at_s, "kill", (f"{name}-{role}",)))
            late: list[tuple[float, str]] = []
            if rng.random() < 0.6 and middle_s < last_s * 0.7:
                late = between(last_s * 0.7, last_s * 0.8, "downgrade") + between(last_s * 0.9, last_s, "upgrade")
            faults += [Fault(at_s, kind, (name,)) for at_s, kind in early + late]
        return sorted(faults, key=lambda fault: fault.at_s)

    # ------------------------------------------------------------------ masters

    async def _may_serve(self, ha: RedisHaServices) -> bool:
        """Register the master, and check the level, as `runtime.cluster.master` does."""
        master = here()

        def refuse(error: FeatureLevelUnsupportedError) -> None:
            self._refused(error)
            if master in self._stops:
                self._stops[master].set()

        await MasterRegistration(ha, str(ActorAddress("understudy", master.host.address, PORT, MASTER)), refuse).start()
        try:
            await ha.feature_level_store().current()
        except HaUnreachableError as error:
            logger.warning("the cluster's feature level is not known yet: %s", error)
            return True  # its components check the level when they lead
        except FeatureLevelUnsupportedError as error:
            self._refused(error)
            return False
        here().local["has_checked"] = True
        return True

    def _refused(self, error: FeatureLevelUnsupportedError) -> None:
        text = f"{error}: {error.remedy}"
        if here().local["is_later"] or f"feature level {self.stored_level()}, " not in text or "\n" in text:
            self.world.fail("a refusal is one line", f"{here()}: {text}")
        self.world.kernel.trace("refused")
        self.world.count("refusals")

    def registered(self) -> dict[str, tuple[str, str]]:
        """Return the host and the epoch of each registered master, by the key of its latch."""
        assert self.world.redis is not None
        data, prefix = self.world.redis.master.data, ClusterKeys(CLUSTER).leader(MASTER_PREFIX)
        hosts = {host.address: host.name for host in self.world.kernel.hosts.values()}
        found = {key: data.values[key] for key in data._live() if key.startswith(prefix)}
        return {
            key: (hosts[ActorAddress.parse(latch["address"]).host], latch["epoch"])
            for key, latch in found.items()
            if isinstance(latch, dict) and "address" in latch
        }

    # ------------------------------------------------------------------ clients

    async def _list(self, name: str, backend: ClusterBackend) -> None:
        await super()._list(name, backend)
        if self._rng.random() < (0.7 if self.stored_level() in FORMER else 0.03):
            await self._finalize(backend)

    async def _finalize(self, backend: ClusterBackend) -> None:
        """Request the newest level that all components support."""
        try:
            change = await backend.finalize_feature_level()
        except FeatureLevelHeldError:
            self.world.count("level held")
            return
        self.world.kernel.trace("level", change.before, change.level)
        self.world.count(f"level {change.level}")

    # ------------------------------------------------------------------ checks

    def stored_level(self) -> int:
        """Return the level that Redis has; the first before one is stored."""
        assert self.world.redis is not None
        found = self.world.redis.master.data.values.get(ClusterKeys(CLUSTER).feature_level)
        return int(found["level"]) if isinstance(found, dict) and "level" in found else 1

    def asks(self) -> None:
        """Note the masters and TaskExecutors of the former release when a Dispatcher begins to ask all components."""
        here().local["former"] = self.registered_former()

    def raises(self) -> None:
        """Check the masters and TaskExecutors when a Dispatcher is about to raise the level."""
        asked, still = here().local["former"], self.registered_former()
        for key in asked.keys() & still.keys():
            self.world.fail("all components are asked", f"{here()} raises the level beside {still[key]}")

    def registered_former(self) -> dict[str, str]:
        """Return, by registration, the masters in Redis and the TaskExecutors that have the former release.

        Masters that have not read the level, because Redis did not answer, are left out.
        """
        found = {
            f"{key} {epoch}": f"the master of {host}"
            for key, (host, epoch) in self.registered().items()
            if host not in self.upgraded and self._has_checked(host)
        }
        for instance in self._instances():
            if max(LATER) not in instance.registration.levels:
                found[instance.instance_id] = instance.registration.component.name
        return found

    def _has_checked(self, host: str) -> bool:
        running = [one for one in self.world.kernel.hosts[host].processes if one.name == f"{host}-master"]
        return any(one.local.get("has_checked", False) for one in running)

    def _instances(self) -> list[Instance]:
        """Return the TaskExecutors that are registered with the ResourceManager that serves."""
        kernel = self.world.kernel
        current, found = kernel.current, []
        for process, manager in self.managers.items():
            kernel.current = process
            if process.alive and manager.fencing_token is not None and self._holds(manager, process):
                found += list(manager._instances)
        kernel.current = current
        return found

    def written(self, what: Format, data: bytes, decoded: Callable[[bytes], Any]) -> None:
        """Check a value that is about to be stored: until the level is raised, the former release has to read it."""
        if self.stored_level() in FORMER:
            is_later, here().local["is_later"] = here().local["is_later"], False
            self._is_probing = True
            try:
                version = decoded(data).format_version
                if not can_read(what, version):
                    raise ValueError(f"it has version {version}")
            except Exception as error:
                text = f"{here()} writes {what.value}: {error}"
                self.world.fail("the former release reads it", text)
            finally:
                here().local["is_later"], self._is_probing = is_later, False
            self.world.count("writes that both releases read", int(is_later))

    def read(self, what: Format, version: object, *, is_readable: bool) -> None:
        """Check a value that a process has read."""
        if not is_readable and not self._is_probing:
            self.world.fail("a process reads what is stored", f"{here()} reads {what.value} of version {version}")

    def check_often(self) -> None:
        super().check_often()
        level = self.stored_level()
        if level < self._level:
            self.world.fail("a level stays", f"it was {self._level}, and is {level}")
        self._level = level
        if level in FORMER:
            return
        kernel = self.world.kernel
        for endpoint, process in self.endpoints.items():
            kernel.current = process
            is_former = process.alive and not process.local["is_later"]
            if is_former and endpoint.fencing_token is not None and self._holds(endpoint, process):
                self.world.fail("the former release never joins", f"{endpoint.path} on {process} leads")
        kernel.current = None
        former = self.registered_former()
        self._joined = {key: self._joined.get(key, kernel.now) for key in former}
        for key, name in former.items():
            if kernel.now - self._joined[key] > JOINED_S * SECOND:
                self.world.fail("the former release never joins", f"{name} is registered")

    def check_healed(self) -> None:
        super().check_healed()
        if self._is_complete and self.stored_level() != max(LATER):
            self.world.fail("an upgrade ends", f"all hosts have the later release, the level is {self.stored_level()}")
        registered = sorted(host for host, _ in self.registered().values())
        if self._is_complete and registered != list(MASTERS):
            self.world.fail("a master is registered", f"the registered ones are those of {registered}")


# ------------------------------------------------------------------ faults of this workload


def _upgrade(world: World, name: str) -> bool:
    return _exchange(world, name, is_later=True)


def _downgrade(world: World, name: str) -> bool:
    return _exchange(world, name, is_later=False)


def _exchange(world: World, name: str, *, is_later: bool) -> bool:
    workload = world.kernel.devices.get("upgrade")
    assert isinstance(workload, Upgrade)
    workload.exchange(name, is_later=is_later)
    return True


add_kinds({"upgrade": _upgrade, "downgrade": _downgrade})


# ------------------------------------------------------------------ seams


def _patches(kernel: Kernel) -> list[Patch]:
    if "upgrade" not in kernel.devices:
        return []
    workload: Upgrade = kernel.devices["upgrade"]
    components, raise_to = Dispatcher._components, FeatureLevelStore.raise_to
    put_graph, put_execution = JobGraphStore.put, ExecutionStore.put

    def watched_can_read(of: Format, version: Any) -> bool:
        is_readable = can_read(of, version)
        workload.read(of, version, is_readable=is_readable)
        return is_readable

    async def watched_components(self: Dispatcher) -> list[Component]:
        workload.asks()
        return await components(self)

    async def watched_raise_to(self: FeatureLevelStore, level: int, before: int, term: LeaderTerm) -> None:
        workload.raises()
        await raise_to(self, level, before, term)

    async def watched_put_graph(self: JobGraphStore, job_id: str, data: bytes, term: LeaderTerm) -> None:
        workload.written(Format.JOB_GRAPH, data, decode_job_graph)
        await put_graph(self, job_id, data, term)

    async def watched_put_execution(self: ExecutionStore, job_id: str, data: bytes, term: LeaderTerm) -> None:
        workload.written(Format.EXECUTION, data, lambda stored: decode(stored, ExecutionGraphSnapshot))
        await put_execution(self, job_id, data, term)

    return [
        (feature_level, "VERSIONS", Versions(kernel)),
        (codec_module, "can_read", watched_can_read),
        (job_master_module, "can_read", watched_can_read),
        (Dispatcher, "_components", watched_components),
        (FeatureLevelStore, "raise_to", watched_raise_to),
        (JobGraphStore, "put", watched_put_graph),
        (ExecutionStore, "put", watched_put_execution),
    ]


add_patches(_patches)
