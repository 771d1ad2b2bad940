"""What a TaskExecutor tells to whoever looks for a fault: its logs, its threads and those of its tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import abstractmethod
from collections.abc import Iterable

import psutil

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from blob.client import BlobClient
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import JobOptions
from runtime.environment.context import blob_client
from runtime.gateways.diagnostics import ComponentLog, LogInfo, TaskManagerMetrics, ThreadDump, ThreadInfo
from runtime.gateways.errors import NoSuchTaskError, TaskNotRespondingError
from runtime.gateways.messages import TaskLog
from runtime.ids import ExecutionAttemptID, JobID
from runtime.job_logs import KeptLog, LogChunk
from runtime.spark import TaskProcess, ZygoteError
from runtime.stack_samples import MOST_SAMPLES, StackProfile, StackSampler
from runtime.taskexecutor.attempts import AttemptDirectories
from runtime.taskexecutor.log_keeper import LogKeeper
from runtime.threads import thread_stacks

DUMP_TIMEOUT_S = 5.0
DUMP_LIMIT = 512 * 1024
"""Most characters of a dump: what a task process says is the job's own word."""


class TaskExecutorDiagnostics(RpcEndpoint):
    """The part of a `TaskExecutor` that answers questions about itself and its logs, and changes nothing that runs."""

    _configuration: Configuration
    _attempts: AttemptDirectories
    _own_logs: LogKeeper
    _client: BlobClient | None = None

    @abstractmethod
    def _new_blob_client(self) -> BlobClient:
        """A client of the BlobServer that the ResourceManager names."""

    @abstractmethod
    def _process_of(self, attempt_id: ExecutionAttemptID) -> TaskProcess | None:
        """The process of an attempt that runs here."""

    def _log_client(self) -> BlobClient:
        if self._client is None:
            self._client = self._new_blob_client()
        return self._client

    def _client_of(self, blob_server: BlobAddress) -> BlobClient:
        return blob_client(self._configuration, blob_server, self.service.secret)

    @rpc
    async def request_task_logs(self, job_id: JobID, blob_server: BlobAddress) -> list[TaskLog]:
        with self._client_of(blob_server) as client:
            return await self.run_blocking(self._attempts.upload_logs, job_id, client)

    @rpc
    async def keep_task_logs(self, job_id: JobID, attempt_id: ExecutionAttemptID) -> list[KeptLog]:
        max_size = self._configuration.get(JobOptions.LOGS_MAX_SIZE)
        return await self.run_blocking(self._attempts.keep_logs, job_id, attempt_id, self._log_client(), max_size)

    @rpc
    async def read_task_log(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> LogChunk:
        return await self.run_blocking(self._attempts.read, job_id, attempt_id, name, offset)

    @rpc
    async def request_log_list(self) -> list[LogInfo]:
        return await self.run_blocking(self._own_logs.infos)

    @rpc
    async def request_file_upload(self, name: str, blob_server: BlobAddress | None = None) -> ComponentLog:
        if blob_server is None:
            return await self.run_blocking(self._own_logs.upload, name, self._log_client())
        with self._client_of(blob_server) as client:
            return await self.run_blocking(self._own_logs.upload, name, client)

    @rpc
    async def read_log(self, name: str, offset: int) -> LogChunk:
        return await self.run_blocking(self._own_logs.read, name, offset)

    @rpc
    async def request_thread_dump(self, attempt_id: ExecutionAttemptID | None = None) -> ThreadDump:
        if attempt_id is None:
            return ThreadDump(os.getpid(), bounded_threads(thread_stacks()))
        pid, threads = await self._threads_of(attempt_id)
        return ThreadDump(pid, bounded_threads(threads))

    @rpc
    async def request_profile(
        self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None = None
    ) -> StackProfile:
        samples, interval_ms = max(1, min(samples, MOST_SAMPLES)), max(1, min(interval_ms, 1000))
        sampler, pid = StackSampler(), os.getpid()
        for number in range(samples):
            if number:
                await asyncio.sleep(interval_ms / 1000)
            if attempt_id is None:
                sampler.add(await self.run_blocking(_others))
            else:
                pid, threads = await self._threads_of(attempt_id)
                sampler.add(threads)
        return sampler.profile(pid, interval_ms)

    async def _threads_of(self, attempt_id: ExecutionAttemptID) -> tuple[int, list[tuple[str, str]]]:
        """The process of an attempt, and where its threads are; raises NoSuchTaskError, TaskNotRespondingError."""
        process = self._process_of(attempt_id)
        if process is None:
            raise NoSuchTaskError(f"no process of attempt {attempt_id} runs in TaskExecutor {self.name}")
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
    """Where the threads of this process are, but for the one that looks."""
    own = threading.current_thread().name
    return [(name, stack) for name, stack in thread_stacks() if name != own]


def bounded_threads(threads: Iterable[tuple[str, str]]) -> tuple[ThreadInfo, ...]:
    """As many of the threads as are at most `DUMP_LIMIT` characters together, and how many there are beyond."""
    kept: list[ThreadInfo] = []
    room, left_out = DUMP_LIMIT, 0
    for name, stack in threads:
        room -= len(name) + len(stack)
        if room >= 0:
            kept.append(ThreadInfo(name, stack))
        else:
            left_out += 1
    if left_out:
        kept.append(ThreadInfo(f"{left_out} more", ""))
    return tuple(kept)


class MetricsSampler:
    """Looks at what a TaskExecutor and its Spark driver take.

    Args:
        spark_pid: process of the Spark driver.
    """

    def __init__(self, spark_pid: int) -> None:
        self._own = psutil.Process()
        self._spark_pid = spark_pid
        self._spark: psutil.Process | None = None

    def sample(self, tasks: int) -> TaskManagerMetrics:
        """What they take at present; *tasks* is how many attempts run."""
        with self._own.oneshot():
            times = self._own.cpu_times()
            memory, threads, files = self._own.memory_info().rss, self._own.num_threads(), self._own.num_fds()
        spark_memory, spark_cpu_s = self._sample_spark()
        return TaskManagerMetrics(memory, times.user + times.system, threads, files, spark_memory, spark_cpu_s, tasks)

    def _sample_spark(self) -> tuple[int, float]:
        try:
            if self._spark is None:
                self._spark = psutil.Process(self._spark_pid)
            times = self._spark.cpu_times()
            return self._spark.memory_info().rss, times.user + times.system
        except psutil.Error:
            return 0, 0.0  # it has ended, which others are about to see
