"""Turns the bytes of a fuzzer into choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class ByteSource:
    """Choices out of bytes, the same for the same bytes; when they are used up every choice is the first one.

    Args:
        data: what the fuzzer made.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """How many bytes there still are."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """The next *size* bytes, or as many as there are."""
        taken = self._data[self._position : self._position + size]
        self._position += len(taken)
        return taken

    def number(self, limit: int) -> int:
        """A number from 0 to *limit*, which is not included."""
        size = (limit.bit_length() + 7) // 8
        return int.from_bytes(self.take(size), "big") % limit

    def choose(self, choices: Sequence[T]) -> T:
        """One of *choices*."""
        return choices[self.number(len(choices))]

    def pieces(self, stream: bytes) -> list[bytes]:
        """*stream* cut in pieces, some of them empty, some of a single byte, some long."""
        cut: list[bytes] = []
        position = 0
        while position < len(stream):
            size = self.choose((len(stream), 0, 1, 2, 3, 7, 64, 1000)) if self.left else len(stream)
            cut.append(stream[position : position + size])
            position += size
        return cut
