"""What a streaming query begins with: its live location, a checkpoint, or a savepoint. Runs before the query starts.

After a failure the live location is used, for nothing that was committed is done again then; a checkpoint only where
the live location is behind it, or broken. A savepoint that the job was begun from is put back once, whatever lies
there; a mark in the job's own directory says that this has been done.
"""

from __future__ import annotations

import json
from pathlib import Path

from conf.files import write_private
from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.files import make_private
from runtime.checkpoint.messages import JobManagerTaskRestore
from runtime.checkpoint.model import QueryLocation, QuerySnapshot
from runtime.checkpoint.names import directory_name
from runtime.checkpoint.snapshot import finish_restore, inspect_location, restore_snapshot


class TaskRestore:
    """The queries of one task as they start.

    Args:
        directory: of the task, in the job's own directory.
        restore: what there is; None for a task that begins without.
    """

    def __init__(self, directory: Path, restore: JobManagerTaskRestore | None) -> None:
        self._directory = directory
        self._restore = restore
        self._states = {} if restore is None else {query.name: query for query in restore.queries}
        self._claimed: set[str] = set()

    @property
    def unclaimed(self) -> list[str]:
        """Queries of which there is state, and which have not started."""
        return sorted(self._states.keys() - self._claimed)

    def prepare(self, query: QueryLocation) -> str:
        """Put the state in place that a query is to begin with; returns what was done, empty for nothing.

        Raises:
            SavepointError: there is no state of it in the savepoint, but of others that nobody claims.
            SnapshotError: the state cannot be put back.
        """
        finish_restore(Path(query.location))  # one that an earlier attempt was killed in
        restore = self._restore
        if restore is None:
            return ""
        state = self._states.get(query.name)
        if state is None:
            self._check_unclaimed(query, restore)
            return ""
        self._claimed.add(query.name)
        if restore.savepoint:
            return self._restore_savepoint(query, state, restore.savepoint)
        try:
            live = inspect_location(query)
            why = f"its checkpointLocation is at batch {live}"
        except SnapshotError as error:
            live, why = None, str(error)
        if live is not None and live >= state.batch_id:
            return ""
        _put_back(query, state)
        return f"query {query.name} goes on from checkpoint {restore.checkpoint_id}, batch {state.batch_id}: {why}"

    def _check_unclaimed(self, query: QueryLocation, restore: JobManagerTaskRestore) -> None:
        if restore.savepoint and self.unclaimed and not restore.allow_non_restored_state:
            raise SavepointError(
                f"{restore.savepoint} holds no state of query {query.name!r}, "
                f"but of {', '.join(map(repr, self.unclaimed))}",
                "give the query its name with queryName(), or run the job with --allow-non-restored-state",
            )

    def _restore_savepoint(self, query: QueryLocation, state: QuerySnapshot, savepoint: str) -> str:
        restore = self._restore
        wish, new_query_id = ("", False) if restore is None else (restore.rollback, restore.new_query_id)
        mark = self._directory / "restored" / f"{directory_name(query.name)}.json"
        if mark.exists() and json.loads(mark.read_bytes()).get("rollback", "") == wish:
            return ""
        _put_back(query, state, copy=True, new_query_id=new_query_id)  # the savepoint is the user's
        make_private(mark.parent)
        done = {"savepoint": savepoint, "batch_id": state.batch_id, "rollback": wish}
        write_private(mark, json.dumps(done).encode())
        return f"query {query.name} begins from batch {state.batch_id} of {savepoint}"


def _put_back(query: QueryLocation, state: QuerySnapshot, *, copy: bool = False, new_query_id: bool = False) -> None:
    sink = None if query.sink is None else Path(query.sink)
    restore_snapshot(state, Path(query.location), sink, new_query_id=new_query_id, copy=copy)
