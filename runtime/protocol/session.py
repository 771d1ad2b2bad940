"""The address of a Spark Connect session that a job keeps open for a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class SessionAddress:
    """An open session, as its TaskExecutor describes it to a web endpoint, which passes calls on to it.

    Args:
        port: of the Spark driver's Connect server, on the loopback address of `network`.
        token: the server's authentication token.
        session_id: of the session.
        user_id: the session's user in Spark.
        network: see `own_network`.
    """

    port: int
    token: str = field(repr=False)
    session_id: str
    user_id: str
    network: str


def own_network() -> str:
    """Return the identity of the loopback network of this process: kernel and network namespace."""
    return f"{_BOOT_ID.read_text('ascii').strip()}/{_NETWORK.stat().st_ino}"
