"""Encoding of job graphs and descriptors as bytes, for storage and for blobs."""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from runtime.feature_level import Format, can_read, readable_versions
from runtime.jobgraph.errors import JobGraphError, JobGraphVersionError
from runtime.jobgraph.job_graph import JobGraph

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Return any dataclass of the runtime as MessagePack. Raises `JobGraphError` where a text of it is not UTF-8."""
    try:
        packed: bytes = msgpack.packb(to_plain(value), use_bin_type=True)
    except UnicodeEncodeError as error:  # Python's surrogates for bytes of a command line or of a file's name
        raise JobGraphError(
            f"{error.object[:200]!a} is not UTF-8: the names, arguments and settings of a job have to be"
        ) from None
    return packed


def decode(data: bytes, kind: type[T]) -> T:
    """Return the value that `encode` was given.

    Raises:
        WireError: the bytes are not such a value.
    """
    value: T = from_plain(_unpack(data, kind), kind)
    return value


def decode_job_graph(data: bytes) -> JobGraph:
    """Return a stored or submitted job graph.

    Raises:
        WireError: the bytes are not a job graph.
        JobGraphVersionError: it was written in a format that this version does not read.
    """
    plain = _unpack(data, JobGraph)
    # First, since a job graph in another format may not look like one of this format.
    if isinstance(plain, dict) and not can_read(Format.JOB_GRAPH, version := plain.get("format_version")):
        readable = readable_versions(Format.JOB_GRAPH)
        raise JobGraphVersionError(
            f"job graph {plain.get('job_id')} is in format {version}, this version reads {readable}; "
            "use the same version of understudy for client and cluster"
        )
    graph: JobGraph = from_plain(plain, JobGraph)
    return graph


def _unpack(data: bytes, kind: type) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises several unrelated types on malformed input
        raise WireError(f"not an encoded {kind.__name__}: {type(error).__name__}: {error}") from error
