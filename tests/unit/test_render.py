from __future__ import annotations

import dataclasses
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from conf import SecretStr
from conf.errors import ConfigurationError
from runtime.cluster.output import (
    SCHEMA,
    clean,
    format_duration,
    format_moment,
    format_size,
    is_fancy,
    print_document,
    print_error,
    print_table,
    to_plain,
    width,
)
from runtime.cluster.views import (
    JobView,
    TaskManagerRow,
    VertexView,
    print_ended_job,
    print_job,
    print_jobs,
    print_task_managers,
)
from runtime.protocol.execution_state import ErrorInfo, FailureKind
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)

START = 1_700_000_000_000
JOB = JobView(
    id="0" * 32,
    name="flights",
    state="FAILED",
    started_ms=START,
    ended_ms=START + 4200,
    restarts=1,
    vertices=(
        VertexView("a", "read", "FINISHED", 0, START, START + 1500, 8, 8, "tm-0"),
        VertexView("b", "join", "FAILED", 1, START + 1500, START + 4000, 20, 3, "tm-0"),
        VertexView("c", "write", "CANCELED"),
    ),
    failure=ErrorInfo(
        FailureKind.USER_CODE, "ZeroDivisionError", "division by zero", 'Traceback:\n  File "x.py"\n\tboom', "join"
    ),
    failures={"user-code": 1, "task-process-lost": 1},
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (350, "350 ms"),
        (4200, "4.2 s"),
        (59_940, "59.9 s"),
        (59_960, "1 min"),
        (192_000, "3 min 12 s"),
        (7_500_000, "2 h 5 min"),
        (3_600_000, "1 h"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations(milliseconds: float, text: str) -> None:
    assert format_duration(milliseconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KB"), (1536, "1.5 KB"), ((1 << 20) - 1, "1 MB"), (1 << 50, "1024 TB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_size(size) == text


def test_texts_of_others_are_harmless() -> None:
    assert clean("a\x1b[31m\nb\r\u202e\ud800é") == "a\\x1b[31m\\nb\\r\\u202e\\ud800é"
    assert width("aé漢e\u0301") == 5


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    class Colour(Enum):
        RED = "red"

    @dataclass(frozen=True, slots=True)
    class Thing:
        path: Path
        colours: tuple[Colour, ...]
        secret: SecretStr
        table: dict[Colour, float | None]

    thing = Thing(Path("/x"), (Colour.RED,), SecretStr("hunter2"), {Colour.RED: None})
    plain = {"schema": SCHEMA, "path": "/x", "colours": ["red"], "secret": "******", "table": {"red": None}}
    print_document([thing])
    assert json.loads(capsys.readouterr().out) == [plain]
    print_document(thing, indent=None)
    assert capsys.readouterr().out == json.dumps(plain) + "\n"
    print_document([])
    assert capsys.readouterr().out == "[]\n"
    with pytest.raises(TypeError):
        to_plain(object())


def test_plain_table_is_aligned_and_not_cut() -> None:
    out = io.StringIO()
    print_table(("ID", "NAME", "SLOTS"), [("a" * 200, "漢", "2"), ("b", "[red]x\n", "10")], out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "ID".ljust(200) + "  NAME      SLOTS"
    assert lines[1] == "a" * 200 + "  漢            2"
    assert lines[2] == "b".ljust(200) + "  [red]x\\n     10"


def test_table_on_a_terminal(terminal: Terminal) -> None:
    print_table(("ID", "STATE"), [("[bold]x", "FAILED")], terminal)
    assert "[bold]x" in terminal.getvalue()
    assert "\x1b[1;31mFAILED" in terminal.getvalue()


def test_colours_are_for_terminals_that_want_them(terminal: Terminal) -> None:
    assert is_fancy(terminal)
    assert is_fancy(terminal, {"TERM": "xterm", "NO_COLOR": ""})
    assert not is_fancy(terminal, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not is_fancy(terminal, {"TERM": "dumb"})
    assert not is_fancy(io.StringIO(), {"TERM": "xterm"})


def test_job_list() -> None:
    out = io.StringIO()
    running = JobView("1" * 32, "a\nb", "RUNNING", START, kind="script, streaming", submitter="ada")
    print_jobs([dataclasses.replace(JOB, kind="pipeline"), running], out, now_ms=START + 60_000)
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["ID", "NAME", "KIND", "SUBMITTER", "STATE", "STARTED", "DURATION"]
    assert lines[1] == f"{'0' * 32}  flights  pipeline           -          FAILED   {format_moment(START)}  4.2 s"
    assert lines[2] == f"{'1' * 32}  a\\nb     script, streaming  ada        RUNNING  {format_moment(START)}  1 min"
    out = io.StringIO()
    print_jobs([], out)
    assert out.getvalue() == "no jobs\n"


def test_job_page() -> None:
    out = io.StringIO()
    print_job(JOB, out)
    text = out.getvalue()
    assert "State:     FAILED\n" in text
    assert "Restarts:  1\n" in text
    assert "Failures:  1 user-code, 1 task-process-lost\n" in text
    assert ["VERTEX", "STATE", "ATTEMPT", "DURATION", "TASKS", "TASKEXECUTOR"] in map(str.split, text.splitlines())
    assert "read    FINISHED        1  1.5 s       8/8  tm-0" in text
    assert "write   CANCELED        1" in text
    assert "Failure in task 'join': ZeroDivisionError: division by zero\nTraceback:" in text


def test_job_page_says_what_the_job_waits_for() -> None:
    out = io.StringIO()
    print_job(JobView("1" * 32, "a", "RUNNING", START, waiting_for="2 slots"), out, now_ms=START)
    assert "State:     RUNNING (waits for 2 slots)\n" in out.getvalue()
    assert "Ended" not in out.getvalue()


def test_job_page_shows_streaming_queries() -> None:
    queries = (StreamingQuery("id-1", "run-1", "counts", 7), StreamingQuery("id-2", "run-2", "", None))
    out = io.StringIO()
    print_job(JobView("1" * 32, "a", "RUNNING", START, queries=queries), out, now_ms=START)
    lines = [line.split() for line in out.getvalue().splitlines()[-3:]]
    assert lines[0] == ["STREAMING", "QUERY", "ID", "RUN", "ID", "BATCH"]
    assert lines[1:] == [["counts", "id-1", "run-1", "7"], ["-", "id-2", "run-2", "-"]]


def test_job_page_shows_how_its_queries_keep_up() -> None:
    progress = QueryProgress(7, "t", 1500, 30, 2.5, 20.0, 9, 4096, (SourceProgress("Kafka", 30, 2.5, 20.0, 12),))
    pressure = BackPressure(BackPressureLevel.HIGH, 1.5)
    queries = (
        StreamingQuery("id-1", "run-1", "counts", 7, 1000, progress, pressure),
        StreamingQuery("id-2", "run-2", "", 7, progress=dataclasses.replace(progress, sources=())),
        StreamingQuery("id-3", "run-3", "new", None),
    )
    out = io.StringIO()
    print_job(JobView("1" * 32, "a", "RUNNING", START, queries=queries), out, now_ms=START)
    head, *rows = (re.split(r" {2,}|\t", line.strip()) for line in out.getvalue().splitlines()[-3:])
    assert head == ["LAST BATCH OF", "ROWS", "ROWS/S IN", "ROWS/S DONE", "LAG", "STATE", "TOOK", "BACK PRESSURE"]
    assert rows == [
        ["counts", "30", "2.5", "20.0", "12", "9 rows, 4 KB", "1.5 s of 1.0 s", "HIGH"],
        ["id-2", "30", "2.5", "20.0", "-", "9 rows, 4 KB", "1.5 s", "-"],
    ]


def test_failed_job() -> None:
    out = io.StringIO()
    print_ended_job(JOB, out)
    assert out.getvalue().splitlines() == [
        "Traceback:",
        '  File "x.py"',
        "    boom",
        f"error: job {'0' * 32} (flights) FAILED: ZeroDivisionError: division by zero",
        f"remedy: `understudy job logs {'0' * 32}` shows its output",
    ]


def test_a_failure_of_java_is_one_short_line() -> None:
    stack = "".join(f"\n\tat org.apache.spark.Frame.run$1(Frame.scala:{number})" for number in range(100))
    message = f"An error occurred while calling o1.count.\n: java.io.IOException: no such file{stack}"
    out = io.StringIO()
    traceback = f"Traceback:\n  at the user's own line\nPy4JJavaError: {message}\n\t... 31 more\n"
    failure = ErrorInfo(FailureKind.USER_CODE, "Py4JJavaError", message, traceback)
    print_ended_job(dataclasses.replace(JOB, state="FAILED", failure=failure), out)
    assert out.getvalue().splitlines() == [
        "Traceback:",
        "  at the user's own line",
        "Py4JJavaError: An error occurred while calling o1.count.",
        ": java.io.IOException: no such file",
        f"error: job {'0' * 32} (flights) FAILED: java.io.IOException: no such file",
        f"remedy: `understudy job exceptions {'0' * 32}` shows all of the failure",
    ]


def test_a_job_that_failed_by_the_clusters_fault_has_the_clusters_remedy() -> None:
    for kind in (FailureKind.SPARK_LOST, FailureKind.TASK_EXECUTOR_LOST, FailureKind.NO_RESOURCE):
        out = io.StringIO()
        failure = ErrorInfo(kind, "SparkDriverLostException", "it has ended")
        print_ended_job(dataclasses.replace(JOB, failure=failure), out)
        assert out.getvalue().splitlines()[-1] == f"remedy: {kind.remedy}"
        assert "understudy status" in kind.remedy
    assert FailureKind.USER_CODE.remedy == ""


def test_errors() -> None:
    out = io.StringIO()
    print_error(ConfigurationError("two\nlines", "do this"), stream=out)
    print_error(ValueError(), stream=out)
    print_error("plain", "and so", out)
    assert out.getvalue() == "error: two lines\nremedy: do this\nerror: ValueError\nerror: plain\nremedy: and so\n"


def test_errors_on_a_terminal(terminal: Terminal) -> None:
    print_error("a \x1b[2J b", stream=terminal)
    assert terminal.getvalue() == "\x1b[1;31merror:\x1b[0m a \\x1b[2J b\n"


def test_task_managers() -> None:
    out = io.StringIO()
    row = TaskManagerRow("tm-0", "akka.tcp://x@h:1/user/tm", 2, 1, "local[4]", 1 << 30, 12, 34, START)
    print_task_managers([row], out, now_ms=START + 400)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("ID    SLOTS  FREE     SPARK  MEMORY  PID  SPARK PID  HEARD OF")
    assert lines[1] == "tm-0      2     1  local[4]    1 GB   12         34  400 ms ago  akka.tcp://x@h:1/user/tm"
    assert len(lines) == 2
    out = io.StringIO()
    rows = [dataclasses.replace(row, user="ada"), dataclasses.replace(row, id="tm-1")]
    print_task_managers(rows, out, now_ms=START)
    cells = [line.split() for line in out.getvalue().splitlines()]
    assert cells[0][:4] == ["ID", "SLOTS", "FREE", "USER"]
    assert [line[:4] for line in cells[1:]] == [["tm-0", "2", "1", "ada"], ["tm-1", "2", "1", "-"]]
    out = io.StringIO()
    loss = "2026-11-23 03:20:11 UTC: the Spark driver (process 7) has ended: its SparkContext has been stopped"
    print_task_managers([dataclasses.replace(row, spark_loss=loss)], out)
    assert out.getvalue().splitlines()[-1] == f"tm-0: its Spark driver was replaced; {loss}"
    out = io.StringIO()
    print_task_managers([], out)
    assert out.getvalue() == "no TaskExecutors\n"


def test_heavy_modules_are_loaded_late() -> None:
    code = (
        "import sys, runtime.cluster.views, runtime.cluster.preflight, runtime.environment.directory;"
        "print([m for m in ('rich', 'yaml', 'psutil', 'difflib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
