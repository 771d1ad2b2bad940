"""Requests of Spark Connect as bytes: the session that one names, and the user in whose name it acts. Pure.

All requests of the service have their session's id in field 1 and a `UserContext` in field 2. That message has the
user's id and name in its fields 1 and 2. Everything else stays as it came, so requests of later versions pass too.

A client could name another user, or hide a field from this parser that Spark's would find. So the gateway appends
both fields to each request. In Protocol Buffers a later field replaces an earlier one, and merges with it if it is a
message. Spark reads the appended bytes as fields of the request, because the bytes before them end with a whole field.
"""

from __future__ import annotations

from runtime.jobgraph.validation import SESSION_ID

_SESSION_ID, _USER_CONTEXT = 1, 2
_USER_ID, _USER_NAME = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_VARINT = 10


class InvalidRequestError(ValueError):
    """A request is no message of Spark Connect, or names no valid session; the message says which, on one line."""


def session_id_of(message: bytes) -> str:
    """Return the id of the session that a request names; raises `InvalidRequestError`."""
    found = b""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED_64, _FIXED_32):
            length = 8 if kind == _FIXED_64 else 4
        else:
            raise InvalidRequestError("the request has a field of an unknown kind: it is no message of Spark Connect")
        if length > size - at:
            raise InvalidRequestError("the request ends inside a field: it is no message of Spark Connect")
        if number == _SESSION_ID and kind == _BYTES:
            found = message[at : at + length]
        at += length
    session_id = found.decode("ascii", "replace")
    if SESSION_ID.fullmatch(session_id) is None:
        raise InvalidRequestError("the request names no session: its session id must be a UUID")
    return session_id


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _MOST_VARINT]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise InvalidRequestError("the request has a number that does not end: it is no message of Spark Connect")


def in_the_name_of(message: bytes, session_id: str, user_id: str) -> bytes:
    """Return a request that acts on a session in a user's name, whatever it named before.

    Args:
        message: a request for which `session_id_of` has returned *session_id*.
        session_id: of the session.
        user_id: of the user.
    """
    user = _field(_USER_ID, user_id.encode()) + _field(_USER_NAME, user_id.encode())
    return message + _field(_SESSION_ID, session_id.encode()) + _field(_USER_CONTEXT, user)


def released(session_id: str) -> bytes:
    """Return the answer to a request to release a session that is not open (a `ReleaseSessionResponse`)."""
    return _field(_SESSION_ID, session_id.encode())


def _field(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
