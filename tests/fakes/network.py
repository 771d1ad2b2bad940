"""Several hosts on one machine: network namespaces on one bridge, whose cables can be cut.

Everything is in namespaces of its own, the bridge too: nothing of it is seen from the machine's own network, and
nothing in it reaches that. Needs root and ``ip`` (iproute2).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from types import TracebackType
from typing import Self

from tests.waiting import PATIENCE_S

SUBNET = "10.231.0"


def why_not() -> str:
    """Why there can be no network namespaces here; empty where there can."""
    name = f"us-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        try:
            _ip("-n", name, "link", "add", "br0", "type", "bridge")
            _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
        finally:
            _ip("netns", "del", name)
    except (FileNotFoundError, PermissionError):
        return "there is no `ip` (iproute2)"
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    return ""


class Network:
    """Hosts and their addresses, by name; a context manager that leaves neither namespaces nor processes.

    Args:
        names: of the hosts.
    """

    def __init__(self, *names: str) -> None:
        self._prefix = f"us-{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self.addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            _ip("-n", self._switch, "link", "set", "br0", "up")
            for name, address in self.addresses.items():
                self._add(name, address)
        except BaseException:
            self.close()
            raise
        return self

    def _add(self, name: str, address: str) -> None:
        host = self._namespace(name)
        _ip("netns", "add", host)
        _ip("-n", self._switch, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("-n", self._switch, "link", "set", name, "master", "br0", "up")
        _ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host, "link", "set", device, "up")

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def command(self, name: str, *command: str) -> list[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self._namespace(name), *command]

    def cut(self, name: str) -> None:
        """Pull a host's cable out of the switch; the host itself sees no more than silence."""
        _ip("-n", self._switch, "link", "set", name, "nomaster")

    def rejoin(self, name: str) -> None:
        """Put it in again."""
        _ip("-n", self._switch, "link", "set", name, "master", "br0")

    def processes(self, name: str) -> set[int]:
        """All that runs on a host."""
        done = _ip("netns", "pids", self._namespace(name))
        return {int(line) for line in done.split()}

    def close(self) -> None:
        """Kill what runs on the hosts, and take all down."""
        for name in self.addresses:
            with contextlib.suppress(subprocess.CalledProcessError):  # it was not made
                self._end(name)
        for namespace in (*map(self._namespace, self.addresses), self._switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)

    def _end(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.processes(name)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
