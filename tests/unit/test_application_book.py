"""What is to be done for an application, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.application.program import ApplicationFiles
from runtime.application.state import (
    MAX_LOSSES,
    ApplicationResult,
    ApplicationState,
    CancelJobs,
    ExecuteIds,
    MainEnd,
    MainOutcome,
    RunMain,
    StopMain,
    Wait,
)
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ApplicationID, JobID
from runtime.jobgraph.job_graph import ArtifactRole
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.execution_state import JobStatus

A, B = JobID("a" * 32), JobID("b" * 32)
FINISHED = MainEnd(MainOutcome.FINISHED)
LOST = MainEnd(MainOutcome.LOST, "the process of main() ended by signal 9")


def ended(end: MainEnd) -> ApplicationState:
    """The book of an application whose main() has ended so."""
    book = ApplicationState()
    assert book.next({}) == RunMain()
    book.main_started()
    assert book.next({}) == Wait()
    book.main_ended(end)
    return book


def failed(job_id: JobID | None = None) -> MainEnd:
    return MainEnd(MainOutcome.FAILED, "ValueError: no", "Traceback", job_id)


@pytest.mark.parametrize(
    ("jobs", "status"),
    [
        ({}, ApplicationStatus.SUCCEEDED),
        ({A: JobStatus.FINISHED, B: JobStatus.FINISHED}, ApplicationStatus.SUCCEEDED),
        ({A: JobStatus.FINISHED, B: JobStatus.CANCELED}, ApplicationStatus.CANCELED),
        ({A: JobStatus.CANCELED, B: JobStatus.FAILED}, ApplicationStatus.FAILED),
    ],
)
def test_when_main_has_finished_its_jobs_say_how_the_application_ended(
    jobs: dict[JobID, JobStatus], status: ApplicationStatus
) -> None:
    result = ended(FINISHED).next(jobs)
    assert isinstance(result, ApplicationResult)
    assert result.status is status


@pytest.mark.parametrize("status", [status for status in JobStatus if not status.is_globally_terminal])
def test_jobs_that_go_on_are_waited_for_after_main_and_cancelled_when_it_failed(status: JobStatus) -> None:
    jobs = {A: JobStatus.FINISHED, B: status}
    assert ended(FINISHED).next(jobs) == Wait()
    assert ended(failed()).next(jobs) == CancelJobs((B,))


def test_a_failed_main_fails_the_application_with_its_error() -> None:
    result = ended(failed()).next({A: JobStatus.FINISHED, B: JobStatus.CANCELED})
    assert result == ApplicationResult(ApplicationStatus.FAILED, "ValueError: no", "Traceback")
    left = ended(MainEnd(MainOutcome.FAILED, "it has ended itself", exit_status=3)).next({})
    assert isinstance(left, ApplicationResult)
    assert left.exit_status == 3


def test_a_main_that_does_not_handle_the_cancellation_of_its_job_is_cancelled() -> None:
    for status, wanted in (
        (JobStatus.CANCELED, ApplicationStatus.CANCELED),
        (JobStatus.FAILED, ApplicationStatus.FAILED),
    ):
        result = ended(failed(A)).next({A: status})
        assert isinstance(result, ApplicationResult)
        assert result.status is wanted


def test_a_lost_main_is_run_again_while_its_jobs_go_on_but_not_for_ever() -> None:
    book = ended(LOST)
    for _ in range(MAX_LOSSES):
        assert book.next({A: JobStatus.RUNNING}) == RunMain()
        book.main_started()
        book.main_ended(LOST)
    assert book.next({A: JobStatus.RUNNING}) == CancelJobs((A,))
    result = book.next({A: JobStatus.CANCELED})
    assert result == ApplicationResult(ApplicationStatus.FAILED, LOST.error)


def test_a_cancelled_application_ends_main_then_its_jobs() -> None:
    book = ApplicationState()
    book.next({})
    book.main_started()
    book.cancel()
    assert book.next({}) == StopMain()
    book.main_ended(LOST)
    assert book.next({A: JobStatus.RUNNING}) == CancelJobs((A,))
    result = book.next({A: JobStatus.CANCELED})
    assert isinstance(result, ApplicationResult)
    assert result.status is ApplicationStatus.CANCELED


def test_an_application_that_is_cancelled_before_main_or_after_it_does_not_run_it() -> None:
    book = ApplicationState()
    book.cancel()
    assert isinstance(book.next({}), ApplicationResult)
    book = ended(FINISHED)
    book.cancel()
    assert book.next({A: JobStatus.RUNNING}) == CancelJobs((A,))


def test_the_nth_execute_of_a_name_has_the_same_id_in_every_run_of_main() -> None:
    first, again, other = ExecuteIds("x"), ExecuteIds("x"), ExecuteIds("y")
    ids = [first.next(name) for name in ("load", "load", "count")]
    assert len(set(ids)) == 3
    assert [again.next("count"), again.next("load"), again.next("load")] == [ids[2], *ids[:2]]
    assert other.next("load") not in ids


def test_a_program_is_copied_with_its_files_and_its_result_kept(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    main, module, wheel = tmp_path / "app.py", tmp_path / "app2" / "app.py", tmp_path / "x.whl"
    module.parent.mkdir()
    for path in (main, module, wheel):
        path.write_text(str(path))
    files = ApplicationFiles(directory)
    roles = [(module, ArtifactRole.PY_FILE), (wheel, ArtifactRole.PACKAGE)]
    program = files.deploy(ApplicationID.random(), "app", main, ("x",), roles)
    main.unlink()
    assert ApplicationFiles(directory).program() == program
    assert Path(program.file).read_text() == str(main)
    assert program.python_path == (str(Path(program.libraries[0][0]).parent),)
    assert files.result() is None
    assert not files.is_cancelled
    files.cancel()
    assert ApplicationFiles(directory).is_cancelled
    result = ApplicationResult(ApplicationStatus.FAILED, "ValueError: no", "Traceback")
    files.write_result(result)
    assert ApplicationFiles(directory).result() == result
    files.deploy(ApplicationID.random(), "app", module, (), ())
    assert files.result() is None
    assert not files.is_cancelled


def test_a_stored_program_and_all_its_files_survive_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    for name in ("app.py", "lib.py", "packed.zip"):
        (tmp_path / name).write_text(name)
    synced = set[int]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    libraries = [(tmp_path / "lib.py", ArtifactRole.PY_FILE)]
    packed = tmp_path / "packed.zip"
    ApplicationFiles(directory).deploy(ApplicationID.random(), "app", tmp_path / "app.py", (), libraries, packed=packed)
    stored = [path for path in directory.application.rglob("*") if path.name != "work"]
    assert {path.name for path in stored} >= {"program", "app.py", "lib.py", "working-directory.zip"}
    assert [path for path in stored if path.stat().st_ino not in synced] == []
    assert [path for path in stored if path.stat().st_mode & 0o077] == []
