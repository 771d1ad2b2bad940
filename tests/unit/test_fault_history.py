"""The checkers of the fault suite find what they are there for."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from actors.errors import AskTimeout
from actors.process.logs import TextFormatter, log_context
from blob.errors import BlobError
from runtime.ha.election import DefaultLeaderElectionService, LeaderContender, LeaderElectionDriver
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError
from runtime.protocol.leader import LeaderTerm, job_master
from tests.cluster_harness import Cluster
from tests.faults import deeds
from tests.faults.customers import Recorder
from tests.faults.deeds import Nemesis, Turns
from tests.faults.history import (
    Absence,
    Call,
    Execution,
    History,
    LastState,
    Leadership,
    Listed,
    Look,
    Operation,
    Outcome,
    Reign,
    Silence,
    check,
)
from tests.faults.nemesis import CLOCKS_S, certain, leaderships
from tests.faults.redis_front import RedisFront


def look(at: float, listed: dict[str, Listed], before: set[str], after: set[str]) -> Look:
    return Look(at, at + 0.1, listed, frozenset(before), frozenset(after))


def good() -> History:
    """A history in which nothing is wrong: one job runs twice after a loss, another is cancelled."""
    ok = Outcome.OK
    return History(
        operations=[
            Operation(Call.SUBMIT, "a", 1.0, 1.1, ok),
            Operation(Call.SUBMIT, "b", 1.0, 1.1, ok),
            Operation(Call.SUBMIT, "c", 1.0, 9.0, Outcome.UNKNOWN),
            Operation(Call.STATUS, "a", 2.0, 2.1, ok, "RUNNING"),
            Operation(Call.STATUS, "a", 3.0, 3.1, ok, "RECONCILING"),
            Operation(Call.CANCEL, "b", 4.0, 4.1, ok),
            Operation(Call.STATUS, "b", 6.0, 6.1, ok, "CANCELED"),
            Operation(Call.STATUS, "a", 8.0, 8.1, ok, "FINISHED"),
        ],
        executions=[
            Execution("a", 1.5, 3.0, ended=False),
            Execution("a", 4.0, 7.0, ended=True),
            Execution("b", 2.0, 5.0, ended=False),
        ],
        leaderships=[Leadership("dispatcher", 5, 1.0), Leadership("rm", 6, 1.5), Leadership("dispatcher", 9, 2.0)],
        reigns=[
            Reign("dispatcher", 5, "x", 1.0, 2.0, 7),
            Reign("dispatcher", 9, "y", 2.1, 3.0, 5),
            Reign("rm", 6, "z", 1.5, 9.0, 5),
        ],
        absences=[Absence("a", 2.05, 4.0)],
        looks=[
            [
                # The JobMaster of a does not know yet that its process is gone; b has begun while the list was made.
                look(2.0, {"a": Listed("RUNNING", 1), "b": Listed("CREATED")}, set(), {"b"}),
                look(2.5, {"a": Listed("RECONCILING"), "b": Listed("RUNNING", 1)}, {"b"}, {"b"}),
            ],
            [look(9.0, {"a": Listed("FINISHED"), "b": Listed("CANCELED")}, set(), set())],
        ],
        last={"a": LastState("FINISHED", 2), "b": LastState("CANCELED", 1)},
    )


def test_a_history_without_contradictions() -> None:
    assert check(good()) == []


def status(job_id: str, at: float, value: str) -> Operation:
    return Operation(Call.STATUS, job_id, at, at + 0.1, Outcome.OK, value)


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("job a was acknowledged and is lost", lambda h: h.last.pop("a")),
        ("job a never ends: it is RECONCILING", lambda h: h.last.update(a=LastState("RECONCILING", 2))),
        ("job a was FINISHED and later RUNNING", lambda h: h.operations.append(status("a", 9.0, "RUNNING"))),
        ("job b was CANCELED and later FINISHED", lambda h: h.last.update(b=LastState("FINISHED", 1))),
        ("job a is CANCELED, and nobody", lambda h: h.last.update(a=LastState("CANCELED", 2))),
        ("job a is FAILED", lambda h: h.last.update(a=LastState("FAILED", 2))),
        ("job b is FINISHED, and that it is", lambda h: h.last.update(b=LastState("FINISHED", 1))),
        ("job a ran twice at once", lambda h: h.executions.append(Execution("a", 6.5, 6.9, ended=False))),
        ("job a ran 2 times in 1 attempts", lambda h: h.last.update(a=LastState("FINISHED", 1))),
        ("job a was FINISHED at", lambda h: h.executions.append(Execution("a", 9.0, 9.5, ended=False))),
        ("job b was CANCELED at", lambda h: h.executions.append(Execution("b", 6.5, 6.9, ended=False))),
        ("never came to its end", lambda h: h.executions.__setitem__(1, replace(h.executions[1], ended=False))),
        ("dispatcher: ", lambda h: h.leaderships.append(Leadership("dispatcher", 9, 3.0))),
        ("dispatcher: ", lambda h: h.leaderships.append(Leadership("dispatcher", 8, 3.0))),
        ("2 leaders of epoch 9", lambda h: h.reigns.append(Reign("dispatcher", 9, "other", 2.5, 2.6, 1))),
        ("epoch 5 was accepted at 2.2", lambda h: h.reigns.append(Reign("dispatcher", 5, "x", 1.0, 2.2, 1))),
        ("job a was said to be RUNNING at 3.2", lambda h: h.operations.append(status("a", 3.2, "RUNNING"))),
        (
            "job a was said to be RUNNING at 3.3",
            lambda h: h.looks.append([look(3.3, {"a": Listed("RUNNING")}, set(), set())]),
        ),
        (
            "job b was listed as CANCELED",
            lambda h: h.looks.append([look(9.0, {"b": Listed("CANCELED")}, set(), {"b"})]),
        ),
        ("its processes say otherwise", lambda h: h.looks[0].pop()),
        ("job c is listed as None", lambda h: h.looks.append([look(9.0, {}, {"c"}, {"c"})])),
    ],
)
def test_each_contradiction_is_found(problem: str, change: object) -> None:
    history = good()
    change(history)  # type: ignore[operator]
    assert any(problem in found for found in check(history)), check(history)


ZYGOTE = 77


@pytest.mark.parametrize(
    ("silence", "is_excused"),
    [
        (Silence(frozenset({ZYGOTE}), 2.5, 3.5), True),
        (Silence(frozenset({ZYGOTE + 1}), 2.5, 3.5), False),  # another TaskExecutor's
        (Silence(frozenset({ZYGOTE}), 1.0, 1.4), False),  # it was over when the process began
        (Silence(frozenset({ZYGOTE}), 4.9, 5.5), False),  # it came when the process had ended
        (None, False),
    ],
)
def test_only_what_ran_while_its_task_executor_was_silent_may_run_beside_its_successor(
    silence: Silence | None, is_excused: bool
) -> None:
    history = good()
    history.executions[0] = replace(history.executions[0], last_seen=4.8, zygote=ZYGOTE)
    history.silences = [] if silence is None else [silence]
    assert any("job a ran twice at once" in problem for problem in check(history)) != is_excused


def test_nor_may_anything_else_run_when_its_job_is_over() -> None:
    history = good()
    history.executions[1] = replace(history.executions[1], last_seen=8.5, zygote=ZYGOTE)
    history.looks.append([look(8.2, {"a": Listed("FINISHED"), "b": Listed("CANCELED")}, set(), {"a"})])
    assert [problem.split(" and ")[0] for problem in check(history)] == [
        "job a was FINISHED at 8.100",
        "job a was listed as FINISHED at 8.300,",
    ]
    history.silences = [Silence(frozenset({ZYGOTE}), 5.0, 6.0)]
    assert check(history) == []


def test_each_deed_has_its_turn_and_one_that_met_nobody_another() -> None:
    names = [f"deed {number}" for number in range(20)]
    turns = Turns(names, random.Random(1))
    taken = [turns.take() for _ in names]
    assert (sorted(taken), turns.missing, turns.done.total()) == (sorted(names), set(names), 0)
    for name in taken[2:]:
        turns.came_off(name)
    for name in taken[:2]:
        turns.put_off(name)
    assert turns.missing == set(taken[:2])
    assert {turns.take(), turns.take()} == set(taken[:2]), "before the others have their second turn"
    turns.came_off(taken[0])
    assert turns.missing == {taken[1]}
    assert [Turns(names, random.Random(1)).take()] == taken[:1], "a seed is an order"
    orders = {Turns(names, random.Random(seed)).take() for seed in range(50)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, Outcome.OK),
        (JobNotFoundError("j"), Outcome.REFUSED),
        (JobAlreadyTerminatedError("j"), Outcome.REFUSED),
        (AskTimeout("no answer"), Outcome.UNKNOWN),
        (BlobError("broken"), Outcome.UNKNOWN),
        (ConnectionResetError(), Outcome.UNKNOWN),
    ],
)
def test_what_came_of_a_clients_call_is_noted_with_its_time(raised: Exception | None, outcome: Outcome) -> None:
    recorder = Recorder()

    def call() -> str:
        if raised is not None:
            raise raised
        return "RUNNING"

    before = time.monotonic()
    recorder.call(Call.STATUS, "a", call)
    (noted,) = recorder.operations
    assert (noted.call, noted.job_id, noted.outcome) == (Call.STATUS, "a", outcome)
    assert before <= noted.asked <= noted.answered <= time.monotonic()
    assert (noted.value == "RUNNING") == (raised is None)


def test_a_defect_of_a_client_is_no_outcome() -> None:
    def call() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Recorder().call(Call.STATUS, "a", call)


def test_a_cluster_that_answers_nobody_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deeds, "AGREEMENT_S", 0.05)
    cluster = create_autospec(Cluster, instance=True, directory=Path("/nowhere"))
    client = cluster.client.return_value.__enter__.return_value
    client.list_jobs.side_effect = AskTimeout("no answer")
    nemesis = Nemesis(cluster, 1, 2.0, create_autospec(RedisFront, instance=True), {}, can_cut=False)
    assert list(nemesis._look_until_agreed()) == []
    (problem,) = nemesis.problems
    assert problem.startswith("`job list` was not answered for 0.05 s: ")
    client.list_jobs.side_effect = None
    client.list_jobs.return_value = []
    assert len(list(nemesis._look_until_agreed())) == 1
    assert len(nemesis.problems) == 1


def test_who_leads_is_read_from_the_log_that_an_election_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_job = job_master("a" * 32)
    lines = []
    for component, epoch in (("dispatcher", 17), (of_job, 18)):
        election = DefaultLeaderElectionService(component, create_autospec(LeaderElectionDriver, instance=True))
        asyncio.run(election.start(create_autospec(LeaderContender, instance=True)))
        caplog.clear()
        with caplog.at_level(logging.INFO, "runtime.ha.election"), log_context(component=component):
            election.on_grant(LeaderTerm(component, epoch, "session"))
            lines += map(TextFormatter().format, caplog.records)
            election.on_revoke()
    (tmp_path / "dispatcher.log").write_text("\n".join([*lines, "dispatcher leads with epoch 19"]) + "\n")
    found = leaderships(tmp_path)
    assert [(item.component, item.epoch, item.pid) for item in found] == [
        ("dispatcher", 17, os.getpid()),
        (of_job, 18, os.getpid()),
    ]
    assert all(abs(item.at - time.time()) < 600 for item in found)


JOB_MASTER = job_master("a")


def led(at: float, pid: int, component: str = JOB_MASTER) -> Leadership:
    """Somebody leads from a moment of the monotonic clock on; logs have the time of day."""
    return Leadership(component, int(at), at + time.time() - time.monotonic(), pid=pid)


@pytest.mark.parametrize(
    ("leaders", "absence", "until"),
    [
        ([led(10, 1)], Absence("a", 20, 30, frozenset({1})), 30.0),
        ([led(10, 1), led(25, 2)], Absence("a", 20, 30, frozenset({1})), 25.0),
        ([led(10, 1), led(15, 2)], Absence("a", 20, 30, frozenset({1})), None),  # it had been replaced by then
        ([led(10, 1, job_master("b"))], Absence("a", 20, 30, frozenset({1})), None),
        ([led(10, 1)], Absence("a", 20, float("inf"), frozenset({1})), None),  # nobody knows until when
        ([], Absence("a", 20, 30, frozenset({1})), None),
    ],
)
def test_an_absence_counts_from_who_led_to_the_next_who_leads(
    leaders: list[Leadership], absence: Absence, until: float | None
) -> None:
    found = certain([absence], leaders)
    assert [item.until for item in found] == ([] if until is None else [pytest.approx(until - CLOCKS_S, abs=0.05)])
