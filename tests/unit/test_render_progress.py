from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from runtime.cluster.views import JobView, LiveProgress, PlainProgress, VertexView, bar_of, job_progress

READ = VertexView("a", "read", "CREATED")
JOB = JobView("0" * 32, "flights", "CREATED", 1000, vertices=(READ,))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(*jobs: JobView) -> list[str]:
    out = io.StringIO()
    with PlainProgress(out) as progress:
        for job in jobs:
            progress.update(job)
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in out.getvalue().splitlines()]


def with_vertex(job: JobView, **changes: object) -> JobView:
    return replace(job, vertices=(replace(job.vertices[0], **changes),))  # type: ignore[arg-type]


def test_one_line_for_each_change() -> None:
    running = with_vertex(replace(JOB, state="RUNNING"), state="RUNNING", started_ms=1500, tasks_total=8)
    more = with_vertex(running, tasks_completed=4)
    finished = with_vertex(
        replace(running, state="FINISHED", ended_ms=5200), state="FINISHED", ended_ms=5000, tasks_completed=8
    )
    assert lines_of(JOB, JOB, running, running, more, finished, finished) == [
        f"job {'0' * 32} (flights): CREATED",
        "vertex read: CREATED",
        f"job {'0' * 32} (flights): RUNNING",
        "vertex read: RUNNING",
        "vertex read: FINISHED (after 3.5 s, 8/8 tasks)",
        f"job {'0' * 32} (flights): FINISHED after 4.2 s",
    ]


def test_restarts_are_told_even_when_the_state_is_the_same() -> None:
    running = with_vertex(replace(JOB, state="RUNNING"), state="RUNNING")
    again = with_vertex(replace(running, restarts=1), attempt=1)
    assert lines_of(running, again)[2:] == [
        f"job {'0' * 32} (flights): RUNNING",
        "vertex read: RUNNING (attempt 2)",
    ]


def test_waiting_is_told_once() -> None:
    waiting = replace(JOB, state="RUNNING", waiting_for="2 slots", vertices=())
    assert lines_of(waiting, waiting, replace(waiting, waiting_for=""))[1:] == [f"job {'0' * 32} waits for 2 slots"]


def test_names_cannot_command_the_terminal() -> None:
    assert lines_of(replace(JOB, name="\x1b[2J", vertices=())) == [f"job {'0' * 32} (\\x1b[2J): CREATED"]


@pytest.mark.parametrize(
    ("vertex", "bar"),
    [
        (READ, (1, 0)),
        (replace(READ, state="RUNNING"), (None, 0)),
        (replace(READ, state="RUNNING", tasks_total=8, tasks_completed=3), (8, 3)),
        (replace(READ, state="RUNNING", tasks_total=8, tasks_completed=9), (8, 8)),
        (replace(READ, state="FINISHED"), (1, 1)),
        (replace(READ, state="FAILED", tasks_total=8, tasks_completed=3), (8, 3)),
    ],
)
def test_bars(vertex: VertexView, bar: tuple[int | None, int]) -> None:
    assert bar_of(vertex) == bar


def test_bars_are_for_terminals_only() -> None:
    xterm = {"TERM": "xterm"}
    assert isinstance(job_progress(Terminal(), Terminal(), xterm), LiveProgress)
    assert isinstance(job_progress(Terminal(), io.StringIO(), xterm), PlainProgress)
    assert isinstance(job_progress(io.StringIO(), Terminal(), xterm), PlainProgress)
    assert isinstance(job_progress(Terminal(), Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}), PlainProgress)


def test_live_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    terminal = Terminal()
    with LiveProgress(terminal) as progress:
        progress.update(JOB)
        running = with_vertex(replace(JOB, state="RUNNING"), name="[red]read", state="RUNNING", tasks_total=8)
        progress.update(running)
        progress.update(with_vertex(replace(running, restarts=1), attempt=1, tasks_total=0))
        progress.update(
            with_vertex(
                replace(running, state="FINISHED", ended_ms=5200),
                state="FINISHED",
                started_ms=1500,
                ended_ms=5000,
                tasks_completed=8,
            )
        )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    last = [line.strip() for line in plain.splitlines() if "read" in line][-1]
    assert last.startswith("[red]read")
    assert last.endswith("8/8 FINISHED 3.5 s")
    assert "flights" in plain
    assert terminal.getvalue().count("\x1b[?25h") == 1, "the cursor is back"


def test_hidden_bars_come_back_below_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    with LiveProgress(terminal) as progress:
        progress.update(JOB)
        progress.hide()
        progress.hide()
        terminal.write("output of the job\n")
        progress.update(JOB)
    before, after = terminal.getvalue().split("output of the job\n")
    assert before.endswith("\x1b[2K"), "the bars are erased"
    assert "\x1b[1A" not in after[: after.index("flights")], "no line above is drawn over"


def test_in_a_pipe_only_what_a_job_waits_for_is_told() -> None:
    waiting = replace(JOB, state="RUNNING", waiting_for="2 slots")
    out = io.StringIO()
    with PlainProgress(out, states=False) as progress:
        for job in (JOB, waiting, waiting, waiting, replace(JOB, state="FINISHED", ended_ms=5200)):
            progress.update(job)
    assert re.fullmatch(r"\d\d:\d\d:\d\d job 0{32} waits for 2 slots\n", out.getvalue())
