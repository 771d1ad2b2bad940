"""Which files of a checkpointLocation make batch N of a query. Pure: the listing and a reader are arguments.

What a restart at N reads: ``metadata``; the offsets and commits of N and of the batch before; of each file source's
log the entries up to N's offset; of every store of every operator version N + 1; of the file sink's log the entries up
to N. What is newer is left out, so that a restored query divides its input into batches as it did before. What is not
known (of other sources, of later versions of Spark) is kept whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from runtime.checkpoint.metadata_log import (
    BatchOffsets,
    IncompleteError,
    chain,
    compacted,
    entries,
    log_offset,
    read_offsets,
    read_query_id,
    read_unique_ids,
    source_chain,
)
from runtime.checkpoint.model import NOTHING_COMMITTED
from runtime.checkpoint.state_layout import (
    DEFAULT_STORE,
    OperatorInfo,
    described,
    files_of_version,
    operator_metadata,
    read_operator,
)

SINK_LOG = "_spark_metadata"
"""Directory of a file sink's log, below the sink's directory."""

_KNOWN = ("metadata", "offsets", "commits", "sources", "state")
_CHECKSUM = re.compile(r"(\.crc)+")

Read = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What makes one batch of a query.

    Args:
        batch_id: of the batch; `NOTHING_COMMITTED` if there is none.
        query_id: Spark's id of the query; empty where it has none yet.
        files: paths below the checkpointLocation, with their checksum files.
        offsets: at the end of that batch.
        operators: the stateful ones.
    """

    batch_id: int
    query_id: str
    files: tuple[str, ...]
    offsets: BatchOffsets
    operators: tuple[OperatorInfo, ...]


def last_commit(files: Iterable[str]) -> int:
    """The last batch that was committed, by the listing of a checkpointLocation; `NOTHING_COMMITTED` if none was."""
    names = (path.removeprefix("commits/") for path in files if path.startswith("commits/"))
    return max(entries(names), default=NOTHING_COMMITTED)


def files_of_batch(listing: Collection[str], batch_id: int, read: Read) -> BatchFiles:
    """Choose the files of a batch.

    Args:
        listing: all files of the checkpointLocation, as relative paths.
        batch_id: the batch: a committed one, or `NOTHING_COMMITTED`.
        read: reads one of them.

    Raises:
        IncompleteError: they are not all there.
        FileNotFoundError: what was listed is gone by now.
    """
    tree = _Tree(listing, read)
    offsets = BatchOffsets(())
    operators: tuple[OperatorInfo, ...] = ()
    query_id = read_query_id(read("metadata")) if "metadata" in tree.files else ""
    if batch_id == NOTHING_COMMITTED:
        # The first entry is what a source like Kafka's begins at; those of a file source do no harm.
        chosen = [path for path in tree.below("sources") if path.rsplit("/", 1)[-1] == "0"]
    else:
        if not query_id:
            raise IncompleteError("the file metadata is missing")
        before = batch_id - 1
        chosen = [*tree.need("offsets", batch_id), *tree.need("commits", batch_id), *tree.have("commits", before)]
        offsets, previous = read_offsets(read(f"offsets/{batch_id}")), BatchOffsets(())
        if batch_id > 0:
            chosen += tree.need("offsets", before)
            previous = read_offsets(read(f"offsets/{before}"))
        chosen += _sources(tree, offsets, previous)
        states, operators = _states(tree, batch_id)
        chosen += states
    chosen += ["metadata"] * bool(query_id)
    chosen += [path for path in tree.files if path.split("/", 1)[0] not in _KNOWN]
    return BatchFiles(batch_id, query_id, tree.with_checksums(chosen), offsets, operators)


def sink_files(names: Collection[str], batch_id: int) -> tuple[str, ...]:
    """The files of a file sink's log (names in ``_spark_metadata``) that make a batch, with their checksum files.

    Raises:
        IncompleteError: they are not all there.
    """
    return _Tree(names, lambda name: b"").with_checksums(chain(names, batch_id))


def abandoned_sink_files(names: Collection[str], batch_id: int) -> list[str]:
    """The files of a file sink's log that tell of batches after *batch_id*."""
    numbered = [*entries(names).items(), *compacted(names).items()]
    return [name for number, name in sorted(numbered) if number > batch_id]


class _Tree:
    """A listing by directory; checksums and temporary files apart."""

    def __init__(self, listing: Collection[str], read: Read) -> None:
        self.read = read
        self.files: set[str] = set()
        self._checksums: dict[str, list[str]] = defaultdict(list)
        for path in listing:
            directory, slash, name = path.rpartition("/")
            if name.endswith(".crc"):
                self._checksums[directory + slash + _CHECKSUM.sub("", name).removeprefix(".")].append(path)
            elif not name.startswith("."):
                self.files.add(path)

    def below(self, directory: str) -> list[str]:
        return [path for path in self.files if path.startswith(directory + "/")]

    def have(self, log: str, number: int) -> list[str]:
        return [f"{log}/{number}"] if f"{log}/{number}" in self.files else []

    def need(self, log: str, number: int) -> list[str]:
        found = self.have(log, number)
        if not found:
            raise IncompleteError(f"{log}/{number} is missing")
        return found

    def with_checksums(self, chosen: Iterable[str]) -> tuple[str, ...]:
        files = set(chosen)
        return tuple(sorted(files | {checksum for path in files for checksum in self._checksums.get(path, ())}))


def _grouped(paths: Iterable[str], depth: int) -> Mapping[str, list[str]]:
    """Paths by their first *depth* components; the values are relative to these."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = path.split("/")
        groups["/".join(parts[:depth])].append("/".join(parts[depth:]))
    return groups


def _sources(tree: _Tree, offsets: BatchOffsets, previous: BatchOffsets) -> list[str]:
    by_directory = dict(_grouped(tree.below("sources"), 2))
    lasts = [log_offset(offset) if offsets.is_positional else None for offset in offsets.sources]
    found: list[str] = []
    for place, last in enumerate(lasts):
        if last is not None:
            directory = f"sources/{place}"
            first = log_offset(previous.sources[place]) if place < len(previous.sources) else None
            names = source_chain(by_directory.pop(directory, ()), -1 if first is None else first, last)
            found += [f"{directory}/{name}" for name in names]
    return found + [f"{directory}/{name}" for directory, names in by_directory.items() for name in names]


def _states(tree: _Tree, batch_id: int) -> tuple[list[str], tuple[OperatorInfo, ...]]:
    found: list[str] = []
    operators: list[OperatorInfo] = []
    unique_ids = read_unique_ids(tree.read(f"commits/{batch_id}"))
    for directory, files in _grouped(tree.below("state"), 2).items():
        metadata = operator_metadata(files, batch_id)
        if metadata is None:
            raise IncompleteError(f"{directory} has no metadata of its operator as of batch {batch_id}")
        operator = read_operator(tree.read(f"{directory}/{metadata}"))
        operators.append(operator)
        found += [f"{directory}/{path}" for path in described(files, batch_id)]
        inside = _grouped(files, 1)
        by_partition = unique_ids.get(operator.id, [])
        for partition in range(1 if _is_single(operator, inside) else _partitions(operator)):
            ids = by_partition[partition] if partition < len(by_partition) else []
            for store in operator.stores:
                prefix = "" if store.name == DEFAULT_STORE else f"{store.name}/"
                paths = {
                    path.removeprefix(prefix) for path in inside.get(str(partition), ()) if path.startswith(prefix)
                }
                found += _version(tree, f"{directory}/{partition}/{prefix}", paths, batch_id + 1, ids)
    return found, tuple(sorted(operators, key=lambda operator: operator.id))


def _partitions(operator: OperatorInfo) -> int:
    return max((store.partitions for store in operator.stores), default=0)


def _is_single(operator: OperatorInfo, directories: Collection[str]) -> bool:
    """Whether all its rows are in partition 0, as those of a limit or of an aggregation without keys are.

    Its metadata do not tell: Spark writes the number of shuffle partitions there all the same. But every batch writes
    all partitions that there are, so others would be there too.
    """
    return not any(str(number) in directories for number in range(1, _partitions(operator)))


def _version(tree: _Tree, place: str, files: Collection[str], version: int, ids: Collection[str]) -> list[str]:
    """The files of one version of one store, whose directory *place* ends with a slash."""

    def read(path: str) -> bytes:
        return tree.read(place + path)

    try:
        return [place + path for path in files_of_version(files, version, ids, read)]
    except IncompleteError as error:
        raise IncompleteError(f"{place.removesuffix('/')}: {error}") from error
