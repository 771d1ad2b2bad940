"""The record of a cluster's tables: a directory by which the drivers of one machine share their in-memory catalogs.

Spark's in-memory catalog ends with its JVM, and no other JVM sees it. Its persistent catalog is Hive's, on a Derby
that one JVM opens at a time, and costs seconds at the first table. So each driver writes changes of its catalog into a
directory, and loads the changes of others from there.

The directory has a file for each database, table and view, which is written atomically. A file holds Spark's own
objects (`CatalogDatabase`; `CatalogTable` with its partitions, if the catalog has them), serialised by Java. The name
of a file is that of its entry. If that is too long for the disk, the file's name has a digest, and the name is read
from the content. The record never touches data. Where two drivers change one table at the same time, the last change
wins. An entry that cannot be written is logged once and retried at each save; the others are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from py4j.protocol import Py4JJavaError

from conf.files import make_private, write_private
from runtime.causes import cause_of
from runtime.spark.driver.jvm import JvmHandles

logger = logging.getLogger(__name__)

_DATABASE, _TABLE = ".database", ".table"
_DEFAULT = "default"
_TICK_NS = 50_000_000
_LONGEST = {_DATABASE: 236, _TABLE: 239}
"""Longest quoted names of files: a name on disk has 255 bytes, which include those of a temporary file's name."""
_CUT = "="
"""Stands between the beginning of a longer name and its digest; no quoted name has it."""
_KEPT = 100

Name = tuple[str, str]
"""A database and a table of it; the database itself has an empty table name."""

Signature = tuple[int, int, int]


class TableRecord:
    """Synchronises a driver's catalog with the record. Blocking; thread-safe.

    Args:
        handles: of the JVM.
        session: its root session.
        directory: of the record; created with the first entry.
    """

    def __init__(self, handles: JvmHandles, session: Any, directory: Path) -> None:
        self._handles = handles
        self._catalog: Any = session.sharedState().externalCatalog().unwrapped()
        self._directory = directory
        self._lock = threading.Lock()
        self._hashes: dict[Name, int] = {}
        """Hash of each entry in this driver's catalog at the last synchronisation."""
        self._files: dict[Name, Signature] = {}
        """Signature of each entry's file at that time."""
        self._partitioned: set[Name] = set()
        """Tables whose partitions are in the catalog."""
        self._cut: dict[Path, Name] = {}
        """Names of the entries whose files are named by a digest."""
        self._unsaved: dict[Name, tuple[Callable[[Name], None], str]] = {}
        """Entries whose change could not be written: the call that writes it, and why it failed."""
        self._catalog_hash: tuple[object, ...] | None = None
        self._directories: dict[Path, int] | None = None

    def load(self) -> None:
        """Load the changes of other drivers into the catalog; without a change this costs some calls of `stat`."""
        with self._lock:
            if self._catalog_hash is None and not self._files:
                self._save()  # a former owner of the driver may have been killed before it saved
            seen = self._modified()
            if seen == self._directories:
                return
            found = dict(self._entries())
            for name in sorted(found):  # a database before its tables
                if found[name] != self._files.get(name):
                    try:
                        self._take(name, found[name])
                    except (OSError, Py4JJavaError) as error:  # of another version of Spark, or of a dropped database
                        _warn_of_unusable(self._file(name), error)
            for name in sorted(self._files.keys() - found.keys(), reverse=True):
                self._forget(name)
            # Two changes within one tick of the file system's clock have the same time.
            is_settled = time.time_ns() - max(seen.values(), default=0) > _TICK_NS
            self._directories, self._catalog_hash = seen if is_settled else None, None

    def save(self) -> None:
        """Write the changes of this driver's catalog; without a change this costs two calls, and one per database."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        tables = {name: self._catalog.listTables(name) for name in _names(self._catalog.listDatabases())}
        now = tuple(self._hash_of_database(name, found) for name, found in tables.items())
        inside = {name: self._hash_of_partitions(name) for name in self._partitioned if name[0] in tables}
        if (now, inside) == self._catalog_hash:
            for name, (change, _) in list(self._unsaved.items()):
                self._attempt(change, name)
            return
        living = [(database, table) for database, found in tables.items() for table in ("", *_names(found))]
        gone = sorted(self._hashes.keys() - set(living), reverse=True)
        for name in self._unsaved.keys() - {*living, *gone}:
            del self._unsaved[name]
        for name in living:
            self._attempt(self._put, name)
        for name in gone:
            self._attempt(self._remove, name)
        self._partitioned &= set(living)
        self._catalog_hash = now, {name: self._hash_of_partitions(name) for name in self._partitioned}

    def _attempt(self, change: Callable[[Name], None], name: Name) -> None:
        """Write an entry's change; if that fails, log it once, and keep the change for the next save."""
        try:
            change(name)
        except (OSError, Py4JJavaError) as error:
            why = _why(error)
            if self._unsaved.get(name) != (change, why):
                kind = "table" if name[1] else "database"
                logger.warning("the change of %s %s is not recorded: %s", kind, ".".join(filter(None, name)), why)
            self._unsaved[name] = change, why
        else:
            self._unsaved.pop(name, None)

    # --- the catalog

    def _hash_of_database(self, name: str, tables: Any) -> tuple[str, int, int]:
        database = 0 if name == _DEFAULT else int(self._catalog.getDatabase(name).hashCode())
        inside = 0 if tables.isEmpty() else int(self._catalog.getTablesByName(name, tables).hashCode())
        return name, database, inside

    def _hash_of_partitions(self, name: Name) -> int:
        """Return a hash of a table's partitions; 0 for a dropped table, which changes its database's hash."""
        if not self._catalog.tableExists(*name):
            return 0
        return int(self._catalog.listPartitions(*name, self._handles.none).hashCode())

    def _definition(self, name: Name) -> Any:
        database, table = name
        return self._catalog.getTable(database, table) if table else self._catalog.getDatabase(database)

    def _hash_of(self, name: Name, definition: Any) -> int:
        """Return a hash of everything that the entry's file holds, and note whether the entry has partitions."""
        found = int(definition.hashCode())
        if name[1] and definition.tracksPartitionsInCatalog():
            self._partitioned.add(name)
            return hash((found, self._hash_of_partitions(name)))
        return found

    def _take(self, name: Name, signature: Signature) -> None:
        database, table = name
        definition, *inside = self._deserialised(self._file(name).read_bytes())
        if table and self._catalog.tableExists(database, table):
            self._catalog.alterTable(definition)
        elif table:
            self._catalog.createTable(definition, True)
        elif self._catalog.databaseExists(database):
            self._catalog.alterDatabase(definition)
        else:
            self._catalog.createDatabase(definition, True)
        if inside:
            self._take_partitions(name, *inside)
        self._files[name], self._hashes[name] = signature, self._hash_of(name, self._definition(name))

    def _take_partitions(self, name: Name, partitions: Any, names: str) -> None:
        """Create new and changed partitions, and drop those that are missing; do not touch their data."""
        self._catalog.createPartitions(*name, partitions, True)
        gone = set(self._partition_names(name).split("\n")) - set(names.split("\n"))
        specs = self._handles.jvm.java.util.ArrayList()
        for each in gone:
            specs.add(self._handles.partitioning.parsePathFragment(each))
        if gone:
            self._catalog.dropPartitions(*name, self._handles.as_scala(specs).toSeq(), True, True, True)

    def _partition_names(self, name: Name) -> str:
        return str(self._catalog.listPartitionNames(*name, self._handles.none).mkString("\n"))

    def _forget(self, name: Name) -> None:
        """Drop an entry that another driver has dropped, but not its data: new data may be at the same location."""
        database, table = name
        if table and self._catalog.tableExists(database, table):
            outside = self._changed(name, "tableType", self._handles.table_type.EXTERNAL())
            self._catalog.alterTable(outside)
            self._catalog.dropTable(database, table, True, True)
        elif not table and self._catalog.databaseExists(database):
            nowhere = self._handles.jvm.java.io.File(str(self._directory / "nowhere")).toURI()
            self._catalog.alterDatabase(self._changed(name, "locationUri", nowhere))
            self._catalog.dropDatabase(database, True, True)
        self._files.pop(name, None)
        self._hashes.pop(name, None)

    def _changed(self, name: Name, field_name: str, value: Any) -> Any:
        copy = self._handles.new_kryo().copyShallow(self._definition(name))
        field = copy.getClass().getDeclaredField(field_name)
        field.setAccessible(True)
        field.set(copy, value)
        return copy

    def _serialised(self, name: Name, definition: Any) -> bytes:
        parts = self._handles.jvm.java.util.ArrayList()
        parts.add(definition)
        if name in self._partitioned:
            parts.add(self._catalog.listPartitions(*name, self._handles.none))
            parts.add(self._partition_names(name))
        buffer = self._handles.jvm.java.io.ByteArrayOutputStream()
        stream = self._handles.jvm.java.io.ObjectOutputStream(buffer)
        stream.writeObject(parts)
        stream.close()
        return bytes(buffer.toByteArray())

    def _deserialised(self, data: bytes) -> Any:
        return self._handles.jvm.java.io.ObjectInputStream(
            self._handles.jvm.java.io.ByteArrayInputStream(data)
        ).readObject()

    # --- the files

    def _file(self, name: Name) -> Path:
        database, table = name
        directory = _stem(database, _DATABASE)
        return self._directory / directory / (f"{_stem(table, _TABLE)}{_TABLE}" if table else f"{directory}{_DATABASE}")

    def _put(self, name: Name) -> None:
        if name == (_DEFAULT, ""):
            return  # every catalog has one, at a location of its driver's own
        definition = self._definition(name)
        hashed = self._hash_of(name, definition)
        if self._hashes.get(name) == hashed:
            return
        file = self._file(name)
        make_private(file.parent, durable=True)
        write_private(file, self._serialised(name, definition))
        self._hashes[name], self._files[name] = hashed, _signature(file.stat())

    def _remove(self, name: Name) -> None:
        self._file(name).unlink(missing_ok=True)
        if not name[1]:
            with contextlib.suppress(OSError):  # another driver has made a table there
                self._file(name).parent.rmdir()
        self._hashes.pop(name, None)
        self._files.pop(name, None)

    def _modified(self) -> dict[Path, int]:
        """Return the modification times of the record's directories, which change when files are added or removed."""
        try:
            inside = [path for path in self._directory.iterdir() if path.is_dir()]
            return {path: path.stat().st_mtime_ns for path in (self._directory, *inside)}
        except FileNotFoundError:
            return {}

    def _entries(self) -> Iterator[tuple[Name, Signature]]:
        for directory in self._modified():
            if directory == self._directory:
                continue
            for file in directory.iterdir():
                if file.suffix in (_DATABASE, _TABLE) and not file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        name = self._name_of(file)
                        if name is not None:
                            yield name, _signature(file.stat())

    def _name_of(self, file: Path) -> Name | None:
        """Return the entry of a file; None if only its content names the entry, and cannot be read."""
        database, table = file.parent.name, "" if file.suffix == _DATABASE else file.stem
        if _CUT not in database + table:
            return unquote(database), unquote(table)
        if file not in self._cut:
            try:
                definition = self._deserialised(file.read_bytes())[0]
            except FileNotFoundError:
                raise
            except (OSError, Py4JJavaError) as error:
                _warn_of_unusable(file, error)
                return None
            if file.suffix == _DATABASE:
                self._cut[file] = str(definition.name()), ""
            else:
                identifier = definition.identifier()
                self._cut[file] = str(identifier.database().get()), str(identifier.table())
        return self._cut[file]


def _stem(name: str, suffix: str) -> str:
    """Return the name of an entry's file or directory without its suffix, unique for each entry."""
    quoted = quote(name, safe="")
    if len(quoted) <= _LONGEST[suffix]:
        return quoted
    return f"{quoted[:_KEPT]}{_CUT}{hashlib.sha256(name.encode()).hexdigest()}"


def _why(error: OSError | Py4JJavaError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return cause_of(str(error.java_exception))


def _warn_of_unusable(file: Path, error: OSError | Py4JJavaError) -> None:
    logger.warning("a table is left out, since its record %s cannot be used: %s", file, _why(error))


def _signature(found: os.stat_result) -> Signature:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _names(found: Any) -> list[str]:
    """Return the names in a Scala sequence, in one call: Spark allows only letters, digits and underscores in them."""
    return [name for name in str(found.mkString(",")).split(",") if name]
