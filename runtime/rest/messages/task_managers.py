"""TaskExecutors (Flink's `TaskManagerInfo` and `TaskManagerDetailsInfo`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import TaskExecutorRegistration, TaskManagerInfo, TaskManagerView
from runtime.rest.messages.common import Json
from runtime.stack_samples import FlameNode, StackProfile, flame_graph

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
    """What a TaskExecutor's machine has: bytes of memory, and cores."""

    memory: int
    cores: int


def _cores(registration: TaskExecutorRegistration, machine: Machine) -> int:
    """The cores of its Spark driver, as its master URL says: all of the machine's where that gives no number."""
    match = _LOCAL.match(registration.spark_master)
    return int(match.group(1)) if match else machine.cores


def _line(registration: TaskExecutorRegistration, free: int, heard_ms: int, machine: Machine) -> Json:
    return {
        "id": registration.resource_id,
        "path": registration.address,
        "dataPort": -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": heard_ms,  # a time, whatever its name says
        "slotsNumber": registration.slots,
        "freeSlots": free,
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
    """The share of *slots*: all of them have the Spark driver's cores and heap together."""
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
        "taskmanagers": [_line(view.registration, view.free_slots, view.last_heartbeat_ms, machine) for view in views]
    }


def details(info: TaskManagerInfo, machine: Machine) -> Json:
    """GET /taskmanagers/:taskmanagerid."""
    registration = info.registration
    tasks = 0 if info.metrics is None else info.metrics.tasks
    line = _line(registration, info.slots.free, info.last_heartbeat_ms, machine)
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
    """Flink's `TaskManagerMetricsInfo`, of the Spark driver's JVM; 0 is used of what is not known."""
    jvm = {} if metrics is None else metrics.jvm
    told = {name: jvm.get(f"Memory.{path}", 0) for name, path in JVM_MEMORY.items()}
    if not jvm:
        told["heapMax"] = registration.memory_bytes
    netty = (f"nettyShuffleMemory{what}" for what in ("Available", "Used", "Total"))
    segments = (f"nettyShuffleMemorySegments{what}" for what in ("Available", "Used", "Total"))
    return {**told, **dict.fromkeys((*segments, *netty), 0), "garbageCollectors": _collectors(jvm)}


def _collectors(jvm: Mapping[str, int | float]) -> list[Json]:
    """What each garbage collector did, and all together."""
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
