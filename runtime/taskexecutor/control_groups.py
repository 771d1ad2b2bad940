"""Control groups of Linux (cgroups): one for each task, which limits what all of its processes use together.

Both versions are supported: version 2, one tree for all controllers, and version 1, a tree for each. Groups are made
below the one that the TaskExecutor was given (``taskmanager.cgroup``), and are removed after their tasks. A task's
process enters its group by itself, before it runs any code of the job (`runtime.spark.task.program.enter`).

The files of a control group belong to the kernel: each read and write calls it, and none waits for a disk.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from conf.configuration import Configuration
from conf.options import TaskManagerOptions
from runtime.errors import ClusterError
from runtime.process_signals import signal_process

MOUNTS = Path("/proc/self/mounts")
PERIOD_US = 100_000
"""Length of the periods in which the kernel counts a group's processor time; the kernel's own default."""
MEMORY = TaskManagerOptions.TASK_CGROUP_MEMORY.key
REMEDY = "see docs/limits.md for what it has to be, or unset it"
PATIENCE_S = 10.0
"""Longest time in seconds that killed processes may take to disappear."""


class ControlGroupError(ClusterError):
    """Tasks cannot have control groups as the configuration says."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of what the processes of a task use together; None for no limit.

    Args:
        memory_bytes: memory that they write to, and pages of files that they read and write, while the kernel keeps
            these.
        cpus: processors, or parts of one.
    """

    memory_bytes: int | None = None
    cpus: float | None = None

    def __str__(self) -> str:
        return "no limit" if self.memory_bytes is None else f"{MEMORY} ({self.memory_bytes >> 20} MB)"

    @property
    def controllers(self) -> tuple[str, ...]:
        """Controllers that the kernel needs for these limits."""
        wanted = (("memory", self.memory_bytes), ("cpu", self.cpus))
        return tuple(name for name, limit in wanted if limit is not None)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The given group in one tree, and the controllers that are used there."""

    version: int
    group: Path
    controllers: tuple[str, ...]

    def settings(self, limits: GroupLimits) -> list[tuple[str, str]]:
        """Return the files of a task's group and what to write into each, in order."""
        found: list[tuple[str, str]] = []
        if "memory" in self.controllers and limits.memory_bytes is not None:
            most = str(limits.memory_bytes)
            if self.version == 2:
                # Swapped out memory is not given back; and a task that has lost some of its processes is useless.
                found += [("memory.max", most), ("memory.swap.max", "0"), ("memory.oom.group", "1")]
            else:
                found += [("memory.limit_in_bytes", most), ("memory.memsw.limit_in_bytes", most)]
        if "cpu" in self.controllers and limits.cpus is not None:
            quota = str(max(1000, int(limits.cpus * PERIOD_US)))  # the kernel rejects less than 1 ms
            if self.version == 2:
                found.append(("cpu.max", f"{quota} {PERIOD_US}"))
            else:
                found += [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota)]
        return found


_WITHOUT_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes", "memory.oom.group")
"""Files that are missing in a kernel without swap accounting, or in an old one."""


class ControlGroups:
    """The groups of one TaskExecutor's tasks.

    Args:
        trees: the given group in each tree.
        limits: of each task.
        owner: names the TaskExecutor in the groups' names; unique on this machine.
    """

    def __init__(self, trees: Iterable[_Tree], limits: GroupLimits, owner: str) -> None:
        self._trees = tuple(trees)
        self.limits = limits
        self._prefix = f"task-{hashlib.sha256(owner.encode()).hexdigest()[:12]}-"

    @classmethod
    def open(
        cls, name: str, limits: GroupLimits, owner: str, mounts: Path = MOUNTS, adopted: Collection[str] = ()
    ) -> ControlGroups:
        """Find the given group in the trees of the needed controllers, and check that groups can be made in it.

        Args:
            name: path from the root of the tree, or of each tree.
            limits: of each task.
            owner: see `ControlGroups`.
            mounts: the kernel's table of mounts.
            adopted: attempts that run already, in groups of their own.

        Raises:
            ControlGroupError: there is no such group, or it cannot be used.
        """
        by_group: dict[tuple[int, Path], list[str]] = {}
        found = _mounts(mounts.read_text(errors="surrogateescape"))
        for controller in limits.controllers:
            by_group.setdefault(_find(controller, name, found), []).append(controller)
        groups = cls(
            (_Tree(version, group, tuple(names)) for (version, group), names in by_group.items()), limits, owner
        )
        groups._remove_left(adopted)
        try:
            groups.create("probe").remove()
        except OSError as error:
            raise ControlGroupError(
                f"no control group can be made below taskmanager.cgroup: {error.strerror} ({error.filename})",
                REMEDY,
            ) from error
        return groups

    def create(self, attempt_id: str) -> ControlGroup:
        """Make the group of an attempt; raises OSError."""
        made: list[tuple[int, Path]] = []
        try:
            for tree in self._trees:
                directory = tree.group / f"{self._prefix}{attempt_id}"
                directory.mkdir(mode=0o700, exist_ok=True)
                made.append((tree.version, directory))
                for file, value in tree.settings(self.limits):
                    if file not in _WITHOUT_SWAP or (directory / file).exists():
                        (directory / file).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                ControlGroup(made).remove()
            raise
        return ControlGroup(made)

    def _remove_left(self, adopted: Collection[str]) -> None:
        """Remove the groups of a killed TaskExecutor of this name; processes left in them are killed."""
        kept = {f"{self._prefix}{attempt_id}" for attempt_id in adopted}
        for tree in self._trees:
            for directory in tree.group.glob(f"{self._prefix}*"):
                if directory.name in kept:
                    continue
                with contextlib.suppress(OSError):  # a group that stays does no harm
                    ControlGroup([(tree.version, directory)]).remove()


def control_groups(configuration: Configuration, owner: str, adopted: Collection[str] = ()) -> ControlGroups | None:
    """Return the control groups that a configuration names; None if it names none.

    Args:
        configuration: the cluster's.
        owner: see `ControlGroups`.
        adopted: see `ControlGroups.open`.

    Raises:
        ControlGroupError: they cannot be made.
    """
    name = configuration.get(TaskManagerOptions.CGROUP)
    limits = GroupLimits(
        configuration.get(TaskManagerOptions.TASK_CGROUP_MEMORY), configuration.get(TaskManagerOptions.TASK_CGROUP_CPUS)
    )
    if name is not None and limits.controllers:
        return ControlGroups.open(name, limits, owner, adopted=adopted)
    if limits.controllers:
        raise ControlGroupError(
            "taskmanager.task.cgroup.memory or taskmanager.task.cgroup.cpus is set, and taskmanager.cgroup is not",
            "name the control group in which tasks get theirs (docs/limits.md), or unset the limit",
        )
    if name is not None:
        raise ControlGroupError(
            "taskmanager.cgroup is set, and neither taskmanager.task.cgroup.memory nor taskmanager.task.cgroup.cpus is",
            "set one of them, or unset taskmanager.cgroup",
        )
    return None


class ControlGroup:
    """Group of one task, in each tree.

    Args:
        directories: the group's directories, each with the version of its tree.
    """

    def __init__(self, directories: Iterable[tuple[int, Path]]) -> None:
        self._directories = tuple(directories)

    @property
    def entries(self) -> tuple[str, ...]:
        """Files into which a process writes 0 to enter the group."""
        return tuple(str(directory / "cgroup.procs") for _, directory in self._directories)

    def out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process of the group because of the memory limit."""
        for version, directory in self._directories:
            file = directory / ("memory.events" if version == 2 else "memory.oom_control")
            with contextlib.suppress(FileNotFoundError):  # another controller's
                lines = (line.split() for line in file.read_text().splitlines())
                if any(name == "oom_kill" and int(count) > 0 for name, count in lines):
                    return True
        return False

    def remove(self) -> None:
        """Kill the processes that are left in the group, and remove it; blocks until they have ended.

        Raises:
            OSError: the group cannot be removed.
            TimeoutError: its processes do not end.
        """
        deadline = time.monotonic() + PATIENCE_S
        for _, directory in self._directories:
            while not _removed(directory):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"processes in {directory} do not end")
                for pid in _words(directory / "cgroup.procs"):
                    signal_process(int(pid), signal.SIGKILL, functools.partial(_contains, directory, pid))
                time.sleep(0.005)


def _contains(directory: Path, pid: str) -> bool:
    return pid in _words(directory / "cgroup.procs")


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _mounts(table: str) -> list[tuple[int, Path, frozenset[str]]]:
    """Return version, directory and options of each mounted tree."""
    kinds = {"cgroup": 1, "cgroup2": 2}
    lines = (line.split(" ") for line in table.split("\n") if line)
    return [
        (kinds[kind], Path(_unescaped(directory)), frozenset(options.split(",")))
        for _, directory, kind, options, *_ in lines
        if kind in kinds
    ]


def _unescaped(field: str) -> str:
    """Return a field of the kernel's table of mounts, which has white space, ``\\`` and ``#`` as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _find(controller: str, name: str, mounts: list[tuple[int, Path, frozenset[str]]]) -> tuple[int, Path]:
    """Return the version of the tree that has a controller, and the given group in it. Raises ControlGroupError."""
    missing = []
    for version, mount, options in mounts:
        group = mount / name.strip("/")
        if version == 1 and controller not in options:
            continue
        if version == 2 and controller not in _words(mount / "cgroup.controllers"):
            continue
        if not group.is_dir():
            missing.append(str(group))
            continue
        if not os.access(group, os.W_OK):
            raise ControlGroupError(f"the control group {group} (taskmanager.cgroup) is not writable", REMEDY)
        if version == 2:
            _delegate(group, controller)
        return version, group
    if missing:
        raise ControlGroupError(f"there is no control group {' or '.join(missing)} (taskmanager.cgroup)", REMEDY)
    raise ControlGroupError(f"this machine has no control groups for {controller} (taskmanager.cgroup)", REMEDY)


def _delegate(group: Path, controller: str) -> None:
    """Enable a controller for the groups below one of version 2. Raises ControlGroupError."""
    if controller in _words(group / "cgroup.subtree_control"):
        return
    if controller not in _words(group / "cgroup.controllers"):
        raise ControlGroupError(f"the control group {group} was not given the controller {controller}", REMEDY)
    try:
        (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        why = "it contains processes itself" if error.errno == errno.EBUSY else error.strerror
        raise ControlGroupError(
            f"the control group {group} cannot enable the controller {controller} for its children: {why}", REMEDY
        ) from error


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:  # the root of a tree has no such list of its own
        return []
