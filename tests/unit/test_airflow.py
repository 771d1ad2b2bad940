"""Jobs of Airflow's task instances: which job a try takes, how it is awaited, and what a connection means."""

from __future__ import annotations

import ast
import configparser
import importlib
import logging
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import AuthenticationError
from blob.errors import BlobConnectionError
from runtime.airflow import attached
from runtime.airflow.attached import AttachedJob, TaskFailedError, cancel_job, open_cluster
from runtime.airflow.task_jobs import (
    MOST_OF_A_CAUSE,
    MOST_OF_A_LINE,
    Access,
    ConnectionFieldsError,
    OutputLines,
    Patience,
    Step,
    TaskInstanceKey,
    Work,
    first_step,
    one_line,
)
from runtime.client import ClusterStoppedError, NoAnswerError, SubmissionUnknownError
from runtime.errors import JobCancelledError, JobFailedError
from runtime.ids import JobID
from runtime.notebook import Cluster
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError, JobSubmissionError
from runtime.protocol.execution_state import JobStatus
from tests.cluster_harness import ROOT

KEY = TaskInstanceKey("", "nightly", "scheduled__2026-01-01T00:00:00+00:00", "words", -1, 2)
ENDS = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)


# ------------------------------------------------------------------ which job


def test_an_id_stays_the_same_from_release_to_release() -> None:
    """A job that a worker of one release has submitted is found by a worker of the next."""
    assert KEY.job_id(0) == "38bcffa93009ba36fba182b4b1eb20e5"


@pytest.mark.parametrize("field", [field.name for field in fields(TaskInstanceKey)])
def test_every_part_of_a_task_instance_is_in_its_ids(field: str) -> None:
    other = replace(KEY, **{field: 7 if isinstance(getattr(KEY, field), int) else "other"})
    assert other.job_id(0) != KEY.job_id(0)


def test_parts_cannot_be_taken_for_each_other() -> None:
    assert replace(KEY, dag_id="a", run_id="b.c").job_id(0) != replace(KEY, dag_id="a.b", run_id="c").job_id(0)


def test_the_first_try_submits() -> None:
    assert first_step(KEY, 1, {}) == Step(KEY.job_id(0), True)


@pytest.mark.parametrize("status", [status for status in JobStatus if status not in ENDS[1:]])
def test_the_next_try_takes_a_job_that_runs_or_has_finished(status: JobStatus) -> None:
    assert first_step(KEY, 2, {KEY.job_id(0): status}) == Step(KEY.job_id(0), False)


@pytest.mark.parametrize("status", ENDS[1:])
def test_the_next_try_replaces_a_job_that_has_not_finished(status: JobStatus) -> None:
    assert first_step(KEY, 2, {KEY.job_id(0): status}) == Step(KEY.job_id(1), True, former=status)


def test_the_same_try_does_not_replace_its_own_job() -> None:
    assert first_step(KEY, 1, {KEY.job_id(0): JobStatus.FAILED}) == Step(KEY.job_id(0), False)
    states = {KEY.job_id(0): JobStatus.FAILED, KEY.job_id(1): JobStatus.FAILED}
    assert first_step(KEY, 2, states) == Step(KEY.job_id(1), False)
    assert first_step(KEY, 3, states).job_id == KEY.job_id(2)


def test_a_job_is_found_although_the_cluster_has_forgotten_the_ones_before() -> None:
    assert first_step(KEY, 5, {KEY.job_id(2): JobStatus.RUNNING}) == Step(KEY.job_id(2), False)


def test_a_cleared_task_begins_anew_and_cancels_what_it_has_left() -> None:
    before, cleared = KEY, replace(KEY, round=5)
    runs, ended = before.job_id(1), before.job_id(0)
    others = {JobID.random(): JobStatus.RUNNING}
    states = {ended: JobStatus.FAILED, runs: JobStatus.RUNNING, **others}
    assert first_step(cleared, 4, states) == Step(cleared.job_id(0), True, (runs,))
    assert first_step(cleared, 4, {runs: JobStatus.FINISHED}) == Step(cleared.job_id(0), True)


@given(st.data())
def test_two_jobs_of_a_task_instance_never_run_at_once(data: st.DataObject) -> None:
    """Tries overlap: Airflow has lost contact with some, which continue. They look, and act on it later."""
    states: dict[JobID, JobStatus] = {}
    plans: list[Step] = []
    finished = 0
    for _ in range(data.draw(st.integers(1, 25))):
        event = data.draw(st.sampled_from(["look", "act", "end"]))
        running = [job_id for job_id, status in states.items() if not status.is_globally_terminal]
        if event == "look":
            plans.append(first_step(KEY, len(plans) + 1, states))
        elif event == "act" and plans:
            plan = data.draw(st.sampled_from(plans))
            if plan.submits and plan.job_id not in states:  # the Dispatcher accepts each id once
                assert not running
                assert not finished
                states[plan.job_id] = JobStatus.RUNNING
        elif event == "end" and running:
            states[running[0]] = data.draw(st.sampled_from(ENDS))
            finished += states[running[0]] is JobStatus.FINISHED


# ------------------------------------------------------------- on a cluster


class FakeClient:
    """A cluster's answers, in order: an exception is raised, any other value returned; the last one stays."""

    sees_files = True

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def ask(self, name: str, argument: Any = None) -> Any:
        self.asked.append((name, argument))
        answers = self.answers[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def list_jobs(self) -> Any:
        return self.ask("list_jobs")

    def cancel(self, job_id: JobID) -> Any:
        return self.ask("cancel", job_id)

    def status_of(self, job_id: JobID) -> Any:
        return self.ask("status_of", job_id)


class FakeJob:
    def __init__(self, client: FakeClient, job_id: JobID) -> None:
        self.client = client
        self.id = job_id

    def cancel(self) -> Any:
        return self.client.ask("cancel_and_wait", self.id)

    def exception(self) -> Any:
        """Return a failure, and raise a cancellation, as `Job.exception`."""
        try:
            return self.client.ask("exception", self.id)
        except JobCancelledError:
            raise
        except JobFailedError as failed:
            return failed


class FakeCluster:
    def __init__(self, **answers: list[Any]) -> None:
        self.client = FakeClient(**answers)

    def options(self, **options: Any) -> Any:
        client = self.client

        class Submitter:
            def submit(self, script: str, *args: str) -> Any:
                return client.ask("submit", (options, script, args))

        return Submitter()

    def job(self, job_id: JobID) -> FakeJob:
        return FakeJob(self.client, job_id)


def details(job_id: JobID, status: JobStatus) -> JobDetails:
    values: dict[str, Any] = {field.name: None for field in fields(JobDetails)}
    return JobDetails(**{**values, "job_id": job_id, "status": status})


def of(cluster: FakeCluster, said: list[str] | None = None, patience_s: float = 3600.0) -> AttachedJob:
    return AttachedJob(cast("Cluster", cluster), ([] if said is None else said).append, patience_s)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "PAUSE_S", 0.0)
    monkeypatch.setattr(attached, "CANCEL_PAUSE_S", 0.0)


WORK = Work("job.py", ["--day", "1"], {"name": "words"})


def test_a_first_try_asks_for_no_list_of_jobs() -> None:
    cluster = FakeCluster(submit=[None])
    assert of(cluster).begin(KEY, 1, WORK) == KEY.job_id(0)
    options = {"name": "words", "job_id": KEY.job_id(0)}
    assert cluster.client.asked == [("submit", (options, "job.py", ("--day", "1")))]


def test_a_task_does_not_choose_the_id_of_its_job() -> None:
    cluster = FakeCluster(submit=[None])
    with pytest.raises(TaskFailedError, match="leave it out"):
        of(cluster).begin(KEY, 1, Work("job.py", (), {"job_id": JobID.random()}))
    assert cluster.client.asked == []


def test_a_submission_whose_outcome_is_unknown_is_repeated_under_the_same_id() -> None:
    unknown = SubmissionUnknownError("words", KEY.job_id(0), NoAnswerError("silence"))
    cluster = FakeCluster(submit=[unknown, BlobConnectionError("lost"), None])
    said: list[str] = []
    assert of(cluster, said).begin(KEY, 1, WORK) == KEY.job_id(0)
    assert {argument[0]["job_id"] for _, argument in cluster.client.asked} == {KEY.job_id(0)}
    assert len(cluster.client.asked) == 3
    assert "is not known: silence; asks again" in said[0]


def test_patience_ends_and_the_line_has_the_cause_and_the_remedy() -> None:
    unknown = SubmissionUnknownError("words", KEY.job_id(0), NoAnswerError("silence\nmore"))
    with pytest.raises(TaskFailedError, match=r"^whether job 'words' .* is not known: silence; once the cluster"):
        of(FakeCluster(submit=[unknown]), patience_s=0.0).begin(KEY, 1, WORK)


def test_what_no_repetition_changes_is_not_repeated() -> None:
    for error in (ClusterStoppedError("stopped"), JobSubmissionError("no"), FileNotFoundError("job.py")):
        cluster = FakeCluster(submit=[error])
        with pytest.raises(TaskFailedError):
            of(cluster).begin(KEY, 1, WORK)
        assert len(cluster.client.asked) == 1


def test_a_later_try_finds_the_job_and_submits_nothing() -> None:
    cluster = FakeCluster(list_jobs=[[details(KEY.job_id(0), JobStatus.RUNNING)]])
    said: list[str] = []
    assert of(cluster, said).begin(KEY, 2, WORK) == KEY.job_id(0)
    assert [name for name, _ in cluster.client.asked] == ["list_jobs"]
    assert said == [f"found job {KEY.job_id(0)} of an earlier try: RUNNING"]


def test_a_cleared_task_waits_until_nothing_of_the_former_job_runs() -> None:
    cleared, left = replace(KEY, round=4), KEY.job_id(0)
    cluster = FakeCluster(
        list_jobs=[[details(left, JobStatus.RUNNING)]], cancel_and_wait=[JobStatus.CANCELED], submit=[None]
    )
    assert of(cluster).begin(cleared, 2, WORK) == cleared.job_id(0)
    assert [name for name, _ in cluster.client.asked] == ["list_jobs", "cancel_and_wait", "submit"]


def test_a_former_job_that_is_forgotten_meanwhile_hinders_nothing() -> None:
    cleared = replace(KEY, round=4)
    cluster = FakeCluster(
        list_jobs=[[details(KEY.job_id(0), JobStatus.RUNNING)]],
        cancel_and_wait=[JobNotFoundError("forgotten")],
        submit=[None],
    )
    assert of(cluster).begin(cleared, 2, WORK) == cleared.job_id(0)


class FakeFollower:
    """Passes pieces of output on, and raises an error once in between."""

    def __init__(self, client: Any, show: Callable[[Any], None]) -> None:
        self.show = show
        self.answers: list[Any] = [b"one\ntw", NoAnswerError("leader lost"), b"o\n", b"three", None]

    def follow(self, job_id: JobID, look: Callable[[Any], object]) -> None:
        while (answer := self.answers.pop(0)) is not None:
            if isinstance(answer, Exception):
                raise answer
            look(job_id)
            self.show(attached.OutputPiece("main", 0, "stdout", answer))


def test_output_is_shown_once_although_a_leader_is_lost_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "LogFollower", FakeFollower)
    said: list[str] = []
    of(FakeCluster(exception=[None]), said).follow(KEY.job_id(0))
    assert said == ["[main] one", "leader lost; asks again", "[main] two", "[main] three"]


def test_patience_begins_anew_after_each_answer_also_of_a_silent_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(FakeFollower):
        def __init__(self, client: Any, show: Callable[[Any], None]) -> None:
            super().__init__(client, show)
            self.answers = [NoAnswerError("first"), b"", NoAnswerError("much later"), None]

    times = iter([0.0, 1000.0])
    monkeypatch.setattr(attached, "LogFollower", Silent)
    monkeypatch.setattr(attached.time, "monotonic", lambda: next(times))
    of(FakeCluster(exception=[None]), patience_s=60.0).follow(KEY.job_id(0))


@pytest.mark.parametrize("error", [JobFailedError("is FAILED: Boom: 1\n  at x", "r"), JobCancelledError("is C", "r")])
def test_a_job_that_has_not_finished_fails_the_task_in_one_line(
    error: JobFailedError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "LogFollower", FakeFollower)
    with pytest.raises(TaskFailedError) as raised:
        of(FakeCluster(exception=[error])).follow(KEY.job_id(0))
    assert str(raised.value) == str(error).splitlines()[0]


def test_the_state_of_a_forgotten_job_is_an_error_of_one_line() -> None:
    job = of(FakeCluster(status_of=[JobNotFoundError("no job")]))
    with pytest.raises(TaskFailedError, match="no job yet"):
        job.state()
    job.job_id = KEY.job_id(0)
    with pytest.raises(TaskFailedError, match=r"^no job$"):
        job.state()


def test_a_job_whose_submission_is_under_way_is_cancelled_when_it_is_there() -> None:
    not_there = JobNotFoundError("not yet")
    cluster = FakeCluster(cancel=[not_there, not_there, None])
    assert cancel_job(cast("Cluster", cluster), KEY.job_id(0), is_coming=True)
    assert not cancel_job(cast("Cluster", FakeCluster(cancel=[not_there])), KEY.job_id(0), is_coming=True)
    once = FakeCluster(cancel=[not_there, None])
    assert not cancel_job(cast("Cluster", once), KEY.job_id(0))
    assert len(once.client.asked) == 1
    assert not cancel_job(cast("Cluster", FakeCluster(cancel=[JobAlreadyTerminatedError("over")])), KEY.job_id(0))


def test_a_task_knows_that_its_submission_is_under_way() -> None:
    job = of(FakeCluster(submit=[JobSubmissionError("no")]))
    with pytest.raises(TaskFailedError):
        job.begin(KEY, 1, WORK)
    assert job.is_submitting
    job = of(FakeCluster(submit=[None]))
    job.begin(KEY, 1, WORK)
    assert not job.is_submitting


def test_patience_counts_from_the_first_silence() -> None:
    patience = Patience(10.0)
    assert [patience.is_over(now) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    patience.answered()
    assert not patience.is_over(111.0)


# ----------------------------------------------------------------- the output


def test_pieces_become_lines_of_their_sources() -> None:
    lines = OutputLines()
    assert list(lines.add("main", 0, "stdout", b"one\r\ntw")) == ["[main] one"]
    assert list(lines.add("main", 0, "stderr", b"bad\n")) == ["[main stderr] bad"]
    assert list(lines.add("main", 1, "stdout", b"\n")) == ["[main attempt 2] "]
    assert list(lines.add("main", 0, "stdout", "o ü\n".encode())) == ["[main] two ü"]
    assert list(lines.add("main", 0, "stdout", b"\xff")) == []
    assert list(lines.finish()) == ["[main] \ufffd"]
    assert list(lines.finish()) == []


def test_output_without_line_ends_is_not_kept_without_bound() -> None:
    lines = OutputLines()
    shown = list(lines.add("t", 0, "stdout", b"x" * (2 * MOST_OF_A_LINE + 1)))
    assert [len(line) for line in shown] == [len("[t] ") + MOST_OF_A_LINE] * 2
    assert list(lines.finish()) == ["[t] x"]
    assert len(list(lines.add("t", 0, "stdout", b"x" * (MOST_OF_A_LINE + 1) + b"\n"))) == 2


def test_a_cause_is_one_line() -> None:
    assert one_line("\n  first \nsecond") == "first"
    assert one_line("") == ""
    assert one_line("x" * 5000) == "x" * MOST_OF_A_CAUSE + "..."


# ------------------------------------------------------------- the connection


def access(host: str | None = None, schema: str | None = None, port: int | None = None, **extra: Any) -> Access:
    return Access.of("c", schema, host, port, "t0ken", extra)


def test_a_name_gets_a_scheme_and_a_port() -> None:
    assert access("spark.example").address == "https://spark.example:8081"
    assert access("127.0.0.1").address == "http://127.0.0.1:8081"
    assert access("::1", port=9).address == "http://[::1]:9"
    assert access("spark.example", "http", 80).address == "http://spark.example:80"
    assert access().address is None


def test_whole_addresses_stay() -> None:
    for address in ("https://a:1,https://b:2", "akka.tcp://understudy@host:6123"):
        assert access(address).address == address
        for more in ({"schema": "https"}, {"port": 1}):
            with pytest.raises(ConnectionFieldsError, match="whole address"):
                access(address, **more)  # type: ignore[arg-type]


def test_extra_fields_are_checked() -> None:
    found = access("h", ca_file="/ca.pem", settings={"client.timeout": "1 s"}, namespace="prod")
    assert (found.ca_file, found.settings, found.namespace) == ("/ca.pem", {"client.timeout": "1 s"}, "prod")
    with pytest.raises(ConnectionFieldsError, match="'ca-file' in its extra"):
        access("h", **{"ca-file": "x"})
    with pytest.raises(ConnectionFieldsError, match="not a map"):
        access("h", settings="client.timeout")


def test_the_token_is_not_shown() -> None:
    assert access("h").token == "t0ken"
    assert "t0ken" not in repr(access("h"))


def test_a_connection_that_does_not_work_is_one_line_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskFailedError) as raised:
        open_cluster(access("spark.example", "http"))
    assert "http://spark.example:8081 is not a loopback address" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "t0ken" not in str(raised.value)
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(attached, "connect", lambda address, **arguments: given.append(arguments))
    open_cluster(access("h"), 10.0)
    open_cluster(access("h", settings={"client.timeout": "2 s"}), 10.0)
    assert [arguments["settings"] for arguments in given] == [{"client.timeout": "10 s"}, {"client.timeout": "2 s"}]


def trigger_of_a_stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the trigger, with stubs for the parts of Airflow that it imports."""
    parts: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.exceptions": {"AirflowException": type("AirflowException", (Exception,), {})},
        "airflow.sdk": {"BaseHook": object},
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": type("BaseTrigger", (), {"log": logging.getLogger("trigger")})},
    }
    for name, values in parts.items():
        stub = types.ModuleType(name)
        vars(stub).update(values)
        monkeypatch.setitem(sys.modules, name, stub)
    vars(sys.modules["airflow.triggers.base"])["TriggerEvent"] = dict
    for name in ("hook", "trigger"):
        monkeypatch.delitem(sys.modules, f"runtime.airflow.{name}", raising=False)
    module = importlib.import_module("runtime.airflow.trigger")
    for name in ("hook", "trigger"):
        monkeypatch.delitem(sys.modules, f"runtime.airflow.{name}")
    return module


async def test_a_trigger_takes_the_token_that_has_replaced_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deferred task may wait for days, and the connection's token is replaced meanwhile."""
    module = trigger_of_a_stub(monkeypatch)
    passwords = iter(("former", "latest"))
    shown: list[str | None] = []
    ends: list[str | None] = []

    class Client:
        def __init__(self, token: str | None) -> None:
            self.token = token

        def status_of(self, job_id: JobID) -> JobStatus:
            shown.append(self.token)
            assert len(shown) < 9, "the former token is shown again and again"
            if self.token == "former":
                raise AuthenticationError("needs a valid token")
            return JobStatus.FINISHED

    def opened(access: Access, answer_s: float) -> Any:
        return types.SimpleNamespace(client=Client(access.token), close=lambda: ends.append(access.token))

    class Hook:
        def __init__(self, conn_id: str) -> None: ...

        def access(self) -> Access:
            return Access("https://h", next(passwords))

    monkeypatch.setattr(module, "open_cluster", opened)
    monkeypatch.setattr(module, "UnderstudyHook", Hook)
    events = [event async for event in module.UnderstudyJobTrigger("c", KEY.job_id(0), poll_interval=0.0).run()]
    assert events == [{"job_id": KEY.job_id(0), "timed_out": False, "error": ""}]
    assert (shown, ends) == (["former", "latest"], ["former", "latest"])


# --------------------------------------------------------------- the provider


def test_airflow_reads_the_provider_without_loading_it() -> None:
    code = (
        "import sys; from understudy.airflow import get_provider_info as g; print(g()['connection-types']); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('airflow', 'runtime', 'pyspark')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    kinds, loaded = done.stdout.splitlines()
    assert "UnderstudyHook" in kinds
    assert loaded == "[]"


def test_a_dag_file_that_is_parsed_loads_no_client() -> None:
    tree = ast.parse(Path(ROOT, "runtime", "airflow", "operator.py").read_text())
    modules = {item.module for item in tree.body if isinstance(item, ast.ImportFrom) and item.module}
    assert {name for name in modules if name.startswith("runtime")} == {"runtime.airflow.task_jobs", "runtime.ids"}
    code = (
        "import runtime.airflow.task_jobs, sys; "
        "print([name for name in sys.modules if name.startswith(('runtime.client', 'actors'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_the_example_gives_the_operator_arguments_that_it_has() -> None:
    """A real Airflow runs the DAG in `integration/test_airflow.py`, which is skipped where there is none."""
    tree = ast.parse(Path(ROOT, "runtime", "airflow", "operator.py").read_text())
    [init] = [
        item
        for found in tree.body
        if isinstance(found, ast.ClassDef) and found.name == "UnderstudySubmitOperator"
        for item in found.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    known = {argument.arg for argument in init.args.kwonlyargs} | {"task_id", "execution_timeout"}
    example = ast.parse((ROOT / "examples" / "airflow_dag.py").read_text())
    calls = [
        call
        for call in ast.walk(example)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "UnderstudySubmitOperator"
    ]
    assert len(calls) == 2
    assert {keyword.arg for call in calls for keyword in call.keywords} <= known


def test_what_the_provider_names_exists() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert (
        "provider_info = understudy.airflow:get_provider_info"
        in setup["options.entry_points"]["apache_airflow_provider"]
    )
    import understudy.airflow as module

    for name, home in module._HOME_OF.items():
        tree = ast.parse(Path(ROOT, "runtime", "airflow", f"{home}.py").read_text())
        assert name in {item.name for item in tree.body if isinstance(item, ast.ClassDef)}
    with pytest.raises(AttributeError):
        _ = module.UnderstudyOperator  # type: ignore[attr-defined]
