"""What happened in a run with faults, and whether it may have (in the manner of Jepsen). Pure: no clock, no I/O.

Clients note what they asked for and what they were told; the jobs themselves note when their code ran; the components'
logs say who led, the proxy before Redis whose writes were accepted, and looks at the processes what really was there.
`check` reads all of it and names every contradiction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
    """One process that ran a job's code: alive at least from *began* to *last_seen*; whether it came to its end.

    Args:
        zygote: the process that forked it, by which its TaskExecutor is known.
    """

    job_id: str
    began: float
    last_seen: float
    ended: bool
    zygote: int = 0


@dataclass(frozen=True)
class Silence:
    """A TaskExecutor stood still, or was cut off from a component, while the tasks of its zygote ran on.

    Others may take it for lost then, and run its tasks again elsewhere; nobody can end the former ones before it is
    heard again. This is a known limit (docs/hosts.md), so such a run is not a contradiction.
    """

    zygotes: frozenset[int]
    since: float
    until: float

    def covers(self, run: Execution) -> bool:
        """Whether the process ran in a moment of it."""
        return run.zygote in self.zygotes and run.began < self.until and self.since < run.last_seen


@dataclass(frozen=True)
class Leadership:
    """A contender says that it leads."""

    component: str
    epoch: int
    at: float
    who: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Reign:
    """One term, as Redis saw it: from when to when it accepted what the leader of it asked for.

    Args:
        first_accepted: when Redis had answered the first of its requests.
        last_sent: when the last one that was accepted had been sent.
        requests: how many were accepted.
    """

    component: str
    epoch: int
    session: str
    first_accepted: float
    last_sent: float
    requests: int

    def with_more(self, other: Reign) -> Reign:
        """This and another part of the same term."""
        return replace(
            self,
            first_accepted=min(self.first_accepted, other.first_accepted),
            last_sent=max(self.last_sent, other.last_sent),
            requests=self.requests + other.requests,
        )


@dataclass(frozen=True)
class Absence:
    """JobMasters were killed, or stood still: from *since* to *until* nobody could know how their job fared."""

    job_id: str
    since: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Listed:
    """What the list says of a job: its status, and how many of its tasks are RUNNING."""

    status: str
    running_tasks: int = 0


@dataclass(frozen=True)
class Look:
    """A list of jobs, and the jobs that had a process just before it was asked for and just after it was answered."""

    asked: float
    answered: float
    listed: dict[str, Listed]
    before: frozenset[str]
    after: frozenset[str]


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
    reigns: list[Reign] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    looks: list[list[Look]] = field(default_factory=list)
    """After each fault: one look after the other, until list and processes agreed or patience was over."""
    last: dict[str, LastState] = field(default_factory=dict)
    silences: list[Silence] = field(default_factory=list)

    @property
    def acknowledged(self) -> set[str]:
        """The ids of the jobs that clients know to be accepted."""
        return {item.job_id for item in self.operations if item.call is Call.SUBMIT and item.outcome is Outcome.OK}

    def out_of_reach(self, run: Execution) -> bool:
        """Whether the process may have run on unknown to whoever ran its task again."""
        return any(silence.covers(run) for silence in self.silences)


def check(history: History) -> list[str]:
    """Every contradiction, in words; empty where there is none."""
    return [
        *acknowledged_jobs_are_kept(history),
        *ends_are_final(history),
        *cancellations_hold(history),
        *nothing_runs_twice(history),
        *nothing_runs_when_it_is_over(history),
        *epochs_rise(history.leaderships),
        *one_accepted_leader_an_epoch(history.reigns),
        *accepted_epochs_rise(history.reigns),
        *running_is_known(history),
        *ended_jobs_have_no_process(history),
        *the_list_comes_to_agree(history),
    ]


def acknowledged_jobs_are_kept(history: History) -> list[str]:
    """A job whose submission was acknowledged is there in the end, and is over."""
    problems = []
    for job_id in sorted(history.acknowledged):
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
    """No job is cancelled that nobody cancelled, nor fails; and what was acknowledged to be cancelled is."""
    cancels = [item for item in history.operations if item.call is Call.CANCEL]
    tried = {item.job_id for item in cancels}
    acknowledged = {item.job_id for item in cancels if item.outcome is Outcome.OK}
    problems = []
    for job_id, last in sorted(history.last.items()):
        if last.status == "CANCELED" and job_id not in tried:
            problems.append(f"job {job_id} is CANCELED, and nobody cancelled it")
        if last.status == "FAILED":
            problems.append(f"job {job_id} is FAILED, and its code does not fail")
        if last.status == "FINISHED" and job_id in acknowledged:
            problems.append(f"job {job_id} is FINISHED, and that it is cancelled was acknowledged")
    return problems


def nothing_runs_twice(history: History) -> list[str]:
    """A job's code never runs in two processes at once, and not more often than the cluster counts attempts.

    The earlier one may run on where its TaskExecutor was out of reach.
    """
    problems = []
    for job_id, runs in _by_job(history.executions).items():
        for earlier, later in itertools.pairwise(runs):
            if later.began < earlier.last_seen and not history.out_of_reach(earlier):
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
                if run.last_seen > item.answered and not history.out_of_reach(run)
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


def one_accepted_leader_an_epoch(reigns: Iterable[Reign]) -> list[str]:
    """Redis never accepted anything of two contenders of one component in one epoch."""
    sessions: dict[tuple[str, int], set[str]] = {}
    for item in reigns:
        sessions.setdefault((item.component, item.epoch), set()).add(item.session)
    return [
        f"{component}: Redis accepted {len(found)} leaders of epoch {epoch}"
        for (component, epoch), found in sessions.items()
        if len(found) > 1
    ]


def accepted_epochs_rise(reigns: Iterable[Reign]) -> list[str]:
    """Redis accepted nothing of an epoch that was sent after it had accepted something of a higher one."""
    components: dict[str, list[Reign]] = {}
    for item in reigns:
        components.setdefault(item.component, []).append(item)
    return [
        f"{component}: epoch {old.epoch} was accepted at {old.last_sent:.3f}, {new.epoch} at {new.first_accepted:.3f}"
        for component, found in components.items()
        for old, new in itertools.combinations(sorted(found, key=lambda entry: entry.epoch), 2)
        if old.epoch < new.epoch and old.last_sent > new.first_accepted
    ]


def running_is_known(history: History) -> list[str]:
    """Nobody is told that a job is RUNNING while it has no JobMaster that could know."""
    told = [
        (item.job_id, item.asked, item.answered)
        for item in history.operations
        if item.call is Call.STATUS and item.outcome is Outcome.OK and item.value == "RUNNING"
    ]
    told += [
        (job_id, look.asked, look.answered)
        for look in itertools.chain(*history.looks)
        for job_id, said in look.listed.items()
        if said.status == "RUNNING"
    ]
    return [
        f"job {job_id} was said to be RUNNING at {asked:.3f}, and nobody knew: its JobMaster was away"
        for absence in history.absences
        for job_id, asked, answered in told
        if job_id == absence.job_id and absence.since < asked and answered < absence.until
    ]


def ended_jobs_have_no_process(history: History) -> list[str]:
    """Once a job is listed as over, no process of it is there."""
    left_behind = {run.job_id for run in history.executions if history.out_of_reach(run)}
    return [
        f"job {job_id} was listed as {look.listed[job_id].status} at {look.answered:.3f}, and a process was there"
        for look in itertools.chain(*history.looks)
        for job_id in sorted((look.after & look.listed.keys()) - left_behind)
        if look.listed[job_id].status in FINAL
    ]


def disagreements(look: Look) -> set[str]:
    """The jobs of which the list and the processes do not say the same, which a moment's change may explain."""
    unsaid = {job_id for job_id in look.before & look.after if job_id not in look.listed}
    running = {job_id for job_id, said in look.listed.items() if said.status == "RUNNING" and said.running_tasks}
    return unsaid | (running - look.before - look.after)


def the_list_comes_to_agree(history: History) -> list[str]:
    """After each fault the list says of every job what a look at the processes says, once it has had its time."""
    problems = []
    for looks in history.looks:
        left = set.intersection(*(disagreements(look) for look in looks)) if looks else set()
        problems += [
            f"job {job_id} is listed as {looks[-1].listed.get(job_id)} for "
            f"{looks[-1].answered - looks[0].asked:.1f} s, and its processes say otherwise"
            for job_id in sorted(left)
        ]
    return problems


def _by_job(executions: Sequence[Execution]) -> dict[str, list[Execution]]:
    found: dict[str, list[Execution]] = {}
    for execution in sorted(executions, key=lambda item: item.began):
        found.setdefault(execution.job_id, []).append(execution)
    return found
