"""The workload ``streaming``: queries with checkpoints and savepoints, which faults must not cost a row.

Jobs of one query each read a source that grows, on two TaskExecutors; two JobMasters contend for each. A client takes
checkpoints and savepoints, stops jobs with savepoints and starts successors from them (an upgrade, sometimes in another
checkpointLocation and sink), and rolls jobs back. See `streaming_cluster` for what is real.

Checks, while it runs and at its end:

- *a driver writes with a lease*: no driver writes to a checkpointLocation without its lock, so no query runs twice.
- *rows exactly once*: readers of a sink never see a row twice, or one with the count of another state; at the end all.
- *no handle dangles*: each checkpoint in the store is whole, with the files of the sink that it names.
- *savepoints stay whole*: each savepoint that a request has reported can be verified at any later time.
- *no query goes back too far*: an attempt starts with the newest completed checkpoint, or with later files.
- *files stay as they are*: no checkpoint is declined because a query's files differ from an earlier checkpoint's.
- *a completed checkpoint stays*: the store has it, or a later one, until the job ends.
- *an accepted request ends*, and a stop that has COMPLETED ends its job; one that has not leaves it running.
- *a former attempt is fenced*: the driver that holds its lease ends, if the next attempt runs on the same host.
- *it heals*: some time after the last fault all rows are in the sinks, and no job has failed.
- *nothing is left*: ended jobs have neither handles nor files, and no hidden part of a snapshot is left.
- *nothing comes back*: the files of a forgotten job do not come back by a loss of power.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from actors.errors import ActorError
from conf.configuration import Configuration
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.names import savepoint_name
from runtime.checkpoint.restore import check_sink
from runtime.checkpoint.savepoint import verify_savepoint
from runtime.checkpoint.snapshot import committed_batch
from runtime.checkpoint.stored_snapshot import check_snapshot
from runtime.checkpoint.task_restore import LOAD_FAILURES
from runtime.ha.errors import StateCorruptedError
from runtime.ha.keys import ClusterKeys
from runtime.ha.state_files import StateHandle
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.codec import decode
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.jobmaster.checkpointing import REMOVED
from runtime.jobmaster.savepoints import SavepointWriter
from runtime.protocol.checkpoints import (
    CheckpointMetadata,
    CheckpointTrigger,
    OperationState,
    OperationStatus,
    SnapshotType,
)
from runtime.protocol.descriptor import AttemptInformation
from runtime.protocol.errors import GatewayError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from tests.simulation.disk import ROOT, Disk, Inode, Loss
from tests.simulation.faults import Fault, FaultPlan, add_kinds
from tests.simulation.kernel import EPOCH_NS, SECOND, Kernel, SimHost, SimProcess, SimThread
from tests.simulation.patches import Patch, add_patches
from tests.simulation.redis import RedisDeployment
from tests.simulation.spark import (
    LOAD_FAILED,
    QueryFailed,
    QueryPlan,
    Rows,
    RowSource,
    read_rows,
    read_sink,
    wrong_rows,
)
from tests.simulation.workloads.streaming_cluster import (
    CLUSTER,
    RUN,
    SETTINGS,
    STORAGE,
    Calls,
    Driver,
    Job,
    JobMasterModel,
    QueryRun,
    Worker,
    job_services,
)
from tests.simulation.world import World

_COMPLETED = OperationState.COMPLETED
LINES = 2
FEED_S = 0.6
GIVE_UP_S = 45.0
CHECKS_S = 2.0
"""Virtual seconds between two of the checks that read files."""
OPERATION_S = {"fsync": 0.002, "rename": 0.0005, "unlink": 0.0003, "link": 0.0003, "mkdir": 0.0003, "rmdir": 0.0003}
"""Mean virtual seconds of the operations in which other threads run."""
CHANGED = "is not what it was when an earlier checkpoint was taken"
"""Part of the reason with which a checkpoint of changed files is declined."""
CLOCKS_S = 6.0
"""Seconds by which a wall clock may differ from the true time."""
RECENT_S = 30.0
"""Seconds in which a job must have completed a checkpoint at the end; clocks of hosts differ by up to 10."""
TIMEOUT_S = 12.0
"""`execution.checkpointing.timeout`, as in `SETTINGS`."""
LATE_S = 8.0
"""Seconds after its timeout at which no checkpoint is in progress; a JobMaster that stood still may look late."""
KNOWN = {
    "restore from savepoint FAILS when Redis does not answer": "Redis at",
}
"""Defects of the product that others mend: their names, and the text by which the workload passes over them."""


LEAKS = (
    "a JobMaster that is lost while it copies a savepoint leaves a hidden part in the directory of savepoints. Only a "
    "JobMaster that repeats the same request removes it",
)


@dataclass
class _BadState:
    """State of a query that Spark cannot load: of the batch at which the query starts next.

    Args:
        seconds: virtual seconds after which a start fails.
    """

    seconds: float
    batch: int | None = None
    failures: int = 0


class Streaming:
    """See the module."""

    name: ClassVar[str] = "streaming"
    faults_s = 60.0
    calm_s = 60.0

    def __init__(self, world: World) -> None:
        self.world = world
        world.kernel.devices["streaming"] = self
        self.calls = Calls(world)
        self.sources: dict[str, RowSource] = {}
        self.jobs: list[Job] = []
        self.lines: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.drivers: list[Driver] = []
        self.requests: dict[str, tuple[Job, CheckpointTrigger, OperationStatus | None]] = {}
        self.savepoints: dict[str, str] = {}
        self.completed: dict[str, int] = {}
        self.masters: dict[str, list[SimProcess]] = {}
        self.deaf: set[str] = set()
        self._random = world.kernel.random("streaming")
        self._stops: dict[SimProcess, asyncio.Event] = {}
        self._next_check_s = CHECKS_S
        self._busy: set[str] = set()
        self._checked: dict[str, tuple[int, list[str]]] = {}
        self._rows: dict[Inode, tuple[tuple[int, int, int], Rows | None]] = {}
        """The rows of each file of the sinks, and when they were read: crashes of the disk, time, size."""
        self._held: dict[str, tuple[tuple[int, str], dict[str, Inode]]] = {}
        """The files of a sink with which the newest checkpoint of a job was found to be restorable."""
        self._unread: set[str] = set()
        """Lines whose sink may be damaged since a loss of power, until their query has started again."""
        self._begun: dict[str, tuple[str, str]] = {}
        """The job and the rollback with which each query has started."""
        self._committed: dict[str, int] = {}
        """The last batch that each query has committed since its last start."""
        self._attempts: dict[str, str] = {}
        self._workers_hosts: dict[str, SimHost] = {}
        self._loses_syncs = False
        self._bad_states: dict[str, _BadState] = {}
        self._abandoned: dict[str, int] = {}
        """The newest checkpoint of a job whose query went back to an earlier one, since it could not load its state."""
        self._losses: dict[str, float] = {}
        """Lines that lose their checkpointLocation while their next checkpoint is stored, and how long that lasts."""
        self._cancelled: set[str] = set()
        """Jobs that a plan cancels: each gets a request while it ends, and its queries continue in another job."""
        self._at_savepoints: list[tuple[str, float]] = []
        """Processes to kill when the next savepoints get their names, masters or workers, and how long after that."""

    # ------------------------------------------------------------------- building

    def disks(self) -> None:
        self.world.add_disk("shared")

    def build(self) -> None:
        world = self.world
        hosts = world.hosts(4, drift=0.002, offset_s=5.0)
        keeper = world.kernel.add_host("keeper1")
        world.redis = RedisDeployment(world.kernel, world.network, keeper, persistent=True)
        assert world.files is not None
        self._announced = world.files.before
        world.files.before = self._before
        for place in ("run", "data"):
            Path(ROOT, "shared", place).mkdir()
        world.disks["shared"].sync(world.disks["shared"].root, "")
        for number in (1, 2):
            self._workers_hosts[f"worker{number}"] = hosts[1 + number]
            self._keep(hosts[1 + number], f"worker{number}", self._work)
        for number in range(1, LINES + 1):
            name = f"line{number}"
            self.sources[name] = RowSource()
            self._submit(name, self._plan(name, 0, 0), None)
        self._keep(hosts[0], "client", self._client)
        world.kernel.after(FEED_S, self._feed)

    def _plan(self, name: str, location: int, sink: int) -> QueryPlan:
        base = f"{ROOT}/shared/data/{name}"
        compact_every = 3 if name == "line1" else 5
        return QueryPlan(name, f"{base}/live{location}", f"{base}/out{sink}", compact_every=compact_every)

    def _keep(self, host: SimHost, name: str, main: Any) -> None:
        def start() -> SimProcess | None:
            return host.start(name, main, name) if host.up else None

        process = start()
        assert process is not None
        self.world.supervise(process, start, 0.5)

    def _submit(self, line: str, plan: QueryPlan, savepoint: SavepointRestoreSettings | None) -> None:
        """Accept a job, and start its two JobMasters."""
        number = len(self.jobs)
        job_id = JobID.from_name("job", str(self.world.seed), str(number))
        graph = JobGraph.for_script(line, job_id=job_id)
        if savepoint is not None:
            graph = replace(graph, savepoint=savepoint)
        job = Job(graph, (plan,))
        self.jobs.append(job)
        self.lines[line] = job
        self.world.count("jobs")
        self.world.kernel.trace("submitted", line, number)
        for place in (1, 2):
            host = self.world.kernel.hosts[f"host{place}"]
            self._keep_master(host, f"master{place}-{number}", job)

    def _keep_master(self, host: SimHost, name: str, job: Job) -> None:
        def start() -> SimProcess | None:
            if job.status is not None or self.world.stopping:
                return None
            return host.start(name, self._master, job) if host.up else None

        def begin() -> None:
            process = start()
            if process is not None:
                self.world.supervise(process, start, 0.5)
            elif job.status is None:
                self.world.kernel.after(1.0, begin)

        begin()

    def _feed(self) -> None:
        for source in self.sources.values():
            source.available += self._random.choice((0, 1, 1, 3))
        if self.world.kernel.seconds < self.faults_s + 10.0:
            self.world.kernel.after(FEED_S, self._feed)

    # ------------------------------------------------------------------- processes

    async def _master(self, job: Job) -> None:
        services = job_services()
        master = JobMasterModel(self, job, services)
        await master.election.start(master)
        await self._stopped(master.ended)
        await master.election.stop()
        await services.close()

    async def _work(self, name: str) -> None:
        worker = Worker(self, name)
        self.workers[name] = worker
        running = asyncio.create_task(worker.run())
        await self._stopped(running)

    async def _stopped(self, other: asyncio.Event | asyncio.Task[None]) -> None:
        kernel = self.world.kernel
        assert kernel.current is not None
        stop = self._stops[kernel.current] = asyncio.Event()
        waits = [asyncio.create_task(stop.wait())]
        waits.append(asyncio.create_task(other.wait()) if isinstance(other, asyncio.Event) else other)  # type: ignore[arg-type]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def worker(self, name: str) -> Worker | None:
        """Return the latest TaskExecutor of a name."""
        return self.workers.get(name)

    def choose_worker(self, number: int) -> Worker | None:
        """Return a living TaskExecutor."""
        living = [worker for worker in self.workers.values() if worker.process.alive and worker.driver.alive]
        return self._random.choice(living) if living else None

    def task_started(self, executor: SimProcess, process: SimProcess) -> None:
        """Let a task process end with its TaskExecutor."""
        executor.on_end.append(lambda silent: process.kill())

    def driver_started(self, driver: Driver) -> None:
        """Note a driver."""
        self.drivers.append(driver)

    def leads(self, job: Job, master: JobMasterModel) -> None:
        """Note a JobMaster that leads."""
        self.world.count("leaderships")

    def ended(self, job: Job, status: JobStatus, failure: str) -> None:
        """Note the end of a job."""
        job.status, job.failure = status, failure
        self.world.count(f"jobs {status.value}")
        self.world.kernel.trace("ended", job.graph.name, status.value)
        if not self._loses_syncs and self.world.disks["shared"].is_on_medium(f"run/checkpoints/{job.id}"):
            self.world.fail("nothing comes back", f"{job.graph.name} is forgotten, and its files are on the medium")
        if status is JobStatus.FAILED:
            known = next((name for name, text in KNOWN.items() if text in failure), None)
            if known is None:
                self.world.fail("no job fails", f"{job.graph.name}: {failure}")
            else:
                self.world.count(f"known: {known}")
                self._again(job)
        elif status is JobStatus.CANCELED and job.id in self._cancelled:
            self._submit(job.graph.name, job.plans[0], None)

    def _again(self, job: Job) -> None:
        """Submit a job again that has failed by a known defect."""
        self._submit(job.graph.name, job.plans[0], job.graph.savepoint)

    def query_starts(self, job: Job, attempt: AttemptInformation, query: QueryLocation, batch: int, note: str) -> None:
        """Check from where a query starts."""
        self.world.count("query starts")
        if note:
            self.world.count("restores")
        self.world.kernel.trace("query", query.name, attempt.attempt_number, batch, bool(note))
        self._unread.discard(query.name)
        restore = attempt.restore
        rollback = "" if restore is None else restore.rollback
        self._note_commits()
        bad = self._bad_states.get(query.name)
        if (
            bad is not None
            and bad.batch is not None
            and bad.failures >= LOAD_FAILURES
            and batch < bad.batch
            and restore
        ):
            self._abandoned[job.id] = restore.checkpoint_id
            self.world.count("went back past a state that cannot be loaded")
        if restore is not None and restore.checkpoint_id <= self._abandoned.get(job.id, -1):
            self._may_go_back(query.name)
        begun = self._begun.get(query.name)
        if begun == (job.id, rollback) and batch < self._committed.get(query.name, -1):
            self.world.fail(
                "no query goes back too far",
                f"{query.name} has committed batch {self._committed[query.name]}, and starts at {batch}: {note}",
            )
        self._begun[query.name] = job.id, rollback
        self._committed[query.name] = batch
        self._attempts[query.name] = attempt.attempt_id
        if restore is None or rollback or restore.checkpoint_id <= self._abandoned.get(job.id, -1):
            return
        least = max((known.batch_id for known in restore.queries if known.name == query.name), default=-1)
        if batch < least:
            self.world.fail(
                "no query goes back too far",
                f"{query.name} starts at batch {batch}, its state was of batch {least}: {note}",
            )

    def _note_commits(self) -> None:
        """Note the last batch that a query has committed since its last start."""
        for driver in self.drivers:
            for run in driver.runs:
                if self._attempts.get(run.plan.name) == run.attempt_id:
                    known = self._committed.get(run.plan.name, -1)
                    self._committed[run.plan.name] = max(known, run.execution.committed)

    def _may_go_back(self, line: str) -> None:
        """Note that the files of a query are lost, so that it may start from its last checkpoint."""
        self._begun.pop(line, None)

    def load_state(self, plan: QueryPlan) -> None:
        """Load the state of a query as it starts; raises QueryFailed if that was damaged."""
        bad = self._bad_states.get(plan.name)
        if bad is None:
            return
        with self._undisturbed():
            batch = committed_batch(plan.query)
        if bad.batch is None:
            bad.batch = batch
        if batch != bad.batch or bad.failures >= 2 * LOAD_FAILURES or self.world.kernel.seconds > self.faults_s:
            del self._bad_states[plan.name]
            return
        bad.failures += 1
        time.sleep(bad.seconds)
        raise QueryFailed(f"{LOAD_FAILED} a part of the state of batch {batch} is damaged")

    def damage_state(self, line: str, seconds: float) -> bool:
        """Let a query fail, and its starts too, as long as they load the state of the batch that it has reached."""
        active = [run for driver in self.drivers if driver.alive for run in driver.runs if run.is_active]
        mine = [run for run in active if run.plan.name == line]
        if not mine or line in self._bad_states:
            return False
        self._bad_states[line] = _BadState(seconds)
        mine[-1].fails = True
        return True

    def declined(self, job: Job, reason: str) -> None:
        """Check why a task has declined a checkpoint; a loss of power may change files."""
        if CHANGED in reason and not self.world.disks["shared"].crashes:
            self.world.fail("files stay as they are", f"{job.graph.name}: {reason}")

    def query_failed(self, run: QueryRun) -> None:
        """Note a query that has failed."""
        self.world.count("query failures")

    # ------------------------------------------------------------------- the disk

    def _before(self, operation: str, path: str, disk: Disk) -> None:
        assert self._announced is not None
        self._announced(operation, path, disk)
        kernel = self.world.kernel
        process = kernel.current
        if process is None or kernel.closed:
            return
        if operation in ("open", "write", "rename", "unlink") and process.name.startswith("spark-"):
            self._check_lease(process, path)
        if self._losses and operation == "fsync" and kernel.thread is not None and process.name.startswith("master"):
            self._lose_in_store(kernel.thread, path)
        if self._at_savepoints and operation == "rename" and "/savepoints/" in path:
            self._lose_at_savepoint(process, path.rpartition("/")[2])
        if self._cancelled and operation == "rename":
            self._request_at_end(path.rpartition("/")[2])
        mean = OPERATION_S.get(operation)
        if mean is not None and kernel.thread is not None:
            kernel.trace("disk", process.name, operation, path.rpartition("/")[2])
            kernel.thread.sleep(self._random.expovariate(1 / mean))

    def _lose_in_store(self, thread: SimThread, path: str) -> None:
        """Lose a checkpointLocation in the middle of storing a checkpoint, which the disk delays."""
        for line in list(self._losses):
            if f"/checkpoints-{self.lines[line].id}/" in path:
                self.world.kernel.after(0.0, self.location_lost, line)
                thread.sleep(self._losses.pop(line))

    def lose_location_in_store(self, line: str, seconds: float) -> None:
        """Let a checkpointLocation be lost while the next checkpoint is stored."""
        self._losses[line] = seconds

    def _lose_at_savepoint(self, master: SimProcess, name: str) -> None:
        """Kill the JobMaster that publishes a savepoint, or the TaskExecutor of a job that this savepoint stops."""
        requests = [(job, trigger) for job, trigger, _ in self.requests.values()]
        named = [(job, trigger) for job, trigger in requests if name == savepoint_name(job.id, trigger.trigger_id)]
        if not named:
            return
        job, trigger = named[0]
        what, seconds = self._at_savepoints[0]
        if what == "worker" and trigger.type not in (SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE):
            return
        del self._at_savepoints[0]
        worker = None if job.master is None else self.workers.get(job.master.execution.resource_id)
        lost = master if what == "master" or worker is None else worker.process
        self.world.kernel.after(seconds, lambda: lost.kill() if lost.alive else None)

    def _request_at_end(self, name: str) -> None:
        """Request a checkpoint of a job whose files are being removed, at its end."""
        job = next((job for job in self.jobs if job.id in name and job.id in self._cancelled), None)
        client = next((one for one in self.world.kernel.processes if one.alive and one.name == "client"), None)
        if job is None or client is None or client.loop is None or not name.endswith(REMOVED):
            return
        trigger = CheckpointTrigger(TriggerID.random(), SnapshotType.CHECKPOINT)
        self.requests[trigger.trigger_id] = job, trigger, None
        client.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._follow(job, trigger)))

    def cancel(self, line: str) -> bool:
        """Cancel a job that is not being stopped."""
        job = self.lines[line]
        master = job.master
        if job.status is not None or line in self._busy or master is None or master.process.loop is None:
            return False
        self._cancelled.add(job.id)

        async def cancel() -> None:
            with contextlib.suppress(ActorError, GatewayError):
                await master.cancel()

        master.process.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(cancel()))
        return True

    def lose_at_savepoint(self, what: str, seconds: float) -> None:
        """Let a JobMaster or a TaskExecutor be lost as a savepoint gets its name."""
        self._at_savepoints.append((what, seconds))

    def _kill_work(self, line: str) -> None:
        """Kill the drivers, and the task processes of a line of jobs."""
        for driver in self.drivers:
            driver.kill()
        for process in list(self.world.kernel.processes):
            if process.alive and process.name == f"task-{line}":
                process.kill()

    def offsets_lost(self, line: str) -> bool:
        """Lose the newest offsets of a query whose sink has that batch; the processes end that use them."""
        job = self.lines.get(line)
        if job is None or job.status is not None or not self._stored(job):
            return False
        plan = job.plans[0]
        place, log = Path(plan.location), Path(plan.sink) / "_spark_metadata"
        with self._undisturbed():
            batches = sorted(int(path.name) for path in (place / "offsets").glob("*") if path.name.isdecimal())
            written = {path.name.partition(".")[0] for path in log.glob("*")}
            if not batches or str(batches[-1]) not in written:
                return False
            self._kill_work(line)
            for kind in ("offsets", "commits"):
                for path in (place / kind).glob("*"):
                    if path.name.strip(".").partition(".")[0] == str(batches[-1]):
                        path.unlink()
        self._may_go_back(line)
        return True

    def _check_lease(self, process: SimProcess, path: str) -> None:
        parts = path.removeprefix(f"{ROOT}/shared/data/").split("/")
        if len(parts) < 3 or not parts[1].startswith("live"):
            return
        assert self.world.files is not None
        try:
            holder = self.world.files.inode_of(f"{ROOT}/shared/data/{parts[0]}/.{parts[1]}.lease").locked_by
        except FileNotFoundError:
            holder = None
        if holder is None or holder.pid != process.pid:
            self.world.fail("a driver writes with a lease", f"{process} writes {path}, its lease has {holder}")

    # ------------------------------------------------------------------- clients

    async def _client(self, name: str) -> None:
        """Request this and that of each job, until the faults are over, and follow each request to its end."""
        rng, kernel = self._random, self.world.kernel
        following: set[asyncio.Task[None]] = set()
        for job, trigger, status in list(self.requests.values()):
            if status is None or status.state is OperationState.IN_PROGRESS:
                following.add(asyncio.create_task(self._follow(job, trigger)))
            elif trigger.type.ends_the_job and self.lines[job.graph.name] is job:
                following.add(asyncio.create_task(self._upgrade(job, trigger, status)))
        while not self.world.stopping:
            await asyncio.sleep(rng.expovariate(1 / 3.0))
            if kernel.seconds > self.faults_s + 10.0:
                continue
            line = rng.choice(sorted(self.lines))
            job = self.lines[line]
            if job.status is not None:
                continue
            if rng.random() < 0.12:
                following.add(asyncio.create_task(self._roll_back(job)))
                continue
            kind = rng.choices(list(SnapshotType), (4, 3, 2, 2, 1))[0]
            if kind.ends_the_job:
                if line in self._busy:
                    continue
                self._busy.add(line)
            trigger = CheckpointTrigger(TriggerID.random(), kind)
            self.requests[trigger.trigger_id] = job, trigger, None
            self.world.count(f"requests {kind.value}")
            following.add(asyncio.create_task(self._follow(job, trigger)))

    async def _follow(self, job: Job, trigger: CheckpointTrigger) -> None:
        """Repeat a request until it has ended."""
        status: OperationStatus | None = None
        while True:
            if job.status is not None:
                status = job.archived.get(trigger.trigger_id)
                break
            master = job.master
            if master is not None:
                try:
                    status = await self.calls.ask(master.process, master.trigger, trigger)
                except CheckpointError as error:
                    status = OperationStatus(trigger.trigger_id, OperationState.FAILED, error=str(error))
                except (ActorError, GatewayError):
                    await asyncio.sleep(0.5)
                    continue
                assert status is not None
                self.requests[trigger.trigger_id] = job, trigger, status
                if status.state is not OperationState.IN_PROGRESS:
                    break
            await asyncio.sleep(0.4)
        if status is None:  # the job has ended, and its last JobMaster did not know the request
            there = SavepointWriter(job.graph, Configuration.from_dict(SETTINGS)).find(trigger)
            state = OperationState.COMPLETED if there else OperationState.FAILED
            status = OperationStatus(trigger.trigger_id, state, path=there, error="" if there else "the job has ended")
        self.requests[trigger.trigger_id] = job, trigger, status
        self._operation_ended(job, trigger, status)
        if trigger.type.ends_the_job:
            await self._upgrade(job, trigger, status)

    def _operation_ended(self, job: Job, trigger: CheckpointTrigger, status: OperationStatus) -> None:
        self.world.count(f"{trigger.type.value} {status.state.value}")
        self.world.kernel.trace("operation", trigger.type.value, status.state.value)
        if status.state is not OperationState.COMPLETED:
            self._check_failed(job, trigger, status)
            return
        if trigger.type.is_savepoint:
            if not status.path:
                self.world.fail("savepoints stay whole", f"a request has COMPLETED without a path: {status}")
            self.savepoints[status.path] = trigger.type.value
        elif status.checkpoint_id is not None and job.status is None:
            self.completed[job.id] = max(self.completed.get(job.id, 0), status.checkpoint_id)

    def _check_failed(self, job: Job, trigger: CheckpointTrigger, status: OperationStatus) -> None:
        """Check that no savepoint that was made is reported as failed; a stop may have failed all the same."""
        if not trigger.type.is_savepoint or trigger.type.ends_the_job:
            return
        place = Path(SavepointWriter(job.graph, Configuration.from_dict(SETTINGS)).place_of(trigger))
        with self._undisturbed():
            if place.is_dir() and not verify_savepoint(place):
                self.world.fail("a savepoint is made once", f"{place} is whole, and its request is {status}")

    async def _upgrade(self, job: Job, trigger: CheckpointTrigger, status: OperationStatus) -> None:
        """After a stop: start the successor, from its savepoint. A failed stop leaves the job running."""
        line, since = job.graph.name, self.world.kernel.seconds
        if status.state is not OperationState.COMPLETED:
            self._busy.discard(line)
            return
        while job.status is None:
            if self.world.kernel.seconds - since > GIVE_UP_S:
                self.world.fail("a stop ends its job", f"{line} still runs {GIVE_UP_S:g} s after {status}")
                return
            master = job.master
            if master is not None:  # the stop may be undone later, if a task was lost: then the job continues
                try:
                    now = await self.calls.ask(master.process, master.trigger, trigger)
                    if now.state is OperationState.FAILED:
                        self.world.count("stops undone")
                        self._busy.discard(line)
                        return
                except (ActorError, GatewayError, CheckpointError):
                    pass
            await asyncio.sleep(0.5)
        stops = [each for known, each, _ in self.requests.values() if known is job and each.type.ends_the_job]
        ends = [each for each in stops if (end := job.archived.get(each.trigger_id)) and end.state is _COMPLETED]
        if ends and trigger not in ends:
            self.world.count("stops undone")  # the one that has ended the job later looks after the line
            self._busy.discard(line)
            return
        expected = JobStatus.CANCELED if trigger.type is SnapshotType.SAVEPOINT_CANCEL else JobStatus.FINISHED
        if job.status is not expected and job.status is not JobStatus.FAILED:
            self.world.fail("a stop ends its job", f"{line} is {job.status.value} after a {trigger.type.value}")
        plan, rng = job.plans[0], self._random
        if self.lines[line] is job:
            moves = rng.random() < 0.4
            number = len(self.jobs)
            location = number if moves else int(plan.location.rpartition("live")[2])
            sink = number if moves and rng.random() < 0.5 else int(plan.sink.rpartition("out")[2])
            settings = SavepointRestoreSettings(status.path, new_query_id=rng.choice((None, False, True)))
            self._submit(line, self._plan(line, location, sink), settings)
        self._busy.discard(line)

    async def _roll_back(self, job: Job) -> None:
        """Roll a job back to its latest checkpoint, once."""
        trigger_id = TriggerID.random()
        numbers = self._stored(job)
        if not numbers:
            return
        target = f"chk-{max(numbers)}"
        while job.status is None:
            master = job.master
            try:
                assert master is not None
                await self.calls.ask(master.process, master.roll_back, trigger_id, target, False)
                self.world.count("rollbacks")
                return
            except CheckpointError:
                self.world.count("rollbacks refused")
                return
            except (ActorError, GatewayError):
                await asyncio.sleep(0.5)

    # ------------------------------------------------------------------- faults

    def plan(self, rng: random.Random) -> list[Fault]:
        hosts = [f"host{number}" for number in (1, 2, 3, 4)]
        faults = StreamingFaults(
            hosts=hosts,
            processes=[
                *("worker1", "worker2", "spark-worker1", "spark-worker2") * 3,
                *("task-line1", "task-line2") * 2,
                *("master1-0", "master2-0", "master1-1", "master2-1", "master1-2", "master2-2", "client"),
            ],
            weights={
                "kill": 2.0,
                "kill_at_effect": 5.0,
                "stall_at_effect": 3.0,
                "freeze": 3.0,
                "suspend": 0.5,
                "crash": 0.5,
                "partition": 1.5,
                "isolate": 0.7,
                "disk_full": 0.5,
                "disk_errors": 0.5,
                "redis_kill": 0.5,
                "redis_freeze": 1.0,
                "total_power_loss": 0.5,
                "query_fails": 2.0,
                "query_hangs": 1.0,
                "location_lost": 0.7,
                "driver_stopped": 0.5,
            },
            rate=1.5,
            until_s=self.faults_s,
            longest_s=15.0,
            disks=["shared"],
            all_hosts=[*hosts, "keeper1"],
        ).draw(rng)
        if rng.random() < 0.5:  # all at once: no attempt finds another host
            at, seconds = rng.uniform(5.0, self.faults_s - 25.0), round(rng.uniform(20.0, 30.0), 3)
            for name in ("worker1", "worker2"):
                faults.append(Fault(round(at + rng.random(), 6), "driver_stopped", (name, seconds)))
        for _ in range(rng.choice((0, 1, 2))):
            line, seconds = f"line{rng.randrange(1, LINES + 1)}", round(rng.uniform(1.0, 6.0), 3)
            faults.append(Fault(round(rng.uniform(5.0, self.faults_s), 6), "location_lost_in_store", (line, seconds)))
        for _ in range(rng.choice((0, 0, 1, 2))):
            line, seconds = f"line{rng.randrange(1, LINES + 1)}", round(rng.uniform(0.1, 2.0), 3)
            faults.append(Fault(round(rng.uniform(5.0, self.faults_s), 6), "state_damaged", (line, seconds)))
        return sorted(faults, key=lambda fault: fault.at_s)

    def begins(self, plan: list[Fault]) -> None:
        """Note the faults of a run: a removal whose sync fails may come back."""
        self._loses_syncs = any(fault.kind == "disk_errors" for fault in plan)

    def stop_driver(self, name: str, seconds: float) -> bool:
        """Stop a TaskExecutor's driver, and kill the TaskExecutor: the next attempt meets the lease of this one."""
        worker = self.workers.get(name)
        if worker is None or not worker.process.alive or not worker.driver.alive or worker.driver.process.frozen:
            return False
        driver = worker.driver.process
        driver.freeze()
        worker.process.kill()
        self.world.kernel.after(seconds, lambda: driver.thaw() if driver.alive else None)
        return True

    def not_fenced(self, text: str) -> None:
        """Note a former attempt that was left to itself."""
        self.world.fail("a former attempt is fenced", text)

    def power_loss(self, loss: str, seconds: float) -> bool:
        """End all processes of all hosts, and lose what the disk has not synced.

        Spark does not sync its checkpointLocation. So no job can start again by itself that has no checkpoint yet; then
        the power stays.
        """
        kernel, files = self.world.kernel, self.world.files
        assert files is not None
        if not all(self._stored(job) for job in self.lines.values() if job.status is None):
            return False
        down = [host for host in kernel.hosts.values() if host.up and host.name != "keeper1"]
        for host in down:
            host.crash()
        files.crashed(self.world.disks["shared"], Loss(loss))
        self._unread.update(self.lines)
        for line in self.lines:
            self._may_go_back(line)

        def boot() -> None:
            for host in down:
                if not host.up:
                    host.boot()
                    self.world.network.host_is_up(host)

        kernel.after(seconds, boot)
        return True

    def active_run(self, where: float) -> QueryRun | None:
        """Return a query that runs."""
        runs = [run for driver in self.drivers if driver.alive for run in driver.runs if run.is_active]
        return runs[int(where * len(runs))] if runs else None

    def location_lost(self, line: str) -> bool:
        """Lose a checkpointLocation, of a job that has a completed checkpoint; its processes end."""
        job = self.lines.get(line)
        if job is None or job.status is not None or not self._stored(job):
            return False
        place = Path(job.plans[0].location)
        workspace = place.with_name(f".{place.name}.restore")
        if not place.exists() or workspace.exists():
            return False
        self._kill_work(line)
        with self._undisturbed():
            shutil.rmtree(place)
            self.world.disks["shared"].sync(self._inode(place.parent), "")
        self._may_go_back(line)
        return True

    def _inode(self, path: Path) -> Any:
        assert self.world.files is not None
        return self.world.files.inode_of(str(path))

    # ------------------------------------------------------------------- checks

    def _handles(self, job: Job) -> dict[int, StateHandle]:
        """Return the handles of a job's checkpoints in Redis."""
        assert self.world.redis is not None
        data = self.world.redis.master.data
        key = ClusterKeys(CLUSTER).handles(f"checkpoints-{job.id}")
        return {int(name): StateHandle.from_json(text) for name, text in data._hash(key).items()}

    def _stored(self, job: Job) -> dict[int, CheckpointMetadata]:
        """Return the completed checkpoints of a job, as its next JobMaster would."""
        found = {}
        for number, handle in self._handles(job).items():
            data = (
                handle.decode()
                if handle.content is not None
                else (STORAGE / CLUSTER / f"checkpoints-{job.id}" / handle.path).read_bytes()
            )
            if not handle.describes(data):
                raise StateCorruptedError(f"checkpoint {number} of {job.graph.name} is not what was stored")
            found[number] = decode(data, CheckpointMetadata)
        return found

    def _check_pending(self) -> None:
        """Check that no checkpoint is in progress for long after its timeout, where its JobMaster runs."""
        for job in self.lines.values():
            master = job.master
            if job.status is not None or master is None or master.checkpoints is None or not master.process.may_run:
                continue
            now = master.process.time()
            for item in master.checkpoints._coordinator.pending:
                if not item.is_being_stored and now > item.triggered.monotonic_s + TIMEOUT_S + LATE_S:
                    self.world.fail("a checkpoint times out", f"{job.graph.name}: {item.checkpoint_id} is in progress")

    def check_often(self) -> None:
        kernel = self.world.kernel
        if kernel.seconds < self._next_check_s or self.world.failure is not None:
            return
        self._check_pending()
        self._next_check_s = kernel.seconds + CHECKS_S
        with self._undisturbed():
            for job in self.jobs:
                if not job.is_ending:
                    self._check_checkpoints(job)
            for job in self.lines.values():
                self._check_rows(job, complete=False)
            self._check_savepoints()

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Use files in a check, or lose some: without other faults, and without a trace."""
        files, disk = self.world.files, self.world.disks["shared"]
        assert files is not None
        before, files.before = files.before, None
        rates = dict(disk.error_rates)
        disk.error_rates.clear()
        try:
            yield
        finally:
            files.before = before
            disk.error_rates.update(rates)

    def _is_known_good(self, path: str) -> bool:
        """Return whether a directory was checked, and has lost no name since; its files never change."""
        try:
            inode = self._inode(Path(path))
        except FileNotFoundError:
            return False
        names = [name for name, _ in self.world.disks["shared"].walk(inode)]
        known = self.world.disks["shared"].crashes, names
        if self._checked.get(path) == known:
            return True
        self._checked[path] = known
        return False

    def _check_savepoints(self, *, again: bool = False) -> None:
        for path, kind in self.savepoints.items():
            if (again or not self._is_known_good(path)) and (problems := verify_savepoint(Path(path))):
                self.world.fail("savepoints stay whole", f"{kind} {path}: {problems[0]}")

    def _check_checkpoints(self, job: Job) -> None:
        try:
            stored = self._stored(job)
            for metadata in stored.values():
                for query in metadata.queries:
                    if not self._is_known_good(query.path):
                        check_snapshot(query)
        except (CheckpointError, StateCorruptedError, OSError) as error:
            self.world.fail("no handle dangles", f"{job.graph.name}: {error}")
            return
        latest = max(stored, default=0)
        self.world.count("checkpoints seen", 1 if stored else 0)
        if latest < self.completed.get(job.id, 0):
            self.world.fail(
                "a completed checkpoint stays",
                f"{job.graph.name} had checkpoint {self.completed[job.id]}, and the store has {sorted(stored)}",
            )
        rollback = None if job.master is None else job.master.execution.rollback
        bad = self._bad_states.get(job.graph.name)
        goes_back = bad is not None and bad.failures >= LOAD_FAILURES  # a restore of an earlier one may have begun
        is_abandoned = goes_back or latest <= self._abandoned.get(job.id, -1)  # then its rows are, too
        if stored and not is_abandoned and (rollback is None or latest > rollback.after):  # and after a rollback
            for query in stored[latest].queries:
                if query.sink is not None:
                    self._check_sink(job, query, Path(query.sink))

    def _check_sink(self, job: Job, query: QuerySnapshot, sink: Path) -> None:
        """Check that the sink has the files that a checkpoint names, unless all of an earlier look are there still."""
        key = self.world.disks["shared"].crashes, query.path
        try:
            now = self._inode(sink).entries
        except FileNotFoundError:
            now = {}
        known = self._held.get(job.id)
        if known is not None and known[0] == key and all(now.get(name) is one for name, one in known[1].items()):
            return
        try:
            check_sink(query, str(sink))
        except CheckpointError as error:
            self.world.fail("completed checkpoints are restorable", f"{job.graph.name}: {error}")
        self._held[job.id] = key, {name: one for name, one in now.items() if not one.is_directory}

    def _check_rows(self, job: Job, *, complete: bool) -> None:
        plan = job.plans[0]
        if plan.name in self._unread and not complete:
            return
        sink, place = Path(plan.sink), Path(plan.location)
        if (sink / "_understudy_restore").exists() or place.with_name(f".{place.name}.restore").exists():
            if complete:
                self.world.fail("it heals", f"a restore of {plan.name} is not finished")
            return
        if not complete and not (sink / "_spark_metadata").exists():
            return
        try:
            seen = read_sink(plan, self._rows_of)
        except QueryFailed as error:
            self.world.fail("rows exactly once", f"the sink of {plan.name} cannot be read: {error}")
            return
        problems = wrong_rows(plan, seen, self.sources[plan.name].available, complete=complete)
        if problems:
            self.world.fail("rows exactly once", "; ".join(problems))

    def _rows_of(self, path: Path) -> Rows | None:
        """Read a file of a sink, unless it is as it was at the last check."""
        try:
            inode = self._inode(path)
        except FileNotFoundError:
            return None
        state = self.world.disks["shared"].crashes, inode.mtime_ns, len(inode.data)
        known = self._rows.get(inode)
        if known is None or known[0] != state:
            known = self._rows[inode] = state, read_rows(path)
        return known[1]

    def check_healed(self) -> None:
        with self._undisturbed():
            self._check_healed()

    def _check_healed(self) -> None:
        self._check_savepoints(again=True)
        for trigger_id, (job, trigger, status) in self.requests.items():
            if status is None or status.state is OperationState.IN_PROGRESS:
                self.world.fail(
                    "an accepted request ends",
                    f"{trigger.type.value} {trigger_id} of {job.graph.name} ({job.status}) is {status}",
                )
        for job in self.lines.values():
            if job.status is not None:
                self.world.fail("it heals", f"{job.graph.name} is {job.status.value}: {job.failure}")
                return
            self._check_rows(job, complete=True)
            self._check_checkpoints(job)
            last_s = max((one.completed_ms / 1000 for one in self._stored(job).values()), default=0.0)
            if last_s < max((EPOCH_NS + self.world.kernel.now) / SECOND - RECENT_S, self._calm_from()):
                self.world.fail("checkpoints go on", f"{job.graph.name} has had none for {RECENT_S:g} s")
        for job in self.jobs:
            if job.status is not None:
                self._check_ended(job)
        self._check_parts()

    def _calm_from(self) -> float:
        """Return a time on each host's wall clock at which the faults are over."""
        return EPOCH_NS / SECOND + self.faults_s + CLOCKS_S

    def _check_ended(self, job: Job) -> None:
        if self._handles(job):
            self.world.fail("nothing is left", f"{job.graph.name} has ended, and has handles {self._handles(job)}")
        directory = Path(RUN, "checkpoints", job.id)
        if directory.exists():
            left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
            self.world.fail("nothing is left", f"{job.graph.name} has ended, and has left {left[:5]}")

    def _check_parts(self) -> None:
        """Check that nothing hidden is left, except what is known: see `LEAKS`."""
        living = {job.id for job in self.jobs if job.status is None}
        for path, _ in self.world.disks["shared"].walk():
            name = path.rpartition("/")[2]
            if name.endswith(".part") and path.startswith("run/savepoints/."):
                self.world.count("known: a part of a savepoint is left")
            elif name.endswith(".part") and not any(job_id in path for job_id in living):
                self.world.fail("nothing is left", f"a part of a snapshot: {path}")

    def stop(self) -> None:
        for process, stop in self._stops.items():
            if process.alive and process.loop is not None:
                process.loop.call_soon_threadsafe(stop.set)
        for process in self.world.kernel.processes:
            if process.alive and process.name == "client":
                process.kill()

    def check_stopped(self) -> None:
        for process in self.world.kernel.processes:
            if process.alive:
                self.world.fail("a stop ends", f"{process} still runs:\n" + "\n".join(process.waits()))


class StreamingFaults(FaultPlan):
    """Draws also the faults that only this workload has."""

    def _arguments(self, kind: str, rng: random.Random, left_s: float) -> tuple[Any, ...]:
        match kind:
            case "total_power_loss":
                return rng.choice([loss.value for loss in Loss]), round(0.5 + 3.0 * rng.random(), 3)
            case "query_fails":
                return (round(rng.random(), 6),)
            case "query_hangs":
                return round(rng.random(), 6), round(0.5 + 15.0 * rng.random() ** 2, 3)
            case "driver_stopped":
                return f"worker{rng.randrange(1, 3)}", round(min(rng.uniform(10.0, 40.0), left_s), 3)
            case "location_lost":
                return (f"line{rng.randrange(1, LINES + 1)}",)
        return super()._arguments(kind, rng, left_s)


def _workload(world: World) -> Streaming:
    found = world.kernel.devices["streaming"]
    assert isinstance(found, Streaming)
    return found


def _query_fails(world: World, where: float) -> bool:
    run = _workload(world).active_run(where)
    if run is None:
        return False
    run.fails = True
    return True


def _query_hangs(world: World, where: float, seconds: float) -> bool:
    run = _workload(world).active_run(where)
    if run is None:
        return False
    run.hangs_s = seconds
    return True


def _location_lost_in_store(world: World, line: str, seconds: float) -> bool:
    _workload(world).lose_location_in_store(line, seconds)
    return True


add_kinds(
    {
        "total_power_loss": lambda world, loss, seconds: _workload(world).power_loss(loss, seconds),
        "driver_stopped": lambda world, name, seconds: _workload(world).stop_driver(name, seconds),
        "query_fails": _query_fails,
        "query_hangs": _query_hangs,
        "location_lost": lambda world, line: _workload(world).location_lost(line),
        "location_lost_in_store": _location_lost_in_store,
        "job_cancelled": lambda world, line: _workload(world).cancel(line),
        "lost_at_savepoint": lambda world, what, seconds: _workload(world).lose_at_savepoint(what, seconds),
        "offsets_lost": lambda world, line: _workload(world).offsets_lost(line),
        "state_damaged": lambda world, line, seconds: _workload(world).damage_state(line, seconds),
    }
)


def _signals(kernel: Kernel) -> list[Patch]:
    """Let pidfds hold simulated processes of the caller's host, and carry SIGKILL to them."""
    if "streaming" not in kernel.devices:
        return []
    held: dict[int, SimProcess] = {}

    def pidfd_open(pid: int, flags: int = 0) -> int:
        caller = kernel.current
        assert caller is not None
        for process in kernel.processes:
            if process.alive and process.pid == pid and process.host is caller.host:
                descriptor = os.open(os.devnull, os.O_RDONLY)
                held[descriptor] = process
                return descriptor
        raise ProcessLookupError(f"no process {pid}")

    def pidfd_send_signal(descriptor: int, number: int, *_: Any) -> None:
        assert kernel.current is not None
        kernel.current.effect()
        if not held[descriptor].alive:
            raise ProcessLookupError("the process has ended")
        held[descriptor].kill()

    return [(os, "pidfd_open", pidfd_open), (signal, "pidfd_send_signal", pidfd_send_signal)]


add_patches(_signals)
