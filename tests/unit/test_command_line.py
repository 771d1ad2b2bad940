"""The command line as such: exit statuses, examples, JSON everywhere, completion, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from actors.errors import AuthenticationError
from actors.process.diagnostics import LogLevelError
from runtime.cluster import job_commands
from runtime.cluster.cli import SHELLS, cli
from runtime.cluster.cluster_commands import first_job_note
from runtime.cluster.command_line import (
    ExitStatus,
    Interrupted,
    Interrupts,
    await_or_cancel,
    complete_job,
    is_this_machine,
    status_of_end,
    waiting,
)
from runtime.cluster.job_commands import run_attached
from runtime.errors import ClusterError
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, JobDetails, TaskInfo
from runtime.protocol.diagnostics import TaskPoolReport
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.messages import ClusterOverview, ClusterStatus
from runtime.queues import configuration as queues

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_JSON = {"demo", "completion", "history", "history-server"}


def leaves(group: click.Group, words: str = "") -> dict[str, click.Command]:
    """All commands that do something, by their words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if command.hidden:
            continue
        path = f"{words} {name}".strip()
        found |= leaves(command, path) if isinstance(command, click.Group) else {path: command}
    return found


EXAMPLES = {
    words: [line.strip() for line in command.epilog.splitlines()[2:]]
    for words, command in leaves(cli).items()
    if command.epilog
}


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as a shell runs it."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.cluster", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("job", "run", "--nonsense"), ExitStatus.WRONG_USAGE, "No such option"),
        ((), ExitStatus.WRONG_USAGE, "Usage:"),
        (("--help",), ExitStatus.DONE, "Exit status: 0"),
        (("--version",), ExitStatus.DONE, "understudy"),
        (("nonsense",), ExitStatus.WRONG_USAGE, "No such command"),
        (("job", "run", ""), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("job", "run", "--from", "", "job.py"), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("job", "check", "--from", "", "job.py"), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("job", "rollback", "--to", "", "ab"), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("job", "stop", "--savepoint", "", "ab"), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("savepoint", "dispose", ""), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("savepoint", "rescale", "--partitions", "2", "--to", "", "x"), ExitStatus.WRONG_USAGE, "the path is empty"),
        (("start", "-D", f"cluster.runtime-dir={__file__}"), ExitStatus.FAILED, "remedy: choose another with -D"),
        (("status", "-D", f"cluster.runtime-dir={__file__}"), ExitStatus.UNAVAILABLE, "no cluster runs in"),
        (("start", "--nonsense"), ExitStatus.WRONG_USAGE, "No such option"),
        (("job", "info"), ExitStatus.WRONG_USAGE, "Missing argument"),
        (("job", "info", "not-an-id"), ExitStatus.UNAVAILABLE, "remedy:"),
        (("job", "run", "--job-id", "not-an-id", "job.py"), ExitStatus.FAILED, "32 lower-case hexadecimal digits"),
        (("log-level", "dispatcher", "LOUD"), ExitStatus.FAILED, "remedy: give one of DEBUG"),
        (("savepoint", "verify", "/nowhere/at/all"), ExitStatus.FAILED, "/nowhere/at/all"),
        (("status", "-D", "no.such.option=1"), ExitStatus.FAILED, "error:"),
    ],
)
def test_exit_statuses_are_those_of_the_table(
    words: tuple[str, ...], status: ExitStatus, said: str, tmp_path: Path
) -> None:
    done = run(*words, HOME=str(tmp_path))
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if words:  # what a group without a command says is click's own business
        assert done.returncode == status


def test_no_cluster_is_an_error_and_json_prints_none(tmp_path: Path) -> None:
    done = run("status", "--json", "-D", f"cluster.runtime-dir={tmp_path / 'none'}")
    assert (done.returncode, done.stdout) == (ExitStatus.UNAVAILABLE, "")
    assert re.fullmatch(r"error: .*\nremedy: .*\n", done.stderr)


_FULL = "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", ["--help", "--version", "job list --help", "completion bash", "doctor --json"])
def test_an_output_that_cannot_be_written_is_an_error(words: str, tmp_path: Path) -> None:
    def ended(redirection: str) -> tuple[int, str, str]:
        command = f"{shlex.quote(sys.executable)} -m runtime.cluster {words} {redirection}"
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environ)
        return done.returncode, done.stdout, done.stderr

    assert ended(">/dev/full") == (ExitStatus.FAILED, "", _FULL)
    assert ended(">/dev/full 2>&1") == (ExitStatus.FAILED, "", "")
    assert ended("| head -c 0; exit ${PIPESTATUS[0]}") == (ExitStatus.NO_READER, "", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_no_error(closed: str, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m runtime.cluster completion bash {closed}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (ExitStatus.DONE, "")
    assert bool(done.stdout) == (closed == "2>&-")


def test_the_table_of_exit_statuses_is_whole() -> None:
    table = (ROOT / "docs" / "command-line.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert [int(row) for row in rows] == [status.value for status in ExitStatus]
    of_signals = [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)]
    assert [status.value for status in ExitStatus][-4:] == of_signals


@pytest.mark.parametrize(
    ("state", "interrupt", "exit_status", "status"),
    [
        ("FINISHED", None, None, 0),
        ("SUCCEEDED", None, None, 0),
        ("FINISHED", Interrupted(signal.SIGTERM), None, 0),
        ("FAILED", None, None, 1),
        ("FAILED", None, 3, 3),
        ("FAILED", KeyboardInterrupt(), None, 1),
        ("CANCELED", None, None, 79),
        ("CANCELED", KeyboardInterrupt(), None, 130),
        ("CANCELED", Interrupted(signal.SIGTERM), None, 143),
        ("CANCELED", Interrupted(signal.SIGHUP), 3, 129),
    ],
)
def test_the_exit_status_is_the_end_of_the_job(
    state: str, interrupt: KeyboardInterrupt | None, exit_status: int | None, status: int
) -> None:
    assert status_of_end(state, interrupt, exit_status) == status


def test_help_shows_which_arguments_are_optional() -> None:
    assert "job exceptions [OPTIONS] [JOB_ID]\n" in CliRunner().invoke(cli, ["job", "exceptions", "--help"]).output
    assert "job info [OPTIONS] JOB_ID\n" in CliRunner().invoke(cli, ["job", "info", "--help"]).output


def test_the_page_names_the_commands_without_json() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    (names,) = re.findall(r"All commands but (.*?)\s+have it", page, re.DOTALL)
    assert set(re.findall(r"`(.*?)`", names)) == WITHOUT_JSON


@pytest.mark.parametrize("words", sorted(leaves(cli).keys() - WITHOUT_JSON))
def test_every_command_has_json(words: str) -> None:
    assert any("--json" in parameter.opts for parameter in leaves(cli)[words].params)


def test_the_former_name_of_start_master_works_and_is_not_shown(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert re.search(r"^  start-master ", shown, re.MULTILINE)
    assert not re.search(r"^  master ", shown, re.MULTILINE)
    words = ("-D", f"cluster.runtime-dir={tmp_path / 'none'}")
    former, now = (run(name, *words, HOME=str(tmp_path)) for name in ("master", "start-master"))
    assert now.returncode == ExitStatus.UNAVAILABLE
    assert (former.returncode, former.stdout, former.stderr) == (now.returncode, now.stdout, now.stderr)


@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_examples_are_shown_and_right(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("helpers.py", "requirements.txt", "job.py"):
        (tmp_path / name).touch()
    shown = CliRunner().invoke(cli, [*words.split(), "--help"], terminal_width=200).output
    for line in EXAMPLES[words]:
        assert f"  {line}\n" in shown
        (given,) = re.findall(r"understudy ([^>#)]*)", line)
        arguments = shlex.split(given)
        assert arguments[: len(words.split())] == words.split()
        leaves(cli)[words].make_context(words, arguments[len(words.split()) :]).close()


def test_what_is_interrupted_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended, waiting("a long time", "the rest goes on", out):
        raise KeyboardInterrupt
    assert ended.value.code == ExitStatus.INTERRUPTED
    assert out.getvalue() == "interrupted: the rest goes on\n"  # no sign of life in a pipe

    def interrupted(configuration: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_commands, "connected", interrupted)
    done = CliRunner().invoke(cli, ["job", "list"])
    assert (done.exit_code, done.stderr) == (ExitStatus.INTERRUPTED, "interrupted\n")


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(tmp_path: Path) -> None:
    package = tmp_path / "click"
    package.mkdir()
    (package / "__init__.py").write_text("raise KeyboardInterrupt")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "understudy", "status"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (ExitStatus.INTERRUPTED, "", "interrupted\n")


class Submitting:
    """A client during whose submission the user presses Ctrl-C (or sends another signal) so many times.

    *cancelling* is sent while the job is being cancelled.
    """

    def __init__(self, presses: int, sent: int = signal.SIGINT, cancelling: int | None = None) -> None:
        self.presses = presses
        self.sent = sent
        self.cancelling = cancelling
        self.did: list[str] = []

    def submit(self, graph: Any, file: Path, libraries: Any) -> str:
        for _ in range(self.presses):
            signal.raise_signal(self.sent)
        self.did.append("submitted")
        return str(graph.job_id)

    def cancel(self, job_id: str) -> None:
        self.did.append(f"cancelled {job_id}")
        if self.cancelling is not None:
            signal.raise_signal(self.cancelling)

    def watch(self, job_id: str) -> list[Any]:
        self.did.append("watched")
        return [CANCELED]

    def heartbeats(self, job_id: str, interval_s: float) -> AbstractContextManager[None]:
        return nullcontext()

    def detach(self, job_id: str, patience_s: float) -> None:
        self.did.append(f"detached {job_id}")

    def web_page(self, job_id: str) -> str:
        return f"http://127.0.0.1:8081/#/jobs/{job_id}"


CANCELED = ArchivedExecutionGraph(
    JobID("a" * 32), "j", JobKind.SCRIPT, JobStatus.CANCELED, {"CANCELED": 1}, (), (), None, (), 0, "none"
)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (signal.SIGTERM, ExitStatus.TERMINATED),
        (signal.SIGHUP, ExitStatus.HUNG_UP),
        (signal.SIGINT, ExitStatus.INTERRUPTED),
    ],
)
def test_a_signal_while_a_job_is_submitted_cancels_it(
    sent: signal.Signals, status: ExitStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(sent)
    client: Any = Submitting(1, sent)
    assert run_attached(client, cast(Any, SimpleNamespace(job_id="j")), Path("f")) == status
    assert client.did == ["submitted", "cancelled j", "watched"]
    assert signal.getsignal(sent) is before
    reason = "" if sent is signal.SIGINT else f"got {sent.name}: "
    assert f"\n{reason}cancelling job j; Ctrl-C again leaves it to the cluster\n" in capsys.readouterr().err


class Printing(Submitting):
    """A client whose job prints a result and ends in *status*, or in CANCELED once it was cancelled."""

    def __init__(self, status: JobStatus) -> None:
        super().__init__(0)
        self.status = status

    def read_task_log(self, job_id: str, attempt_id: str, name: str, offset: int) -> Any:
        data = {"stdout": b"a result", "stderr": b""}[name][offset:]
        return SimpleNamespace(result=lambda: SimpleNamespace(data=data))

    def task_executor(self, resource_id: str) -> Any:
        return self

    def watch(self, job_id: str) -> list[Any]:
        started = AttemptInfo(ExecutionAttemptID("b" * 32), 0, ExecutionState.FINISHED, "tm-0", {"CREATED": 1}, None, 0)
        task = TaskInfo(JobVertexID("c" * 32), "j", (), (started,), "")
        if f"cancelled {job_id}" in self.did:
            self.status = JobStatus.CANCELED
        times = {"CREATED": 1, self.status.value: 2}
        return [replace(CANCELED, tasks=(task,), status=self.status, timestamps=times)]


def test_a_job_whose_output_cannot_be_written_finishes_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = Printing(JobStatus.FINISHED)
    graph: Any = SimpleNamespace(job_id="j")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run_attached(client, graph, Path("f")) == ExitStatus.FAILED
    assert client.did == ["submitted"]
    assert "; the job continues, and `understudy job logs j` prints its output\n" in capsys.readouterr().err


def test_a_job_whose_output_and_errors_nobody_reads_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Printing(JobStatus.FINISHED)
    graph: Any = SimpleNamespace(job_id="j")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream, os.fdopen(os.dup(write), "w", buffering=1) as errors:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.stderr", errors)
        assert run_attached(client, graph, Path("f")) == ExitStatus.NO_READER
    assert client.did == ["submitted", "cancelled j"]


def test_a_job_is_cancelled_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def wait() -> None:
        raise Interrupted(signal.SIGPIPE)

    with pytest.raises(SystemExit):
        await_or_cancel("job j", wait, lambda: None)
    said = "nothing reads the output any more: cancelling job j; Ctrl-C again leaves it to the cluster\n"
    assert said in capsys.readouterr().err


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_detaches_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Submitting(1, cancelling=signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run_attached(client, cast(Any, SimpleNamespace(job_id="j")), Path("f"), heartbeat_s=30)
    assert ended.value.code == ExitStatus.TERMINATED
    assert client.did == ["submitted", "cancelled j", "detached j"]
    assert "interrupted: job j is left to the cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("heartbeat_s", "said"),
    [(30, "the cluster cancels job j 180 s after it has last heard of this command"), (None, "job j continues")],
)
def test_a_command_whose_token_expires_says_what_becomes_of_its_job(
    heartbeat_s: float | None, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: object) -> None:
        raise AuthenticationError("the token has expired")

    monkeypatch.setattr("runtime.cluster.logs.LogFollower.follow", expired)
    graph = cast(Any, SimpleNamespace(job_id="j", client_heartbeat_timeout_s=180.0))
    with pytest.raises(AuthenticationError):
        run_attached(cast(Any, Submitting(0)), graph, Path("f"), heartbeat_s=heartbeat_s)
    assert said in capsys.readouterr().err


def test_a_signal_is_kept_while_something_is_written() -> None:
    written = []

    def write(presses: int) -> None:
        with interrupts.held():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            written.append(presses)

    with Interrupts() as interrupts:
        interrupts.release()
        for presses in (1, 2):
            with pytest.raises(Interrupted):
                write(presses)
    assert written == [1], "a second one interrupts at once"


def test_ctrl_c_while_a_job_is_submitted_cancels_it(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Submitting(1)
    assert run_attached(client, cast(Any, SimpleNamespace(job_id="j")), Path("f")) == ExitStatus.INTERRUPTED
    assert client.did == ["submitted", "cancelled j", "watched"]
    said = capsys.readouterr().err
    assert "cancelling job j; Ctrl-C again leaves it to the cluster" in said
    assert "job j was submitted\nweb page: http://127.0.0.1:8081/#/jobs/j\n" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_while_a_job_is_submitted_says_that_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Submitting(2)
    with pytest.raises(SystemExit) as ended:
        run_attached(client, cast(Any, SimpleNamespace(job_id="j")), Path("f"))
    assert ended.value.code == ExitStatus.INTERRUPTED
    assert client.did == []
    assert "interrupted: job j may have been submitted" in capsys.readouterr().err


def test_with_json_the_output_of_a_job_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output has one JSON value, and nothing else."""

    client: Any = Printing(JobStatus.FAILED)
    graph: Any = SimpleNamespace(job_id="j")
    assert run_attached(client, graph, Path("f"), as_json=True) == ExitStatus.FAILED
    shown = capsys.readouterr()
    assert json.loads(shown.out)["state"] == "FAILED"
    assert "a result\n" in shown.err, "nothing follows on its line"
    assert f"error: job {'a' * 32} (j) FAILED" in shown.err
    run_attached(client, graph, Path("f"))
    assert capsys.readouterr().out == "a result"


@pytest.mark.parametrize("status", [ExitStatus.DONE, ExitStatus.FAILED])
def test_a_demo_names_its_result_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: ExitStatus
) -> None:
    monkeypatch.setattr("runtime.cluster.session.start_cluster", lambda configuration, say: nullcontext())
    monkeypatch.setattr("runtime.cluster.session.stop_cluster", lambda configuration, say: None)
    monkeypatch.setattr("runtime.cluster.cluster_commands._places", lambda configuration, client: {"cluster": "demo"})
    monkeypatch.setattr("runtime.job_file.read_job_file", lambda file, args: None)
    monkeypatch.setattr("runtime.cluster.job_commands.run_attached", lambda client, graph, file: status)
    done = CliRunner().invoke(cli, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == status, done.output
    assert (f"the result is in {tmp_path}" in done.stderr) == (status is ExitStatus.DONE)


def test_a_start_says_that_a_first_job_is_slow_while_no_task_process_is_ready() -> None:
    warming, ready = TaskPoolReport(2), TaskPoolReport(2, {"SCRIPT": 1, "PIPELINE": 0})
    note = "Spark is still warming up: a job in the next seconds takes longer to start"
    assert first_job_note([ready, warming]) == note
    assert first_job_note([ready]) == first_job_note([TaskPoolReport(0)]) == first_job_note([]) == ""


# ------------------------------------------------- the job that is meant


class Asked(Exception):
    """Raised by a `Jobs` for what a command asks of a job."""


class Jobs:
    """A client of a cluster with these jobs; the first request about one of them raises `Asked`."""

    def __init__(self, *jobs: Any) -> None:
        self.jobs = jobs

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def list_jobs(self) -> list[Any]:
        if not self.jobs:
            raise AssertionError("the jobs were listed, and need not have been")
        return list(self.jobs)

    def overview(self) -> Any:
        return SimpleNamespace(savepoint_dir="")

    def __getattr__(self, name: str) -> Any:
        def ask(job_id: str, *_: Any, **__: Any) -> None:
            raise Asked(job_id)

        return ask


def listed(digits: str, name: str, start_ms: int = 0) -> Any:
    status = SimpleNamespace(value="RUNNING", is_globally_terminal=False)
    return SimpleNamespace(job_id=digits.ljust(32, "0"), name=name, status=status, start_ms=start_ms)


DETAILS = JobDetails(JobID("0" * 32), "job", JobKind.SCRIPT, JobStatus.FINISHED, 1000, 2000, {}, 1, "")

ON_A_JOB = sorted(
    words
    for words, command in leaves(cli).items()
    if any(parameter.name == "reference" for parameter in command.params)
)
FURTHER = {
    "job rollback": ("--to", "chk-1"),
    "job rescale": ("--partitions", "3"),
    "job autoscale": ("--dry-run",),
}


def invoked(monkeypatch: pytest.MonkeyPatch, client: Jobs, words: str, *arguments: str) -> BaseException | None:
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: client)
    return CliRunner().invoke(cli, [*words.split(), *FURTHER.get(words, ()), *arguments]).exception


def test_all_commands_on_a_job_are_tried() -> None:
    verbs = (
        "autoscale",
        "cancel",
        "checkpoint",
        "exceptions",
        "info",
        "logs",
        "rescale",
        "rollback",
        "savepoint",
        "stop",
        "upgrade",
    )
    assert [f"job {verb}" for verb in verbs] == ON_A_JOB


@pytest.mark.parametrize("words", ON_A_JOB)
@pytest.mark.parametrize("reference", ["ab", "clicks", "latest"])
def test_every_command_takes_a_prefix_a_name_and_latest(
    words: str, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Jobs(listed("cd", "other"), listed("ab", "clicks", start_ms=5))
    asked = invoked(monkeypatch, client, words, reference)
    assert isinstance(asked, Asked), asked
    assert str(asked) == "ab".ljust(32, "0")


@pytest.mark.parametrize("words", ON_A_JOB)
def test_a_whole_id_is_asked_for_without_a_listing(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = invoked(monkeypatch, Jobs(), words, "ef".ljust(32, "0"))
    assert isinstance(asked, Asked), asked


def test_a_job_that_is_not_clear_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = invoked(monkeypatch, Jobs(listed("ab1", "clicks"), listed("ab2", "clicks")), "job cancel", "ab")
    assert isinstance(refused, ClusterError)
    assert "ab100000 (clicks, RUNNING, " in str(refused)


def test_status_counts_jobs_by_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster(Jobs):
        address = "here"

        def status(self) -> ClusterStatus:
            return ClusterStatus("one", "1", "here", 0, ())

        def overview(self) -> ClusterOverview:
            return ClusterOverview(0, 0, 0, 0, 1, 4, 3, 12)

        def task_managers(self) -> list[Any]:
            return []

        def task_pools(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: Cluster(listed("ab", "clicks")))
    shown = CliRunner().invoke(cli, ["status"]).stdout
    assert re.search(r"^jobs: +1 running, 4 finished, 12 failed, 3 canceled$", shown, re.MULTILINE), shown


@pytest.mark.parametrize(
    ("target", "like", "remedy"),
    [
        ("dispatchr", "", "did you mean the process dispatcher?"),
        ("runtime.chekpoint", "; runtime.checkpoint is", "did you mean the logger runtime.checkpoint?"),
        ("x", "", "the processes are dispatcher, master; a logger is that of a package, such as runtime.checkpoint"),
    ],
)
def test_the_target_of_a_log_level_that_is_wrong_is_named(
    target: str, like: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        def set_log_level(self, logger: str, level: str) -> Process:
            return self

        def result(self) -> str:
            raise LogLevelError(f"no logger {target!r} is in process 7{like}")

    class Cluster(Jobs):
        def diagnostics(self) -> dict[str, Process]:
            return {"master": Process(), "dispatcher": Process()}

    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: Cluster())
    refused = CliRunner().invoke(cli, ["log-level", target, "DEBUG"]).exception
    assert isinstance(refused, ClusterError), refused
    assert str(refused) == f"{target!r} is neither a process of the cluster nor a logger in one"
    assert refused.remedy == remedy


def names_listed(monkeypatch: pytest.MonkeyPatch, *options: str) -> list[str]:
    now_ms = time.time_ns() // 1_000_000
    jobs = (
        replace(DETAILS, job_id=JobID("a" * 32), name="etl", start_ms=now_ms, submitter="ada"),
        replace(DETAILS, job_id=JobID("b" * 32), name="feed", start_ms=1000, status=JobStatus.RUNNING),
    )
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: Jobs(*jobs))
    done = CliRunner().invoke(cli, ["job", "list", *options])
    assert done.exit_code == ExitStatus.DONE, done.output
    return [line.split()[1] for line in done.stdout.splitlines()[1:]]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["etl", "feed"]),
        (("--state", "running", "--state", "FAILED"), ["feed"]),
        (("--name", "e*"), ["etl"]),
        (("--submitter", "ada"), ["etl"]),
        (("--since", "1h"), ["etl"]),
        (("--since", "2001-01-01"), ["etl"]),
        (("--sort", "name", "--reverse"), ["feed", "etl"]),
        (("--limit", "1"), ["etl"]),
        (("--name", "nothing"), []),
    ],
)
def test_jobs_are_listed_as_asked_for(
    options: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names_listed(monkeypatch, *options) == names


@pytest.mark.parametrize(
    "options", [("--state", "DONE"), ("--since", "yesterday"), ("--limit", "0"), ("--sort", "age")]
)
def test_what_cannot_be_listed_is_wrong_usage(options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["job", "list", *options])
    assert done.exit_code == ExitStatus.WRONG_USAGE
    assert f"Invalid value for '{options[0]}'" in done.stderr


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("", ["ab" + "0" * 30, "cd" + "0" * 30]),
        ("a", ["ab" + "0" * 30, "arrivals"]),
        ("la", ["latest"]),
        ("wi", []),
    ],
)
def test_ids_names_and_latest_are_completed(begun: str, offered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    client = Jobs(listed("ab", "arrivals"), listed("cd", "with spaces"))
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: client)
    context = click.Context(click.Command("info"))
    assert [item.value for item in complete_job(context, click.Argument(["reference"]), begun)] == offered


@pytest.mark.parametrize("words", ["job run", "job explain", "job check --from s"])
@pytest.mark.parametrize(
    ("typed", "args"),
    [
        ("--out x --name etl -D k=v --json -h", ("--out", "x", "--name", "etl", "-D", "k=v", "--json", "-h")),
        ("-- --out x", ("--out", "x")),
        ("-- -- a", ("--", "a")),
        ("a -- b", ("a", "--", "b")),
        ("", ()),
    ],
)
def test_everything_after_the_file_belongs_to_the_job(words: str, typed: str, args: tuple[str, ...]) -> None:
    group, name, *options = words.split()
    context = leaves(cli)[f"{group} {name}"].make_context(name, [*options, "-D", "a=b", "job.py", *typed.split()])
    assert (context.params["file"], context.params["args"]) == (Path("job.py"), args)
    assert (context.params["overrides"], context.params["as_json"]) == (("a=b",), False)


def job_run_parameters(*words: str) -> dict[str, Any]:
    """What `job run` makes of its options."""
    return leaves(cli)["job run"].make_context("run", [*words, "job.py"]).params


def test_py_files_are_files_and_directories_by_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.zip", "c,d.py"):
        Path(name).touch()
    Path("lib").mkdir()
    given = job_run_parameters("--py-files", "a.py,b.zip,lib/", "--py-files", "c,d.py")["py_files"]
    assert given == (Path("a.py"), Path("b.zip"), Path("lib"), Path("c,d.py"))
    with pytest.raises(click.BadParameter, match=r"there is no file or directory 'nosuch\.py'"):
        job_run_parameters("--py-files", "a.py,nosuch.py")


def test_variables_of_the_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OURS", "of the caller")
    monkeypatch.delenv("NOBODYS", raising=False)
    given = job_run_parameters("--env", "A=1=2", "--env", "EMPTY=", "--env", "OURS", "--env", "NOBODYS")["environment"]
    assert given == {"A": "1=2", "EMPTY": "", "OURS": "of the caller"}
    assert capsys.readouterr().err == "warning: NOBODYS is not set here, so --env NOBODYS has no effect\n"
    with pytest.raises(click.BadParameter, match="'1A' is not a valid name of an environment variable"):
        job_run_parameters("--env", "1A=secret")


def test_the_current_directory_is_shipped_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (file := Path("job.py")).write_text("print(1)")
    (scratch := tmp_path / ".venv").mkdir()

    def shipped(
        *hosts: str, given: Path | None = None, most: int = 1 << 20, here: bool = True
    ) -> tuple[bool, list[Any]]:
        client = cast(Any, SimpleNamespace(worker_hosts=lambda: hosts, sees_files=here))
        place, files = job_commands._working_directory(client, file, given, scratch, most)
        return place.caller is not None, files

    packed = (scratch / "working-directory.zip", ArtifactRole.WORKING_DIRECTORY)
    assert shipped("127.0.0.1", "localhost") == (True, [])
    assert shipped("127.0.0.1", here=False) == (True, [packed]), "by HTTP the address is another machine's own"
    (scratch / "working-directory.zip").unlink()
    assert shipped("127.0.0.1", "192.0.2.1") == (True, [packed])  # a worker that sees the original uses that
    assert shipped("127.0.0.1", given=tmp_path) == (False, [packed])
    assert shipped("192.0.2.1", most=1) == (True, [])
    assert "warning: the current directory is not copied to other machines: " in capsys.readouterr().err


def test_whether_a_host_is_this_machine() -> None:
    assert is_this_machine("localhost")
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("192.0.2.1")  # of documentation, RFC 5737
    assert not is_this_machine("no.such.host.invalid")


def completed(words: str, *, home: Path) -> list[str]:
    """What the shell is told that could stand where the line ends."""
    parts = words.split(" ")
    done = run(_UNDERSTUDY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(parts) - 1), HOME=str(home))
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_options_and_keys_are_completed(tmp_path: Path) -> None:
    assert completed("understudy sta", home=tmp_path) == ["start", "start-master", "status"]
    assert "exceptions" in completed("understudy job ", home=tmp_path)
    assert completed("understudy job stop --dr", home=tmp_path) == ["--drain"]
    assert "env.log.format=" in completed("understudy start -D env.log.", home=tmp_path)
    assert completed("understudy job info ", home=tmp_path) == []  # no cluster runs there
    assert completed("understudy completion ", home=tmp_path) == list(SHELLS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_its_script(tmp_path: Path) -> None:
    program = tmp_path / "understudy"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m runtime.cluster "$@"\n')
    program.chmod(0o755)
    asked = (
        "source <(understudy completion bash) && COMP_WORDS=(understudy job ex) COMP_CWORD=2 && "
        '_understudy_completion understudy && echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False, env=environ, cwd=ROOT)
    assert done.stdout.split() == ["exceptions", "explain"], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    assert "_UNDERSTUDY_COMPLETE" in CliRunner().invoke(cli, ["completion", shell]).output


def test_what_is_json_is_nothing_else(tmp_path: Path) -> None:
    done = run("doctor", "--json", "-D", f"cluster.runtime-dir={tmp_path}", "-D", "rest.port=0")
    json.loads(done.stdout)


# ------------------------------------------------------------------------ settings of a job by flags


def submitted_by(monkeypatch: pytest.MonkeyPatch, script: Path, *words: str) -> tuple[Result, list[JobGraph]]:
    """Run `job run` with a client that takes every job; return the graphs that it got."""
    graphs: list[JobGraph] = []

    def submit(graph: JobGraph, file: Path, *, libraries: object) -> JobID:
        graphs.append(graph)
        return graph.job_id

    client = SimpleNamespace(submit=submit, web_page=lambda job_id: "", sees_files=True, worker_hosts=list)
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: nullcontext(client))
    return CliRunner().invoke(cli, ["job", "run", "--detach", *words, str(script)]), graphs


def test_flags_of_a_job_are_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("pass")
    flags = ("--task-memory", "4096", "--task-cpus", "1.5", "--autoscale", "2..8")
    done, (graph,) = submitted_by(monkeypatch, script, "-D", "job.task.memory=1gb", *flags)
    assert done.exit_code == 0, done.output
    asked = queues.Asked.of(graph.configuration)
    assert (asked.memory_mb, asked.cpus) == (4096, Decimal("1.5"))
    assert graph.configuration["autoscaling.partitions"] == "2..8"
    done, (graph,) = submitted_by(monkeypatch, script)
    assert (done.exit_code, graph.configuration) == (0, {})


@pytest.mark.parametrize("words", [("--task-cpus", "many"), ("--task-cpus", "0"), ("--task-memory", "0")])
def test_a_wrong_flag_of_a_job_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text("pass")
    done, graphs = submitted_by(monkeypatch, script, *words)
    assert done.exit_code != 0
    assert words[0] in done.output + str(done.exception)
    assert graphs == []


def test_an_application_has_no_settings_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("pass")
    done, graphs = submitted_by(monkeypatch, script, "--target", "application", "--task-cpus", "2")
    assert isinstance(done.exception, ClusterError)
    assert "--task-memory, --task-cpus and --own-driver are options of a job, not of an" in str(done.exception)
    assert graphs == []
