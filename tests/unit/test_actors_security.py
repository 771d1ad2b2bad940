from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ActorError, AuthenticationError, ProtocolVersionMismatch, WireError
from actors.rpc.security import (
    HELLO_SIZE,
    MAC_SIZE,
    MAGIC,
    PROOF_SIZE,
    VERSION,
    ClientHandshake,
    ServerHandshake,
    authenticate_client_socket,
    load_or_create_secret,
)

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER_SECRET = b"fedcba9876543210fedcba9876543210"


def shake_hands(client: ClientHandshake, server: ServerHandshake) -> None:
    proof = server.receive(client.hello())
    server.receive(client.receive(proof))


def test_both_sides_with_the_secret_are_done_and_not_before() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    assert (client.expects, server.expects) == (PROOF_SIZE, HELLO_SIZE)
    proof = server.receive(client.hello())
    assert len(proof) == client.expects
    assert not server.done
    assert server.expects == MAC_SIZE
    assert not client.done
    answer = client.receive(proof)
    assert client.done
    assert not server.done
    assert server.receive(answer) == b""
    assert server.done
    assert (client.expects, server.expects) == (0, 0)


def test_the_client_finds_out_a_server_without_the_secret() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(OTHER_SECRET, "rpc")
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.receive(server.receive(client.hello()))
    assert not client.done


def test_the_server_finds_out_a_client_without_the_secret_that_does_not_check() -> None:
    server = ServerHandshake(SECRET, "rpc")
    hello = ClientHandshake(OTHER_SECRET, "rpc").hello()
    proof = server.receive(hello)
    # The best that an impostor can do: a well-formed answer under a secret of its own.
    impostor = ServerHandshake(OTHER_SECRET, "rpc")
    wrong = impostor._mac(b"client", hello[5:], proof[5:HELLO_SIZE])
    with pytest.raises(AuthenticationError, match="peer does not hold"):
        server.receive(wrong)
    assert not server.done


def test_a_handshake_for_another_service_is_none() -> None:
    client, server = ClientHandshake(SECRET, "blob"), ServerHandshake(SECRET, "rpc")
    proof = server.receive(client.hello())
    with pytest.raises(AuthenticationError):
        client.receive(proof)
    answer = client._mac(b"client", client.hello()[5:], proof[5:HELLO_SIZE])
    with pytest.raises(AuthenticationError):
        server.receive(answer)
    assert not server.done


def test_a_recorded_client_is_refused_by_the_next_connection() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    hello = client.hello()
    answer = client.receive(server.receive(hello))
    server.receive(answer)
    assert server.done

    again = ServerHandshake(SECRET, "rpc")
    again.receive(hello)
    with pytest.raises(AuthenticationError):
        again.receive(answer)
    assert not again.done


def test_a_recorded_server_is_refused_by_the_next_client() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    proof = server.receive(client.hello())
    client.receive(proof)
    with pytest.raises(AuthenticationError):
        ClientHandshake(SECRET, "rpc").receive(proof)


def test_the_servers_own_proof_reflected_is_no_answer() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    proof = server.receive(client.hello())
    with pytest.raises(AuthenticationError):
        server.receive(proof[HELLO_SIZE:])


@pytest.mark.parametrize("side", ["client", "server"])
def test_another_version_is_named_on_both_sides(side: str) -> None:
    handshake = (ServerHandshake if side == "server" else ClientHandshake)(SECRET, "rpc")
    first = (MAGIC + bytes([VERSION + 1])).ljust(handshake.expects, b"\0")
    with pytest.raises(ProtocolVersionMismatch, match=f"version {VERSION + 1}, this side speaks {VERSION}"):
        handshake.receive(first)


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00", b"undr", bytes(9)]
)
def test_another_protocol_is_a_wire_error(start: bytes) -> None:
    with pytest.raises(WireError, match="does not speak"):
        ServerHandshake(SECRET, "rpc").receive(start.ljust(HELLO_SIZE, b"\0")[:HELLO_SIZE])
    with pytest.raises(WireError, match="does not speak"):
        ClientHandshake(SECRET, "rpc").receive(start.ljust(PROOF_SIZE, b"\0")[:PROOF_SIZE])


@given(
    hello=st.binary(min_size=HELLO_SIZE, max_size=HELLO_SIZE), answer=st.binary(min_size=MAC_SIZE, max_size=MAC_SIZE)
)
def test_no_random_bytes_pass_the_server(hello: bytes, answer: bytes) -> None:
    server = ServerHandshake(SECRET, "rpc")
    with pytest.raises(WireError):
        server.receive(hello)
    server.receive(MAGIC + bytes([VERSION]) + hello[5:])
    with pytest.raises(AuthenticationError):
        server.receive(answer)
    assert not server.done


@given(proof=st.binary(min_size=PROOF_SIZE, max_size=PROOF_SIZE))
def test_no_random_bytes_pass_the_client(proof: bytes) -> None:
    for first in (proof, MAGIC + bytes([VERSION]) + proof[5:]):
        client = ClientHandshake(SECRET, "rpc")
        with pytest.raises(ActorError):
            client.receive(first)
        assert not client.done


@given(position=st.integers(0, PROOF_SIZE - 1), flip=st.integers(1, 255))
def test_every_byte_of_the_proof_counts(position: int, flip: int) -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    proof = bytearray(server.receive(client.hello()))
    proof[position] ^= flip
    with pytest.raises(ActorError):
        client.receive(bytes(proof))


@given(position=st.integers(0, MAC_SIZE - 1), flip=st.integers(1, 255))
def test_every_byte_of_the_answer_counts(position: int, flip: int) -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    answer = bytearray(client.receive(server.receive(client.hello())))
    answer[position] ^= flip
    with pytest.raises(AuthenticationError):
        server.receive(bytes(answer))
    assert not server.done


def test_the_secret_is_in_nothing_that_travels() -> None:
    client, server = ClientHandshake(SECRET, "rpc"), ServerHandshake(SECRET, "rpc")
    hello = client.hello()
    proof = server.receive(hello)
    travelled = hello + proof + client.receive(proof)
    assert SECRET not in travelled
    assert client._key not in travelled


# ------------------------------------------------------------------ the blocking client


def _serve_once(listener: socket.socket, secret: bytes, chunk: int, results: list[bool]) -> None:
    connection, _ = listener.accept()
    with connection:
        server = ServerHandshake(secret, "blob")
        received = b""
        while not server.done:
            data = connection.recv(server.expects - len(received))
            if not data:
                break
            received += data
            if len(received) == server.expects:
                answer, received = server.receive(received), b""
                for start in range(0, len(answer), chunk):
                    connection.sendall(answer[start : start + chunk])
        results.append(server.done)


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_blocking_socket_is_authenticated_however_the_bytes_arrive(chunk: int) -> None:
    results: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_once, args=(listener, SECRET, chunk, results))
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=10) as sock:
            authenticate_client_socket(sock, SECRET, "blob")
            thread.join(10)
    assert results == [True]


def test_a_server_that_hangs_up_midway_is_an_authentication_error() -> None:
    client, server = socket.socketpair()
    with client:
        client.settimeout(10)
        server.sendall(MAGIC)
        server.shutdown(socket.SHUT_WR)
        with server, pytest.raises(AuthenticationError, match="closed the connection"):
            authenticate_client_socket(client, SECRET, "blob")


# ------------------------------------------------------------------ the secret file


def test_the_secret_is_made_once_with_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    previous = os.umask(0)
    try:
        secret = load_or_create_secret(path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(secret) == 64
    assert bytes.fromhex(secret.decode())
    assert load_or_create_secret(path) == secret
    assert load_or_create_secret(tmp_path / "another") != secret


def test_a_configured_secret_is_taken_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(b"correct horse battery\n")
    assert load_or_create_secret(path) == b"correct horse battery"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_secret_that_others_may_touch_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    load_or_create_secret(path)
    path.chmod(mode)
    with pytest.raises(AuthenticationError, match=f"mode {mode:04o}.*chmod 600"):
        load_or_create_secret(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"fifteen letters"])
def test_a_short_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(AuthenticationError, match="shorter than 16") as caught:
        load_or_create_secret(path)
    assert "fifteen" not in str(caught.value)
