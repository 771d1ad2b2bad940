"""Metrics of a control plane and of two TaskExecutors, as they would be told."""

from __future__ import annotations

from runtime.metrics.dump import MetricDump, MetricKind, MetricScope, ScopeCategory, ScopeDump, gauges
from runtime.metrics.metric import Histogram

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
