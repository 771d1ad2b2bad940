"""A failure as Java's own serialisation writes it: Flink's client reads a failure from nothing else.

The client's `SerializedThrowable` is an exception with three texts more; around them the stream is always the same.
Nothing here is ever read: what others have serialised is refused.
"""

from __future__ import annotations

import base64

_STRING = b"Ljava/lang/String;"
_MAX_SHORT = 0xFFFF


def serialized_throwable(name: str, message: str, stack_trace: str) -> str:
    """Base64 of a serialised `org.apache.flink.util.SerializedThrowable`.

    Args:
        name: of the original exception's class.
        message: what the client shows in one line.
        stack_trace: all of it.
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
    stream += b"x"  # the end of what Throwable writes itself
    stream += _text(stack_trace) + _text(name) + b"p"  # the original exception itself is not there
    return base64.b64encode(stream).decode()


def _class(name: str, version: str, flags: int, *fields: bytes) -> bytes:
    """A class description; its superclass follows."""
    head = b"r" + _utf(name) + bytes.fromhex(version) + bytes([flags]) + len(fields).to_bytes(2, "big")
    return head + b"".join(fields) + b"x"


def _utf(text: str) -> bytes:
    data = _modified_utf8(text)
    return len(data).to_bytes(2, "big") + data


def _text(text: str) -> bytes:
    """A string object: short, or long with its length in eight bytes."""
    data = _modified_utf8(text)
    if len(data) <= _MAX_SHORT:
        return b"t" + len(data).to_bytes(2, "big") + data
    return b"|" + len(data).to_bytes(8, "big") + data


def _modified_utf8(text: str) -> bytes:
    """Java's UTF-8: each half of a surrogate pair by itself, and no zero byte."""
    units = text.encode("utf-16-be", "surrogatepass")
    halves = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    return b"".join(b"\xc0\x80" if half == "\0" else half.encode("utf-8", "surrogatepass") for half in halves)
