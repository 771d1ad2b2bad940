"""Which files make a version of an operator's state. Pure.

Batch N of a query reads version N of the state and writes version N + 1, in every partition of every store:

| provider | files of a store |
|---|---|
| HDFS-backed | ``<v>.delta`` for each version, ``<v>.snapshot`` now and then |
| RocksDB | ``<v>.zip`` for each version, which names files in ``SSTs/`` |
| RocksDB with changelog | ``<v>.changelog`` for each version, ``<v>.zip`` now and then |
| RocksDB, second form | the same with ``<v>_<unique id>``; the commit log says which of them count |

So a version is the latest whole file before it and all changes since. All of them are immutable. Of a store with column
families (transformWithState) the changes alone are no state, from the first version on: Spark writes the families into
whole files only.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
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
    files: Mapping[str, int],
    version: int,
    read: Callable[[str], bytes],
    *,
    ids: Mapping[int, Collection[str]] | None = None,
    needs_whole: bool = False,
    newest: bool = False,
) -> list[str]:
    """The files of one store (a directory) that make one version.

    Args:
        files: what is there, relative to the store, with sizes in bytes.
        version: of the state.
        read: reads a file of the store.
        ids: in the second form the ids that were committed, by version (a partition's stores have one each), as far
            as they are known.
        needs_whole: whether changes alone make no state: Spark writes the column families of a store into whole files
            only.
        newest: whether the newest whole file has to be usable, since Spark begins with that one; else an older one
            will do.

    Raises:
        IncompleteError: there is no whole chain to that version.
        FileNotFoundError: what was listed is gone.
    """
    store = _sorted(files, ids or {})
    missing = ""
    bases = sorted((number for number in store.whole if 0 < number <= version), reverse=True)
    for base in bases if needs_whole and bases else [*bases, 0]:
        try:
            if needs_whole and base == 0:
                raise IncompleteError(f"version {version} has no whole file to begin with")
            whole = _with_ssts(store.whole[base], files, read) if base else []
            return whole + _changes(store, base, version)
        except IncompleteError as error:
            if newest:
                raise
            missing = missing or str(error)
    raise IncompleteError(missing)


def _sorted(files: Collection[str], ids: Mapping[int, Collection[str]]) -> _Store:
    """The files of a store by version, without those of other runs where it is known which ids were committed."""
    store = _Store()
    for path in files:
        match = _VERSION.fullmatch(path)
        if match is not None and (int(match[1]) not in ids or match[2] in ids[int(match[1])]):
            kind = store.whole if match[3] in _WHOLE else store.changes
            kind.setdefault(int(match[1]), []).append(path)
    return store


def _changes(store: _Store, base: int, version: int) -> list[str]:
    missing = [number for number in range(base + 1, version + 1) if number not in store.changes]
    if missing:
        raise IncompleteError(f"version {version} lacks the changes of {missing[0]}")
    return [path for number in range(base + 1, version + 1) for path in store.changes[number]]


def _with_ssts(paths: list[str], files: Mapping[str, int], read: Callable[[str], bytes]) -> list[str]:
    found = list(paths)
    for path in paths:
        for name, size in _named_in_zip(path, read(path)) if path.endswith(".zip") else ():
            if name not in files:
                raise IncompleteError(f"{name} is missing, which {path} names")
            if size is not None and files[name] != size:
                raise IncompleteError(f"{name} has {files[name]} bytes in place of {size}")
            found.append(name)
    return found


def _named_in_zip(path: str, content: bytes) -> list[tuple[str, int | None]]:
    """The files that a RocksDB snapshot refers to, with their sizes: Spark's ``RocksDBCheckpointMetadata``."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _, text = archive.read("metadata").decode().split("\n", 1)
        metadata = json.loads(text)
        return [
            *((f"SSTs/{file['dfsSstFileName']}", file.get("sizeBytes")) for file in metadata.get("sstFiles") or ()),
            *((f"logs/{file['dfsLogFileName']}", file.get("sizeBytes")) for file in metadata.get("logFiles") or ()),
        ]
    except (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, KeyError, TypeError, EOFError) as error:
        raise IncompleteError(f"{path} is damaged: {error}") from error
