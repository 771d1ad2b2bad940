"""Workload ``blobs``: the real BlobServers with their stores, clients, caches, offloaded messages, and leaders.

Clients create jobs, upload blobs, read them, and lose interest; worker processes read through caches, from several
threads; two processes exchange RPC messages larger than a frame. Leaders take jobs, end them, clean up after them, and
sweep what they do not know; former leaders go on with what they know. There are two kinds of clusters, by seed:

- ``alone``: one server, whose blobs are only in its directory; all leaders command it.
- ``shared``: each leader has a server beside it, and all servers have one store, on a disk of its own.

The sizes at which the product's code changes its ways (contents within a request, uploads that may resume, hashing in
a thread) are divided by 64 here, and with them the buffers. So all ways are taken, at a 64th of the cost.

When the faults are over, the clients read everything that should be there, then all jobs end, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import functools
import io
import logging
import random
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import blob.channel
import blob.client
import blob.connection
import blob.files
import blob.hashing
import blob.limits
import blob.protocol
import blob.uploads
import conf.files
from actors.address import ActorAddress
from actors.errors import ActorError, FencingError
from actors.rpc.config import RpcConfig
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, FencingToken, RpcGateway, rpc
from actors.rpc.service import RpcService
from blob.cache import BlobCache
from blob.client import BlobClient
from blob.contents import BlobContents
from blob.endpoint import BlobServerEndpoint
from blob.errors import (
    BlobAuthenticationError,
    BlobConnectionTampered,
    BlobError,
    BlobNotFound,
    BlobProtocolError,
    BlobRequestRefused,
    BlobServerError,
    DigestMismatch,
    QuotaExceeded,
)
from blob.file_store import FileSystemBlobStore
from blob.gateway import NAME, PATH, BlobServerGateway
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.rpc_offload import BlobOffloader
from blob.server import BlobServer
from blob.settings import BlobServerOptions
from blob.store import BlobStore, VoidBlobStore
from tests.simulation import faults as all_faults
from tests.simulation import network as networks
from tests.simulation.blob_checks import Blob, BlobHistory, Job, Outcome
from tests.simulation.disk import ROOT, Disk, _RawFile
from tests.simulation.faults import Fault, FaultPlan
from tests.simulation.kernel import SECOND, Kernel, ProcessKilled, SimProcess, installed_kernel
from tests.simulation.patches import Patch, add_patches
from tests.simulation.splice import Splice
from tests.simulation.world import CHECK_EVERY_S, World

logger = logging.getLogger(__name__)
T = TypeVar("T")

SECRET = b"s" * 32
CONTROL, BULK, ECHO = 7000, 7001, 7002
SCALE = 64
MASTERS, CLIENTS, WORKERS = ("m1", "m2"), ("c1", "c2"), ("w1", "w2")
TRANSIENT_TTL_S = 15.0
ORPHAN_AGE_S = 30.0
MAX_BYTES = (800_000, 2_000_000, 2_000_000)
"""The quota of a server is one of these, by seed."""
MAX_BYTES_PER_JOB = 700_000
CACHE_BYTES = 500_000
LARGEST = 260_000
FRAME_SIZE = 16 * 1024
CONNECTIONS = 6
RESUME_S = 8.0
CLEANUP_S = 2.0
LATE_S = 10.0
"""Seconds in which a server, while it runs, has cleaned up what is over; its disk may be slow."""

NEVER = (BlobAuthenticationError, BlobConnectionTampered, BlobProtocolError, BlobRequestRefused)
"""Errors that no fault explains."""

VERIFY_AFTER_S, END_AFTER_S = 45.0, 65.0
"""When the clients verify, and when all jobs end, after the last fault."""


@dataclass(eq=False)
class Term:
    """A leadership: granted once, to one process."""

    epoch: int
    process: SimProcess

    @property
    def token(self) -> FencingToken:
        """What fences its calls."""
        return FencingToken(self.epoch, f"session-{self.epoch}")


# ------------------------------------------------------------------ scaled constants


class ProcessSemaphore:
    """A semaphore of which each simulated process has its own."""

    def __init__(self, count: int) -> None:
        self._count = count

    def acquire(self, blocking: bool = True) -> bool:
        """Take one, if one is free; it is never waited for."""
        local = _here().local
        free = local.setdefault("hashers", self._count)
        local["hashers"] = max(free - 1, 0)
        return bool(free)

    def release(self) -> None:
        """Give one back."""
        _here().local["hashers"] += 1


def _patches(kernel: Kernel) -> list[Patch]:
    if "blobs" not in kernel.devices:
        return []
    scaled = [
        (blob.protocol, "INLINE_CONTENT"),
        (blob.uploads, "PARKED_FROM"),
        (blob.hashing, "CHUNK"),
        (blob.hashing, "THREADED_FROM"),
        (blob.hashing, "STEP"),
        (blob.channel, "SENDFILE_CHUNK"),
        (blob.channel, "MINIMUM_RATE"),
        (blob.files, "WRITE_BEHIND"),
    ]
    patches: list[Patch] = [(module, name, getattr(module, name) // SCALE) for module, name in scaled]
    patches += [
        (blob.files, "PIPE_SIZE", blob.files.PIPE_SIZE // SCALE),
        (blob.hashing, "_threads", ProcessSemaphore(2)),
        (networks, "WINDOW", 16 * 1024),
        (concurrent.futures.thread, "_threads_queues", weakref.WeakKeyDictionary()),
    ]
    if hasattr(conf.files, "_remembered"):
        patches.append((conf.files, "_remembered", set()))
    regular_file, reserve = blob.client._regular_file, blob.limits.StorageBudget.reserve
    download = BlobClient._download

    def watched_reserve(self: blob.limits.StorageBudget, job_id: str | None, size: int, free: int) -> None:
        reserve(self, job_id, size, free)
        kernel.devices["blobs"].admitted(self, job_id)

    def watched_download(self: BlobClient, key: Any, *args: Any, verify: bool) -> bool:
        is_right = download(self, key, *args, verify=verify)
        if not is_right:
            kernel.devices["blobs"].arrived_damaged(key)
        return is_right

    def simulated_file(source: Any) -> int | None:
        raw = getattr(source, "raw", source)
        return raw.fileno() if isinstance(raw, _RawFile) else regular_file(source)

    patches += [
        (blob.client, "_regular_file", simulated_file),
        (blob.limits.StorageBudget, "reserve", watched_reserve),
        (BlobClient, "_download", watched_download),
        (tempfile, "gettempdir", lambda: f"{ROOT}/{_here().host.name}"),
        (tempfile, "_O_TMPFILE_WORKS", False),
    ]
    return patches


class _Unforeseen(logging.Filter):
    """Fails the run when a server's thread meets an error that it did not foresee, or that no fault explains."""

    def filter(self, record: logging.LogRecord) -> bool:
        workload = None
        with contextlib.suppress(Exception):
            workload = installed_kernel().devices.get("blobs")
        if workload is None or workload.world.kernel.closed:
            return True
        fail = workload.world.fail
        # A disk may fail anywhere; everything else is a defect.
        if record.exc_info and not isinstance(error := record.exc_info[1], OSError):
            fail("no unforeseen error", f"{record.getMessage()}: {error!r}")
        if isinstance(record.args, tuple) and any(isinstance(argument, NEVER) for argument in record.args):
            fail("no request is misunderstood", record.getMessage())
        return True


_unforeseen = _Unforeseen()


# ------------------------------------------------------------------ parts


class Echo(RpcGateway):
    """Answers with what it gets, reversed."""

    def reverse(self, data: bytes) -> Ask[bytes]:
        """Return *data*, reversed."""
        raise NotImplementedError


class EchoEndpoint(RpcEndpoint, Echo):
    """See `Echo`."""

    @rpc
    async def reverse(self, data: bytes) -> bytes:
        return data[::-1]


class WatchedClient(BlobClient):
    """A client of a cache, which tells the history of its downloads."""

    def __init__(self, history: BlobHistory, cache: str, address: Callable[[], tuple[str, int]]) -> None:
        super().__init__(address, SECRET, timeout=4.0, patience=12.0, retries=3, backoff=0.05)
        self._history, self._cache = history, cache

    def download(self, key: Any, descriptor: int, job_id: str | None = None, *args: Any, **options: Any) -> None:
        """Download; see `BlobClient.download`."""
        entry = f"{job_id}/{key}"
        self._history.download_began(self._cache, entry)
        try:
            super().download(key, descriptor, job_id, *args, **options)
        finally:
            self._history.download_ended(self._cache, entry)


class _Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        return self._data.readinto(memoryview(buffer)[:3000])


class Blobs:
    """See the module."""

    name: ClassVar[str] = "blobs"
    faults_s: float = 50.0
    calm_s: float = 115.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = kernel = world.kernel
        self.kind = kernel.random("kind").choice(("alone", "shared"))
        self.has_store = self.kind == "shared"
        self.history = BlobHistory(
            world.fail, int(ORPHAN_AGE_S * SECOND), int(TRANSIENT_TTL_S * SECOND), has_store=self.has_store
        )
        self.limited_caches = kernel.random("kind").random() < 0.5
        self.max_bytes = kernel.random("kind").choice(MAX_BYTES)
        self.servers: dict[SimProcess, BlobServer] = {}
        self.caches: dict[SimProcess, BlobCache] = {}
        self.terms: list[Term] = []
        self.transient: list[Blob] = []
        self.verified: dict[str, float] = {}
        self.requests: dict[int, tuple[str, str, float]] = {}
        self.echoed_s = 0.0
        self._stops: dict[SimProcess, asyncio.Event] = {}
        self._overdue: dict[tuple[SimProcess, object], float] = {}
        """Seconds for which each process has run since something of it should have ended."""
        self._request_numbers = 0
        self._job_numbers = 0
        self.splice = Splice(kernel, blob.files.PIPE_SIZE // SCALE)
        kernel.devices["blobs"] = self
        add_patches(_patches)
        logging.getLogger("blob.connection").addFilter(_unforeseen)

    # ------------------------------------------------------------------ building

    def disks(self) -> None:
        for name in (*MASTERS, *CLIENTS, *WORKERS, "store"):
            self.world.add_disk(name)

    def build(self) -> None:
        world, kernel = self.world, self.kernel
        assert world.files is not None
        self.splice.files, world.files.send_to = world.files, self.splice.send
        world.switch_rate = kernel.random("kind").choice((0.0, 0.05, 0.3))
        rng = kernel.random("clocks")
        for name in (*MASTERS, *CLIENTS, *WORKERS):
            kernel.add_host(name, drift=rng.uniform(-0.005, 0.005), wall_offset_s=rng.uniform(-600.0, 600.0))
        for name, host in kernel.hosts.items():
            host.on_crash.append(functools.partial(self._lost_power, name))
        for name in self.server_hosts:
            self._start(name, f"server-{name}", self._serve, name)
        for name in MASTERS:
            self._start(name, f"leader-{name}", self._lead, name)
        for name in CLIENTS:
            for number in (1, 2):
                self._start(name, f"client-{name}-{number}", self._client, name)
        for name in WORKERS:
            self._start(name, f"worker-{name}", self._work, name)
        self._start("w1", "echo", self._echo)
        self._start("c1", "caller", self._call_echo)
        kernel.after(kernel.random("kind").choice((0.2, 2.5)), self._grant)

    @property
    def server_hosts(self) -> tuple[str, ...]:
        """Names of the hosts with a server."""
        return MASTERS if self.has_store else MASTERS[:1]

    def _start(self, host_name: str, name: str, main: Callable[..., Any], *args: Any) -> None:
        host = self.kernel.hosts[host_name]

        def start() -> SimProcess | None:
            if not host.up:
                return None
            return host.start(name, main, *args)

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    def _lost_power(self, name: str) -> None:
        assert self.world.files is not None
        self.history.crashed(name, self.kernel.now)
        self.world.files.crashed(self.world.disks[name])

    # ------------------------------------------------------------------ servers

    async def _serve(self, host_name: str) -> None:
        process, host = _here(), _here().host
        loop = asyncio.get_running_loop()
        store: BlobStore = FileSystemBlobStore(Path(ROOT) / "store" / "blobs") if self.has_store else VoidBlobStore()
        options = BlobServerOptions(
            max_connections=CONNECTIONS,
            timeout=4.0,
            transient_ttl=TRANSIENT_TTL_S,
            cleanup_interval=CLEANUP_S,
            max_bytes=self.max_bytes,
            max_bytes_per_job=MAX_BYTES_PER_JOB,
            disk_reserve=0,
            orphan_age=ORPHAN_AGE_S,
            resume_window=RESUME_S,
        )
        directory = Path(ROOT) / host_name / "blob"
        server = BlobServer(directory, SECRET, host=host.address, port=BULK, store=store, options=options)
        service = RpcService(loop, SECRET, RpcConfig(bind_host=host.address, port=CONTROL))
        try:
            await service.listen()
            await service.start_server(BlobServerEndpoint(service, NAME, server))
        except (OSError, BlobError, ActorError) as error:
            logger.warning("%s does not start: %s", process.name, error)
            process.end(1)
            raise ProcessKilled(1) from error
        self.servers[process] = server
        process.on_end.append(lambda silent: self.servers.pop(process, None))
        await self._stopped()
        await service.close()

    def address(self) -> tuple[str, int]:
        """Return where the present leader's server is."""
        host = self.terms[-1].process.host.name if self.has_store and self.terms else MASTERS[0]
        return self.kernel.hosts[host].address, BULK

    def server_name(self) -> str:
        """Return the host name of the present leader's server."""
        return self.terms[-1].process.host.name if self.has_store and self.terms else MASTERS[0]

    # ------------------------------------------------------------------ leaders

    def _grant(self) -> None:
        """Grant the leadership to a living process."""
        rng, kernel = self.world.random, self.kernel
        in_faults = kernel.seconds < self.faults_s
        living = [process for name in MASTERS if (process := self.world.find(f"leader-{name}")) is not None]
        if living and (in_faults or not self.terms or not self.terms[-1].process.alive):
            process = rng.choice(living)
            term = Term(len(self.terms) + 1, process)
            self.terms.append(term)
            # A leader learns of its leadership after a while, and of its end by its loss only.
            kernel.after(rng.random() * 0.5, process.local.__setitem__, "term", term)
            kernel.trace("granted", term.epoch, process.name)
        if not self.world.stopping:
            kernel.after(rng.uniform(2.0, 12.0) if in_faults else 2.0, self._grant)

    def _leads(self, term: Term) -> bool:
        return term is self.terms[-1]

    async def _lead(self, host_name: str) -> None:
        process, rng = _here(), _random()
        service = RpcService(
            asyncio.get_running_loop(), SECRET, RpcConfig(bind_host=process.host.address, ask_timeout_s=8.0)
        )
        leader = Leader(self, host_name, service, rng)
        stopping = asyncio.ensure_future(self._stopped())
        while not stopping.done():
            await asyncio.wait([stopping], timeout=rng.random() * 1.5)
            term = process.local.get("term")
            if term is not None and not stopping.done():
                await leader.act(term)
        await service.close()

    # ------------------------------------------------------------------ clients

    def _client(self, host_name: str) -> None:
        Client(self, host_name, _random()).run()

    @contextlib.contextmanager
    def request(self, what: str) -> Iterator[None]:
        """Count a request that has been begun, until it ends."""
        self._request_numbers += 1
        number = self._request_numbers
        process = _here()
        self.requests[number] = (process.name, what, self.kernel.seconds)
        try:
            yield
        finally:
            if process.alive:
                self.world.count(f"requests {what}")
            self.requests.pop(number, None)

    def new_job(self) -> Job:
        """Return a new job."""
        self._job_numbers += 1
        return self.history.opened(f"{self._job_numbers:032x}", self.kernel.now)

    def live_jobs(self) -> list[Job]:
        """Return the jobs that run."""
        return [job for job in self.history.jobs.values() if job.live and job.over is None]

    def known_blob(self, rng: random.Random) -> tuple[Job, Blob] | None:
        """Return a blob of a job that was not cleaned up."""
        jobs = [job for job in self.history.jobs.values() if job.blobs and not job.cleaned]
        if not jobs:
            return None
        job = rng.choice(jobs[-12:])
        return job, rng.choice(job.blobs)

    def admitted(self, budget: blob.limits.StorageBudget, job_id: str | None) -> None:
        """Check that a server with an upload that it has admitted holds no more than its quotas."""
        if budget.total > self.max_bytes or budget.held(job_id) > MAX_BYTES_PER_JOB:
            held = f"{budget.total} bytes are held, {budget.held(job_id)} of the job"
            self.world.fail("bounded space", f"{_here().name} admits an upload, with which {held}")

    def peer(self, client: BlobClient) -> str:
        """Return the host of the server that has answered a client last."""
        channel = client._link._channel
        peer = None if channel is None else channel.sock.peer  # type: ignore[attr-defined]  # a SimSocket
        if peer is None:
            return ""
        return next(name for name, host in self.kernel.hosts.items() if host.address == peer[0])

    def read(
        self, job: Job, found: Blob, fetch: Callable[[], bytes], what: str, client: BlobClient | None = None
    ) -> bool:
        """Read a permanent blob, and check what comes; return whether it came."""
        kernel = self.kernel
        began = kernel.now
        try:
            with self.request(what):
                content = fetch()
        except BlobNotFound:
            server = "a cache" if client is None else self.peer(client)
            self.history.missing(job, found, began, kernel.now, server)
            return False
        except (BlobError, OSError) as error:
            self._tolerate(what, error, job)
            return False
        self.history.read(found, content, began)
        if client is not None and (server := self.peer(client)):
            self.history.used(job, server, began, kernel.now)
        return True

    def _tolerate(self, what: str, error: Exception, job: Job | None = None) -> None:
        """Note a failed request; there is no reason for one some time after the last fault."""
        self.world.count(f"failed {what} {type(error).__name__}")
        if isinstance(error, DigestMismatch) and not self.damages and not self._loses_reads():
            self.world.fail("damaged content has a reason", f"{what}: {error}")
        if isinstance(error, NEVER):
            self.world.fail("no request is misunderstood", f"{_here().name}: {what}: {error!r}")
        if self.kernel.seconds > self.faults_s + VERIFY_AFTER_S and (job is None or job.over is None):
            self.world.fail("the service heals", f"{_here().name}: {what} fails: {error!r}")

    def arrived_damaged(self, key: Any) -> None:
        """Check that content that came over a connection, which all is checked there, was damaged before."""
        if not self.damages and not self._loses_reads():
            self.world.fail("damaged content has a reason", f"{key} comes with another digest to {_here().name}")

    damages = 0

    def _loses_reads(self) -> bool:
        return False

    # ------------------------------------------------------------------ workers

    def _work(self, host_name: str) -> None:
        process, rng = _here(), _random()
        root = Path(ROOT) / host_name / "cache"
        if rng.random() < 0.4:
            self._damage_cache(host_name, rng)
        store: BlobStore = FileSystemBlobStore(Path(ROOT) / "store" / "blobs") if self.has_store else VoidBlobStore()
        try:
            cache = BlobCache(
                root,
                lambda: WatchedClient(self.history, host_name, self.address),
                store,
                max_bytes=CACHE_BYTES if self.limited_caches else None,
            )
        except (OSError, BlobServerError) as error:
            logger.warning("%s does not start: %s", process.name, error)
            raise SystemExit(1) from error
        self.caches[process] = cache
        process.on_end.append(lambda silent: self.caches.pop(process, None))
        process.on_end.append(lambda silent: self.history.forget_downloads(host_name))
        threads = [
            threading.Thread(target=self._read_by, args=(cache, host_name, number), name=f"reader-{number}")
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cache.close()

    def _damage_cache(self, host_name: str, rng: random.Random) -> None:
        """Damage a copy that a former process has left."""
        disk = self.world.disks[host_name]
        copies = [inode for path, inode in disk.walk() if path.startswith("cache/job_") and "/blob_" in path]
        if copies and disk.damage(rng.choice(copies)):
            self.world.count("damaged copies")

    def _read_by(self, cache: BlobCache, host_name: str, number: int) -> None:
        kernel, rng = self.kernel, _random(number)
        verified = False
        while not self.world.stopping:
            kernel.thread.sleep(rng.random() ** 2 * 0.6)  # type: ignore[union-attr]
            if kernel.seconds > self.faults_s + VERIFY_AFTER_S and not verified:
                jobs = self.live_jobs()
                for job in jobs:
                    for found in list(job.blobs):
                        self._read_cached(cache, job, found, rng)
                verified = True
                self.verified[f"{_here().name}-{number}"] = kernel.seconds
                continue
            hot = self._hot()
            if hot is not None and not verified:
                self._read_cached(cache, *hot, rng)
            if rng.random() < 0.2:
                over = [job for job in self.history.jobs.values() if job.over is not None]
                if over:
                    job = rng.choice(over[-8:])
                    with contextlib.suppress(OSError):
                        cache.release_job(job.job_id)

    def _hot(self) -> tuple[Job, Blob] | None:
        """Return the blob that all readers want at this time."""
        return self.known_blob(random.Random(f"{self.world.seed}/{int(self.kernel.seconds / 0.7)}"))

    def _read_cached(self, cache: BlobCache, job: Job, found: Blob, rng: random.Random) -> None:
        job_id, key = job.job_id, PermanentBlobKey(found.key)

        def by_path() -> bytes:
            return cache.get_file(job_id, key).read_bytes()

        def pinned() -> bytes:
            with cache.pinned(job_id, key) as path:
                return path.read_bytes()

        def read() -> bytes:
            return cache.read(job_id, key)

        fetch = rng.choice((read, pinned) if self.limited_caches else (read, pinned, by_path))
        try:
            self.read(job, found, fetch, "cached")
        except FileNotFoundError:
            if job.over is None:
                raise

    # ------------------------------------------------------------------ large messages

    def _offloader(self) -> BlobOffloader:
        return BlobOffloader(
            lambda location: BlobClient(location, SECRET, timeout=4.0, patience=6.0, retries=2),
            self.address,
            lifetime_s=TRANSIENT_TTL_S,
        )

    async def _echo(self) -> None:
        config = RpcConfig(bind_host=_here().host.address, port=ECHO, frame_size=FRAME_SIZE)
        service = RpcService(asyncio.get_running_loop(), SECRET, config)
        service.use_offloader(self._offloader())
        await service.listen()
        await service.start_server(EchoEndpoint(service, "echo"))
        await self._stopped()
        await service.close()

    async def _call_echo(self) -> None:
        process, rng = _here(), _random()
        config = RpcConfig(bind_host=process.host.address, frame_size=FRAME_SIZE, ask_timeout_s=20.0)
        service = RpcService(asyncio.get_running_loop(), SECRET, config)
        service.use_offloader(self._offloader())
        address = ActorAddress("understudy", self.kernel.hosts["w1"].address, ECHO, "/user/echo")
        gateway = service.gateway(address, Echo)
        stopping = asyncio.ensure_future(self._stopped())
        while not stopping.done():
            await asyncio.wait([stopping], timeout=rng.random() * 2.0)
            if self.kernel.seconds > self.faults_s + END_AFTER_S:
                continue
            data = rng.randbytes(rng.choice((100, FRAME_SIZE, 3 * FRAME_SIZE)))
            calls = [gateway.reverse(data) for _ in range(rng.choice((1, 1, 3)))]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, ActorError):
                    self.world.count(f"failed echo {type(outcome).__name__}")
                elif isinstance(outcome, BaseException):
                    raise outcome
                elif outcome != data[::-1]:
                    self.world.fail("content is what its digest says", "a large message came back changed")
                else:
                    self.echoed_s = self.kernel.seconds
                    self.world.count("echoes")
        await service.close()

    async def _stopped(self) -> None:
        stop = self._stops[_here()] = asyncio.Event()
        await stop.wait()

    # ------------------------------------------------------------------ faults

    def plan(self, rng: random.Random) -> list[Fault]:
        weights = {
            "kill": 1.0,
            "kill_at_effect": 4.0,
            "stall_at_effect": 3.0,
            "freeze": 2.0,
            "crash": 1.5,
            "jump": 0.3,
            "partition": 1.5,
            "isolate": 0.7,
            "slow": 1.5,
            "reset": 2.0,
            "break_after": 4.0,
            "disk_full": 1.0,
            "disk_errors": 1.0,
            "disk_crash": 1.0 if self.has_store else 0.0,
        }
        own = {"blob_cut": 1.5, "disk_slow": 1.0, "disk_read_errors": 1.0, "blob_damage": 1.5}
        servers = [f"server-{name}" for name in self.server_hosts]
        processes = [*servers * 3, *(f"leader-{name}" for name in MASTERS), *(f"worker-{name}" for name in WORKERS)]
        processes += [f"client-{name}-{number}" for name in CLIENTS for number in (1, 2)]
        disks = [*self.server_hosts * 3, *WORKERS, *(["store"] * 2 if self.has_store else [])]
        hosts = [*MASTERS, *CLIENTS, *WORKERS]
        faults = FaultPlan(
            hosts=[*self.server_hosts * 3, *hosts],
            processes=processes,
            weights={kind: weight for kind, weight in weights.items() if weight},
            rate=2.0,
            until_s=self.faults_s,
            longest_s=6.0,
            jumps=hosts,
            disks=disks,
            all_hosts=hosts,
        ).draw(rng)
        faults = [self._only_the_store(fault) for fault in faults]
        for kind, weight in own.items():
            for _ in range(int(rng.expovariate(0.15) * weight)):
                at = round(rng.uniform(0.5, self.faults_s), 6)
                duration = round(min(self.faults_s - at, 0.01 * 600 ** rng.random()), 6)
                arguments: tuple[Any, ...] = (round(rng.random(), 6),)
                if kind == "disk_slow":
                    arguments = (rng.choice(disks), round(0.001 * 300 ** rng.random(), 4), duration)
                elif kind == "disk_read_errors":
                    arguments = (rng.choice(disks), round(rng.random() ** 2, 3), duration)
                elif kind == "blob_damage":
                    arguments = (rng.choice(self.server_hosts), *arguments)
                    if not self.has_store:
                        continue  # the only copy
                faults.append(Fault(at, kind, arguments))
        if not self.has_store:
            # Early, before a later write happens to sync the names that the start of the server has made.
            faults.append(Fault(round(rng.uniform(0.4, 2.5), 6), "crash", (MASTERS[0], 0.1)))
        failing_s = round(rng.uniform(1.0, 5.0), 3)
        removals = rng.choice(self.server_hosts), 1.0, failing_s
        faults.append(Fault(self.faults_s - failing_s, "disk_remove_errors", removals))
        for _ in range(0 if self.has_store else rng.randrange(4)):
            # What is on the disk of the only server is all there is.
            at = round(rng.uniform(0.04, 1.0) * self.faults_s, 6)
            faults.append(Fault(at, "crash", (MASTERS[0], round(0.01 * 200 ** rng.random(), 6))))
        return sorted(faults, key=lambda fault: fault.at_s)

    def _only_the_store(self, fault: Fault) -> Fault:
        if fault.kind == "disk_crash":  # a host's own disk crashes with its host
            return Fault(fault.at_s, "disk_crash", ("store", fault.args[1]))
        return fault

    # ------------------------------------------------------------------ checks

    def check_often(self) -> None:
        for process, server in self.servers.items():
            contents, host = server._contents, process.host
            if contents is None or not process.alive:
                continue
            if server._acceptor is not None and len(server._acceptor._served) > CONNECTIONS:
                self.world.fail("bounded connections", f"{host.name} serves {len(server._acceptor._served)} at once")
            disk, counted = self.world.disks[host.name], contents.total_bytes
            used = disk._used
            if used > counted + 4096 and self.has_store:
                # A blob that comes back from the store is counted when it has its name.
                used = sum(len(inode.data) for path, inode in disk.walk() if not path.startswith("blob/incoming/"))
            if used > counted + 4096:
                self.world.fail("bounded space", f"{used} bytes are on the disk of {host.name}, which counts {counted}")
            # A loss of power may bring back what was deleted; and what comes back from the store was admitted before.
            if not self.has_store and counted > self.max_bytes and not self.history.has_crashed(host.name):
                self.world.fail("bounded space", f"{host.name} counts {counted} bytes, {self.max_bytes} are allowed")
        if self.limited_caches:
            # Each reader may pin a copy beyond the limit, and download another one.
            limit = CACHE_BYTES + 3 * LARGEST
            for process in self.caches:
                name = process.host.name
                if process.alive and (used := self.world.disks[name]._used) > limit:
                    self.world.fail("bounded space", f"{used} bytes are in the cache of {name}, {limit} are allowed")
        self._check_what_is_over()

    def _check_what_is_over(self) -> None:
        """Check that what is over ends within some time in which its process runs."""
        over: dict[tuple[SimProcess, object], tuple[str, str, float]] = {}
        for process, server in self.servers.items():
            if (contents := server._contents) is None or not process.may_run:
                continue
            now, name = process.time(), process.host.name
            for upload, (_, since) in contents._parked._parked.items():
                if now - since > RESUME_S:
                    over[process, upload] = "an interrupted upload ends", f"{name}: {upload}", CLEANUP_S + LATE_S
            for entry, used in contents._expiry._last_use.items():
                if now - used > TRANSIENT_TTL_S:
                    over[process, entry] = "an unused transient blob goes", f"{name}: {entry}", CLEANUP_S + LATE_S
        for process, cache in self.caches.items():
            residents, name = cache._residents, process.host.name
            surplus = self.limited_caches and residents.total > CACHE_BYTES and process.may_run
            if surplus and not all(map(residents._referenced, residents._sizes)):
                text = f"{residents.total} bytes are in the cache of {name}, {CACHE_BYTES} are allowed"
                over[process, "surplus"] = "bounded space", text, LATE_S
        frozen = {key for key in self._overdue if key[0].alive and not key[0].may_run}
        self._overdue = {key: seconds for key, seconds in self._overdue.items() if key in over or key in frozen}
        for key, (check, text, allowed_s) in over.items():
            self._overdue[key] = seconds = self._overdue.get(key, 0.0) + CHECK_EVERY_S
            if seconds > allowed_s:
                self.world.fail(check, f"{text}, for {seconds:.1f} s")

    def check_healed(self) -> None:
        world, kernel, history = self.world, self.kernel, self.history
        for name, what, since in self.requests.values():
            if since < self.faults_s + VERIFY_AFTER_S:
                world.fail("a request ends", f"{name}: {what} since {since:.3f} s")
        names = {f"client-{name}-{number}" for name in CLIENTS for number in (1, 2)}
        names |= {f"worker-{name}-{number}" for name in WORKERS for number in range(3)}
        if missing := sorted(names - self.verified.keys()):
            world.fail("the service heals", f"these have not verified: {missing}")
        if self.echoed_s < self.faults_s + VERIFY_AFTER_S:
            world.fail("the service heals", f"the last large message was answered at {self.echoed_s:.3f} s")
        for job in history.jobs.values():
            if job.live and not job.cleaned:
                world.fail("the service heals", f"job {job.job_id} was not cleaned up")
        for name in self.server_hosts:
            self._check_left(name, "blob", {"fence", "lock", "incoming", "no_job"})
        if self.has_store:
            self._check_left("store", "blobs", {"fence"})
        living = {process.host.name: server for process, server in self.servers.items() if process.alive}
        for name in self.server_hosts:
            server = living.get(name)
            contents = server._contents if server is not None else None
            if contents is None or server is None:
                world.fail("the service heals", f"the server of {name} does not run")
                continue
            budget = contents._budget
            if budget.total or budget._pending or budget._held:
                world.fail("accounts agree", f"{name} counts {budget.total} bytes, {budget._pending} to come")
            if len(contents._blobs) or len(contents._job_locks) or contents.parked_uploads:
                world.fail("accounts agree", f"{name} still holds locks or {contents.parked_uploads} uploads")
            if len(contents._expiry._last_use):
                world.fail("accounts agree", f"{name} remembers transient blobs: {contents._expiry._last_use}")
            self._check_uses(name, contents)
        kernel.trace("checked")

    def _check_uses(self, name: str, contents: BlobContents) -> None:
        """Check that a sweep forgets the uses that are too old to matter."""
        now = self.kernel.hosts[name].monotonic(self.kernel.now) / SECOND
        for job_id, used in contents._job_uses._last_use.items():
            due = self.kernel.now - int((now - used - ORPHAN_AGE_S * 1.02) * SECOND)
            sweeps = (call for call in self.history.calls if call.server == name and call.job is None)
            if any(call.outcome is Outcome.DONE and call.began > due for call in sweeps):
                self.world.fail("accounts agree", f"{name} remembers a use of job {job_id} for {now - used:.1f} s")

    def _check_left(self, disk_name: str, root: str, allowed: set[str]) -> None:
        disk: Disk = self.world.disks[disk_name]
        top = disk.root.entries.get(root)
        if top is None:
            return
        # The next write of a fence removes the temporary files that a killed process or a failing disk has left.
        paths = [path for path, _ in disk.walk(top) if not path.startswith(".fence.")]
        self.history.left_behind(f"{disk_name}/{root}", paths, allowed)

    def stop(self) -> None:
        servers_last = sorted(
            (process for process in self._stops if process.alive), key=lambda one: one.name.startswith("server")
        )
        for process in servers_last:
            pause = 10.0 if process.name.startswith("server") else 0.0
            assert process.loop is not None
            self.kernel.after(pause, process.loop.call_soon_threadsafe, self._stops[process].set)

    def check_stopped(self) -> None:
        world = self.world
        for host in world.kernel.hosts.values():
            for process in host.processes:
                world.fail("a stop ends", f"{process} still runs:\n" + "\n".join(process.waits()))
        if world.files is not None and (left := world.files.open_files()):
            world.fail("nothing is left open", str(left))
        if world.network.listeners:
            world.fail("nothing is left open", str(world.network.listeners))


# ------------------------------------------------------------------ what leaders do


class Leader:
    """One process that may lead: what it does while it leads, and after that."""

    def __init__(self, workload: Blobs, host_name: str, service: RpcService, rng: random.Random) -> None:
        self.workload = workload
        self.kernel = workload.kernel
        self.history = workload.history
        self.host_name = host_name
        self.service = service
        self.rng = rng
        self.known: frozenset[str] = frozenset()

    def _gateway(self, server: str) -> BlobServerGateway:
        address = ActorAddress("understudy", self.kernel.hosts[server].address, CONTROL, PATH)
        return self.service.gateway(address, BlobServerGateway)

    def _server(self) -> str:
        """Return whose server to command: the own one, if there is one."""
        hosts = self.workload.server_hosts
        return self.host_name if self.host_name in hosts and self.rng.random() < 0.8 else self.rng.choice(hosts)

    async def act(self, term: Term) -> None:
        """Do something, as the leader of a term, whether it is over or not."""
        if not self.workload._leads(term):
            await self._act_after(term)
            return
        for job in [job for job in self.history.jobs.values() if job.submitted and not job.live]:
            await self._take(job, term)
        self.known = frozenset(job.job_id for job in self.history.jobs.values() if job.live and not job.cleaned)
        await self._end_jobs(term)
        await asyncio.sleep(self.rng.random() ** 3 * 2.0)
        at_end = self.kernel.seconds > self.workload.faults_s + END_AFTER_S
        for server in self.workload.server_hosts if at_end else (self._server(),):
            await self._sweep(server, term, self.known)

    async def _take(self, job: Job, term: Term) -> None:
        server = self.host_name if self.host_name in self.workload.server_hosts else self.workload.server_hosts[0]
        began = self.kernel.now
        try:
            await self._gateway(server).use_job(job.job_id)
        except ActorError as error:
            logger.info("%s cannot take %s: %s", self.host_name, job.job_id, error)
            return
        self.history.used(job, server, began, self.kernel.now)
        if self.workload._leads(term) and job.submitted:
            job.live = True
            job.ends_s = self.kernel.seconds + self.rng.uniform(2.0, 30.0)
            self.kernel.trace("took", job.job_id)

    async def _end_jobs(self, term: Term) -> None:
        seconds = self.kernel.seconds
        everything = seconds > self.workload.faults_s + END_AFTER_S
        for job in list(self.history.jobs.values()):
            if job.live and job.over is None and (everything or seconds > job.ends_s) and self.workload._leads(term):
                job.over = self.kernel.now
            if job.over is not None and not job.cleaned:
                await self._clean(self._server(), job, term)

    async def _clean(self, server: str, job: Job, term: Term) -> None:
        call = self.history.call(server, term.epoch, self.kernel.now, job=job.job_id)
        await self._ended(call, term, lambda: self._gateway(server).cleanup_job(job.job_id, term.token))
        if call.outcome is Outcome.DONE:
            job.cleaned = True

    async def _sweep(self, server: str, term: Term, live: frozenset[str]) -> None:
        call = self.history.call(server, term.epoch, self.kernel.now, live=live)
        await self._ended(call, term, lambda: self._gateway(server).sweep_orphans(sorted(live), term.token))

    async def _ended(self, call: Any, term: Term, ask: Callable[[], Ask[Any]]) -> None:
        outcome = Outcome.UNKNOWN
        try:
            found = await ask()
            outcome = Outcome.DONE
            if found:
                self.workload.world.count("swept jobs", len(found))
        except FencingError:
            outcome = Outcome.FENCED
        except ActorError as error:
            logger.info("%s does not know the outcome of its call at %s: %s", self.host_name, call.server, error)
        finally:
            self.history.ended(call, outcome, self.kernel.now, leads=self.workload._leads(term))
        self.workload.world.count(f"calls {outcome.value}")

    async def _act_after(self, term: Term) -> None:
        """Go on after the end of a term: with what it knew, or with the worst if the server must refuse it anyway."""
        server = self._server()
        if not self.history.is_fenced(server, term.epoch, self.kernel.now):
            await self._sweep(server, term, self.known)
            return
        jobs = self.workload.live_jobs()
        if jobs and self.rng.random() < 0.6:
            await self._clean_wrongly(server, self.rng.choice(jobs), term)
        else:
            await self._sweep(server, term, frozenset())

    async def _clean_wrongly(self, server: str, job: Job, term: Term) -> None:
        call = self.history.call(server, term.epoch, self.kernel.now, job=job.job_id)
        await self._ended(call, term, lambda: self._gateway(server).cleanup_job(job.job_id, term.token))


# ------------------------------------------------------------------ what clients do


class Client:
    """One client process, whose thread blocks."""

    def __init__(self, workload: Blobs, host_name: str, rng: random.Random) -> None:
        self.workload = workload
        self.world = workload.world
        self.kernel = workload.kernel
        self.history = workload.history
        self.host_name = host_name
        self.rng = rng
        self.directory = Path(ROOT) / host_name
        self._files = 0
        self.client = BlobClient(workload.address, SECRET, timeout=4.0, patience=12.0, retries=4, backoff=0.05)

    def run(self) -> None:
        """Work until the end."""
        name, verified = _here().name, False
        verify_s = self.workload.faults_s + VERIFY_AFTER_S
        while not self.world.stopping:
            self._pause(self.rng.random() ** 2)
            seconds = self.kernel.seconds
            if seconds < verify_s - 20.0:
                self._act()
            elif seconds > verify_s and not verified:
                self._verify()
                verified = True
                self.workload.verified[name] = self.kernel.seconds
        self.client.close()

    def _pause(self, seconds: float) -> None:
        assert self.kernel.thread is not None
        self.kernel.thread.sleep(seconds)

    def _act(self) -> None:
        what = self.rng.random()
        if what < 0.3:
            self._run_job()
        elif what < 0.4:
            self._upload_late()
        elif what < 0.55:
            self._transient()
        else:
            self._read()

    # ------------------------------------------------------------------ uploads

    def _content(self) -> bytes:
        size = self.rng.choice((0, 1, 900, 1024, 1025, 5000, 30_000, 65_536, 100_000, LARGEST))
        return self.rng.randbytes(size)

    def _put(self, content: bytes, key_type: Any, job_id: str | None) -> Any:
        way = self.rng.randrange(4)
        progress: list[int] = []

        def shown(sent: int, total: int) -> None:
            if total != len(content) or sent > total or (progress and sent <= progress[-1]):
                self.world.fail("progress goes forward", f"{progress[-1:]}, then {sent} of {total}")
            progress.append(sent)

        with self.workload.request("put"):
            if way == 0:
                return self.client.put_bytes(content, key_type, job_id)
            if way == 1:
                return self.client.put_stream(io.BytesIO(content), key_type, job_id, shown)
            if way == 2:
                return self.client.put_stream(_Pipe(content), key_type, job_id, shown)
            self._files += 1
            path = self.directory / f"{_here().name}-{_here().pid}-{self._files}"
            try:
                path.write_bytes(content)
                return self.client.put_file(path, key_type, job_id, shown)
            finally:
                path.unlink(missing_ok=True)

    def _upload(self, job: Job) -> bool | None:
        """Upload a blob; return whether it was acknowledged, None if it exceeds a quota."""
        content, began = self._content(), self.kernel.now
        try:
            key = self._put(content, PermanentBlobKey, job.job_id)
        except QuotaExceeded:
            self.world.count("refused put QuotaExceeded")
            return None
        except (BlobError, OSError) as error:
            self.workload._tolerate("put", error)
            return False
        self.history.acknowledged(job, key, content, self.workload.peer(self.client), began, self.kernel.now)
        self.world.count("uploads")
        self.kernel.trace("uploaded", key)
        return True

    def _run_job(self) -> None:
        """Upload a job's blobs and submit it; sometimes forget it."""
        job = self.workload.new_job()
        uploaded = [self._upload(job) for _ in range(self.rng.randrange(1, 4))]
        if not all(uploaded) or self.rng.random() < 0.15:
            return
        job.submitted = True
        for _ in range(40):
            if job.live:
                return
            self._pause(0.5)
        job.submitted = job.live

    def _upload_late(self) -> None:
        """Add a blob to a job that may have ended."""
        jobs = [job for job in self.history.jobs.values() if job.live]
        if jobs:
            self._upload(self.rng.choice(jobs[-6:]))

    # ------------------------------------------------------------------ reads

    def _read(self) -> None:
        found = self.workload.known_blob(self.rng)
        if found is not None:
            self._fetch(*found)

    def _fetch(self, job: Job, blob: Blob) -> bool:
        key, job_id = PermanentBlobKey(blob.key), job.job_id

        def to_memory() -> bytes:
            return self.client.get_bytes(key, job_id)

        def to_stream() -> bytes:
            stream = io.BytesIO()
            self.client.get_to_stream(key, stream, job_id)
            return stream.getvalue()

        def to_file() -> bytes:
            self._files += 1
            path = self.directory / f"got-{_here().pid}-{self._files}"
            self.client.get_to_file(key, path, job_id)
            content = path.read_bytes()
            path.unlink()
            return content

        fetch = self.rng.choice((to_memory, to_stream, to_file))
        return self.workload.read(job, blob, lambda: self._persistently(fetch, key), "get", self.client)

    def _persistently(self, fetch: Callable[[], bytes], key: PermanentBlobKey) -> bytes:
        """Fetch a blob, at once again if damaged content comes: the server has then replaced its copy."""
        damages: list[int] = []
        while True:
            try:
                return fetch()
            except DigestMismatch:
                damages.append(self.workload.damages)
                # One read may have begun at one server and ended at another, which has looked at its own copy.
                if len(damages) == 3 and damages[0] == damages[-1]:
                    self.world.fail("a damaged copy is replaced", f"{key} arrived damaged three times in a row")
                if len(damages) == 3:
                    raise

    def _transient(self) -> None:
        """Upload a transient blob, read it several times, and delete it."""
        content, began = self._content(), self.kernel.now
        job_id = None if self.rng.random() < 0.7 else self.workload.new_job().job_id
        try:
            key = self._put(content, TransientBlobKey, job_id)
        except (BlobError, OSError) as error:
            self.workload._tolerate("put", error)
            return
        blob = Blob(key, content, self.workload.peer(self.client), self.kernel.now, began)
        self.world.count("transient uploads")
        for _ in range(self.rng.randrange(4)):
            self._pause(self.rng.random() * 7.0)
            if not self._get_transient(blob, key, job_id):
                return
        if self.rng.random() < 0.7:
            blob.removing = True
            try:
                with self.workload.request("delete"):
                    self.client.delete(key, job_id)
            except (BlobError, OSError) as error:
                self.workload._tolerate("delete", error)
                return
            is_deleted = self.workload.peer(self.client) == blob.server
            if is_deleted and self._get_transient(blob, key, job_id):
                self.world.fail("a deleted blob is gone", f"{key} was deleted, and was read")

    def _get_transient(self, blob: Blob, key: TransientBlobKey, job_id: str | None) -> bool:
        """Read a transient blob; only the server that it was uploaded to has it."""
        began = self.kernel.now
        try:
            with self.workload.request("get"):
                content = self.client.get_bytes(key, job_id)
        except BlobNotFound:
            if self.workload.peer(self.client) == blob.server:
                self.history.missing_transient(blob, self.kernel.now)
            return False
        except (BlobError, OSError) as error:
            self.workload._tolerate("get", error)
            return False
        self.history.read(blob, content, began)
        return True

    # ------------------------------------------------------------------ after the faults

    def _verify(self) -> None:
        """Read everything that should be there, and upload something."""
        for job in self.workload.live_jobs():
            for found in list(job.blobs):
                if not self._fetch(job, found) and job.over is None:
                    self.world.fail("the service heals", f"{_here().name} cannot read {found.key}")
        if self._upload(self.workload.new_job()) is False:
            self.world.fail("the service heals", f"{_here().name} cannot upload")


# ------------------------------------------------------------------ faults of this workload


def _blob_connections(world: World) -> list[networks.Connection]:
    return [
        one
        for one in world.network.connections
        if not one.is_cut and isinstance(one.client.peer, tuple) and one.client.peer[1] == BULK
    ]


def _blob_cut(world: World, where: float) -> bool:
    """Cut a connection to a BlobServer, half-open."""
    connections = _blob_connections(world)
    if not connections:
        return False
    world.network.cut(connections[int(where * len(connections))])
    return True


def _disk_slow(world: World, name: str, delay_s: float, seconds: float) -> None:
    world.disk_delays[name] = delay_s
    world.kernel.after(seconds, world.disk_delays.pop, name, None)


def _disk_read_errors(world: World, name: str, rate: float, seconds: float) -> None:
    world.disks[name].error_rates["read"] = rate
    world.kernel.after(seconds, world.disks[name].error_rates.pop, "read", None)


def _disk_remove_errors(world: World, name: str, rate: float, seconds: float) -> None:
    world.disks[name].error_rates["remove"] = rate
    world.kernel.after(seconds, world.disks[name].error_rates.pop, "remove", None)


def _blob_damage(world: World, name: str, where: float) -> bool:
    """Flip a bit of a permanent blob in a server's directory; the store has another copy."""
    disk = world.disks[name]
    blobs = [inode for path, inode in disk.walk() if path.startswith("blob/job_") and "/blob_p-" in path]
    workload: Blobs = world.kernel.devices["blobs"]
    if not blobs or not disk.damage(blobs[int(where * len(blobs))]):
        return False
    workload.damages += 1
    return True


all_faults.KINDS.update(
    {
        "blob_cut": _blob_cut,
        "disk_slow": _disk_slow,
        "disk_read_errors": _disk_read_errors,
        "disk_remove_errors": _disk_remove_errors,
        "blob_damage": _blob_damage,
    }
)


def _here() -> SimProcess:
    process = installed_kernel().current
    assert process is not None
    return process


def _random(*more: object) -> random.Random:
    """Return the random choices of the current process."""
    process = _here()
    return random.Random(f"{process.kernel.seed}/{process.name}/{process.pid}/{more}")
