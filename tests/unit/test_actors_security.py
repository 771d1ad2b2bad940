from __future__ import annotations

import hmac
import multiprocessing
import os
import socket
import stat
import threading
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ActorError, AuthenticationError, ProtocolVersionMismatch, WireError
from actors.rpc.security import (
    GREETING_SIZE,
    LOCAL,
    MAC_SIZE,
    MAGIC,
    PROOF_SIZE,
    SPOKEN,
    ClientHandshake,
    ServerHandshake,
    Versions,
    check_peer_is_us,
    far_end,
    load_or_create_secret,
    load_secret,
    near_end,
    refusal,
)
from tests.handshakes import authenticate_client_socket
from tests.waiting import PATIENCE_S

SECRET = b"0123456789abcdef0123456789abcdef"
TARGET = bytes(10) + b"\xff\xff\x7f\0\0\1\x12\x34"
OTHER_SECRET = b"fedcba9876543210fedcba9876543210"


def client_of(
    secret: bytes = SECRET, service: str = "rpc", target: bytes = TARGET, spoken: Versions = SPOKEN
) -> ClientHandshake:
    return ClientHandshake(secret, service, target, spoken)


def server_of(
    secret: bytes = SECRET, service: str = "rpc", target: bytes = TARGET, spoken: Versions = SPOKEN
) -> ServerHandshake:
    return ServerHandshake(secret, service, target, spoken)


def prove(server: ServerHandshake, hello: bytes) -> bytes:
    """The proof of a server that is greeted so."""
    assert server.receive(hello[:GREETING_SIZE]) == b""
    return server.receive(hello[GREETING_SIZE:])


def test_both_sides_with_the_secret_are_done_and_not_before() -> None:
    client, server = client_of(), server_of()
    assert (client.expects, server.expects) == (PROOF_SIZE, GREETING_SIZE)
    proof = prove(server, client.hello())
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
    client, server = client_of(), server_of(OTHER_SECRET)
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.receive(prove(server, client.hello()))
    assert not client.done


def test_the_server_finds_out_a_client_without_the_secret_that_does_not_check() -> None:
    server = server_of()
    hello = client_of(OTHER_SECRET).hello()
    proof = prove(server, hello)
    # The best that an impostor can do: a well-formed answer under a secret of its own.
    impostor = server_of(OTHER_SECRET)
    impostor._client_nonce, impostor._server_nonce = hello[5:GREETING_SIZE], proof[5:GREETING_SIZE]
    wrong = impostor._mac(b"client")
    with pytest.raises(AuthenticationError, match="peer does not hold"):
        server.receive(wrong)
    assert not server.done


def test_a_handshake_for_another_service_is_none() -> None:
    client, server = client_of(service="blob"), server_of()
    proof = prove(server, client.hello())
    with pytest.raises(AuthenticationError):
        client.receive(proof)
    client._server_nonce = proof[5:GREETING_SIZE]
    answer = client._mac(b"client")
    with pytest.raises(AuthenticationError):
        server.receive(answer)
    assert not server.done


def test_a_recorded_client_is_refused_by_the_next_connection() -> None:
    client, server = client_of(), server_of()
    hello = client.hello()
    answer = client.receive(prove(server, hello))
    server.receive(answer)
    assert server.done

    again = server_of()
    prove(again, hello)
    with pytest.raises(AuthenticationError):
        again.receive(answer)
    assert not again.done


def test_a_recorded_server_is_refused_by_the_next_client() -> None:
    client, server = client_of(), server_of()
    proof = prove(server, client.hello())
    client.receive(proof)
    with pytest.raises(AuthenticationError):
        client_of().receive(proof)


def test_the_servers_own_proof_reflected_is_no_answer() -> None:
    client, server = client_of(), server_of()
    proof = prove(server, client.hello())
    with pytest.raises(AuthenticationError):
        server.receive(proof[GREETING_SIZE:])


# ------------------------------------------------------------------ what was dialled

ELSEWHERE = TARGET[:-1] + b"\0"


def test_a_server_refuses_who_has_dialled_another_port_and_proves_nothing_to_him() -> None:
    client, server = client_of(target=ELSEWHERE), server_of()
    with pytest.raises(AuthenticationError, match=r"has dialled 127\.0\.0\.1:4608, and this is 127\.0\.0\.1:4660"):
        prove(server, client.hello())
    assert not server.done
    with pytest.raises(AuthenticationError, match=r"not at 127\.0\.0\.1:4608, which was dialled.*dial its own address"):
        client.receive(server.refusal)


def test_a_handshake_that_is_passed_on_with_the_port_changed_is_believed_by_neither_side() -> None:
    client, server = client_of(target=ELSEWHERE), server_of()
    proof = prove(server, client.hello().replace(ELSEWHERE, TARGET))  # as the relay would have it
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.receive(proof)
    trusting = client_of(target=ELSEWHERE)  # a client that would answer whatever the proof
    trusting._client_nonce, trusting._server_nonce = client._client_nonce, server._server_nonce
    with pytest.raises(AuthenticationError, match="peer does not hold"):
        server.receive(trusting._mac(b"client"))


def test_both_ends_of_a_connection_see_the_same_target(tmp_path: Path) -> None:
    hosts = ["127.0.0.1", "127.0.0.2", *(["::1"] if _has_ipv6() else [])]
    targets = set()
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = {"127.0.0.1": "127.0.0.1", "127.0.0.2": "0.0.0.0", "::1": "::"}[host]  # also where all are bound
        with (
            socket.create_server((bound, 0), family=family) as listener,
            socket.create_connection((host, listener.getsockname()[1]), timeout=PATIENCE_S) as client,
        ):
            accepted, _ = listener.accept()
            with accepted:
                assert far_end(client) == near_end(accepted) != near_end(client)
                targets.add(far_end(client))
    assert len(targets) == len(hosts)
    near, far = socket.socketpair()
    with near, far:
        assert far_end(near) == near_end(far) == LOCAL


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_server_of_an_address_of_both_families_knows_ipv4_by_its_own_name() -> None:
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=PATIENCE_S) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert far_end(client) == near_end(accepted)


def test_the_tags_are_those_of_both_ends_and_of_this_connection_alone() -> None:
    seen = set()
    for target in (TARGET, TARGET, ELSEWHERE):
        client, server = client_of(target=target), server_of(target=target)
        server.receive(client.receive(prove(server, client.hello())))
        of_client, of_server = client.tags(), server.tags()
        for direction in (0, 1):
            tag = of_client[direction].next(b"x")
            assert of_server[direction].fits(b"x", tag)
            seen.add(tag)
    assert len(seen) == 6


def test_a_process_of_another_user_at_the_other_end_of_a_unix_socket_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = socket.socketpair()
    with near, far:
        check_peer_is_us(near)
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(AuthenticationError, match=f"of user {user}, and this one's user is {user + 1}"):
            check_peer_is_us(near)


# ------------------------------------------------------------------ versions, and other protocols


RANGES = [Versions(3, 3), Versions(3, 4), Versions(4, 4), Versions(4, 6), Versions(6, 7), Versions(3, 9)]


@pytest.mark.parametrize("ours", RANGES, ids=str)
@pytest.mark.parametrize("theirs", RANGES, ids=str)
def test_both_sides_agree_on_the_newest_version_that_both_speak(ours: Versions, theirs: Versions) -> None:
    common = {*range(ours.oldest, ours.newest + 1)} & {*range(theirs.oldest, theirs.newest + 1)}
    client, server = client_of(spoken=ours), server_of(spoken=theirs)
    if common:
        server.receive(client.receive(prove(server, client.hello())))
        assert client.done
        assert server.done
        assert client.version == server.version == max(common)
        assert all(far.fits(b"x", near.next(b"x")) for near, far in zip(client.tags(), server.tags(), strict=True))
        return
    with pytest.raises(ProtocolVersionMismatch, match=f"version .*, this side speaks {theirs}: install"):
        prove(server, client.hello())
    with pytest.raises(ProtocolVersionMismatch, match=f"version {theirs}, this side speaks {ours}: install"):
        client.receive(server.refusal)
    assert not client.done
    assert client.version == server.version == 0


def test_version_2_is_refused_by_its_shorter_hello_and_refuses_in_its_own_form() -> None:
    server = server_of()
    with pytest.raises(ProtocolVersionMismatch, match=f"version 2, this side speaks {SPOKEN}: install"):
        server.receive(MAGIC + bytes([2]) + bytes(32))
    assert len(server.refusal) == PROOF_SIZE
    with pytest.raises(ProtocolVersionMismatch, match=f"version 2, this side speaks {SPOKEN}: install"):
        client_of().receive((MAGIC + bytes([2])).ljust(PROOF_SIZE, b"\0"))


def test_nobody_between_the_two_lowers_their_version() -> None:
    client, server = client_of(spoken=Versions(3, 5)), server_of(spoken=Versions(3, 5))
    hello = bytearray(client.hello())
    hello[4] = 4
    proof = prove(server, bytes(hello))
    assert server.version == 4
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.receive(proof)
    client, server = client_of(spoken=Versions(3, 5)), server_of(spoken=Versions(3, 5))
    lowered = bytearray(prove(server, client.hello()))
    lowered[4] = 4
    with pytest.raises(AuthenticationError, match="server does not hold"):
        client.receive(bytes(lowered))


@pytest.mark.parametrize("oldest", range(256))
def test_any_oldest_version_of_a_client_is_agreed_on_or_refused(oldest: int) -> None:
    hello = client_of().hello()[:-1] + bytes([oldest])
    server = server_of()
    if oldest <= SPOKEN.newest:
        prove(server, hello)
        assert server.version == SPOKEN.newest
    else:
        with pytest.raises(ProtocolVersionMismatch):
            prove(server, hello)


def test_only_another_version_is_told_anything() -> None:
    for first in (bytes(GREETING_SIZE), b"GET / HTTP/1.1\r\n".ljust(GREETING_SIZE)):
        server = server_of()
        with pytest.raises(WireError):
            server.receive(first)
        assert server.refusal == b""
    server = server_of()
    prove(server, client_of(OTHER_SECRET).hello())
    with pytest.raises(AuthenticationError):
        server.receive(bytes(MAC_SIZE))
    assert server.refusal == b""


def test_a_refusal_of_the_same_version_is_no_proof() -> None:
    with pytest.raises(AuthenticationError):
        client_of().receive(refusal(SPOKEN))


@pytest.mark.parametrize("size", [0, 1, GREETING_SIZE - 1, GREETING_SIZE + 1])
def test_a_step_takes_exactly_what_it_expects(size: int) -> None:
    with pytest.raises(WireError, match=f"of {size} bytes, where {GREETING_SIZE} are due"):
        server_of().receive(MAGIC.ljust(size, b"\1")[:size])


def test_a_handshake_has_one_try() -> None:
    client, server = client_of(), server_of()
    answer = client.receive(prove(server, client.hello()))
    with pytest.raises(AuthenticationError):
        server.receive(bytes(MAC_SIZE))
    with pytest.raises(WireError, match="over"):
        server.receive(answer)
    assert not server.done
    with pytest.raises(WireError, match="over"):
        client.receive(bytes(PROOF_SIZE))


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00", b"undr", bytes(9)]
)
def test_another_protocol_is_a_wire_error(start: bytes) -> None:
    with pytest.raises(WireError, match="does not speak"):
        server_of().receive(start.ljust(GREETING_SIZE, b"\0")[:GREETING_SIZE])
    with pytest.raises(WireError, match="does not speak"):
        client_of().receive(start.ljust(PROOF_SIZE, b"\0")[:PROOF_SIZE])


@given(
    hello=st.binary(min_size=GREETING_SIZE, max_size=GREETING_SIZE),
    answer=st.binary(min_size=MAC_SIZE, max_size=MAC_SIZE),
)
def test_no_random_bytes_pass_the_server(hello: bytes, answer: bytes) -> None:
    server = server_of()
    with pytest.raises(WireError):
        server_of().receive(hello)
    prove(server, MAGIC + bytes([SPOKEN.newest]) + hello[5:] + TARGET + bytes([SPOKEN.oldest]))
    with pytest.raises(AuthenticationError):
        server.receive(answer)
    assert not server.done


@given(proof=st.binary(min_size=PROOF_SIZE, max_size=PROOF_SIZE))
def test_no_random_bytes_pass_the_client(proof: bytes) -> None:
    for first in (proof, MAGIC + bytes([SPOKEN.newest]) + proof[5:]):
        client = client_of()
        with pytest.raises(ActorError):
            client.receive(first)
        assert not client.done


@given(position=st.integers(0, PROOF_SIZE - 1), flip=st.integers(1, 255))
def test_every_byte_of_the_proof_counts(position: int, flip: int) -> None:
    client, server = client_of(), server_of()
    proof = bytearray(prove(server, client.hello()))
    proof[position] ^= flip
    with pytest.raises(ActorError):
        client.receive(bytes(proof))


@given(position=st.integers(0, MAC_SIZE - 1), flip=st.integers(1, 255))
def test_every_byte_of_the_answer_counts(position: int, flip: int) -> None:
    client, server = client_of(), server_of()
    answer = bytearray(client.receive(prove(server, client.hello())))
    answer[position] ^= flip
    with pytest.raises(AuthenticationError):
        server.receive(bytes(answer))
    assert not server.done


def test_the_secret_is_in_nothing_that_travels() -> None:
    client, server = client_of(), server_of()
    hello = client.hello()
    proof = prove(server, hello)
    travelled = hello + proof + client.receive(proof)
    assert SECRET not in travelled
    assert client._key not in travelled


# ------------------------------------------------------------------ the blocking client


def _serve_once(listener: socket.socket, secret: bytes, chunk: int, results: list[bool]) -> None:
    connection, _ = listener.accept()
    with connection:
        server = ServerHandshake(secret, "blob", near_end(connection))
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
        with socket.create_connection(listener.getsockname(), timeout=PATIENCE_S) as sock:
            authenticate_client_socket(sock, SECRET, "blob")
            thread.join(PATIENCE_S)
    assert results == [True]


def test_a_server_that_hangs_up_midway_is_an_authentication_error() -> None:
    client, server = socket.socketpair()  # Unix sockets, which have no address to be dialled
    with client:
        client.settimeout(10)
        server.sendall(MAGIC)
        server.shutdown(socket.SHUT_WR)
        with server, pytest.raises(AuthenticationError, match="closed the connection"):
            authenticate_client_socket(client, SECRET, "blob")


# ------------------------------------------------------------------ the secret file


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    client, server = client_of(), server_of()
    proof = prove(server, client.hello())
    answer = client.receive(proof)
    server.receive(answer)
    assert [call.args[0] for call in compared.call_args_list] == [proof[GREETING_SIZE:], answer]


def test_the_secret_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = mock.Mock()
    steps.fsync.side_effect = os.fsync
    steps.link.side_effect = os.link
    monkeypatch.setattr(os, "fsync", steps.fsync)
    monkeypatch.setattr(os, "link", steps.link)
    load_or_create_secret(tmp_path / "secret")
    assert [name for name, _, _ in steps.method_calls] == ["fsync", "link", "fsync"], "the directory is synced last"


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


def test_a_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    load_or_create_secret(path)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(AuthenticationError, match=f"belongs to user {owner}.*as user {owner + 1}; chown it"):
        load_or_create_secret(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_secret_that_was_given_away_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    load_or_create_secret(path)
    os.chown(path, 12345, -1)
    with pytest.raises(AuthenticationError, match="belongs to user 12345"):
        load_or_create_secret(path)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(AuthenticationError, match="not a plain file"):
            load_or_create_secret(path)


def test_a_link_to_a_good_secret_is_followed(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path / "secret")
    (tmp_path / "link").symlink_to("secret")
    assert load_or_create_secret(tmp_path / "link") == secret


def test_an_enormous_file_is_no_secret_and_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    os.truncate(path, 1 << 40)
    with pytest.raises(AuthenticationError, match="longer than"):
        load_secret(path)


@pytest.mark.parametrize("path", ["nothing", "no/such/directory/secret"])
def test_a_missing_secret_is_said_with_the_remedy(tmp_path: Path, path: str) -> None:
    with pytest.raises(AuthenticationError, match=r"cannot be read: No such file.*set security\.secret-file"):
        load_secret(tmp_path / path)


def test_a_secret_that_cannot_be_made_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match=r"cannot be made: No such file.*make it yourself"):
        load_or_create_secret(tmp_path / "no" / "secret")
    assert list(tmp_path.iterdir()) == []


def _make_secret(path: Path, barrier: Barrier, results: Connection) -> None:
    barrier.wait(PATIENCE_S)
    try:
        results.send_bytes(load_or_create_secret(path))
    except Exception as error:
        results.send_bytes(repr(error).encode())


def test_processes_that_make_the_file_in_the_same_moment_all_get_the_same_secret(tmp_path: Path) -> None:
    rounds, parties = 5, 12
    context = multiprocessing.get_context("fork")
    for number in range(rounds):
        path = tmp_path / f"secret-{number}"
        barrier = context.Barrier(parties)
        receiver, sender = context.Pipe(duplex=False)
        processes = [context.Process(target=_make_secret, args=(path, barrier, sender)) for _ in range(parties)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE_S)
        results = {receiver.recv_bytes() for _ in range(parties) if receiver.poll(10)}
        assert results == {path.read_bytes().strip()}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"secret-{number}" for number in range(rounds)]
