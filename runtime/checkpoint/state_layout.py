"""Which files make a version of an operator's state. Pure.

Batch N of a query reads version N of the state and writes version N + 1, in every partition of every store:

| provider | files of a store |
|---|---|
| HDFS-backed | ``<v>.delta`` for each version, ``<v>.snapshot`` now and then |
| RocksDB | ``<v>.zip`` for each version, which names files in ``SSTs/`` |
| RocksDB with changelog | ``<v>.changelog`` for each version, ``<v>.zip`` now and then |
| RocksDB, second form | the same with ``<v>_<unique id>``; the commit log says which of them count |

So a version is the latest whole file before it and all changes since. All of them are immutable.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from runtime.checkpoint.metadata_log import IncompleteError

_VERSION = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(delta|snapshot|changelog|zip)")
_WHOLE = ("snapshot", "zip")
_NUMBERED = re.compile(r"(\d+)(?:_.*)?")

DEFAULT_STORE = "default"


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of an operator: its name, how many partitions it has, where its schemas are (of newer operators)."""

    name: str
    partitions: int
    schemas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """What Spark's operator metadata say."""

    id: int
    name: str
    stores: tuple[StoreInfo, ...]
    properties: str = ""


@dataclass(slots=True)
class _Store:
    whole: dict[int, list[str]] = field(default_factory=dict)
    changes: dict[int, list[str]] = field(default_factory=dict)
    unique: bool = False


def read_operator(content: bytes) -> OperatorInfo:
    """Spark's operator metadata, of either form.

    Raises:
        IncompleteError: it is none, or cut short.
    """
    try:
        _, text = content.decode().split("\n", 1)
        raw = json.loads(text)
        stores = tuple(
            StoreInfo(
                str(store["storeName"]), int(store["numPartitions"]), tuple(store.get("stateSchemaFilePaths", ()))
            )
            for store in raw["stateStoreInfo"]
        )
        info = raw["operatorInfo"]
        return OperatorInfo(
            int(info["operatorId"]), str(info["operatorName"]), stores, str(raw.get("operatorPropertiesJson", ""))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteError(f"not the metadata of an operator: {error!r}") from error


def operator_metadata(files: Collection[str], batch_id: int) -> str | None:
    """The file below ``state/<operator>/`` that describes the operator as of a batch; None if there is none."""
    if "_metadata/metadata" in files:
        return "_metadata/metadata"
    second = (path.removeprefix("_metadata/v2/") for path in files if path.startswith("_metadata/v2/"))
    numbers = [int(name) for name in second if name.isdigit() and int(name) <= batch_id]
    return f"_metadata/v2/{max(numbers)}" if numbers else None


def described(files: Collection[str], batch_id: int) -> Iterator[str]:
    """The metadata and schemas below ``state/<operator>/``, without those of later batches."""
    for path in files:
        *directories, name = path.split("/")
        if any(part.startswith("_") for part in directories):
            match = _NUMBERED.fullmatch(name)
            if match is None or int(match[1]) <= batch_id:
                yield path


def files_of_version(
    files: Collection[str], version: int, ids: Collection[str], read: Callable[[str], bytes]
) -> list[str]:
    """The files of one store (a directory) that make one version.

    Args:
        files: what is there, relative to the store.
        version: of the state.
        ids: of which one is that version's, in the second form (a partition's stores have one each); none in the first.
        read: reads a file of the store.

    Raises:
        IncompleteError: there is no whole chain to that version.
        FileNotFoundError: what was listed is gone.
    """
    store = _sorted(files)
    if ids or store.unique:
        return _all_up_to(store, files, version, ids, read)
    missing = ""
    for base in [*sorted((number for number in store.whole if 0 < number <= version), reverse=True), 0]:
        try:
            whole = _with_ssts(store.whole[base], files, read) if base else []
            return whole + _changes(store, base, version)
        except IncompleteError as error:
            missing = missing or str(error)
    raise IncompleteError(missing)


def _sorted(files: Collection[str]) -> _Store:
    store = _Store()
    for path in files:
        match = _VERSION.fullmatch(path)
        if match is not None:
            kind = store.whole if match[3] in _WHOLE else store.changes
            kind.setdefault(int(match[1]), []).append(path)
            store.unique |= match[2] is not None
    return store


def _changes(store: _Store, base: int, version: int) -> list[str]:
    missing = [number for number in range(base + 1, version + 1) if number not in store.changes]
    if missing:
        raise IncompleteError(f"version {version} lacks the changes of {missing[0]}")
    return [path for number in range(base + 1, version + 1) for path in store.changes[number]]


def _all_up_to(
    store: _Store, files: Collection[str], version: int, ids: Collection[str], read: Callable[[str], bytes]
) -> list[str]:
    """In the second form a version's line of descent is in compressed files: take all that may belong to it."""
    present = [*store.whole.get(version, ()), *store.changes.get(version, ())]
    if ids and not any(path.startswith(f"{version}_{unique_id}.") for path in present for unique_id in ids):
        raise IncompleteError(f"version {version} with an id that was committed is missing")
    numbers = {number for number in [*store.whole, *store.changes] if number <= version}
    lowest = min(numbers, default=version)
    gaps = set(range(lowest, version + 1)) - numbers
    if gaps or (lowest > 1 and lowest not in store.whole):
        raise IncompleteError(f"version {version} lacks the changes of {min(gaps, default=lowest - 1)}")
    found = [path for number, paths in store.changes.items() if number <= version for path in paths]
    for number, paths in store.whole.items():
        if number <= version:
            found += _with_ssts(paths, files, read)
    return found


def _with_ssts(paths: list[str], files: Collection[str], read: Callable[[str], bytes]) -> list[str]:
    found = []
    for path in paths:
        found.append(path)
        if path.endswith(".zip"):
            found += _named_in_zip(path, read(path))
    missing = [path for path in found if path not in files]
    if missing:
        raise IncompleteError(f"{missing[0]} is missing")
    return found


def _named_in_zip(path: str, content: bytes) -> list[str]:
    """The files that a RocksDB snapshot refers to: Spark's ``RocksDBCheckpointMetadata``, one of the zip's files."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _, text = archive.read("metadata").decode().split("\n", 1)
        metadata = json.loads(text)
        return [
            *(f"SSTs/{file['dfsSstFileName']}" for file in metadata.get("sstFiles") or ()),
            *(f"logs/{file['dfsLogFileName']}" for file in metadata.get("logFiles") or ()),
        ]
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        raise IncompleteError(f"{path} is damaged: {error}") from error
