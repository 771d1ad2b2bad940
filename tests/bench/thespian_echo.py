"""A plain Thespian actor, for comparison."""

from __future__ import annotations

from typing import Any

from thespian.actors import ActorTypeDispatcher


class ThespianEcho(ActorTypeDispatcher):  # type: ignore[misc]  # Thespian is untyped
    """Sends back what it gets."""

    def receiveMsg_bytes(self, message: bytes, sender: Any) -> None:  # noqa: N802  # Thespian's name
        self.send(sender, message)
