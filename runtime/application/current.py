"""Whether this process is that of an application's main(), and how it reaches its cluster then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the client is made of what asks here
    from runtime.application.client import ApplicationClient

_current: ApplicationClient | None = None


def application_client() -> ApplicationClient | None:
    """The client of the application whose main() runs in this process; None in any other process."""
    return _current


def use(client: ApplicationClient) -> None:
    """Have this process reach its cluster by this client."""
    global _current  # a process has one main()
    _current = client
