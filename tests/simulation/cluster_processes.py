"""Stand-ins of Thespian, redis-server, Java and a TaskExecutor, for the real entry points of masters and workers.

Real are `runtime.cluster` (master, supervisor, worker, host, session, roles), `runtime.environment`, the Dispatcher,
the ResourceManager, the JobMasters, the BlobServer, `ProcessActorSystem`, and `EmbeddedRedis`. They run as processes of
`tests.simulation.processes`. Stand-ins, which behave like the originals in what others see of their processes:

- `Thespian`: an admin that is forked from the process, and forks one for each actor, which runs `HostActor`'s code.
- `redis_server`: a process on a Unix socket, around the model of Redis.
- `Driver`: a JVM that takes seconds to start, dies with its worker, and ends some time after SIGTERM.
- `TaskExecutor`: registers, sends heartbeats, has slots, and dies with its JVM. It runs no tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis.exceptions as redis_errors

import actors.process.logs
import actors.process.system as process_system
import runtime
import runtime.cluster.entrypoint
import runtime.cluster.preflight
import runtime.cluster.worker
import runtime.ha.redis_process as redis_process
import runtime.jobmaster.endpoint
import runtime.metrics.registry
import runtime.taskexecutor.endpoint as task_executor_endpoint
from actors.process.host import HostActor, HostReady, HostSpec, HostStarted, _failure
from actors.receptionist import receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from conf.options import ClusterOptions, HeartbeatOptions
from runtime.cluster.supervisor import terminate
from runtime.environment.context import ComponentContext, wait_for_process
from runtime.environment.shared_directory import shared_directory_mark
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import (
    LeaderAddress,
    RegistrationSuccess,
    TaskExecutorHeartbeat,
    TaskExecutorRegistration,
)
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.spark.driver.api import DriverInfo, info_file
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import DriverStartError
from runtime.taskexecutor.connections import ResourceManagerConnection
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.worker_files import RegistrationState
from tests.bench.scale.stubs import refuses_the_rest
from tests.simulation.kernel import Kernel, SimThread, installed_kernel
from tests.simulation.network import SimSocket
from tests.simulation.patches import Patch, add_patches
from tests.simulation.processes import Entry, System, _system
from tests.simulation.redis import RedisDeployment

STOP_DEADLINE_S = 10.0
REACH_S = 35.0
"""Seconds for which Thespian tries to reach an admin that does not answer."""


def sleep_in_thread(reason: str, until: Callable[[], bool], deadline: int | None = None, wake: Any = None) -> bool:
    """Block the simulated thread until a condition holds, which something tells by *wake*."""
    thread = _thread()
    while not until():
        if wake is not None:
            wake.append(thread)
        if not thread.park(reason, deadline):
            return until()
    return True


def _thread() -> SimThread:
    thread = installed_kernel().thread
    assert thread is not None
    return thread


def wait_for_ever() -> None:
    """Block the simulated thread until its process ends."""
    sleep_in_thread("its end", lambda: False)


# ------------------------------------------------------------------ Thespian


class Host:
    """An actor's process, and what was sent to it."""

    def __init__(self, owner: Thespian) -> None:
        self.owner = owner
        self.entry: Entry | None = None
        self.inbox: deque[Any] = deque()
        self.wake: Callable[[], object] | None = None

    def take(self, message: Any) -> None:
        """Receive a message."""
        self.inbox.append(message)
        if self.wake is not None and self.entry is not None and self.entry.is_running:
            self.wake()

    def run(self) -> None:
        """Run the process."""
        system = _system()
        _thread().sleep((0.01 + 0.05 * system.random.random()) * system.slow.get(_thread().process.host.name, 1.0))
        name = "actor"
        if system.failing.get(name, 0) > 0:
            system.failing[name] -= 1
            system.kernel.trace("fails to start", name)
            raise SystemExit(1)
        try:
            asyncio.run(self._live())
        finally:
            self.wake = None

    async def _live(self) -> None:
        loop, process = asyncio.get_running_loop(), _thread().process
        arrived = asyncio.Event()
        self.wake = lambda: None if loop.is_closed() else loop.call_soon_threadsafe(arrived.set)
        actor = HostActor()
        actor._embedded = None
        while True:
            while not self.inbox:
                arrived.clear()
                await arrived.wait()
            message = self.inbox.popleft()
            if isinstance(message, HostSpec):
                process.name = message.name
                await self._order(message, actor._start_endpoint(message, loop))
            elif message is _EXIT:
                actor._stopping = True
                if actor._service is not None:
                    with contextlib.suppress(TimeoutError):  # its process ends all the same
                        await asyncio.wait_for(actor._service.close(), STOP_DEADLINE_S)
                return
            else:
                process.name = "spare"
                await self._order(message, actor._make_ready(message, loop))

    async def _order(self, order: Any, work: Any) -> None:
        answer: Any
        try:
            answer = await work
        except Exception as error:
            answer = _failure(order, error)
        self.owner.send_back(HostReady(order.nonce, os.getpid()) if answer is None else answer)


_EXIT = object()


class Thespian:
    """Stands for Thespian's `ActorSystem` and its system base: one admin, and the processes that it forks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.system = _system()
        self.kernel = self.system.kernel
        self.owner = self.system.entry()
        self.hosts: list[Host] = []
        self._answers: deque[HostStarted | HostReady | Any] = deque()
        self._waiting: list[SimThread] = []
        self._stopping = False
        self._admin_waits: list[SimThread] = []
        self._posted: list[tuple[Host, Any]] = []
        _thread().sleep(0.01 + 0.02 * self.system.random.random())
        self.admin = self.system.fork("admin", self._administer)
        self.admin.dies_with_parent = self.admin.reaps = True

    def _administer(self) -> None:
        sleep_in_thread("an order to stop", lambda: self._stopping, wake=self._admin_waits)
        for host in self.hosts:
            self._send(host, _EXIT)
        while any(host.entry is not None and host.entry.is_running for host in self.hosts):
            _thread().sleep(0.05)

    def _reach(self) -> None:
        """Wait until the admin answers."""
        deadline = self.kernel.now + int(REACH_S * 1e9)
        while self.admin.is_running and self.admin.sim.frozen and self.kernel.now < deadline:
            _thread().sleep(0.05)
        if not self.admin.is_running or self.admin.sim.frozen:
            raise RuntimeError("no admin")

    def createActor(self, name: str) -> Host:  # noqa: N802  # Thespian's name
        """Have the admin fork a process."""
        _thread().sleep(0.002 + 0.01 * self.system.random.random())
        self._reach()
        host = Host(self)
        entry = host.entry = self.system.fork("actor", host.run, self.admin, plain=False)
        entry.dies_with_parent = True
        self.hosts.append(host)
        return host

    def _send(self, host: Host, message: Any) -> None:
        thread = self.kernel.thread
        if thread is not None:
            thread.process.effect()
        self.kernel.after(0.0005 + 0.002 * self.system.random.random(), host.take, message)

    def send_back(self, answer: Any) -> None:
        """Send an answer of an actor to the process that has started it."""
        _thread().process.effect()
        self.kernel.after(0.0005 + 0.002 * self.system.random.random(), self._take, answer)

    def _take(self, answer: Any) -> None:
        if self.owner.is_running:
            self._answers.append(answer)
            waiting, self._waiting[:] = list(self._waiting), []
            for thread in waiting:
                thread.unpark()

    def ask(self, host: Host, message: Any, timeout: timedelta) -> Any:
        """Send a message, and return the next answer of any actor."""
        self._send(host, message)
        return self.listen(timeout)

    def listen(self, timeout: timedelta) -> Any:
        """Return the next answer of any actor; None after some time."""
        deadline = self.kernel.now + int(timeout.total_seconds() * 1e9)
        sleep_in_thread("an answer of an actor", lambda: bool(self._answers), deadline, self._waiting)
        return self._answers.popleft() if self._answers else None

    def post(self, host: Host, _message: Any) -> None:
        """Queue an exit request, as the system base does."""
        self._posted.append((host, _EXIT))

    def transmit(self, seconds: float) -> bool:
        """Send what is queued; return whether all was taken."""
        stuck = []
        for host, message in self._posted:
            entry = host.entry
            if entry is not None and entry.is_running and entry.sim.frozen:
                stuck.append((host, message))
            else:
                self._send(host, message)
        self._posted = stuck
        if stuck:
            _thread().sleep(seconds)
        return not stuck

    def shutdown(self) -> None:
        """Have the admin stop all actors and end."""
        self._stopping = True
        for thread in self._admin_waits:
            self.kernel.after(0.001, thread.unpark)
        deadline = self.kernel.now + int(5e9)
        while self.admin.is_running and self.kernel.now < deadline:
            _thread().sleep(0.02)


def _new_base(*_: Any) -> Thespian:
    return Thespian()


def _system_of(systemBase: Thespian, **_: Any) -> Thespian:  # noqa: N803  # Thespian's name
    return systemBase


def _become_subreaper() -> None:
    _system().entry().is_subreaper = True


# ------------------------------------------------------------------ redis-server


def redis_server(deployment: RedisDeployment) -> Callable[[list[str]], int]:
    """Return the program of an embedded redis-server, whose data are those of *deployment*."""

    def serve(arguments: list[str]) -> int:
        thread = _thread()
        process, server = thread.process, deployment.master
        values = {}
        for line in Path(arguments[1]).read_text().splitlines():
            name, _, value = line.partition(" ")
            values[name] = value.strip('"')
        Path(values["unixsocket"]).unlink(missing_ok=True)  # as redis-server does
        listener = SimSocket(family=1)
        try:
            listener.bind(values["unixsocket"])
        except OSError:  # the disk is full
            return 1
        thread.sleep(0.02 + 0.2 * deployment.kernel.random("redis start").random())
        listener.listen()
        server.start()
        process.local["on_freeze"] = lambda frozen: server.freeze() if frozen else server.thaw()
        process.on_end.append(lambda silent: server.kill())
        try:
            descriptor = os.open(values["pidfile"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            os.close(descriptor)
        except OSError:  # the disk is full
            return 1
        wait_for_ever()
        return 0

    return serve


class BlockingRedis:
    """The part of redis-py's blocking client that `EmbeddedRedis` uses."""

    def __init__(self, *, unix_socket_path: str, password: str | None, socket_timeout: float, **_: Any) -> None:
        self._path, self._password, self._timeout = unix_socket_path, password, socket_timeout

    def __enter__(self) -> BlockingRedis:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _server(self) -> Entry:
        kernel, thread = installed_kernel(), _thread()
        thread.sleep(0.0005)
        network = kernel.devices["network"]
        listener = network.listeners.get((thread.process.host.name, self._path))
        system = _system()
        assert system.files is not None
        try:
            system.files.inode_of(self._path)
        except OSError as error:
            raise redis_errors.ConnectionError(str(error)) from None
        if listener is None:
            raise redis_errors.ConnectionError("Connection refused")
        entry = system.entry(listener.process)
        deadline = kernel.now + int(self._timeout * 1e9)
        while entry.is_running and entry.sim.frozen:
            if kernel.now > deadline:
                raise redis_errors.TimeoutError("Timeout reading from socket")
            thread.sleep(0.01)
        if not entry.is_running:
            raise redis_errors.ConnectionError("Connection closed by server.")
        return entry

    def ping(self) -> bool:
        """Check that the server answers."""
        self._server()
        if self._password is None:
            raise redis_errors.AuthenticationError("NOAUTH")
        return True

    def shutdown(self, nosave: bool = False) -> None:
        """Have the server end."""
        entry = self._server()
        _thread().process.effect()
        kernel = installed_kernel()
        kernel.after(0.01 + 0.1 * kernel.random("redis stop").random(), self._end, entry)

    @staticmethod
    def _end(entry: Entry) -> None:
        if entry.is_running:
            entry.sim.end(0)


class _RedisModule:
    """Stands for the module ``redis`` in `runtime.ha.redis_process`."""

    Redis = BlockingRedis
    AuthenticationError = redis_errors.AuthenticationError
    ConnectionError = redis_errors.ConnectionError
    TimeoutError = redis_errors.TimeoutError
    ResponseError = redis_errors.ResponseError
    RedisError = redis_errors.RedisError


# ------------------------------------------------------------------ Spark


def java(arguments: list[str]) -> int:
    """Run as a driver JVM: take seconds to start, write a file, and wait."""
    system = _system()
    _thread().sleep(0.3 + 1.2 * system.random.random() ** 2)
    directory = Path(arguments[-1])
    try:
        os.close(os.open(directory / f"started-{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:  # the disk is full
        return 1
    wait_for_ever()
    return 0


class Driver:
    """Stands for `LocalDriver`."""

    def __init__(self, info: DriverInfo, process: subprocess.Popen[bytes]) -> None:
        self.info = info
        self._process = process

    @classmethod
    async def start(cls, options: tuple[Any, Path, Path], *, alone: bool = False) -> Driver:
        """Start a JVM."""
        _, directory, log_file = options
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        index = directory.parent.name
        process = subprocess.Popen(["java", index, str(directory)], env=dict(os.environ))  # noqa: ASYNC220
        process._entry.dies_with_parent = True  # type: ignore[attr-defined]
        started = directory / f"started-{process.pid}"
        try:
            while not started.exists():
                if process.poll() is not None:
                    raise DriverStartError(f"the Spark driver's JVM ended with status {process.returncode}")
                await asyncio.sleep(0.05)
            started.unlink()
            info = DriverInfo(process.pid, 0, "4.1.0", "local[2]", str(directory), str(log_file))
            info.write()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return cls(info, process)

    @property
    def alive(self) -> bool:
        """Return whether it runs."""
        return self._process.poll() is None

    async def ping(self) -> bool:
        """Return whether it answers."""
        while self._process._entry.sim.frozen:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return self.alive

    async def stop(self, timeout: float = 10.0) -> None:
        """End it."""
        if self._process.poll() is None:
            await terminate(self.info.pid, timeout)
            self._process.poll()


METRICS = TaskManagerMetrics(60_000_000, 1.5, 12, 40, 900_000_000, 20.0, 0)


@refuses_the_rest
class StandIn(RpcEndpoint, TaskExecutorGateway):
    """A TaskExecutor without tasks: it registers, sends heartbeats, and dies with its JVM."""

    def __init__(self, service: RpcService, name: str, context: ComponentContext, ha: Any, directory: Path) -> None:
        super().__init__(service, name)
        self.resource_id = ResourceID(name)
        self._context = context
        self._ha = ha
        self._driver = DriverInfo.read(info_file(directory / "spark"))
        self.slots = TaskSlotTable(self.resource_id, 1)
        self._stopping = False
        silence_s = context.configuration.get(HeartbeatOptions.TIMEOUT)
        self._resource_manager = ResourceManagerConnection(
            self, ha, self.slots, lambda: self.registration, silence_s, self._registered, RegistrationState(directory)
        )
        self._receptionist = receptionist_of(service, context.system)

    @property
    def registration(self) -> TaskExecutorRegistration:
        """Registration that it sends."""
        get = self._context.configuration.get
        return TaskExecutorRegistration(
            resource_id=self.resource_id,
            address=str(self.address),
            pid=os.getpid(),
            slots=len(self.slots.report().slots),
            spark_version="4.1.0",
            java_version="21",
            spark_master="local[2]",
            spark_pid=self._driver.pid,
            memory_bytes=1 << 30,
            version=runtime.__version__,
            shared_directory=shared_directory_mark(get(ClusterOptions.SHARED_DIR), get(ClusterOptions.ID)),
        )

    def _registered(self, _success: RegistrationSuccess) -> None:
        installed_kernel().trace("registered", self.resource_id)

    async def on_start(self) -> None:
        await self._resource_manager.start()
        self.spawn(self._die_with_driver(), "watching the Spark driver")

    async def _die_with_driver(self) -> None:
        await wait_for_process(self._driver.pid)
        if not self._stopping:
            os.kill(os.getpid(), signal.SIGKILL)

    async def on_stop(self) -> None:
        self._stopping = True
        await self._resource_manager.stop()
        await self._ha.close()

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> TaskExecutorHeartbeat:
        self._resource_manager.heard()
        return TaskExecutorHeartbeat(self.slots.report(), METRICS)

    @rpc_sync
    def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
        owner: str | None = None,
    ) -> None:
        self.slots.allocate(slot_id, job_id, allocation_id, owner)


async def create_stand_in(
    service: RpcService, name: str, *, runtime_dir: str, system: str, directory: str, **_: Any
) -> StandIn:
    """Factory for the actor's host."""
    context = ComponentContext.read(runtime_dir, system)
    return StandIn(service, name, context, await context.ha_services(service), Path(directory))


# ------------------------------------------------------------------ patches


class _Prepared:
    """`runtime.jobmaster.endpoint._prepared`: what each process has prepared for its own JobMaster."""

    @staticmethod
    def _mine() -> list[Any]:
        mine: list[Any] = _thread().process.local.setdefault("prepared", [])
        return mine

    def append(self, prepared: Any) -> None:
        self._mine().append(prepared)

    def pop(self) -> Any:
        return self._mine().pop()

    def __len__(self) -> int:
        return len(self._mine())


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _patches(kernel: Kernel) -> list[Patch]:
    if "cluster processes" not in kernel.devices:
        return []
    return [
        (process_system, "HardenedSystemBase", _new_base),
        (process_system, "ActorSystem", _system_of),
        (process_system, "harden", _nothing),
        (process_system, "become_subreaper", _become_subreaper),
        (redis_process, "redis", _RedisModule),
        (redis_process, "find_redis_server", lambda option=None: Path("/usr/bin/redis-server")),
        (LocalDriver, "start", Driver.start),
        (runtime.jobmaster.endpoint, "_prepared", _Prepared()),
        (runtime.cluster.worker, "driver_options", lambda *values: values),
        (task_executor_endpoint, "create", create_stand_in),
        (runtime.cluster.preflight, "start_checks", lambda *_, **__: []),
        (runtime.cluster.entrypoint, "preload", _nothing),
        (actors.process.logs, "configure_logging", _nothing),
        (runtime.metrics.registry, "add_process_metrics", _nothing),
    ]


def use(system: System) -> None:
    """Have the real entry points of a simulation find these stand-ins."""
    system.kernel.devices["cluster processes"] = system
    system.programs["java"] = java
    add_patches(_patches)
