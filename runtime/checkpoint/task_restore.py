"""Choose the state that a streaming query starts from: its live location, a checkpoint, or a savepoint.

This runs before the query starts.

- After a failure the query uses its live location, so that it does not repeat a committed batch.
- The newest whole checkpoint is restored if the live location is behind the latest checkpoint, or damaged. The same
  happens if Spark failed twice in a row to load its state.
- If the job was started from a savepoint, that is restored once, and replaces what is in the live location. A mark in
  the job's own directory records it.
- A checkpoint of that job may lack a query that was still being restored. Such a query starts from the savepoint, too.
- A query that has read the output of another one goes back with that one (`runtime.checkpoint.alignment`).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from conf.files import make_private, write_private
from runtime.checkpoint.alignment import abandoned_files, has_read_on
from runtime.checkpoint.errors import CheckpointError, SavepointError, SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.lease import lease_file, may_be_written_to
from runtime.checkpoint.metadata_log import entries, last_entry
from runtime.checkpoint.names import TASKS, directory_name
from runtime.checkpoint.remote_files import is_remote
from runtime.checkpoint.remote_location import RemoteLocation
from runtime.checkpoint.restore import restore_to_url
from runtime.checkpoint.sink_log import log_names
from runtime.checkpoint.snapshot import committed_batch, finish_restore, inspect_location, restore_snapshot
from runtime.checkpoint.stored_snapshot import CHECKPOINT
from runtime.ids import JobVertexID
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation, QuerySnapshot

_RESTORED = "restored"
"""Directory of a task with the marks of the queries that have taken their state from a savepoint."""

_STARTED = "started"
"""Directory of a task with the locations of the queries that it has started, in any attempt."""

LOAD_FAILURES = 2
"""How many failures in a row to load one state send a query back: a single failure may have a passing cause."""

_LOAD_FAILURE = re.compile(
    r"\[(?:CANNOT_LOAD_STATE_STORE(?!\.\w*OUT_OF_MEMORY|\.UNRELEASED_THREAD_ERROR)"
    r"|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED|STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
    r"|STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP|STATE_STORE_BASE_CHECKPOINT_ID_MISMATCH"
    r"|STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY|BATCH_METADATA_NOT_FOUND|INVALID_LOG_VERSION"
    r"|STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY)\b"
    r"|org\.apache\.hadoop\.fs\.ChecksumException"
)
"""Spark's error conditions, and Hadoop's exception, for files that are missing or damaged."""


class TaskRestore:
    """The queries of one task as they start.

    Args:
        directory: of the task, in the job's own directory.
        restore: the state to restore; None for a task that starts without state.
        attempt_id: of the task; without it no starts are noted for savepoints after a restart.
    """

    def __init__(self, directory: Path, restore: JobManagerTaskRestore | None, attempt_id: str = "") -> None:
        self._directory = directory
        self._attempt_id = attempt_id
        self._restore = restore
        self._states = {} if restore is None else {query.name: query for query in restore.queries}
        begun_from = None if restore is None or restore.begun_from is None else restore.begun_from.restore
        self._begun_from = begun_from
        self._begun = {} if begun_from is None else {query.name: query for query in begun_from.queries}
        self._claimed: set[str] = set()
        self._started: dict[str, QueryLocation] = {}
        self._gone_back: dict[str, QuerySnapshot] = {}

    @property
    def unclaimed(self) -> list[str]:
        """Queries with state that have not started."""
        return sorted((self._states.keys() | self._begun.keys()) - self._claimed)

    def has_state_of(self, name: str) -> bool:
        """Return whether there is state of a query."""
        return name in self._states or name in self._begun

    def prepare(self, query: QueryLocation) -> str:
        """Restore the state that a query starts from; return a note of it, empty if nothing was restored.

        Raises:
            SavepointError: the savepoint has no state of this query, but of others that have not started; or a remote
                location or sink cannot be reached.
            SnapshotError: the state cannot be restored, an interrupted restore cannot be completed, or another query
                has read what the restore would remove.
        """
        note = self._prepare(query)
        self._started[query.name] = query
        if self._attempt_id:
            self._note_started(query)
        return note

    def _prepare(self, query: QueryLocation) -> str:
        restore, state = self._restore, self._states.get(query.name)
        note = ""
        if restore is not None and state is not None and _is_in_place(restore) and not _is_of(query, state):
            note = _not_of(query, state, f"checkpoint {restore.checkpoint_id}")
            state = None
        elif state is None and query.name in self._begun:  # the checkpoint was complete before it had its state
            restore, state = self._begun_from, self._begun[query.name]
        # An earlier attempt may have been killed during a restore.
        if not is_remote(query.location):
            finish_restore(Path(query.location))
        elif state is None:
            _check_not_half_restored(query)
        if note:
            return note
        if restore is None:
            return ""
        if state is None:
            self._check_unclaimed(query, restore)
            self._check_nothing_abandoned(query)
            return ""
        self._claimed.add(query.name)
        if restore.savepoint:
            return self._restore_savepoint(query, state, restore)
        why = self._why_not_live(query, state)
        if not why:
            return ""
        return self._put_back_any(query, restore, state, why)

    def _note_started(self, query: QueryLocation) -> None:
        """Write the location of a query that starts, for savepoints after a restart of its task; raises OSError."""
        mark = self._directory / _STARTED / f"{directory_name(query.name)}.json"
        known = {"attempt": self._attempt_id, "name": query.name, "location": query.location, "sink": query.sink}
        make_private(mark.parent, durable=True)
        write_private(mark, json.dumps(known).encode())

    @staticmethod
    def began_at(query: QueryLocation) -> int:
        """Return the last batch that a query has committed; call it after `prepare`.

        If a remote location cannot be read, return more than any batch. Then no checkpoint counts as loaded by this
        run.
        """
        try:
            return committed_batch(query)
        except SavepointError:  # Spark may reach what this process cannot read
            return sys.maxsize

    def failed(self, query: QueryLocation, began_at: int, message: str) -> str:
        """Note that a query has failed; return a note for the log, empty if it is not a failure to load state.

        Args:
            query: the query.
            began_at: the last batch that was committed when it started.
            message: of Spark's exception.
        """
        if not is_load_failure(message) or self.began_at(query) > began_at:
            return ""
        mark = self._load_failures(query.name)
        known = _read_mark(mark)
        count = known["count"] + 1 if known.get("batch_id") == began_at else 1
        make_private(mark.parent, durable=True)
        write_private(mark, json.dumps({"batch_id": began_at, "count": count}).encode())
        if count < LOAD_FAILURES:
            return f"query {query.name} could not load its state as of batch {began_at}; its next start tries once more"
        return (
            f"query {query.name} could not load its state as of batch {began_at}, {count} times in a row; "
            "its next start goes back to the last checkpoint that can be restored, if there is one"
        )

    def _why_not_live(self, query: QueryLocation, state: QuerySnapshot, on_the_way: tuple[str, ...] = ()) -> str:
        """Return why the query must not start from its live location; empty if it may.

        Args:
            query: the query.
            state: its snapshot in the latest checkpoint.
            on_the_way: queries that go back if this one does.
        """
        mark = self._load_failures(query.name)
        try:
            live = inspect_location(query, state)
        except SnapshotError as error:
            return str(error)
        if live < state.batch_id:
            return f"its checkpointLocation is at batch {live}"
        known = _read_mark(mark)
        if known.get("batch_id") == live and known["count"] >= LOAD_FAILURES:
            return f"Spark could not load its state as of batch {live}, {known['count']} times in a row"
        return self._why_not_beside_others(query, (*on_the_way, query.name))

    def _why_not_beside_others(self, query: QueryLocation, on_the_way: tuple[str, ...]) -> str:
        """Return why a query must not start from its live location because of queries whose output it has read.

        Such a query may have gone back before, in this attempt or an earlier one, or goes back when it starts.
        """
        for writer in self._states.values():
            if writer.name in on_the_way:
                continue
            try:
                ahead = has_read_on(query, writer)
                abandoned = abandoned_files(query, query.location, self._gone_back.get(writer.name, writer))
            except OSError as error:
                return f"the logs of its sources cannot be compared with the sink of query {writer.name}: {error}"
            if abandoned:
                return f"it has read {abandoned[0]}, which a restore of query {writer.name} has removed"
            if ahead and writer.name not in self._started:
                location = QueryLocation(writer.name, writer.location, writer.sink)
                if self._why_not_live(location, writer, on_the_way):
                    return f"it has read {ahead[0]}, which the restore of query {writer.name} removes"
        return ""

    def _check_nothing_abandoned(self, query: QueryLocation) -> None:
        """Check that a query without state has not read what the restore of another one has removed.

        Raises:
            SnapshotError: it has.
        """
        for writer in self._gone_back.values():
            try:
                abandoned = abandoned_files(query, query.location, writer)
            except OSError as error:
                raise SnapshotError(f"the files of query {query.name!r} cannot be read: {error}") from error
            if abandoned:
                raise SnapshotError(
                    f"query {query.name!r} has read {abandoned[0]}. Query {writer.name!r} has gone back to batch "
                    f"{writer.batch_id} without it, so rows would be read twice",
                    f"give {query.name!r} a new checkpointLocation, or start the job from a state that has both",
                )

    def _check_not_read(self, query: QueryLocation, state: QuerySnapshot) -> None:
        """Check that no query of the task that has started has read what a restore would remove.

        Raises:
            SnapshotError: one has.
        """
        target = replace(state, sink=query.sink)
        for reader in self._started.values():
            try:
                ahead = has_read_on(reader, target) if query.sink == state.sink else []
            except OSError as error:
                raise SnapshotError(f"the files of query {reader.name!r} cannot be read: {error}") from error
            if ahead:
                raise SnapshotError(
                    f"query {query.name!r} cannot go back to batch {state.batch_id}: query {reader.name!r}, which has "
                    f"started, has read what it wrote later: {ahead[0]}",
                    "let the job's code start the writer before its reader",
                )

    def _put_back_any(
        self, query: QueryLocation, restore: JobManagerTaskRestore, state: QuerySnapshot, why: str
    ) -> str:
        """Restore the newest whole checkpoint; after failures to load, prefer one that Spark has loaded before."""
        found = [(restore.checkpoint_id, state)]
        for checkpoint in restore.earlier:
            found += [
                (checkpoint.checkpoint_id, kept)
                for kept in checkpoint.queries
                if kept.name == query.name and _is_of(query, kept)
            ]
        mark = self._load_failures(query.name)
        if _read_mark(mark).get("count", 0) >= LOAD_FAILURES:
            found.sort(key=lambda item: not item[1].is_proven)
        problems = []
        for checkpoint_id, kept in found:
            try:
                self._check_beside_others(query, kept)
                self._put_back(query, kept)
            except SnapshotLostError as error:
                problems.append(f"checkpoint {checkpoint_id} cannot be restored: {error}")
                continue
            mark.unlink(missing_ok=True)
            note = f"query {query.name} continues from checkpoint {checkpoint_id}, batch {kept.batch_id}: {why}"
            return "; ".join([note, *problems])
        raise SnapshotLostError(
            f"query {query.name!r} can continue neither from its own files nor from a checkpoint: "
            + "; ".join([why, *problems]),
            "start the job from a savepoint with `understudy job run --from`; without its checkpointLocation it loses "
            "its state",
        )

    def _check_beside_others(self, query: QueryLocation, state: QuerySnapshot) -> None:
        """Check that a state of a query has not read what another one has gone back behind.

        Raises:
            SnapshotLostError: it has.
        """
        for writer in self._gone_back.values():
            try:
                abandoned = abandoned_files(query, Path(state.path) / CHECKPOINT, writer)
            except OSError as error:
                raise SnapshotLostError(f"the snapshot in {state.path} cannot be read: {error}") from error
            if abandoned:
                raise SnapshotLostError(
                    f"it has read {abandoned[0]}, but query {writer.name!r} has gone back to batch {writer.batch_id}"
                )

    def _put_back(
        self, query: QueryLocation, state: QuerySnapshot, *, copy: bool = False, new_query_id: bool = False
    ) -> None:
        self._check_not_read(query, state)
        if query.sink is not None and state.sink is None:
            _check_new_sink(query, query.sink, state)
        if is_remote(query.location):
            work = self._directory / "prepared" / directory_name(query.name)
            restore_to_url(state, query.location, query.sink, work, new_query_id=new_query_id, copy=copy)
        else:
            restore_snapshot(state, Path(query.location), query.sink, new_query_id=new_query_id, copy=copy)
        self._gone_back[query.name] = state

    def _load_failures(self, name: str) -> Path:
        return self._directory / "load-failures" / f"{directory_name(name)}.json"

    def _check_unclaimed(self, query: QueryLocation, restore: JobManagerTaskRestore) -> None:
        unclaimed, savepoint = self.unclaimed, restore
        if self._begun_from is not None:  # the queries of the checkpoint have started under their names before
            unclaimed, savepoint = sorted(set(unclaimed) - self._states.keys()), self._begun_from
        if savepoint.savepoint and unclaimed and not savepoint.allow_non_restored_state:
            raise SavepointError(
                f"{savepoint.savepoint} holds no state of query {query.name!r}, "
                f"but of {', '.join(map(repr, unclaimed))}",
                "give the query its name with queryName(), or run the job with --allow-non-restored-state",
            )

    def _restore_savepoint(self, query: QueryLocation, state: QuerySnapshot, restore: JobManagerTaskRestore) -> str:
        savepoint, rollback, new_query_id = restore.savepoint, restore.rollback, restore.new_query_id
        mark = self._directory / _RESTORED / f"{directory_name(query.name)}.json"
        why = ""
        done = json.loads(mark.read_bytes()) if mark.exists() else {}
        if done and rollback in ("", done.get("rollback", "")):  # a rollback follows the job's own start
            restored_to = replace(query, location=done.get("location", query.location))
            if not _is_of(query, restored_to):
                return _not_of(query, restored_to, savepoint)
            why = self._why_not_live(query, state)
            if not why:
                return ""
            new_query_id = done.get("new_query_id", new_query_id)  # the same as the first time
        if new_query_id is None:  # two running queries need two ids, for Spark and for sinks that remember batches
            new_query_id = not _is_of(query, state) and may_be_written_to(state.location)
        continues = restore.continues and not done and not new_query_id
        continues = continues and _is_left_at(query, state)
        if not continues:  # a copy shares no file with the user's savepoint
            self._put_back(query, state, copy=True, new_query_id=new_query_id)
        make_private(mark.parent, durable=True)
        done = {
            "savepoint": savepoint,
            "batch_id": state.batch_id,
            "rollback": rollback,
            "new_query_id": new_query_id,
            "location": query.location,
        }
        write_private(mark, json.dumps(done).encode())
        self._load_failures(query.name).unlink(missing_ok=True)
        renamed = ", under a new query id" if new_query_id else ""
        again = f" once more: {why}" if why else ""
        return f"query {query.name} begins from batch {state.batch_id} of {savepoint}{renamed}{again}"


def started_before(directory: Path, attempt_id: str) -> list[QueryLocation]:
    """Return the queries that earlier attempts of a task have started, and this one has not, with their last locations.

    Args:
        directory: of the task, in that of the job's checkpoints.
        attempt_id: of the present attempt.

    Raises:
        SnapshotError: the location of one cannot be read.
    """
    found = []
    try:
        for mark in sorted((directory / _STARTED).glob("*.json")):
            known = json.loads(mark.read_bytes())
            if known["attempt"] != attempt_id:
                found.append(QueryLocation(known["name"], known["location"], known["sink"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SnapshotError(f"a location of a query in {directory} cannot be read: {error}") from error
    return found


def tasks_of_queries(job_directory: Path) -> dict[str, JobVertexID]:
    """Return the tasks that have started the queries of a job, in any attempt, by `directory_name` of the queries.

    Args:
        job_directory: of the job's checkpoints.
    """
    marks = job_directory.glob(f"{TASKS}/*/{_STARTED}/*.json")
    return {mark.stem: JobVertexID(mark.parent.parent.name) for mark in marks}


def restored_queries(job_directory: Path) -> dict[str, str]:
    """Return the queries that have taken their state from a savepoint, in any task and attempt of a job.

    Args:
        job_directory: of the job's checkpoints.

    Returns:
        the place of the last savepoint that each has taken its state from, by `directory_name`.

    Raises:
        SnapshotError: a mark of one cannot be read.
    """
    try:
        return {
            mark.stem: str(json.loads(mark.read_bytes())["savepoint"])
            for mark in job_directory.glob(f"{TASKS}/*/{_RESTORED}/*.json")
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SnapshotError(f"a mark of a restored query in {job_directory} cannot be read: {error}") from error


def _is_in_place(restore: JobManagerTaskRestore) -> bool:
    """Return whether the state is a checkpoint of the job itself; others may be restored to other locations."""
    return restore.checkpoint_id > 0 and (not restore.savepoint or bool(restore.rollback))


def _is_of(query: QueryLocation, other: QueryLocation | QuerySnapshot) -> bool:
    """Return whether both are of one location: several locations may have queries of one name in turn."""
    return lease_file(query.location) == lease_file(other.location)


def _not_of(query: QueryLocation, other: QueryLocation | QuerySnapshot, source: str) -> str:
    """Return the note that a query does not get the state of its name."""
    return f"query {query.name} starts at {query.location} without the state of {source}, which is at {other.location}"


def _is_left_at(query: QueryLocation, state: QuerySnapshot) -> bool:
    """Return whether the files of a query, as the former job has left them, are those of its savepoint.

    Then a copy of the savepoint would change nothing. A batch that was planned after it may be one of the former
    version's sources, so it is planned again.

    Raises:
        SnapshotError: a batch was committed after the savepoint, which a copy would undo.
    """
    if (query.location, query.sink) != (state.location, state.sink) or is_remote(query.location):
        return False
    committed = committed_batch(query)
    if committed > state.batch_id:
        raise SnapshotError(
            f"query {query.name!r} does not continue at batch {state.batch_id} of the savepoint: batch {committed} was "
            "committed since",
            "`understudy job run --from` goes back to the savepoint",
        )
    planned = max(entries(list_names(Path(query.location) / "offsets")), default=NOTHING_COMMITTED)
    if planned != state.batch_id:
        return False
    try:
        return inspect_location(query, state) == state.batch_id
    except SnapshotError:
        return False


def is_load_failure(message: str) -> bool:
    """Return whether a query's exception says that its state or its logs cannot be read: then a retry may not help."""
    return _LOAD_FAILURE.search(message) is not None


def _read_mark(path: Path) -> dict[str, int]:
    try:
        known: dict[str, int] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return known


def _check_new_sink(query: QueryLocation, sink: str, state: QuerySnapshot) -> None:
    """Check that a file sink is not ahead of a state without one: it would skip the batches that its log has.

    Raises:
        SnapshotError: it is.
    """
    written = last_entry(log_names(sink))
    if written > state.batch_id:
        raise SnapshotError(
            f"query {query.name!r} cannot go back to batch {state.batch_id}: its file sink {sink} has batch {written}, "
            "and the state has no log of it",
            "give the sink another directory",
        )


def _check_not_half_restored(query: QueryLocation) -> None:
    """Check that no restore into a remote location was interrupted; one that cannot be reached is Spark's matter.

    Raises:
        SnapshotError: one was.
    """
    try:
        is_half_restored = RemoteLocation(query.location).is_half_restored()
    except CheckpointError:
        return  # the checkpoints of the query say why
    if is_half_restored:
        raise SnapshotError(
            f"query {query.name!r} cannot start from {query.location}: a restore there was interrupted",
            "start the job from the savepoint or checkpoint again (`understudy job run --from`), or give the query "
            "another checkpointLocation",
        )
