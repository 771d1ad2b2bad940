"""TaskExecutors: lists, details, logs, threads (Flink's `TaskManagerInfo` and `TaskManagerDetailsInfo`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from runtime.ids import ExecutionAttemptID, ResourceID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import TaskExecutorRegistration, TaskManagerInfo, TaskManagerView
from runtime.rest import forms
from runtime.rest.context import Rest, number_of, offset_of
from runtime.rest.errors import RestError
from runtime.rest.handlers import cluster
from runtime.rest.messages import Json
from runtime.rest.routing import FROM_OFFSET, LOG_SIZE, TEXT, WHOLE_NUMBER, Parameter, RestRoute, answer, now_ms, text
from runtime.stack_samples import MOST_SAMPLES, FlameNode, StackProfile, flame_graph

MAIN_LOG = "taskexecutor"
SAMPLES, INTERVAL_MS = 100, 20
MOST_PROFILE_MS = 20_000
_MB = 1 << 20
JVM_MEMORY = {
    "heapUsed": "Heap.Used",
    "heapCommitted": "Heap.Committed",
    "heapMax": "Heap.Max",
    "nonHeapUsed": "NonHeap.Used",
    "nonHeapCommitted": "NonHeap.Committed",
    "nonHeapMax": "NonHeap.Max",
    "directCount": "Direct.Count",
    "directUsed": "Direct.MemoryUsed",
    "directMax": "Direct.TotalCapacity",
    "mappedCount": "Mapped.Count",
    "mappedUsed": "Mapped.MemoryUsed",
    "mappedMax": "Mapped.TotalCapacity",
}
"""Fields of Flink's `TaskManagerMetricsInfo`, by the metrics below ``Status.JVM.Memory`` that they are read from."""
_COLLECTOR = re.compile(r"GarbageCollector\.(.+)\.Count")
_LOCAL = re.compile(r"local\[(\d+)")


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of a TaskExecutor's machine: bytes of memory, and cores."""

    memory: int
    cores: int


def _cores(registration: TaskExecutorRegistration, machine: Machine) -> int:
    """Return the cores of its Spark driver by its master URL; all of the machine if that has no number."""
    match = _LOCAL.match(registration.spark_master)
    return int(match.group(1)) if match else machine.cores


def _line(registration: TaskExecutorRegistration, free: int, heard_ms: int, user: str, machine: Machine) -> Json:
    return {
        "id": registration.resource_id,
        "path": registration.address,
        "dataPort": -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": heard_ms,  # a time, in spite of its name, as in Flink
        "slotsNumber": registration.slots,
        "freeSlots": free,
        "user": user,  # not in Flink
        "assignedTasks": registration.slots - free,
        "totalResource": _resource(registration, registration.slots, machine),
        "freeResource": _resource(registration, free, machine),
        "hardware": {
            "cpuCores": _cores(registration, machine),
            "physicalMemory": machine.memory,
            "freeMemory": registration.memory_bytes,
            "managedMemory": 0,
        },
        "memoryConfiguration": _memory(registration),
    }


def _resource(registration: TaskExecutorRegistration, slots: int, machine: Machine) -> Json:
    """Return the share of *slots* in the Spark driver's cores and heap, which all slots share equally."""
    share = slots / registration.slots
    return {
        "cpuCores": _cores(registration, machine) * share,
        "taskHeapMemory": int(registration.memory_bytes * share) // _MB,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }


def _memory(registration: TaskExecutorRegistration) -> Json:
    heap = registration.memory_bytes
    others = ("frameworkHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory")
    return {
        **dict.fromkeys(others, 0),
        "taskHeap": heap,
        "jvmMetaspace": 0,
        "jvmOverhead": 0,
        "totalFlinkMemory": heap,
        "totalProcessMemory": heap,
    }


def overview(views: Iterable[TaskManagerView], machine: Machine) -> Json:
    """GET /taskmanagers."""
    return {
        "taskmanagers": [
            _line(view.registration, view.free_slots, view.last_heartbeat_ms, view.user, machine) for view in views
        ]
    }


def details(info: TaskManagerInfo, machine: Machine) -> Json:
    """GET /taskmanagers/:taskmanagerid."""
    registration = info.registration
    tasks = 0 if info.metrics is None else info.metrics.tasks
    line = _line(registration, info.slots.free, info.last_heartbeat_ms, info.user, machine)
    taken = [status.job_id for status in info.allocations if status.job_id is not None]
    return {
        **line,
        "assignedTasks": tasks,
        "allocatedSlots": [
            {"jobId": job_id, "resource": _resource(registration, 1, machine), "assignedTasks": 1} for job_id in taken
        ],
        "metrics": _metrics(registration, info.metrics),
        "resident-memory": {
            "task-executor": 0 if info.metrics is None else info.metrics.memory_bytes,
            "spark": 0 if info.metrics is None else info.metrics.spark_memory_bytes,
        },
        "process": {
            "pid": registration.pid,
            "spark-pid": registration.spark_pid,
            "spark-version": registration.spark_version,
            "java-version": registration.java_version,
        },
    }


def _metrics(registration: TaskExecutorRegistration, metrics: TaskManagerMetrics | None) -> Json:
    """Return Flink's `TaskManagerMetricsInfo` of the Spark driver's JVM; unknown figures are 0."""
    jvm = {} if metrics is None else metrics.jvm
    told = {name: jvm.get(f"Memory.{path}", 0) for name, path in JVM_MEMORY.items()}
    if not jvm:
        told["heapMax"] = registration.memory_bytes
    netty = (f"nettyShuffleMemory{what}" for what in ("Available", "Used", "Total"))
    segments = (f"nettyShuffleMemorySegments{what}" for what in ("Available", "Used", "Total"))
    return {**told, **dict.fromkeys((*segments, *netty), 0), "garbageCollectors": _collectors(jvm)}


def _collectors(jvm: Mapping[str, int | float]) -> list[Json]:
    """Return counts and times of each garbage collector, and of all together."""
    names = (_COLLECTOR.fullmatch(name) for name in jvm)
    return [
        {"name": match[1], "count": jvm[match[0]], "time": jvm[f"GarbageCollector.{match[1]}.Time"]}
        for match in names
        if match is not None
    ]


def profile(found: StackProfile, at_ms: int) -> Json:
    """GET /taskmanagers/:taskmanagerid/flamegraph, in the form of Flink's `JobVertexFlameGraph`."""
    return {
        "endTimestamp": at_ms,
        "pid": found.pid,
        "samples": found.samples,
        "interval": found.interval_ms,
        "root": _flame_node(flame_graph(found)),
    }


def _flame_node(node: FlameNode) -> Json:
    children = sorted(node.children.values(), key=lambda child: -child.value)
    return {"name": node.name, "value": node.value, "children": [_flame_node(child) for child in children]}


def _machine() -> Machine:
    """Return the resources of this machine, as those of the TaskExecutors' machine."""
    return Machine(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1)


def resource_id_of(request: Request) -> ResourceID:
    """Return the id of a TaskExecutor in the path; raises RestError of status 400."""
    try:
        return ResourceID(request.path_params["taskmanagerid"])
    except ValueError as error:
        raise RestError(400, f"{error}; GET /taskmanagers shows the ids of TaskExecutors") from None


_ONE = "/taskmanagers/{taskmanagerid}"

ROUTES: list[RestRoute] = []


@RestRoute("GET", "/taskmanagers", "The registered TaskExecutors", result={"taskmanagers": [forms.WORKER]}).on(ROUTES)
async def get_task_managers(rest: Rest, request: Request) -> Response:
    views: list[TaskManagerView] = await rest.snapshots.get("task managers", rest.backend.task_managers)
    return answer(overview(views, _machine()))


@RestRoute(
    "GET",
    _ONE,
    "A TaskExecutor: its slots, its memory, its processes",
    result={**forms.WORKER, "metrics": forms.WORKER_METRICS, "allocatedSlots": [dict]},
).on(ROUTES)
async def get_task_manager(rest: Rest, request: Request) -> Response:
    return answer(details(await rest.backend.task_manager(resource_id_of(request)), _machine()))


@RestRoute("GET", f"{_ONE}/logs", "The logs of a TaskExecutor and of its Spark driver", result=forms.LOGS).on(ROUTES)
async def get_logs(rest: Rest, request: Request) -> Response:
    logs = await rest.backend.task_manager_logs(resource_id_of(request))
    return answer(cluster.logs((log.name, log.size, log.mtime_ms) for log in logs))


@RestRoute(
    "GET",
    f"{_ONE}/logs/" + "{filename}",
    "One of these, or its head and tail; from a byte on with X-Log-Size",
    media=TEXT,
    query=(FROM_OFFSET,),
).on(ROUTES)
async def get_log_file(rest: Rest, request: Request) -> Response:
    """Return the head and the tail of a log, as Flink does; with an offset, return the log from there on."""
    if FROM_OFFSET.name in request.query_params:
        resource_id, name = resource_id_of(request), request.path_params["filename"]
        offset = offset_of(request)
        piece = await rest.backend.task_manager_log_from(resource_id, name, offset)
        return Response(piece.data, media_type=TEXT, headers={LOG_SIZE: str(piece.size)})
    return await _fetch(rest, request, request.path_params["filename"])


@RestRoute("GET", f"{_ONE}/log", "The log of a TaskExecutor, or its head and tail", media=TEXT).on(ROUTES)
async def get_log(rest: Rest, request: Request) -> Response:
    return await _fetch(rest, request, MAIN_LOG)


@RestRoute("GET", f"{_ONE}/stdout", "What a TaskExecutor printed: nothing", media=TEXT).on(ROUTES)
async def get_stdout(rest: Rest, request: Request) -> Response:
    """Answer with an empty text: a TaskExecutor prints nothing, and the output of tasks is in their jobs' logs."""
    await rest.backend.task_manager(resource_id_of(request))
    return text(b"")


async def _fetch(rest: Rest, request: Request, name: str) -> Response:
    async with rest.fetching:
        return text(await rest.backend.task_manager_log(resource_id_of(request), name))


@RestRoute("GET", f"{_ONE}/thread-dump", "Where the threads of a TaskExecutor are", result=forms.THREADS).on(ROUTES)
async def get_thread_dump(rest: Rest, request: Request) -> Response:
    dump = await rest.backend.task_manager_threads(resource_id_of(request))
    return answer(cluster.thread_dump(dump))


@RestRoute(
    "GET",
    f"{_ONE}/flamegraph",
    "Where the threads of a TaskExecutor, or of a task process of it, are in a hundred samples",
    query=(
        Parameter("samples", f"how many; {SAMPLES} unless it is given", schema=WHOLE_NUMBER),
        Parameter("interval", f"milliseconds between two; {INTERVAL_MS} unless it is given", schema=WHOLE_NUMBER),
        Parameter(
            "attempt",
            "the id of an attempt that runs there; the TaskExecutor itself unless it is given",
            schema={"type": "string", "pattern": "^[0-9a-f]{32}$"},
        ),
    ),
).on(ROUTES)
async def get_flame_graph(rest: Rest, request: Request) -> Response:
    samples = max(1, number_of(request, "samples", SAMPLES, MOST_SAMPLES))
    interval_ms = max(1, number_of(request, "interval", INTERVAL_MS, MOST_PROFILE_MS))
    if samples * interval_ms > MOST_PROFILE_MS:
        raise RestError(400, f"samples times interval must be at most {MOST_PROFILE_MS} ms")
    resource_id, attempt = resource_id_of(request), request.query_params.get("attempt")
    try:
        attempt_id = None if attempt is None else ExecutionAttemptID(attempt)
    except ValueError as error:
        raise RestError(400, f"{error}; GET /jobs/ID/logs shows the ids of attempts") from None
    async with rest.fetching:
        found = await rest.backend.task_manager_profile(resource_id, samples, interval_ms, attempt_id)
    return answer(profile(found, now_ms()))
