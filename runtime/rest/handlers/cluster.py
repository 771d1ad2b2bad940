"""The cluster: counts, configuration, environment, logs and threads of the control plane."""

from __future__ import annotations

import asyncio
import os
import platform
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import runtime
from conf.options import RestOptions
from runtime.history.reader import ClusterHistory
from runtime.protocol.diagnostics import LogInfo, ThreadDump, ThreadInfo
from runtime.protocol.leader import LeaderInformation
from runtime.protocol.messages import ClusterOverview, ClusterStatus
from runtime.rest import forms
from runtime.rest.authorization import principal_of
from runtime.rest.context import Rest, offset_of
from runtime.rest.errors import RestError
from runtime.rest.messages import NO_TIME, Json
from runtime.rest.routing import FROM_OFFSET, JSON, LOG_SIZE, TEXT, RestRoute, answer, to_json
from runtime.threads import thread_stacks, thread_states

VERSION = f"understudy {runtime.__version__}"
API_VERSION = "2.3.0"
"""The release of Flink whose API this is."""
MAIN_LOG = "master.log"
STDOUT = "master.out"
CHUNK = 256 * 1024


def is_control_plane(name: str) -> bool:
    """Return whether a file is a log of the control plane, not of a worker, which serves its own."""
    return not name.startswith(("taskmanager", "."))


def list_logs(directory: Path, wanted: Callable[[str], bool] = is_control_plane) -> list[LogInfo]:
    """List the plain files of a directory, by name; raises OSError.

    Only listed files may be read: a name becomes a path only if it is in the list, and links are not followed.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if wanted(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append(LogInfo(entry.name, status.st_size, status.st_mtime_ns // 1_000_000))
    return sorted(found, key=lambda log: log.name)


class OpenLog:
    """A log that is being read, up to its size at the time of opening.

    Args:
        directory: of the logs.
        name: as in `list_logs`.
        offset: the first byte to read; nothing is read if the log is shorter.

    Raises:
        RestError: of status 404: there is no log of that name, or it cannot be read.
    """

    def __init__(self, directory: Path, name: str, offset: int = 0) -> None:
        if name not in {log.name for log in list_logs(directory)}:
            raise RestError(404, f"there is no log {name!r}; GET /jobmanager/logs shows those that there are")
        try:
            self._descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RestError(404, f"the log {name!r} cannot be read: {error.strerror}") from error
        status = os.fstat(self._descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._left = max(0, self.size - offset)
        if self._left:
            os.lseek(self._descriptor, offset, os.SEEK_SET)

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        data = os.read(self._descriptor, min(CHUNK, self._left)) if self._left else b""
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def dashboard_configuration(
    refresh_ms: int, at: time.struct_time, histories: Sequence[ClusterHistory] | None = None
) -> Json:
    """GET /config.

    Args:
        refresh_ms: how often the page is to ask, in milliseconds.
        at: the present local time, for the zone.
        histories: of a history server; None for a cluster that runs.
    """
    return {
        "refresh-interval": refresh_ms,
        "timezone-name": at.tm_zone,
        "timezone-offset": at.tm_gmtoff * 1000,
        "flink-version": API_VERSION,
        "flink-revision": VERSION,
        # The page would upload jars of Flink.
        "features": {
            "web-submit": False,
            "web-cancel": histories is None,
            "web-rescale": False,
            "web-history": histories is not None,
        },
        "clusters": [
            {"name": history.name, "directory": str(history.directory.root), "damaged": history.damaged()}
            for history in histories or ()
        ],
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


def feature_level(counts: ClusterOverview) -> Json:
    """GET /feature-level: of the cluster, and the newest that the leading Dispatcher supports."""
    return {"feature-level": counts.feature_level, "newest-feature-level": counts.newest_feature_level}


def processes(status: ClusterStatus, leaders: Iterable[LeaderInformation]) -> Json:
    """GET /processes: the processes that masters supervise; ``epoch`` is that of a known leader, else -1."""
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


ROUTES: list[RestRoute] = []


@RestRoute("GET", "/config", "What a web page needs to know first", result=forms.CONFIG).on(ROUTES)
async def get_dashboard_configuration(rest: Rest, request: Request) -> Response:
    refresh_ms = int(rest.configuration.get(RestOptions.REFRESH_INTERVAL) * 1000)
    return answer(
        dashboard_configuration(max(refresh_ms, 1), time.localtime(), rest.histories if rest.is_history else None)
    )


async def encoded_overview(rest: Rest) -> bytes:
    """Return the answer to GET /overview as JSON text."""

    async def ask() -> bytes:
        return to_json(overview(await rest.backend.overview()))

    found: bytes = await rest.snapshots.get("/overview", ask)
    return found


@RestRoute(
    "GET",
    "/whoami",
    "The user whom the request's token identifies; an empty name for one of the cluster's own tokens",
    result={"user": str, "role": str, "token": str, "issuer": str, "expires": (int, type(None))},
).on(ROUTES)
async def get_identity(rest: Rest, request: Request) -> Response:
    principal = principal_of(request)
    return answer(
        {
            "user": principal.name,
            "role": principal.role.value,
            "token": principal.token_id,
            "issuer": principal.issuer,
            "expires": principal.expires_ms,
        }
    )


@RestRoute("GET", "/overview", "Counts of TaskExecutors, slots and jobs", result=forms.OVERVIEW).on(ROUTES)
async def get_overview(rest: Rest, request: Request) -> Response:
    return Response(await encoded_overview(rest), media_type=JSON)


@RestRoute(
    "GET",
    "/processes",
    "The processes of the cluster, and which of them lead",
    result={"cluster-id": str, "version": str, "start-time": int, "processes": [dict]},
).on(ROUTES)
async def get_processes(rest: Rest, request: Request) -> Response:
    status = await rest.snapshots.get("/processes", rest.backend.status)
    return answer(processes(status, rest.backend.leaders()))


@RestRoute(
    "GET",
    "/feature-level",
    "The feature level, which decides the formats that the cluster writes",
    result={"feature-level": int, "newest-feature-level": int},
).on(ROUTES)
async def get_feature_level(rest: Rest, request: Request) -> Response:
    return answer(feature_level(await rest.snapshots.get("overview", rest.backend.overview)))


@RestRoute(
    "GET",
    "/queues",
    "The queues with their use, and the requests for slots that wait, in their order",
    result=forms.QUEUES,
).on(ROUTES)
async def get_queues(rest: Rest, request: Request) -> Response:
    return answer(asdict(await rest.snapshots.get("/queues", rest.backend.queues)))


@RestRoute("GET", "/jobmanager/config", "The cluster's configuration, secrets masked", result=forms.SETTINGS).on(ROUTES)
async def get_configuration(rest: Rest, request: Request) -> Response:
    return answer(configuration(rest.configuration.to_dict(redacted=True)))


@RestRoute("GET", "/jobmanager/environment", "What the web endpoint runs on", result=forms.ENVIRONMENT).on(ROUTES)
async def get_environment(rest: Rest, request: Request) -> Response:
    return answer(environment())


@RestRoute("GET", "/jobmanager/thread-dump", "Where the threads of the web endpoint are", result=forms.THREADS).on(
    ROUTES
)
async def get_thread_dump(rest: Rest, request: Request) -> Response:
    states = thread_states()
    threads = tuple(ThreadInfo(name, stack, states.get(name, "")) for name, stack in thread_stacks())
    return answer(thread_dump(ThreadDump(os.getpid(), threads)))


@RestRoute("GET", "/jobmanager/logs", "The logs of this machine's control plane", result=forms.LOGS).on(ROUTES)
async def get_logs(rest: Rest, request: Request) -> Response:
    found = await asyncio.to_thread(list_logs, rest.log_dir)
    return answer(logs((log.name, log.size, log.mtime_ms) for log in found))


@RestRoute(
    "GET",
    "/jobmanager/logs/{filename}",
    "One of these logs; the header X-Log-Size says how long it is",
    media=TEXT,
    query=(FROM_OFFSET,),
).on(ROUTES)
async def get_log_file(rest: Rest, request: Request) -> Response:
    offset = offset_of(request)
    return await _send_log(rest, request.path_params["filename"], offset)


@RestRoute("GET", "/jobmanager/log", "The log of the first master", media=TEXT).on(ROUTES)
async def get_log(rest: Rest, request: Request) -> Response:
    return await _send_log(rest, MAIN_LOG)


@RestRoute("GET", "/jobmanager/stdout", "What the masters printed", media=TEXT).on(ROUTES)
async def get_stdout(rest: Rest, request: Request) -> Response:
    return await _send_log(rest, STDOUT)


async def _send_log(rest: Rest, name: str, offset: int = 0) -> Response:
    log = await asyncio.to_thread(OpenLog, rest.log_dir, name, offset)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while piece := await asyncio.to_thread(log.read):
                yield piece
        finally:
            log.close()

    return StreamingResponse(pieces(), media_type=TEXT, headers={LOG_SIZE: str(log.size)})


@RestRoute("GET", "/datasets", "Cached data sets: none", result={"dataSets": [dict]}).on(ROUTES)
async def get_data_sets(rest: Rest, request: Request) -> Response:
    return answer({"dataSets": []})


@RestRoute("DELETE", "/cluster", "Begin to stop the cluster").on(ROUTES)
async def shut_down(rest: Rest, request: Request) -> Response:
    await rest.backend.shut_down()
    return answer({})
