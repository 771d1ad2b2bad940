"""Lets the Python workers of a Connect session import from directories on this machine.

Connect hands its workers files (`addArtifacts`), but no directories, and a zipped one cannot hold native extensions. So
the directories travel in front of each function: unpickling it in a worker first puts them onto the worker's path. The
workers of a session with files of its own serve that session alone, so nobody else sees them. A relative directory is
one of the worker's own files: see `executor_archive`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import pyspark.cloudpickle
from pyspark.serializers import CloudPickleSerializer

_BATCH_WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
"""Spark's worker that calls the functions of `foreachBatch` of a Connect session."""


class _Carried:
    """A pickled value behind the directories that it needs."""

    def __init__(self, directories: tuple[str, ...], data: bytes) -> None:
        self._directories = directories
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self._directories, self._data)


def _unpack(directories: tuple[str, ...], data: bytes) -> Any:
    from pyspark import SparkFiles

    found = [
        path if path.startswith("/") else os.path.join(SparkFiles.getRootDirectory(), path)  # noqa: PTH118
        for path in directories
    ]
    missing = [path for path in found if path not in sys.path]
    sys.path[1:1] = missing
    if getattr(sys.modules["__main__"].__spec__, "name", "") == _BATCH_WORKER:
        _carry(directories)  # its functions make others, for other workers
    return pickle.loads(data)  # noqa: S301  # Spark's worker unpickles the job's functions in any case


def carry_path(directories: Sequence[str]) -> None:
    """From now on all functions that this process sends to Spark bring *directories* along."""
    register: Any = pyspark.cloudpickle.register_pickle_by_value
    register(sys.modules[__name__])  # a worker need not have this package
    _carry(tuple(directories))


def _carry(directories: tuple[str, ...]) -> None:
    dump: Any = CloudPickleSerializer.dumps

    def dumps(serializer: Any, value: Any) -> bytes:
        packed: bytes = dump(serializer, _Carried(directories, dump(serializer, value)))
        return packed

    patched: Any = CloudPickleSerializer
    patched.dumps = dumps
