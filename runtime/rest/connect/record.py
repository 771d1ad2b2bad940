"""The record of a named session: which calls change the session, and which of them rebuild it. Pure.

A call is recorded before it is passed on, and is certain once Spark has answered it. A call that Spark refuses is
removed again. So a record never misses a change, wherever its gateway is killed. A call that is not certain is replayed
too, and may then fail.

Later calls make earlier ones superfluous, such as a view that replaces one of the same name. The earlier call stays in
the record if a call between the two may depend on it, because its text contains the name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from runtime.rest.connect.requests import (
    InvalidRequestError,
    all_of,
    field,
    fields_of,
    last_of,
    number_of,
    only,
    without,
)

NAME_KEY = "session_name"
"""The parameter of a connection URL that names a session. PySpark's client sends it as metadata of each call."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ADD_ARTIFACTS = "AddArtifacts"
MOST_ENTRIES = 1000
MOST_PLAN = 100 << 20
"""Most bytes of a compressed command that is recorded: a replay has to fit into a message of Spark's."""
_MOST_FORGOTTEN = 1000
_KEPT = {"ExecutePlan": (3,), "Config": (3,), ADD_ARTIFACTS: (3, 4, 5)}
"""By method: the fields of a request that are recorded. The others belong to its session, user and connection."""
_NOT_ONLY_READ = frozenset({200, 300, 998, 999})
"""Fields of a relation that may change something: of the catalog, of ML, extensions, and what is not known."""
_CACHE = "cache/"
"""Beginning of the artifacts that hold local data of DataFrames."""


class RecordError(Exception):
    """A call cannot be recorded, or a record cannot be read; the message has the remedy, on one line."""


class Kind(StrEnum):
    """Kind of a change that a call makes; the value is for messages."""

    SETTING = "setting"
    VIEW = "temporary view"
    FUNCTION = "function"
    TABLE_FUNCTION = "table function"
    SOURCE = "data source"
    ARTIFACT = "artifact"
    STATEMENT = "statement"


_REPLACED = frozenset({Kind.VIEW, Kind.FUNCTION, Kind.TABLE_FUNCTION, Kind.SOURCE})


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a session, as a call makes it.

    Args:
        kind: of the change.
        names: what it changes, in lower case except for artifacts and settings.
        text: of the call, in which names of other changes are searched.
        messages: requests that make the change in another session.
        removes: whether it removes what has these names.
        needs_one: whether it concerns the session only if something has one of these names.
    """

    kind: Kind
    names: tuple[str, ...]
    text: bytes
    messages: tuple[bytes, ...]
    removes: bool = False
    needs_one: bool = False

    @property
    def content(self) -> bytes:
        """The messages as one text, for `messages_in`."""
        return b"".join(field(1, message) for message in self.messages)


def messages_in(content: bytes) -> list[bytes]:
    """Return the messages of the content of a change; raises `InvalidRequestError`."""
    return all_of(content, 1)


# ------------------------------------------------------------------ calls


def change_of(method: str, requests: Sequence[bytes]) -> Change | None:
    """Return the change that a call makes; None if it makes none that is recorded.

    Args:
        method: of the service.
        requests: all of the call.

    Raises:
        InvalidRequestError: a request is not a message of Spark Connect.
        RecordError: a compressed command is too large.
    """
    match method:
        case "ExecutePlan":
            return _change_by_plan(_uncompressed(b"".join(all_of(requests[0], 3))))
        case "Config":
            return _change_by_config(requests[0])
        case "AddArtifacts":
            messages = tuple(only(request, _KEPT[method]) for request in requests)
            return Change(Kind.ARTIFACT, tuple(_artifacts(messages)), b"", messages)
    return None


def is_query(method: str, request: bytes) -> bool:
    """Return whether a call only reads, so that it may be repeated: the plan is a relation, and none of the catalog's.

    Raises:
        InvalidRequestError: the request is not a message of Spark Connect.
    """
    plan = b"".join(all_of(request, 3)) if method == "ExecutePlan" else b""
    relations = {number for root in all_of(plan, 1) for number, _, _, _ in fields_of(root)}
    return bool(relations) and not relations & _NOT_ONLY_READ and not all_of(plan, 2) and not all_of(plan, 3)


def _change_by_config(request: bytes) -> Change | None:
    operation = b"".join(all_of(request, 3))
    pairs = [last_of(pair, 1) for to_set in all_of(operation, 1) for pair in all_of(to_set, 1)]
    keys = pairs + [key for to_unset in all_of(operation, 6) for key in all_of(to_unset, 1)]
    if not keys:
        return None
    return Change(Kind.SETTING, tuple(_text(key) for key in keys), b"", (only(request, _KEPT["Config"]),))


def _artifacts(messages: Sequence[bytes]) -> list[str]:
    names = []
    for message in messages:
        names += [_text(last_of(each, 1)) for batch in all_of(message, 3) for each in all_of(batch, 1)]
        names += [_text(last_of(begin, 1)) for begin in all_of(message, 4)]
    return names


def _uncompressed(plan: bytes) -> bytes:
    """Return a plan as it is without compression, which clients use for large ones."""
    compressed = b"".join(all_of(plan, 3))
    if not compressed:
        return plan
    if number_of(compressed, 2) != 2 or number_of(compressed, 3) != 1:  # a query, or in a way that is not known here
        return b""
    import zstandard  # which is PySpark's for these plans

    try:
        with zstandard.ZstdDecompressor().stream_reader(last_of(compressed, 1)) as reader:
            command = reader.read(MOST_PLAN + 1)
    except zstandard.ZstdError as error:
        raise InvalidRequestError(f"the compressed plan cannot be read: {error}") from None
    if len(command) > MOST_PLAN:
        raise RecordError(
            f"a command of a named session may have {_size(MOST_PLAN)}: use a session without session_name, or read "
            "the data from files"
        )
    return field(2, command)


def _change_by_plan(plan: bytes) -> Change | None:
    command, messages = b"".join(all_of(plan, 2)), (field(3, plan),)
    if view := b"".join(all_of(command, 3)):
        if number_of(view, 3):  # a global view is the driver's, not the session's
            return None
        return Change(Kind.VIEW, (_name(last_of(view, 2)),), b"".join(all_of(view, 1)), messages)
    for number, kind in ((1, Kind.FUNCTION), (10, Kind.TABLE_FUNCTION), (12, Kind.SOURCE)):
        if registered := b"".join(all_of(command, number)):
            return Change(kind, (_name(last_of(registered, 1)),), b"", messages)
    if sql := b"".join(all_of(command, 5)):
        return _change_by_sql(sql, messages)
    catalog = b"".join(all_of(b"".join(all_of(plan, 1)), 200))
    if dropped := b"".join(all_of(catalog, 15)):
        name = _name(last_of(dropped, 1))
        return Change(Kind.VIEW, (name,), b"", messages, removes=True, needs_one=True)
    if all_of(catalog, 2) or all_of(catalog, 25):  # the current database or catalog
        return Change(Kind.STATEMENT, (), catalog, messages)
    return None


_SPACE = r"(?>\s+|--[^\n]*|/\*.*?\*/)"
_GAP, _ANY = f"{_SPACE}++", f"{_SPACE}*+"
"""Possessive, so that no text takes long to match."""
_NAMED = rf"(?:if{_GAP}(?:not{_GAP})?exists{_GAP})?(?P<name>`[^`]+`|\w++)(?!{_ANY}\.)"
_TEMPORARY = rf"temp(?:orary)?{_GAP}"
_CREATE = rf"create{_GAP}(?:or{_GAP}replace{_GAP})?{_TEMPORARY}"


def _sql(pattern: str) -> re.Pattern[str]:
    return re.compile(f"{_ANY}{pattern}", re.IGNORECASE | re.DOTALL)


_SQL = (
    (_sql(rf"{_CREATE}(?:view|table){_GAP}{_NAMED}"), Kind.VIEW, "makes"),
    (_sql(rf"{_CREATE}function{_GAP}{_NAMED}"), Kind.FUNCTION, "makes"),
    (_sql(rf"alter{_GAP}(?:view|table){_GAP}{_NAMED}"), Kind.VIEW, "alters"),
    (_sql(rf"drop{_GAP}(?:view|table){_GAP}{_NAMED}"), Kind.VIEW, "removes"),
    (_sql(rf"drop{_GAP}{_TEMPORARY}function{_GAP}{_NAMED}"), Kind.FUNCTION, "removes"),
    (_sql(rf"set{_GAP}(?:var|variable|catalog|time{_GAP}zone|path)\b"), Kind.STATEMENT, ""),
    (_sql(rf"set{_GAP}(?P<name>`[^`]+`|[\w.-]++){_ANY}="), Kind.SETTING, ""),
    (_sql(rf"(?:use|reset|declare)\b|drop{_GAP}{_TEMPORARY}variable\b"), Kind.STATEMENT, ""),
    (_sql(rf"add{_GAP}(?:jar|file|archive)s?\b"), Kind.STATEMENT, ""),
)


def _change_by_sql(command: bytes, messages: tuple[bytes, ...]) -> Change | None:
    relation = b"".join(all_of(command, 6))
    if with_others := b"".join(all_of(relation, 41)):
        relation = b"".join(all_of(with_others, 1))
    statement = b"".join(all_of(relation, 10))
    query = _text(last_of(statement, 1) or last_of(command, 1))
    for pattern, kind, what in _SQL:
        if (found := pattern.match(query)) is None:
            continue
        if kind is Kind.STATEMENT:
            return Change(kind, (), command, messages)
        name = found["name"].strip("`")
        if kind is Kind.SETTING:
            return Change(kind, (name,), b"", messages)
        # The own name is not a dependency, unless the former one may remain.
        at = 0 if what == "alters" or "exists" in found[0][: found.start("name")].lower() else found.end()
        text = query[at:].encode() + without(statement, 1)
        removes = what == "removes"
        return Change(kind, (name.casefold(),), b"" if removes else text, messages, removes, what != "makes")
    return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _name(value: bytes) -> str:
    return _text(value).strip("`").casefold()


# ------------------------------------------------------------------ records


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded call.

    Args:
        number: of the entry, unique in its record.
        method: of the service.
        kind: of its `Change`.
        names: of its change.
        digest: SHA-256 of its content, as hex digits.
        size: of its content, in bytes.
        uses: names of earlier entries on which it may depend.
        removes: as in `Change`.
        is_certain: whether Spark has answered the call without an error.
    """

    number: int
    method: str
    kind: Kind
    names: tuple[str, ...]
    digest: str
    size: int
    uses: tuple[str, ...] = ()
    removes: bool = False
    is_certain: bool = False

    @property
    def shown(self) -> str:
        """The entry in words, without anything secret."""
        what = "the removal of " if self.removes else ""
        return f"{what}the {self.kind} {', '.join(self.names)}".rstrip()


class Stage(StrEnum):
    """Progress of a session on its driver."""

    WAITING = "waiting"
    """Its job has been submitted, and nothing has been replayed."""
    REPLAYING = "replaying"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The record of a named session.

    Args:
        user: owner of the session; empty for a holder of one of the cluster's own secrets.
        name: of the session, unique among those of its user.
        shown_id: to show to clients as Spark's id of the session, whichever driver has it.
        session_id: of the session on its driver; each driver gets another one.
        stage: how far the session is on this driver.
        rebuilt: how often the session has been rebuilt on another driver.
        entries: the recorded calls, in their order.
        forgotten: hashes of local data that have been removed to save space.
        next_number: of the next entry.
    """

    user: str
    name: str
    shown_id: str
    session_id: str
    stage: Stage = Stage.WAITING
    rebuilt: int = 0
    entries: tuple[Entry, ...] = ()
    forgotten: tuple[str, ...] = ()
    next_number: int = 0

    @property
    def size(self) -> int:
        """The size of all contents, in bytes."""
        return sum(entry.size for entry in self.entries)

    def with_change(self, method: str, change: Change, most_bytes: int) -> tuple[SessionRecord, Entry | None]:
        """Return the record with a call that is not certain yet, and its entry; None if the record need not have it.

        Args:
            method: of the call.
            change: that it makes.
            most_bytes: limit of all contents.

        Raises:
            RecordError: the record would be too large.
        """
        if change.needs_one and not self._has_one(change):
            return self, None
        if any(name in change.text.decode("latin-1") for name in self.forgotten):
            raise RecordError(
                f"the record of the named session {self.name} has no room for local data of {change.names[0]}: "
                "make the DataFrame from a file, or raise connect.session.most-recorded"
            )
        content = change.content
        uses = _uses(change.text, self.entries)
        digest = hashlib.sha256(content).hexdigest()
        entry = Entry(self.next_number, method, change.kind, change.names, digest, len(content), uses, change.removes)
        made = replace(self, next_number=self.next_number + 1)._with_room(entry, most_bytes)
        return replace(made, entries=(*made.entries, entry)), entry

    def _has_one(self, change: Change) -> bool:
        return any(each.kind is change.kind and set(each.names) & set(change.names) for each in self.entries)

    def _with_room(self, entry: Entry, most_bytes: int) -> SessionRecord:
        """Return the record without the oldest local data that no entry uses, as far as the new entry needs room."""
        kept, forgotten = list(self.entries), list(self.forgotten)
        size = self.size + entry.size
        used = {name for each in (*kept, entry) for name in each.uses}
        for each in self.entries:
            if size <= most_bytes and len(kept) < MOST_ENTRIES:
                break
            if _is_local_data(each) and not used & set(_searched(each)):
                kept.remove(each)
                forgotten += _searched(each)
                size -= each.size
        if size > most_bytes or len(kept) >= MOST_ENTRIES:
            raise RecordError(
                f"the record of the named session {self.name} has no room for {entry.shown}: it has {len(kept)} calls "
                f"of {_size(size - entry.size)} and may have {MOST_ENTRIES} of {_size(most_bytes)}; raise "
                "connect.session.most-recorded, or use a session without session_name"
            )
        return replace(self, entries=tuple(kept), forgotten=tuple(forgotten[-_MOST_FORGOTTEN:]))

    def certain(self, number: int) -> SessionRecord:
        """Return the record after Spark has answered a call; a superfluous entry is left out."""
        entries = [replace(each, is_certain=True) if each.number == number else each for each in self.entries]
        at = 0
        while at < len(entries):
            if _is_superfluous(entries, at):
                del entries[at]
                at = 0
            else:
                at += 1
        return replace(self, entries=tuple(entries))

    def without(self, number: int) -> SessionRecord:
        """Return the record without a call that Spark has refused."""
        return replace(self, entries=tuple(each for each in self.entries if each.number != number))

    def on_another_driver(self, session_id: str) -> SessionRecord:
        """Return the record of the session when it is begun anew, under another id."""
        return replace(self, session_id=session_id, stage=Stage.WAITING, rebuilt=self.rebuilt + 1)

    def at(self, stage: Stage) -> SessionRecord:
        """Return the record of the session when it is so far."""
        return replace(self, stage=stage)

    def to_json(self) -> str:
        """Return the record as the text of its file."""
        return json.dumps(asdict(self), sort_keys=True)


def decode_record(text: str) -> SessionRecord:
    """Return the record of such a text, whose unknown fields are ignored; raises `RecordError`."""
    try:
        raw = json.loads(text)
        entries = tuple(Entry(**_converted(each, Entry)) for each in raw.get("entries", ()))
        return SessionRecord(**{**_converted(raw, SessionRecord), "entries": entries})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"the record is damaged ({error})") from None


def _converted(raw: dict[str, Any], of: type[Entry] | type[SessionRecord]) -> dict[str, Any]:
    values = {each.name: raw[each.name] for each in fields(of) if each.name in raw}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    for key, enum in (("kind", Kind), ("stage", Stage)):
        if key in values:
            values[key] = enum(values[key])
    return values


def _is_local_data(entry: Entry) -> bool:
    return entry.kind is Kind.ARTIFACT and all(name.startswith(_CACHE) for name in entry.names)


def _searched(entry: Entry) -> list[str]:
    """Return the names under which other calls use what an entry makes."""
    if entry.kind in _REPLACED:
        return list(entry.names)
    return [name.removeprefix(_CACHE) for name in entry.names if name.startswith(_CACHE)]


def _uses(text: bytes, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the names of entries that a text may contain. A name that it may write in another way counts as used."""
    if not text:
        return ()
    lower = text.lower()
    computed = b"identifier(" in lower or b"\\u" in lower
    names = dict.fromkeys(name for entry in entries for name in _searched(entry))
    return tuple(
        name for name in names if computed or not name.isascii() or "`" in name or name.encode().lower() in lower
    )


def _is_superfluous(entries: Sequence[Entry], at: int) -> bool:
    """Return whether an entry changes nothing in a session that all entries are replayed in."""
    entry, earlier, later = entries[at], entries[:at], entries[at + 1 :]
    if entry.kind is Kind.STATEMENT or not (entry.is_certain or entry.kind in _REPLACED):
        return False
    same = [each for each in earlier if each.kind is entry.kind and set(each.names) & set(entry.names)]
    if entry.kind is Kind.ARTIFACT:
        return any(each.digest == entry.digest and each.is_certain for each in same)
    if entry.removes:
        return not same
    if entry.kind is Kind.SETTING and same and same[-1].is_certain and same[-1].digest == entry.digest:
        return not any(each.kind is Kind.STATEMENT for each in entries[entries.index(same[-1]) : at])
    for number, each in enumerate(later):
        if each.kind is entry.kind and each.is_certain and set(entry.names) <= set(each.names):
            between = later[: number + 1]
            if entry.kind is Kind.SETTING:  # a view keeps the settings under which it was made
                return all(other.kind in (Kind.SETTING, Kind.ARTIFACT) for other in between)
            return not any(set(entry.names) & set(other.uses) for other in between)
    return False


def _size(number: int) -> str:
    return f"{number / (1 << 20):.1f} MB"
