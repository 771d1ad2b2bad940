"""How the web endpoint asks a leader that changes, is not there, or does not answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.address import ActorAddress
from actors.errors import AskTimeout, EndpointStateError, FencingError, RecipientUnreachable, UnknownActor
from conf.configuration import Configuration
from runtime import client as client_module
from runtime.client import NoAnswerError
from runtime.ids import ExecutionAttemptID, JobID
from runtime.job_logs import KeptLog, LogChunk
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.archived_execution_graph import AttemptInfo
from runtime.protocol.errors import JobNotFoundError, JobNotReachableError, UnknownTaskExecutorError
from runtime.protocol.execution_state import ExecutionState
from runtime.protocol.leader import DISPATCHER
from runtime.protocol.messages import ClusterStatus, ProcessView
from runtime.rest import backend as backend_module
from runtime.rest.backend import ClusterBackend
from runtime.rest.errors import RestError
from runtime.rest.errors import status_of as http_status_of

ID = JobID("1" * 32)
SYSTEM = ActorAddress.parse("akka.tcp://understudy@127.0.0.1:6123/user/receptionist")


class Dispatcher:
    """Answers with what it is given, one after the other; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def request_job(self, job_id: JobID) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def backend_of(monkeypatch: pytest.MonkeyPatch, dispatcher: Dispatcher | None, patience_s: float) -> ClusterBackend:
    monkeypatch.setattr(backend_module, "PATIENCE_S", patience_s)
    monkeypatch.setattr(client_module, "RETRY_S", 0.0)
    nothing = cast("Any", SimpleNamespace(service=None, leader_retrieval=lambda component: None))
    backend = ClusterBackend(nothing, nothing, Configuration.from_dict({}), SYSTEM)
    if dispatcher is not None:
        backend._link.followers[DISPATCHER].gateway = cast("Any", dispatcher)
    return backend


@pytest.mark.parametrize(
    "error",
    [
        lambda: FencingError("another leads"),
        lambda: RecipientUnreachable("nobody there"),
        lambda: UnknownActor("nobody of that name"),
        lambda: AskTimeout("no answer"),
        lambda: EndpointStateError("it is being stopped"),
        lambda: JobNotReachableError("its JobMaster is being replaced"),
    ],
)
async def test_what_passes_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> None:
    dispatcher = Dispatcher(error(), error(), "the job")
    assert await backend_of(monkeypatch, dispatcher, 60.0).job(ID) == "the job"
    assert dispatcher.asked == 3


async def test_what_does_not_pass_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(JobNotFoundError("no such job"))
    with pytest.raises(JobNotFoundError):
        await backend_of(monkeypatch, dispatcher, 60.0).job(ID)
    assert dispatcher.asked == 1


async def test_a_leader_that_never_answers_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAnswerError, match="the Dispatcher does not answer: nobody there") as caught:
        await backend_of(monkeypatch, Dispatcher(RecipientUnreachable("nobody there")), 0.02).job(ID)
    assert http_status_of(caught.value) == 503


async def test_no_leader_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAnswerError, match="no Dispatcher leads at present") as caught:
        await backend_of(monkeypatch, None, 0.02).job(ID)
    assert http_status_of(caught.value) == 503


class Masters:
    """An RPC service that knows the masters' gateways."""

    def __init__(self, **answers: ClusterStatus | Exception) -> None:
        self.answers = answers

    def gateway(self, address: ActorAddress, gateway_type: type, timeout_s: float | None) -> Any:
        async def request_status() -> ClusterStatus:
            answer = self.answers[f"port{address.port}"]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(request_status=request_status)


def status_of(name: str) -> ClusterStatus:
    """A master's answer: it knows of three masters, itself among them."""
    masters = tuple(f"akka.tcp://understudy@127.0.0.1:{port}/user/receptionist" for port in (6123, 6124, 6125))
    return ClusterStatus("c", "1", masters[0], 1, (ProcessView(name, "master", 1, ""),), masters)


async def test_the_processes_are_those_of_all_masters_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(monkeypatch, None, 0.02)
    service = Masters(port6123=status_of("own"), port6124=RecipientUnreachable("gone"), port6125=status_of("third"))
    backend._link.endpoint = cast("Any", SimpleNamespace(service=service))
    assert [process.name for process in (await backend.status()).processes] == ["own", "third"]
    service.answers["port6125"] = ValueError("a fault of ours")
    with pytest.raises(ValueError, match="a fault of ours"):
        await backend.status()


def attempt(kept: KeptLog | None, state: ExecutionState = ExecutionState.FINISHED) -> AttemptInfo:
    logs = () if kept is None else (kept,)
    return AttemptInfo(ExecutionAttemptID("2" * 32), 0, state, "tm-0", {state.value: 1}, None, None, logs=logs)


class LogOf:
    """A TaskExecutor that has a log, or is gone."""

    def __init__(self, text: bytes | None) -> None:
        self.text = text

    async def read_task_log(self, job_id: JobID, attempt_id: Any, name: str, offset: int) -> LogChunk:
        if self.text is None:
            raise RecipientUnreachable("gone")
        return LogChunk(self.text[offset : offset + 4], len(self.text))


@pytest.mark.parametrize(
    ("text", "kept", "state", "offset", "read"),
    [
        (b"0123456789", None, ExecutionState.RUNNING, 3, (b"3456789", False)),
        (b"0123456789", None, ExecutionState.RUNNING, 10, (b"", False)),
        (b"0123456789", None, ExecutionState.FAILED, 0, (b"0123456789", True)),
        (None, KeptLog("stdout", 10, 10, "key"), ExecutionState.FINISHED, 8, (b"89", True)),
        (None, KeptLog("stdout", 10, 10, "key"), ExecutionState.FINISHED, 10, (b"", True)),
        (b"0123456789", KeptLog("stdout", 10, 6, "key"), ExecutionState.FINISHED, 0, (b"0123456789", True)),
        (None, KeptLog("stdout", 20, 10, "key"), ExecutionState.FINISHED, 0, (b"0123456789", True)),
    ],
)
async def test_a_log_is_read_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
    text: bytes | None,
    kept: KeptLog | None,
    state: ExecutionState,
    offset: int,
    read: tuple[bytes, bool],
) -> None:
    backend = backend_of(monkeypatch, None, 0.02)

    async def task_executor(resource_id: str, timeout_s: float) -> LogOf:
        return LogOf(text)

    async def run_blocking(function: Any, *args: Any) -> bytes:
        return b"0123456789"

    async def blob_server() -> None:
        return None

    monkeypatch.setattr(backend, "task_executor", task_executor)
    monkeypatch.setattr(backend, "blob_server", blob_server)
    backend._link.endpoint = cast("Any", SimpleNamespace(run_blocking=run_blocking))
    assert await backend.task_log(ID, attempt(kept, state), "stdout", offset) == read


async def test_a_log_that_is_nowhere_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(monkeypatch, None, 0.02)

    async def task_executor(resource_id: str, timeout_s: float) -> LogOf:
        raise UnknownTaskExecutorError("tm-0 is not registered")

    monkeypatch.setattr(backend, "task_executor", task_executor)
    with pytest.raises(UnknownTaskExecutorError):
        await backend.task_log(ID, attempt(None, ExecutionState.RUNNING), "stdout", 0)


async def test_a_submission_without_an_answer_is_neither_refused_nor_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Dispatcher):
        async def get_blob_server(self) -> Any:
            return None

        async def submit_job(self, job_graph: object) -> Any:
            raise AskTimeout("no answer")

    async def run_blocking(work: Callable[[], object]) -> bytes:
        return b"the graph"

    backend = backend_of(monkeypatch, Silent(None), 0.02)
    backend._link.endpoint = cast("Any", SimpleNamespace(run_blocking=run_blocking))
    job = JobGraph.for_script("etl", job_id=ID, argv=(), created_ms=1)
    with pytest.raises(RestError, match=f"job {ID} may or may not have been accepted: .*no answer") as caught:
        await backend.submit(job, [])
    assert caught.value.status == 503
