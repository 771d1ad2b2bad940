"""How ``job logs`` shows logs: those of a job's attempts, also while they are written, and of its TaskExecutors."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from actors.errors import ActorError
from runtime.client import ClusterClient
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.output import print_document, say
from runtime.cluster.views import print_failed_job, view_of_job
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.job_logs import TASK_LOGS, LogPiece
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo
from runtime.protocol.diagnostics import ComponentLog
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import TaskLog
from runtime.protocol.task_executor import TaskExecutorGateway


@dataclass(slots=True)
class _Reading:
    offset: int = 0
    ended: bool = False
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class LogFollower:
    """Reads the logs of a job's attempts from where it has stopped reading.

    Args:
        client: where logs come from.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._readings: dict[tuple[ExecutionAttemptID, str], _Reading] = {}
        self._executors: dict[str, TaskExecutorGateway] = {}

    def poll(self, job: ArchivedExecutionGraph) -> Iterator[LogPiece]:
        """Yield what was written since the last call, the first attempts first.

        Args:
            job: as it stands; of a job that is over, everything that is still there is read.

        Raises:
            BlobError: a kept log cannot be fetched.
        """
        for task in job.tasks:
            for attempt in task.attempts:
                if not attempt.task_executor:
                    continue
                for name in TASK_LOGS:
                    reading = self._readings.setdefault((attempt.attempt_id, name), _Reading())
                    if not reading.ended:
                        for text, is_note in self._read(job, attempt, name, reading):
                            yield LogPiece(task.name, attempt.number, name, text, is_note)

    def _read(
        self, job: ArchivedExecutionGraph, attempt: AttemptInfo, name: str, reading: _Reading
    ) -> Iterator[tuple[str, bool]]:
        kept = next((log for log in attempt.logs if log.name == name), None)
        if kept is not None and kept.is_whole:
            rest = self._client.kept_log(job.job_id, kept)[reading.offset :] if kept.size > reading.offset else b""
            reading.ended = True
            yield from _decoded(reading, rest)
            return
        try:
            for data in self._from_executor(job.job_id, attempt, name, reading):
                yield from _decoded(reading, data)
        except (ActorError, UnknownTaskExecutorError) as error:
            self._executors.pop(attempt.task_executor, None)
            if not job.status.is_globally_terminal:
                return  # another process may answer in its name at the next call
            reading.ended = True
            yield from _decoded(reading, b"")
            if kept is not None and kept.size <= reading.offset:
                return
            yield f"what follows cannot be read from TaskExecutor {attempt.task_executor}: {error}", True
            if kept is not None:
                yield self._client.kept_log(job.job_id, kept).decode(errors="replace"), False
        else:
            if attempt.state.is_terminal:
                reading.ended = True
                yield from _decoded(reading, b"")

    def _from_executor(self, job_id: JobID, attempt: AttemptInfo, name: str, reading: _Reading) -> Iterator[bytes]:
        resource_id = attempt.task_executor
        if resource_id not in self._executors:
            self._executors[resource_id] = self._client.task_executor(ResourceID(resource_id))
        executor = self._executors[resource_id]
        while data := executor.read_task_log(job_id, attempt.attempt_id, name, reading.offset).result().data:
            reading.offset += len(data)
            yield data


def _decoded(reading: _Reading, data: bytes) -> Iterator[tuple[str, bool]]:
    text = reading.decoder.decode(data, final=reading.ended)
    if text:
        yield text, False


def show_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """Print what the attempts of a job wrote: standard output to ours, standard error to ours."""
    logs = client.logs(job_id)
    if as_json:
        _print_json(logs)
        return
    for log, content in logs:
        if content and log.name in TASK_LOGS:
            _show(f"{log.task}, attempt {log.attempt + 1}, {log.name}", log.name, content.decode(errors="replace"))


def _print_json(logs: Iterable[tuple[TaskLog | ComponentLog, bytes]]) -> None:
    from runtime.cluster.documents import Log

    print_document([Log.of(log, content) for log, content in logs])


def show_task_executor_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """Print the logs of the TaskExecutors that a job ran on: what its attempts kept, and of those that run all."""
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
        _show(title, "stdout", content.decode(errors="replace"))
    for log, content in found:
        _show(f"{log.resource_id}, {log.name}", "stdout", content.decode(errors="replace"))


def follow_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> ExitStatus:
    """Print what a job's attempts write until it is over; return the exit status of ``job run``.

    With *as_json* each piece is a JSON object on a line of its own. Ctrl-C ends this command, not the job.
    """
    follower = LogFollower(client)
    title = ""
    try:
        for job in client.watch(job_id):
            for piece in follower.poll(job):
                title = _show_piece(piece, title, as_json)
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    if job.status is not JobStatus.FINISHED:
        print_failed_job(view_of_job(job))
        return ExitStatus.FAILED
    return ExitStatus.DONE


def _show_piece(piece: LogPiece, last: str, as_json: bool) -> str:
    """Print a piece, with a title where the piece before was of another log; return its title."""
    title = f"{piece.task}, attempt {piece.attempt + 1}, {piece.name}"
    if as_json:
        print_document(piece, indent=None)
    elif piece.is_note:
        say(f"--- {title}: {piece.text}")
    else:
        _show("" if title == last else title, piece.name, piece.text)
    return title


def _show(title: str, name: str, text: str) -> None:
    if title:
        say(f"--- {title}")
    stream = sys.stderr if name == "stderr" else sys.stdout
    stream.write(text)
    stream.flush()
