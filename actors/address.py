"""Actor addresses in Akka's form: ``akka.tcp://<system>@<host>:<port>/user/<name>``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from actors.errors import AddressError

_PATTERN = re.compile(
    r"akka\.tcp://(?P<system>[A-Za-z0-9_-]+)@(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})"
    r"(?P<path>(/[A-Za-z0-9_.~$@-]+)+)"
)


@dataclass(frozen=True, slots=True, order=True)
class ActorAddress:
    """Address at which an actor is reached.

    Args:
        system: name of its actor system.
        host: host name or IP address (IPv6 without brackets).
        port: TCP port of the process that hosts it, or of its system's receptionist, which redirects callers.
        path: absolute path of the actor, e.g. ``/user/dispatcher``.
    """

    system: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"akka.tcp://{self.system}@{host}:{self.port}{self.path}"

    @property
    def name(self) -> str:
        """The last element of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_loopback(self) -> bool:
        """Return whether the host is a loopback address, which means this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def with_path(self, path: str) -> ActorAddress:
        """Return the address of another actor of the same process."""
        return ActorAddress(self.system, self.host, self.port, path)

    @classmethod
    def parse(cls, text: str) -> ActorAddress:
        """Parse the text form.

        Raises:
            AddressError: *text* is no such address.
        """
        match = _PATTERN.fullmatch(text)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise AddressError(
                f"{text!r} is not an actor address; the form is akka.tcp://<system>@<host>:<port>/user/<name>"
            )
        return cls(match["system"], match["host"].strip("[]"), int(match["port"]), match["path"])
