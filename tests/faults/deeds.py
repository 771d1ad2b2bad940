"""The nemesis: harms a cluster, one thing after the other, and looks whether the cluster says what is so."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.environment.context import open_redis_services
from runtime.ha.errors import HaError
from runtime.ha.services import RedisHaServices
from runtime.jobmaster.archived_execution_graph import JobDetails
from runtime.jobmaster.execution_state import JobStatus
from tests.cluster_harness import Cluster, await_value
from tests.faults.full_disk import SmallDisk
from tests.faults.history import Absence, Listed, Look, disagreements
from tests.faults.processes import kill, standing_still
from tests.faults.redis_front import RedisFront
from tests.processes import lives

AGREEMENT_S = 240.0
"""Far more than it takes, also on a machine that is busy with other things."""
KINDS = ("jobgraphs", "executions")
PAUSE_S = (0.2, 2.0)
_TASK_DIR = re.compile(r"/tasks/([0-9a-f]{32})(/|$)")


class Nemesis:
    """Harms the cluster, and looks at it.

    Args:
        lease_s: the lease of its leaders: some things last for less, most for more.
        front: the proxy before its Redis.
        disks: the file systems that may be filled, by name.
        pause_s: the shortest and the longest time between two of its deeds.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        lease_s: float,
        front: RedisFront,
        disks: dict[str, SmallDisk],
        pause_s: tuple[float, float] = PAUSE_S,
    ) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._lease_s = lease_s
        self._pause_s = pause_s
        self._front = front
        self._deeds = self._possible(disks)
        self._next: list[str] = []
        self.done: Counter[str] = Counter()
        self.absences: list[Absence] = []
        self.looks: list[list[Look]] = []
        self._meanwhile: list[Look] = []
        self.problems: list[str] = []

    def pause(self) -> None:
        """Let the cluster be, for a while."""
        threading.Event().wait(self._random.uniform(*self._pause_s))

    def harm(self) -> None:
        """Do one thing, or two at once, and look until list and processes agree. Every thing has its turn."""
        for _ in range(2 if self._random.random() < 0.25 else 1):
            if not self._next:
                self._next = self._random.sample(sorted(self._deeds), len(self._deeds))
            name = self._next.pop()
            with contextlib.suppress(ActorError):  # it meets nobody: somebody else was harmed a moment ago
                if self._deeds[name]():
                    self.done[name] += 1
        self.looks.append([*self._meanwhile, *self._look_until_agreed()])
        self._meanwhile.clear()
        self.problems += asyncio.run(self._missing_files())

    def _possible(self, disks: dict[str, SmallDisk]) -> dict[str, Callable[[], bool]]:
        lease, front = self._lease_s, self._front
        brief, long = 0.4 * lease, 2 * lease
        deeds = {
            "kill dispatcher": lambda: self._kill("dispatcher"),
            "kill resourcemanager": lambda: self._kill("resourcemanager"),
            "kill blobserver": lambda: self._kill("blobserver"),
            "kill jobmaster": self._kill_job_master,
            "kill taskexecutor": self._kill_task_executor,
            "kill redis": lambda: self._kill("redis"),
            "kill master": self._kill_master,
            "stop dispatcher": lambda: self._stop("dispatcher", long),
            "stop jobmaster": self._stop_job_master,
            "stop redis briefly": lambda: self._stop("redis", brief),
            "stop redis": lambda: self._stop("redis", long),
            "redis slow": lambda: self._with(front.delay, long, self._random.choice((0.02, 0.1))),
            "redis cut off briefly": lambda: self._with(front.cut, brief),
            "redis cut off": lambda: self._with(front.cut, long),
            "redis connections dropped": lambda: self._with(front.drop, lease),
            "redis connections reset": lambda: self._with(front.reset, self._random.choice((0.05, long))),
            "redis mute": lambda: self._with(front.mute, self._random.choice((brief, long))),
            "redis replies lost": lambda: self._with(front.lose_replies, long),
        }
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
            threading.Event().wait(self._random.uniform(1.0, 4.0))
        finally:
            disk.free()
        return True

    def _processes(self, kind: str) -> list[tuple[str, int]]:
        with self._cluster.client() as client:
            views = client.status().processes
        return [(view.name, view.pid) for view in views if view.name.startswith(kind) and view.pid]

    def _one_of(self, kind: str) -> tuple[str, int] | None:
        found = self._processes(kind)
        return self._random.choice(found) if found else None

    def _kill(self, kind: str) -> bool:
        found = self._one_of(kind)
        return found is not None and kill(found[1])

    def _stop(self, kind: str, seconds: float) -> bool:
        found = self._one_of(kind)
        if found is None:
            return False
        with standing_still(found[1]):
            threading.Event().wait(seconds)
        return True

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

    def _stop_job_master(self) -> bool:
        with self._cluster.client() as client, contextlib.ExitStack() as stack:
            job_id, pids = self._job_masters(client)
            for pid in pids:
                stack.enter_context(standing_still(pid))
            if pids:
                since = time.monotonic()
                self._meanwhile.append(self._look(client))
                threading.Event().wait(self._random.choice((0.0, 2 * self._lease_s)))
                self.absences.append(Absence(job_id, since, time.monotonic(), pids))
        return bool(pids)

    def _job_masters(self, client: ClusterClient) -> tuple[str, frozenset[int]]:
        """A job, and its JobMasters' processes (each master may have one); one that runs, where there is one."""
        found: dict[str, set[int]] = {}
        for name, pid in self._processes("jobmaster-"):
            found.setdefault(name.split("-")[1], set()).add(pid)
        running = [job.job_id for job in client.list_jobs() if job.status is JobStatus.RUNNING and job.job_id in found]
        job_id = self._random.choice(running or sorted(found) or [""])
        return job_id, frozenset(found.get(job_id, ()))

    def _kill_task_executor(self) -> bool:
        with self._cluster.client() as client:
            workers = client.task_managers()
        return sum(kill(worker.registration.pid) for worker in workers) > 0

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
                threading.Event().wait(0.1)
        if left is None:
            self.problems.append(unanswered)

    def _look(self, client: ClusterClient) -> Look:
        before, asked = self._working_jobs(), time.monotonic()
        jobs, answered = client.list_jobs(), time.monotonic()
        return Look(asked, answered, {job.job_id: _listed(job) for job in jobs}, before, self._working_jobs())

    def _working_jobs(self) -> frozenset[str]:
        """The jobs that have a living task process."""
        found: set[str] = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    directory = (entry / "cwd").readlink()
                    if directory.is_relative_to(self._cluster.directory):
                        found.update(match[1] for match in _TASK_DIR.finditer(str(directory)))
        return frozenset(found)

    async def _missing_files(self) -> list[str]:
        """Handles without their files; nothing where Redis is away, since the next look finds them too."""
        try:
            services = open_redis_services(Configuration.read(self._cluster.directory / "configuration.json"))
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
    return [f"{kind}/{name}" for kind in KINDS for name in await services.state_handles(kind).names()]


async def dangling_handles(services: RedisHaServices) -> list[str]:
    """The handles that point to no file, or not to what was stored."""
    return [
        f"the handle {kind}/{name} dangles: {state}"
        for kind in KINDS
        for name, state in (await services.state_handles(kind).get_all()).items()
        if isinstance(state, Exception)
    ]


def _listed(job: JobDetails) -> Listed:
    return Listed(job.status.value, job.tasks_per_state.get("RUNNING", 0))
