"""Enough of Redis' wire protocol (RESP2) to see what goes through a proxy. Pure: bytes in, values out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

Value = bytes | int | None | list["Value"]
"""A bulk or simple string, a number, nothing, or an array of them; an error is a string that begins with ``-``."""


class RespParser:
    """Cuts a stream into values, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Value]:
        """Add a piece; returns the values that are whole by now."""
        self._data += data
        found: list[Value] = []
        at = 0
        while (parsed := self._parse(at)) is not None:
            value, at = parsed
            found.append(value)
        del self._data[:at]
        return found

    def _parse(self, at: int) -> tuple[Value, int] | None:
        end = self._data.find(b"\r\n", at)
        if end < 0:
            return None
        kind, rest, after = self._data[at : at + 1], bytes(self._data[at + 1 : end]), end + 2
        if kind == b":":
            return int(rest), after
        if kind == b"$":
            return self._bulk(int(rest), after)
        if kind == b"*":
            return self._array(int(rest), after)
        return (b"-" + rest if kind == b"-" else rest), after

    def _bulk(self, length: int, at: int) -> tuple[Value, int] | None:
        if length < 0:
            return None, at
        if len(self._data) < at + length + 2:
            return None
        return bytes(self._data[at : at + length]), at + length + 2

    def _array(self, length: int, at: int) -> tuple[Value, int] | None:
        if length < 0:
            return None, at
        items: list[Value] = []
        for _ in range(length):
            parsed = self._parse(at)
            if parsed is None:
                return None
            item, at = parsed
            items.append(item)
        return items, at


@dataclass(frozen=True, slots=True)
class Exchange:
    """One command and its reply, with the times at which they passed the proxy (seconds on its clock)."""

    command: list[bytes]
    reply: Value
    sent: float
    replied: float


class Exchanges:
    """What goes over one connection, commands paired with their replies (one for one, in order)."""

    def __init__(self) -> None:
        self._commands, self._replies = RespParser(), RespParser()
        self._waiting: deque[tuple[list[bytes], float]] = deque()
        self._subscribed = False

    def sent(self, data: bytes, now: float) -> None:
        """A piece of the commands was passed on."""
        for value in self._commands.feed(data):
            assert isinstance(value, list)
            command = [part for part in value if isinstance(part, bytes)]
            self._subscribed |= command[0].upper() == b"SUBSCRIBE"
            self._waiting.append((command, now))

    def replied(self, data: bytes, now: float) -> list[Exchange]:
        """A piece of the replies came; the pairs that are whole. A subscription's messages are none."""
        values = self._replies.feed(data)
        if self._subscribed:
            return []
        return [
            Exchange(command, value, sent, now)
            for value, (command, sent) in ((value, self._waiting.popleft()) for value in values)
        ]
