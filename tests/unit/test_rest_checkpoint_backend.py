"""How the web endpoint asks the Dispatcher for checkpoints and savepoints."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.errors import AskTimeout
from runtime.ids import TriggerID
from runtime.protocol.checkpoints import CheckpointTrigger, SnapshotType
from tests.unit.test_rest_backend import ID, backend_of


class Recorder:
    """Notes how it is asked, and answers with what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def asked(*arguments: Any) -> Any:
            self.asked.append((name, *arguments))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return asked


async def test_each_wish_goes_to_its_method_of_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, wanted = Recorder(*"abcdefghijkl"), TriggerID("2" * 32)
    backend = backend_of(monkeypatch, cast("Any", recorder), 60.0)
    for kind in SnapshotType:
        await backend.trigger(ID, CheckpointTrigger(wanted, kind, "/data"))
    await backend.operation(ID, wanted)
    await backend.checkpoints(ID)
    await backend.query_histories(ID)
    await backend.roll_back(ID, wanted, "chk-3", True)
    await backend.trigger_rescale(ID, wanted, 8, "counts", "/data")
    await backend.rescale_status(ID, wanted)
    await backend.resource_requirements(ID)
    assert recorder.asked == [
        ("trigger_checkpoint", ID, wanted),
        ("trigger_savepoint", ID, wanted, "/data", False),
        ("stop_with_savepoint", ID, wanted, "/data", False),
        ("stop_with_savepoint", ID, wanted, "/data", True),
        ("trigger_savepoint", ID, wanted, "/data", True),
        ("get_triggered_savepoint_status", ID, wanted),
        ("request_checkpoint_statistics", ID),
        ("request_query_histories", ID),
        ("roll_back", ID, wanted, "chk-3", True),
        ("trigger_rescale", ID, wanted, 8, "counts", "/data"),
        ("request_rescale_status", ID, wanted),
        ("request_job_resource_requirements", ID),
    ]


@pytest.mark.parametrize(
    ("answers", "was_there"),
    [([True], True), ([False], False), ([AskTimeout("no answer"), False], True)],
)
async def test_a_savepoint_that_is_gone_after_a_lost_answer_was_there(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], was_there: bool
) -> None:
    backend = backend_of(monkeypatch, cast("Any", Recorder(*answers)), 60.0)
    assert await backend.dispose_savepoint("/data/savepoint-1") is was_there
