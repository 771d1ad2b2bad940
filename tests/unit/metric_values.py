"""Metrics of a control plane and of two TaskExecutors, as they would be told."""

from __future__ import annotations

from runtime.metrics.metric import Histogram, MetricDump, MetricKind, MetricScope, ScopeCategory, ScopeDump, gauges

JVM: dict[str, int | float] = {
    "ClassLoader.ClassesLoaded": 11_000,
    "ClassLoader.ClassesUnloaded": 2,
    "CPU.Load": 0.25,
    "FileDescriptor.Max": 1024,
    "FileDescriptor.Open": 200,
    "GarbageCollector.All.Count": 15,
    "GarbageCollector.All.Time": 320,
    "GarbageCollector.All.TimeMsPerSecond": 1.5,
    "GarbageCollector.G1_Old_Generation.Count": 1,
    "GarbageCollector.G1_Old_Generation.Time": 20,
    "GarbageCollector.G1_Old_Generation.TimeMsPerSecond": 0.5,
    "GarbageCollector.G1_Young_Generation.Count": 14,
    "GarbageCollector.G1_Young_Generation.Time": 300,
    "GarbageCollector.G1_Young_Generation.TimeMsPerSecond": 1.0,
    "Memory.Direct.Count": 5,
    "Memory.Direct.MemoryUsed": 24_577,
    "Memory.Direct.TotalCapacity": 24_576,
    "Memory.Heap.Committed": 20,
    "Memory.Heap.Max": 30,
    "Memory.Heap.Used": 10,
    "Memory.Mapped.Count": 0,
    "Memory.Mapped.MemoryUsed": 0,
    "Memory.Mapped.TotalCapacity": 0,
    "Memory.Metaspace.Committed": 9,
    "Memory.Metaspace.Max": -1,
    "Memory.Metaspace.Used": 8,
    "Memory.NonHeap.Committed": 50,
    "Memory.NonHeap.Max": -1,
    "Memory.NonHeap.Used": 40,
    "Threads.Count": 46,
}
"""What a Spark driver says of itself."""
TIMES = Histogram()
for _time in range(1, 101):
    TIMES.update(_time)

METRICS = [
    ScopeDump(MetricScope(ScopeCategory.JOB_MANAGER), gauges({"numRunningJobs": 1, "taskSlotsTotal": 2})),
    ScopeDump(
        MetricScope(ScopeCategory.JOB_MANAGER, component="dispatcher"),
        (
            *gauges({"Status.Process.CPU.Time": 1_500_000_000}),
            MetricDump("numSubmittedJobs", MetricKind.COUNTER, 7),
            MetricDump("numSubmittedJobsPerSecond", MetricKind.METER, 0.25),
            MetricDump("jobSubmissionTime", MetricKind.HISTOGRAM, TIMES.count, TIMES.statistics()),
        ),
    ),
    ScopeDump(
        MetricScope(ScopeCategory.TASK_MANAGER, task_manager="tm-0"),
        gauges({"taskSlotsTotal": 2, "numRunningTasks": 1}),
    ),
    ScopeDump(MetricScope(ScopeCategory.TASK_MANAGER, task_manager="tm-1"), gauges({"taskSlotsTotal": 4})),
]
