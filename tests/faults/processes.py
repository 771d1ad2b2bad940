"""The processes of a cluster by their kind; killing processes, and having them stand still."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterable, Iterator

import psutil

from runtime.protocol.messages import ProcessView, TaskExecutorRegistration
from tests.cluster_harness import Cluster, attempt_of, await_value
from tests.processes import lives

COMPONENTS = ("dispatcher", "resourcemanager", "blobserver", "jobmaster", "master", "redis")
KINDS = (*COMPONENTS, "taskexecutor", "driver", "zygote", "task", "python worker")
PAIRS = (
    ("dispatcher", "resourcemanager"),
    ("dispatcher", "jobmaster"),
    ("jobmaster", "resourcemanager"),
    ("jobmaster", "taskexecutor"),
    ("resourcemanager", "taskexecutor"),
    ("blobserver", "all"),
)
"""Which components are cut off from which; one TaskExecutor of several, and all processes of the other kinds."""
LEADER = 0.75
"""How often a leader is meant where there are standbys."""


class Finder:
    """Finds the processes of a cluster.

    Args:
        cluster: which runs.
        choice: decides between several of a kind.
    """

    def __init__(self, cluster: Cluster, choice: random.Random) -> None:
        self._cluster = cluster
        self._random = choice

    def components(self, kind: str) -> list[ProcessView]:
        """The processes of a kind that `status` names."""
        with self._cluster.client() as client:
            views = client.status().processes
        return [view for view in views if view.name.split("-")[0] == kind and view.pid]

    def one_of(self, kind: str) -> int | None:
        """A process of one of `KINDS`; None where there is none now. One that leads rather than another.

        Raises:
            ActorError: nobody answers.
        """
        found, leading = [], []
        if kind in COMPONENTS:
            views = self.components(kind)
            found = [view.pid for view in views if lives(view.pid)]
            leading = [view.pid for view in views if view.leadership == "leader" and view.pid in found]
        else:
            for worker in self._workers():
                found += processes_of(worker, kind)
        if leading and self._random.random() < LEADER:
            found = leading
        return self._random.choice(found) if found else None

    def groups(self, kind: str, other: str) -> tuple[set[int], set[int]]:
        """The processes of two kinds; of TaskExecutors one, and ``all`` is all that the cluster has."""
        return self._group(kind), self._group(other)

    def _group(self, kind: str) -> set[int]:
        if kind == "all":
            return set(self._cluster.processes())
        if kind == "taskexecutor":
            one = self.one_of(kind)
            return set() if one is None else {one}
        return {view.pid for view in self.components(kind)}

    def _workers(self) -> list[TaskExecutorRegistration]:
        with self._cluster.client() as client:
            return [view.registration for view in client.task_managers()]


def processes_of(worker: TaskExecutorRegistration, kind: str) -> list[int]:
    """The processes of a kind that belong to a TaskExecutor."""
    if kind == "taskexecutor":
        return [pid for pid in (worker.pid,) if lives(pid)]
    if kind == "driver":
        return [pid for pid in (worker.spark_pid,) if lives(pid)]
    if kind == "zygote":
        return zygotes_of(worker.pid)
    if kind == "task":
        return [pid for zygote in zygotes_of(worker.pid) for pid in _children(zygote) if _is_task(pid)]
    assert kind == "python worker", kind
    return [
        worker_pid
        for daemon in _children(worker.spark_pid)
        if _runs(daemon, "pyspark.daemon")
        for worker_pid in _children(daemon)
    ]


def zygotes_of(pid: int) -> list[int]:
    """The zygote of a TaskExecutor; none for another process."""
    return [child for child in _children(pid) if _runs(child, "understudy.runtime.spark.task.zygote")]


def _children(pid: int) -> Iterable[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children() if lives(child.pid)]
    return []


def _runs(pid: int, module: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return module in psutil.Process(pid).cmdline()
    return False


def _is_task(pid: int) -> bool:
    """Whether it has been given a task; those that are ready for one have none."""
    return "/tasks/" in attempt_of(pid)


def _stands_still(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> bool:
    """SIGKILL; False where there is no such process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[bool]:
    """The process does nothing meanwhile; False where there is none."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        await_value(lambda: _stands_still(pid) or not lives(pid))
        yield lives(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
