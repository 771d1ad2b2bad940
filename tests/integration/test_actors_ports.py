"""Who holds which port of a process system, and who can speak to it. Run as a module, this file is a process that has
sockets of its own before it starts a system."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.client import ActorClient
from actors.errors import RecipientUnreachable
from actors.process.host import HostSpec
from actors.process.logs import LogConfig
from actors.process.system import ProcessActorSystem
from actors.process.thespian_base import MAXIMUM_STRANGERS, TaggedPickle
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcConfig
from actors.rpc.tls import TlsConfig
from tests.fakes.certificates import CertificateAuthority
from tests.integration.test_actor_system import (
    DEADLINE_S,
    MODULE,
    ROOT,
    Bomb,
    Driver,
    GreeterGateway,
    listening_ports,
    new_driver,
    thespian_frame,
    throw_everywhere,
    wait_until,
)
from tests.processes import lives

NOBODY = 65534
CONNECT_S = 5.0
"""The kernel connects at once on loopback, or not at all."""


@pytest.fixture
def driver() -> Iterator[Driver]:
    with new_driver() as driver:
        yield driver


# ------------------------------------------------------------------ who holds them


def own_sockets(directory: Path) -> None:
    """A process with a listening socket and a connection, which it closes when it is told to."""
    listening = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listening.getsockname())
    near.settimeout(DEADLINE_S)
    far, _ = listening.accept()
    load_or_create_secret(directory / "secret")
    system = ProcessActorSystem()
    tls = TlsConfig(*(directory / f"{kind}-0.pem" for kind in ("certificate", "key", "ca")))
    addresses = []
    for number in range(2):
        spec = HostSpec(
            name=f"actor-{number}",
            factory=f"{MODULE}:make_greeter",
            arguments={},
            rpc=RpcConfig(system="tests", socket_dir=directory, tls=tls),
            secret_file=directory / "secret",
            log=LogConfig(directory / "log"),
        )
        addresses.append(str(system.start(spec).address))
    print(json.dumps({"port": listening.getsockname()[1], "actors": addresses}), flush=True)  # noqa: T201
    sys.stdin.readline()
    far.close()
    listening.close()
    print(json.dumps({"ended": near.recv(1) == b""}), flush=True)  # noqa: T201
    sys.stdin.readline()
    system.shutdown()


def stream_sockets(pid: int) -> set[int]:
    """Inodes of the TCP sockets that a process holds, listening and connected."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    all_inodes = {int(row[9]) for row in rows}
    held = set()
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                held.add(int(target[8:-1]))
    return held & all_inodes


@contextlib.contextmanager
def process_with_own_sockets() -> Iterator[tuple[subprocess.Popen[str], Path, TlsConfig]]:
    """The process, its directory, and a certificate for who wants to speak to its actors."""
    with tempfile.TemporaryDirectory(prefix="us-") as name:
        directory = Path(name)
        authority = CertificateAuthority(directory)
        authority.issue()
        with subprocess.Popen(
            [sys.executable, "-m", "tests.integration.test_actors_ports", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as process:
            yield process, directory, authority.issue()


def test_no_process_holds_a_socket_of_another() -> None:
    with process_with_own_sockets() as (process, _, _):
        assert process.stdin is not None
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4, "the admin, its logger and two actors"
        holders: dict[int, list[int]] = {}
        for pid in (process.pid, *(one.pid for one in below)):
            for inode in stream_sockets(pid):
                holders.setdefault(inode, []).append(pid)
        assert len(holders) >= 6
        assert [pids for pids in holders.values() if len(pids) > 1] == []

        process.stdin.write("close\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"ended": True}, "a connection ends when its process closes it"
        with pytest.raises(ConnectionRefusedError):  # rather than to be taken and never served
            socket.create_connection(("127.0.0.1", said["port"]), timeout=DEADLINE_S)
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0
        assert not any(one.is_running() and lives(one.pid) for one in below)


# ------------------------------------------------------------------ who can speak to them


def test_actors_with_certificates_take_connections_with_certificates_only() -> None:
    with process_with_own_sockets() as (process, directory, tls):
        assert process.stdin is not None
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["actors"][0]
        secret = load_or_create_secret(directory / "secret")
        with ActorClient(secret, RpcConfig(system="tests", tls=tls)) as client:
            assert client.gateway(address, GreeterGateway).greet("ann").result() == "hello ann"
        with (
            ActorClient(secret, RpcConfig(system="tests")) as client,
            pytest.raises(RecipientUnreachable, match="only one side has TLS"),
        ):
            client.gateway(address, GreeterGateway).greet("ann").result()
        with ActorClient(secret, RpcConfig(system="tests", socket_dir=directory)) as client:
            assert client.gateway(address, GreeterGateway).greet("bob").result() == "hello bob"
        process.communicate("close\nend\n", DEADLINE_S)
        assert process.returncode == 0


def test_a_recording_of_another_run_under_the_same_secret_is_worthless(driver: Driver, tmp_path: Path) -> None:
    for process in driver.processes():
        for _, port in listening_ports(process):
            name = (time.monotonic_ns(), os.urandom(16))
            recorded = TaggedPickle(os.urandom(32)).dumps(Bomb(tmp_path / "executed"), port, name)
            throw_everywhere(driver, [recorded, thespian_frame(recorded)])
    assert not (tmp_path / "executed").exists()


THROWN_AT_THESPIAN = """
import os, socket, sys, time
from pathlib import Path
from actors.process.system import ProcessActorSystem
from actors.process.thespian_base import TaggedPickle
from tests.integration.test_actor_system import Bomb, thespian_frame

system, directory = ProcessActorSystem(), Path(sys.argv[1])
try:
    actor, other = (system._system.createActor("tests.bench.thespian_echo.ThespianEcho") for _ in range(2))
    port, other_port = (int(each.addressDetails.sockname[1]) for each in (actor, other))

    def throw(data, at):
        with socket.create_connection(("127.0.0.1", at), timeout=30) as sock:
            sock.sendall(thespian_frame(data))
            sock.shutdown(socket.SHUT_WR)
            try:
                while sock.recv(1000):
                    pass
            except ConnectionError:
                pass

    def message(path, made_at=None):
        return TaggedPickle().dumps(Bomb(directory / path), port, (made_at or time.monotonic_ns(), os.urandom(16)))

    old = message("old", made_at=1)
    genuine, redirected = message("executed"), message("redirected")
    throw(genuine, port)
    print("the genuine one", (directory / "executed").exists())
    (directory / "executed").rmdir()
    throw(genuine, port)
    throw(redirected, other_port)
    throw(old, port)
    print("others", sorted(path.name for path in directory.iterdir()))
    throw(redirected, port)
    print("where it belongs", sorted(path.name for path in directory.iterdir()))
    print("the actor answers", system._system.ask(actor, b"x", 600) is not None)
finally:
    system.shutdown()
"""


def test_a_recorded_or_redirected_message_of_thespians_is_refused(tmp_path: Path) -> None:
    """Messages with a good tag, made by the system's own process: only the first, at its recipient, is taken."""
    (tmp_path / "bombs").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", THROWN_AT_THESPIAN, tmp_path / "bombs"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "the genuine one True",
        "others []",
        "where it belongs ['redirected']",
        "the actor answers True",
    ], done.stderr


def test_silent_connections_do_not_use_up_a_processs_descriptors(driver: Driver) -> None:
    actor = driver.start("target")
    thespian = {
        process: port
        for process in driver.processes()
        if process.pid != driver.process.pid
        for _, port in listening_ports(process)
        if port != actor.address.port
    }
    assert {driver.admin, actor.pid} <= {process.pid for process in thespian}
    with contextlib.ExitStack() as stack:
        for port in thespian.values():
            for number in range(5 * MAXIMUM_STRANGERS):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
                with contextlib.suppress(ConnectionError):
                    sock.sendall((b"", b"10", b"10>short")[number % 3])
        for process in thespian:
            wait_until(lambda process=process: process.num_fds() < MAXIMUM_STRANGERS + 40, "the end of the oldest")
        for number in range(3):
            assert driver.start(f"meanwhile-{number}").pid
            driver.stop(f"meanwhile-{number}")
    assert driver.admin in {process.pid for process in driver.processes()}


def as_nobody(results: Connection, ports: list[int], files: list[Path], processes: list[int], bomb: bytes) -> None:
    """Another user, who tries to open *files*, to look into *processes* and to have *bomb* unpickled at *ports*."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    told: dict[str, Any] = {"open": [], "answers": 0}
    for path in files:
        with contextlib.suppress(OSError):
            if path.suffix == ".sock" or path.is_socket():
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(str(path))
            else:
                path.read_bytes()
            told["open"].append(str(path))
    for pid in processes:
        for name in ("environ", "mem", "fd"):
            with contextlib.suppress(OSError):
                path = Path(f"/proc/{pid}/{name}")
                list(path.iterdir()) if name == "fd" else path.open("rb").read(1)
                told["open"].append(str(path))
    for port in ports:
        for data in (bomb, bytes(32) + bomb, thespian_frame(bomb), thespian_frame(bytes(32) + bomb)):
            try:
                sock = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
            except (ConnectionRefusedError, TimeoutError):
                break  # its process has ended meanwhile, or takes no more strangers
            with sock, contextlib.suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            told["answers"] += 1
    results.send(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_can_read_no_file_and_speak_to_no_port(driver: Driver, tmp_path: Path) -> None:
    actor = driver.start("target")
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/") and parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o007)  # that the bomb does not go off is not for want of permission
    driver.directory.chmod(0o755)  # as if the directory did not keep others out by itself
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    ports = sorted({port for process in driver.processes() for _, port in listening_ports(process)})
    files = [driver.directory / "secret", driver.directory / "run" / f"rpc-{actor.address.port}"]
    assert all(file.exists() for file in files)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    pids = [process.pid for process in driver.processes()]
    intruder = context.Process(target=as_nobody, args=(sender, ports, files, pids, bomb))
    intruder.start()
    intruder.join(DEADLINE_S)
    told = receiver.recv()
    assert told["open"] == []
    assert told["answers"] == 4 * len(ports), "every port was thrown at"
    afterwards = driver.start("afterwards")
    assert afterwards.pid
    assert not (tmp_path / "executed").exists()
    wait_until(lambda: driver.admin in {process.pid for process in driver.processes()}, "the admin's survival")


if __name__ == "__main__":
    own_sockets(Path(sys.argv[1]))
