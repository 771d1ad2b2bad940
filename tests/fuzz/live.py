"""A real RPC service under streams that were tampered with, while a well-behaved client goes on asking it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.rpc import wire
from actors.rpc.config import RpcConfig
from actors.rpc.service import RpcService
from actors.rpc.tls import TlsConfig
from tests.fakes.certificates import CertificateAuthority
from tests.fuzz import decoder, handshake
from tests.fuzz.live_server import FRAME_SIZE, SECRET, Item, TargetGateway
from tests.fuzz.source import ByteSource
from tests.handshakes import Records, authenticate_client_socket

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.fuzz.live_server"
ATTACKERS = 3
OPEN_AT_ONCE = 40
DEADLINE_S = 120.0
ANSWER_WITHIN_S = 120.0
SEND_WITHIN_S = 0.2
GROWTH_LIMIT_MB = 24
PEAK_LIMIT_MB = 400
WARM_UP = 0.3

Channel = socket.socket | ssl.SSLSocket


@dataclass
class Ports:
    """Where the server listens."""

    unix: Path
    plain: int
    tls: int
    certificates: TlsConfig
    tls_context: ssl.SSLContext
    errors: Path


class SteadyClient(threading.Thread):
    """Asks one thing after another over all three kinds of socket, and sees that each answer is the right one."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(name="steady")
        self._ports = ports
        self.stopping = threading.Event()
        self.answers = 0
        self.slowest_s = 0.0
        self.failure = ""

    def run(self) -> None:
        try:
            asyncio.run(self._ask())
        except Exception as error:  # whatever it is, it is the finding
            self.failure = f"the well-behaved client was disturbed: {type(error).__name__}: {error}"

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        configs = (
            (RpcConfig(frame_size=FRAME_SIZE), self._ports.plain),
            (RpcConfig(frame_size=FRAME_SIZE, socket_dir=self._ports.unix.parent), self._ports.plain),
            (RpcConfig(frame_size=FRAME_SIZE, tls=self._ports.certificates), self._ports.tls),
        )
        services = [RpcService(loop, SECRET, config) for config, _ in configs]
        gateways = [
            service.gateway(ActorAddress("s", "127.0.0.1", port, "/user/target"), TargetGateway, None, ANSWER_WITHIN_S)
            for service, (_, port) in zip(services, configs, strict=True)
        ]
        try:
            while not self.stopping.is_set():
                for gateway in gateways:
                    begin = time.monotonic()
                    value = str(self.answers).encode() * 10
                    assert await gateway.echo(value) == value
                    assert await gateway.double(self.answers) == 2 * self.answers
                    assert await gateway.rename(Item("a", 3), "b") == Item("b", 3)
                    self.answers += 3
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
                    await asyncio.sleep(0.001)
        finally:
            for service in services:
                await service.close()


@dataclass
class Attacker:
    """Opens connections, of which it holds some, and sends what the server should not be sent."""

    ports: Ports
    random: random.Random
    held: list[Channel] = field(default_factory=list)
    connections: int = 0
    frames: int = 0

    def attack(self) -> None:
        """One connection."""
        self.connections += 1
        data = self.random.randbytes(600)
        channel = self._connect(data[0])
        if channel is None:
            return
        try:
            self._send(channel, ByteSource(data[1:]))
        except (OSError, ActorError):
            channel.close()  # the server has hung up, as it should
        else:
            self._leave(channel)

    def _connect(self, choice: int) -> Channel | None:
        try:
            if choice % 3 == 0:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(DEADLINE_S)
                sock.connect(str(self.ports.unix))
                return sock
            port = self.ports.plain if choice % 3 == 1 else self.ports.tls
            sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
            if choice % 3 == 2 and choice > 40:
                return self.ports.tls_context.wrap_socket(sock)
            return sock
        except OSError:
            return None

    def _send(self, channel: Channel, source: ByteSource) -> None:
        kind = source.number(8)
        records: Records | None = None
        if kind == 0:
            stream = self.random.randbytes(self.random.choice((1, 40, 5000)))
        elif kind == 1:
            stream = source.choose(
                (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"UNDR\x03" + bytes(60))
            )
        elif kind == 2:
            recording = handshake.Recording()
            parts = (recording.hello, recording.answer, recording.proof, source.take(32), decoder.stream_of(source))
            stream = b"".join(self.random.choice(parts) for _ in range(source.number(5)))
        else:
            records = Records.of_client(authenticate_client_socket(channel, SECRET, "rpc"), channel)
            channel.settimeout(SEND_WITHIN_S)  # it reads no answers, so the server will not read it to the end either
            stream = decoder.stream_of(source) if kind == 3 else self._messages(source)
        for piece in source.pieces(stream) if len(stream) < 5000 and source.number(2) else [stream]:
            tagged = records is not None and piece and source.number(20)  # mostly with its tag
            channel.sendall(records.seal(piece) if records is not None and tagged else piece)

    def _messages(self, source: ByteSource) -> bytes:
        """Well-formed messages of nonsense, some of them many times over."""
        parts = []
        for _ in range(source.number(6) + 1):
            path = self._one_of("/user/target", "/user/led", "/user/nobody", [], b"x" * 70000, self._deep())
            name = self._one_of("echo", "double", "rename", "anything", "zeros", "fail", "note", "__class__", "lead")
            arguments = [self._value() for _ in range(source.number(4))]
            token = self._one_of(None, [7, "session"], [8, "x"], [2**63, ""], "token", self._deep())
            kind = source.number(3)
            if kind == 0:
                message = [wire.TELL, path, name, arguments, token]
            else:
                message = [wire.ASK, source.number(1 << 32), path, name, self._one_of(arguments, path), token]
            with contextlib.suppress(ValueError):  # too deep for the packer itself
                parts.append(decoder.frame(msgpack.packb(message)) * self._one_of(1, 1, 1, 50))
        self.frames += len(parts)
        return b"".join(parts)

    def _value(self) -> Any:
        return self._one_of(
            1, 70000, b"x", b"x" * 60000, "text", {"name": "a", "count": 1}, {"name": 1}, [], None, 1.5, self._deep()
        )

    def _deep(self) -> Any:
        value: Any = []
        for _ in range(self.random.choice((10, 100, 300, 490))):
            value = [value]
        return value

    def _one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def _leave(self, channel: Channel) -> None:
        """Read for a while, reset, say nothing more, or just go."""
        match self.random.randrange(5):
            case 0:
                channel.settimeout(0.02)
                with contextlib.suppress(OSError):
                    while channel.recv(65536):
                        pass
                channel.close()
            case 1:
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                channel.close()
            case 2:
                self.held.append(channel)  # not read from either
                if len(self.held) > OPEN_AT_ONCE // ATTACKERS:
                    self.held.pop(0).close()
            case _:
                channel.close()

    def let_go(self) -> None:
        """Close what is still held."""
        while self.held:
            self.held.pop().close()


def run_live(seconds: int, seed: int) -> dict[str, Any]:
    """Torment a server for *seconds* seconds.

    Returns:
        What was done, the server's memory and the well-behaved client's slowest round of three asks; ``found``: what
        went wrong, or "".
    """
    with tempfile.TemporaryDirectory(prefix="us-live-") as directory, _server(Path(directory)) as (process, ports):
        steady = SteadyClient(ports)
        steady.start()
        attackers = [Attacker(ports, random.Random(f"{seed}-{number}")) for number in range(ATTACKERS)]
        samples, peak_mb, found = _torment(process, steady, attackers, seconds)
        if not found:
            found = _aftermath(process, steady, samples, peak_mb)
        steady.stopping.set()
        steady.join(DEADLINE_S)
        return {
            "target": "live",
            "seconds": seconds,
            "executions": sum(attacker.connections for attacker in attackers),
            "nonsense_messages": sum(attacker.frames for attacker in attackers),
            "good_answers": steady.answers,
            "good_slowest_ms": round(steady.slowest_s * 1e3),
            "rss_mb": [round(sample) for sample in samples],
            "peak_rss_mb": round(peak_mb),
            "found": found or steady.failure or ports.errors.read_text()[:4000],
        }


def _torment(
    process: subprocess.Popen[str], steady: SteadyClient, attackers: list[Attacker], seconds: int
) -> tuple[list[float], float, str]:
    end = time.monotonic() + seconds
    failures: list[str] = []

    def work(attacker: Attacker) -> None:
        try:
            while time.monotonic() < end and not failures:
                attacker.attack()
        except Exception as error:  # not a refusal, but a fault of the test's, or a server that hangs
            failures.append(f"an attacker failed: {type(error).__name__}: {error}")
        finally:
            attacker.let_go()

    threads = [threading.Thread(target=work, args=(attacker,)) for attacker in attackers]
    for thread in threads:
        thread.start()
    samples: list[float] = []
    while time.monotonic() < end and not failures and process.poll() is None and not steady.failure:
        due = end - seconds * (1 - (len(samples) + 1) / 10)
        time.sleep(max(0.0, min(due, end) - time.monotonic()))
        if process.poll() is None:
            samples.append(_memory_mb(process.pid, "VmRSS"))
    for thread in threads:
        thread.join(DEADLINE_S + seconds)
    if process.poll() is not None:
        return samples, 0.0, f"the server ended with status {process.returncode}"
    return samples, _memory_mb(process.pid, "VmHWM"), "".join(failures[:1])


def _aftermath(process: subprocess.Popen[str], steady: SteadyClient, samples: list[float], peak_mb: float) -> str:
    """What is wrong with the server once it is left alone; "" for nothing."""
    before = steady.answers
    deadline = time.monotonic() + DEADLINE_S
    allowed = 30  # its standard streams, its listeners, its epoll and timer, and the well-behaved client's connections
    while _descriptors(process.pid) > allowed or steady.answers <= before + 30:
        if steady.failure:
            return steady.failure
        if time.monotonic() > deadline:
            return f"{_descriptors(process.pid)} descriptors are left, or it answers no more"
        time.sleep(0.05)
    samples.append(_memory_mb(process.pid, "VmRSS"))
    if peak_mb > PEAK_LIMIT_MB:
        return f"the server took {peak_mb:.0f} MB at its peak"
    warm = max(samples[: max(1, round(len(samples) * WARM_UP))])
    if samples[-1] > warm + GROWTH_LIMIT_MB:
        return f"the server grew from {warm:.0f} MB to {samples[-1]:.0f} MB"
    return ""


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _memory_mb(pid: int, name: str) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Ports]]:
    authority = CertificateAuthority(directory)
    own, certificates = authority.issue(), authority.issue()
    errors = directory / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, (directory, own.certificate, own.key, own.ca))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the server did not start: {errors.read_text()}"
        said = json.loads(line)
        try:
            unix = directory / f"rpc-{said['plain']}"
            context = certificates.contexts()[1]
            yield process, Ports(unix, said["plain"], said["tls"], certificates, context, errors)
        finally:
            process.stdin.close()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
