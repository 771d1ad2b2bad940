"""The nemesis: harms a cluster, one thing after the other, and looks whether the cluster says what is so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.environment.context import open_redis_services
from runtime.ha.errors import HaError
from runtime.ha.services import RedisHaServices
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.execution_state import JobStatus
from tests.cluster_harness import Cluster, await_value
from tests.faults.cuts import Cut, disconnect
from tests.faults.full_disk import SmallDisk
from tests.faults.history import Absence, Listed, Look, Silence, disagreements
from tests.faults.processes import KINDS, PAIRS, Finder, kill, standing_still, zygotes_of
from tests.faults.redis_front import RedisFront
from tests.processes import lives

log = logging.getLogger(__name__)

AGREEMENT_S = 600.0
"""Far more than it takes, also on a machine that is busy with other things."""
STORED = ("jobgraphs", "executions")
PAUSE_S = (0.2, 2.0)
LONG = 1.75
"""How many leases most things last."""
_TASK_DIR = re.compile(r"/tasks/([0-9a-f]{32})(/|$)")


class Turns:
    """Which deed is next: each has its turn in a random order, then all of them in another one (pure).

    Args:
        names: of the deeds.
        order: decides the order.

    Attributes:
        done: how often each was done.
    """

    def __init__(self, names: Iterable[str], order: random.Random) -> None:
        self.names = frozenset(names)
        self._order = order
        self._next: list[str] = []
        self.done: Counter[str] = Counter()

    def take(self) -> str:
        """The next one; it is to be called `came_off` or `put_off`."""
        if not self._next:
            self._next = self._order.sample(sorted(self.names), len(self.names))
        return self._next.pop()

    def came_off(self, name: str) -> None:
        """It was done, and counts."""
        self.done[name] += 1

    def put_off(self, name: str) -> None:
        """It met nobody: it has another turn before the others have their second one."""
        self._next.insert(0, name)

    @property
    def missing(self) -> set[str]:
        """Those that were never done."""
        return set(self.names) - set(self.done)


class Nemesis:
    """Harms the cluster, and looks at it.

    Args:
        lease_s: the lease of its leaders: some things last for less, most for longer than it and than
            ``heartbeat.timeout``.
        front: the proxy before its Redis.
        disks: the file systems that may be filled, by name.
        can_cut: whether connections between processes can be cut (`tests.faults.cuts`).
        pause_s: the shortest and the longest time between two of its deeds.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        lease_s: float,
        front: RedisFront,
        disks: dict[str, SmallDisk],
        *,
        can_cut: bool,
        pause_s: tuple[float, float] = PAUSE_S,
    ) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._brief, self._long = 0.4 * lease_s, LONG * lease_s
        self._lease_s = lease_s
        self._pause_s = pause_s
        self._front = front
        self._finder = Finder(cluster, self._random)
        self._deeds = self._possible(disks, can_cut)
        self.turns = Turns(self._deeds, random.Random(seed))
        self.absences: list[Absence] = []
        self.silences: list[Silence] = []
        self.looks: list[list[Look]] = []
        self._meanwhile: list[Look] = []
        self.problems: list[str] = []

    def pause(self) -> None:
        """Let the cluster be, for a while."""
        threading.Event().wait(self._random.uniform(*self._pause_s))

    def harm(self) -> None:
        """Do one thing, or two at once, and look until list and processes agree. Every thing has its turn."""
        for _ in range(2 if self._random.random() < 0.25 else 1):
            name, done, began = self.turns.take(), False, time.monotonic()
            with contextlib.suppress(ActorError):  # it meets nobody: somebody else was harmed a moment ago
                done = self._deeds[name]()
            if done:
                self.turns.came_off(name)
            else:
                self.turns.put_off(name)
            log.info("%s, %.1f to %.1f%s", name, began, time.monotonic(), "" if done else ": there was nobody")
        self.looks.append([*self._meanwhile, *self._look_until_agreed()])
        self._meanwhile.clear()
        self.problems += asyncio.run(missing_files(self._cluster.directory))

    def _possible(self, disks: dict[str, SmallDisk], can_cut: bool) -> dict[str, Callable[[], bool]]:
        front, brief, long = self._front, self._brief, self._long
        deeds: dict[str, Callable[[], bool]] = {
            "kill jobmaster": self._kill_job_master,
            "kill master": self._kill_master,
            "stop jobmaster briefly": lambda: self._stop_job_master(0.0),
            "stop jobmaster": lambda: self._stop_job_master(long),
            "stop taskexecutor briefly": lambda: self._stop_task_executor(brief),
            "stop taskexecutor": lambda: self._stop_task_executor(long),
            "redis slow": lambda: self._with(front.delay, long, self._random.choice((0.02, 0.1))),
            "redis cut off briefly": lambda: self._with(front.cut, brief),
            "redis cut off": lambda: self._with(front.cut, long),
            "redis connections dropped": lambda: self._with(front.drop, self._lease_s),
            "redis connections reset": lambda: self._with(front.reset, self._random.choice((0.05, long))),
            "redis mute": lambda: self._with(front.mute, self._random.choice((brief, long))),
            "redis replies lost": lambda: self._with(front.lose_replies, long),
        }
        for kind in KINDS:
            deeds.setdefault(f"kill {kind}", lambda kind=kind: self._kill(kind))  # type: ignore[misc]
            deeds.setdefault(f"stop {kind} briefly", lambda kind=kind: self._stop(kind, brief))  # type: ignore[misc]
            deeds.setdefault(f"stop {kind}", lambda kind=kind: self._stop(kind, long))  # type: ignore[misc]
        for pair in PAIRS if can_cut else ():
            deeds[f"cut {' from '.join(pair)}"] = lambda pair=pair: self._cut(*pair)  # type: ignore[misc]
            deeds[f"disconnect {' from '.join(pair)}"] = lambda pair=pair: self._disconnect(*pair)  # type: ignore[misc]
        for name, disk in disks.items():
            deeds[f"{name} disk full"] = lambda disk=disk: self._fill(disk)  # type: ignore[misc]
        return deeds

    # ------------------------------------------------------------------- deeds

    def _with(self, fault: Callable[..., None], *arguments: float) -> bool:
        fault(*arguments)
        return True

    def _fill(self, disk: SmallDisk) -> bool:
        try:
            disk.fill()
            threading.Event().wait(self._random.uniform(1.0, 3.0))
        finally:
            disk.free()
        return True

    def _kill(self, kind: str) -> bool:
        found = self._finder.one_of(kind)
        return found is not None and kill(found)

    def _stop(self, kind: str, seconds: float) -> bool:
        found = self._finder.one_of(kind)
        if found is None:
            return False
        with standing_still(found) as there:
            if there:
                threading.Event().wait(seconds)
        return there

    def _stop_task_executor(self, seconds: float) -> bool:
        found = self._finder.one_of("taskexecutor")
        if found is None:
            return False
        with self._silent({found}), standing_still(found) as there:
            if there:
                threading.Event().wait(seconds)
        return there

    def _cut(self, kind: str, other: str) -> bool:
        ones, others = self._finder.groups(kind, other)
        with self._silent(ones | others), Cut(ones, others) as cut:
            if cut.connections:
                threading.Event().wait(self._long)
        return cut.connections > 0

    def _disconnect(self, kind: str, other: str) -> bool:
        return disconnect(*self._finder.groups(kind, other)) > 0

    @contextlib.contextmanager
    def _silent(self, pids: set[int]) -> Iterator[None]:
        """Note from when to when the TaskExecutors among some processes are out of reach, and who their zygotes are."""
        zygotes, since = frozenset(child for pid in pids for child in zygotes_of(pid)), time.monotonic()
        try:
            yield
        finally:
            if zygotes:
                self.silences.append(Silence(zygotes, since, time.monotonic()))

    def _kill_job_master(self) -> bool:
        with self._cluster.client() as client:
            job_id, pids = self._job_masters(client)
            if not pids:
                return False
            for pid in pids:
                kill(pid)
            await_value(lambda: not any(map(lives, pids)))
            # Until when, the log of its successor says.
            self.absences.append(Absence(job_id, time.monotonic(), float("inf"), pids))
            self._meanwhile.append(self._look(client))
        return True

    def _stop_job_master(self, seconds: float) -> bool:
        with self._cluster.client() as client, contextlib.ExitStack() as stack:
            job_id, pids = self._job_masters(client)
            for pid in pids:
                stack.enter_context(standing_still(pid))
            if pids:
                since = time.monotonic()
                self._meanwhile.append(self._look(client))
                threading.Event().wait(seconds)
                self.absences.append(Absence(job_id, since, time.monotonic(), pids))
        return bool(pids)

    def _job_masters(self, client: ClusterClient) -> tuple[str, frozenset[int]]:
        """A job, and its JobMasters' processes (each master may have one); one that runs, where there is one."""
        found: dict[str, set[int]] = {}
        for view in self._finder.components("jobmaster"):
            found.setdefault(view.name.split("-")[1], set()).add(view.pid)
        running = [job.job_id for job in client.list_jobs() if job.status is JobStatus.RUNNING and job.job_id in found]
        job_id = self._random.choice(running or sorted(found) or [""])
        return job_id, frozenset(found.get(job_id, ()))

    def _kill_master(self) -> bool:
        done = self._kill("master")
        threading.Event().wait(self._random.uniform(0.0, 2 * self._lease_s))
        # It may meet a Redis that was harmed a moment ago.
        await_value(lambda: self._cluster.run("master", check=False).returncode == 0, AGREEMENT_S)
        return done

    # ------------------------------------------------------------------- looks

    def _look_until_agreed(self) -> Iterator[Look]:
        """One look after the other, until every job was found once to be as it is listed."""
        deadline, left, unanswered = time.monotonic() + AGREEMENT_S, None, ""
        with self._cluster.client() as client:
            while (left is None or left) and time.monotonic() < deadline:
                try:
                    look = self._look(client)
                except ActorError as error:
                    unanswered = f"`job list` was not answered for {AGREEMENT_S:g} s: {error}"
                    continue
                yield look
                left = disagreements(look) if left is None else left & disagreements(look)
                threading.Event().wait(0.2)
        if left is None:
            self.problems.append(unanswered)

    def _look(self, client: ClusterClient) -> Look:
        before, asked = working_jobs(self._cluster.directory), time.monotonic()
        jobs, answered = client.list_jobs(), time.monotonic()
        after = working_jobs(self._cluster.directory)
        return Look(asked, answered, {job.job_id: _listed(job) for job in jobs}, before, after)


def working_jobs(cluster: Path) -> frozenset[str]:
    """The jobs of the cluster in a directory that have a living task process."""
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                for directory in ((entry / "cwd").readlink(), (entry / "fd" / "1").readlink()):
                    if directory.is_relative_to(cluster):
                        found.update(match[1] for match in _TASK_DIR.finditer(str(directory)))
    return frozenset(found)


async def missing_files(cluster: Path) -> list[str]:
    """Handles without their files; nothing where Redis is away, since the next look finds them too."""
    try:
        services = open_redis_services(Configuration.read(cluster / "configuration.json"))
    except HaError:
        return []
    try:
        return await dangling_handles(services)
    except HaError:
        return []
    finally:
        await services.close()


async def handles(services: RedisHaServices) -> list[str]:
    """What is stored of jobs that are not over."""
    return [f"{kind}/{name}" for kind in STORED for name in await services.state_handles(kind).names()]


async def dangling_handles(services: RedisHaServices) -> list[str]:
    """The handles that point to no file, or not to what was stored."""
    return [
        f"the handle {kind}/{name} dangles: {state}"
        for kind in STORED
        for name, state in (await services.state_handles(kind).get_all()).items()
        if isinstance(state, Exception)
    ]


def _listed(job: JobDetails) -> Listed:
    return Listed(job.status.value, job.tasks_per_state.get("RUNNING", 0))
