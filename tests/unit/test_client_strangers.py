"""What a client does and says while nobody answers, or a stranger does at the port of a process that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from actors.address import ActorAddress
from actors.errors import ActorError, AskTimeout, AuthenticationError, EndpointStateError, UnknownActor, WireError
from actors.receptionist import Listing
from runtime import client as client_module
from runtime.client import ClusterClient, ClusterStoppedError, NoAnswerError, SubmissionUnknownError, ThreadLink
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobSubmissionError

SYSTEMS = ["akka.tcp://understudy@127.0.0.1:1/user/master", "akka.tcp://understudy@127.0.0.1:2/user/master"]


class Dispatcher(DispatcherGateway):
    def __init__(self, port: int, strangers: dict[int, Exception], answers: list[Any], processes: list[Any]) -> None:
        self.port, self.strangers, self.answers, self.processes = port, strangers, answers, processes

    def request_status(self) -> Any:
        if not self.processes:
            raise ActorError("which masters there are is not told here")
        return SimpleNamespace(result=lambda: SimpleNamespace(processes=self.processes))

    def submit_job(self, job_graph: object) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(result=lambda: answer)


class Actors:
    """In the place of `ActorClient`: each port has a master and a Dispatcher, unless it is a stranger's."""

    def __init__(self) -> None:
        self.strangers: dict[int, Exception] = {}
        self.answers: list[Any] = []
        self.processes: list[Any] = []

    def find(self, address: ActorAddress) -> Listing:
        if address.port in self.strangers:
            raise self.strangers[address.port]
        return Listing(address.path, str(address), 1)

    def gateway(self, address: str, _type: object, _token: object) -> Dispatcher:
        return Dispatcher(ActorAddress.parse(address).port, self.strangers, self.answers, self.processes)


def port_of(gateway: Any) -> int:
    if gateway.port in gateway.strangers:
        raise gateway.strangers[gateway.port]
    return int(gateway.port)


@pytest.fixture
def actors() -> Actors:
    return Actors()


@pytest.fixture
def ask(actors: Actors) -> Callable[[], int]:
    client = ClusterClient(SYSTEMS, b"s" * 32, patience_s=0.3)
    client._link.actors = actors  # type: ignore[assignment]
    return lambda: client.call("dispatcher", DispatcherGateway, port_of)


@pytest.mark.parametrize("error", [AuthenticationError("another secret"), WireError("not our protocol")])
def test_a_master_whose_port_is_a_strangers_is_passed_over(
    actors: Actors, ask: Callable[[], int], error: Exception
) -> None:
    actors.strangers[1] = error
    assert ask() == 2


def test_a_dispatcher_whose_port_is_a_strangers_is_looked_up_anew(actors: Actors, ask: Callable[[], int]) -> None:
    assert ask() == 1
    actors.strangers[1] = AuthenticationError("another secret")
    assert ask() == 2


def test_who_was_never_answered_has_the_wrong_secret(actors: Actors, ask: Callable[[], int]) -> None:
    actors.strangers |= {1: AuthenticationError("another secret"), 2: AuthenticationError("another secret")}
    with pytest.raises(AuthenticationError, match="another secret"):
        ask()


def test_a_cluster_that_is_gone_for_good_is_told_with_what_was_found_there(
    actors: Actors, ask: Callable[[], int]
) -> None:
    assert ask() == 1
    actors.strangers |= {1: AuthenticationError("another secret"), 2: AuthenticationError("another secret")}
    with pytest.raises(ActorError, match="does not answer: another secret"):
        ask()


JOB = JobID("a" * 32)


def submit(actors: Actors, tmp_path: Path, was_stopped: Callable[[], bool] = bool) -> JobID:
    client = ClusterClient(SYSTEMS, b"s" * 32, patience_s=0.3, was_stopped=was_stopped)
    client._link.actors = actors  # type: ignore[assignment]
    file = tmp_path / "job.py"
    file.touch()
    return client.submit(JobGraph.for_script("etl", job_id=JOB, argv=(), created_ms=1), file)


def test_a_submission_is_asked_again_under_its_id_until_its_outcome_is_known(actors: Actors, tmp_path: Path) -> None:
    actors.answers = [AskTimeout("no reply"), EndpointStateError("it is being stopped"), JOB]
    assert submit(actors, tmp_path) == JOB
    assert actors.answers == [JOB]


def test_a_submission_without_an_answer_is_neither_refused_nor_accepted(actors: Actors, tmp_path: Path) -> None:
    actors.answers = [AskTimeout("no reply")]
    with pytest.raises(
        SubmissionUnknownError, match=rf"whether job 'etl' \({JOB}\) was accepted is not known"
    ) as caught:
        submit(actors, tmp_path)
    assert f"--job-id {JOB}" in caught.value.remedy


def test_a_submission_that_was_never_sent_is_not_called_unknown(actors: Actors, tmp_path: Path) -> None:
    actors.strangers |= {1: UnknownActor("nobody leads"), 2: UnknownActor("nobody leads")}
    with pytest.raises(NoAnswerError, match="does not answer: nobody leads") as caught:
        submit(actors, tmp_path)
    assert not isinstance(caught.value, SubmissionUnknownError)


def test_a_submission_that_is_refused_is_told_so_at_once(actors: Actors, tmp_path: Path) -> None:
    actors.answers = [JobSubmissionError("the disk is full"), JOB]
    with pytest.raises(JobSubmissionError, match="the disk is full"):
        submit(actors, tmp_path)


def test_a_cluster_that_was_stopped_is_not_waited_for(actors: Actors, tmp_path: Path) -> None:
    actors.answers = [EndpointStateError("/user/jobmaster-a is starting or stopping; try again")]
    asked: list[None] = []
    with pytest.raises(ClusterStoppedError, match="was stopped") as caught:
        submit(actors, tmp_path, lambda: asked.append(None) or len(asked) > 2)  # type: ignore[func-returns-value]
    assert "submit unfinished jobs again" in caught.value.remedy
    assert len(asked) == 3, "as long as it may come back, it is asked again"


def test_a_job_has_a_web_page_where_a_process_serves_one(actors: Actors) -> None:
    client = ClusterClient(SYSTEMS, b"s" * 32, patience_s=0.3)
    client._link.actors = actors  # type: ignore[assignment]
    assert client.web_page(JOB) == "", "the master does not answer"
    actors.processes = [SimpleNamespace(url="")]
    assert client.web_page(JOB) == ""
    actors.processes += [SimpleNamespace(url="https://[::1]:8081"), SimpleNamespace(url="https://other:8081")]
    assert client.web_page(JOB) == f"https://[::1]:8081/#/jobs/{JOB}"
    assert client.web_page() == "https://[::1]:8081"


def test_the_web_page_of_a_job_is_the_one_that_the_page_links() -> None:
    script = Path(__file__).resolve().parents[2] / "runtime" / "rest" / "static" / "ui" / "pages" / "job_tables.js"
    assert "return `#/jobs/${at(id, ...more)}`;" in script.read_text()


def test_a_client_that_was_given_addresses_asks_again_for_the_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ("akka.tcp://understudy@a:6123/user/master", "akka.tcp://understudy@b:6123/user/master")
    link = ThreadLink([ActorAddress.parse(first)], b"x" * 32, None, tuple, bool, lambda: ("a", 1))
    answers: list[Any] = [AskTimeout("late"), [first], [first, second]]
    status = Mock()
    status.request_status().result.side_effect = lambda: _masters(answers.pop(0))
    monkeypatch.setattr(link, "master", lambda: status)
    now = [100.0]
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now[0])
    for _ in range(3):
        link.answered()
    assert (len(answers), len(link._systems)) == (1, 1), "asked again only since there was no answer"
    now[0] += client_module.LEARN_EVERY_S
    link.answered()
    assert [system.host for system in link._systems] == ["a", "b"]


def _masters(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return SimpleNamespace(masters=found)
