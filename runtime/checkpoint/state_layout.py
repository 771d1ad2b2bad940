"""Choose the files that make a version of an operator's state. Pure.

Batch N of a query reads version N of the state and writes version N + 1, in every partition of every store:

| provider | files of a store |
|---|---|
| HDFS-backed | ``<v>.delta`` for each version, ``<v>.snapshot`` now and then |
| RocksDB | ``<v>.zip`` for each version, which names files in ``SSTs/`` |
| RocksDB with changelog | ``<v>.changelog`` for each version, ``<v>.zip`` now and then |
| RocksDB, second form | the same with ``<v>_<unique id>``; the commit log names those that count |

So a version consists of the latest whole file up to it, and of all later changes up to it. All files are immutable. A
store with column families (transformWithState) always needs a whole file, since only whole files contain the families.
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
    """A store of an operator: its name, its number of partitions, and the paths of its schemas (newer operators)."""

    name: str
    partitions: int
    schemas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """Spark's metadata of a stateful operator."""

    id: int
    name: str
    stores: tuple[StoreInfo, ...]
    properties: str = ""


@dataclass(slots=True)
class _Store:
    whole: dict[int, list[str]] = field(default_factory=dict)
    changes: dict[int, list[str]] = field(default_factory=dict)


def read_operator(content: bytes) -> OperatorInfo:
    """Parse Spark's operator metadata of either format.

    Raises:
        IncompleteError: the content is not such metadata, or is truncated.
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
    """Return the file below ``state/<operator>/`` that describes the operator as of a batch; None if there is none."""
    if "_metadata/metadata" in files:
        return "_metadata/metadata"
    second = (path.removeprefix("_metadata/v2/") for path in files if path.startswith("_metadata/v2/"))
    numbers = [int(name) for name in second if name.isdigit() and int(name) <= batch_id]
    return f"_metadata/v2/{max(numbers)}" if numbers else None


def described(files: Collection[str], batch_id: int) -> Iterator[str]:
    """Yield the metadata and schemas below ``state/<operator>/``, without those of later batches."""
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
    """Return the files of one store (a directory) that make one version.

    Args:
        files: all files relative to the store, with sizes in bytes.
        version: of the state.
        read: reads a file of the store.
        ids: the known committed ids by version, for the second form (a partition's stores have one each).
        needs_whole: whether a whole file is necessary, since the store has column families.
        newest: whether the newest whole file has to be usable, since Spark loads that one; otherwise an older one is
            enough.

    Raises:
        IncompleteError: no complete chain of files leads to that version.
        FileNotFoundError: a listed file has disappeared.
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
    """Return the files of a store by version, without those of other runs if the committed ids are known."""
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
    """Return the files that a RocksDB snapshot refers to, with their sizes: Spark's ``RocksDBCheckpointMetadata``."""
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
