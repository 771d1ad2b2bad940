"""What cuts connections between processes: nothing passes, the others go on, and all of it passes afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster_harness import await_value
from tests.faults.cuts import Cut, disconnect, why_not
from tests.processes import lives
from tests.waiting import PATIENCE_S

# Answers each line on each connection.
ECHO = """\
import socket, sys, threading

def answer(connection):
    with connection, connection.makefile("rw") as file:
        for line in file:
            file.write(line)
            file.flush()

def serve(server):
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
port = servers[0].getsockname()[1]
servers[1].bind(f"{sys.argv[1]}/rpc-{port}")
servers[1].listen()
for server in servers:
    threading.Thread(target=serve, args=(server,)).start()
print(port, flush=True)
"""
SILENT_S = 0.3

pytestmark = pytest.mark.skipif(bool(why_not(os.getpid())), reason=why_not(os.getpid()))


Dial = Callable[[int], socket.socket]
Servers = list[tuple[int, int]]


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="us-") as directory:
        yield Path(directory)


@pytest.fixture
def servers(sockets: Path) -> Iterator[Servers]:
    """Pid and port of two of them."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(2):
            command = [sys.executable, "-c", ECHO, str(sockets)]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            made.append((process.pid, int(process.stdout.readline())))
        yield made


def dial_tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


@pytest.fixture(params=["tcp", "unix"])
def dial(request: pytest.FixtureRequest, sockets: Path) -> Dial:
    """How the servers are reached."""

    def dial_unix(port: int) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(sockets / f"rpc-{port}"))
        return made

    return dial_tcp if request.param == "tcp" else dial_unix


def ask(connection: socket.socket, word: bytes) -> bytes:
    connection.sendall(word + b"\n")
    return hear(connection)


def hear(connection: socket.socket, patience_s: float = PATIENCE_S) -> bytes:
    connection.settimeout(patience_s)
    try:
        return connection.recv(100).strip()
    except TimeoutError:
        return b"(silence)"


def test_nothing_passes_between_the_two_and_it_arrives_afterwards(servers: Servers) -> None:
    (cut_off, port), (_, other_port) = servers
    with dial_tcp(port) as connection, dial_tcp(other_port) as other:
        assert (ask(connection, b"one"), ask(other, b"one")) == (b"one", b"one")
        with Cut([cut_off], [os.getpid()]) as cut:
            assert cut.connections == 1
            connection.sendall(b"two\n")
            assert hear(connection, SILENT_S) == b"(silence)"
            assert ask(other, b"two") == b"two", "whom nobody cut off goes on"
            with pytest.raises(TimeoutError):
                socket.create_connection(("127.0.0.1", port), SILENT_S)
        assert hear(connection) == b"two"


def test_who_dials_meanwhile_gets_no_answer_and_has_one_afterwards(servers: Servers, dial: Dial, sockets: Path) -> None:
    (cut_off, port), (_, other_port) = servers
    files = sorted(sockets.iterdir())
    with dial(port) as connection, dial(other_port) as other:
        assert (ask(connection, b"one"), ask(other, b"one")) == (b"one", b"one")
        with Cut([cut_off], [os.getpid()]) as cut:
            assert cut.connections == 1
            if connection.family == socket.AF_UNIX:
                assert hear(connection) == b"", "it cannot be silenced, so it is broken"
                with dial(port) as vain:
                    vain.sendall(b"two\n")
                    assert hear(vain, SILENT_S) == b"(silence)"
            assert ask(other, b"two") == b"two", "whom nobody cut off goes on"
        with dial(port) as new:
            assert ask(new, b"three") == b"three"
    assert sorted(sockets.iterdir()) == files


def test_of_a_process_that_ended_meanwhile_no_socket_is_left(servers: Servers, sockets: Path) -> None:
    (cut_off, _), (_, other_port) = servers
    with Cut([cut_off], [os.getpid()]):
        os.kill(cut_off, signal.SIGKILL)
        await_value(lambda: not lives(cut_off))
    assert [path.name for path in sockets.iterdir()] == [f"rpc-{other_port}"]


def test_those_that_are_not_connected_are_none(servers: Servers) -> None:
    (one, _), (other, _) = servers
    with Cut([one], [other]) as cut:
        assert cut.connections == 0
    assert disconnect([one], [other]) == 0


def test_what_is_disconnected_may_be_connected_again(servers: Servers, dial: Dial) -> None:
    (broken, port), (_, other_port) = servers
    with dial(port) as connection, dial(other_port) as other:
        assert (ask(connection, b"one"), ask(other, b"one")) == (b"one", b"one")
        assert disconnect([broken], [os.getpid()]) == 1
        assert hear(connection) == b"", "both sides see that it is over"
        assert ask(other, b"two") == b"two"
        with dial(port) as new:
            assert ask(new, b"three") == b"three"


def test_a_process_that_is_gone_is_why_not() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert "pidfd_getfd" in why_not(process.pid)
