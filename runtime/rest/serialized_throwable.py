"""Failures in the format of Java's serialisation, the only one in which Flink's client reads them.

The client's `SerializedThrowable` is an exception with three more texts; the rest of the stream is always the same.
This module only writes: Understudy never reads serialised Java objects.
"""

from __future__ import annotations

import base64

_STRING = b"Ljava/lang/String;"
_MAX_SHORT = 0xFFFF


def serialized_throwable(name: str, message: str, stack_trace: str) -> str:
    """Return a serialised `org.apache.flink.util.SerializedThrowable` in base64.

    Args:
        name: of the original exception's class.
        message: the line that the client shows.
        stack_trace: the whole stack trace.
    """
    reference_to_string = b"q\0~\0\1"
    stream = b"\xac\xed\0\5s" + _class(
        "org.apache.flink.util.SerializedThrowable",
        "65169df51fa713f3",
        2,
        b"L" + _utf("fullStringifiedStackTrace") + b"t" + _utf(_STRING.decode()),
        b"L" + _utf("originalErrorClassName") + reference_to_string,
        b"[" + _utf("serializedException") + b"t" + _utf("[B"),
    )
    stream += _class("java.lang.Exception", "d0fd1f3e1a3b1cc4", 2)
    stream += _class(
        "java.lang.Throwable",
        "d5c635273977b8cb",
        3,
        b"L" + _utf("cause") + b"t" + _utf("Ljava/lang/Throwable;"),
        b"L" + _utf("detailMessage") + reference_to_string,
        b"[" + _utf("stackTrace") + b"t" + _utf("[Ljava/lang/StackTraceElement;"),
        b"L" + _utf("suppressedExceptions") + b"t" + _utf("Ljava/util/List;"),
    )
    stream += b"p"  # no class above Throwable
    stream += b"p" + _text(message)  # no cause
    stream += b"u" + _class("[Ljava.lang.StackTraceElement;", "02462a3c3cfd2239", 2) + b"p\0\0\0\0"
    stream += b"s" + _class("java.util.Collections$EmptyList", "7ab817b43ca79ede", 2) + b"p"
    stream += b"x"  # the end of Throwable's own data
    stream += _text(stack_trace) + _text(name) + b"p"  # the original exception itself is not there
    return base64.b64encode(stream).decode()


def _class(name: str, version: str, flags: int, *fields: bytes) -> bytes:
    """Return a class description; its superclass follows."""
    head = b"r" + _utf(name) + bytes.fromhex(version) + bytes([flags]) + len(fields).to_bytes(2, "big")
    return head + b"".join(fields) + b"x"


def _utf(text: str) -> bytes:
    data = _modified_utf8(text)
    return len(data).to_bytes(2, "big") + data


def _text(text: str) -> bytes:
    """Return a string object: a short one, or a long one with its length in eight bytes."""
    data = _modified_utf8(text)
    if len(data) <= _MAX_SHORT:
        return b"t" + len(data).to_bytes(2, "big") + data
    return b"|" + len(data).to_bytes(8, "big") + data


def _modified_utf8(text: str) -> bytes:
    """Encode in Java's UTF-8, which encodes each half of a surrogate pair by itself and has no zero byte."""
    units = text.encode("utf-16-be", "surrogatepass")
    halves = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    return b"".join(b"\xc0\x80" if half == "\0" else half.encode("utf-8", "surrogatepass") for half in halves)
