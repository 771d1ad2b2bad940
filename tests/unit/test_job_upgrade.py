"""`job upgrade` without processes: its decisions, and what stays after a refusal, a failure, or a kill at each call."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from conf.configuration import Configuration
from runtime.checkpoint.compatibility import ALL_NULLABLE, Fit, Verdict, check_job
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.names import change_lock, savepoint_name
from runtime.checkpoint.retained import write_metadata
from runtime.checkpoint.savepoint import SavepointJob, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.client import ClusterClient
from runtime.cluster import job_upgrade, job_version_commands
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import UpgradedJob
from runtime.cluster.job_upgrade import JobUpgrader, Version, new_version
from runtime.cluster.job_upgrade_plan import (
    SETTLE_S,
    Action,
    Batches,
    Order,
    Outcome,
    Step,
    Upgrade,
    check_fit,
    decide,
    judge,
)
from runtime.cluster.rescaling import JobRescaler, changing
from runtime.environment.claims import Claim
from runtime.errors import ClusterError
from runtime.ids import JobID, JobVertexID, TriggerID
from runtime.job_file import JobFileError
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, JobKind
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.protocol.archived_execution_graph import STANDS_BY
from runtime.protocol.checkpoints import CheckpointMetadata, OperationState, OperationStatus, TaskSnapshot
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotFoundError,
    JobSubmissionError,
    UnknownOperationError,
)
from runtime.protocol.execution_state import ErrorInfo, FailureKind, JobStatus
from runtime.spark import dry_run
from runtime.spark.errors import DriverStartError
from tests.streaming_files import StreamingFiles

BLUE, GREEN, BACK = (JobID(digits * 16) for digits in ("b1", "9e", "ba"))
FITS = (Verdict("counts", Fit.FITS),)
BATCH = "counts"


class Killed(BaseException):
    """The process of the command is killed."""


class Cluster:
    """A cluster whose jobs have one query, and do what their code says: commit, fail, wait, or be rejected."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = StreamingFiles(root / "live")
        self.files.run(2)
        self.has_sink = True
        self.sees_files = True
        self.jobs: dict[str, JobStatus] = {BLUE: JobStatus.RUNNING}
        blue = JobGraph.for_script("clicks", job_id=BLUE, argv=("--in", "/in"))
        main = Artifact("blue.py", ArtifactRole.MAIN, content=b"# commit blue")
        self.graphs = {BLUE: replace(blue, artifacts=(main,), environment={"TOKEN": "secret"}, priority=3)}
        self.codes = {BLUE: "# commit blue"}
        self.failures: dict[str, str] = {}
        self.stops: dict[str, OperationStatus] = {}
        self.stop_fails = ""
        self.free_slots = 1
        self.version = "0.2.0"
        self.standing_by: set[str] = set()
        self.kill_at = -1
        self.calls = 0

    @property
    def running(self) -> list[str]:
        """The jobs that work: those that stand by do not."""
        return [
            self.codes[job_id]
            for job_id, status in self.jobs.items()
            if not status.is_globally_terminal and job_id not in self.standing_by
        ]

    @property
    def savepoints(self) -> list[str]:
        directory = self.root / "savepoints"
        return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Each call may be the last of the command: before it takes effect, or before its answer comes."""
        method = getattr(type(self), f"call_{name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            answer = method(self, *args, **kwargs)
            self._step()
            return answer

        return call

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed

    def _savepoint(self, name: str, directory: Path | None) -> str:
        query = self.files.query if self.has_sink else replace(self.files.query, sink=None)
        snapshot = take_snapshot(query, self.root / "chk" / name)
        parent = directory or self.root / "savepoints"
        return write_savepoint(parent, SavepointJob(BLUE, "clicks"), [snapshot], name=name).path

    @contextlib.contextmanager
    def blobs(self) -> Iterator[object]:
        yield SimpleNamespace(get_bytes=lambda key, job_id: b"# a library")

    def call_job_graph(self, job_id: str) -> JobGraph:
        self._live(job_id)
        return self.graphs[JobID(job_id)]

    def call_trigger_savepoint(
        self, job_id: str, directory: Path | None, trigger_id: TriggerID | None
    ) -> OperationStatus:
        self._live(job_id)
        path = self._savepoint(f"checked-{self.calls}", directory)
        return OperationStatus(trigger_id or TriggerID.random(), OperationState.COMPLETED, path=path)

    def call_trigger_checkpoint(self, job_id: str) -> OperationStatus:
        self._live(job_id)
        path = self.root / "chk" / f"chk-{self.calls}"
        snapshot = take_snapshot(self.files.query, path)
        task = TaskSnapshot(JobVertexID.of("clicks", "clicks"), "clicks", (snapshot,))
        write_metadata(CheckpointMetadata(JobID(job_id), 1, str(path), 0, 1, (task,)))
        return OperationStatus(TriggerID.random(), OperationState.COMPLETED, path=str(path))

    def call_operation(self, job_id: str, trigger_id: TriggerID) -> OperationStatus:
        if job_id not in self.jobs or (self.jobs[job_id].is_globally_terminal and trigger_id not in self.stops):
            raise JobNotFoundError(f"there is no job {job_id}")
        if trigger_id not in self.stops:
            raise UnknownOperationError("no such request")
        return self.stops[trigger_id]

    def call_stop_and_await_end(
        self, job_id: str, directory: Path | None, *, trigger_id: TriggerID
    ) -> tuple[OperationStatus, JobStatus | None]:
        if self.stop_fails:
            return OperationStatus(trigger_id, OperationState.FAILED, error=self.stop_fails), None
        self._known(job_id)
        if trigger_id not in self.stops:
            self._live(job_id)
            path = self._savepoint(savepoint_name(job_id, trigger_id), directory)
            self.stops[trigger_id] = OperationStatus(trigger_id, OperationState.COMPLETED, path=path)
            self.jobs[job_id] = JobStatus.FINISHED
            for later in sorted(self.standing_by):
                self._take_over(later, path)
        return self.stops[trigger_id], JobStatus.FINISHED

    def call_submit(self, graph: JobGraph, main: Path, libraries: tuple[tuple[Path, ArtifactRole], ...]) -> JobID:
        code = main.read_text()
        if "reject" in code:
            raise JobSubmissionError("the queue is full")
        if graph.job_id not in self.jobs:
            assert graph.savepoint is not None
            assert graph.savepoint.after or self.running == [], "two versions at once"
            assert graph.savepoint.new_query_id is False
            files = [Artifact(path.name, role, content=path.read_bytes()) for path, role in libraries]
            artifact = Artifact(main.name, ArtifactRole.MAIN, content=main.read_bytes())
            self.graphs[graph.job_id] = graph.with_artifacts(artifact, *files)
            self.codes[graph.job_id] = code
            self.jobs[graph.job_id] = JobStatus.RUNNING
            if "broken" in code:
                self.failures[graph.job_id] = "no module named x"
                self.jobs[graph.job_id] = JobStatus.RESTARTING
            elif "ends" in code:
                self.jobs[graph.job_id] = JobStatus.FINISHED
            elif graph.savepoint.after:
                self.standing_by.add(graph.job_id)
            else:
                self._work(graph.job_id)
        return graph.job_id

    def _work(self, job_id: str) -> None:
        assert len(self.running) == 1, "two versions at once"
        if "commit" in self.codes[job_id]:
            self.files.run()
        if "fail" in self.codes[job_id]:
            self.failures[job_id] = "division by zero"
            self.jobs[job_id] = JobStatus.RESTARTING

    def _take_over(self, job_id: str, path: str) -> None:
        """Let a job begin that stands by; it fails if the former job has left another savepoint."""
        self.standing_by.discard(job_id)
        state = self.graphs[JobID(job_id)].savepoint
        assert state is not None
        assert (state.path, self.jobs[state.after]) == (path, JobStatus.FINISHED)
        self._work(job_id)

    def call_task_managers(self) -> list[Any]:
        registration = SimpleNamespace(version=self.version)
        return [SimpleNamespace(free_slots=self.free_slots, registration=registration)]

    def call_job(self, job_id: str) -> Any:
        self._known(job_id)
        why = self.failures.get(job_id)
        failures = () if why is None else (ErrorInfo(FailureKind.USER_CODE, "ZeroDivisionError", why),)
        stands_by = job_id in self.standing_by
        queries = (SimpleNamespace(name="counts", progress=None),) if why is None and not stands_by else ()
        task = SimpleNamespace(attempts=[SimpleNamespace(queries=queries)], waiting_for=STANDS_BY if stands_by else "")
        graph = self.graphs[JobID(job_id)]
        return SimpleNamespace(
            status=self.jobs[job_id],
            failure=None,
            failure_history=failures,
            tasks=[task],
            upgraded_from=graph.upgraded_from,
        )

    def call_status_of(self, job_id: str) -> JobStatus:
        self._known(job_id)
        return self.jobs[job_id]

    def call_cancel(self, job_id: str) -> None:
        self._live(job_id)
        self.standing_by.discard(job_id)
        self.jobs[job_id] = JobStatus.CANCELED

    def call_result(self, job_id: str) -> object:
        return self.jobs[job_id]

    def _known(self, job_id: str) -> None:
        if job_id not in self.jobs:
            raise JobNotFoundError(f"there is no job {job_id}")

    def _live(self, job_id: str) -> None:
        self._known(job_id)
        if self.jobs[job_id].is_globally_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")


@pytest.fixture(autouse=True)
def no_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here loses power, and there are hundreds of upgrades."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def upgrader(cluster: Cluster, verdicts: tuple[Verdict, ...] = FITS) -> JobUpgrader:
    ticks = iter(range(10_000))
    return JobUpgrader(
        cast("ClusterClient", cluster),
        cluster.root / "savepoints",
        lambda version, state: verdicts,
        note=lambda line: None,
        clock=lambda: float(next(ticks)),
        pause=lambda seconds: None,
    )


def written(cluster: Cluster, code: str) -> Callable[[Version], Version]:
    file = cluster.root / "green.py"
    file.write_text(f"# {code}")
    return new_version(file, (), None, (), lambda line: None)


def upgraded(cluster: Cluster, code: str = "commit green", job_id: str = BLUE, **options: Any) -> UpgradedJob:
    return upgrader(cluster).upgrade(JobID(job_id), written(cluster, code), **options)


def kept(cluster: Cluster) -> list[str]:
    directory = cluster.root / "savepoints" / ".upgrades"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


# -------------------------------------------------------------------- pure


def at(step: Step, **changes: Any) -> Upgrade:
    return Upgrade(BLUE, GREEN, BACK, TriggerID.random(), step=step, **changes)


@pytest.mark.parametrize(
    ("known", "job_id", "order", "is_same", "expected"),
    [
        (None, BLUE, Order.UPGRADE, False, Action.BEGIN),
        (None, BLUE, Order.FINISH, False, "no upgrade of job"),
        (None, BLUE, Order.UNDO, False, "only the last one can be, and only once"),
        (at(Step.STOPPING), BLUE, Order.UPGRADE, True, Action.GO_ON),
        (at(Step.STOPPING), BLUE, Order.UPGRADE, False, "to other code was interrupted"),
        (at(Step.STOPPING), BLUE, Order.FINISH, False, Action.GO_ON),
        (at(Step.STOPPING), BLUE, Order.UNDO, False, Action.TAKE_BACK),
        (at(Step.STARTING), BLUE, Order.UPGRADE, True, Action.GO_ON),
        (at(Step.STARTING), GREEN, Order.UPGRADE, False, "to other code was interrupted"),
        (at(Step.STARTING), GREEN, Order.FINISH, False, Action.GO_ON),
        (at(Step.STARTING), GREEN, Order.UNDO, False, Action.RETURN),
        (at(Step.UPGRADED), BLUE, Order.UPGRADE, False, f"job {GREEN} has taken its place"),
        (at(Step.UPGRADED), GREEN, Order.UPGRADE, False, Action.BEGIN),
        (at(Step.UPGRADED), BLUE, Order.FINISH, False, Action.REPORT),
        (at(Step.UPGRADED), GREEN, Order.FINISH, False, Action.REPORT),
        (at(Step.UPGRADED, is_waiting=True), BLUE, Order.FINISH, False, Action.GO_ON),
        (at(Step.UPGRADED, is_waiting=True), GREEN, Order.FINISH, False, Action.GO_ON),
        (at(Step.UPGRADED), BLUE, Order.UNDO, False, Action.RETURN),
        (at(Step.UPGRADED), GREEN, Order.UNDO, False, Action.RETURN),
        (at(Step.RETURNING), BLUE, Order.UPGRADE, False, Action.GO_ON),
        (at(Step.RETURNING), GREEN, Order.FINISH, False, Action.GO_ON),
        (at(Step.RETURNING), BLUE, Order.UNDO, False, Action.GO_ON),
        (at(Step.RETURNED), BLUE, Order.UPGRADE, False, f"job {BACK} has taken its place"),
        (at(Step.RETURNED), BLUE, Order.FINISH, False, Action.REPORT),
        (at(Step.RETURNED), BLUE, Order.UNDO, False, Action.REPORT),
    ],
)
def test_what_to_do_after_a_kill_at_each_step(
    known: Upgrade | None, job_id: JobID, order: Order, is_same: bool, expected: Action | str
) -> None:
    if isinstance(expected, Action):
        assert decide(known, job_id, order, is_same=is_same) is expected
        return
    with pytest.raises(ClusterError, match=expected) as caught:
        decide(known, job_id, order, is_same=is_same)
    assert "upgrade" in caught.value.remedy
    assert ("FILE" in caught.value.remedy) == (known is None)


def test_a_version_that_does_not_fit_is_refused_and_one_that_loses_state_needs_a_yes() -> None:
    loss = Verdict("old", Fit.FITS_WITH_LOSS, losses=("the job has no such query",))
    misfit = Verdict("counts", Fit.DOES_NOT_FIT, reasons=("a key", "a value"))
    check_fit(FITS, accepts_loss=False)
    check_fit((*FITS, loss), accepts_loss=True)
    with pytest.raises(ClusterError, match=r"query 'old' loses state .*: the job has no such query") as caught:
        check_fit((*FITS, loss), accepts_loss=False)
    assert "--yes" in caught.value.remedy
    for accepts_loss in (False, True):
        with pytest.raises(ClusterError, match=r"query 'counts' .* does not fit the state: a key; a value"):
            check_fit((loss, misfit), accepts_loss=accepts_loss)


WAITS, PLANS, COMMITTED = Batches(4, 4, 4), Batches(4, 4, 5), Batches(4, 5, 5)


@pytest.mark.parametrize(
    ("status", "failure", "queries", "quiet_s", "expected"),
    [
        (JobStatus.CREATED, "", None, 99, Outcome.WAIT),
        (JobStatus.RUNNING, "", None, 99, Outcome.WAIT),
        (JobStatus.RUNNING, "", [PLANS], 99, Outcome.WAIT),
        (JobStatus.RUNNING, "", [WAITS], SETTLE_S - 1, Outcome.WAIT),
        (JobStatus.RUNNING, "", [WAITS], SETTLE_S, Outcome.IDLE),
        (JobStatus.RUNNING, "", [COMMITTED], 0, Outcome.COMMITTED),
        (JobStatus.RUNNING, "", [COMMITTED, PLANS], 99, Outcome.WAIT),
        (JobStatus.RUNNING, "", [COMMITTED, WAITS], 0, Outcome.WAIT),
        (JobStatus.RUNNING, "", [COMMITTED, WAITS], SETTLE_S, Outcome.COMMITTED),
        (JobStatus.RESTARTING, "x", None, 0, Outcome.FAILED),
        (JobStatus.RUNNING, "x", [PLANS], 0, Outcome.FAILED),
        (JobStatus.RUNNING, "x", [COMMITTED, PLANS], 0, Outcome.COMMITTED),
        (JobStatus.FAILED, "x", [WAITS], 0, Outcome.FAILED),
        (JobStatus.CANCELED, "", [WAITS], 0, Outcome.FAILED),
        (JobStatus.CANCELED, "", [COMMITTED], 0, Outcome.COMMITTED),
        (JobStatus.FINISHED, "", None, 0, Outcome.COMMITTED),
    ],
)
def test_a_new_version_is_judged_by_its_first_batches(
    status: JobStatus, failure: str, queries: list[Batches] | None, quiet_s: float, expected: Outcome
) -> None:
    found = None if queries is None else {str(number): query for number, query in enumerate(queries)}
    assert judge(status, failure, found, quiet_s) is expected


# ------------------------------------------------------- with files, no processes


def test_the_new_version_takes_over_and_keeps_all_but_the_code(cluster: Cluster) -> None:
    library = Artifact("lib.whl", ArtifactRole.PACKAGE, f"p-{'0' * 64}-{'0' * 32}")
    blue = cluster.graphs[BLUE]
    cluster.graphs[BLUE] = replace(blue, artifacts=(library, *blue.artifacts), client_heartbeat_timeout_s=5.0)
    done = upgraded(cluster)
    (name,) = cluster.savepoints  # the one of the check is removed
    savepoint = str(cluster.root / "savepoints" / name)
    assert done == UpgradedJob(done.job_id, BLUE, "upgraded", "", savepoint, {BATCH: 1})
    assert (cluster.running, cluster.jobs[BLUE]) == (["# commit green"], JobStatus.FINISHED)
    graph = cluster.graphs[JobID(done.job_id)]
    assert graph.savepoint is not None
    assert graph.savepoint.dropped == (), "a savepoint of the new version has the state of each query"
    assert (graph.name, graph.argv, graph.priority, graph.environment) == (
        "clicks",
        ("--in", "/in"),
        3,
        {"TOKEN": "secret"},
    )
    assert (graph.upgraded_from, graph.client_heartbeat_timeout_s) == (BLUE, None)
    assert [(one.name, one.role, one.content) for one in graph.artifacts] == [
        ("green.py", ArtifactRole.MAIN, b"# commit green"),
        ("lib.whl", ArtifactRole.PACKAGE, b"# a library"),
    ]
    files = [path for path in (cluster.root / "savepoints" / ".upgrades").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}, "the environment may hold secrets"


def test_a_new_version_names_the_queries_that_it_drops_and_the_former_one_drops_none(cluster: Cluster) -> None:
    verdicts = tuple(check_job([QueryDescription("counts"), QueryDescription("old")], [QueryDescription("counts")]))
    upgrade = upgrader(cluster, verdicts)
    done = upgrade.upgrade(JobID(BLUE), written(cluster, "green"), accepts_loss=True)
    settings = cluster.graphs[JobID(done.job_id)].savepoint
    assert settings is not None
    assert (settings.drops("old"), settings.drops("counts")) == (True, False)
    back = cluster.graphs[JobID(upgrade.undo(JobID(BLUE)).job_id)].savepoint
    assert back is not None
    assert not back.drops("old")


def test_refusals_leave_the_job_and_nothing_else(cluster: Cluster) -> None:
    misfit = (Verdict("counts", Fit.DOES_NOT_FIT, reasons=("its key",)),)
    with pytest.raises(ClusterError, match="does not fit the state: its key"):
        upgrader(cluster, misfit).upgrade(BLUE, written(cluster, "commit green"))
    assert (cluster.running, cluster.savepoints, kept(cluster)) == (["# commit blue"], [], [])
    cluster.stop_fails = "a query has failed"
    with pytest.raises(ClusterError, match="was not stopped: a query has failed"):
        upgraded(cluster)
    assert (cluster.running, cluster.savepoints, kept(cluster)) == (["# commit blue"], [], [])
    cluster.graphs[BLUE] = replace(cluster.graphs[BLUE], is_function=True)
    with pytest.raises(ClusterError, match="runs no file"):
        upgraded(cluster)
    cluster.sees_files = False
    with pytest.raises(ClusterError, match="does not see the cluster's files"):
        upgraded(cluster)
    assert (cluster.running, kept(cluster)) == (["# commit blue"], [])


@pytest.mark.parametrize(
    ("code", "because"),
    [
        ("fail green", "the new version failed before its first batch: ZeroDivisionError: division by zero"),
        ("reject green", "the new version was not accepted: the queue is full"),
    ],
)
def test_a_new_version_that_fails_before_its_first_batch_gives_way(cluster: Cluster, code: str, because: str) -> None:
    done = upgraded(cluster, code)
    assert (done.outcome, done.because, done.batches) == ("returned", because, {BATCH: 1})
    assert (cluster.running, cluster.jobs[done.job_id]) == (["# commit blue"], JobStatus.RUNNING)
    assert cluster.graphs[JobID(done.job_id)].argv == ("--in", "/in")
    assert kept(cluster) == []


@pytest.mark.parametrize(
    ("code", "why"),
    [("broken green", "ZeroDivisionError: no module named x"), ("ends", "it is FINISHED")],
)
def test_a_new_version_that_fails_before_its_first_query_stops_nothing(cluster: Cluster, code: str, why: str) -> None:
    with pytest.raises(ClusterError, match=f"has not come to its first query: {why}") as refused:
        upgraded(cluster, code)
    assert "runs on" in refused.value.remedy
    assert (cluster.running, cluster.stops, kept(cluster)) == (["# commit blue"], {}, [])
    assert upgraded(cluster).outcome == "upgraded"


def test_a_new_version_comes_to_its_first_query_before_the_former_one_is_stopped(cluster: Cluster) -> None:
    stood_by: list[set[str]] = []
    stop = Cluster.call_stop_and_await_end

    def stopping(client: Cluster, *given: Any, **named: Any) -> Any:
        stood_by.append(set(client.standing_by))
        return stop(client, *given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "call_stop_and_await_end", stopping)
        done = upgraded(cluster)
    assert stood_by == [{done.job_id}]


@pytest.mark.parametrize(("free_slots", "version"), [(0, "0.2.0"), (1, "0.1.0")])
def test_without_room_the_new_version_starts_after_the_former_one(
    cluster: Cluster, free_slots: int, version: str
) -> None:
    cluster.free_slots, cluster.version = free_slots, version
    done = upgraded(cluster)
    assert (done.outcome, cluster.running) == ("upgraded", ["# commit green"])
    savepoint = cluster.graphs[JobID(done.job_id)].savepoint
    assert savepoint is not None
    assert savepoint.after == ""


def test_a_version_that_does_not_come_to_its_first_query_in_time_is_not_waited_for(cluster: Cluster) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_upgrade, "STANDS_BY", "something else")
        assert upgraded(cluster).outcome == "upgraded"
    assert cluster.running == ["# commit green"]


def test_a_new_version_does_not_stand_by_for_a_job_that_is_not_stopped(cluster: Cluster) -> None:
    cluster.stop_fails = "a query has failed"
    with pytest.raises(ClusterError, match="was not stopped"):
        upgraded(cluster)
    assert cluster.standing_by == set()
    cluster.stop_fails = ""

    def ends(client: Cluster, job_id: str, *_: Any, **__: Any) -> Any:
        client.jobs[job_id] = JobStatus.FAILED
        raise JobAlreadyTerminatedError(f"job {job_id} is over")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "call_stop_and_await_end", ends)
        with pytest.raises(JobAlreadyTerminatedError):
            upgraded(cluster)
    assert (cluster.standing_by, kept(cluster)) == (set(), [])


def killed_when(begun: Callable[[Cluster], object], root: Path) -> Cluster:
    """A cluster whose command was killed at the first call after which something holds."""
    for place in range(1, calls_of("commit green", root / "whole") + 1):
        cluster = Cluster(root / str(place))
        cluster.kill_at = place
        with pytest.raises(Killed):
            upgraded(cluster)
        if begun(cluster):
            return cluster
    raise AssertionError("it never holds")


def test_an_undo_after_a_new_version_took_over_by_itself_repeats_nothing(tmp_path: Path) -> None:
    """The command was killed as it had asked for the stop: the new version has committed a batch since."""
    cluster = killed_when(lambda cluster: cluster.stops, tmp_path)
    (savepoint,) = cluster.savepoints
    undone = upgrader(cluster).undo(BLUE)
    assert cluster.running == ["# commit blue"]
    assert undone.savepoint != str(cluster.root / "savepoints" / savepoint), "the work of the new version stays"


def test_an_upgrade_is_finished_whose_former_job_is_forgotten(tmp_path: Path) -> None:
    cluster = killed_when(lambda cluster: cluster.stops, tmp_path)
    del cluster.jobs[BLUE]
    assert upgrader(cluster).finish(BLUE).outcome == "upgraded"
    assert cluster.running == ["# commit green"]


@pytest.mark.parametrize("order", ["finish", "undo"])
def test_nothing_is_left_of_an_upgrade_whose_former_job_has_ended_by_itself(tmp_path: Path, order: str) -> None:
    cluster = killed_when(lambda cluster: cluster.standing_by, tmp_path)
    cluster.jobs[BLUE] = JobStatus.FAILED
    if order == "undo":
        upgrader(cluster).undo(BLUE)
    else:
        with pytest.raises(JobAlreadyTerminatedError):
            upgrader(cluster).finish(BLUE)
    assert (cluster.running, cluster.standing_by, kept(cluster)) == ([], set(), [])


def test_a_version_without_data_is_looked_at_again(cluster: Cluster) -> None:
    done = upgraded(cluster, "green waits")
    assert done.outcome == "waiting"
    cluster.files.run()
    assert upgrader(cluster).finish(BLUE).outcome == "upgraded"
    assert upgrader(cluster).finish(JobID(done.job_id)).outcome == "upgraded"
    assert cluster.running == ["# green waits"]


def test_an_undo_before_the_first_batch_begins_from_the_savepoint(cluster: Cluster) -> None:
    done = upgraded(cluster, "green waits")
    undone = upgrader(cluster).undo(JobID(done.job_id))
    assert (undone.outcome, undone.savepoint, undone.upgraded_from) == ("returned", done.savepoint, done.job_id)
    assert (cluster.running, kept(cluster)) == (["# commit blue"], [])


def test_an_undo_after_batches_goes_on_from_the_present_state_and_is_undone_too(cluster: Cluster) -> None:
    done = upgraded(cluster)
    undone = upgrader(cluster).undo(BLUE)
    assert (undone.outcome, undone.batches, undone.upgraded_from) == ("returned", {BATCH: 2}, done.job_id)
    assert (undone.savepoint != done.savepoint, cluster.running) == (True, ["# commit blue"])
    assert kept(cluster) == [done.job_id], "only the last upgrade can be undone"
    again = upgrader(cluster).undo(JobID(undone.job_id))
    assert (again.batches, cluster.running) == ({BATCH: 3}, ["# commit green"])


def test_an_undo_two_versions_back_is_refused_with_what_helps_instead(cluster: Cluster) -> None:
    second = upgraded(cluster)
    third = upgraded(cluster, "green waits", second.job_id)
    last = upgrader(cluster).undo(JobID(third.job_id))
    assert cluster.running == ["# commit green"]
    for job_id in (BLUE, JobID(last.job_id)):
        with pytest.raises(
            ClusterError, match=rf"no upgrade of job {job_id} .* only the last one can be, .* once"
        ) as no:
            upgrader(cluster).undo(job_id)
        assert "upgrade the job that runs now (`understudy job list`) to its file" in no.value.remedy
    assert cluster.running == ["# commit green"]


def test_an_undo_whose_former_version_fails_now_is_taken_back(cluster: Cluster) -> None:
    main = Artifact("blue.py", ArtifactRole.MAIN, content=b"# fail blue")
    cluster.graphs[BLUE] = cluster.graphs[BLUE].with_artifacts(main)
    done = upgraded(cluster)
    with pytest.raises(
        ClusterError, match=r"undo was given up, and job \w+ was started with the new version: the former"
    ):
        upgrader(cluster).undo(BLUE)
    assert (cluster.running, cluster.jobs[done.job_id]) == (["# commit green"], JobStatus.FINISHED)


def test_an_undo_of_a_version_that_has_ended_would_repeat_batches(cluster: Cluster) -> None:
    done = upgraded(cluster)
    cluster.jobs[done.job_id] = JobStatus.FAILED
    with pytest.raises(ClusterError, match=r"is FAILED, and has committed batches") as caught:
        upgrader(cluster).undo(BLUE)
    assert f"--from {done.savepoint}" in caught.value.remedy


def test_a_batch_that_a_failed_version_commits_late_is_not_written_twice(cluster: Cluster) -> None:
    cluster.has_sink = False
    cancel = Cluster.call_cancel

    def late(client: Cluster, job_id: str) -> None:
        client.files.run()
        cancel(client, job_id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "call_cancel", late)
        with pytest.raises(ClusterError, match="query 'counts' has no file sink") as caught:
            upgraded(cluster, "fail green")
    assert "job run --from" in caught.value.remedy
    cluster.has_sink = True


def test_a_former_version_that_is_not_accepted_can_be_started_later(cluster: Cluster) -> None:
    main = Artifact("blue.py", ArtifactRole.MAIN, content=b"# reject blue")
    cluster.graphs[BLUE] = cluster.graphs[BLUE].with_artifacts(main)
    lines: list[str] = []
    ticks = iter(range(100))
    home = cluster.root / "savepoints"
    said = JobUpgrader(
        cast("ClusterClient", cluster), home, lambda *_: FITS, note=lines.append, clock=lambda: float(next(ticks))
    )
    with pytest.raises(JobSubmissionError, match="the queue is full"):
        said.upgrade(BLUE, written(cluster, "fail green"))
    assert f"`understudy job upgrade {BLUE}` finishes the upgrade" in lines[-1]
    (kept_main,) = (home / ".upgrades" / BLUE / "blue").rglob("blue.py")
    kept_main.write_text("# commit blue")
    assert upgrader(cluster).finish(BLUE).outcome == "returned"
    assert cluster.running == ["# commit blue"]


def test_two_commands_do_not_work_on_one_upgrade(cluster: Cluster) -> None:
    second = upgrader(cluster)

    def meanwhile(version: Version, state: Path) -> tuple[Verdict, ...]:
        with pytest.raises(ClusterError, match="is being rescaled or upgraded at this moment"):
            second.upgrade(BLUE, written(cluster, "commit green"))
        return FITS

    first = JobUpgrader(cast("ClusterClient", cluster), cluster.root / "savepoints", meanwhile)
    assert first.upgrade(BLUE, written(cluster, "commit green")).outcome == "upgraded"


def test_a_rescale_and_an_upgrade_of_one_job_exclude_each_other(cluster: Cluster) -> None:
    savepoints = cluster.root / "savepoints"
    client = SimpleNamespace(sees_files=True, overview=lambda: SimpleNamespace(savepoint_dir=str(savepoints)))
    rescaler = JobRescaler(cast("ClusterClient", client), None, 10)
    why = f"job {BLUE} is being rescaled or upgraded at this moment"

    def meanwhile(version: Version, state: Path) -> tuple[Verdict, ...]:
        with pytest.raises(ClusterError, match=why):
            rescaler.rescale(JobID(BLUE), 8)
        return FITS

    first = JobUpgrader(cast("ClusterClient", cluster), savepoints, meanwhile)
    with changing(change_lock(savepoints, BLUE), BLUE), pytest.raises(ClusterError, match=why):
        first.upgrade(BLUE, written(cluster, "commit green"))
    assert first.upgrade(BLUE, written(cluster, "commit green")).outcome == "upgraded"


def calls_of(code: str, root: Path) -> int:
    """Return how many places there are for a kill."""
    cluster = Cluster(root)
    upgraded(cluster, code)
    return cluster.calls


@pytest.mark.parametrize(
    ("code", "then"),
    [
        ("commit green", "finish"),
        ("commit green", "again"),
        ("commit green", "undo"),
        ("green waits", "finish"),
        ("green waits", "undo"),
        ("fail green", "finish"),
        ("fail green", "undo"),
    ],
)
def test_a_kill_at_any_call_is_finished_or_undone(code: str, then: str, tmp_path: Path) -> None:
    for place in range(1, calls_of(code, tmp_path / "whole") + 1):
        cluster = Cluster(tmp_path / str(place))
        cluster.kill_at = place
        with pytest.raises(Killed):
            upgraded(cluster, code)
        assert len(cluster.running) <= 1
        resumed = upgrader(cluster)
        was_begun = any((cluster.root / "savepoints" / ".upgrades").glob("*/upgrade.json"))
        if then == "again":
            resumed.upgrade(BLUE, written(cluster, code))
        elif not was_begun:
            with pytest.raises(ClusterError, match="no upgrade of job"):
                resumed.finish(BLUE) if then == "finish" else resumed.undo(BLUE)
        else:
            resumed.finish(BLUE) if then == "finish" else resumed.undo(BLUE)
        is_blue = then == "undo" or code == "fail green" or (then == "finish" and not was_begun)
        assert cluster.running == ["# commit blue" if is_blue else f"# {code}"], f"killed at call {place}"
        assert cluster.jobs[BLUE] is (JobStatus.RUNNING if not cluster.stops else JobStatus.FINISHED)


def test_an_interrupted_upgrade_is_continued_by_one_command_at_a_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "killed")
    cluster.kill_at = calls_of("commit green", tmp_path / "whole") - 1
    with pytest.raises(Killed):
        upgraded(cluster)
    other = Claim(cluster.root / "savepoints" / ".upgrades" / f"{BLUE}.lock")
    assert other.try_acquire()
    for command in (
        lambda: upgraded(cluster),
        lambda: upgrader(cluster).finish(BLUE),
        lambda: upgrader(cluster).undo(BLUE),
    ):
        with pytest.raises(ClusterError, match="is being rescaled or upgraded at this moment"):
            command()
    other.release()
    assert upgraded(cluster).outcome == "upgraded"


def test_files_of_a_command_that_was_killed_before_it_began_are_replaced(cluster: Cluster) -> None:
    left = cluster.root / "savepoints" / ".upgrades" / BLUE / "blue"
    left.mkdir(parents=True)
    (left / "graph").write_bytes(b"half a graph")
    assert upgraded(cluster).outcome == "upgraded"


def test_a_damaged_record_is_named(cluster: Cluster) -> None:
    upgraded(cluster)
    record = cluster.root / "savepoints" / ".upgrades" / BLUE / "upgrade.json"
    record.write_text('{"step": "elsewhere"}')
    with pytest.raises(ClusterError, match=r"upgrade\.json is damaged") as caught:
        upgrader(cluster).finish(BLUE)
    assert "job list" in caught.value.remedy


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--undo", BLUE, "new.py"], "--undo takes no FILE"),
        (["--py-files", __file__, BLUE], "belong to FILE"),
        ([BLUE, "--undo"], "options come before JOB_ID"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(cli, ["job", "upgrade", *words])
    assert (result.exit_code, problem in result.output) == (ExitStatus.WRONG_USAGE, True), result.output


@pytest.mark.parametrize(
    ("status", "told", "exit_code"),
    [
        (JobStatus.RUNNING, f"this undoes it: understudy job upgrade --undo {GREEN}", ExitStatus.DONE),
        (
            JobStatus.FINISHED,
            "is FINISHED since, so it cannot be undone; `understudy job run --from /s FILE`",
            ExitStatus.DONE,
        ),
        (
            JobStatus.FAILED,
            "is FAILED since, so it cannot be undone; `understudy job run --from /s FILE`",
            ExitStatus.FAILED,
        ),
        (None, "has committed its first batch", ExitStatus.DONE),
    ],
)
def test_an_undo_is_recommended_only_while_the_new_version_runs(
    status: JobStatus | None, told: str, exit_code: ExitStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def job(self, job_id: JobID) -> object:
            if status is None:
                raise JobNotFoundError(job_id)
            return SimpleNamespace(status=status)

    done = UpgradedJob(GREEN, BLUE, "upgraded", "", "/s", {BATCH: 1})
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda _: contextlib.nullcontext(Client()))
    monkeypatch.setattr(JobUpgrader, "finish", lambda *_: done)
    result = CliRunner().invoke(cli, ["job", "upgrade", BLUE])
    assert (result.exit_code, result.stdout, told in result.stderr) == (exit_code, f"{GREEN}\n", True), result.stderr


def test_a_checkpoint_that_cannot_be_read_is_taken_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter([CheckpointError("it is being removed")])

    def read_checkpoint(path: Path) -> CheckpointMetadata:
        for error in read:
            raise error
        return original(path)

    original = job_upgrade.read_checkpoint
    monkeypatch.setattr(job_upgrade, "read_checkpoint", read_checkpoint)
    assert upgraded(cluster).outcome == "upgraded"


def test_the_check_of_a_version_has_the_jobs_settings_but_not_those_of_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A JVM does not start with the heap of ``2 gb`` that `-D spark.driver.memory=2g` leaves in the job."""
    given: list[dict[str, str]] = []

    def look(
        _configuration: object, _file: Path, _args: object, _kind: object, settings: dict[str, str], *_: object
    ) -> object:
        given.append(settings)
        return SimpleNamespace(queries=[], started=[])

    monkeypatch.setattr(job_version_commands, "_dry_run", look)
    monkeypatch.setattr("runtime.checkpoint.retained.describe_state", lambda _state: [])
    own = {
        "spark.driver.memory": "2 gb",
        "spark.master": "spark://host:7077",
        "spark.sql.session.timeZone": "UTC",
        "job.queue": "etl",
    }
    (tmp_path / "job.py").write_text("")
    version = Version(
        replace(JobGraph.for_script("job"), configuration=own), ((tmp_path / "job.py", ArtifactRole.MAIN),)
    )
    assert job_version_commands._look_at(Configuration(), version, tmp_path) == ([], [])
    assert given == [{"spark.sql.session.timeZone": "UTC"}]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (JobKind.SCRIPT, "import beside_it\nassert False, beside_it.TEXT"),
        (JobKind.PIPELINE, "import beside_it\ndef pipeline(argv):\n    assert False, beside_it.TEXT"),
    ],
)
def test_the_check_of_a_version_imports_modules_beside_its_file_and_names_the_path_that_the_user_gave(
    kind: JobKind, code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The check runs a private copy: the user does not know its path, and no modules are beside it."""
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

    for holder, method in (
        (StreamingQuery, "awaitTermination"),
        (StreamingQuery, "processAllAvailable"),
        (StreamingQueryManager, "awaitAnyTermination"),
    ):
        monkeypatch.setattr(holder, method, getattr(holder, method))
    monkeypatch.setattr(dry_run, "one_core_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(dry_run.DryRun, "_watch", lambda _: None)
    monkeypatch.setattr("sys.argv", ["understudy"])
    monkeypatch.setattr("sys.modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "dir" / "new.py"
    file.parent.mkdir()
    file.write_text(code)
    (file.parent / "beside_it.py").write_text("TEXT = 'it was imported'")
    named = file.relative_to(tmp_path)
    graph = replace(JobGraph.for_script("job"), kind=kind, working_directory=WorkingDirectory.of_caller(named))
    version = Version(graph, ((named, ArtifactRole.MAIN),)).keep(tmp_path / "green")
    file.write_text("raise ValueError('changed since')")
    before = list(sys.path)
    with pytest.raises(JobFileError, match=r"^(the job file )?dir/new\.py .*it was imported") as failed:
        job_version_commands._look_at(Configuration(), version, tmp_path)
    assert 'File "dir/new.py", line' in failed.value.details
    assert str(tmp_path) not in f"{failed.value}{failed.value.remedy}{failed.value.details}"
    assert sys.path == before


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_version_from_another_directory_names_its_file_by_an_absolute_path(
    is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("submitted", "upgraded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.py").write_text("")
    monkeypatch.chdir(tmp_path / "submitted")
    graph = replace(JobGraph.for_script("job"), working_directory=WorkingDirectory.of_caller(Path("job.py")))
    if is_elsewhere:
        monkeypatch.chdir(tmp_path / "upgraded")
    new = new_version(Path("job.py"), (), None, (), lambda line: None)(Version(graph, ())).graph.working_directory
    assert new is not None
    assert new.caller is not None
    assert new.caller.path == str(tmp_path / "submitted"), "the job keeps its directory"
    assert new.file == (str(tmp_path / "upgraded" / "job.py") if is_elsewhere else "job.py")
    assert Path(new.caller.path, new.file) == Path.cwd() / "job.py"


def test_a_check_whose_spark_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    def not_today(_builder: object) -> None:
        raise PySparkRuntimeError("not today")

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", not_today)
    monkeypatch.setattr(dry_run, "find_java", lambda _home: None)
    monkeypatch.setattr(dry_run, "launcher_home", lambda _java, scratch: scratch)
    with (
        pytest.raises(DriverStartError, match="Spark does not start with the job's settings: not today"),
        dry_run.one_core_session({}, None, tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("conf", "expected"), [({}, sys.executable), ({"spark.pyspark.python": "/opt/python"}, "/opt/python")]
)
def test_a_check_runs_the_code_of_workers_with_the_python_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conf: dict[str, str], expected: str
) -> None:
    from pyspark.sql import SparkSession

    found: list[str] = []

    def make(_builder: object) -> Any:
        found.append(os.environ["PYSPARK_PYTHON"])
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(os, "environ", {**os.environ, "PYSPARK_PYTHON": "/of/the/users/own/spark"})
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", make)
    monkeypatch.setattr(dry_run, "find_java", lambda _home: None)
    monkeypatch.setattr(dry_run, "launcher_home", lambda _java, scratch: scratch)
    with dry_run.one_core_session(conf, None, tmp_path):
        assert found == [expected]


def test_a_check_sees_which_columns_may_be_null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    given: dict[str, object] = {}
    session = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: given.update(builder._options) or session)
    monkeypatch.setattr(dry_run, "find_java", lambda _home: None)
    monkeypatch.setattr(dry_run, "launcher_home", lambda _java, scratch: scratch)
    with dry_run.one_core_session({"spark.a": "b"}, None, tmp_path):
        pass
    assert given["spark.a"] == "b"
    assert given[ALL_NULLABLE] == "false"


def test_a_checkpoint_that_lacks_a_running_query_is_taken_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query runs, and the other one has just started: the upgrade is judged by both."""
    first, second = (SimpleNamespace(name=name, location=f"/{name}") for name in ("a", "b"))
    upgrade = at(Step.STARTING, batches={"a": 2, "b": 2, "gone": 2})
    made = upgrader(cluster)
    found = [first]
    monkeypatch.setattr(made, "_snapshots", lambda _: found)
    assert made._locations(upgrade, {"a"}) == {"a": "/a"}
    assert made._locations(upgrade, {"a", "b"}) is None
    found.append(second)
    assert made._locations(upgrade, {"a", "b"}) == {"a": "/a", "b": "/b"}
    found.clear()
    assert made._locations(upgrade, set()) is None
