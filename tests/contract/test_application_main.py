"""The process of an application's main(), without a cluster: what it sees, and how its end is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.application.client import ApplicationGateway
from runtime.application.program import ApplicationFiles
from runtime.application.state import ExecuteIds, MainEnd, MainOutcome
from runtime.cluster.application_bootstrap import MainProcess
from runtime.cluster.deployment import MainOutput
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ApplicationID
from runtime.job_file import ship_directory
from runtime.protocol.archived_execution_graph import JobDetails

Start = Callable[..., MainProcess]


class NoJobs:
    """A cluster that has none."""

    def list_jobs(self) -> list[JobDetails]:
        return []


@pytest.fixture
def files(tmp_path: Path) -> ApplicationFiles:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    return ApplicationFiles(directory)


@pytest.fixture
def start(files: ApplicationFiles, tmp_path: Path) -> Start:
    def run(text: str, working_dir: Path | None = None) -> MainProcess:
        program = (working_dir or tmp_path) / "app.py"
        program.write_text(text)
        place, packed = None, None
        if working_dir is not None:
            scratch = tmp_path / "scratch"
            scratch.mkdir(exist_ok=True)
            place, (packed, _) = ship_directory(working_dir, program, scratch, 1 << 20)
        files.deploy(ApplicationID.random(), "app", program, ("x",), (), None, place, packed)
        return run_of(files)

    return run


def run_of(files: ApplicationFiles) -> MainProcess:
    """One more run of the program that was deployed."""
    gateway = ApplicationGateway(NoJobs(), ExecuteIds("a"), (), lambda ask: ask())  # type: ignore[arg-type]
    configuration = Configuration.from_dict({"taskmanager.task.memory.limit": "256 mb"})
    return MainProcess(configuration, files, files.program(), gateway)


def end_of(main: MainProcess) -> MainEnd:
    """Serve it until it has ended; the test's own time limit is the deadline."""
    while (end := main.serve(1.0)) is None:
        pass
    return end


def test_main_has_its_arguments_its_jobs_and_no_secret(start: Start, files: ApplicationFiles) -> None:
    text = """\
import os, sys
from runtime.notebook import connect
if __name__ == "__main__":
    print(sys.argv[1:], connect().jobs(), os.getcwd(), [name for name in os.environ if "SECRET" in name])
"""
    assert end_of(start(text)) == MainEnd(MainOutcome.FINISHED)
    assert files.stdout.read_text() == f"['x'] no jobs {files.work} []\n"


def test_each_run_of_main_has_a_copy_of_the_directory_that_was_shipped(
    start: Start, files: ApplicationFiles, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.txt").write_text("here")
    (project / "helpers.py").write_text("NAME = 'beside'")
    text = """\
import os, pathlib, sys
import helpers
print(sys.argv[0], os.path.relpath(__file__), pathlib.Path("data.txt").read_text(), helpers.NAME)
pathlib.Path("data.txt").write_text("changed")
"""
    for run in (lambda: start(text, project), lambda: run_of(files)):
        assert end_of(run()) == MainEnd(MainOutcome.FINISHED), files.stderr.read_text()
        assert files.stdout.read_text() == "app.py app.py here beside\n"
    assert (project / "data.txt").read_text() == "here"


def test_output_is_shown_while_main_runs_and_each_run_apart(start: Start, files: ApplicationFiles) -> None:
    pieces: list[tuple[int, str, bytes]] = []
    output = MainOutput(files, lambda piece: pieces.append((piece.attempt, piece.name, piece.data)))
    output.poll()
    assert pieces == [], "it has not begun"
    text = "import sys, threading\nprint('one')\nprint('half', end='', file=sys.stderr, flush=True)"
    main = start(f"{text}\nthreading.Event().wait()")
    while len(pieces) < 2:
        assert main.serve(0.05) is None, "it still runs"
        output.poll()
    assert sorted(pieces) == [(0, "stderr", b"half"), (0, "stdout", b"one\n")]
    main.stop()
    end_of(start("print('one')"))
    output.poll()
    assert pieces[2:] == [(1, "stdout", b"one\n")], "by another run, which has written the same"
    end_of(start("raise ValueError('no')"))
    output.poll()
    assert output.has_shown("ValueError: no")
    assert not output.has_shown("KeyError")


@pytest.mark.parametrize(
    ("text", "outcome", "error", "traceback"),
    [
        (
            "def f():\n    raise ValueError('no')\nf()",
            MainOutcome.FAILED,
            "ValueError: no",
            'File "app.py", line 2, in f',
        ),
        ("raise SystemExit(3)", MainOutcome.FAILED, "app.py ended with exit status 3", ""),
        ("import os\nos.kill(os.getpid(), 9)", MainOutcome.LOST, "the process of main() ended by signal 9", ""),
        ("bytearray(1 << 30)", MainOutcome.FAILED, "the task has reached taskmanager.task.memory.limit", "MemoryError"),
    ],
)
def test_how_main_ended_is_told(start: Start, text: str, outcome: MainOutcome, error: str, traceback: str) -> None:
    end = end_of(start(text))
    assert (end.outcome, end.error.startswith(error)) == (outcome, True), end
    assert traceback in end.traceback
    assert "runtime/application" not in end.traceback


def test_the_exit_status_of_main_is_told(start: Start, files: ApplicationFiles) -> None:
    assert end_of(start("raise SystemExit(3)")).exit_status == 3
    assert end_of(start("import os\nos._exit(4)")).exit_status == 4
    assert end_of(start("raise ValueError('no')")).exit_status is None
    assert end_of(start("raise SystemExit('no input')")).exit_status == 1
    assert files.stderr.read_text() == "no input\n"


def test_main_can_be_ended_while_it_runs(start: Start, files: ApplicationFiles) -> None:
    main = start("import threading\nprint('began')\nthreading.Event().wait()")
    while not files.stdout.read_text():
        assert main.serve(0.05) is None
    assert main.stop().outcome is MainOutcome.LOST
