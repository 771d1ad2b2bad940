"""Values of checkpoints: the location of a query, and its snapshot.

They travel by RPC and are stored as JSON (`actors.rpc.codec.to_plain`), so their fields have plain types.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NOTHING_COMMITTED = -1
"""The batch id of a snapshot of a query that had not committed any batch."""


@dataclass(frozen=True, slots=True)
class QueryLocation:
    """A streaming query and its files.

    Args:
        name: its identity in checkpoints (Flink's uid of an operator). This is its ``queryName``, or ``query-<n>``,
            where n counts the queries of its task from 0 in the order of their starts.
        location: its checkpointLocation, an absolute path or a URL.
        sink: the directory of its file sink, an absolute path or a URL; None for any other sink.
    """

    name: str
    location: str
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """The snapshot of one query in one checkpoint or savepoint (Flink's ``OperatorSubtaskState``, the state handle).

    Args:
        name: as `QueryLocation`.
        query_id: Spark's id of the query, which outlives its runs; empty where it had none yet.
        location: the checkpointLocation of which it was taken.
        sink: the directory of its file sink at that time, or None.
        path: directory of the snapshot: absolute in checkpoints, relative to the manifest in savepoints.
        batch_id: the last batch that it holds; `NOTHING_COMMITTED` where there was none.
        offsets: the sources' offsets at the end of that batch, as Spark's own JSON texts, one for each source.
        files: number of its files.
        bytes: their total size.
        new_bytes: number of these bytes that no earlier snapshot of the query holds.
        digest: SHA-256 digest of the list of its files, ``files.json``, in hexadecimal digits; empty for a snapshot of
            an earlier version, which has no such list.
        is_proven: whether Spark has loaded this state. This holds once a run has committed a batch on top of it. It
            also holds if the files are those of a proven earlier snapshot.
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
