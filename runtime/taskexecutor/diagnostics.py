"""Diagnostics of a TaskExecutor: stacks of its threads and of its tasks', resources that it uses, and metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import psutil

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.service import RpcService
from runtime.ids import ExecutionAttemptID, ResourceID
from runtime.metrics.metric import MetricScope, ScopeCategory, Value
from runtime.metrics.registry import NANOSECONDS, MetricRegistry, add_process_metrics
from runtime.protocol.diagnostics import TaskManagerMetrics, TaskPoolReport, ThreadDump, ThreadInfo
from runtime.protocol.errors import NoSuchTaskError, TaskNotRespondingError
from runtime.protocol.slots import SlotReport
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import SparkError, ZygoteError
from runtime.spark.task.zygote_client import TaskProcess
from runtime.stack_samples import MOST_SAMPLES, StackProfile, StackSampler
from runtime.threads import thread_stacks, thread_states

DUMP_TIMEOUT_S = 5.0
DUMP_LIMIT = 512 * 1024
"""Most characters of a dump: the content of a task process's dump is not trusted."""


class ThreadDumps:
    """Takes dumps and profiles of threads; see `TaskExecutorGateway.request_thread_dump` and `request_profile`.

    Args:
        endpoint: the TaskExecutor, for dumps of its own process.
        process_of: returns the process of an attempt that runs here.
    """

    def __init__(self, endpoint: RpcEndpoint, process_of: Callable[[ExecutionAttemptID], TaskProcess | None]) -> None:
        self._endpoint = endpoint
        self._process_of = process_of

    async def dump(self, attempt_id: ExecutionAttemptID | None) -> ThreadDump:
        """Return the stacks of the threads of an attempt's process; without an attempt, those of this process.

        Raises:
            NoSuchTaskError: no process of that attempt runs here.
            TaskNotRespondingError: the process does not answer.
        """
        if attempt_id is None:
            return ThreadDump(os.getpid(), bounded_threads(thread_stacks(), thread_states()))
        pid, threads = await self._threads_of(attempt_id)
        return ThreadDump(pid, bounded_threads(threads))

    async def profile(self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None) -> StackProfile:
        """Return a profile from repeated samples of these threads; both numbers are clamped to their bounds.

        Raises:
            NoSuchTaskError, TaskNotRespondingError: as `dump`.
        """
        samples, interval_ms = max(1, min(samples, MOST_SAMPLES)), max(1, min(interval_ms, 1000))
        sampler, pid = StackSampler(), os.getpid()
        for number in range(samples):
            if number:
                await asyncio.sleep(interval_ms / 1000)
            if attempt_id is None:
                sampler.add(await self._endpoint.run_blocking(_others))
            else:
                pid, threads = await self._threads_of(attempt_id)
                sampler.add(threads)
        return sampler.profile(pid, interval_ms)

    async def _threads_of(self, attempt_id: ExecutionAttemptID) -> tuple[int, list[tuple[str, str]]]:
        """Return pid and thread stacks of an attempt's process; raises NoSuchTaskError, TaskNotRespondingError."""
        process = self._process_of(attempt_id)
        if process is None:
            raise NoSuchTaskError(f"no process of attempt {attempt_id} runs in TaskExecutor {self._endpoint.name}")
        try:
            async with asyncio.timeout(DUMP_TIMEOUT_S):
                return process.pid, await process.thread_dump()
        except TimeoutError:
            raise TaskNotRespondingError(
                f"the task process {process.pid} did not answer within {DUMP_TIMEOUT_S:g} s: it is stopped, or native "
                "code holds its interpreter"
            ) from None
        except (OSError, ZygoteError) as error:
            raise NoSuchTaskError(f"the process of attempt {attempt_id} has ended: {error}") from error


def _others() -> list[tuple[str, str]]:
    """Return the stacks of the threads of this process, without the calling thread."""
    own = threading.current_thread().name
    return [(name, stack) for name, stack in thread_stacks() if name != own]


def bounded_threads(
    threads: Iterable[tuple[str, str]], states: Mapping[str, str] = MappingProxyType({})
) -> tuple[ThreadInfo, ...]:
    """Return the first threads that fit into `DUMP_LIMIT` characters, and an entry that counts the others.

    Args:
        threads: names and stacks.
        states: by name, where they are known.
    """
    kept: list[ThreadInfo] = []
    room, left_out = DUMP_LIMIT, 0
    for name, stack in threads:
        room -= len(name) + len(stack)
        if room >= 0:
            kept.append(ThreadInfo(name, stack, states.get(name, "")))
        else:
            left_out += 1
    if left_out:
        kept.append(ThreadInfo(f"{left_out} more", ""))
    return tuple(kept)


logger = logging.getLogger(__name__)

JVM_INTERVAL_S = 5.0
RATE_WINDOW_S = 60.0
COLLECTION_TIME = ".Time"


class JvmRates:
    """Rates of the last minute, computed from counters (Flink's `MeterView`). Pure.

    Args:
        cores: of the machine.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._seen: deque[tuple[float, float, dict[str, int]]] = deque()

    def rates(self, now_s: float, cpu_s: float, figures: Mapping[str, int]) -> dict[str, float]:
        """Return the processor load (0 to 1), and the milliseconds of each second that garbage collection takes.

        Args:
            now_s: seconds on a clock that does not go back.
            cpu_s: processor seconds that the Spark driver has taken.
            figures: counters from `SparkDriver.jvm_figures`.
        """
        spent = {name: value for name, value in figures.items() if name.endswith(COLLECTION_TIME)}
        self._seen.append((now_s, cpu_s, spent))
        while self._seen[0][0] < now_s - RATE_WINDOW_S:
            self._seen.popleft()
        then_s, cpu_then_s, spent_then = self._seen[0]
        passed_s = now_s - then_s
        if passed_s <= 0:
            return {"CPU.Load": 0.0, **{f"{name}MsPerSecond": 0.0 for name in spent}}
        rates = {f"{name}MsPerSecond": (spent[name] - spent_then.get(name, 0)) / passed_s for name in spent}
        return {"CPU.Load": (cpu_s - cpu_then_s) / passed_s / self._cores, **rates}


class MetricsSampler:
    """Measures the resources that a TaskExecutor and its Spark driver use.

    Args:
        spark_pid: process of the Spark driver.
    """

    def __init__(self, spark_pid: int) -> None:
        self._own = psutil.Process()
        self._spark_pid = spark_pid
        self._spark: psutil.Process | None = None
        self._jvm: dict[str, int | float] = {}
        self._spark_cores: int | None = None
        self._application = ""
        self._rates = JvmRates(psutil.cpu_count() or 1)

    async def ask_jvm(self, driver: SparkDriver) -> None:
        """Request figures and cores of the Spark driver every `JVM_INTERVAL_S`, until it ends or has no figures."""
        while driver.alive:
            try:
                found = await driver.jvm_figures()
                if found is None:
                    return
                self._spark_cores = await driver.cores()
                self._application = driver.info.application
                _, cpu_s = self._sample_spark()
                self._jvm = {**found, **self._files(), **self._rates.rates(time.monotonic(), cpu_s, found)}
            except (SparkError, ValueError, psutil.Error) as error:
                logger.debug("the Spark driver does not return its figures: %s", error)
                self._jvm, self._spark_cores = {}, None
            await asyncio.sleep(JVM_INTERVAL_S)

    def _files(self) -> dict[str, int]:
        """Return open and allowed descriptors of the Spark driver; raises psutil.Error after the driver has ended."""
        spark = psutil.Process(self._spark_pid)
        return {
            "FileDescriptor.Open": spark.num_fds(),
            "FileDescriptor.Max": spark.rlimit(psutil.RLIMIT_NOFILE)[0],
        }

    def sample(self, tasks: int) -> TaskManagerMetrics:
        """Return what they use at present; *tasks* is the number of running attempts."""
        with self._own.oneshot():
            times = self._own.cpu_times()
            memory, threads, files = self._own.memory_info().rss, self._own.num_threads(), self._own.num_fds()
        spark_memory, spark_cpu_s = self._sample_spark()
        jvm, cores = (self._jvm, self._spark_cores) if spark_memory else ({}, None)
        cpu_s = times.user + times.system
        own = memory, cpu_s, threads, files
        application = "" if cores is None else self._application
        return TaskManagerMetrics(*own, spark_memory, spark_cpu_s, tasks, jvm, cores, application)

    def _sample_spark(self) -> tuple[int, float]:
        try:
            if self._spark is None:
                self._spark = psutil.Process(self._spark_pid)
            times = self._spark.cpu_times()
            return self._spark.memory_info().rss, times.user + times.system
        except psutil.Error:
            return 0, 0.0  # the driver has ended; `TaskExecutor` watches for that


def task_executor_metrics(
    service: RpcService,
    resource_id: ResourceID,
    slots: Callable[[], SlotReport],
    sample: Callable[[], TaskManagerMetrics],
    pool: Callable[[], TaskPoolReport | None],
) -> MetricRegistry:
    """Return the metric registry of a TaskExecutor's process.

    Args:
        service: its RPC service.
        resource_id: its name.
        slots: returns the use of its slots.
        sample: measures what it and its Spark driver use.
        pool: returns the counts of its pool; None before there is one.
    """
    registry = MetricRegistry()
    group = registry.group(MetricScope(ScopeCategory.TASK_MANAGER, task_manager=resource_id))

    def own() -> dict[str, Value | None]:
        statuses, found = slots().slots, sample()
        has_driver = found.spark_memory_bytes > 0
        return {
            "taskSlotsTotal": len(statuses),
            "taskSlotsAvailable": sum(status.allocation_id is None for status in statuses),
            "numRunningTasks": found.tasks,
            "Status.JVM.CPU.Time": int(found.spark_cpu_s * NANOSECONDS) if has_driver else None,
            "Status.JVM.Memory.Resident": found.spark_memory_bytes if has_driver else None,
            **{f"Status.JVM.{name}": value for name, value in found.jvm.items()},
        }

    def task_pool() -> dict[str, Value | None]:
        report = pool()
        if report is None:
            return {}
        return {
            "size": report.size,
            "idle": sum(report.idle.values()),
            "numHits": report.hits,
            "numMisses": sum(report.misses.values()),
            **{f"numMisses.{reason}": count for reason, count in report.misses.items()},
            "numDied": report.died,
            "numFailed": report.failed,
        }

    group.gauges("", own)
    group.gauges("TaskPool", task_pool)
    add_process_metrics(group, service)
    return registry
