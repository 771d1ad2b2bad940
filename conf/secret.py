"""Values that must not appear in logs and listings."""

from __future__ import annotations

MASK = "******"


class SecretStr:
    """A text that never shows itself: ``repr``, ``str`` and formatting return a mask, ``reveal()`` the text.

    Args:
        value: the secret.
        shown: the text to show instead.
    """

    __slots__ = ("_shown", "_value")

    def __init__(self, value: str, shown: str = MASK) -> None:
        self._value = value
        self._shown = shown

    def reveal(self) -> str:
        """Return the secret itself; call it only where the secret is used."""
        return self._value

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"SecretStr({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)
