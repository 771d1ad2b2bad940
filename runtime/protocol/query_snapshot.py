"""The values of checkpoints: where a query is, and what was kept of it.

They travel by RPC and are kept as JSON (`actors.rpc.codec.to_plain`), so their fields are plain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NOTHING_COMMITTED = -1
"""The batch id of a snapshot of a query that had committed none yet."""


@dataclass(frozen=True, slots=True)
class QueryLocation:
    """A streaming query and its files.

    Args:
        name: its identity in checkpoints (Flink's uid of an operator): its ``queryName``, or ``query-<n>``, n its place
            in the order of start within its task, from 0.
        location: its checkpointLocation, an absolute path.
        sink: the directory of its file sink, an absolute path; None for any other sink.
    """

    name: str
    location: str
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """What is kept of one query in one checkpoint or savepoint (Flink's ``OperatorSubtaskState``, the state handle).

    Args:
        name: as `QueryLocation`.
        query_id: Spark's id of the query, which outlives its runs; empty where it had none yet.
        location: the checkpointLocation that it was taken of.
        sink: the directory of its file sink then, or None.
        path: directory of the snapshot: absolute in checkpoints, relative to the manifest in savepoints.
        batch_id: the last batch that it holds; `NOTHING_COMMITTED` where there was none.
        offsets: the sources' offsets at the end of that batch, as Spark's own JSON texts, one for each source.
        files: how many it has.
        bytes: how large these are together.
        new_bytes: how many of these bytes no earlier snapshot of the query holds.
        digest: SHA-256 digest of the list of its files, ``files.json``, in hexadecimal digits; empty for a snapshot of
            an earlier version, which has no such list.
        is_proven: whether Spark has loaded this state: the query's run has committed a batch upon it, or the files are
            those of an earlier snapshot of which that is so.
    """

    name: str
    query_id: str
    location: str
    sink: str | None
    path: str
    batch_id: int
    offsets: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    new_bytes: int = 0
    digest: str = ""
    is_proven: bool = False
