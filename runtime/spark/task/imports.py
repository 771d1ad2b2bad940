"""Gives Spark's Python workers the surroundings of a job: its modules, its current directory, its variables.

Spark starts its workers in the driver's directory. Connect sends them files (`addArtifacts`), but no directories, and a
zipped directory cannot hold native extensions. So the `Surroundings` travel in front of each function (`carry`). A
worker that unpickles the function first changes its directory, and adds directories to its path. A worker may serve
several jobs in turn, each in its own directory. Workers of a job with modules or variables serve that job alone, so no
other job sees them.

Executors on other machines do not see the directories of this one. For them modules, archives and directories are
packed into one archive (`ShippedPath`), which Spark sends to each executor and unpacks there once. Its name is a digest
of its paths and their times. So jobs with the same environment share an archive, and two versions of a module have two.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark.cloudpickle
from pyspark.serializers import CloudPickleSerializer

_BATCH_WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
"""Spark's worker that calls the functions of `foreachBatch` of a Connect session."""

_SENDERS = (
    "pyspark.core.rdd",
    "pyspark.sql.connect.expressions",
    "pyspark.sql.connect.plan",
    "pyspark.sql.connect.streaming.readwriter",
)
"""PySpark's modules that pickle functions for its workers."""

_RESOLVER = "understudy.runtime.spark.task.working_directory"
"""Module of this package that resolves paths, by its name in that worker, which runs on the driver's machine."""


class Surroundings(NamedTuple):
    """Settings that a worker applies before it works for a job.

    Args:
        import_path: directories that are added to its path.
        directory: its current directory; empty leaves it unchanged.
        environment: JSON file of variables. They are not passed by value, since Spark logs functions with their values.
        resolves_paths: see `runtime.spark.spec.JobPlace`.
    """

    import_path: tuple[str, ...] = ()
    directory: str = ""
    environment: str = ""
    resolves_paths: bool = False


class _Carried:
    """A pickled value behind the surroundings that it needs."""

    def __init__(self, surroundings: tuple[Any, ...], data: bytes) -> None:
        self._surroundings = surroundings
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self._surroundings, self._data)


def _unpack(surroundings: tuple[Any, ...], data: bytes) -> Any:
    from pyspark import SparkFiles

    import_path, directory, environment, resolves_paths = surroundings
    found = [
        path if path.startswith("/") else os.path.join(SparkFiles.getRootDirectory(), path)  # noqa: PTH118
        for path in import_path
    ]
    missing = [path for path in found if path not in sys.path]
    sys.path[1:1] = missing
    if environment and os.path.isfile(environment):  # noqa: PTH113
        with open(environment) as file:  # noqa: PTH123
            os.environ.update(json.load(file))
    if directory and os.path.isdir(directory):  # noqa: PTH112
        os.chdir(directory)
    if getattr(sys.modules["__main__"].__spec__, "name", "") == _BATCH_WORKER:
        _carry(surroundings)  # its functions create functions for other workers
        if resolves_paths:
            importlib.import_module(_RESOLVER).resolve_paths(directory)
    value = pickle.loads(data)  # noqa: S301  # Spark's worker unpickles the job's functions in any case
    source = getattr(sys.modules.get("pyspark.sql.datasource"), "DataSource", ())
    if isinstance(value, source) or (isinstance(value, type) and issubclass(value, source)):
        _carry_from_planner(surroundings)
    return value


def carry(surroundings: Surroundings) -> None:
    """Attach *surroundings* to all functions that this process sends to Spark from now on."""
    register: Any = pyspark.cloudpickle.register_pickle_by_value
    register(sys.modules[__name__])  # a worker need not have this package
    _carry(tuple(surroundings))


def _carry(surroundings: tuple[Any, ...]) -> None:
    base: Any = CloudPickleSerializer

    class CarryingSerializer(base):  # type: ignore[misc]  # what PySpark calls its own class there is untyped
        def dumps(self, value: Any) -> bytes:
            packed: bytes = base.dumps(self, _Carried(surroundings, base.dumps(self, value)))
            return packed

    # The class itself stays as it is. Under its other name, `CPickleSerializer`, it also pickles rows, and values for
    # the JVM, which unpickles only what it knows.
    for module in _SENDERS:
        vars(importlib.import_module(module))["CloudPickleSerializer"] = CarryingSerializer


def _carry_from_planner(surroundings: tuple[Any, ...]) -> None:
    """Attach *surroundings* to what this worker sends to other workers, for which it plans."""
    serializer = importlib.import_module("pyspark.worker_util").pickleSer
    dump = type(serializer).dumps
    serializer.dumps = lambda value: dump(serializer, _Carried(surroundings, dump(serializer, value)))


class ShippedPath:
    """Modules, archives and directories that are sent to executors on other machines.

    Args:
        paths: modules, archives and directories, in their order on the path.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        stamps = "\0".join(f"{path}\0{Path(path).stat().st_mtime_ns}" for path in self._paths)
        self.name = f"understudy-{hashlib.blake2b(stamps.encode(), digest_size=12).hexdigest()}"

    @property
    def entries(self) -> list[str]:
        """Return the entries for a Python worker's path, relative to `SparkFiles.getRootDirectory`."""
        return list(dict.fromkeys(self._entry(number, Path(path)) for number, path in enumerate(self._paths)))

    def _entry(self, number: int, path: Path) -> str:
        place = f"{self.name}/{number:03d}"
        return place if path.is_dir() or path.suffix == ".py" else f"{place}/{path.name}"

    def pack(self, directory: Path) -> str:
        """Return the archive in *directory* in the form for `addArchive` and `addArtifacts`; create it if missing."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = directory / f"{self.name}.tar.gz"
        if not target.exists():
            unfinished = target.with_name(f".{os.getpid()}-{target.name}")  # another task may pack the same
            with tarfile.open(unfinished, "w:gz", compresslevel=1) as packed:
                for number, path in enumerate(map(Path, self._paths)):
                    packed.add(path, f"{number:03d}" if path.is_dir() else f"{number:03d}/{path.name}")
            unfinished.rename(target)
        return f"{target}#{self.name}"
