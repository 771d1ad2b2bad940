"""The checkers of the fault suite find what they are there for."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from actors.process.log_context import log_context
from actors.process.log_format import TextFormatter
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
    check,
)
from tests.faults.nemesis import leaderships


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


def test_who_leads_is_read_from_the_components_logs_as_they_are_written(tmp_path: Path) -> None:
    job_master = f"jobmaster-{'a' * 32}"
    lines = []
    for component, epoch in (("dispatcher", 17), (job_master, 18)):
        text, arguments = "%s leads with epoch %d", (component, epoch)
        record = logging.LogRecord("runtime.ha.election", logging.INFO, "election.py", 1, text, arguments, None)
        with log_context(component=component):
            lines.append(TextFormatter().format(record))
    (tmp_path / "dispatcher.log").write_text("\n".join([*lines, "dispatcher leads with epoch 19"]) + "\n")
    found = leaderships(tmp_path)
    assert [(item.component, item.epoch, item.pid) for item in found] == [
        ("dispatcher", 17, os.getpid()),
        (job_master, 18, os.getpid()),
    ]
    assert all(abs(item.at - time.time()) < 600 for item in found)
