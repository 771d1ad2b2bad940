"""A call of a Spark Connect client: who makes it, its session, and why it is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runtime.ids import JobID
from runtime.rest.access import Refusal
from runtime.rest.connect.record import NAME, NAME_KEY
from runtime.rest.connect.sessions import job_of
from runtime.users.identities import Principal


class CallRefusedError(Exception):
    """A call is not passed on.

    Args:
        status: the HTTP status that stands for the kind of refusal, as in the audit log.
        message: for the user, on one line.
        is_over: whether the session has ended, so that the client should forget it.
        is_lost: whether it has ended because its driver was lost.
    """

    def __init__(self, status: int, message: str, *, is_over: bool = False, is_lost: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_over = is_over
        self.is_lost = is_lost


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call: its identity and address."""

    principal: Principal
    source: str


@dataclass(slots=True)
class Call:
    """A call.

    Args:
        caller: its client.
        method: of the service.
        client_id: the client's id of the session; empty until its first message has come.
        name: of a named session; empty for another one.
        session_id: of the session on its driver, by default the client's. That of a named session is empty until it is
            found, and changes with each driver.
        is_answered: whether its client has got an answer.
        refused: why it is ended before its answer is complete; None for a call that is not.
    """

    caller: Caller
    method: str
    client_id: str = ""
    name: str = ""
    session_id: str = ""
    is_answered: bool = False
    refused: Refusal | None = None

    def __post_init__(self) -> None:
        self.begin(self.client_id)

    def begin(self, client_id: str) -> None:
        """Note the session that the first message names."""
        self.client_id = client_id
        if not self.name:
            self.session_id = client_id

    @property
    def user(self) -> str:
        """Name of the session's user, as in `job_of`."""
        return self.caller.principal.name

    @property
    def job_id(self) -> JobID:
        """The session's job."""
        return job_of(self.user, self.session_id)


def name_of(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """Return the name of the session that a call is for; empty if it has none. Raises `CallRefusedError`."""
    names = [value for key, value in metadata or () if key == NAME_KEY]
    if not names:
        return ""
    if len(names) > 1 or not isinstance(names[0], str) or NAME.fullmatch(names[0]) is None:
        raise CallRefusedError(400, f"{NAME_KEY} must be 1 to 64 letters, digits, dots, dashes and underscores")
    return names[0]
