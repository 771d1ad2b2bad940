"""The start of a Spark driver that hangs, is cancelled, or needs packages, with fakes of the JVM and of its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from conf.configuration import Configuration
from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, TaskExecutionState
from runtime.protocol.execution_state import ExecutionState
from runtime.spark.driver import local
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.packages import PackageRequest
from runtime.spark.errors import DriverLostError, DriverStartError, PackagesError
from runtime.taskexecutor.services import FairPools
from runtime.taskexecutor.task import Task, TaskFiles
from tests.waiting import LONGER_THAN_PATIENCE_S


class FakeJvm:
    """The process of a JVM, and the gateway to it; each call into it hangs until it is killed."""

    pid = 2**22 + 1  # Linux gives no process this one

    def __init__(self, *_: object) -> None:
        self.killed, self.asked = threading.Event(), threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.is_reaped = self.is_closed = False

    def kill(self) -> None:
        self.killed.set()

    def wait(self) -> int:
        assert self.killed.is_set()
        self.may_end.wait()
        self.is_reaped = True
        return -9

    def create_context(self, conf: Mapping[str, str]) -> None:
        self.asked.set()
        self.killed.wait()
        raise DriverLostError("the JVM has ended")

    def resolve_packages(self, request: PackageRequest) -> list[Path]:
        self.create_context({})
        raise AssertionError

    def close(self) -> None:
        assert self.killed.is_set(), "a JVM that hangs would not let go"
        self.is_closed = True


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> FakeJvm:
    made = FakeJvm()
    monkeypatch.setattr(local, "spawn", lambda *_: made)
    monkeypatch.setattr(local, "await_connection", AsyncMock(return_value=(4040, "secret")))
    monkeypatch.setattr(local, "DriverGateway", lambda *_: made)
    monkeypatch.setattr(local, "find_java", lambda _: SimpleNamespace(home="/java", version="21"))
    monkeypatch.setattr(local, "command", lambda *_: ["java"])
    monkeypatch.setattr(local, "sharing", lambda *_: SimpleNamespace(options=(), archive=None, class_list=None))
    return made


@pytest.fixture
def options(tmp_path: Path) -> DriverOptions:
    return DriverOptions(tmp_path / "d", tmp_path / "spark.log", start_timeout=LONGER_THAN_PATIENCE_S)


async def test_a_jvm_that_hangs_while_it_creates_its_context_is_killed(jvm: FakeJvm, options: DriverOptions) -> None:
    with pytest.raises(DriverStartError) as late:
        await LocalDriver.start(replace(options, start_timeout=0.01))
    assert str(late.value) == (
        "the Spark driver's JVM did not create its SparkContext within 0.01 s (taskmanager.spark.start-timeout, "
        f"spark.master=local[*]); see {options.log_file}"
    )
    assert jvm.is_reaped


async def test_a_cancelled_start_leaves_no_process(jvm: FakeJvm, options: DriverOptions) -> None:
    start = asyncio.create_task(LocalDriver.start(options))
    await asyncio.to_thread(jvm.asked.wait)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert jvm.is_reaped
    assert jvm.is_closed
    assert not list(options.work_dir.glob(".connection*"))


async def test_a_fetch_that_hangs_is_killed_with_its_own_jvm(
    jvm: FakeJvm, options: DriverOptions, tmp_path: Path
) -> None:
    request = PackageRequest("a:b:1", tmp_path / "ivy", timeout_s=0.01)
    with pytest.raises(PackagesError, match=r"a:b:1 not fetched within 0\.01 s .*, Ivy was still at work: name"):
        await LocalDriver.start(replace(options, packages=request))
    assert jvm.is_reaped
    assert not (options.work_dir / "packages").exists()


async def test_a_cancel_ends_the_start_of_the_tasks_own_driver(
    jvm: FakeJvm, options: DriverOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    internal = TaskDeploymentDescriptor.internal("alone", JobKind.SCRIPT)
    descriptor = replace(internal, job=replace(internal.job, spark_driver="own"))
    script = tmp_path / "job.py"
    script.write_text("print(1)\n")
    files: dict[ArtifactRole, list[Path]] = {role: [] for role in ArtifactRole}
    files[ArtifactRole.MAIN].append(script)
    monkeypatch.setattr(TaskFiles, "prepare", lambda *_: (files, None))
    pools, leases = FairPools(), Mock()
    services: Any = SimpleNamespace(
        configuration=Configuration(),
        driver=SimpleNamespace(is_ours=True, info=SimpleNamespace(application=""), alive=True),
        watch=None,
        blobs=None,
        groups=None,
        fair_pools=pools,
        libraries=leases,
        own_driver=lambda *_: options,
    )
    states: list[TaskExecutionState] = []
    logs: Any = SimpleNamespace(keep=AsyncMock(return_value=()))
    nothing: Any = None
    task = Task(descriptor, tmp_path, services, states.append, nothing, logs, nothing, 1)
    run = asyncio.create_task(task.run())
    await asyncio.to_thread(jvm.asked.wait)
    jvm.may_end.clear()
    task.cancel()
    await asyncio.to_thread(jvm.killed.wait)
    early, _ = await asyncio.wait({run}, timeout=0.2)
    jvm.may_end.set()
    assert not early, "no end is reported while the JVM lives"
    await run
    assert [state.state for state in states] == [ExecutionState.INITIALIZING, ExecutionState.CANCELED]
    assert jvm.is_reaped
    leases.register_lease.return_value.release.assert_called_once()
