"""Both handshake machines under any bytes: nobody is let in but by the one answer that proves the secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from unittest import mock

from actors.errors import AuthenticationError, WireError
from actors.rpc import security
from actors.rpc.security import (
    GREETING_SIZE,
    HELLO_SIZE,
    MAC_SIZE,
    MAGIC,
    PROOF_SIZE,
    SPOKEN,
    TARGET_SIZE,
    ClientHandshake,
    ServerHandshake,
    refusal,
)
from tests.fuzz.source import ByteSource

SECRET, OTHER_SECRET = b"0123456789abcdef0123456789abcdef", b"fedcba9876543210fedcba9876543210"
PREAMBLE = MAGIC + bytes([SPOKEN.newest])
TARGET = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]) + (4711).to_bytes(2)


def expected_mac(
    secret: bytes, role: bytes, service: bytes, client_nonce: bytes, server_nonce: bytes, of_client: tuple[int, int]
) -> bytes:
    """Return the proof as the protocol's description has it; *of_client* is its oldest and newest version."""
    key = hashlib.blake2b(secret, digest_size=32, person=b"understudy-auth").digest()
    bound = (client_nonce, server_nonce, TARGET, bytes((*of_client, SPOKEN.newest)))
    text = b"|".join((role, service, *(part.hex().encode() for part in bound)))
    return hmac.new(key, text, hashlib.sha256).digest()


def _nonces() -> Callable[[int], bytes]:
    """As random as they need to be, and the same in every run, as a fuzzer wants it."""

    def numbers() -> Iterator[bytes]:
        number = 0
        while True:
            number += 1
            yield hashlib.sha256(number.to_bytes(8, "big")).digest()

    source = numbers()
    return lambda size: next(source)[:size]


class Recording:
    """One whole handshake, as somebody on the way might have kept it."""

    def __init__(self, secret: bytes = SECRET, service: str = "rpc", target: bytes = TARGET) -> None:
        client, server = ClientHandshake(secret, service, target), ServerHandshake(secret, service, target)
        self.hello = client.hello()
        server.receive(self.hello[:GREETING_SIZE])
        self.proof = server.receive(self.hello[GREETING_SIZE:])
        self.answer = client.receive(self.proof)


def seeds() -> list[bytes]:
    """The first byte chooses the side; the others choose pieces, and how they are cut."""
    genuine = bytes([0, 1, 0])
    return [
        b"",
        genuine,
        bytes([1, 1, 0]),
        bytes([0, 2, 3, 4, 5]),
        bytes([1, 2, 3, 4, 5]),
        bytes([0, 10]) + PREAMBLE + bytes(64),
        bytes([1, 10]) + PREAMBLE + bytes(64),
        *(bytes([side, 1 + number % 3, number, number + 1, *range(40)]) for side in (0, 1) for number in range(14)),
    ]


class _Connection:
    """Feeds a machine as a connection does, and checks that an error is a documented one and the end."""

    def __init__(self, machine: ServerHandshake | ClientHandshake) -> None:
        self._machine = machine
        self._early = bytearray()
        self.received = b""
        self.answered = b""
        self.failed = False

    def feed(self, pieces: list[bytes]) -> None:
        machine = self._machine
        for piece in pieces:
            self.received += piece
            self._early += piece
            while not self.failed and not machine.done and len(self._early) >= machine.expects:
                part = bytes(self._early[: machine.expects])
                del self._early[: machine.expects]
                try:
                    self.answered += machine.receive(part)
                except (WireError, AuthenticationError) as error:
                    self._refused(str(error))

    def _refused(self, text: str) -> None:
        self.failed = True
        assert len(text) < 300
        assert not self._machine.done
        for size in (0, MAC_SIZE, TARGET_SIZE + 1, GREETING_SIZE, HELLO_SIZE, PROOF_SIZE):
            try:
                self._machine.receive(bytes(size))
            except WireError:
                continue
            raise AssertionError("a handshake that had failed went on")


def check(data: bytes) -> None:
    """One input of the fuzzer; raises AssertionError, or whatever came that should not."""
    with mock.patch.object(security.os, "urandom", _nonces()):
        source = ByteSource(data)
        if source.number(2) == 0:
            _check_server(source)
        else:
            _check_client(source)


def _check_server(source: ByteSource) -> None:
    old, other, blob = Recording(), Recording(OTHER_SECRET), Recording(service="blob")
    elsewhere = Recording(target=TARGET[:-1] + b"\0")
    client, server = ClientHandshake(SECRET, "rpc", TARGET), ServerHandshake(SECRET, "rpc", TARGET)
    connection = _Connection(server)
    hellos = (
        client.hello(),
        old.hello,
        other.hello,
        blob.hello,
        elsewhere.hello,
        old.proof[:HELLO_SIZE],
        source.take(8),
        PREAMBLE,
    )
    connection.feed(source.pieces(_spoilt(source, source.choose(hellos))))
    answers = [old.answer, other.answer, blob.answer, old.proof[-MAC_SIZE:], source.take(MAC_SIZE), client.hello()]
    if connection.answered:  # what answers the server's nonce can be made only now
        nonces = connection.received[5:GREETING_SIZE], connection.answered[5:GREETING_SIZE]
        versions = (connection.received[HELLO_SIZE - 1], connection.received[4])
        answers = [
            expected_mac(SECRET, b"client", b"rpc", *nonces, versions),
            *answers,
            connection.answered[GREETING_SIZE:],
            expected_mac(OTHER_SECRET, b"client", b"rpc", *nonces, versions),
            expected_mac(SECRET, b"client", b"blob", *nonces, versions),
            expected_mac(SECRET, b"client", b"rpc", *nonces, (versions[0], versions[1] ^ 1)),
        ]
    connection.feed(source.pieces(_spoilt(source, source.choose(answers)) + source.take(16)))

    hello, answer = connection.received[:HELLO_SIZE], connection.received[HELLO_SIZE : HELLO_SIZE + MAC_SIZE]
    greeted = len(hello) >= GREETING_SIZE and hello[:4] == MAGIC
    is_too_old = greeted and hello[4] < SPOKEN.oldest
    is_whole = greeted and not is_too_old and len(hello) == HELLO_SIZE
    is_too_new = is_whole and hello[-1] > SPOKEN.newest
    if is_whole and not is_too_new and hello[GREETING_SIZE:-1] == TARGET:
        nonces, versions = (hello[5:GREETING_SIZE], connection.answered[5:GREETING_SIZE]), (hello[-1], hello[4])
        proof = PREAMBLE + nonces[1] + expected_mac(SECRET, b"server", b"rpc", *nonces, versions)
        assert connection.answered == proof
        genuine = expected_mac(SECRET, b"client", b"rpc", *nonces, versions)
        assert server.done == (answer == genuine), "let in without the proof, or not with it"
        assert connection.failed == (len(answer) == MAC_SIZE and answer != genuine)
        assert server.refusal == b""
    else:
        assert not server.done
        assert connection.answered == b"", "nothing is shown to who does not speak the protocol, or has not dialled us"
        assert server.refusal == (refusal(SPOKEN) if is_too_old or is_whole else b"")


def _check_client(source: ByteSource) -> None:
    old = Recording()
    client = ClientHandshake(SECRET, "rpc", TARGET)
    connection = _Connection(client)
    hello = client.hello()
    proofs = []
    for secret, service in ((SECRET, "rpc"), (OTHER_SECRET, "rpc"), (SECRET, "blob")):
        server = ServerHandshake(secret, service, TARGET)
        server.receive(hello[:GREETING_SIZE])
        proofs.append(server.receive(hello[GREETING_SIZE:]))
    choices = (*proofs, old.proof, hello + bytes(MAC_SIZE), refusal(SPOKEN), source.take(PROOF_SIZE))
    connection.feed(source.pieces(_spoilt(source, source.choose(choices)) + source.take(16)))
    genuine = proofs[0]
    assert client.done == (connection.received[:PROOF_SIZE] == genuine), "an impostor was believed, or the server not"
    if client.done:
        assert connection.answered == expected_mac(
            SECRET, b"client", b"rpc", hello[5:GREETING_SIZE], genuine[5:GREETING_SIZE], (SPOKEN.oldest, SPOKEN.newest)
        )
    else:
        assert connection.answered == b"", "nothing is shown to who has not proved itself"


def _spoilt(source: ByteSource, piece: bytes) -> bytes:
    match source.number(6):
        case 0 | 1:
            return piece
        case 2:
            return piece[: source.number(len(piece) + 1)]
        case 3:
            return piece + piece
        case 4 if piece:
            changed = bytearray(piece)
            changed[source.number(len(changed))] ^= 1 + source.number(255)
            return bytes(changed)
        case _:
            return source.take(source.number(80)) + piece
