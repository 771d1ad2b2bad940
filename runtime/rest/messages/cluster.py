"""The cluster: what the page is told of itself, counts, configuration, environment, logs, threads."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Mapping

import runtime
from runtime.protocol.diagnostics import ThreadDump
from runtime.protocol.leader import LeaderInformation
from runtime.protocol.messages import ClusterOverview, ClusterStatus
from runtime.rest.messages.common import NO_TIME, Json

VERSION = f"understudy {runtime.__version__}"
API_VERSION = "2.3.0"
"""The release of Flink whose API this is."""


def dashboard_configuration(refresh_ms: int, at: time.struct_time) -> Json:
    """GET /config; *at* is the present local time, for the zone."""
    return {
        "refresh-interval": refresh_ms,
        "timezone-name": at.tm_zone,
        "timezone-offset": at.tm_gmtoff * 1000,
        "flink-version": API_VERSION,
        "flink-revision": VERSION,
        # What the page would upload are jars of Flink's.
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": False, "web-history": False},
    }


def overview(counts: ClusterOverview) -> Json:
    """GET /overview."""
    return {
        "taskmanagers": counts.task_managers,
        "slots-total": counts.slots,
        "slots-available": counts.free_slots,
        "jobs-running": counts.jobs_running,
        "jobs-finished": counts.jobs_finished,
        "jobs-cancelled": counts.jobs_cancelled,
        "jobs-failed": counts.jobs_failed,
        "flink-version": API_VERSION,
        "flink-commit": VERSION,
        "pending-slot-requests": counts.pending_requests,
    }


def processes(status: ClusterStatus, leaders: Iterable[LeaderInformation]) -> Json:
    """GET /processes: what the masters look after; a leader has its ``epoch``, which is -1 where it is not known."""
    epochs = {leader.address: leader.epoch for leader in leaders}
    return {
        "cluster-id": status.cluster_id,
        "version": status.version,
        "start-time": status.started_ms,
        "processes": [
            {
                "name": process.name,
                "role": process.role,
                "pid": process.pid,
                "address": process.address,
                "restarts": process.restarts,
                "leadership": process.leadership,
                "epoch": epochs.get(process.address, NO_TIME),
                "stopped": process.is_stopped,
                "url": process.url,
            }
            for process in status.processes
        ],
    }


def configuration(values: Mapping[str, str]) -> list[Json]:
    """GET /jobmanager/config; *values* have their secrets masked."""
    return [{"key": key, "value": value} for key, value in sorted(values.items())]


def environment() -> Json:
    """GET /jobmanager/environment: of this process, whose virtual machine is Python's."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "jvm": {"version": version, "arch": platform.machine(), "options": [f"-X{name}" for name in sys._xoptions]},
        "classpath": [entry for entry in sys.path if entry],
    }


def logs(files: Iterable[tuple[str, int, int]]) -> Json:
    """GET .../logs; each file's name, size in bytes and time of the last change in milliseconds since the epoch."""
    return {"logs": [{"name": name, "size": size, "mtime": mtime} for name, size, mtime in files]}


def thread_dump(dump: ThreadDump) -> Json:
    """GET .../thread-dump (Flink's `ThreadDumpInfo`); ``pid`` and ``state`` are ours alone."""
    return {
        "pid": dump.pid,
        "threadInfos": [
            {
                "threadName": thread.name,
                "stringifiedThreadInfo": f'"{thread.name}" {thread.state}'.rstrip() + f"\n{thread.stack}\n",
                "state": thread.state,
            }
            for thread in dump.threads
        ],
    }


def jars(address: str) -> Json:
    """GET /jars: there are none."""
    return {"address": address, "files": []}
