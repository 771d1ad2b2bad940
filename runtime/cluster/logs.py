"""Output of a job's attempts as `job run` and `job logs` show it, and the logs of its TaskExecutors.

At each look of `ClusterClient.watch`, `LogFollower` reads what the attempts have written since the last one. It reads
from their TaskExecutors while they run, else from the kept logs. `JobScreen` passes it to the command's own streams.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TextIO

from actors.errors import ActorError
from blob.errors import BlobError
from runtime.client import ClusterClient
from runtime.cluster.command_line import Interrupted, status_of_end, status_of_interrupt
from runtime.cluster.output import OutputError, clean, discard_output, print_bytes, print_document, print_error, say
from runtime.cluster.views import JobProgress, print_ended_job, view_of_job
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.job_logs import CHUNK, TASK_LOGS, KeptLog, LogPiece, rest_of
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo
from runtime.protocol.diagnostics import ComponentLog
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.messages import TaskLog
from runtime.protocol.task_executor import TaskExecutorGateway

CHUNKS_AT_ONCE = 16
"""Most pieces of each log that one look at a running attempt reads, so that endless output cannot block the end."""


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes that were added to a log, or a remark about it.

    Args:
        task: name of the task.
        attempt: number of the attempt, from 0.
        name: ``stdout`` or ``stderr``.
        data: the added bytes.
        note: the remark, if it is one.
    """

    task: str
    attempt: int
    name: str
    data: bytes
    note: str = ""


@dataclass(slots=True)
class _Reading:
    task: str
    attempt: AttemptInfo
    name: str
    offset: int = 0
    ended: bool = False
    tail: bytes = b""

    @property
    def kept(self) -> KeptLog | None:
        """The kept log; None while the attempt runs, or if nothing could be uploaded."""
        return next((log for log in self.attempt.logs if log.name == self.name), None)


class LogFollower:
    """Reads the logs of a job's attempts, each time from where it stopped.

    Args:
        client: provides the logs.
        show: receives each piece; if it raises, the piece is read again.
        held: a context in which no signal interrupts: a piece is both shown and counted as shown, or neither.
    """

    def __init__(
        self,
        client: ClusterClient,
        show: Callable[[OutputPiece], None],
        held: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._client = client
        self._show = show
        self._held = held
        self._readings: dict[tuple[ExecutionAttemptID, str], _Reading] = {}
        self._executors: dict[str, TaskExecutorGateway] = {}

    def follow(
        self, job_id: JobID, look: Callable[[ArchivedExecutionGraph], object] = lambda job: None
    ) -> ArchivedExecutionGraph:
        """Show the output of the job's attempts until it is over, and return its final state.

        Args:
            job_id: the job.
            look: called with the job's state at each look, before its output is shown.
        """
        for job in self._client.watch(job_id):
            look(job)
            self.poll(job)
        return job

    def has_shown(self, text: str) -> bool:
        """Return whether *text* is in the last part of any attempt's standard error."""
        return any(text.encode(errors="replace") in reading.tail for reading in self._readings.values())

    def poll(self, job: ArchivedExecutionGraph) -> None:
        """Show the output since the last call, the first attempts first.

        Args:
            job: its present state; for a job that is over, all remaining output is read.
        """
        for task in job.tasks:
            for attempt in task.attempts:
                if attempt.task_executor:
                    self._read(job, task.name, attempt)

    def _read(self, job: ArchivedExecutionGraph, task: str, attempt: AttemptInfo) -> None:
        readings = []
        for name in TASK_LOGS:
            reading = self._readings.setdefault((attempt.attempt_id, name), _Reading(task, attempt, name))
            reading.attempt = attempt
            if not reading.ended and not self._read_kept(job.job_id, reading):
                readings.append(reading)
        if not readings:
            return
        try:
            for _ in itertools.count() if attempt.state.is_terminal else range(CHUNKS_AT_ONCE):
                sizes = [self._read_chunk(job.job_id, reading) for reading in readings]  # in turns, as they are written
                if not any(sizes):
                    break
        except (ActorError, UnknownTaskExecutorError) as error:
            self._executors.pop(attempt.task_executor, None)
            if job.status.is_globally_terminal:  # else a new process may answer under its name at the next call
                for reading in readings:
                    self._read_what_is_left(job.job_id, reading, str(error))
            return
        if attempt.state.is_terminal:
            for reading in readings:
                if reading.kept is not None and reading.kept.size > reading.offset:
                    self._read_what_is_left(job.job_id, reading, "its copy of the log ends here")
                reading.ended = True

    def _read_kept(self, job_id: JobID, reading: _Reading) -> bool:
        """Show the rest of a log that is kept whole; return whether it is, and could be fetched."""
        kept = reading.kept
        if kept is None or not kept.is_whole:
            return False
        if kept.size > reading.offset:
            try:
                content = self._client.kept_log(job_id, kept)
            except BlobError:  # the BlobServer is being replaced; the TaskExecutor may still have the log
                return False
            self._add(reading, content[reading.offset :])
        reading.ended = True
        return True

    def _read_chunk(self, job_id: JobID, reading: _Reading) -> int:
        attempt_id, executor = reading.attempt.attempt_id, self._executor(reading.attempt.task_executor)
        data = executor.read_task_log(job_id, attempt_id, reading.name, reading.offset).result().data
        self._add(reading, data)
        return len(data)

    def _executor(self, resource_id: str) -> TaskExecutorGateway:
        if resource_id not in self._executors:
            self._executors[resource_id] = self._client.task_executor(ResourceID(resource_id))
        return self._executors[resource_id]

    def _read_what_is_left(self, job_id: JobID, reading: _Reading, why: str) -> None:
        """Show the kept rest of a log that its TaskExecutor does not have (any more), or else print *why* it ends."""
        kept, note = reading.kept, f"the rest cannot be read from TaskExecutor {reading.attempt.task_executor}: "
        if kept is not None:
            try:
                if kept.size > reading.offset:
                    self._add(reading, rest_of(self._client.kept_log(job_id, kept), kept.size, reading.offset))
                note = ""
            except BlobError as error:
                why = str(error)
        with self._held():
            if note:
                self._show(OutputPiece(reading.task, reading.attempt.number, reading.name, b"", note + why))
            reading.ended = True

    def _add(self, reading: _Reading, data: bytes) -> None:
        if not data:
            return
        with self._held():
            self._show(OutputPiece(reading.task, reading.attempt.number, reading.name, data))
            reading.offset += len(data)
            if reading.name == "stderr":
                reading.tail = (reading.tail + data)[-CHUNK:]


class JobScreen:
    """Shows a job that a command follows: its output unchanged, and on a terminal also its progress.

    Each byte that a task writes to its standard output or error goes to the same stream of the command. A line on
    standard error marks output that comes from another task than before, or from a later attempt.

    Args:
        progress: shows the job's state; hidden while output is printed, until the output has ended a line.
        as_json: print each piece as a JSON object on a line instead.
        stdout: replaces the command's standard output.
        kept: where else the output is, as a clause. If a stream cannot be written, an error says so, and its further
            output is dropped. Default: the error is raised.
    """

    def __init__(
        self,
        progress: JobProgress | None = None,
        *,
        as_json: bool = False,
        stdout: TextIO | None = None,
        kept: str = "",
    ) -> None:
        self._kept = kept
        self._has_lost = False
        self._progress = progress
        self._as_json = as_json
        self._decoders: dict[tuple[str, int, str], codecs.IncrementalDecoder] = {}
        self._streams = {"stdout": stdout or sys.stdout, "stderr": sys.stderr}
        self._unfinished: set[str] = set()
        self._shown: tuple[str, int] | None = None
        self._is_one_task = True

    @property
    def has_lost(self) -> bool:
        """True if output was dropped because a stream could not be written."""
        return self._has_lost

    def update(self, job: ArchivedExecutionGraph) -> None:
        """Show the state of the job."""
        self._is_one_task = len(job.tasks) == 1
        if self._progress is not None and not self._unfinished:
            try:
                self._progress.update(view_of_job(job))
            except (OSError, OutputError) as error:
                self._lose(self._streams["stderr"], error)

    def write(self, piece: OutputPiece) -> None:
        """Show a piece of output.

        Raises:
            Interrupted: the reader of the output has closed the pipe.
            OutputError, OSError: a stream cannot be written, and the output is not kept elsewhere.
        """
        if self._as_json:
            self._write_json(piece)
            return
        if self._progress is not None:
            self._progress.hide()
        title = f"task {clean(piece.task)}" + (f", attempt {piece.attempt + 1}" if piece.attempt else "")
        if piece.note:
            self._say(f"--- {title}, {piece.name}: {piece.note}")
            return
        source = piece.task, piece.attempt
        if source != self._shown and (self._shown or piece.attempt or not self._is_one_task):
            self._say(f"--- {title} ---")
        self._shown = source
        self._print(piece.data, piece.name)
        if piece.data.endswith(b"\n"):
            self._unfinished.discard(piece.name)
        elif self._streams[piece.name] is self._streams["stderr"] or self._streams[piece.name].isatty():
            self._unfinished.add(piece.name)

    def finish(self) -> None:
        """End an unfinished line, so that the command's next message is on a new line."""
        for source, decoder in self._decoders.items():
            self._print_json(source, decoder.decode(b"", final=True))
        if self._unfinished:
            self._unfinished.clear()
            self._print(b"\n", "stderr")

    def _say(self, text: str) -> None:
        self.finish()
        self._print(f"{text}\n".encode(), "stderr")

    def _print(self, data: bytes, name: str) -> None:
        stream: TextIO = self._streams[name]
        try:
            print_bytes(data, stream)
        except (OSError, OutputError) as error:
            self._lose(stream, error)

    def _lose(self, stream: TextIO, error: OSError | OutputError) -> None:
        """Drop further output of a stream that cannot be written; raises as `write`."""
        cause = error.cause if isinstance(error, OutputError) else error
        if isinstance(cause, BrokenPipeError):
            discard_output(stream)
            raise Interrupted(signal.SIGPIPE) from None
        if not self._kept:
            raise error
        discard_output(stream)
        self._has_lost = True
        with contextlib.suppress(OSError, OutputError):
            print_error(f"{error}; {self._kept}")

    def _write_json(self, piece: OutputPiece) -> None:
        source = piece.task, piece.attempt, piece.name
        decoder = self._decoders.setdefault(source, codecs.getincrementaldecoder("utf-8")("replace"))
        self._print_json(source, piece.note or decoder.decode(piece.data), is_note=bool(piece.note))

    def _print_json(self, source: tuple[str, int, str], text: str, *, is_note: bool = False) -> None:
        if text:
            task, attempt, name = source
            print_document(LogPiece(task, attempt, name, text, is_note), indent=None)


def show_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """Print the output of a job's attempts: standard output and standard error, each to the same stream."""
    logs = client.logs(job_id)
    if as_json:
        _print_json(logs)
        return
    for log, content in logs:
        if content and log.name in TASK_LOGS:
            _show(f"{log.task}, attempt {log.attempt + 1}, {log.name}", log.name, content)


def _print_json(logs: Iterable[tuple[TaskLog | ComponentLog, bytes]]) -> None:
    from runtime.cluster.documents import Log

    print_document([Log.of(log, content) for log, content in logs])


def show_task_executor_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """Print the logs of a job's TaskExecutors: the parts kept with its attempts, and all of those that run."""
    job = client.job(job_id)
    kept = [(log, text) for log, text in client.logs(job_id) if log.name not in TASK_LOGS]
    names = sorted({attempt.task_executor for task in job.tasks for attempt in task.attempts if attempt.task_executor})
    found = []
    for name in names:
        try:
            found += client.task_executor_logs(ResourceID(name))
        except UnknownTaskExecutorError as error:
            say(f"--- {error}")
    if as_json:
        _print_json([*kept, *found])
        return
    for attempt_log, content in kept:
        title = f"{attempt_log.name}, while {attempt_log.task}, attempt {attempt_log.attempt + 1}, ran"
        _show(title, "stdout", content)
    for log, content in found:
        _show(f"{log.resource_id}, {log.name}", "stdout", content)


def follow_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> int:
    """Print the output of a job's attempts until it is over; return the exit status of ``job run``.

    With *as_json* each piece is a JSON object on a line of its own. Ctrl-C ends this command, not the job.
    """
    screen = JobScreen(as_json=as_json)
    follower = LogFollower(client, screen.write)
    try:
        job = follower.follow(job_id, screen.update)
    except KeyboardInterrupt as interrupt:
        return status_of_interrupt(interrupt)
    screen.finish()
    return end_of_job(job, None, follower)


def end_of_job(job: ArchivedExecutionGraph, interrupt: KeyboardInterrupt | None, follower: LogFollower) -> int:
    """Print how a followed job has ended, unless it is FINISHED; return the command's exit status.

    Args:
        job: its final state.
        interrupt: the signal that made this command cancel it, if any.
        follower: has shown its output, which may include the traceback that a failing task prints.
    """
    is_shown = job.failure is not None and follower.has_shown(job.failure.traceback)
    print_ended_job(view_of_job(job), with_traceback=not is_shown)
    return status_of_end(job.status.value, interrupt, None if job.failure is None else job.failure.exit_status)


def _show(title: str, name: str, content: bytes) -> None:
    say(f"--- {title}")
    print_bytes(content, sys.stderr if name == "stderr" else sys.stdout)
