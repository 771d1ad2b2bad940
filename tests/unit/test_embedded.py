"""The ends of an embedded cluster's wires: the program's task, its queries' restarts, the guard; without Spark."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JJavaError

from runtime.checkpoint.lease import LocationInUseError
from runtime.embedded.access import ClusterAccess
from runtime.embedded.cluster import EmbeddedCluster, EmbeddedClusterError, _lack_of_workers
from runtime.embedded.guard import _await_end
from runtime.embedded.program import ProgramControl
from runtime.environment.directory import CLUSTER_DIR_VARIABLE
from runtime.jobgraph.job_graph import JobKind
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobmaster.restart_strategy import RestartStrategy
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.embedding import interruptible
from runtime.spark.errors import ZygoteError
from runtime.spark.messages import Canceled, Finished, FromTask, LeaseRequest, QueryStarts, Running
from runtime.spark.process import ProcessHandle, start_time
from runtime.spark.spec import TaskSpec
from runtime.spark.task.query_restarts import ManagedRun, QueryRestarts
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.embedded import ProgramHost
from runtime.taskexecutor.worker_files import ProgramInfo
from tests.cluster_harness import await_value
from tests.waiting import PATIENCE_S

SHELL_WITHOUT_MSGPACK = """\
#!/bin/sh
echo "ModuleNotFoundError: No module named 'msgpack'" >&2
exit 1
"""


class _Program:
    """A program that takes its task."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: list[TaskSpec] = []
        self.cancelled = threading.Event()
        self.told = threading.Semaphore(0)
        self.control = ProgramControl(path, self._run, self.cancelled.set)
        self.host = ProgramHost(ProgramInfo(os.getpid(), str(path)))

    def _run(self, spec: TaskSpec) -> None:
        self.specs.append(spec)
        self.control.tell(Running())
        self.control.tell_known()
        self.told.release()

    async def attach(self, directory: Path) -> TaskProcess:
        process = await self.connect(directory)
        assert await _next(process) == Running()
        return process

    async def connect(self, directory: Path) -> TaskProcess:
        task = TaskDeploymentDescriptor.internal("program", JobKind.SCRIPT)
        return await self.host.fork(TaskSpec(task, "program.py", str(directory / "w")))


async def _next(process: TaskProcess) -> FromTask | None:
    async with asyncio.timeout(PATIENCE_S):
        async for message in process.messages():
            return message
    return None


async def _lease(process: TaskProcess) -> LeaseRequest:
    asked = await _next(process)
    assert isinstance(asked, LeaseRequest)
    return asked


@pytest.fixture
def program(tmp_path: Path) -> Iterator[_Program]:
    made = _Program(tmp_path / "p.sock")
    yield made
    made.control.close()


async def test_a_program_takes_its_task_and_says_when_it_needs_it_no_longer(program: _Program, tmp_path: Path) -> None:
    process = await program.attach(tmp_path)
    assert program.specs[0].descriptor.job.job_name == "program"
    assert program.path.stat().st_mode & 0o777 == 0o600
    assert process.pid == os.getpid()
    program.control.close()
    assert await _next(process) == Finished()
    assert await _next(process) is None
    assert await process.wait() == 0
    with pytest.raises(ZygoteError, match="takes no task"):
        await program.attach(tmp_path)


async def test_a_cancelled_program_ends_its_queries_and_lives(program: _Program, tmp_path: Path) -> None:
    process = await program.attach(tmp_path)
    await process.cancel()
    assert await _next(process) == Canceled()
    assert await _next(process) is None
    assert await process.wait() == 143
    assert program.cancelled.is_set()


async def test_killing_it_is_letting_go(program: _Program, tmp_path: Path) -> None:
    process = await program.attach(tmp_path)
    process.kill()
    assert await _next(process) is None
    assert await process.wait() == -9
    assert not program.cancelled.is_set()
    again = await program.attach(tmp_path)  # the next attempt finds it again
    assert len(program.specs) == 2
    again.kill()


async def test_a_new_task_executor_is_told_of_queries_and_answers_for_leases(program: _Program, tmp_path: Path) -> None:
    first = await program.attach(tmp_path)
    query = QueryLocation("counts", str(tmp_path / "location"), None)
    asking = asyncio.create_task(asyncio.to_thread(program.control.acquire_lease, query.location))
    asked = await _lease(first)
    assert (asked.location, asked.is_running) == (query.location, False)
    first.kill()  # before it has answered: the next one is asked
    first.close()
    second = await program.connect(tmp_path)
    told = {type(message): message for message in (await _next(second), await _next(second))}  # by two threads
    assert set(told) == {Running, LeaseRequest}
    for _ in range(2):  # once the lease is held it would be told with what is known
        assert await asyncio.to_thread(program.told.acquire, timeout=PATIENCE_S)
    again = told[LeaseRequest]
    assert isinstance(again, LeaseRequest)
    await second.answer_lease(again.number, None)
    await asking
    program.control.tell(QueryStarts(query, 4))
    assert await _next(second) == QueryStarts(query, 4)
    second.kill()
    second.close()

    third = await program.attach(tmp_path)
    asked = await _lease(third)
    assert asked.is_running
    await third.answer_lease(asked.number, None)
    assert await _next(third) == QueryStarts(query, 4)

    refused = asyncio.create_task(asyncio.to_thread(program.control.acquire_lease, "/elsewhere"))
    await third.answer_lease((await _lease(third)).number, "another job writes there")
    with pytest.raises(LocationInUseError, match="another job writes there"):
        await refused
    third.kill()


async def test_whoever_waits_for_a_lease_is_freed_at_the_end(program: _Program) -> None:
    waiting = asyncio.create_task(asyncio.to_thread(program.control.acquire_lease, "/location"))
    program.control.close()
    async with asyncio.timeout(PATIENCE_S):
        await waiting


# ---------------------------------------------------------------------- queries


class _Jsq:
    """A query in the JVM."""

    def __init__(self, run_id: str, *, active: bool, failed: bool) -> None:
        self._run_id, self._active, self._failed = run_id, active, failed

    def runId(self) -> str:  # noqa: N802
        return self._run_id

    def isActive(self) -> bool:  # noqa: N802
        return self._active

    def exception(self) -> _Jsq:
        return self

    def isDefined(self) -> bool:  # noqa: N802
        return self._failed

    def get(self) -> _Jsq:
        return self

    def getMessage(self) -> str:  # noqa: N802
        return "it broke\nat org.apache.spark"


class _Query:
    def __init__(self, jsq: _Jsq) -> None:
        self._jsq = jsq


def _managed(outcomes: list[Any], restarts: int) -> tuple[QueryRestarts, _Query]:
    policy = RestartStrategy(RestartStrategyConfig.fixed_delay(restarts, 0.0))
    managed = QueryRestarts(lambda: policy)
    query = _Query(_Jsq("0", active=False, failed=True))

    def start() -> _Query:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return _Query(outcome)

    managed.runs["0"] = ManagedRun("counts", query, start, policy)
    return managed, query


def test_a_failed_query_is_started_again_under_its_handle(capsys: pytest.CaptureFixture[str]) -> None:
    fresh = _Jsq("1", active=True, failed=False)
    managed, query = _managed([OSError("no source"), fresh], restarts=2)
    assert managed.restart("0")
    assert query._jsq is fresh
    assert managed.restart("0")  # whoever else has seen it fail
    assert managed.restart("1")
    said = capsys.readouterr().err
    assert "counts has failed and is started again: it broke\n" in said
    assert "cannot be started again: OSError: no source" in said


def test_the_strategy_gives_up(capsys: pytest.CaptureFixture[str]) -> None:
    managed, query = _managed([_Jsq("1", active=False, failed=True)], restarts=1)
    assert not managed.restart("0")
    assert query._jsq.runId() == "1"
    assert "is not started again" in capsys.readouterr().err


@pytest.mark.parametrize("is_handled", [False, True])
def test_an_interruption_inside_foreach_batch_is_told_in_few_words(is_handled: bool) -> None:
    stack = "\tat org.apache.spark.sql.Dataset.count(Dataset.scala)\n" * 500

    class JavaError(Py4JJavaError):
        def __init__(self) -> None:
            pass

        def __str__(self) -> str:
            return f"An error occurred while calling o1.count.\n: java.lang.InterruptedException\n{stack}"

    JavaError.__module__, JavaError.__qualname__ = "py4j.protocol", "Py4JJavaError"

    def collect(batch: str, number: int) -> None:
        try:
            raise JavaError
        except JavaError:
            if is_handled:
                raise RuntimeError("this batch cannot be counted") from JavaError()
            raise

    with pytest.raises(Py4JJavaError) as caught:
        interruptible(collect)("batch", 3)
    shown = "".join(traceback.format_exception(caught.value))
    _, found, told = shown.partition("py4j.protocol.Py4JJavaError: An error occurred while calling")
    assert found
    assert "java.lang.InterruptedException" in told
    assert len(told) < 500


def test_other_errors_inside_foreach_batch_are_as_they_were() -> None:
    def collect(batch: str, number: int) -> int:
        if number == 2:
            raise ValueError(f"{batch} {number}: java.lang.InterruptedException")
        return number

    function = interruptible(collect)
    assert function("batch", 1) == 1
    with pytest.raises(ValueError, match=r"batch 2: java\.lang"):
        function("batch", 2)
    assert function.__name__ == "collect"


def _session(python: Path | str, master: str = "local[2]") -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=str(python)))


def test_workers_that_run_another_python_are_told_of_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    other.write_text(SHELL_WITHOUT_MSGPACK)
    other.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lack = _lack_of_workers(_session("python3"))
    assert lack is not None
    assert f"run {other}, which cannot import runtime.embedded.access" in str(lack)
    assert "(ModuleNotFoundError: No module named 'msgpack')" in str(lack)
    assert f"PYSPARK_PYTHON={sys.executable}" in lack.remedy
    assert _lack_of_workers(_session("python3", "spark://elsewhere:7077")) is None, "what is there is not known here"
    missing = _lack_of_workers(_session(tmp_path / "none"))
    assert missing is not None
    assert "No such file" in str(missing)


def test_workers_that_run_this_python_lack_nothing(tmp_path: Path) -> None:
    assert _lack_of_workers(_session(sys.executable)) is None
    linked = tmp_path / "python"
    linked.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    linked.chmod(0o700)
    assert _lack_of_workers(_session(linked)) is None


def test_what_was_stopped_and_what_is_unknown_stays_so() -> None:
    managed, query = _managed([], restarts=5)
    query._jsq = stopped = _Jsq("0", active=False, failed=False)
    assert managed.restart("0"), "there is no failure"
    assert query._jsq is stopped
    assert not managed.restart("unknown")
    managed, _ = _managed([], restarts=5)
    managed.end()
    assert not managed.restart("0")


# ------------------------------------------------------------------------ guard


@pytest.mark.parametrize("killed", [False, True], ids=["it lets go", "SIGKILL"])
def test_the_guard_leaves_nothing(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "cluster"
    (root / "log").mkdir(parents=True)
    code = "import sys; print(flush=True); sys.stdin.read()"
    left = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, CLUSTER_DIR_VARIABLE: str(root)},
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for process in (left, program):
        assert process.stdout is not None
        process.stdout.readline()
    reading, writing = os.pipe()
    arguments = [str(root), str(program.pid), str(start_time(program.pid)), str(reading), "remove"]
    guard = subprocess.Popen([sys.executable, "-m", "runtime.embedded.guard", *arguments], pass_fds=(reading,))
    os.close(reading)
    try:
        if killed:
            program.kill()
        else:
            os.close(writing)
        assert guard.wait(PATIENCE_S) == 0
        await_value(lambda: left.poll() is not None)
        assert not root.exists()
    finally:
        if killed:
            os.close(writing)
        for process in (left, program, guard):
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EINVAL, errno.ESRCH])
def test_the_guard_of_a_program_that_is_being_reaped_ends_its_cluster(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=OSError(number, "")))
    _await_end(os.getpid(), 0, -1)
    with pytest.raises(ProcessLookupError):
        ProcessHandle(os.getpid(), 0)


def test_a_forked_child_does_not_stop_the_cluster_of_its_parent() -> None:
    cluster = object.__new__(EmbeddedCluster)
    cluster._pid = os.getpid() + 1
    cluster.stop()  # nothing else of it is touched


class InterruptedClient:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        if self.closed == 1:
            raise KeyboardInterrupt


class EndedGuard:
    def __init__(self) -> None:
        self.waited = 0

    def wait(self, _timeout: float) -> int:
        self.waited += 1
        return 0


def test_a_stop_that_was_interrupted_is_done_by_the_next_one() -> None:
    cluster: Any = object.__new__(EmbeddedCluster)
    reading, pipe = os.pipe()
    client, guard = InterruptedClient(), EndedGuard()
    vars(cluster).update(
        _pid=os.getpid(), _lock=threading.Lock(), _stopping=threading.RLock(), _stopped=False, _has_ended=False,
        _queries=None, _control=None, _client=client, _guard=guard, _guard_pipe=pipe, _offer=None, _secret=None,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    assert guard.waited == 0
    cluster.stop()
    assert guard.waited == 1
    assert os.read(reading, 1) == b""  # the guard sees the end of its pipe, and stops the cluster
    os.close(reading)
    cluster.stop()
    assert (client.closed, guard.waited) == (2, 1)
    with pytest.raises(EmbeddedClusterError, match="was stopped"):
        cluster.access()


def test_a_second_cluster_at_the_same_address_has_a_handle_of_its_own() -> None:
    masters = ("akka.tcp://understudy@127.0.0.1:7123/user/master",)
    holders = [cast(Any, SimpleNamespace(value=secret * 32)) for secret in (b"a", b"b")]
    first, second, again = (ClusterAccess(masters, holders[number], 1 << 20).cluster() for number in (0, 1, 0))
    assert first is again is not second
