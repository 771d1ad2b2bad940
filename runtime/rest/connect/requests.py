"""Requests of Spark Connect as bytes: the session that one names, and the user in whose name it acts. Pure.

All requests of the service have their session's id in field 1 and a `UserContext` in field 2. That message has the
user's id and name in its fields 1 and 2. Everything else stays as it came, so requests of later versions pass too.

A client could name another user, or hide a field from this parser that Spark's would find. So the gateway appends
both fields to each request. In Protocol Buffers a later field replaces an earlier one, and merges with it if it is a
message. Spark reads the appended bytes as fields of the request, because the bytes before them end with a whole field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from runtime.jobgraph.validation import SESSION_ID

_SESSION_ID, _USER_CONTEXT = 1, 2
_USER_ID, _USER_NAME = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_VARINT = 10
MOST_FIELDS = 10_000
"""Limit of fields of a message, without those of messages inside it; to read them takes some 10 ms.

PySpark's messages have fewer than 20, except requests for the status of artifacts, which have one for each artifact.
"""
_REQUEST_OPTIONS, _RESULT_COMPLETE = 5, 14
_OPERATION_ID, _RELEASE_ALL = 3, 5
"""Fields of a `ReleaseExecuteRequest`."""
_RELEASED_OPERATION = 2
"""Field of a `ReleaseExecuteResponse`."""

OBSERVED = {
    "ExecutePlan": 8,
    "AnalyzePlan": 17,
    "Config": 8,
    "AddArtifacts": 7,
    "ArtifactStatus": 5,
    "Interrupt": 7,
    "ReattachExecute": 6,
    "ReleaseExecute": 7,
    "FetchErrorDetails": 5,
    "GetStatus": 4,
}
"""By method: the field of a request with the id that Spark has given the session (`server_side_session_id`)."""
ANSWERED = {
    "ExecutePlan": (1, 15),
    "AnalyzePlan": (1, 15),
    "Config": (1, 4),
    "AddArtifacts": (2, 3),
    "ArtifactStatus": (2, 3),
    "Interrupt": (1, 3),
    "ReattachExecute": (1, 15),
    "ReleaseExecute": (1, 3),
    "ReleaseSession": (1, 2),
    "FetchErrorDetails": (4, 3),
    "GetStatus": (1, 2),
}
"""By method: the fields of an answer with the client's id of the session, and with the one that Spark has given it."""


class InvalidRequestError(ValueError):
    """A request is not a message of Spark Connect, or names no valid session; the message says which, on one line."""


def session_id_of(message: bytes) -> str:
    """Return the id of the session that a request names; raises `InvalidRequestError`."""
    session_id = last_of(message, _SESSION_ID).decode("ascii", "replace")
    if SESSION_ID.fullmatch(session_id) is None:
        raise InvalidRequestError("the request names no session: its session id must be a UUID")
    return session_id


def fields_of(message: bytes) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """Return number, value, begin and end of each field of a message; an `InvalidRequestError` ends the iteration."""
    at, size, view, count = 0, len(message), memoryview(message), 0
    while at < size:
        begin, count = at, count + 1
        if count > MOST_FIELDS:  # the event loop waits for this loop
            raise InvalidRequestError(f"the request has more than {MOST_FIELDS} fields: divide it")
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value, begin, at
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED_64, _FIXED_32):
            length = 8 if kind == _FIXED_64 else 4
        else:
            raise InvalidRequestError(
                "the request has a field of an unknown kind: it is not a message of Spark Connect"
            )
        if length > size - at:
            raise InvalidRequestError("the request ends inside a field: it is not a message of Spark Connect")
        if kind == _BYTES:
            yield number, view[at : at + length], begin, at + length
        at += length


def all_of(message: bytes, number: int) -> list[bytes]:
    """Return the values of a repeated field of bytes; raises `InvalidRequestError`."""
    return [bytes(value) for found, value, _, _ in fields_of(message) if found == number and not isinstance(value, int)]


def last_of(message: bytes, number: int) -> bytes:
    """Return the value of a field of bytes, the last one if there are several; empty if there is none."""
    return (all_of(message, number) or [b""])[-1]


def number_of(message: bytes, number: int) -> int:
    """Return the value of a field with a number; 0 if there is none. Raises `InvalidRequestError`."""
    values = [value for found, value, _, _ in fields_of(message) if found == number and isinstance(value, int)]
    return (values or [0])[-1]


def only(message: bytes, numbers: Collection[int]) -> bytes:
    """Return a message with some of its fields of bytes only; raises `InvalidRequestError`."""
    return b"".join(message[begin:end] for number, _, begin, end in fields_of(message) if number in numbers)


def without(message: bytes, number: int) -> bytes:
    """Return a message without one of its fields of bytes; raises `InvalidRequestError`."""
    spans = [(begin, end) for found, _, begin, end in fields_of(message) if found == number]
    parts, at = [], 0
    for begin, end in spans:
        parts.append(message[at:begin])
        at = end
    return b"".join((*parts, message[at:]))


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _MOST_VARINT]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise InvalidRequestError("the request has a number that does not end: it is not a message of Spark Connect")


def in_the_name_of(message: bytes, session_id: str, user_id: str) -> bytes:
    """Return a request that acts on a session in a user's name, whatever it named before.

    Args:
        message: a request for which `session_id_of` has returned *session_id*.
        session_id: of the session.
        user_id: of the user.
    """
    user = field(_USER_ID, user_id.encode()) + field(_USER_NAME, user_id.encode())
    return message + field(_SESSION_ID, session_id.encode()) + field(_USER_CONTEXT, user)


def observed_by(method: str, message: bytes) -> str:
    """Return the id of Spark's that a client expects its session to have; empty if it has seen none yet."""
    number = OBSERVED.get(method)
    return "" if number is None else last_of(message, number).decode("ascii", "replace")


def unobserved(method: str, message: bytes) -> bytes:
    """Return a request that expects no certain session of Spark's."""
    number = OBSERVED.get(method)
    return message if number is None else without(message, number)


def as_of(method: str, answer: bytes, session_id: str, shown_id: str) -> bytes:
    """Return an answer of Spark's as one of another session.

    Args:
        method: that was called.
        answer: of Spark.
        session_id: the client's id of the session.
        shown_id: to show as Spark's id of the session, so that it is the same at each driver.
    """
    ours, sparks = ANSWERED[method]
    return answer + field(ours, session_id.encode()) + field(sparks, shown_id.encode())


def is_complete(request: bytes, answers: Iterable[bytes]) -> bool:
    """Return whether a call that changes a session is complete with these answers.

    Spark may end the answers to an `ExecutePlanRequest` with options (field 5) earlier, and the client then reattaches.

    Args:
        request: the first one of the call.
        answers: all of them.
    """
    numbers = {number for answer in answers for number, _, _, _ in fields_of(answer)}
    return _RESULT_COMPLETE in numbers or not all_of(request, _REQUEST_OPTIONS)


@dataclass(frozen=True, slots=True)
class Released:
    """Says which part of an answer a `ReleaseExecuteRequest` releases.

    Args:
        operation_id: of the call whose answer it is.
        is_all: whether it is all of the answer.
        answer: to the request, a `ReleaseExecuteResponse`.
    """

    operation_id: str
    is_all: bool
    answer: bytes


def released_by(message: bytes) -> Released:
    """Return what a `ReleaseExecuteRequest` releases. Raises `InvalidRequestError`: it names no operation."""
    found = {number: bytes(value) for number, value, _, _ in fields_of(message) if not isinstance(value, int)}
    operation_id = found.get(_OPERATION_ID, b"")
    if not operation_id:
        raise InvalidRequestError("the request names no operation whose answer it releases")
    ours, sparks = ANSWERED["ReleaseExecute"]
    answer = field(ours, found.get(_SESSION_ID, b"")) + field(_RELEASED_OPERATION, operation_id)
    if observed := found.get(OBSERVED["ReleaseExecute"]):
        answer += field(sparks, observed)
    return Released(operation_id.decode("ascii", "replace"), _RELEASE_ALL in found, answer)


def session_released(session_id: str) -> bytes:
    """Return the answer to a request to release a session that is not open (a `ReleaseSessionResponse`)."""
    return field(_SESSION_ID, session_id.encode())


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes, encoded."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
