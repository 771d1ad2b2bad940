"""A real sshd on loopback, with keys and a configuration of its own, for this user alone."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE_S


@dataclass(frozen=True)
class Sshd:
    """A running sshd.

    Args:
        port: on 127.0.0.1.
        options: of ssh, to log in there.
    """

    port: int
    options: tuple[str, ...]


def unused_port() -> int:
    """A port of loopback below those that the kernel gives to whoever asks for any: it stays free until it is used."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are in use")


def find_sshd() -> str | None:
    """The server's program, which is on no ordinary user's path."""
    found = (Path(directory, "sshd") for directory in (*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"))
    return next((str(path) for path in found if os.access(path, os.X_OK)), None)


@contextlib.contextmanager
def running_sshd(program: str, directory: Path) -> Iterator[Sshd]:
    """Start one, and end it after use."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where root's sshd drops its privileges
    port = unused_port()
    settings = directory / "sshd_config"
    settings.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host_key\nAuthorizedKeysFile {directory}/user_key.pub\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    log = directory / "sshd.log"
    process = subprocess.Popen([program, "-D", "-f", settings, "-E", log], stdin=subprocess.DEVNULL)
    options = ["-p", str(port), "-i", f"{directory}/user_key", "-F", "none", "-o", "IdentitiesOnly=yes"]
    options += ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={directory}/known_hosts"]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _listens(port):
            assert process.poll() is None, f"sshd has ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"sshd does not listen: {log.read_text()}"
            time.sleep(0.05)
        yield Sshd(port, tuple(options))
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
