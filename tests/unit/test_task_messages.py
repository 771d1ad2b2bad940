"""The messages between a task process and its TaskExecutor: each comes out as it went in, and others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, VertexDescriptor
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark import messages
from runtime.spark.errors import WireError
from runtime.spark.messages import FromTask, ToTask, pack, unpack_from_task, unpack_to_task
from runtime.spark.spec import ClassicEndpoint, TaskSpec
from runtime.spark.wire import FrameReader, encode

ERROR = messages.ErrorDescription("ValueError", "no", "Traceback ...", None, "v")
FROM_TASK: list[FromTask] = [
    messages.Ready(),
    messages.Running(),
    messages.StandsBy(),
    messages.Progress({"v": {"state": "RUNNING", "stages": 3}}),
    messages.QueryRestores("q", has_failed=True),
    messages.QueryStarts(QueryLocation("q", "/live", None), -1, "put back"),
    messages.Note("text"),
    messages.LeaseRequest(1 << 47, "/live", is_running=True),
    messages.QueryFailed("q", ERROR),
    messages.QueryFailed("q", None),
    messages.Finished([{"vertex_id": "v", "bytes": 6}], False, ["q"], [{"id": "i", "json": "{}"}]),
    messages.Failed(ERROR),
    messages.Canceled(),
    messages.Answer(1, [["MainThread", "at rest"]]),
]
TASK = TaskDeploymentDescriptor.internal("job", JobKind.SCRIPT, VertexDescriptor(JobVertexID.of("job", "v"), "n"))
SPEC = TaskSpec(TASK, "f.py", "/w", classic=ClassicEndpoint("a", 1, "s", "t"))
TO_TASK: list[ToTask] = [
    messages.Run(SPEC),
    messages.Cancel(),
    messages.EndSession(),
    messages.LeaseAnswer(1),
    messages.LeaseAnswer(1, "another job writes there"),
    messages.EndHold(3, stops=True),
    messages.Ask(2, messages.Question.THREADS),
]


def over_the_wire(message: FromTask | ToTask) -> Any:
    (received,) = FrameReader().feed(encode(pack(message)))
    return received


def test_each_message_comes_out_as_it_went_in() -> None:
    assert [unpack_from_task(over_the_wire(message)) for message in FROM_TASK] == FROM_TASK
    assert [unpack_to_task(over_the_wire(message)) for message in TO_TASK] == TO_TASK
    sent = {type(message) for message in (*FROM_TASK, *TO_TASK)}
    assert sent == {*FromTask.__args__, *ToTask.__args__}, "a kind of message is not tried"


@pytest.mark.parametrize(
    "plain",
    [{}, {"type": "Cancel"}, {"type": "shut_down"}, {"type": "Note"}, {"type": "Note", "text": 3}, {"type": ["Note"]}],
)
def test_what_a_task_has_not_to_send_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="a control message is"):
        unpack_from_task(plain)
