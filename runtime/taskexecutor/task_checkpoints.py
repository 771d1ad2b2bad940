"""The part of one attempt in the checkpoints of its job (Flink's `SubtaskCheckpointCoordinator`).

A snapshot is taken here, in the TaskExecutor, off its main thread. It needs only the files of the task's queries,
neither Spark nor the task process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path

from actors.errors import ActorError
from conf.files import make_private
from runtime.checkpoint.alignment import Alignment, cycle_in, downstream_first, find_misaligned
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.metadata_log import IncompleteError, read_query_id
from runtime.checkpoint.names import TASKS, directory_name
from runtime.checkpoint.remote_files import is_below, is_remote
from runtime.checkpoint.sink_log import log_names, sink_of
from runtime.checkpoint.snapshot import committed_batch, discard_snapshot, take_snapshot
from runtime.checkpoint.task_restore import started_before
from runtime.ids import JobID
from runtime.protocol.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    DeclineCheckpoint,
    SnapshotType,
    TriggerCheckpoint,
)
from runtime.protocol.descriptor import AttemptInformation
from runtime.protocol.errors import GatewayError
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation, QuerySnapshot
from runtime.retry import pauses
from runtime.spark.errors import SparkError
from runtime.taskexecutor.connections import JobConnections
from runtime.taskexecutor.hand_over import HeldCheckpoints

logger = logging.getLogger(__name__)

_ALIGNMENT_S = 30.0
"""Seconds to wait until a query has committed what another one has read."""


class CheckpointResponder:
    """Reports a task's part of a checkpoint to its JobMaster until it answers (Flink's `CheckpointResponder`).

    Args:
        connections: to the JobMasters.
        job_id: the job.
    """

    def __init__(self, connections: JobConnections, job_id: JobID) -> None:
        self._connections = connections
        self._job_id = job_id

    async def acknowledge(
        self, ack: AcknowledgeCheckpoint, timeout_s: float, *, until_decided: bool = False
    ) -> CheckpointOutcome:
        """Acknowledge the task's part of a checkpoint; return the state of the checkpoint.

        Args:
            ack: the task's part.
            timeout_s: seconds for which to try; a checkpoint without an answer by then counts as aborted.
            until_decided: whether to ask again while the checkpoint is PENDING. Its JobMaster, or the next one, gives
                it up in time; *timeout_s* then counts from the last answer.
        """
        deadline, waits = time.monotonic() + timeout_s, pauses()
        while time.monotonic() < deadline:
            connection = self._connections.find(self._job_id)
            if connection is None:
                return CheckpointOutcome.ABORTED  # the job is over, or its slots were taken
            try:
                outcome = await connection.gateway.acknowledge_checkpoint(ack)
            except (ActorError, GatewayError) as error:
                logger.info(
                    "checkpoint %d of job %s waits for the JobMaster: %s", ack.checkpoint_id, self._job_id, error
                )
            else:
                if outcome is not CheckpointOutcome.PENDING or not until_decided:
                    return outcome
                deadline = time.monotonic() + timeout_s
            await asyncio.sleep(next(waits))
        return CheckpointOutcome.ABORTED

    async def decline(self, decline: DeclineCheckpoint) -> None:
        """Decline a checkpoint. If the JobMaster cannot be reached, it gives the checkpoint up by itself."""
        connection = self._connections.find(self._job_id)
        if connection is None:
            return
        try:
            await connection.gateway.decline_checkpoint(decline)
        except (ActorError, GatewayError) as error:
            logger.info("the JobMaster does not know that checkpoint %d was declined: %s", decline.checkpoint_id, error)


@dataclass(frozen=True, slots=True)
class StopReport:
    """Result of stopping a task's queries.

    Args:
        notes: for the user who has requested the stop.
        drained: whether all queries have processed all data of their sources; True if no drain was requested.
    """

    notes: tuple[str, ...] = ()
    drained: bool = True


StopQueries = Callable[[bool], Awaitable[StopReport]]
"""Stops the task's queries, drained or not.

Raises `NotStoppedError` if none was stopped, `DrainFailedError`, `SparkError`.
"""

HoldStarts = Callable[[], Awaitable[list[str]]]
"""Lets further queries of the task wait at their start. If some are being started, it returns their names instead."""

EndHold = Callable[[bool], Awaitable[None]]
"""Ends all holds: the queries start after all, or (True) none may start any more."""


async def _hold_nothing() -> list[str]:
    return []


async def _end_nothing(stops: bool) -> None:
    del stops


class NotStoppedError(CheckpointError):
    """No query was stopped: the task has ended, or failed, by itself."""


class DrainFailedError(CheckpointError):
    """The queries were stopped, but one had failed before it had processed all data of its sources."""


class _TaskEndedError(CheckpointError):
    """The task has ended before its part was done; its JobMaster learns of the end, and repeats a client's request."""


class StopOutcome(Enum):
    """Effect of a stop-with-savepoint on the end of its task.

    NOT_ASKED: none. COMPLETED: its queries were stopped and are in the savepoint. COMPLETED_BY_OTHERS: it had no
    queries, those of other tasks are in the savepoint, and it may start none. FAILED: its queries were stopped, and
    there is no savepoint. DRAIN_FAILED: as FAILED, because a query had failed, which is the failure of the task.
    """

    NOT_ASKED = "NOT_ASKED"
    COMPLETED = "COMPLETED"
    COMPLETED_BY_OTHERS = "COMPLETED_BY_OTHERS"
    FAILED = "FAILED"
    DRAIN_FAILED = "DRAIN_FAILED"


class TaskCheckpoints:
    """One attempt's queries, and its part of the checkpoints.

    Args:
        attempt: the attempt, with the state that it was started from.
        responder: reports to the JobMaster.
        stop_queries: see `StopQueries`; raises SparkError.
        reported: returns the queries of which Spark reports a batch: their names by their ids. A query without a name
            has an empty one.
        hold_starts: see `HoldStarts`.
        end_hold: see `EndHold`.
    """

    def __init__(
        self,
        attempt: AttemptInformation,
        responder: CheckpointResponder,
        stop_queries: StopQueries,
        reported: Callable[[], Mapping[str, str]] = dict,
        hold_starts: HoldStarts = _hold_nothing,
        end_hold: EndHold = _end_nothing,
    ) -> None:
        self._attempt = attempt
        restore = attempt.restore
        self._responder = responder
        self._stop_queries = stop_queries
        self._reported = reported
        self._hold_starts = hold_starts
        self._end_hold = end_hold
        self._holding: set[int] = set()
        self._queries: dict[str, QueryLocation] = {}
        self._namesakes: dict[str, tuple[QueryLocation, QueryLocation]] = {}
        self._began_at: dict[str, int] = {}
        self._restoring: set[str] = set()
        is_savepoint = restore is not None and bool(restore.savepoint)
        self._previous = {} if restore is None or is_savepoint else {query.name: query for query in restore.queries}
        # After a rollback no checkpoint may be complete before all queries were rolled back.
        is_rollback = restore is not None and bool(restore.rollback)
        expected = restore.queries if restore is not None and (is_rollback or not is_savepoint) else ()
        self._expected = frozenset(query.name for query in expected)
        self._taken: dict[int, tuple[QuerySnapshot, ...]] = {}
        self._reads: frozenset[tuple[str, str]] = frozenset()
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._unfinished: set[int] = set()
        self._stop: asyncio.Task[None] | None = None
        self._is_idle_in_stop = False
        self._stop_outcome = StopOutcome.NOT_ASKED
        self._ended = False
        self._changed = asyncio.Event()
        self.stopped = asyncio.Event()
        """Set when the job has been stopped with a savepoint: the task has to end."""

    @property
    def is_quiet(self) -> bool:
        """Return whether no snapshot is being taken or acknowledged."""
        return not self._runs

    def held(self) -> HeldCheckpoints:
        """Return what a successor has to know; only while it `is_quiet`."""
        return HeldCheckpoints(
            (*chain.from_iterable(self._namesakes.values()), *self._queries.values()),
            dict(self._began_at),
            tuple(self._previous.values()),
            dict(self._taken),
            tuple(sorted(self._restoring)),
        )

    def take_over(self, held: HeldCheckpoints) -> None:
        """Continue from what a predecessor has left."""
        for query in held.queries:
            self._add(query)
        self._began_at = dict(held.began_at)
        self._previous = {query.name: query for query in held.previous}
        self._taken = dict(held.taken)
        self._restoring = set(held.restoring)

    @property
    def is_stopping(self) -> bool:
        """Return whether a stop-with-savepoint has begun to stop the queries."""
        return self._stop_outcome not in (StopOutcome.NOT_ASKED, StopOutcome.COMPLETED_BY_OTHERS)

    def query_restores(self, name: str, *, is_over: bool = False) -> None:
        """Note that state is being restored for a query, or that this has failed; `query_started` ends it, too."""
        if is_over:
            self._restoring.discard(name)
        else:
            self._restoring.add(name)
        self._changed.set()

    def query_started(
        self, query: QueryLocation, batch_id: int = NOTHING_COMMITTED, *, was_restored: bool = False
    ) -> None:
        """Note that the task is about to start or restart a query.

        Args:
            query: the query.
            batch_id: the last batch that it has committed.
            was_restored: whether it starts from restored state: its next files may differ from those before.
        """
        self._add(query)
        self._began_at[query.name] = batch_id
        self._restoring.discard(query.name)
        if was_restored:
            self._previous.pop(query.name, None)
        self._changed.set()

    def _add(self, query: QueryLocation) -> None:
        former = self._queries.get(query.name)
        if former is not None and former.location != query.location:
            self._namesakes.setdefault(query.name, (former, query))
        self._queries[query.name] = query

    def trigger(self, trigger: TriggerCheckpoint) -> None:
        """Take part in a checkpoint, once for each number, and report the result to the JobMaster."""
        number = trigger.checkpoint_id
        if number in self._runs or self._ended:
            return
        self._unfinished.add(number)
        self._runs[number] = run = asyncio.get_running_loop().create_task(self._take_part(trigger))
        run.add_done_callback(lambda _: self._run_ended(number))
        if trigger.trigger.type.ends_the_job:
            self._stop = run

    def completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: the next one builds upon it."""
        for query in self._taken.pop(checkpoint_id, ()):
            self._previous[query.name] = query

    def aborted(self, checkpoint_id: int) -> None:
        """Note that a checkpoint was aborted."""
        # If the snapshot is still being taken, the JobMaster removes it on arrival; a stop learns the outcome itself.
        self._taken.pop(checkpoint_id, None)

    async def end(self) -> StopOutcome:
        """Note that the process has ended and left Spark; wait for the outcome of a stop-with-savepoint.

        It also waits for snapshots that are being taken: the job's end removes its files, and these would stay.
        """
        self._ended = True
        self._changed.set()
        while self._unfinished:
            self._changed.clear()
            await self._changed.wait()
        if self._stop is not None and not self._is_idle_in_stop:
            await asyncio.gather(self._stop, return_exceptions=True)
        return self._stop_outcome

    async def _take_part(self, trigger: TriggerCheckpoint) -> None:
        try:
            await self._report_part(trigger)
        finally:
            await self._end_hold_of(trigger.checkpoint_id)

    async def _report_part(self, trigger: TriggerCheckpoint) -> None:
        is_stop = False
        report, begun = StopReport(), time.monotonic()
        try:
            if trigger.trigger.type.ends_the_job:
                # A query that started after the stop would run on.
                await self._all_started(trigger)
                await self._hold(trigger, begun)
                is_stop = bool(self._queries)  # a task without queries runs to its own end
            self._check_names()
            self._check_sinks()
            await self._check_local_locations()
            if is_stop:
                await self._check_remote_locations()
                self._stop_outcome = StopOutcome.FAILED  # until the savepoint is known to be complete
                report = await self._stop_queries(_drains(trigger))
            queries, duration_ms, left = await self._snapshot(trigger, are_running=not is_stop)
        except _TaskEndedError as error:
            # A decline would come before the report of the end, and end the request of a client.
            logger.info("checkpoint %d is left: %s", trigger.checkpoint_id, error)
            self._snapshot_ended(trigger.checkpoint_id)
            return
        except (CheckpointError, SparkError, OSError) as error:
            self._snapshot_ended(trigger.checkpoint_id)
            if isinstance(error, NotStoppedError):
                self._stop_outcome = StopOutcome.NOT_ASKED
            elif isinstance(error, DrainFailedError):
                self._stop_outcome = StopOutcome.DRAIN_FAILED
            await self._end_hold_of(trigger.checkpoint_id)
            logger.warning("checkpoint %d is declined: %s", trigger.checkpoint_id, error)
            await self._responder.decline(
                DeclineCheckpoint(trigger.checkpoint_id, self._attempt.attempt_id, str(error))
            )
            return
        self._snapshot_ended(trigger.checkpoint_id)
        self._taken[trigger.checkpoint_id] = queries
        ack = AcknowledgeCheckpoint(
            trigger.checkpoint_id,
            self._attempt.attempt_id,
            trigger.trigger,
            queries,
            (*report.notes, *map(_left_note, left)),
            duration_ms,
            report.drained,
        )
        holds = trigger.checkpoint_id in self._holding
        self._is_idle_in_stop = holds and not is_stop
        outcome = await self._responder.acknowledge(ack, trigger.timeout_s, until_decided=holds)
        if is_stop and outcome is CheckpointOutcome.COMPLETED:
            self._stop_outcome = StopOutcome.COMPLETED
            self.stopped.set()
        elif holds and outcome is CheckpointOutcome.COMPLETED:
            self._stop_outcome = StopOutcome.COMPLETED_BY_OTHERS
        self._is_idle_in_stop = False

    async def _hold(self, trigger: TriggerCheckpoint, begun: float) -> None:
        """Let further queries wait at their start, after those that are being started: Spark knows these only then.

        Raises:
            CheckpointError: one is still being started when the time of the checkpoint is over, or the task has ended.
        """
        self._holding.add(trigger.checkpoint_id)
        while starting := await self._hold_starts():
            why = f"streaming query {starting[0]!r} is still being started"
            if self._ended:
                raise _TaskEndedError(why)
            if time.monotonic() >= begun + trigger.timeout_s:
                raise CheckpointError(why)

    async def _end_hold_of(self, number: int) -> None:
        """End the hold of a checkpoint. If the task is stopped by now, it starts no query any more."""
        if number not in self._holding:
            return
        self._holding.discard(number)
        stops = self._stop_outcome is not StopOutcome.NOT_ASKED
        if stops or not self._holding:
            await self._end_hold(stops)

    def _snapshot_ended(self, number: int) -> None:
        self._unfinished.discard(number)
        self._changed.set()

    def _run_ended(self, number: int) -> None:
        self._runs.pop(number, None)
        self._snapshot_ended(number)  # also after an error that is a defect

    async def _snapshot(
        self, trigger: TriggerCheckpoint, *, are_running: bool
    ) -> tuple[tuple[QuerySnapshot, ...], int, list[QueryLocation]]:
        """Take the snapshots.

        Returns:
            the snapshots, which are a consistent cut; the milliseconds that they took; and the queries among them that
            ran before a restart of the task and have not started again.
        """
        await self._all_started(trigger)
        directory, run = Path(trigger.directory, self._attempt.task_key), asyncio.get_running_loop().run_in_executor
        # A checkpoint needs none of them: their own files stay where they are.
        left = await run(None, self._left, trigger) if trigger.trigger.type.is_savepoint else []
        left = [query for query in left if query.name not in self._queries]
        found, began = [*self._queries.values(), *left], time.monotonic()
        taken: dict[str, QuerySnapshot] = {}
        waits = pauses()
        while True:
            alignment = await run(None, self._take, found, directory, taken, are_running)
            if not alignment.misaligned:
                break
            if self._ended and are_running:
                raise _TaskEndedError(_why_misaligned(alignment))
            if not are_running or time.monotonic() - began > min(trigger.timeout_s, _ALIGNMENT_S):
                raise CheckpointError(_why_misaligned(alignment))
            await asyncio.sleep(next(waits))  # until the writer has committed the batch
            for name in {misalignment.writer for misalignment in alignment.misaligned}:
                await run(None, discard_snapshot, taken.pop(name))
        in_order = tuple(taken[query.name] for query in found)
        return in_order, round((time.monotonic() - began) * 1000), left

    def _left(self, trigger: TriggerCheckpoint) -> list[QueryLocation]:
        """Return the queries that ran before a restart of the task, have files, and have not started again. Blocks.

        Raises:
            CheckpointError: they are not known.
        """
        directory = Path(trigger.directory).parent / TASKS / self._attempt.task_key
        known = started_before(directory, self._attempt.attempt_id)
        return [query for query in known if is_remote(query.location) or Path(query.location).exists()]

    async def _all_started(self, trigger: TriggerCheckpoint) -> None:
        """Wait until all restored queries have started again: a checkpoint without one of them is not complete.

        A savepoint also waits for queries whose state is being restored. A checkpoint need not: the state that the job
        was started from is kept beside it.

        Raises:
            CheckpointError: one has not started in the time of the checkpoint, or the task has ended.
        """
        is_savepoint, missing = trigger.trigger.type.is_savepoint, list[str]()
        try:
            async with asyncio.timeout(trigger.timeout_s):
                while missing := self._missing(is_savepoint=is_savepoint):
                    if self._ended:
                        break
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if missing:
            why = "is still being restored" if missing[0] in self._restoring else "has not been started again"
            kind = _TaskEndedError if self._ended else CheckpointError
            raise kind(f"streaming query {missing[0]!r} {why}")

    def _missing(self, *, is_savepoint: bool) -> list[str]:
        return sorted((self._expected - self._queries.keys()) | (self._restoring if is_savepoint else set()))

    def _check_names(self) -> None:
        for name, (one, other) in self._namesakes.items():
            raise CheckpointError(
                f"the task has started queries of the name {name!r} at {one.location} and at {other.location}, and a "
                "checkpoint identifies a query by its name; give each query a name of its own with queryName()"
            )

    def _check_sinks(self) -> None:
        for query in self._queries.values():
            if query.sink is not None and is_below(sink_of(query.sink), sink_of(query.location)):
                raise CheckpointError(
                    f"the file sink of query {query.name!r} is in its checkpointLocation {query.location}, which a "
                    "restore replaces; give the query a checkpointLocation that does not contain its sink"
                )

    async def _check_local_locations(self) -> None:
        """Check that Spark writes each query's files where they are looked for. A new query may have none yet."""
        local = [query for query in self._queries.values() if not is_remote(query.location)]
        await asyncio.get_running_loop().run_in_executor(None, _check_has_files, local, self._reported())

    async def _check_remote_locations(self) -> None:
        """Check that remote locations and sinks can be read, before their queries are stopped for it."""
        for query in self._queries.values():
            if is_remote(query.location):
                await asyncio.get_running_loop().run_in_executor(None, committed_batch, query)
            if query.sink is not None and is_remote(query.sink):
                await asyncio.get_running_loop().run_in_executor(None, log_names, query.sink)

    def _take(
        self, queries: list[QueryLocation], directory: Path, taken: dict[str, QuerySnapshot], are_running: bool
    ) -> Alignment:
        """Add the snapshots that *taken* does not have, and check whether all fit together."""
        # The JobMaster has made the checkpoint's directory. If it has removed it since, the checkpoint or the job is
        # over, and files of a TaskExecutor that comes late would stay.
        make_private(directory, durable=True, below=directory.parent)
        by_name = {query.name: query for query in queries}
        for name in downstream_first(list(by_name), self._reads):
            if name not in taken:
                target = directory / directory_name(name)
                previous, began_at = self._previous.get(name), self._began_at.get(name, sys.maxsize)
                taken[name] = take_snapshot(by_name[name], target, previous, loaded=began_at, below=directory)
        alignment = find_misaligned(list(taken.values()), are_running=are_running)
        self._reads = alignment.reads
        return alignment


def _check_has_files(queries: Collection[QueryLocation], reported: Mapping[str, str]) -> None:
    ids = {query.location: _query_id(query) for query in queries}
    elsewhere = {name for query_id, name in reported.items() if query_id not in ids.values()}
    for query in queries:
        if not ids[query.location] and not elsewhere.isdisjoint((query.name, "")):
            raise CheckpointError(
                f"query {query.name!r} has run batches, but has no files at {query.location}: they were removed, or "
                "Spark's default file system is not the local one; give the checkpointLocation a scheme, as in "
                f"file://{query.location}"
            )


def _query_id(query: QueryLocation) -> str:
    """Return a query's id from its files, which Spark writes before the first batch; empty if it is not there."""
    try:
        return read_query_id(Path(query.location, "metadata").read_bytes())
    except (IncompleteError, OSError):
        return ""


def _why_misaligned(alignment: Alignment) -> str:
    cycle = cycle_in(alignment.reads)
    in_cycle = f"; queries {', '.join(map(repr, cycle))} read each other's output in a cycle" if cycle else ""
    return f"the snapshots do not fit together: {alignment.misaligned[0]}{in_cycle}"


def _left_note(query: QueryLocation) -> str:
    return f"query {query.name!r} has not started again since its task was restarted: the savepoint has its last batch"


def _drains(trigger: TriggerCheckpoint) -> bool:
    return trigger.trigger.type is SnapshotType.SAVEPOINT_TERMINATE
