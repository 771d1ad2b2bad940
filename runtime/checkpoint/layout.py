"""Choose the files of a checkpointLocation that make batch N of a query. Pure: the listing and a reader are arguments.

A restart at N reads:

- ``metadata``;
- the offsets and commits of N and of the batch before;
- the entries of each file source's log up to N's offset;
- version N + 1 of every store of every operator;
- the entries of the file sink's log up to N.

Newer files are left out, so that a restored query divides its input into the same batches as before. Unknown files (of
other sources, or of later versions of Spark) are all kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from runtime.checkpoint.metadata_log import (
    BatchOffsets,
    IncompleteError,
    compacted,
    entries,
    last_entry,
    log_offset,
    read_offsets,
    read_query_id,
    read_unique_ids,
    restart_chain,
    source_chain,
)
from runtime.checkpoint.state_layout import (
    DEFAULT_STORE,
    OperatorInfo,
    described,
    files_of_version,
    operator_metadata,
    read_operator,
)
from runtime.checkpoint.state_schema import read_schemas, schema_fields
from runtime.protocol.query_snapshot import NOTHING_COMMITTED

SINK_LOG = "_spark_metadata"
"""Directory of a file sink's log, below the sink's directory."""

_KNOWN = ("metadata", "offsets", "commits", "sources", "state")
_FOLDER = "_$folder$"  # Hadoop's mark of a directory in some object stores
_CHECKSUM = re.compile(r"(\.crc)+")

Read = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files and offsets of one batch of a query.

    Args:
        batch_id: of the batch; `NOTHING_COMMITTED` if there is none.
        query_id: Spark's id of the query; empty if it has none yet.
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
    """Return the last committed batch in the listing of a checkpointLocation; `NOTHING_COMMITTED` if there is none."""
    names = (path.removeprefix("commits/") for path in files if path.startswith("commits/"))
    return max(entries(names), default=NOTHING_COMMITTED)


def files_of_batch(listing: Mapping[str, int], batch_id: int, read: Read, *, newest: bool = False) -> BatchFiles:
    """Choose the files of a batch.

    Args:
        listing: all files of the checkpointLocation by their relative paths, with sizes in bytes.
        batch_id: the batch: a committed one, or `NOTHING_COMMITTED`.
        read: reads one of them.
        newest: see `files_of_version`.

    Raises:
        IncompleteError: a file is missing, empty or truncated.
        FileNotFoundError: a listed file has disappeared.
    """
    tree = _Tree(listing, read)
    offsets = BatchOffsets(())
    operators: tuple[OperatorInfo, ...] = ()
    query_id = read_query_id(read("metadata")) if "metadata" in tree.files else ""
    if batch_id == NOTHING_COMMITTED:
        # A source like Kafka's begins at its first entry; that of a file source does no harm.
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
        states, operators = _states(tree, batch_id, newest=newest)
        chosen += states
    chosen += ["metadata"] * bool(query_id)
    # Files of other sources than Spark's may be empty.
    empty = sorted(path for path in chosen if not tree.files[path] and not _is_foreign(path))
    if empty:
        raise IncompleteError(f"{empty[0]} is empty")
    chosen += [path for path in tree.files if path.split("/", 1)[0] not in _KNOWN]
    return BatchFiles(batch_id, query_id, tree.with_checksums(chosen), offsets, operators)


def files_of_restart(
    listing: Mapping[str, int], sink_log: Collection[str] | None, read: Read, *, begun: Iterable[str] = ()
) -> BatchFiles:
    """Choose the files that Spark reads when it starts a query on a live checkpointLocation.

    These are the files of the last committed batch and of a batch that was planned after it. Spark runs a planned batch
    again with the same input.

    Args:
        listing: all files of the checkpointLocation by their relative paths, with sizes in bytes.
        sink_log: the names in the file sink's log; None where the query has no file sink.
        read: reads a file of the location.
        begun: files of a snapshot that was taken before the first commit: the query's id, and where sources begin. A
            query without a commit that has lost them would begin elsewhere, with another division into batches.

    Raises:
        IncompleteError: a file is missing, empty or truncated.
        FileNotFoundError: a listed file has disappeared.
    """
    batch_id = last_commit(listing)
    lost = sorted(set(begun) - listing.keys()) if batch_id == NOTHING_COMMITTED else []
    if lost:
        raise IncompleteError(f"{lost[0]} is missing, which an earlier checkpoint has")
    batch = files_of_batch(listing, batch_id, read, newest=True)
    tree = _Tree(listing, read)
    planned = max(entries(path.removeprefix("offsets/") for path in tree.below("offsets")), default=NOTHING_COMMITTED)
    if sink_log is not None:
        written = last_entry(sink_log)
        if written > max(planned, batch_id):
            # The sink would skip the batch that Spark plans again under this number, and its rows would be lost.
            raise IncompleteError(f"offsets/{written} is missing, a batch that the file sink has in its log")
    if planned > batch_id:
        if planned > batch_id + 1:
            raise IncompleteError(f"commits/{planned - 1} is missing, though batch {planned} was planned after it")
        if "metadata" not in tree.files:
            raise IncompleteError("the file metadata is missing")
        more = ["metadata", *tree.need("offsets", planned)]
        more += _sources(tree, read_offsets(read(f"offsets/{planned}")), batch.offsets)
        batch = replace(batch, files=tuple(sorted({*batch.files, *tree.with_checksums(more)})))
    _check_leftovers(tree)
    _check_leftovers(_Tree({f"{SINK_LOG}/{name}": 0 for name in sink_log or ()}, read))
    return batch


def foreign_names(names: Mapping[str, bool], kept: Iterable[str]) -> list[str]:
    """Return the names in a directory that are not those of a checkpointLocation.

    A restore removes everything there, so it may be used on no other directory. Hidden files count as Spark's: they are
    checksums, temporary files, and marks.

    Args:
        names: all names in it, each with whether it is a directory.
        kept: paths of the files of the snapshot to restore, which may have sources of its own.
    """
    own = {*_KNOWN, *(path.split("/", 1)[0] for path in kept)}
    return sorted(
        name
        for name, is_directory in names.items()
        if name.removesuffix(_FOLDER) not in own and (is_directory or not name.startswith((".", "_")))
    )


def sink_files(names: Collection[str], batch_id: int) -> tuple[str, ...]:
    """Return the files of a file sink's log (names in ``_spark_metadata``) up to a batch, with their checksum files.

    Raises:
        IncompleteError: one is missing.
    """
    return _Tree(dict.fromkeys(names, 0), lambda name: b"").with_checksums(restart_chain(names, batch_id))


def abandoned_sink_files(names: Collection[str], batch_id: int) -> list[str]:
    """Return the files of a file sink's log that hold entries of batches after *batch_id*."""
    numbered = [*entries(names).items(), *compacted(names).items()]
    return [name for number, name in sorted(numbered) if number > batch_id]


class _Tree:
    """The files of a listing, with their checksum files held separately, and without temporary files."""

    def __init__(self, listing: Mapping[str, int], read: Read) -> None:
        self.read = read
        self.files: dict[str, int] = {}
        self._checksums: dict[str, list[str]] = defaultdict(list)
        for path, size in listing.items():
            directory, slash, name = path.rpartition("/")
            if name.endswith(".crc"):
                self._checksums[directory + slash + _CHECKSUM.sub("", name).removeprefix(".")].append(path)
            elif not name.startswith("."):
                self.files[path] = size

    @property
    def with_leftovers(self) -> set[str]:
        """The files, and the paths of which only the checksum files are left."""
        return self.files.keys() | self._checksums.keys()

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


def _check_leftovers(tree: _Tree) -> None:
    """Check that no old checksums are in the way of a file that Spark will write without overwriting.

    Hadoop renames a file to its final name, then its checksums. If there are checksums already, the query fails and
    leaves a file that does not agree with them. Checksums of purged entries do no harm.
    """
    for path in sorted(tree.with_leftovers - tree.files.keys()):
        top, (directory, _, name) = path.split("/", 1)[0], path.rpartition("/")
        if top not in (*_KNOWN, SINK_LOG) or _is_foreign(path) or name.startswith("."):
            continue
        if top == "state" and "/_" not in directory:
            continue  # Spark overwrites versions of a state
        number = last_entry([name])
        if number == NOTHING_COMMITTED or number > last_entry(
            file.rpartition("/")[2] for file in tree.below(directory)
        ):
            raise IncompleteError(f"{path} is missing, though its checksums are there")


def _is_foreign(path: str) -> bool:
    name = path.rpartition("/")[2]
    return path.startswith("sources/") and last_entry([name]) == NOTHING_COMMITTED


def _grouped(paths: Iterable[str], depth: int) -> Mapping[str, list[str]]:
    """Group paths by their first *depth* components; the values are relative to these."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = path.split("/")
        groups["/".join(parts[:depth])].append("/".join(parts[depth:]))
    return groups


def _sources(tree: _Tree, offsets: BatchOffsets, previous: BatchOffsets) -> list[str]:
    by_directory = dict(_grouped(tree.below("sources"), 2))
    before = dict(zip(previous.places, previous.sources, strict=False))
    found: list[str] = []
    for place, offset in zip(offsets.places, offsets.sources, strict=False):
        last = log_offset(offset)
        if last is not None:
            directory = f"sources/{place}"
            first = log_offset(before.get(place))
            names = source_chain(by_directory.pop(directory, ()), -1 if first is None else first, last)
            found += [f"{directory}/{name}" for name in names]
    return found + [f"{directory}/{name}" for directory, names in by_directory.items() for name in names]


def _states(tree: _Tree, batch_id: int, *, newest: bool) -> tuple[list[str], tuple[OperatorInfo, ...]]:
    found: list[str] = []
    operators: list[OperatorInfo] = []
    unique_ids = _committed_ids(tree, batch_id)
    there = _grouped([path for path in tree.with_leftovers if path.startswith("state/")], 2)
    for directory, names in there.items():
        files = [name for name in names if f"{directory}/{name}" in tree.files]
        metadata = operator_metadata(files, batch_id)
        if metadata is None:
            raise IncompleteError(f"{directory} has no metadata of its operator for batch {batch_id}")
        operator = read_operator(tree.read(f"{directory}/{metadata}"))
        operators.append(operator)
        found += [f"{directory}/{path}" for path in described(files, batch_id)]
        _check_schemas(tree, directory, operator)
        inside, partitions = _grouped(files, 1), {name.split("/", 1)[0] for name in names}
        for partition in range(1 if _is_single(tree, directory, operator, partitions) else _partitions(operator)):
            key = operator.id, partition
            ids = {number: by[key] for number, by in unique_ids.items() if key in by}
            for store in operator.stores:
                prefix = "" if store.name == DEFAULT_STORE else f"{store.name}/"
                place = f"{directory}/{partition}/{prefix}"
                sizes = {
                    path.removeprefix(prefix): tree.files[f"{directory}/{partition}/{path}"]
                    for path in inside.get(str(partition), ())
                    if path.startswith(prefix)
                }
                found += _version(tree, place, sizes, batch_id + 1, ids, bool(store.schemas), newest)
    return found, tuple(sorted(operators, key=lambda operator: operator.id))


def _committed_ids(tree: _Tree, batch_id: int) -> dict[int, dict[tuple[int, int], Collection[str]]]:
    """Return the ids that commits name, by version, operator and partition; none in the first form of state files."""
    last = read_unique_ids(tree.read(f"commits/{batch_id}"))
    if not last:
        return {}
    found: dict[int, dict[tuple[int, int], Collection[str]]] = {}
    for number in entries(path.removeprefix("commits/") for path in tree.below("commits")):
        if number <= batch_id:
            named = last if number == batch_id else read_unique_ids(tree.read(f"commits/{number}"))
            found[number + 1] = {
                (operator, partition): ids
                for operator, partitions in named.items()
                for partition, ids in enumerate(partitions)
            }
    return found


def _check_schemas(tree: _Tree, directory: str, operator: OperatorInfo) -> None:
    """Check that the schema files of an operator are there.

    Newer operators' metadata name them by absolute paths, of which only the end counts.
    """
    for store in operator.stores:
        for schema in store.schemas:
            path = "/".join((directory, *schema.split("/")[-3:]))
            if path not in tree.files:
                raise IncompleteError(f"{path} is missing, which the metadata of operator {operator.id} name")


def _partitions(operator: OperatorInfo) -> int:
    return max((store.partitions for store in operator.stores), default=0)


def _is_single(tree: _Tree, directory: str, operator: OperatorInfo, partitions: Collection[str]) -> bool:
    """Return whether all rows of an operator are in partition 0, as for a limit or an aggregation without keys.

    Its metadata do not say so, since Spark always writes the number of shuffle partitions there. But such an operator
    has empty keys. And every batch writes all partitions of an operator, so others would exist as well.
    """
    if any(str(number) in partitions for number in range(1, _partitions(operator))):
        return False
    schema = f"{directory}/0/_metadata/schema"
    if schema not in tree.files:
        return True
    return all(kind == "void" for family in read_schemas(tree.read(schema)) for _, kind in schema_fields(family.key))


def _version(
    tree: _Tree,
    place: str,
    files: Mapping[str, int],
    version: int,
    ids: Mapping[int, Collection[str]],
    needs_whole: bool,
    newest: bool,
) -> list[str]:
    """Return the files of one version of one store, whose directory *place* ends with a slash."""

    def read(path: str) -> bytes:
        return tree.read(place + path)

    try:
        chosen = files_of_version(files, version, read, ids=ids, needs_whole=needs_whole, newest=newest)
    except IncompleteError as error:
        raise IncompleteError(f"{place.removesuffix('/')}: {error}") from error
    return [place + path for path in chosen]
