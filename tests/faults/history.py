"""What happened in a run with faults, and whether it may have (in the manner of Jepsen). Pure: no clock, no I/O.

Clients note what they asked for and what they were told; the jobs themselves note when their code ran; the components'
logs say who led. `check` reads all of it and names every contradiction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

FINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})


class Call(Enum):
    """What a client asked for."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    STATUS = "status"


class Outcome(Enum):
    """What came of it: answered; refused, so that it had no effect; or nobody knows."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Operation:
    """One call of a client, from *asked* to *answered* (seconds on one clock); *value* is the status that was told."""

    call: Call
    job_id: str
    asked: float
    answered: float
    outcome: Outcome
    value: str = ""


@dataclass(frozen=True)
class Execution:
    """One process that ran a job's code: alive at least from *began* to *last_seen*; whether it came to its end."""

    job_id: str
    began: float
    last_seen: float
    ended: bool


@dataclass(frozen=True)
class Leadership:
    """A contender says that it leads."""

    component: str
    epoch: int
    at: float
    who: str = ""


@dataclass(frozen=True)
class LastState:
    """What the cluster says of a job when all is over: its status, and how many attempts of its task it counts."""

    status: str
    attempts: int


@dataclass
class History:
    """All that was noted."""

    operations: list[Operation] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    leaderships: list[Leadership] = field(default_factory=list)
    last: dict[str, LastState] = field(default_factory=dict)


def check(history: History) -> list[str]:
    """Every contradiction, in words; empty where there is none."""
    return [
        *acknowledged_jobs_are_kept(history),
        *ends_are_final(history),
        *cancellations_hold(history),
        *nothing_runs_twice(history),
        *nothing_runs_when_it_is_over(history),
        *epochs_rise(history.leaderships),
    ]


def _acknowledged(history: History) -> set[str]:
    return {item.job_id for item in history.operations if item.call is Call.SUBMIT and item.outcome is Outcome.OK}


def acknowledged_jobs_are_kept(history: History) -> list[str]:
    """A job whose submission was acknowledged is there in the end, and is over."""
    problems = []
    for job_id in sorted(_acknowledged(history)):
        last = history.last.get(job_id)
        if last is None:
            problems.append(f"job {job_id} was acknowledged and is lost")
        elif last.status not in FINAL:
            problems.append(f"job {job_id} never ends: it is {last.status}")
    return problems


def ends_are_final(history: History) -> list[str]:
    """Nobody is told anything else of a job after somebody was told how it ended."""
    problems = []
    told = [item for item in history.operations if item.call is Call.STATUS and item.outcome is Outcome.OK]
    for first in (item for item in told if item.value in FINAL):
        later = {item.value for item in told if item.job_id == first.job_id and item.asked >= first.answered}
        last = history.last.get(first.job_id)
        later |= set() if last is None else {last.status}
        problems += [f"job {first.job_id} was {first.value} and later {value}" for value in later - {first.value}]
    return problems


def cancellations_hold(history: History) -> list[str]:
    """No job is cancelled that nobody cancelled, and one that was to be cancelled does not fail."""
    tried = {item.job_id for item in history.operations if item.call is Call.CANCEL}
    problems = []
    for job_id, last in sorted(history.last.items()):
        if last.status == "CANCELED" and job_id not in tried:
            problems.append(f"job {job_id} is CANCELED, and nobody cancelled it")
        if last.status == "FAILED":
            problems.append(f"job {job_id} is FAILED, and its code does not fail")
    return problems


def nothing_runs_twice(history: History) -> list[str]:
    """A job's code never runs in two processes at once, and not more often than the cluster counts attempts."""
    problems = []
    for job_id, runs in _by_job(history.executions).items():
        for earlier, later in itertools.pairwise(runs):
            if later.began < earlier.last_seen:
                problems.append(
                    f"job {job_id} ran twice at once: again at {later.began:.3f}, before {earlier.last_seen:.3f}"
                )
        last = history.last.get(job_id)
        if last is not None and len(runs) > last.attempts:
            problems.append(f"job {job_id} ran {len(runs)} times in {last.attempts} attempts")
        if last is not None and last.status == "FINISHED" and not any(run.ended for run in runs):
            problems.append(f"job {job_id} is FINISHED, and its code never came to its end")
    return problems


def nothing_runs_when_it_is_over(history: History) -> list[str]:
    """Once somebody was told how a job ended, its code does not begin again, and none of it is left running."""
    problems = []
    runs = _by_job(history.executions)
    for item in history.operations:
        if item.call is Call.STATUS and item.outcome is Outcome.OK and item.value in FINAL:
            problems += [
                f"job {item.job_id} was {item.value} at {item.answered:.3f} and ran at {run.last_seen:.3f}"
                for run in runs.get(item.job_id, [])
                if run.last_seen > item.answered
            ]
    return problems


def epochs_rise(leaderships: Iterable[Leadership]) -> list[str]:
    """Of every component: each epoch has one leader, and a later leader has a higher one."""
    problems = []
    last: dict[str, Leadership] = {}
    for item in sorted(leaderships, key=lambda entry: entry.at):
        before = last.get(item.component)
        if before is not None and item.epoch <= before.epoch:
            problems.append(
                f"{item.component}: {item.who} leads with epoch {item.epoch} after {before.who} with {before.epoch}"
            )
        last[item.component] = item
    return problems


def _by_job(executions: Sequence[Execution]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = {}
    for execution in sorted(executions, key=lambda item: item.began):
        found.setdefault(execution.job_id, []).append(execution)
    return found
