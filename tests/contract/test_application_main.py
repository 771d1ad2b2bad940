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
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ApplicationID
from runtime.protocol.archived_execution_graph import JobDetails

Start = Callable[[str], MainProcess]


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
    def run(text: str) -> MainProcess:
        program = tmp_path / "app.py"
        program.write_text(text)
        deployed = files.deploy(ApplicationID.random(), "app", program, ("x",), ())
        gateway = ApplicationGateway(NoJobs(), ExecuteIds("a"), (), lambda ask: ask())  # type: ignore[arg-type]
        return MainProcess(
            Configuration.from_dict({"taskmanager.task.memory.limit": "256 mb"}), files, deployed, gateway
        )

    return run


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
