"""The schemas of a state store, as Spark writes them beside it (``StateSchemaCompatibilityChecker``). Pure.

| form | content |
|---|---|
| v1 | the schemas of key and value |
| v2 | the same, each in chunks, since a Java text has at most 64 KB |
| v3 | for each column family: name, ids, both schemas, encoding of the key, the user's key (transformWithState) |

Texts have the format of Java's ``writeUTF``: two bytes of length, then UTF-8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runtime.checkpoint.metadata_log import IncompleteError

DEFAULT_FAMILY = "default"


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """One map of keys to values in a store; most stores have one, ``default``.

    Args:
        name: of the family; for a transformWithState, the name of the state variable.
        key: schema of its keys, as Spark's JSON of a struct.
        value: schema of its values, in the same form.
    """

    name: str
    key: str
    value: str


def read_schemas(content: bytes) -> tuple[ColumnFamily, ...]:
    """Return the column families of a schema file.

    Raises:
        IncompleteError: the file is truncated, or has an unknown format.
    """
    reader = _Reader(content)
    try:
        version = reader.text()
        if version == "v1":
            return (ColumnFamily(DEFAULT_FAMILY, reader.text(), reader.text()),)
        if version == "v2":
            return (ColumnFamily(DEFAULT_FAMILY, reader.chunks(), reader.chunks()),)
        if version == "v3":
            return tuple(reader.family() for _ in range(reader.number(">i")))
    except (struct.error, UnicodeDecodeError) as error:
        raise IncompleteError(f"the schemas of a state store are cut short: {error}") from error
    raise IncompleteError(f"the schemas of a state store have an unknown form {version!r}")


def schema_fields(schema: str) -> Iterator[tuple[str, str]]:
    """Yield name and type of each field of a struct in Spark's JSON; nested names have dots, as ``window.start``.

    Raises:
        IncompleteError: the text is not a schema.
    """
    try:
        yield from _fields("", json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteError(f"not a schema: {schema[:80]!r}") from error


def _fields(prefix: str, struct_type: Any) -> Iterator[tuple[str, str]]:
    for field in struct_type["fields"]:
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _fields(f"{prefix}{field['name']}.", kind)
        else:
            yield f"{prefix}{field['name']}", kind if isinstance(kind, str) else type_name(kind)


def type_name(kind: Any) -> str:
    """Return the SQL name of a type in Spark's JSON."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])},{type_name(kind['valueType'])}>"
    if kind["type"] == "struct":
        return f"struct<{','.join(f'{name}:{type_}' for name, type_ in _fields('', kind))}>"
    return str(kind["type"])


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        size = self.number(">H")
        data = self._content[self._at : self._at + size]
        if len(data) < size:
            raise struct.error(f"{size} bytes of text are not there")
        self._at += size
        return data.decode()

    def chunks(self) -> str:
        return "".join(self.text() for _ in range(self.number(">i")))

    def family(self) -> ColumnFamily:
        name = self.text()
        self.number(">h")  # the id of the schema, which increases when it evolves
        key = self.chunks()
        self.number(">h")
        value = self.chunks()
        self.chunks()  # the encoding of the key
        self.chunks()  # the user's key
        return ColumnFamily(name, key, value)
