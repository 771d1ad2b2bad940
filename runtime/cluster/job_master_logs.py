"""Which logs of JobMasters a master removes from its log directory: they go with their jobs, and are bounded in all.

The Dispatcher that forgets a job removes its logs too, but only from its own machine, and only while it leads.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.options import JobStoreOptions, JobStoreType
from runtime.environment.context import ComponentContext
from runtime.ha.errors import HaError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.protocol.leader import job_master

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
GRACE_S = 600.0
"""How long a log stays that was written to and is of no known job: the job may be known a moment later."""

_NAME = re.compile(re.escape(job_master("")) + r"([0-9a-f]{32})(-[0-9]+)?\.log(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class JobMasterLog:
    """One file: its name, the id of its job, its bytes, and when it was written to last (seconds since the epoch)."""

    name: str
    job_id: str
    size: int
    written_s: float


def list_job_master_logs(directory: Path) -> list[JobMasterLog]:
    """Return the logs of JobMasters in a log directory, of every master and put-aside ones too; raises OSError."""
    found = []
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:  # the Dispatcher has forgotten its job at this moment
            continue
        found.append(JobMasterLog(path.name, name[1], status.st_size, status.st_mtime))
    return found


def surplus_logs(
    logs: Iterable[JobMasterLog], running: Collection[str], listed: Collection[str], now_s: float, max_bytes: int
) -> list[str]:
    """Return the names of the logs to remove. Pure.

    Args:
        logs: those that there are.
        running: ids of the jobs that are not over: their logs stay.
        listed: ids of the ended jobs that are still listed. Their logs stay while they have at most *max_bytes*
            together; beyond it those go first that were written to longest ago, but not those of the last job.
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
    """Remove them every now and then, as long as the task runs."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            entries = await ha.running_jobs_registry().entries()
            for name in await asyncio.to_thread(_remove, context, entries, time.time()):
                logger.info("removed %s: its job is forgotten, or jobstore.log-size is exceeded", name)
        except (HaError, OSError) as error:
            logger.warning("the logs of forgotten jobs are not removed yet: %s", error)


def _remove(context: ComponentContext, entries: Mapping[str, JobEntry], now_s: float) -> list[str]:
    get, directory = context.configuration.get, context.directory.log
    ended = {job_id for job_id, entry in entries.items() if entry.status is JobSchedulingStatus.DONE}
    in_files = get(JobStoreOptions.TYPE) is JobStoreType.FILE
    listed = {path.stem for path in context.archive.glob("*.job")} if in_files else ended
    running, files = entries.keys() - ended, list_job_master_logs(directory)
    surplus = surplus_logs(files, running, listed, now_s, get(JobStoreOptions.LOG_SIZE))
    for name in surplus:
        (directory / name).unlink(missing_ok=True)
    return surplus
