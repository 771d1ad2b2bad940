"""Workload ``ha``: contenders, followers and writers over the real elections, retrievals and stores.

Several processes on several hosts contend for one component. The leader writes job graphs, executions, entries of jobs,
checkpoint numbers and checkpoints; all processes read. The keeper of latches and handles is one of four, by seed: a
Redis with an append-only file; one that forgets the last second at a restart; one with a replica that is promoted; or
the master's memory (`StandaloneHa`, over the real RPC layer).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.rpc.config import RpcConfig
from actors.rpc.service import RpcService
from runtime.ha.election import DefaultLeaderElectionService, LatchLeaderElectionDriver
from runtime.ha.errors import (
    HaError,
    HaUnreachableError,
    JobAlreadyDoneError,
    LeadershipLostError,
    StateCorruptedError,
    StateHandleConflictError,
    StateHandleNotFoundError,
    StateWriteUnknownError,
)
from runtime.ha.keys import ClusterKeys
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import LatchedHaServices, RedisHaServices, StandaloneHaServices
from runtime.ha.standalone_endpoint import HaMemory, StandaloneHa
from runtime.ha.user_store import UserFile
from runtime.protocol.leader import LeaderInformation, LeaderTerm
from tests.simulation.checks import Leaders, Once, Register, Version, Write
from tests.simulation.disk import ROOT
from tests.simulation.faults import Fault, FaultPlan, add_kinds
from tests.simulation.kernel import SECOND, SimHost, SimProcess
from tests.simulation.redis import RedisDeployment
from tests.simulation.world import World

logger = logging.getLogger(__name__)

LEASE_S = 2.0
COMPONENT = "dispatcher"
CLUSTER = "sim"
SECRET = b"s" * 32
PORT = 7000
NAMES = 4
GIVES_UP = 0.005
"""Part of the writes after which a leader gives up."""
RETAINED = 3
SAME_AGAIN = 3
"""How often a state is stored again, if a plan wants it."""
IN_PROGRESS = 2
"""Files without a handle while a state is replaced: the new one, and then the old one."""
STALE_S = 8.0
"""Virtual seconds for which a follower may follow a former leader: a lease, a look, and calls that time out."""
THRESHOLD = 200
STORAGE = Path(ROOT) / "shared" / "ha"


class Contender:
    """One process's contender: it leads, writes while it leads, and reads what all have written."""

    def __init__(self, workload: Ha, name: str, services: LatchedHaServices) -> None:
        self.workload = workload
        self.world = workload.world
        self.kernel = workload.world.kernel
        self.name = name
        self.services = services
        self.election: DefaultLeaderElectionService = services.leader_election(COMPONENT)
        self.term: LeaderTerm | None = None
        self.number = 0
        self.gives_up = False
        self.rng = random.Random()
        self._leading: asyncio.Task[None] | None = None
        driver = self.election._driver
        assert isinstance(driver, LatchLeaderElectionDriver)
        self._driver, renew = driver, driver._latch.renew

        async def watched(term: LeaderTerm, timeout: float) -> bool:
            workload.leaders.renews(term.session)
            renewed = await renew(term, timeout)
            if not renewed:
                workload.leaders.refused(term.session)
            return renewed

        driver._latch.renew = watched  # type: ignore[method-assign]

    # ------------------------------------------------------------------ LeaderContender

    def grant_leadership(self, term: LeaderTerm) -> None:
        self.workload.leaders.granted(self.name, term.epoch, term.session)
        self.workload.tidy.begins(term.epoch, self.world.disks["shared"].crashes)
        self.world.count("grants")
        self.kernel.trace("granted", self.name, term.epoch)
        self.term, self.number, self.gives_up = term, 0, False
        if not self.holds():
            self.world.fail("a term begins within its lease", f"{self.name} is granted {term}, whose lease is over")
        self._leading = asyncio.create_task(self._lead(term), name="lead")

    def revoke_leadership(self) -> None:
        self.kernel.trace("revoked", self.name)
        self._check_end()
        self.term = None
        if self._leading is not None and not self.workload.clings:
            self._leading.cancel()
        self._leading = None

    def _check_end(self) -> None:
        """Check that a term ends with its lease, by a refusal, or because its contender wants it."""
        term, state = self.term, self._driver._state
        if term is None or self.gives_up or self._driver._stopping or self.workload.leaders.was_refused(term.session):
            return
        if self._driver._clock() < state._deadline:
            self.world.fail("a term ends for a reason", f"{self.name} gives up {term}: {state._lost}")

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        """Give up a term."""
        self.gives_up = self.gives_up or self.term == term
        self.election.step_down(term, reason)

    def handle_error(self, error: Exception) -> None:
        self.world.fail("an election does not end by a defect", f"{self.name}: {error!r}")

    def holds(self) -> bool:
        """Whether it leads, by its own clock, now."""
        return self.term is not None and self.election.has_leadership(self.term)

    # ------------------------------------------------------------------ leading

    async def _lead(self, term: LeaderTerm) -> None:
        try:
            await self._recover(term)
            address = f"akka.tcp://understudy@10.0.0.1:1/user/{self.name}"
            if not await self.election.confirm_leadership(term, address):
                return
            self.kernel.trace("confirmed", self.name, term.epoch)
            while True:
                await asyncio.sleep(self.rng.random() * 0.2)
                await self._write(term)
                self.workload.last_write_s = self.kernel.seconds
                if self.rng.random() < GIVES_UP and self.kernel.seconds < self.workload.faults_s:
                    self.step_down(term, "it cannot lead")
                    return
        except LeadershipLostError:
            self.step_down(term, "a write was refused")

    async def _recover(self, term: LeaderTerm) -> None:
        workload, services = self.workload, self.services
        store = services.checkpoint_recovery_factory().completed_checkpoint_store("job", RETAINED)

        async def recover() -> None:
            began = self.kernel.now
            await services.job_graph_store().sweep(term)
            workload.swept["jobgraphs"] = (term.epoch, began)
            found = await store.recover(term)
            damaged = [item.checkpoint_id for item in found if item.data is None]
            if damaged:
                workload.dangles(f"the checkpoints {damaged} are damaged")
                for number in damaged:
                    await store.release(number, term)
                workload.checkpoint.lost(-1, self.kernel.now)
            newest = max((item.checkpoint_id for item in found), default=0)
            readable = [(item.checkpoint_id, item.data) for item in found if item.data is not None]
            number, version = (readable[-1][0], workload.version_of(readable[-1][1])) if readable else (0, None)
            workload.checkpoint.read(began, self.kernel.now, version, number)
            self.numbers = newest

        await self._until_known(recover, None)
        self._checkpoints = store
        self._counter = services.checkpoint_recovery_factory().checkpoint_id_counter("job")

    async def _until_known(self, call: Callable[[], Awaitable[None]], term: LeaderTerm | None) -> None:
        """Repeat a call until its outcome is known; with a term, a write of that term."""
        while True:
            is_over = term is not None and self.workload.is_over(term.epoch)
            try:
                await call()
                if is_over:
                    self.workload.written_without_leadership(f"{self.name} of {term}")
                return
            except (HaUnreachableError, StateWriteUnknownError, StateHandleConflictError, OSError) as error:
                self.workload.tidy.failed()
                logger.info("%s again: %s", self.name, error)
            await asyncio.sleep(0.1 + self.rng.random() * 0.2)

    def _next(self, term: LeaderTerm) -> Version:
        self.number += 1
        return term.epoch, self.number

    async def _write(self, term: LeaderTerm) -> None:
        workload, services = self.workload, self.services
        what = self.rng.randrange(10)
        name = f"job{self.rng.randrange(NAMES)}"
        version = self._next(term)
        if what < 3:
            data = workload.data(version, self.rng.randrange(20, 600))
            await self._store(
                workload.graphs[name], version, version, lambda: services.job_graph_store().put(name, data, term)
            )
        elif what == 3:
            await self._store(
                workload.graphs[name], version, None, lambda: services.job_graph_store().remove(name, term)
            )
        elif what < 6:
            data = workload.data(version, self.rng.randrange(20, 600))
            await self._store(
                workload.executions[name], version, version, lambda: services.execution_store().put(name, data, term)
            )
        elif what < 8:
            await self._run_job(term)
        else:
            await self._checkpoint(term, version)

    async def _store(
        self, register: Register, version: Version, value: object, call: Callable[[], Awaitable[object]]
    ) -> None:
        """Write until the outcome is known."""
        write = register.begin(version, value, self.kernel.now)
        while True:
            if await self._tried(register, write, call):
                await self._store_again(register, write, call)
                return
            await asyncio.sleep(self.rng.random() * 0.2)

    async def _store_again(self, register: Register, write: Write, call: Callable[[], Awaitable[object]]) -> None:
        """Store the same again some times, if a plan wants it: only the leader may hear that it is stored."""
        for _ in range(SAME_AGAIN if self.workload.stores_again and write.value is not None else 0):
            await asyncio.sleep(0.05)
            is_over = self.workload.is_over(write.version[0])
            try:
                await call()
            except (HaUnreachableError, StateWriteUnknownError, StateHandleConflictError, OSError) as error:
                logger.info("%s stores no more: %s", self.name, error)
                return
            if is_over:
                self.workload.written_without_leadership(f"{register.name}: {write.version}, again")

    async def _tried(self, register: Register, write: Write, call: Callable[[], Awaitable[object]]) -> bool:
        is_over = write.value is not None and self.workload.is_over(
            write.version[0]
        )  # what is not there is not removed
        try:
            await call()
        except LeadershipLostError:
            register.refused(write, self.kernel.now)
            raise
        except (StateWriteUnknownError, StateHandleConflictError):
            # A conflict: an earlier write of unknown outcome has arrived late.
            self.workload.tidy.failed()
            register.unknown(write)
            return False
        except (HaUnreachableError, OSError):
            self.workload.tidy.failed()
            return False
        except BaseException:
            register.unknown(write)
            raise
        if is_over:
            self.workload.written_without_leadership(f"{register.name}: {write.version}")
        self.kernel.trace("written", register.name, *write.version)
        register.acknowledged(write, self.kernel.now)
        self.world.count("writes")
        return True

    async def _run_job(self, term: LeaderTerm) -> None:
        """Take a job one step further: accepted, running, done, cleaned."""
        workload, registry = self.workload, self.services.running_jobs_registry()
        job = f"j{workload.jobs}"
        result = {"of": job, "epoch": term.epoch, "number": self.number}

        async def pending() -> None:
            await registry.set_pending(job, term)

        async def running() -> None:
            began = self.kernel.now
            if await registry.set_running(job, term):
                workload.first_runs.handed_out(job, began, self.kernel.now)

        async def done() -> None:
            await registry.set_done(job, result, term)
            workload.done(job, result)

        async def clean() -> None:
            await registry.mark_clean(job, term)

        for step in (pending, running, done, clean):
            if self.rng.random() < 0.3 and step is not pending:
                return  # another term goes on with it, or none
            try:
                await self._until_known(step, term)
            except JobAlreadyDoneError:
                if step is clean:
                    raise
            except ValueError:
                if not workload.may_have_lost:
                    raise
        workload.jobs += 1

    async def _checkpoint(self, term: LeaderTerm, version: Version) -> None:
        workload = self.workload
        number = 0

        async def count() -> None:
            nonlocal number
            began = self.kernel.now
            number = await self._counter.get_and_increment(term)
            workload.numbers.handed_out(number, began, self.kernel.now)
            workload.highest_checkpoint = max(workload.highest_checkpoint, number)

        await self._until_known(count, term)
        if number <= self.numbers:
            return  # the counter was lost
        data = workload.data(version, self.rng.randrange(20, 600))
        overtaken = 0
        if workload.is_overtaken:
            workload.is_overtaken, overtaken = False, number
            await self._until_known(count, term)
        try:
            await self._store(workload.checkpoint, version, number, lambda: self._checkpoints.add(number, data, term))
            self.numbers = number
            if overtaken:
                await self._add_late(overtaken, data, term)
        except StateCorruptedError as error:
            workload.dangles(str(error))
            self.step_down(term, "a damaged checkpoint")

    async def _add_late(self, number: int, data: bytes, term: LeaderTerm) -> None:
        """Add a checkpoint after a later one, which is refused."""

        async def add() -> None:
            with contextlib.suppress(StateHandleConflictError):
                await self._checkpoints.add(number, data, term)
                self.world.fail("no checkpoint after a later one", f"{number} is stored after {self.numbers}")

        await self._until_known(add, term)

    async def sweep(self) -> None:
        """Sweep in the middle of a term, in which the leader writes."""
        if self.term is not None:
            with contextlib.suppress(HaError, OSError):
                await self.services.job_graph_store().sweep(self.term)

    # ------------------------------------------------------------------ reading

    async def read(self) -> None:
        """Read something."""
        workload, kernel = self.workload, self.kernel
        name = f"job{self.rng.randrange(NAMES)}"
        began = kernel.now
        what = self.rng.randrange(3)
        if what == 2:
            job = f"j{self.rng.randrange(workload.jobs + 1)}"
            entry = await self.services.running_jobs_registry().entry(job)
            workload.job_read(job, began, None if entry is None else (entry.status, entry.result))
            return
        register = (workload.graphs if what == 0 else workload.executions)[name]
        try:
            if what == 0:
                data = await self.services.job_graph_store().get(name)
            else:
                found = await self.services.execution_store().find(name)
                if found is None:
                    raise StateHandleNotFoundError(name)
                data = found
        except StateHandleNotFoundError:
            register.read(began, kernel.now, None, None)
        except StateCorruptedError as error:
            workload.dangles(str(error))
        else:
            version = workload.version_of(data)
            register.read(began, kernel.now, version, version)
        self.world.count("reads")


class Follower:
    """A listener on the leader."""

    def __init__(self, workload: Ha, name: str) -> None:
        self.workload = workload
        self.name = name
        self.leader: LeaderInformation | None = None
        self.stale_since_s: float | None = None
        """Since when it follows a leader that the keeper does not name."""

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        self.leader = leader
        self.workload.world.kernel.trace("follows", self.name, leader.epoch if leader else 0)
        if leader is not None and leader.epoch not in self.workload.leaders._sessions:
            self.workload.world.fail("followers follow leaders", f"{self.name} was told of {leader}")

    def handle_error(self, error: Exception) -> None:
        self.workload.world.fail("a retrieval does not end by a defect", f"{self.name}: {error!r}")


class Tidiness:
    """How many files of the present term may be without a handle."""

    def __init__(self) -> None:
        self.epoch = 0
        self.crashes = 0
        self.left = 0

    def begins(self, epoch: int, crashes: int) -> None:
        """Note that a term begins, after so many crashes of the disk."""
        self.epoch, self.crashes, self.left = epoch, crashes, IN_PROGRESS

    def failed(self) -> None:
        """Note that a write has failed, or that its outcome is not known: it may leave files."""
        self.left += 2


class Ha:
    """See the module."""

    name: ClassVar[str] = "ha"
    faults_s: float = 60.0
    calm_s: float = 45.0
    """A half-open connection is given up 30 to 35 s after its cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        kernel = world.kernel
        kernel.devices["ha"] = self
        self.leaders = Leaders(world.fail)
        self.graphs = {f"job{n}": Register(f"graph of job{n}", world.fail) for n in range(NAMES)}
        self.executions = {f"job{n}": Register(f"execution of job{n}", world.fail) for n in range(NAMES)}
        self.checkpoint = Register("newest checkpoint", world.fail)
        self.numbers = Once("checkpoint numbers", world.fail)
        self.first_runs = Once("first runs of jobs", world.fail)
        self.results: dict[str, tuple[int, dict[str, Any]]] = {}
        self.jobs = 0
        self.highest_checkpoint = 0
        self.last_write_s = 0.0
        self.swept: dict[str, tuple[int, int]] = {}
        self.contenders: dict[SimProcess, Contender] = {}
        self.followers: dict[SimProcess, Follower] = {}
        self._stops: dict[SimProcess, asyncio.Event] = {}
        self._losses = 0
        self.tidy = Tidiness()
        self.clings = False
        """Whether what a leader does goes on when its term ends, until a write is refused."""
        self.stores_again = False
        """Whether leaders store each state some times more."""
        self.is_overtaken = False
        """Whether the next checkpoint is added after a later one."""
        self._memory: tuple[SimProcess, HaMemory] | None = None
        self.gained_s = -LEASE_S
        """Virtual second at which the keeper's clock was last set forward, so that leases ended early."""
        self.keeper = kernel.random("keeper").choice(("redis", "redis", "forgetful", "replicas", "master"))

    # ------------------------------------------------------------------ what was written

    @staticmethod
    def data(version: Version, size: int) -> bytes:
        """Return the content of a write."""
        return json.dumps(version).encode().ljust(size, b" ")

    @staticmethod
    def version_of(data: bytes) -> Version:
        """Return the version of a content."""
        epoch, number = json.loads(data)
        return epoch, number

    @property
    def may_have_lost(self) -> bool:
        """Whether the keeper has lost acknowledged writes, as it may."""
        return bool(self.world.redis is not None and self.world.redis.lost_at) or self._losses > 0

    def dangles(self, error: str) -> None:
        """Note a handle that refers to nothing."""
        if not self.may_have_lost:
            self.world.fail("no handle dangles", error)

    def leader_by_the_keeper(self) -> tuple[int, str] | None:
        """Return epoch and session of the term that holds the latch; None if none does."""
        if self.world.redis is not None:
            held = self.world.redis.master.data._hash(ClusterKeys(CLUSTER).leader(COMPONENT))
            return (int(held["epoch"]), held["owner"]) if held.get("owner") else None
        if self._memory is None or not self._memory[0].alive:
            return None
        kernel = self.world.kernel
        before, kernel.current = kernel.current, self._memory[0]
        latch = self._memory[1]._held(COMPONENT)
        kernel.current = before
        return None if latch is None else (latch.epoch, latch.session)

    def is_over(self, epoch: int) -> bool:
        """Return whether a term is over for the keeper, which then takes no write of it any more."""
        return not self.may_have_lost and self.leader_by_the_keeper() != (epoch, self.leaders.session(epoch))

    def written_without_leadership(self, what: str) -> None:
        """Note a write that began after the end of its term, and was acknowledged."""
        if not self.may_have_lost:
            self.world.fail("no former leader writes", what)

    def done(self, job: str, result: dict[str, Any]) -> None:
        """Note an acknowledged result."""
        known = self.results.get(job)
        if known is not None and known[1] != result:
            self.world.fail("the first result stands", f"{job} has result {known[1]}, and then {result}")
        self.results[job] = (self.world.kernel.now, result)

    def job_read(self, job: str, began: int, entry: tuple[JobSchedulingStatus, Any] | None) -> None:
        """Check what was read of a job."""
        known = self.results.get(job)
        if known is None or known[0] >= began:
            return
        if entry is None or entry[0] is not JobSchedulingStatus.DONE or entry[1] != known[1]:
            self.world.fail("a job that has ended stays ended", f"{job} has result {known[1]}, and is {entry}")

    def lose(self, since: int) -> None:
        """Note that the keeper has lost what was written after *since*."""
        for register in (*self.graphs.values(), *self.executions.values(), self.checkpoint):
            register.lost(since, self.world.kernel.now)
        self.numbers.lost(since, self.world.kernel.now)
        self.first_runs.lost(since, self.world.kernel.now)
        self.results = {job: found for job, found in self.results.items() if found[0] < since}

    # ------------------------------------------------------------------ building

    def disks(self) -> None:
        self.world.add_disk("shared")

    def build(self) -> None:
        world = self.world
        offset = 0.0 if self.keeper == "master" else 3600.0
        hosts = world.hosts(3, drift=0.005, offset_s=offset)
        keepers = [world.kernel.add_host("keeper1"), world.kernel.add_host("keeper2")]
        if self.keeper == "master":
            self._start_master(keepers[0])
            for number, host in enumerate(hosts, 1):
                self._start(host, f"follower{number}", contends=False)
            return
        world.redis = RedisDeployment(
            world.kernel,
            world.network,
            keepers[0],
            persistent=self.keeper != "forgetful",
            replica_host=keepers[1] if self.keeper == "replicas" else None,
        )
        world.redis.on_loss.append(lambda since_s: self.lose(int(since_s * SECOND)))
        for number in range(1, 5):
            self._start(hosts[number % 3], f"contender{number}", contends=True)

    def _start(self, host: SimHost, name: str, *, contends: bool) -> None:
        def start() -> SimProcess | None:
            return host.start(name, self._main, name, contends) if host.up else None

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    def _start_master(self, host: SimHost) -> None:
        """Start the master and its children, which end with it."""

        def start() -> SimProcess | None:
            if not host.up:
                return None
            master = host.start("master", self._serve)
            names = [f"contender{number}" for number in (1, 2, 3)]
            for name in names:

                def again(name: str = name) -> SimProcess | None:
                    return host.start(name, self._main, name, True) if master.alive else None

                child = again()
                assert child is not None
                self.world.supervise(child, again)

            def ended(silent: bool) -> None:
                for process in list(host.processes):
                    process.kill()
                self._losses += 1
                self.lose(-1)

            if not self.world.stopping:
                master.on_end.insert(0, ended)
            return master

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    async def _serve(self) -> None:
        service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(bind_host=_here().host.address, port=PORT))
        await service.listen()
        endpoint = StandaloneHa(service, ClusterKeys(CLUSTER), UserFile(STORAGE.parent / "users.json"))
        self._memory = _here(), endpoint._memory
        await service.start_server(endpoint)
        await self._stopped()
        await service.close()

    def _services(self) -> tuple[LatchedHaServices, Callable[[], Awaitable[None]]]:
        if self.keeper != "master":
            redis = RedisHaServices("redis://redis:6379/0", CLUSTER, STORAGE, lease=LEASE_S, memory_threshold=THRESHOLD)
            return redis, redis.close
        keeper = self.world.kernel.hosts["keeper1"]
        service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(bind_host=_here().host.address))
        address = ActorAddress("understudy", keeper.address, PORT, "/user/master")
        services = StandaloneHaServices(service, address, CLUSTER, STORAGE, lease=LEASE_S, memory_threshold=THRESHOLD)

        async def close() -> None:
            await services.close()
            await service.close()

        return services, close

    async def _stopped(self) -> None:
        stop = self._stops[_here()] = asyncio.Event()
        await stop.wait()

    async def _main(self, name: str, contends: bool) -> None:
        process = _here()
        services, close = self._services()
        contender = Contender(self, name, services)
        retrieval = services.leader_retrieval(COMPONENT)
        follower = self.followers[process] = Follower(self, name)
        await retrieval.start(follower)
        if contends:
            self.contenders[process] = contender
            await contender.election.start(contender)
        reading = asyncio.create_task(self._read(contender), name="read")
        await self._stopped()
        reading.cancel()
        await asyncio.wait([reading])
        if contends:
            last = contender.term
            await contender.election.stop()
            if last is not None and self.world.stopping:
                self._check_released(name, last)
        await retrieval.stop()
        await close()

    async def _read(self, contender: Contender) -> None:
        while True:
            await asyncio.sleep(contender.rng.random() * 0.3)
            try:
                await contender.read()
            except (HaError, ActorError, OSError) as error:
                logger.debug("%s could not read: %s", contender.name, error)

    # ------------------------------------------------------------------ faults

    def plan(self, rng: random.Random) -> list[Fault]:
        weights = {
            "kill": 1.0,
            "kill_at_effect": 4.0,
            "stall_at_effect": 4.0,
            "freeze": 2.0,
            "suspend": 1.0,
            "crash": 0.5,
            "jump": 1.0,
            "partition": 2.0,
            "isolate": 1.0,
            "slow": 2.0,
            "disk_crash": 1.0,
            "disk_full": 0.5,
            "disk_errors": 0.5,
        }
        names = [f"host{number}" for number in (1, 2, 3)]
        processes = [f"contender{number}" for number in (1, 2, 3, 4)]
        if self.keeper == "master":
            weights |= {"reset": 1.0, "cut": 1.0, "break_after": 3.0}
            processes = [*processes[:3], "master", "follower1", "follower2", "follower3"]
        else:
            weights |= {"redis_kill": 1.0, "redis_freeze": 2.0, "redis_slow": 1.0}
            if self.keeper == "replicas":
                weights["redis_fail_over"] = 1.0
        faults = FaultPlan(
            hosts=names,
            processes=processes,
            weights=weights,
            rate=2.0,
            until_s=self.faults_s,
            longest_s=15.0,
            jumps=names,
            disks=["shared"],
            all_hosts=[*names, "keeper1"],
        ).draw(rng)
        for _ in range(0 if self.keeper == "master" else rng.randrange(10)):
            kind = rng.choice(("late_grant", "late_renewal", "latch_taken"))
            at = rng.uniform(1.0, self.faults_s * 5 / 6)
            cut_s = rng.uniform(1.0, 2.0 * LEASE_S)
            arguments: tuple[Any, ...] = ()
            if kind == "late_renewal":
                arguments = round(rng.uniform(0.4, 1.0), 3), round(cut_s, 3)
            elif kind == "late_grant":
                late_s = rng.choice((rng.uniform(0.2, 0.6), rng.uniform(1.5, LEASE_S)))
                arguments = (rng.choice(names), round(late_s, 3), round(cut_s, 3))
            faults.append(Fault(round(at, 6), kind, arguments))
        for _ in range(rng.choice((0, 0, 2, 6)) if self.keeper == "redis" else 0):  # others may repeat epochs then
            jump_s = rng.choice((rng.uniform(-3600.0, 3600.0), rng.uniform(-2.0 * LEASE_S, 2.0 * LEASE_S)))
            faults.append(Fault(round(rng.uniform(1.0, self.faults_s), 6), "keeper_jump", (round(jump_s, 3),)))
        return sorted(faults, key=lambda fault: fault.at_s)

    # ------------------------------------------------------------------ checks

    def _check_released(self, name: str, term: LeaderTerm) -> None:
        """Check that a leader that stops in good order gives its latch back, and does not leave that to the lease."""
        if self.leader_by_the_keeper() == (term.epoch, term.session):
            self.world.fail("a stop releases the latch", f"{name} has stopped, and {term} holds the latch")

    def _check_followers(self) -> None:
        """Check that no follower that runs follows a leader long after the keeper names it no more."""
        kernel = self.world.kernel
        leader = self.leader_by_the_keeper()
        for process, follower in self.followers.items():
            followed = follower.leader
            is_stale = followed is not None and (followed.epoch, followed.session) != leader
            if not (process.may_run and is_stale and process._busy_until <= kernel.now):
                follower.stale_since_s = None
            elif follower.stale_since_s is None:
                follower.stale_since_s = kernel.seconds
            elif kernel.seconds - follower.stale_since_s > STALE_S:
                self.world.fail("followers give up a former leader", f"{follower.name} follows {followed}")

    def _check_files(self) -> None:
        """Check that the present term has left no files of states that were replaced."""
        redis, disk = self.world.redis, self.world.disks["shared"]
        if redis is None or self.may_have_lost or disk.crashes != self.tidy.crashes:
            return
        data = redis.master.data
        handles = [text for key in data._live() if ":handles:" in key for text in data._hash(key).values()]
        mine = f".e{self.tidy.epoch}."
        files = [path.rpartition("/")[2] for path, _ in disk.walk() if mine in path]
        left = [name for name in files if not any(name in text for text in handles)]
        if len(left) > self.tidy.left:
            self.world.fail("replaced files go", f"{len(left)} files of the present term have no handle: {left[:3]}")

    def check_often(self) -> None:
        kernel = self.world.kernel
        holders = []
        for process, contender in self.contenders.items():
            if process.alive:
                kernel.current = process
                if contender.holds():
                    assert contender.term is not None
                    holders.append((contender.name, contender.term.epoch))
        kernel.current = None
        self._check_followers()
        if kernel.seconds > self.gained_s + 1.01 * LEASE_S:
            self.leaders.holding(holders)

    def check_healed(self) -> None:
        world, kernel = self.world, self.world.kernel
        living = [contender for process, contender in self.contenders.items() if process.alive]
        holding = []
        for process, contender in self.contenders.items():
            kernel.current = process
            if process.alive and contender.holds():
                holding.append(contender)
        kernel.current = None
        if len(holding) != 1:
            world.fail("the cluster heals", f"{len(holding)} of {len(living)} contenders lead")
            return
        term = holding[0].term
        for process, follower in self.followers.items():
            if process.alive and (follower.leader is None or follower.leader.term != term):
                world.fail("followers find the leader", f"{follower.name} follows {follower.leader}, {term} leads")
        if self.last_write_s < kernel.seconds - 5.0:
            world.fail("the leader writes", f"the last write was at {self.last_write_s:.3f} s")
        self._check_files()

    def stop(self) -> None:
        order = sorted((process for process in self._stops if process.alive), key=lambda one: one.name == "master")
        pause = 0.0
        for process in order:
            assert process.loop is not None
            # The keeper has to live until the last contender has released its latch.
            pause = 6.0 if process.name == "master" else 0.0
            self.world.kernel.after(pause, process.loop.call_soon_threadsafe, self._stops[process].set)
            if process.name == "master":
                process.on_end.pop(0)

    def check_stopped(self) -> None:
        world = self.world
        for host in world.kernel.hosts.values():
            for process in host.processes:
                world.fail("a stop ends", f"{process} still runs:\n" + "\n".join(process.waits()))
        for process in (*self.contenders, *self.followers):
            if process.exit_code not in (0, -9):
                world.fail("a stop ends", f"{process} ended with {process.exit_code}: {process.error!r}")
        if world.redis is not None:
            latch = f"us:{{{CLUSTER}}}:leader:{COMPONENT}"
            held = [key for key in world.redis.master.data._live() if key.endswith(f"leader:{COMPONENT}")]
            if held:
                world.fail("a stop releases the latch", f"{latch} is still held: {held}")
        if world.files is not None and (left := world.files.open_files()):
            world.fail("nothing is left open", str(left))
        if world.network.listeners:
            world.fail("nothing is left open", str(world.network.listeners))


# ------------------------------------------------------------------ faults of this workload


def _late_replies(world: World, name: str, late_s: float, cut_s: float) -> bool:
    """Hold back what the keeper sends to a host; when that arrives, lose what the host sends."""
    assert world.redis is not None
    if world.kernel.seconds >= world.quiet_from_s:
        return False
    host, keeper = world.kernel.hosts[name], world.redis.master.host
    there, back = world.network.link(host, keeper), world.network.link(keeper, host)
    if there.blocked or back.blocked:
        return False
    back.block()

    def arrive() -> None:
        if back.blocked:
            back.blocked = False
            back.release(0.05)
            there.block()
            world.kernel.after(cut_s, lambda: there.unblock() if there.blocked else None)

    world.kernel.after(late_s, arrive)
    return True


def _leading(world: World) -> list[SimProcess]:
    workload: Ha = world.kernel.devices["ha"]
    return [process for process, one in workload.contenders.items() if process.alive and one.term is not None]


def _late_renewal(world: World, late_s: float, cut_s: float) -> bool:
    """Let the reply to the leader's next renewal come late, and lose the renewals after that."""
    leaders = _leading(world)
    return bool(leaders) and _late_replies(world, leaders[-1].host.name, late_s, cut_s)


def _late_grant(world: World, name: str, late_s: float, cut_s: float) -> bool:
    """Kill the leader; when its lease ends, let the replies to one host come late."""
    assert world.redis is not None
    leaders = _leading(world)
    left_ms = world.redis.master.data.ttl(ClusterKeys(CLUSTER).leader(COMPONENT))
    if not leaders or left_ms < 0:
        return False
    for process in leaders:
        process.kill()
    world.kernel.after(min(max(left_ms - 5, 0) / 1000, LEASE_S), _late_replies, world, name, late_s, cut_s)
    return True


def _latch_taken(world: World) -> bool:
    """Give the latch to a session that nobody has, for another lease: the leader's next renewal is refused."""
    assert world.redis is not None
    data, key = world.redis.master.data, ClusterKeys(CLUSTER).leader(COMPONENT)
    if data.ttl(key) < 0:
        return False
    data._hash(key)["owner"] = "nobody"
    data._expire(key, int(LEASE_S * 1000))
    return True


def _keeper_jump(world: World, seconds: float) -> bool:
    """Set the clock of Redis's host forward, or back."""
    if world.redis is None:
        return False
    world.redis.master.host.jump(seconds)
    if seconds > 0:
        workload: Ha = world.kernel.devices["ha"]
        workload.gained_s = world.kernel.seconds
    return True


def _for_some_time(world: World, what: str, seconds: float) -> bool:
    """Set a switch of the workload, and set it back after some seconds; only kept plans do so."""
    workload = world.kernel.devices["ha"]
    setattr(workload, what, True)
    world.kernel.after(seconds, setattr, workload, what, False)
    return True


def _increment_lost(world: World, seconds: float) -> bool:
    """Hold back the leader's next increment of the counter of checkpoints, and stop the leader, for some seconds."""
    redis = world.redis
    if redis is None:
        return False
    counter = ClusterKeys(CLUSTER).checkpoint_ids

    def watch(name: str, command: tuple[Any, ...], reply: object) -> None:
        leaders = _leading(world)
        if command[:2] != ("HGET", counter) or not leaders:
            return
        redis.watches.remove(watch)
        leader = leaders[-1]
        link = world.network.link(leader.host, redis.master.host)
        link.block()
        world.kernel.after(0.1, leader.freeze)
        world.kernel.after(seconds, lambda: link.unblock() if link.blocked else None)
        world.kernel.after(seconds, leader.thaw)

    redis.watches.append(watch)
    return True


def _overtaken_checkpoint(world: World) -> None:
    workload: Ha = world.kernel.devices["ha"]
    workload.is_overtaken = True


def _sweep(world: World) -> bool:
    """Let the leader sweep while it writes."""
    workload: Ha = world.kernel.devices["ha"]
    leaders = _leading(world)
    if not leaders or leaders[-1].loop is None:
        return False
    contender = workload.contenders[leaders[-1]]
    leaders[-1].loop.call_soon_threadsafe(lambda: asyncio.ensure_future(contender.sweep()))
    return True


add_kinds(
    {
        "keeper_jump": _keeper_jump,
        "late_renewal": _late_renewal,
        "late_grant": _late_grant,
        "latch_taken": _latch_taken,
        "clings": lambda world, seconds: _for_some_time(world, "clings", seconds),
        "stores_again": lambda world, seconds: _for_some_time(world, "stores_again", seconds),
        "increment_lost": _increment_lost,
        "overtaken_checkpoint": _overtaken_checkpoint,
        "sweep": _sweep,
    }
)


def _here() -> SimProcess:
    from tests.simulation.kernel import installed_kernel

    process = installed_kernel().current
    assert process is not None
    return process
