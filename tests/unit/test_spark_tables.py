"""The record of a cluster's tables, over a catalog that is written in Python."""

from __future__ import annotations

import errno
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from runtime.spark.driver.jvm import JvmHandles
from runtime.spark.driver.tables import TableRecord

LONG = "v" * 300
ALMOST = "w" * 239
"""The longest name of a table that earlier releases could record."""


@dataclass(frozen=True)
class Database:
    """Stands for `CatalogDatabase`."""

    called: str

    def name(self) -> str:
        return self.called

    def hashCode(self) -> int:  # noqa: N802
        return hash(self)


@dataclass(frozen=True)
class Table:
    """Stands for `CatalogTable`, and for its identifier."""

    inside: str
    called: str
    text: str = ""

    def identifier(self) -> Any:
        return SimpleNamespace(database=lambda: SimpleNamespace(get=lambda: self.inside), table=lambda: self.called)

    def tracksPartitionsInCatalog(self) -> bool:  # noqa: N802
        return False

    def hashCode(self) -> int:  # noqa: N802
        return hash(self)


class Names(list[str]):
    """Stands for a Scala sequence of names."""

    def isEmpty(self) -> bool:  # noqa: N802
        return not self

    def mkString(self, between: str) -> str:  # noqa: N802
        return between.join(self)


class Catalog:
    """Stands for Spark's in-memory catalog."""

    def __init__(self) -> None:
        self.databases = {"default": Database("default")}
        self.tables: dict[tuple[str, str], Table] = {}

    def add(self, *names: str, database: str = "default", text: str = "") -> None:
        self.databases.setdefault(database, Database(database))
        for name in names:
            self.tables[database, name] = Table(database, name, text)

    def listDatabases(self) -> Names:  # noqa: N802
        return Names(sorted(self.databases))

    def listTables(self, database: str) -> Names:  # noqa: N802
        return Names(sorted(name for inside, name in self.tables if inside == database))

    def getDatabase(self, name: str) -> Database:  # noqa: N802
        return self.databases[name]

    def getTable(self, database: str, name: str) -> Table:  # noqa: N802
        return self.tables[database, name]

    def getTablesByName(self, database: str, names: Names) -> Any:  # noqa: N802
        found = tuple(self.tables[database, name] for name in names)
        return SimpleNamespace(hashCode=lambda: hash(found))

    def tableExists(self, database: str, name: str) -> bool:  # noqa: N802
        return (database, name) in self.tables

    def databaseExists(self, name: str) -> bool:  # noqa: N802
        return name in self.databases

    def createTable(self, table: Table, _ignore: bool) -> None:  # noqa: N802
        self.tables[table.inside, table.called] = table

    def alterTable(self, table: Table) -> None:  # noqa: N802
        self.tables[table.inside, table.called] = table

    def createDatabase(self, database: Database, _ignore: bool) -> None:  # noqa: N802
        self.databases[database.called] = database


class Record(TableRecord):
    """A driver's record, whose entries Python serialises."""

    def _serialised(self, name: tuple[str, str], definition: Any) -> bytes:
        return pickle.dumps([definition])

    def _deserialised(self, data: bytes) -> Any:
        return pickle.loads(data)

    def _forget(self, name: tuple[str, str]) -> None:
        self._catalog.tables.pop(name)
        self._files.pop(name), self._hashes.pop(name)


R = TypeVar("R", bound=TableRecord)


def opened(kind: type[R], catalog: Catalog, directory: Path) -> R:
    state = SimpleNamespace(externalCatalog=lambda: SimpleNamespace(unwrapped=lambda: catalog))
    return kind(cast(JvmHandles, None), SimpleNamespace(sharedState=lambda: state), directory)


def test_names_that_are_too_long_for_a_file_are_recorded_with_all_others(tmp_path: Path) -> None:
    catalog, other = Catalog(), Catalog()
    catalog.add("a", LONG, f"{LONG}x", ALMOST, "z")
    catalog.add("b", LONG, database="d" * 240)
    writes, reads = opened(Record, catalog, tmp_path), opened(Record, other, tmp_path)
    writes.save()
    assert (tmp_path / "default" / f"{ALMOST}.table").is_file(), "as earlier releases name it"
    reads.load()
    assert (other.tables, other.databases) == (catalog.tables, catalog.databases)
    del catalog.tables["default", LONG]
    catalog.add(f"{LONG}x", text="changed")
    writes.save()
    reads.load()
    assert other.tables == catalog.tables


class Full(Record):
    """A record on a disk that has no space for some entries."""

    without_space: tuple[str, ...] = ("b",)

    def _serialised(self, name: tuple[str, str], definition: Any) -> bytes:
        if name[1] in self.without_space:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super()._serialised(name, definition)


def test_an_entry_that_cannot_be_written_is_named_once_and_retried_and_the_others_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, other = Catalog(), Catalog()
    catalog.add("a", "b", "c")
    writes = opened(Full, catalog, tmp_path)
    with caplog.at_level(logging.WARNING):
        writes.save()
        writes.save()
        catalog.add("d")
        writes.save()
    assert [record.getMessage() for record in caplog.records] == [
        "the change of table default.b is not recorded: No space left on device"
    ]
    reads = opened(Record, other, tmp_path)
    reads.load()
    assert sorted(name for _, name in other.tables) == ["a", "c", "d"]
    writes.without_space = ()
    writes.save()
    reads.load()
    assert other.tables == catalog.tables


def test_a_long_name_whose_file_cannot_be_read_keeps_no_other_table_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, other = Catalog(), Catalog()
    catalog.add("a", LONG)
    opened(Record, catalog, tmp_path).save()
    [file] = (tmp_path / "default").glob("*=*")

    class Unreadable(Record):
        def _deserialised(self, data: bytes) -> Any:
            if LONG.encode() in data:
                raise OSError(errno.EIO, "Input/output error")
            return super()._deserialised(data)

    opened(Unreadable, other, tmp_path).load()
    assert [name for _, name in other.tables] == ["a"]
    assert f"its record {file} cannot be used: Input/output error" in caplog.text
