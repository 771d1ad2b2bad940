"""How much of a log is kept, how it is read piece by piece, and which of its copies is shown."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import RecipientUnreachable
from runtime.cluster.command_line import Interrupted
from runtime.cluster.logs import CHUNKS_AT_ONCE, JobScreen, LogFollower, OutputPiece
from runtime.cluster.views import JobView
from runtime.dispatcher.endpoint import is_whole, merged_logs
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.job_logs import CHUNK, KeptLog, LogChunk, bounded, read_chunk, rest_of
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.errors import NoSuchLogError
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.messages import TaskLog
from runtime.taskexecutor.logs import AttemptDirectories

JOB = JobID("a" * 32)


def _kept(path: Path, limit: int, start: int = 0) -> tuple[bytes, int]:
    with bounded(path, limit, start) as (file, size, kept):
        content = file.read()
    assert len(content) == kept
    return content, size


def test_a_short_log_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"one\ntwo\n")
    assert _kept(path, 8) == (b"one\ntwo\n", 8)
    assert _kept(path, 8, 4) == (b"two\n", 4)
    assert _kept(path, 8, 100) == (b"one\ntwo\n", 8), "a file that was rotated is read from its beginning"


def test_of_a_long_log_whole_lines_of_head_and_tail_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    lines = [f"line {number}\n".encode() for number in range(10_000)]
    path.write_bytes(b"".join(lines))
    content, size = _kept(path, 4096)
    assert size == path.stat().st_size
    assert len(content) <= 4096
    head, _, rest = content.partition(b"\n---")
    notice, _, tail = rest.partition(b"\n")
    kept_head, kept_tail = head.splitlines(keepends=True), tail.splitlines(keepends=True)
    assert kept_head == lines[: len(kept_head)]
    assert kept_tail == lines[-len(kept_tail) :]
    left_out = sum(map(len, lines[len(kept_head) : -len(kept_tail)]))
    assert f" {left_out:,} of the {size:,} bytes".encode() in notice
    assert len(kept_head) > 100 < len(kept_tail)


@given(content=st.binary(max_size=40_000), limit=st.integers(400, 50_000), start=st.integers(0, 50_000))
def test_no_more_than_the_limit_is_kept(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, limit: int, start: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "stdout"
    path.write_bytes(content)
    kept, size = _kept(path, limit, start)
    wanted = content[start:] if start <= len(content) else content
    assert size == len(wanted)
    assert len(kept) <= limit
    assert (kept == wanted) == (len(wanted) <= limit)


def test_a_log_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    assert read_chunk(path, 7) == LogChunk(b"", 0), "it is not there yet"
    path.write_bytes(b"x" * (CHUNK + 5))
    assert len(read_chunk(path, 0).data) == CHUNK
    assert read_chunk(path, CHUNK) == LogChunk(b"xxxxx", CHUNK + 5)
    assert read_chunk(path, CHUNK + 5).data == b""
    assert read_chunk(path, 1 << 60).data == b""


@pytest.mark.parametrize(
    ("name", "offset"), [("attempt.json", 0), ("../x", 0), ("/etc/passwd", 0), ("stdout", -1), ("taskmanager-0.out", 0)]
)
def test_nothing_but_logs_is_served(tmp_path: Path, name: str, offset: int) -> None:
    with pytest.raises(NoSuchLogError):
        AttemptDirectories(tmp_path).read(JOB, ExecutionAttemptID.random(), name, offset)


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    attempt = ExecutionAttemptID.random()
    directory = tmp_path / JOB / attempt
    directory.mkdir(parents=True)
    (tmp_path / "taskmanager-0-spark.out").write_text("a token")
    (directory / "stdout").symlink_to(tmp_path / "taskmanager-0-spark.out")
    with pytest.raises(OSError, match="symbolic links"):
        AttemptDirectories(tmp_path).read(JOB, attempt, "stdout", 0)
    with pytest.raises(OSError, match="symbolic links"), bounded(directory / "stdout", 1000):
        pass


def test_the_directory_of_a_job_that_runs_and_writes_nothing_stays(tmp_path: Path) -> None:
    for job in (JOB, JobID("b" * 32)):
        (tmp_path / job / ExecutionAttemptID.random()).mkdir(parents=True)
    AttemptDirectories(tmp_path).expire(-1, {JOB})
    assert [path.name for path in tmp_path.iterdir()] == [JOB]


def test_a_directory_that_cannot_be_removed_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        (tmp_path / (name * 32)).mkdir()

    def remove(path: Path) -> None:
        if path.name == "b" * 32:
            raise PermissionError(13, "Permission denied", str(path))
        path.rmdir()

    monkeypatch.setattr(shutil, "rmtree", remove)
    directories = AttemptDirectories(tmp_path)
    for _ in range(2):
        directories.expire(-1)
    assert [path.name for path in tmp_path.iterdir()] == ["b" * 32]
    assert caplog.text.count("could not be removed, remove it by hand") == 1


def test_a_link_that_a_job_left_keeps_no_old_directory(tmp_path: Path) -> None:
    for job in (JOB, JobID("b" * 32)):
        work = tmp_path / job / ExecutionAttemptID.random()
        work.mkdir(parents=True)
        (work / "link").symlink_to("nowhere")
    AttemptDirectories(tmp_path).expire(3600)
    assert len(list(tmp_path.iterdir())) == 2, "they are new"
    AttemptDirectories(tmp_path).expire(-1)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------ which copy is shown


def _attempt(number: int, state: ExecutionState, *logs: KeptLog) -> AttemptInfo:
    stamps = {"CREATED": number, "DEPLOYING": number + 1, state.value: number + 2}
    return AttemptInfo(ExecutionAttemptID(f"{number:032x}"), number, state, "tm-0", stamps, None, None, logs)


def _job(status: JobStatus, *attempts: AttemptInfo) -> ArchivedExecutionGraph:
    vertex = JobVertexID.of("job", "task")
    task = TaskInfo(vertex, "task", (vertex,), attempts, "")
    return ArchivedExecutionGraph(
        JOB, "job", JobKind.SCRIPT, status, {status.value: 9}, (task,), (), None, (), 0, "none"
    )


def _whole(name: str, size: int = 3) -> KeptLog:
    return KeptLog(name, size, size, f"blob of {name}")


def test_a_job_is_whole_when_all_that_began_is_kept() -> None:
    kept = _attempt(0, ExecutionState.FINISHED, _whole("stdout"), KeptLog("stderr", 0, 0, ""))
    never = AttemptInfo(ExecutionAttemptID.random(), 1, ExecutionState.CANCELED, "", {"CREATED": 1}, None, None)
    assert is_whole(_job(JobStatus.FINISHED, kept, never))
    assert not is_whole(_job(JobStatus.FINISHED, kept, _attempt(1, ExecutionState.FAILED)))
    cut = _attempt(1, ExecutionState.FINISHED, KeptLog("stdout", 9, 5, "blob"))
    assert not is_whole(_job(JobStatus.FINISHED, kept, cut))


def test_the_kept_log_is_shown_unless_a_task_executor_has_more() -> None:
    first = _attempt(0, ExecutionState.FAILED, _whole("stdout"), KeptLog("stderr", 9, 5, "cut"))
    second = _attempt(1, ExecutionState.FAILED, KeptLog("stdout", 9, 5, "cut"))
    lost = _attempt(2, ExecutionState.FAILED)

    def found(attempt: AttemptInfo, name: str) -> TaskLog:
        return TaskLog(JOB, "task", attempt.number, name, 9, f"found {name}", attempt.attempt_id)

    has = [found(lost, "stdout"), found(first, "stderr"), found(first, "stdout")]
    shown = merged_logs(_job(JobStatus.FAILED, first, second, lost), has)
    assert [(log.attempt, log.name, log.blob_key) for log in shown] == [
        (0, "stderr", "found stderr"),
        (0, "stdout", "blob of stdout"),
        (1, "stdout", "cut"),
        (2, "stdout", "found stdout"),
    ]


# ------------------------------------------------------------------------------- following


class FakeSource:
    """A TaskExecutor and kept logs in memory."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, str], bytes] = {}
        self.kept: dict[str, bytes] = {}
        self.gone = False

    def task_executor(self, resource_id: str) -> FakeSource:
        if self.gone:
            raise RecipientUnreachable(f"{resource_id} is gone")
        return self

    def kept_log(self, job_id: JobID, log: KeptLog) -> bytes:
        return self.kept[log.blob_key]

    def read_task_log(self, job_id: JobID, attempt_id: str, name: str, offset: int) -> FakeSource:
        if self.gone:
            raise RecipientUnreachable("it is gone")
        self.answer = LogChunk(self.written.get((attempt_id, name), b"")[offset : offset + 4], 0)
        return self

    def result(self) -> LogChunk:
        return self.answer


def _following(source: FakeSource) -> tuple[LogFollower, list[OutputPiece]]:
    pieces: list[OutputPiece] = []
    return LogFollower(source, pieces.append), pieces  # type: ignore[arg-type]


def _data(pieces: list[OutputPiece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def test_following_goes_on_with_the_next_attempt_and_tells_nothing_twice() -> None:
    source = FakeSource()
    follower, pieces = _following(source)
    running = _attempt(0, ExecutionState.RUNNING)
    source.written[running.attempt_id, "stdout"] = b"gr\xfc\xff"  # in no encoding
    follower.poll(_job(JobStatus.RUNNING, running))
    follower.poll(_job(JobStatus.RUNNING, running))
    assert _data(pieces) == b"gr\xfc\xff"
    pieces.clear()
    source.written[running.attempt_id, "stdout"] = b"gr\xfc\xff\n"
    failed, second = _attempt(0, ExecutionState.FAILED), _attempt(1, ExecutionState.RUNNING)
    source.written[second.attempt_id, "stdout"] = b"again"
    follower.poll(_job(JobStatus.RUNNING, failed, second))
    assert [(piece.attempt, piece.name) for piece in pieces] == [(0, "stdout"), (1, "stdout"), (1, "stdout")]
    assert _data(pieces) == b"\nagain"
    pieces.clear()
    source.gone = True
    source.kept["blob of stdout"] = b"again and the end"
    done = _attempt(1, ExecutionState.FINISHED, _whole("stdout", 17), KeptLog("stderr", 0, 0, ""))
    follower.poll(_job(JobStatus.FINISHED, failed, done))
    assert _data(pieces) == b" and the end"


def test_following_says_what_it_cannot_show() -> None:
    source = FakeSource()
    follower, pieces = _following(source)
    source.gone = True
    source.kept["cut"] = b"head ... tail"
    lost, cut = (
        _attempt(0, ExecutionState.FAILED),
        _attempt(1, ExecutionState.FINISHED, KeptLog("stdout", 99, 13, "cut")),
    )
    follower.poll(_job(JobStatus.RUNNING, lost, cut))
    assert pieces == [], "its TaskExecutor may come back"
    follower.poll(_job(JobStatus.FINISHED, lost, cut))
    assert [(piece.attempt, bool(piece.note)) for piece in pieces] == [(0, True), (0, True), (1, False), (1, True)]
    assert _data(pieces) == b"head ... tail"


def test_what_a_task_executor_has_no_more_is_read_from_what_is_kept() -> None:
    source = FakeSource()
    follower, pieces = _following(source)
    running = _attempt(0, ExecutionState.RUNNING)
    source.written[running.attempt_id, "stdout"] = b"12345678"
    follower.poll(_job(JobStatus.RUNNING, running))
    source.written.clear()  # another process serves in its name, on another disk
    notice = b"\n--- 10 of the 28 bytes of this log were left out here (job.logs.max-size)\n"
    source.kept["cut"] = b"123456" + notice + b"and the end!"
    ended = _attempt(0, ExecutionState.FAILED, KeptLog("stdout", 28, len(source.kept["cut"]), "cut"))
    follower.poll(_job(JobStatus.FAILED, ended))
    assert _data(pieces) == b"12345678" + notice.replace(b"10", b"8") + b"and the end!"


def test_a_traceback_that_the_job_printed_is_known() -> None:
    source = FakeSource()
    follower, _ = _following(source)
    attempt = _attempt(0, ExecutionState.FAILED)
    source.written[attempt.attempt_id, "stderr"] = b"Traceback:\n  no\n"
    follower.poll(_job(JobStatus.FAILED, attempt))
    assert follower.has_shown("Traceback:\n  no\n")
    assert not follower.has_shown("Traceback:\n  of another process\n")


def test_standard_output_and_error_are_read_in_turns_and_a_log_without_end_is_left_for_a_while() -> None:
    source = FakeSource()
    follower, pieces = _following(source)
    running = _attempt(0, ExecutionState.RUNNING)
    source.written[running.attempt_id, "stdout"] = b"o" * 4 * (CHUNKS_AT_ONCE + 3)
    source.written[running.attempt_id, "stderr"] = b"e" * 8
    follower.poll(_job(JobStatus.RUNNING, running))
    assert "".join(piece.name[3] for piece in pieces) == "oeoe" + "o" * (CHUNKS_AT_ONCE - 2)
    follower.poll(_job(JobStatus.FINISHED, _attempt(0, ExecutionState.FINISHED)))
    assert _data(pieces).count(b"o") == 4 * (CHUNKS_AT_ONCE + 3)


def test_what_was_not_shown_is_read_again() -> None:
    source = FakeSource()
    shown: list[bytes] = []

    def show(piece: OutputPiece) -> None:
        if len(shown) == 1:
            shown.append(b"")
            raise KeyboardInterrupt
        shown.append(piece.data)

    follower = LogFollower(source, show)  # type: ignore[arg-type]
    running = _attempt(0, ExecutionState.RUNNING)
    source.written[running.attempt_id, "stdout"] = b"12345678"
    with pytest.raises(KeyboardInterrupt):
        follower.poll(_job(JobStatus.RUNNING, running))
    follower.poll(_job(JobStatus.RUNNING, running))
    assert b"".join(shown) == b"12345678"


@given(content=st.binary(max_size=20_000), limit=st.integers(400, 20_000), offset=st.integers(0, 20_000))
def test_the_rest_of_a_log_is_what_was_kept_after_what_is_known(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, limit: int, offset: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "stdout"
    path.write_bytes(content)
    offset = min(offset, len(content))
    kept, size = _kept(path, limit)
    rest = rest_of(kept, size, offset)
    if len(kept) == size or not re.search(rb"\n--- [\d,]+ of the", rest):
        assert content[offset:] == rest
        return
    before, notice, after = re.split(rb"\n(--- .* bytes of this log .*)\n", rest, maxsplit=1)
    assert content[offset:].startswith(before)
    assert content.endswith(after)
    left_out = int(notice.split()[1].replace(b",", b""))
    assert left_out == len(content) - offset - len(before) - len(after)


def test_a_line_that_looks_like_the_notice_is_none(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    looks_so = b"\n--- 5 of the 9 bytes of this log were left out here (job.logs.max-size)\n"
    path.write_bytes(looks_so + b"line\n" * 1000)
    kept, size = _kept(path, 1000)
    assert rest_of(kept, size, 0) == kept
    assert rest_of(kept, size, size - 7) == b"e\nline\n"


# ---------------------------------------------------------------------------------- showing


class Shown:
    """The two streams of a command, and progress that says when it is hidden."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> None:
        self.log: list[str] = []
        self.streams = {name: io.TextIOWrapper(io.BytesIO()) for name in ("stdout", "stderr")}
        for name, stream in self.streams.items():
            stream.isatty = lambda: terminal  # type: ignore[method-assign]
            monkeypatch.setattr(f"sys.{name}", stream)
        self.screen = JobScreen(self)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def update(self, job: JobView) -> None:
        self.log.append(f"update {job.state}")

    def hide(self) -> None:
        self.log.append("hide")

    def write(self, attempt: int, data: bytes, name: str = "stdout", task: str = "task") -> None:
        self.screen.write(OutputPiece(task, attempt, name, data))

    def of(self, name: str) -> bytes:
        return cast(io.BytesIO, self.streams[name].buffer).getvalue()


def test_output_goes_to_its_own_stream_unchanged_and_attempts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    shown.screen.update(_job(JobStatus.RUNNING, _attempt(0, ExecutionState.RUNNING)))
    shown.write(0, b"\xff\x00\r\n")
    shown.write(0, b"remark", "stderr")
    shown.write(1, b"again")
    shown.write(1, b"more")
    shown.write(0, b"late", "stderr", "other")
    assert shown.of("stdout") == b"\xff\x00\r\nagainmore"
    assert shown.of("stderr") == b"remark\n--- task task, attempt 2 ---\n--- task other ---\nlate"


def test_of_several_tasks_each_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    job = _job(JobStatus.RUNNING, _attempt(0, ExecutionState.RUNNING))
    shown.screen.update(replace(job, tasks=(job.tasks[0], replace(job.tasks[0], name="other"))))
    shown.write(0, b"one\n")
    assert shown.of("stderr") == b"--- task task ---\n"


def test_progress_makes_room_for_output_and_waits_for_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, terminal=True)
    job = _job(JobStatus.RUNNING, _attempt(0, ExecutionState.RUNNING))
    shown.screen.update(job)
    shown.write(0, b"half a ")
    shown.screen.update(job)
    shown.write(0, b"line\n")
    shown.screen.update(job)
    assert shown.log == ["update RUNNING", "hide", "hide", "update RUNNING"]
    shown.write(0, b"no end")
    shown.screen.finish()
    shown.screen.update(job)
    assert shown.log[-2:] == ["hide", "update RUNNING"]
    assert (shown.of("stdout"), shown.of("stderr")) == (b"half a line\nno end", b"\n")


def test_json_has_characters_whole(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JobScreen(as_json=True)
    for data in (b"gr\xc3", b"\xbc\xc3"):
        screen.write(OutputPiece("task", 0, "stdout", data))
    screen.write(OutputPiece("task", 0, "stdout", b"", "there is no more"))
    screen.finish()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(piece["text"], piece["is_note"]) for piece in told] == [
        ("gr", False),
        ("ü", False),
        ("there is no more", True),
        ("\ufffd", False),
    ]


def test_output_that_nobody_reads_is_an_interrupt(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    screen = JobScreen()
    with os.fdopen(write, "w") as stream:
        screen._streams["stdout"] = stream
        with pytest.raises(Interrupted) as interrupt:
            screen.write(OutputPiece("task", 0, "stdout", b"into the void"))
        assert interrupt.value.number == signal.SIGPIPE
        screen.write(OutputPiece("task", 0, "stdout", b"from now on it is not an error"))


def test_output_that_cannot_be_written_is_an_error_and_the_job_continues(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JobScreen(kept="`understudy job logs j` prints it")
    with Path("/dev/full").open("w") as stream:
        screen._streams["stdout"] = stream
        screen.write(OutputPiece("task", 0, "stdout", b"too much"))
        screen.write(OutputPiece("task", 0, "stdout", b"dropped, without a further error"))
    assert screen.has_lost
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert "No space left on device; `understudy job logs j` prints it" in said


def test_a_command_that_only_shows_output_ends_if_it_cannot_be_written() -> None:
    screen = JobScreen()
    with Path("/dev/full").open("w") as stream:
        screen._streams["stdout"] = stream
        with pytest.raises(OSError, match="No space left"):
            screen.write(OutputPiece("task", 0, "stdout", b"too much"))
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_progress_that_nobody_reads_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: Shown, job: JobView) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(Shown, "update", update)
    shown = Shown(monkeypatch)
    with pytest.raises(Interrupted):
        shown.screen.update(_job(JobStatus.RUNNING, _attempt(0, ExecutionState.RUNNING)))
