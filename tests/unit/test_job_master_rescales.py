"""Records that a JobMaster makes of the rescales of its job, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from runtime.checkpoint.errors import CheckpointError
from runtime.feature_level import lowest_level
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.codec import decode
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.jobmaster.restart_strategy import RestartStrategyState
from runtime.protocol.checkpoints import NO_TOTALS, OperationState
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.rescales import Rescale

TRIGGER = TriggerID("a" * 32)
STATE = ExecutionGraphSnapshot(JobID("1" * 32), JobStatus.RUNNING, {}, None, (), 0, RestartStrategyState(0, ()), 1, ())


@pytest.fixture
def master() -> Any:
    """A JobMaster whose job runs, as far as its rescales need it; `kept` is what the next JobMaster would find."""
    graph = Mock(status=JobStatus.RUNNING)
    graph.snapshot.return_value = STATE
    made = SimpleNamespace(
        _job_id="j",
        _level=lowest_level(),
        _rescales=RescaleHistory(),
        _require_graph=lambda: graph,
        _checkpoints=SimpleNamespace(
            rollback=None, totals=NO_TOTALS, roll_back=AsyncMock(), rollback_written=AsyncMock()
        ),
        _require_checkpoints=lambda: made._checkpoints,
        _advance_checkpoints=Mock(),
        _do=Mock(),
        _task_managers=Mock(awaited_successors={}),
        kept=[],
        log=logging.getLogger("test"),
    )

    async def written() -> None:
        made.kept.append(decode(JobMaster._encoded_execution(made), ExecutionGraphSnapshot).rescales)

    made._written = written
    made._check_active = lambda: JobMaster._check_active(made)
    return made


async def test_a_report_is_answered_when_the_next_job_master_would_know_it(master: Any) -> None:
    await JobMaster.report_rescale(master, Rescale(TRIGGER, 8, {"counts": 2}))
    ((kept,),) = master.kept
    assert (kept.trigger_id, kept.before, kept.state) == (TRIGGER, {"counts": 2}, OperationState.IN_PROGRESS)
    assert kept.started_ms > 0
    assert RescaleHistory((kept,)).all == master._rescales.all


async def test_the_success_is_written_together_with_the_rollback(master: Any) -> None:
    await JobMaster.report_rescale(master, Rescale(TRIGGER, 8))
    await JobMaster.roll_back(master, TRIGGER, "/s/8", False)
    (first,) = master.kept[1]
    assert (first.state, first.savepoint) == (OperationState.COMPLETED, "/s/8"), "before the tasks restart"
    master._do.assert_called_once()


async def test_a_job_that_is_ending_is_not_rolled_back(master: Any) -> None:
    async def roll_back(trigger_id: TriggerID, target: str, new_query_id: bool, check: Callable[[], None]) -> None:
        master._require_graph().status = JobStatus.CANCELLING  # while the files of the target were looked at
        check()

    master._checkpoints.roll_back = roll_back
    with pytest.raises(CheckpointError, match="job j is CANCELLING and cannot be rolled back"):
        await JobMaster.roll_back(master, TRIGGER, "/s/8", False)
    assert master.kept == []
    master._do.assert_not_called()


@pytest.mark.parametrize("left", [(), (Rescale(TRIGGER, 8, number=3),)])
async def test_the_next_job_master_knows_the_rescales_of_the_former_one(master: Any, left: tuple[Rescale, ...]) -> None:
    master._checkpoints.recover = AsyncMock(return_value="")
    master._require_graph().restore.return_value = ()
    master._rescales = RescaleHistory((Rescale(TRIGGER, 4),))  # of an earlier term of this process
    master._known_addresses, master._cannot_begin = {}, ""
    await JobMaster._take_up(master, replace(STATE, rescales=left), False)
    assert master._rescales.all == left
    await JobMaster._take_up(master, None, True)
    assert master._rescales.all == ()
