"""How a JobMaster reports the end of its job, where something is not as it should be."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from runtime.ids import TriggerID
from runtime.jobmaster import endpoint
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.execution_graph import JobReachedTerminal
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.rescales import Rescale
from tests.waiting import AT_ONCE

ARCHIVED = object()


async def report(results_dir: Path, job_reached_terminal_state: AsyncMock) -> RescaleHistory:
    """End a job whose results are below a directory, as its JobMaster does; return its rescales."""
    history = RescaleHistory()
    history.report(Rescale(TriggerID.random(), 8), 1)
    dispatcher = SimpleNamespace(job_reached_terminal_state=job_reached_terminal_state)
    job: Any = SimpleNamespace(
        _job_id="j",
        _graph=object(),
        _journal=SimpleNamespace(written=AsyncMock(), complete=Mock()),
        _checkpoints=None,
        _traces=None,
        _keep_lost_logs=AsyncMock(),
        _do=Mock(),
        _pool=Mock(),
        _task_managers=Mock(),
        _resource_manager=Mock(),
        _results_dir=results_dir / "attempt",
        _dispatcher=SimpleNamespace(get=AsyncMock(return_value=dispatcher)),
        _archive=Mock(return_value=ARCHIVED),
        _rescales=history,
        run_blocking=asyncio.to_thread,
        log=logging.getLogger("test"),
    )
    await JobMaster._finish(job, JobReachedTerminal(JobStatus.FINISHED, None))
    return history


async def test_the_end_is_reported_until_the_dispatcher_has_it_whatever_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would report it: clients would wait for ever."""
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    told = AsyncMock(side_effect=[ConnectionResetError("gone"), KeyError("a defect"), None])
    await report(tmp_path / "results", told)
    assert [call.args for call in told.await_args_list] == [(ARCHIVED,)] * 3
    assert "telling the Dispatcher of the end of job j is tried again: 'a defect'" in caplog.text


async def test_results_that_cannot_be_removed_keep_no_end_from_being_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def remove(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(endpoint, "_remove_tree", remove)
    told = AsyncMock()
    history = await report(tmp_path / "results", told)
    told.assert_awaited_once_with(ARCHIVED)
    assert history.all[0].error == "the job has ended before it was done"
    assert "intermediate results of job j are left behind, remove them: [Errno 13] Permission denied" in caplog.text


def ending(status: JobStatus) -> Any:
    """A JobMaster whose job has come that far, and whose Dispatcher does not know it yet."""
    return SimpleNamespace(
        _job_id="j",
        _require_graph=lambda: SimpleNamespace(status=status, cancel=Mock(return_value=[])),
        _do=Mock(),
        _written=AsyncMock(),
        log=logging.getLogger("test"),
    )


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED])
async def test_what_has_ended_is_not_promised_to_be_cancelled_though_the_dispatcher_does_not_know(
    status: JobStatus,
) -> None:
    """The Dispatcher passes the request on as long as it was not told of the end."""
    job = ending(status)
    with pytest.raises(JobAlreadyTerminatedError, match=f"job j is {status.value} already: nothing to cancel"):
        await JobMaster.cancel(job)
    job._do.assert_not_called()
    job._written.assert_awaited_once()


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.CANCELED])
async def test_a_request_to_cancel_may_be_repeated(status: JobStatus) -> None:
    job = ending(status)
    await JobMaster.cancel(job)
    job._do.assert_called_once()
    job._written.assert_awaited_once()
