"""TaskExecutors (Flink's `TaskManagerInfo` and `TaskManagerDetailsInfo`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.gateways.diagnostics import TaskManagerMetrics
from runtime.gateways.messages import TaskExecutorRegistration, TaskManagerInfo, TaskManagerView
from runtime.rest.messages.common import Json
from runtime.stack_samples import FlameNode, StackProfile, flame_graph

_MB = 1 << 20
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
        "process": {
            "pid": registration.pid,
            "spark-pid": registration.spark_pid,
            "spark-version": registration.spark_version,
            "java-version": registration.java_version,
        },
    }


def _metrics(registration: TaskExecutorRegistration, metrics: TaskManagerMetrics | None) -> Json:
    """Flink's `TaskManagerMetricsInfo`; the heap is the Spark driver's resident memory, the rest the process's own."""
    used = 0 if metrics is None else metrics.spark_memory_bytes
    own = 0 if metrics is None else metrics.memory_bytes
    zeros = (
        "directCount",
        "directUsed",
        "directMax",
        "mappedCount",
        "mappedUsed",
        "mappedMax",
        "nettyShuffleMemorySegmentsAvailable",
        "nettyShuffleMemorySegmentsUsed",
        "nettyShuffleMemorySegmentsTotal",
        "nettyShuffleMemoryAvailable",
        "nettyShuffleMemoryUsed",
        "nettyShuffleMemoryTotal",
    )
    return {
        "heapUsed": used,
        "heapCommitted": used,
        "heapMax": registration.memory_bytes,
        "nonHeapUsed": own,
        "nonHeapCommitted": own,
        "nonHeapMax": -1,
        **dict.fromkeys(zeros, 0),
        "garbageCollectors": [],
    }


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
