"""Removes leftover files and processes: sockets of killed processes, orphans that have ended, old logs.

A killed process leaves sockets that no process serves, and no other process removes them. An actor system's process is
a subreaper (`actors.process.thespian_base.become_subreaper`). It inherits the descendants of its children, for which no
other process waits. The Dispatcher that forgets a job removes its logs only from its own machine, and while it leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conf.options import JobStoreOptions, JobStoreType, SparkOptions
from runtime.cluster.supervisor import reap
from runtime.environment.context import ComponentContext
from runtime.protocol.leader import job_master
from runtime.spark.driver.event_logs import tidy

if TYPE_CHECKING:  # a worker does not need Redis
    from runtime.ha.running_jobs import JobEntry
    from runtime.ha.services import HighAvailabilityServices

logger = logging.getLogger(__name__)

SOCKETS_INTERVAL_S = 60.0
LEAST_AGE_S = 10.0
"""Age in seconds from which a socket may be removed: a process binds it a moment before it listens."""


async def remove_abandoned_sockets(directory: Path, interval_s: float = SOCKETS_INTERVAL_S) -> None:
    """Remove abandoned sockets regularly, until cancelled.

    Args:
        directory: directory of the sockets of the cluster's processes.
        interval_s: seconds between two sweeps.
    """
    while True:
        await asyncio.sleep(interval_s)
        await asyncio.to_thread(sweep, directory, time.time() - LEAST_AGE_S)


def sweep(directory: Path, made_before: float) -> list[Path]:
    """Remove and return the sockets made before a moment (seconds since 1970) that no process serves."""
    removed = []
    for path in directory.glob("rpc-*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just ended in good order
            found = path.stat()
            if stat.S_ISSOCK(found.st_mode) and found.st_mtime < made_before and not _is_served(path):
                path.unlink()
                removed.append(path)
    return removed


def _is_served(path: Path) -> bool:
    """Return whether a process listens there, even a suspended one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # its backlog is full
            return True
        return True


CHILDREN_INTERVAL_S = 5.0


def own_children() -> set[int]:
    """Return the children of this process, also those that have ended without being waited for (Linux)."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended: another has its children
            found.update(int(word) for word in listing.read_text().split())
    return found


def ended_children() -> set[int]:
    """Return the children of this process that have ended without being waited for (Linux)."""
    return {pid for pid in own_children() if _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False  # another thread has just waited for it
    return stat.rpartition(")")[2].split()[0] == "Z"


async def collect_orphans(interval_s: float = CHILDREN_INTERVAL_S) -> None:
    """Wait for orphans regularly, until cancelled.

    Code that starts a child waits for it without delay. So a child that has ended and still exists at the next check
    is an orphan.

    Args:
        interval_s: seconds between two checks.
    """
    before: set[int] = set()
    while True:
        await asyncio.sleep(interval_s)
        now = ended_children()
        for pid in before & now:
            reap(pid)
        before = now - before


# --------------------------------------------------------- logs of JobMasters


LOGS_INTERVAL_S = 60.0
GRACE_S = 600.0
"""Seconds for which the log of an unknown job is kept after its last line: the job may become known later."""

_NAME = re.compile(re.escape(job_master("")) + r"([0-9a-f]{32})(-[0-9]+)?\.log(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class JobMasterLog:
    """A log: its name, the id of its job, its bytes, and the time of its last line (seconds since the epoch)."""

    name: str
    job_id: str
    size: int
    written_s: float


def list_job_master_logs(directory: Path) -> list[JobMasterLog]:
    """Return the logs of JobMasters in a log directory, of all masters, including rotated ones; raises OSError."""
    found = []
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:  # the Dispatcher has just forgotten its job
            continue
        found.append(JobMasterLog(path.name, name[1], status.st_size, status.st_mtime))
    return found


def surplus_logs(
    logs: Iterable[JobMasterLog], running: Collection[str], listed: Collection[str], now_s: float, max_bytes: int
) -> list[str]:
    """Return the names of the logs to remove. Pure.

    Args:
        logs: all that exist.
        running: ids of the jobs that are not over: their logs stay.
        listed: ids of the ended jobs that are still listed. Their logs stay up to *max_bytes* together; beyond it the
            oldest are removed first, but never those of the last job.
        now_s: seconds since the epoch.
        max_bytes: see *listed*.
    """
    by_job = defaultdict[str, list[JobMasterLog]](list)
    for file in logs:
        if file.job_id not in running:
            by_job[file.job_id].append(file)
    surplus: list[str] = []
    ended: list[tuple[float, int, list[str]]] = []
    for job_id, group in by_job.items():
        written_s, names = max(file.written_s for file in group), [file.name for file in group]
        if job_id in listed:
            ended.append((written_s, sum(file.size for file in group), names))
        elif now_s - written_s > GRACE_S:
            surplus += names
    ended.sort()
    total = sum(size for _, size, _ in ended)
    for _, size, names in ended[:-1]:
        if total <= max_bytes:
            break
        surplus += names
        total -= size
    return sorted(surplus)


async def remove_surplus_job_master_logs(context: ComponentContext, ha: HighAvailabilityServices) -> None:
    """Remove the logs of forgotten jobs regularly, until cancelled."""
    from runtime.ha.errors import HaError

    while True:
        await asyncio.sleep(LOGS_INTERVAL_S)
        try:
            entries = await ha.running_jobs_registry().entries()
            for name in await asyncio.to_thread(_remove, context, entries, time.time()):
                logger.info("removed %s: its job is forgotten, or jobstore.log-size is exceeded", name)
        except (HaError, OSError) as error:
            logger.warning("the logs of forgotten jobs are not removed yet: %s", error)


def _remove(context: ComponentContext, entries: Mapping[str, JobEntry], now_s: float) -> list[str]:
    get, directory = context.configuration.get, context.directory.log
    ended = {job_id for job_id, entry in entries.items() if entry.status.value == "DONE"}
    in_files = get(JobStoreOptions.TYPE) is JobStoreType.FILE
    listed = {path.stem for path in context.archive.glob("*.job")} if in_files else ended
    running, files = entries.keys() - ended, list_job_master_logs(directory)
    surplus = surplus_logs(files, running, listed, now_s, get(JobStoreOptions.LOG_SIZE))
    for name in surplus:
        (directory / name).unlink(missing_ok=True)
    return surplus


async def keep_event_logs_bounded(context: ComponentContext, interval_s: float = LOGS_INTERVAL_S) -> None:
    """Remove Spark's event logs of this machine that are too old or too large, regularly, until cancelled."""
    get, directory = context.configuration.get, context.directory.event_logs
    retention_s, max_bytes = get(SparkOptions.EVENT_LOG_RETENTION), get(SparkOptions.EVENT_LOG_MAX_SIZE)
    while True:
        try:
            for application in await asyncio.to_thread(tidy, directory, time.time(), retention_s, max_bytes):
                logger.info("removed the event log of Spark application %s: too old, or too much", application)
        except OSError as error:
            logger.warning("Spark's event logs cannot be kept within their bounds: %s", error)
        await asyncio.sleep(interval_s)
