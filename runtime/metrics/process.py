"""What every process of the cluster says of itself: what it takes of its machine, and its RPC service.

Flink's ``Status.JVM`` is ``Status.Process`` here, since these are Python's processes; a TaskExecutor's ``Status.JVM``
is its Spark driver's.
"""

from __future__ import annotations

import gc
import resource

import psutil

from actors.rpc.service import RpcService
from runtime.metrics.metric import Value
from runtime.metrics.registry import MetricGroup

NANOSECONDS = 1_000_000_000


def add_process_metrics(group: MetricGroup, service: RpcService) -> None:
    """Let *group* have the figures of this process and of its RPC service."""
    process = psutil.Process()

    def status() -> dict[str, Value | None]:
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            return {
                "CPU.Time": int((times.user + times.system) * NANOSECONDS),
                "Memory.Resident": memory.rss,
                "Threads.Count": process.num_threads(),
                "FileDescriptor.Open": process.num_fds(),
                "FileDescriptor.Max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "GarbageCollector.Count": sum(generation["collections"] for generation in gc.get_stats()),
            }

    def rpc() -> dict[str, Value | None]:
        figures = service.statistics()
        return {
            "numConnections": figures.connections,
            "numMessagesReceived": figures.messages,
            "mailboxSize": figures.queued,
            "numHandlersRunning": figures.running,
            "numDeadLetters": figures.dead_letters,
        }

    group.gauges("Status.Process", status)
    group.gauges("Rpc", rpc)
