"""Where the threads of a TaskExecutor are, and those of the task processes of its attempts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from actors.rpc.endpoint import RpcEndpoint
from runtime.ids import ExecutionAttemptID
from runtime.protocol.diagnostics import ThreadDump, ThreadInfo
from runtime.protocol.errors import NoSuchTaskError, TaskNotRespondingError
from runtime.spark.errors import ZygoteError
from runtime.spark.task.zygote_client import TaskProcess
from runtime.stack_samples import MOST_SAMPLES, StackProfile, StackSampler
from runtime.threads import thread_stacks, thread_states

DUMP_TIMEOUT_S = 5.0
DUMP_LIMIT = 512 * 1024
"""Most characters of a dump: what a task process says is the job's own word."""


class ThreadDumps:
    """Takes dumps and profiles of threads; see `TaskExecutorGateway.request_thread_dump` and `request_profile`.

    Args:
        endpoint: the TaskExecutor, whose own process it is.
        process_of: gives the process of an attempt that runs here.
    """

    def __init__(self, endpoint: RpcEndpoint, process_of: Callable[[ExecutionAttemptID], TaskProcess | None]) -> None:
        self._endpoint = endpoint
        self._process_of = process_of

    async def dump(self, attempt_id: ExecutionAttemptID | None) -> ThreadDump:
        """Return where the threads of an attempt's process are; without an attempt, those of this process.

        Raises:
            NoSuchTaskError: no process of that attempt runs here.
            TaskNotRespondingError: the process does not answer.
        """
        if attempt_id is None:
            return ThreadDump(os.getpid(), bounded_threads(thread_stacks(), thread_states()))
        pid, threads = await self._threads_of(attempt_id)
        return ThreadDump(pid, bounded_threads(threads))

    async def profile(self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None) -> StackProfile:
        """Return where these threads are again and again; both numbers are brought within their bounds.

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
        """Return an attempt's process, and where its threads are; raises NoSuchTaskError, TaskNotRespondingError."""
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
    """Where the threads of this process are, but for the one that looks."""
    own = threading.current_thread().name
    return [(name, stack) for name, stack in thread_stacks() if name != own]


def bounded_threads(
    threads: Iterable[tuple[str, str]], states: Mapping[str, str] = MappingProxyType({})
) -> tuple[ThreadInfo, ...]:
    """As many of the threads as are at most `DUMP_LIMIT` characters together, and how many there are beyond.

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
