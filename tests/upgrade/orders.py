"""A cluster of the previous release is upgraded while it works, and its processes are killed meanwhile.

The cluster has two masters and two TaskExecutors of the previous release, from its commit. A streaming query counts
what its source is given into an exactly-once sink, a batch job runs, and a client submits, watches and cancels jobs all
the time. `cluster upgrade` exchanges the processes. At some of its steps a process is killed, or the command itself,
which is then run again. The history goes to `tests.faults.history.check`, and the sink has to have each row once.

`run_to_next` does the same from this release to a planted next one. Then TaskExecutors hand their tasks over.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from actors.errors import ActorError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.protocol.execution_state import ErrorInfo
from tests import release
from tests.cluster_harness import Cluster, await_value
from tests.faults import streaming
from tests.faults.customers import JOB, Customer, Recorder, executions
from tests.faults.history import Call, History, LastState, Outcome, check
from tests.faults.nemesis import last_state, leaderships
from tests.faults.processes import Finder, kill
from tests.faults.streaming import StreamingQuery
from tests.next_release import make_environment, make_next_release
from tests.processes import lives
from tests.waiting import PATIENCE_S

SETTINGS = (
    "high-availability.lease=3s",
    "taskmanager.count=2",
    "taskmanager.numberOfTaskSlots=3",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "client.timeout=60s",
    "spark.driver.memory=1g",
    "cluster.start-timeout=9min",
    *streaming.SETTINGS,
)
COMMAND = "upgrade command"
MASTER = "master"
KILLED = (COMMAND, MASTER, "dispatcher", "resourcemanager", "jobmaster", "taskexecutor", "driver", "task")
"""Victims of a kill: the command, a master that another one replaces, or one of `tests.faults.processes.KINDS`."""
COUNTS_AS_FAILURE = ("taskexecutor", "driver", "task")
"""Processes whose end is a failure of the tasks that they run."""
MOST_RUNS = 10
BATCH_S = 12.0
"""Seconds of the batch job: it still runs when the first TaskExecutor is drained."""
LENGTHS_S, REST_S = (0.1, 1.0), 2.0
"""Seconds of the client's jobs, and between two of them."""


@dataclass(frozen=True)
class Round:
    """One upgrade.

    Args:
        is_back: whether it goes back to the previous release.
        kills: what is killed when the command says that it begins its n-th step, by n from 1.
    """

    is_back: bool = False
    kills: dict[int, str] = field(default_factory=dict)


def random_rounds(choice: random.Random, number: int) -> list[Round]:
    """Return upgrades there and back in turn, at whose steps anything is killed."""
    return [
        Round(bool(index % 2), {step: choice.choice(KILLED) for step in choice.sample(range(1, 5), 2)})
        for index in range(number)
    ]


@dataclass(frozen=True)
class Done:
    """Cost of one upgrade.

    Attributes:
        wanted: the upgrade.
        seconds: from its begin to the end of its last command.
        longest_answer_s: seconds until the client had the latest answer to a call that it made meanwhile.
        restarts: of the streaming job meanwhile, its moves among them.
        failures: of the streaming job meanwhile.
    """

    wanted: Round
    seconds: float
    longest_answer_s: float
    restarts: int
    failures: int


@dataclass
class Result:
    """The outcome of a run.

    Attributes:
        problems: what is wrong; empty for nothing.
        killed: what was killed, in order.
        failures: of the streaming job.
        finished: number of the client's jobs that have finished.
        done: the upgrades, in order.
        batches: of the streaming query.
        batch_gaps: numbers of batches that were not committed.
        lost: accepted jobs that the cluster does not know any more.
    """

    problems: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    failures: tuple[ErrorInfo, ...] = ()
    finished: int = 0
    done: list[Done] = field(default_factory=list)
    batches: int = 0
    batch_gaps: int = 0
    lost: int = 0


def run(directory: Path, rounds: Sequence[Round], seed: int) -> Result:
    """Start a cluster of the previous release, carry out the upgrades, and check what came of the jobs.

    Args:
        directory: for the cluster, the jobs and the previous release.
        rounds: the upgrades.
        seed: of the client, and of which process of a kind is killed.
    """
    tree = release.export_previous(directory / "previous")
    return _run(directory, tree, release.ROOT, rounds, seed)


def run_to_next(directory: Path, rounds: Sequence[Round], seed: int) -> Result:
    """Do as `run`, from this release to the next one, which `tests.next_release` plants."""
    return _run(directory, release.ROOT, make_next_release(directory / "next"), rounds, seed)


def _run(directory: Path, old: Path, new: Path, rounds: Sequence[Round], seed: int) -> Result:
    cluster = Cluster(directory / "c", SETTINGS, old)
    cluster.run("start", "--masters=2")
    try:
        return _Run(cluster, new, directory, seed).carry_out(rounds)
    finally:
        cluster.run("stop")


class _Run:
    def __init__(self, cluster: Cluster, new: Path, directory: Path, seed: int) -> None:
        self._old, self._new = cluster, replace(cluster, tree=new)
        self._previous = make_environment(directory / "venv", cluster.tree)
        self._scratch = directory / "work"
        self._scratch.mkdir()
        (self._scratch / "job.py").write_text(JOB)
        self._query = StreamingQuery(directory)
        self._recorder, self._stop = Recorder(), threading.Event()
        self._customer = Customer(self._new, self._scratch, self._recorder, seed, self._stop, LENGTHS_S, REST_S)
        self._finder = Finder(self._new, random.Random(seed))
        self._result = Result()

    def carry_out(self, rounds: Sequence[Round]) -> Result:
        result = self._result
        self._query.begin(self._old)
        assert self._query.job_id is not None
        self._await_query()
        self._customer.start()
        try:
            for each in rounds:
                self._submit_batch()
                before, restarts, began = self._failures(), self._restarts(), time.monotonic()
                self._upgrade(each)
                ended = time.monotonic()
                failures = self._failures() - before
                self._compare_failures(each, failures)
                longest = self._recorder.longest_answer_s(began, ended)
                result.done.append(Done(each, ended - began, longest, self._restarts() - restarts, failures))
        finally:
            self._stop.set()
            self._customer.join()
        if self._customer.failure is not None:
            raise self._customer.failure
        with self._new.client() as client:
            result.failures = client.job(self._query.job_id).failure_history
        self._query.end()
        history = History(
            self._recorder.operations,
            executions(self._scratch),
            leaderships(self._new.directory / "log"),
            last=self._last_states(),
        )
        result.batches, result.batch_gaps = self._query.batches()
        result.lost = len(history.acknowledged - history.last.keys())
        result.finished = sum(state.status == "FINISHED" for state in history.last.values())
        result.problems += [*self._query.problems, *check(history)]
        return result

    def _await_query(self) -> None:
        """Wait until the job is known to have a streaming query."""
        with self._new.client() as client:
            await_value(lambda: any(job.streams for job in client.list_jobs()))

    def _failures(self) -> int:
        """Return the number of failures of the streaming job."""
        with self._new.client() as client:
            return sum(client.job(JobID(str(self._query.job_id))).failure_counts.values())

    def _restarts(self) -> int:
        """Return how often the streaming job has begun again."""
        with self._new.client() as client:
            return client.job(JobID(str(self._query.job_id))).restarts

    def _compare_failures(self, done: Round, failures: int) -> None:
        """Note failures that nothing killed explains. On the way back TaskExecutors are not drained."""
        if failures and not done.is_back and not set(COUNTS_AS_FAILURE) & set(done.kills.values()):
            self._result.problems.append(f"the streaming job failed {failures} times, and was only to move")

    def _submit_batch(self) -> None:
        job_id, file = JobID.random(), self._scratch / "job.py"
        graph = read_job_file(file, (str(self._scratch / f"{job_id}.run"), str(BATCH_S)), None, job_id)
        with self._new.client() as client:
            submitted = self._recorder.call(Call.SUBMIT, job_id, lambda: client.submit(graph, file))
        assert submitted.outcome is Outcome.OK, submitted.value

    def _last_states(self) -> dict[str, LastState]:
        jobs = {item.job_id for item in self._recorder.operations}
        with self._new.client() as client:

            def ended() -> dict[str, LastState] | None:
                found = [job for job in client.list_jobs() if job.job_id in jobs]
                if not all(job.status.is_globally_terminal for job in found):
                    return None
                return {job.job_id: last_state(client, job) for job in found}

            states: dict[str, LastState] = await_value(ended)
            return states

    # --------------------------------------------------------------------- upgrades

    def _upgrade(self, wanted: Round) -> None:
        """Run the command until it succeeds, and kill what is to be killed at its steps."""
        words = self._new.command(
            "cluster", "upgrade", "--drain-timeout=60s", "--yes", *(["--rollback"] if wanted.is_back else [])
        )
        left, begun = dict(wanted.kills), 0
        for _ in range(MOST_RUNS):
            status, begun, told = self._run_once(words, begun, left, is_back=wanted.is_back)
            if status == 0:
                self._compare(wanted)
                return
            self._replace_masters(is_back=wanted.is_back)
        self._result.problems.append(f"the upgrade did not succeed in {MOST_RUNS} runs: {told}")

    def _run_once(
        self, words: list[str], begun: int, left: dict[int, str], *, is_back: bool
    ) -> tuple[int, int, list[str]]:
        """Run the command once; return its exit status, the number of steps begun so far, and what it has said."""
        told = []
        with subprocess.Popen(
            words,
            cwd=self._new.tree,
            env={**os.environ, "PYTHONPATH": str(self._new.tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            assert command.stderr is not None
            for line in command.stderr:
                told.append(line.rstrip())
                if " of " in line and "exchanging" in line:
                    begun += 1
                    if (kind := left.pop(begun, None)) is not None:
                        self._kill(kind, command, is_back=is_back)
            return command.wait(PATIENCE_S), begun, told

    def _kill(self, kind: str, command: subprocess.Popen[str], *, is_back: bool) -> None:
        self._result.killed.append(kind)
        if kind == COMMAND:
            command.kill()
            return
        try:
            pid = self._finder.one_of(kind)
        except ActorError:
            pid = None  # at this moment no leader answers
        if pid is not None:
            kill(pid)
            await_value(lambda: not lives(pid))
        if kind == MASTER:
            self._replace_masters(is_back=is_back)

    def _replace_masters(self, *, is_back: bool) -> None:
        """Start masters until there are two again, as an operator would."""
        starter = self._old if is_back else self._new
        for _ in range(2):
            with starter.client() as client:
                masters = len(client.status().masters)
            if masters < 2:
                starter.run("start-master", check=False)

    def _compare(self, wanted: Round) -> None:
        """Note processes that do not run the release."""
        to = [f"--to={self._previous}"] if wanted.is_back else []
        plan = self._new.json("cluster", "upgrade", "--dry-run", *to)
        self._result.problems += [f"{step['process']} runs {step['version']}" for step in plan["steps"]]
