"""Descriptions of a query's state: its sources, its stateful operators, their stores, keys and values. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from runtime.checkpoint.layout import BatchFiles
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.state_layout import DEFAULT_STORE, OperatorInfo, StoreInfo
from runtime.checkpoint.state_schema import ColumnFamily, read_schemas


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """A store of an operator; `families` is empty if Spark has not written the schemas."""

    name: str
    partitions: int
    families: tuple[ColumnFamily, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """A stateful operator: its number within the query, and Spark's name for its kind."""

    id: int
    name: str
    stores: tuple[StoreDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryDescription:
    """Properties of a query that decide whether it can continue from a state.

    Args:
        name: as in `QueryLocation`.
        sources: the kind of each source, as `source_kind` returns it; empty if the query never began a batch.
        operators: the stateful ones.
        conf: the settings of Spark that the query keeps from its first batch on.
        source_names: names of the sources, in the order of *sources*; empty if Spark knows them by their position.
    """

    name: str
    sources: tuple[str, ...] = ()
    operators: tuple[OperatorDescription, ...] = ()
    conf: dict[str, str] = field(default_factory=dict)
    source_names: tuple[str, ...] = ()


def source_kind(offset: str | None) -> str:
    """Return the kind of a source by its offset: ``file``, ``kafka:<topics>``, ``rate`` or ``other``.

    A source without an offset is ``unknown``.
    """
    if offset is None:
        return "unknown"
    try:
        value = json.loads(offset)
    except ValueError:
        return "other"
    if isinstance(value, dict) and list(value) == ["logOffset"]:
        return "file"
    if isinstance(value, dict) and value and all(isinstance(partitions, dict) for partitions in value.values()):
        return f"kafka:{','.join(sorted(value))}"
    return "rate" if isinstance(value, int) and not isinstance(value, bool) else "other"


def describe(name: str, batch: BatchFiles, read: Callable[[str], bytes]) -> QueryDescription:
    """Return the description of a query, from its checkpointLocation or a snapshot of it.

    Args:
        name: of the query.
        batch: the files.
        read: reads one of them.

    Raises:
        IncompleteError: a file is damaged.
    """
    return QueryDescription(
        name,
        tuple(source_kind(offset) for offset in batch.offsets.sources),
        tuple(_operator(operator, batch.files, read) for operator in batch.operators),
        dict(batch.offsets.conf),
        batch.offsets.names,
    )


def _operator(operator: OperatorInfo, files: Collection[str], read: Callable[[str], bytes]) -> OperatorDescription:
    stores = []
    for store in operator.stores:
        path = _schema_file(operator, store, files)
        try:
            families = read_schemas(read(path)) if path is not None else ()
        except IncompleteError as error:
            raise IncompleteError(f"{path}: {error}") from error
        stores.append(StoreDescription(store.name, store.partitions, families))
    return OperatorDescription(operator.id, operator.name, tuple(stores))


def _schema_file(operator: OperatorInfo, store: StoreInfo, files: Collection[str]) -> str | None:
    """Return the path of a store's schema file; None if it is not there.

    Newer operators' metadata name it by an absolute path, of which only the end counts. That of other operators has a
    fixed path.
    """
    if store.schemas:
        path = "/".join(("state", *store.schemas[-1].split("/")[-4:]))
    else:
        path = f"state/{operator.id}/0/{'' if store.name == DEFAULT_STORE else store.name + '/'}_metadata/schema"
    return path if path in files else None
