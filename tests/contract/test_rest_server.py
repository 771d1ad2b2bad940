"""The HTTP server of the web endpoint over real sockets: what peers may take of it, TLS, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trustme

from runtime.errors import PreflightError
from runtime.rest import server
from runtime.rest.listening import listen
from runtime.rest.server import MAX_HEAD, RestServer, tls_context
from tests.unit.test_rest_app import MAX_CONTENT, TOKEN, Site
from tests.waiting import PATIENCE_S

DEADLINE_S = PATIENCE_S
HEAD = f"host: localhost\r\nauthorization: Bearer {TOKEN.decode()}\r\n"


class Peer:
    """A connection as a stranger has one. What was answered before the other side broke off is read all the same."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    async def send(self, data: str | bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the other side may have enough of it
            sent = data.encode() if isinstance(data, str) else data
            await asyncio.get_running_loop().sock_sendall(self.connection, sent)

    async def _receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.get_running_loop().sock_recv(self.connection, 65536)

    async def _until(self, is_there: Callable[[bytes], bool]) -> None:
        while not is_there(self._received):
            data = await self._receive()
            if not data:
                raise ConnectionResetError(f"closed after {self._received[:200]!r}")
            self._received += data

    async def take(self, size: int) -> bytes:
        """So many bytes."""
        await self._until(lambda received: len(received) >= size)
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    async def _line(self, end: bytes = b"\r\n") -> bytes:
        await self._until(lambda received: end in received)
        return await self.take(self._received.index(end) + len(end))

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        status, *lines = (await self._line(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in headers:
            body = await self.take(int(headers["content-length"]))
        else:
            body = b""
            while size := int(await self._line(), 16):
                body += await self.take(size)
                await self._line()
            await self._line()
        return int(status.split()[1]), headers, body

    async def rest(self) -> bytes:
        """What comes until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while data := await self._receive():
                self._received += data
        return self._received

    async def is_closed(self) -> bool:
        """Whether the other side closes, after whatever it says."""
        await self.rest()
        return True


@asynccontextmanager
async def serving(
    directory: Path, max_connections: int = 50, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Site, Callable[[], Awaitable[Peer]]]]:
    """A server of an application over a made-up cluster, and how to connect to it."""
    (directory / "master.log").write_bytes(b"x" * 2_000_000)
    site = Site(directory)
    listener = listen("127.0.0.1", [0], "rest.port")
    port = listener.getsockname()[1]
    running = RestServer(site.app, listener, tls, max_connections)
    await running.start()
    peers: list[Peer] = []

    async def connect() -> Peer:
        connection = socket.socket()
        connection.setblocking(False)
        peer = Peer(connection)
        peers.append(peer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return peer

    try:
        yield site, connect
    finally:
        for peer in peers:
            peer.connection.close()
        await running.stop()
        # Of this process: who connects to a free port may meet itself, or another process that was given it.
        connections = psutil.Process().net_connections("tcp")
        assert port not in [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]


async def test_a_connection_serves_one_request_after_another(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        for _ in range(3):
            await peer.send(f"GET /v1/jobs/overview HTTP/1.1\r\n{HEAD}content-length: 2\r\n\r\n" + "{}")
            status, headers, body = await peer.answer()
            assert (status, headers["content-type"]) == (200, "application/json")
            assert len(json.loads(body)["jobs"]) == 2
        await peer.send(f"GET /overview HTTP/1.1\r\n{HEAD}\r\nGET /config HTTP/1.1\r\n{HEAD}\r\n")
        assert "taskmanagers" in json.loads((await peer.answer())[2])
        assert "features" in json.loads((await peer.answer())[2])
        await peer.send(f"GET /jobmanager/log HTTP/1.1\r\n{HEAD}\r\n")
        status, _, body = await peer.answer()
        assert (status, body) == (200, b"x" * 2_000_000)


async def test_chunked_bodies_are_taken_and_what_is_left_is_no_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as (site, connect):
        peer = await connect()
        await peer.send(
            f"PATCH /jobs/{site.cluster.running.job_id} HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n"
        )
        await peer.send("2\r\n{}\r\n0\r\n\r\n")
        assert (await peer.answer())[0] == 202
        hidden = "GET /overview HTTP/1.1\r\nhost: localhost\r\n\r\n"
        await peer.send(f"POST /jobs HTTP/1.1\r\n{HEAD}content-length: {len(hidden)}\r\n\r\n{hidden}")
        status, headers, _ = await peer.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert await peer.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100,
        b"UNDR\1" + b"x" * 64,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_so(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path) as (site, connect):
        peer = await connect()
        await peer.send(data)
        status, headers, body = await peer.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["errors"]
        assert await peer.is_closed()
        assert site.cluster.asked == 0


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"GET /"])
async def test_a_head_without_end_is_cut_off(tmp_path: Path, begin: bytes) -> None:
    line = b"x-more: " + b"x" * 1000 + b"\r\n" if begin.endswith(b"\n") else b"y" * 1000
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(begin + line * (2 * MAX_HEAD // len(line)))
        status, _, body = await peer.answer()
        assert status == 431
        assert str(MAX_HEAD) in json.loads(body)["errors"][0]
        assert await peer.is_closed()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: loc"])
async def test_who_does_not_ask_in_time_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.02)
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(sent)
        assert (await peer.answer())[0] == 408
        assert await peer.is_closed()


async def test_who_does_not_go_on_with_a_body_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.02)
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(f"POST /jobs HTTP/1.1\r\n{HEAD}content-length: 5000\r\n\r\nbegun")
        assert await peer.is_closed()


async def test_who_goes_away_amid_a_form_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "runtime.rest")
    async with serving(tmp_path) as (site, connect):
        peer = await connect()
        kind = "content-type: multipart/form-data; boundary=b\r\ncontent-length: 5000\r\n"
        await peer.send(f"POST /scripts HTTP/1.1\r\n{HEAD}{kind}\r\n--b\r\n")
        peer.connection.close()
        async with asyncio.timeout(DEADLINE_S):
            while "has disconnected" not in caplog.text:  # noqa: ASYNC110  # nobody tells of a log line
                await asyncio.sleep(0.01)
    assert site.cluster.submitted == []
    assert "failed" not in caplog.text


async def test_who_does_not_read_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.02)
    async with serving(tmp_path, max_connections=1) as (_, connect):
        deaf = await connect()
        await deaf.send(f"GET /jobmanager/log HTTP/1.1\r\n{HEAD}\r\n" * 20)
        async with asyncio.timeout(DEADLINE_S):
            while True:  # until the deaf one is parted with, there is no room
                peer = await connect()
                await peer.send(f"GET /config HTTP/1.1\r\n{HEAD}\r\n")
                try:
                    status = (await peer.answer())[0]
                except ConnectionError:
                    continue
                if status == 200:
                    return
                assert status == 503


async def test_too_many_connections_are_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=2) as (_, connect):
        first, second = await connect(), await connect()
        for peer in (first, second):
            await peer.send(f"GET /config HTTP/1.1\r\n{HEAD}\r\n")
            assert (await peer.answer())[0] == 200
        third = await connect()
        await third.send(f"GET /config HTTP/1.1\r\n{HEAD}\r\n")
        assert (await third.answer())[0] == 503
        assert await third.is_closed()
        await first.send(f"GET /config HTTP/1.1\r\n{HEAD}\r\n")
        assert (await first.answer())[0] == 200


async def test_a_long_body_is_refused_by_its_length_and_by_its_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(f"POST /jobs HTTP/1.1\r\n{HEAD}content-length: {MAX_CONTENT + 1}\r\n\r\n")
        assert (await peer.answer())[0] == 413
        assert await peer.is_closed()
        peer = await connect()
        await peer.send(f"POST /jobs HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (30_000, b"x" * 30_000)
        await peer.send(chunk * 4)
        assert (await peer.answer())[0] == 413


@pytest.mark.parametrize(
    "target",
    [
        "/jobmanager/logs/../secret",
        "/jobmanager/logs/..%2fsecret",
        "/jobmanager/logs/%2e%2e/secret",
        "/jobmanager/logs/%2e%2e%2fsecret",
        "/jobmanager/logs/..%252fsecret",
        "/jobmanager/logs/%252e%252e%252fsecret",
        "/jobmanager/logs/..%5csecret",
        "/jobmanager/logs/..%c0%afsecret",
        "/jobmanager/logs/%2fetc%2fpasswd",
        "/jobmanager/logs//etc/passwd",
        "/jobmanager/logs/link.log",
        "/jobmanager/logs/secret%00.log",
        "/jobmanager/logs/master.log%00",
        "/v1/jobmanager/logs/../../../../etc/passwd",
        "//etc/passwd",
    ],
)
async def test_no_name_leads_out_of_the_logs(tmp_path: Path, target: str) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "log" / "link.log").symlink_to(tmp_path / "secret")
    async with serving(tmp_path / "log") as (_, connect):
        peer = await connect()
        await peer.send(f"GET {target} HTTP/1.1\r\n{HEAD}\r\n")
        status, _, body = await peer.answer()
        assert status == 404
        assert b"the secret" not in body
        assert b"root:" not in body


def certified(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The two sides of TLS for localhost: the server's and a client's."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = directory / "rest.crt", directory / "rest.key"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    for file in (key, certificate):
        file.chmod(0o600)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return tls_context(certificate, key), client


async def test_https_with_its_own_certificate(tmp_path: Path) -> None:
    secured, client = certified(tmp_path)
    certificate, key = tmp_path / "rest.crt", tmp_path / "rest.key"
    key.chmod(0o640)
    with pytest.raises(PreflightError, match="can be read by others"):
        tls_context(certificate, key)
    (tmp_path / "log").mkdir()
    async with serving(tmp_path / "log", tls=secured) as (_, connect):
        plain = await connect()
        port = plain.connection.getpeername()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        writer.write(f"GET /config HTTP/1.1\r\n{HEAD}\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        await plain.send(f"GET /config HTTP/1.1\r\n{HEAD}\r\n")
        assert await plain.is_closed()
    with pytest.raises(PreflightError, match="cannot be used"):
        tls_context(key, certificate)
