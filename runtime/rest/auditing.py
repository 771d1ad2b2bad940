"""Facts for the audit log, noted while a request is answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Scope, Send

from runtime.rest.access import changes_state
from runtime.users.audit import (
    FREQUENT,
    AuditEntry,
    AuditLog,
    Floods,
    changed_nothing,
    named_by,
    outcome_of,
)
from runtime.users.identities import Principal

logger = logging.getLogger(__name__)

AUDITED = "audited"
"""The key of a request's scope under which the application puts the `Audited`."""


class Audited:
    """One request.

    Args:
        action: method and path, until the route is known.
        source: address of the client.
        changes: whether the request may change something.

    Attributes:
        broke_off: whether the client was gone before it had sent the whole request.
    """

    def __init__(self, action: str, source: str, *, changes: bool) -> None:
        self.action = action
        self.source = source
        self.changes = changes
        self.principal: Principal | None = None
        self.target = ""
        self.reason = ""
        self.status = 0
        self.broke_off = False

    @classmethod
    def of(cls, scope: Scope) -> Audited:
        """Begin with a request of which only the head is known."""
        client = scope.get("client")
        source = "" if client is None else f"{client[0]}:{client[1]}"
        method, path = scope["method"], scope["path"]
        return cls(f"{method} {path}", source, changes=changes_state(method, path))

    def begin_route(self, action: str, parameters: Mapping[str, Any]) -> None:
        """Note the route of the request, and the values of its path's parameters."""
        self.action = action
        self.target = " ".join(map(str, parameters.values()))

    def begin_call(self, action: str, arguments: list[Any], *, changes: bool) -> None:
        """Note the call that the request is, and the object that its first argument names."""
        self.action = action
        self.changes = changes and action not in FREQUENT
        self.target = named_by(arguments[0]) if arguments else ""

    @property
    def counts(self) -> bool:
        """Return whether the request gets a line: it changes something, or an identified user was refused."""
        return self.changes or (self.principal is not None and self.status == 403)

    @property
    def is_limited(self) -> bool:
        """Return whether the lines of such requests are limited: it is unauthenticated, or changed nothing."""
        return self.principal is None or self.broke_off or changed_nothing(self.status)

    @property
    def who(self) -> str:
        """Return whom the request is from, in words."""
        return "an unauthenticated client" if self.principal is None else self.principal.shown

    def watching(self, send: Send) -> Send:
        """Return *send*, which also notes the status of the answer."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            await send(message)

        return watched

    def entry(self, at_ms: int, suppressed: int) -> AuditEntry:
        """Return the line of the request."""
        principal = self.principal
        return AuditEntry(
            at_ms,
            "" if principal is None else principal.name,
            "" if principal is None else principal.role.value,
            "" if principal is None else principal.token_id,
            self.action,
            self.target,
            self.source,
            outcome_of(self.status),
            self.status,
            " ".join(self.reason.split()),
            suppressed,
        )


class Auditor:
    """Writes the lines of one server, and limits those of requests that changed nothing.

    Args:
        log: to write to; None writes nothing.
    """

    def __init__(self, log: AuditLog | None) -> None:
        self._log = log
        self._floods = Floods()

    def record(self, audited: Audited) -> None:
        """Write the line of a request that changes something or was refused; a failure is only logged."""
        if not audited.counts or self._log is None:
            return
        at_ms, suppressed = _now_ms(), 0
        if audited.is_limited:
            admitted = self._floods.admit(None if audited.principal is None else audited.principal.name, at_ms)
            if admitted is None:
                return
            suppressed = admitted
        try:
            self._log.write(audited.entry(at_ms, suppressed))
        except OSError as error:
            logger.error("the audit log misses %r of %s: %s", audited.action[:200], audited.who, error)


def audited_of(request: Request) -> Audited:
    """Return what is noted of a request."""
    found: Audited = request.scope[AUDITED]
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
