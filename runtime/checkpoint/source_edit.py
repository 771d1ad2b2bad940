"""Writes savepoints whose queries know their sources by other names, or read on from other offsets; needs no Spark.

Spark identifies the sources of a query by their position, unless they had names at its first start. Then no source can
be added, removed or moved. `named` gives the sources of such a query names, in the form that Spark itself writes:

- each file of the offset log has the version ``v2``, a name before each offset, and the setting that names count;
- the directory of a source's log bears its name.

`moved` replaces offsets. Both change the last two batches' files of the offset log alone; the batch stays the same.

`named`, `moved`, `check_names` and `check_offsets` are pure; the rest blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conf.files import make_private
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_files, list_names, take_files
from runtime.checkpoint.layout import SINK_LOG, sink_files
from runtime.checkpoint.manifest import EditedFrom, Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION, log_offset, read_offsets
from runtime.checkpoint.restore import restore_snapshot, rewrite
from runtime.checkpoint.savepoint import open_savepoint, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_choice import choose_query
from runtime.checkpoint.stored_snapshot import SINK
from runtime.checkpoint.work_directory import work_directory
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot

_NAME = re.compile(r"\w+", re.ASCII)


def named(content: bytes, names: Sequence[str]) -> bytes:
    """Return a file of the offset log whose sources have names.

    Args:
        content: of the file, which identifies them by their position.
        names: of all sources, in their order.
    """
    _, text, *offsets = content.decode().splitlines()
    metadata = json.loads(text)
    metadata["conf"] = {**metadata.get("conf", {}), SOURCE_EVOLUTION: "true"}
    lines = [f"{name}:{offset}" for name, offset in zip(names, offsets, strict=True)]
    return "\n".join(["v2", json.dumps({**metadata, "sourceMetadataInfo": {}}, separators=(",", ":")), *lines]).encode()


def moved(content: bytes, offsets: Mapping[int, str]) -> bytes:
    """Return a file of the offset log with other offsets.

    Args:
        content: of the file.
        offsets: the new ones by the number of their source.
    """
    version, metadata, *lines = content.decode().splitlines()
    names = read_offsets(content).names
    for number, offset in offsets.items():
        lines[number] = f"{names[number]}:{offset}" if names else offset
    return "\n".join([version, metadata, *lines]).encode()


def check_names(query: QueryDescription, names: Sequence[str]) -> None:
    """Check names for the sources of a query.

    Raises:
        SavepointError: a name is none, occurs twice, or the query has names or another number of sources.
    """
    kinds = ", ".join(kind.partition(":")[0] for kind in query.sources)
    if query.source_names:
        raise SavepointError(
            f"the sources of query {query.name!r} have names already: {', '.join(query.source_names)}",
            "use these names in the job",
        )
    if not query.sources:
        raise SavepointError(f"query {query.name!r} has committed no batch", "start it without this savepoint")
    if len(names) != len(query.sources):
        raise SavepointError(
            f"query {query.name!r} has {len(query.sources)} sources ({kinds}), and {len(names)} names are given",
            "give a name for each, in the order of the code that wrote the state",
        )
    for name in names:
        if not _NAME.fullmatch(name):
            raise SavepointError(
                f"{name!r} is not a valid name of a source", "use ASCII letters, digits and underscores"
            )
    if len(set(names)) < len(names):
        raise SavepointError("two sources have one name", "give each source a name of its own")


def check_offsets(query: QueryDescription, offsets: Mapping[str, str]) -> dict[int, str]:
    """Check new offsets for sources of a query, and return them by the numbers of the sources, each in one line.

    Args:
        query: the query.
        offsets: JSON texts by the names of the sources, or by their numbers if they have none.

    Raises:
        SavepointError: there is no such source, its offset cannot be replaced, or a text is not an offset of it.
    """
    places = query.source_names or tuple(map(str, range(len(query.sources))))
    found = {}
    for place, text in offsets.items():
        if place not in places:
            raise SavepointError(
                f"query {query.name!r} has no source {place!r}", f"there is: {', '.join(places) or 'none'}"
            )
        number = places.index(place)
        kind = query.sources[number].partition(":")[0]
        if kind == "file":
            raise SavepointError(
                f"source {place} of query {query.name!r} reads files; its offset counts entries of the query's own log",
                "give the source another path, or another name if sources have names",
            )
        try:
            value = json.loads(text)
        except ValueError as error:
            raise SavepointError(f"the offset of source {place} is not JSON: {error}", _SHOWN) from error
        is_offset = isinstance(value, dict | list | int) and not isinstance(value, bool)
        if kind == "kafka":
            is_offset = isinstance(value, dict) and bool(value) and all(map(_is_topic, value.values()))
        elif kind == "rate":
            is_offset = isinstance(value, int) and not isinstance(value, bool)
        if not is_offset or log_offset(text) is not None:
            raise SavepointError(f"{text} is not an offset of source {place}, which is {kind}", _SHOWN)
        found[number] = json.dumps(value, separators=(",", ":"))
    return found


_SHOWN = "`understudy savepoint info` shows the present offsets in their form"


def _is_topic(partitions: object) -> bool:
    return isinstance(partitions, dict) and all(
        number.isdecimal() and isinstance(offset, int) and offset >= 0 for number, offset in partitions.items()
    )


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A change that was checked: the savepoint, its query, where the result goes, and what becomes of its files."""

    savepoint: Savepoint
    query: SavepointQuery
    target: Path
    change: Callable[[bytes], bytes]
    directories: Mapping[str, str]


def plan_names(path: Path, target: Path, names: Sequence[str], query: str | None = None) -> SourcePlan:
    """Verify a savepoint, and check that the sources of a query can get these names; writes nothing.

    Args:
        path: of the savepoint.
        target: directory of the result, which must not exist.
        names: of all sources, in the order of the code that wrote the state.
        query: name of the query. Default: the only one.

    Raises:
        SavepointError: they cannot, or *target* exists.
    """
    savepoint, chosen = _chosen(path, target, query)
    check_names(chosen.description, names)
    places = {str(number): name for number, name in enumerate(names)}
    return SourcePlan(savepoint, chosen, target.absolute(), lambda content: named(content, names), places)


def plan_offsets(path: Path, target: Path, offsets: Mapping[str, str], query: str | None = None) -> SourcePlan:
    """Verify a savepoint, and check that a query can read on from other offsets; writes nothing.

    Args:
        path: of the savepoint.
        target: directory of the result, which must not exist.
        offsets: JSON texts by the names of the sources, or by their numbers if they have none.
        query: name of the query. Default: the only one.

    Raises:
        SavepointError: it cannot, or *target* exists.
    """
    savepoint, chosen = _chosen(path, target, query)
    checked = check_offsets(chosen.description, offsets)
    return SourcePlan(savepoint, chosen, target.absolute(), lambda content: moved(content, checked), {})


def _chosen(path: Path, target: Path, query: str | None) -> tuple[Savepoint, SavepointQuery]:
    savepoint = open_savepoint(path)
    if target.exists() or target.is_symlink():
        raise SavepointError(f"{target} exists already", "name a directory that does not exist")
    return savepoint, choose_query(savepoint, query)


def change_sources(plan: SourcePlan) -> Savepoint:
    """Write the savepoint of a plan; it appears when it is whole.

    Raises:
        SavepointError: a file cannot be written. There is no result then.
        SnapshotError: the state cannot be copied. There is no result then.
    """
    old, target = plan.savepoint, plan.target
    with work_directory(target, "sources", f"{old.path} cannot be changed to {target}") as work:
        snapshots = [_changed(plan, work) if one is plan.query else one.snapshot for one in old.queries]
        origin = EditedFrom(old.path, old.created_ms, (plan.query.snapshot.name,))
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, work=work, edited=origin)


def _changed(plan: SourcePlan, work: Path) -> QuerySnapshot:
    old, location = plan.query.snapshot, work / "location"
    restore_snapshot(old, location, None, copy=True)
    for name in list_files(location):
        if name.startswith("offsets/") and not name.endswith(".crc"):
            rewrite(location / name, plan.change((location / name).read_bytes()))
    logs = location / "sources"
    there = [place for place in plan.directories if (logs / place).is_dir()]
    for place in there:  # in two steps: a name may be the number of another source
        (logs / place).rename(logs / f".{place}")
    for place in there:
        (logs / f".{place}").rename(logs / plan.directories[place])
    sink = None if old.sink is None else work / "sink"
    if sink is not None:
        log = Path(old.path) / SINK
        make_private(sink / SINK_LOG)
        take_files(log, sink_files(list_names(log), old.batch_id), sink / SINK_LOG)
    taken = take_snapshot(
        QueryLocation(old.name, str(location), None if sink is None else str(sink)), work / "snapshot"
    )
    return replace(taken, location=old.location, sink=old.sink, is_proven=False)


def name_sources(path: str | Path, names: Sequence[str], to: str | Path, *, query: str | None = None) -> Savepoint:
    """Write a savepoint in which the sources of a query have names. Starts no Spark.

    Args:
        path: of the savepoint, which is verified first, and not changed.
        names: of all sources, in the order of the code that wrote the state.
        to: directory of the result, which must not exist; it appears when it is whole.
        query: name of the query. Default: the only one.

    Raises:
        SavepointError: the sources cannot get these names, or a file cannot be written.
        SnapshotError: the state cannot be copied.
    """
    return change_sources(plan_names(Path(path), Path(to), names, query))


def set_offsets(path: str | Path, offsets: Mapping[str, str], to: str | Path, *, query: str | None = None) -> Savepoint:
    """Write a savepoint from which a query reads on at other offsets. Starts no Spark.

    Args:
        path: of the savepoint, which is verified first, and not changed.
        offsets: JSON texts by the names of the sources, or by their numbers (``"0"``) if they have none.
        to: directory of the result, which must not exist; it appears when it is whole.
        query: name of the query. Default: the only one.

    Raises:
        SavepointError: an offset cannot be replaced, or a file cannot be written.
        SnapshotError: the state cannot be copied.
    """
    return change_sources(plan_offsets(Path(path), Path(to), offsets, query))
