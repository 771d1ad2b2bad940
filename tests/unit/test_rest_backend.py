"""How the web endpoint asks a leader that changes, is not there, or does not answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.errors import AskTimeout, FencingError, RecipientUnreachable, UnknownActor
from conf.configuration import Configuration
from runtime.gateways.errors import JobNotFoundError, JobNotReachableError
from runtime.ids import JobID
from runtime.rest import backend as backend_module
from runtime.rest.backend import ClusterBackend
from runtime.rest.errors import RestError

ID = JobID("1" * 32)


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
    monkeypatch.setattr(backend_module, "RETRY_S", 0.0)
    nothing = cast("Any", SimpleNamespace(service=None, leader_retrieval=lambda component: None))
    backend = ClusterBackend(nothing, nothing, Configuration.from_dict({}))
    if dispatcher is not None:
        backend._dispatcher.gateway = cast("Any", dispatcher)
    return backend


@pytest.mark.parametrize(
    "error",
    [
        lambda: FencingError("another leads"),
        lambda: RecipientUnreachable("nobody there"),
        lambda: UnknownActor("nobody of that name"),
        lambda: AskTimeout("no answer"),
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
    with pytest.raises(RestError, match="the Dispatcher does not answer: nobody there") as caught:
        await backend_of(monkeypatch, Dispatcher(RecipientUnreachable("nobody there")), 0.02).job(ID)
    assert caught.value.status == 503


async def test_no_leader_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RestError, match="no Dispatcher leads at present") as caught:
        await backend_of(monkeypatch, None, 0.02).job(ID)
    assert caught.value.status == 503
