"""Hostile HTTP over real sockets: one readable error or a closed connection, and the others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from runtime.rest import server
from runtime.rest.access import UNAUTHENTICATED
from runtime.rest.server import MAX_HEAD
from tests.contract.test_rest_server import DEADLINE_S, HEAD, Peer, certified, serving
from tests.logged import logged
from tests.unit.test_rest_app import TOKEN

POST = f"POST /jobs HTTP/1.1\r\n{HEAD}"
GET = f"GET /overview HTTP/1.1\r\n{HEAD}"
CHUNKED = f"{POST}transfer-encoding: chunked\r\n\r\n"
SHOWN = f"authorization: Bearer {TOKEN.decode()}\r\n"
FOLD = "\r\n "

REFUSED = {
    # Where a body ends has one meaning, or none: two servers may not differ about what is the next request.
    "length and chunks": f"{POST}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": f"{POST}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "coded by nothing": f"{POST}transfer-encoding: identity\r\n\r\nabc",
    "coded by something": f"{POST}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked and then not": f"{POST}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "blank before the colon": f"{POST}transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": f"{POST}transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": f"{POST}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "one length twice": f"{POST}content-length: 2\r\ncontent-length: 2\r\n\r\n{{}}",
    "a list of lengths": f"{POST}content-length: 2, 2\r\n\r\n{{}}",
    "a length with a sign": f"{POST}content-length: +2\r\n\r\n{{}}",
    "a hexadecimal length": f"{POST}content-length: 0x2\r\n\r\n{{}}",
    "an endless length": f"{POST}content-length: {'9' * 40}\r\n\r\n{{}}",
    # Chunks.
    "no size": f"{CHUNKED}xyz\r\n",
    "a negative size": f"{CHUNKED}-1\r\n",
    "a size of 80 bits": f"{CHUNKED}{'f' * 20}\r\n",
    "more than its size": f"{CHUNKED}2\r\nabcdef\r\n0\r\n\r\n",
    "chunks without CR": f"{CHUNKED}2\nab\n0\n\n",
    # Heads.
    "a folded line": f"{GET}x-a: b\r\n c\r\n\r\n",
    "a folded token": f"GET /overview HTTP/1.1\r\nhost: localhost\r\n{SHOWN.replace('Bearer ', 'Bearer' + FOLD)}\r\n",
    "lines without CR": f"{GET}\r\n".replace("\r\n", "\n"),
    "CR in a line": f"{GET}x: a\rb: c\r\n\r\n",
    "NUL in a line": f"{GET}x: a\0b\r\n\r\n",
    "NUL in the path": f"GET /over\0view HTTP/1.1\r\n{HEAD}\r\n",
    "a blank in the path": f"GET /over view HTTP/1.1\r\n{HEAD}\r\n",
    "bytes in the path": f"GET /jobs/é HTTP/1.1\r\n{HEAD}\r\n",
    "a method of none": f"{'A' * 5000} /overview HTTP/1.1\r\n{HEAD}\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": f"CONNECT evil.example:443 HTTP/1.1\r\n{HEAD}\r\n",
    "another host's address": f"GET http://evil.example/overview HTTP/1.1\r\n{HEAD}\r\n",
    "an address with a user": f"GET http://a@localhost/overview HTTP/1.1\r\n{HEAD}\r\n",
}
FORBIDDEN = {
    "two hosts": f"GET /overview HTTP/1.1\r\nhost: localhost\r\n{HEAD}\r\n",
    "no host": f"GET /overview HTTP/1.1\r\n{SHOWN}\r\n",
    "a host with a user": f"GET /overview HTTP/1.1\r\nhost: localhost@evil.example\r\n{SHOWN}\r\n",
    "a host with two ports": f"GET /overview HTTP/1.1\r\nhost: localhost:80:90\r\n{SHOWN}\r\n",
    "a host that begins alike": f"GET /overview HTTP/1.1\r\nhost: localhost.evil.example\r\n{SHOWN}\r\n",
    "an origin of none": f"{GET}origin: null\r\n\r\n",
    "an origin of another scheme": f"{GET}origin: https://localhost\r\n\r\n",
    "an origin that begins alike": f"{GET}origin: http://localhost.evil.example\r\n\r\n",
}


async def is_served(connect: Callable[[], Awaitable[Peer]]) -> bool:
    """Whether a newcomer with a good request gets its answer."""
    peer = await connect()
    await peer.send(f"{GET}\r\n")
    served = (await peer.answer())[0] == 200
    peer.connection.close()
    return served


@pytest.mark.parametrize("status", [400, 403])
async def test_each_trick_gets_one_error_and_the_door(tmp_path: Path, status: int) -> None:
    async with serving(tmp_path) as (site, connect):
        for trick, data in (REFUSED if status == 400 else FORBIDDEN).items():
            peer = await connect()
            # What would be smuggled changes something, and would be answered.
            await peer.send(f"{data}PATCH /jobs/{site.cluster.running.job_id} HTTP/1.1\r\n{HEAD}\r\n")
            told, headers, body = await peer.answer()
            assert (told, headers["connection"], len(json.loads(body)["errors"])) == (status, "close", 1), trick
            assert await peer.rest() == b"", trick
            assert await is_served(connect), trick
        assert site.cluster.cancelled == []


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes with some of them gone, doubled, or in place of others."""
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(data)), random.choice((1, 1, 2, 20))
        piece = random.choice((b"", data[at : at + size] * 2, random.randbytes(size), b"\r\n", b"\0", b":", b"chunked"))
        data = data[:at] + piece + data[at + random.choice((0, size)) :] or b"x"
    return data


async def test_whatever_comes_no_request_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(8)
    good = [f"{GET}\r\n", f"{CHUNKED}2\r\n{{}}\r\n0\r\n\r\n", f"GET /jobmanager/logs/master.log HTTP/1.1\r\n{HEAD}\r\n"]
    seeds = [text.encode() for text in (*good * 5, *REFUSED.values(), *FORBIDDEN.values())]
    async with serving(tmp_path) as (site, connect):
        for _ in range(500):
            data = mutated(random.choice(seeds), random)
            peer = await connect()
            await peer.send(data)
            peer.connection.shutdown(socket.SHUT_WR)
            told = await peer.rest()
            assert told == b"" or told.startswith(b"HTTP/1.1 "), data
            assert not told.startswith(b"HTTP/1.1 5"), data
            peer.connection.close()
        assert await until_served(connect)
    assert site.cluster.cancelled == []
    assert "failed" not in caplog.text


async def test_lines_behind_a_body_are_not_of_the_head(tmp_path: Path) -> None:
    """They may neither show a token nor add up."""
    anonymous = "POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(f"{anonymous}{SHOWN}\r\n")
        assert (await peer.answer())[0] == 401
        peer = await connect()
        await peer.send(f"{CHUNKED}0\r\nhost: evil.example\r\n\r\n")
        assert (await peer.answer())[0] == 400  # and not 403: it is asked as its head says
        peer = await connect()
        await peer.send(f"{CHUNKED}0\r\n" + "x: yyyyyyyy\r\n" * (2 * MAX_HEAD // 9))
        assert await peer.is_closed()
        assert await is_served(connect)


async def test_nothing_is_upgraded(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connect):
        for protocol in ("websocket", "h2c"):
            peer = await connect()
            await peer.send(
                f"{GET}connection: upgrade\r\nupgrade: {protocol}\r\n\r\nGET /config HTTP/1.1\r\n{HEAD}\r\n"
            )
            status, headers, _ = await peer.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await peer.rest() == b""


async def test_nonsense_is_not_written_into_the_answer_to_another_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(f"GET /jobmanager/log HTTP/1.1\r\n{HEAD}\r\n")
        first = await peer.take(1)
        await peer.send("\0\0\0\r\n\r\n")
        assert (first + await peer.rest()).count(b"HTTP/1.1") == 1


async def test_requests_in_a_row_are_answered_in_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        paths = ["/overview", "/config", "/nothing", "/jobs/x", "/jobs/overview"] * 40
        sending = asyncio.ensure_future(peer.send("".join(f"GET {path} HTTP/1.1\r\n{HEAD}\r\n" for path in paths)))
        told = [(await peer.answer())[0] for _ in paths]
        await sending
        assert told == [200, 200, 404, 400, 200] * 40


async def test_half_closed_and_reset_connections_are_let_go(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=4) as (_, connect):
        for data in ("", "GET /over", f"{GET}\r\n", f"{POST}content-length: 100\r\n\r\nabc", CHUNKED + "5\r\nab"):
            peer = await connect()
            await peer.send(data)
            peer.connection.shutdown(socket.SHUT_WR)
            assert await peer.is_closed()
            peer = await connect()
            await peer.send(data)
            peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.connection.close()  # a reset
            assert await until_served(connect)


async def until_served(connect: Callable[[], Awaitable[Peer]]) -> bool:
    """Whether a newcomer is served before long; those who went may have left their room a moment ago."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(ConnectionError):
                if await is_served(connect):
                    return True


@pytest.mark.parametrize("who", [SHOWN, ""])
async def test_a_body_that_hardly_comes_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Also of a request for what needs no token, which is answered at once."""
    monkeypatch.setattr(server, "WHOLE_BODY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.05)
    async with serving(tmp_path) as (_, connect):
        peer = await connect()
        await peer.send(
            f"{'POST /jobs' if who else 'GET /'} HTTP/1.1\r\nhost: localhost\r\n{who}content-length: 50000\r\n\r\n"
        )

        async def trickle() -> None:
            while True:
                await peer.send("x")
                await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        assert await peer.is_closed()
        trickling.cancel()
        assert await is_served(connect)


@pytest.fixture
def many() -> Iterator[int]:
    """A thousand connections, or as many as this process may have both ends of when its limit is raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    yield min(1000, most // 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PAGE = "GET /index.html HTTP/1.1\r\nhost: localhost\r\n"
"""A request for what needs no token, on a connection that is kept open."""


async def test_a_thousand_connections_keep_no_newcomer_with_the_token_out(tmp_path: Path, many: int) -> None:
    """They send nothing, half a head, requests for files of the page (and do not read), or a body without end."""
    kinds = ("", "GET /over", f"{PAGE}\r\n", f"{PAGE}\r\n" * 10, f"{PAGE}content-length: 9999\r\n\r\nxx")
    async with serving(tmp_path, max_connections=100) as (_, connect):
        mine = await connect()
        await mine.send(f"{GET}\r\n")
        assert (await mine.answer())[0] == 200
        flood: list[Peer] = []
        for number in range(many):
            flood.append(await connect())
            await flood[-1].send(kinds[number % len(kinds)])
            if number % 100 == 0:
                await mine.send(f"{GET}\r\n")
                assert (await mine.answer())[0] == 200
        assert await is_served(connect)
        await flood[-1].send(f"{PAGE}\r\n")
        assert await flood[0].is_closed()
        await mine.send(f"{GET}\r\n")
        assert (await mine.answer())[0] == 200


async def test_newcomers_are_served_while_others_keep_connecting(tmp_path: Path, many: int) -> None:
    """The flood comes at once, and what waits in the listening socket's queue is not served before its turn."""
    async with serving(tmp_path, max_connections=2) as (_, connect):
        for _ in range(3):
            connecting = [asyncio.ensure_future(connect()) for _ in range(many // 3)]
            assert await until_served(connect)
            for peer in await asyncio.gather(*connecting):
                await peer.send(f"{PAGE}\r\n")
        assert await is_served(connect)


def descriptors() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_tls_handshakes_that_do_not_go_on_keep_nobody_out(tmp_path: Path, many: int) -> None:
    """Nor do they take more descriptors than their share."""
    server_tls, client_tls = certified(tmp_path)
    (tmp_path / "log").mkdir()
    async with serving(tmp_path / "log", max_connections=2, tls=server_tls) as (_, connect):
        before = descriptors()
        flood = [await connect() for _ in range(many)]
        for peer in flood[::2]:
            await peer.send(b"\x16\x03\x01\x02\x00\x01\x00")  # a client's greeting begins so
        port = flood[-1].connection.getpeername()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls, server_hostname="localhost")
        writer.write(f"{GET}\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert await flood[0].is_closed()
        assert descriptors() - before <= many + 2 * UNAUTHENTICATED
        writer.close()


async def test_a_late_tls_handshake_is_looked_after_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first request has to come in time, although nobody was connected when it began."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.02)
    swept, sweep = asyncio.Event(), server.RestServer._sweep

    def count(self: server.RestServer) -> None:
        sweep(self)
        swept.set()

    monkeypatch.setattr(server.RestServer, "_sweep", count)
    server_tls, client_tls = certified(tmp_path)
    (tmp_path / "log").mkdir()
    async with serving(tmp_path / "log", tls=server_tls) as (_, connect):
        peer = await connect()
        async with asyncio.timeout(DEADLINE_S):
            await swept.wait()
            reader, writer = await asyncio.open_connection(
                sock=peer.connection, ssl=client_tls, server_hostname="localhost"
            )
            assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


async def test_a_connection_without_the_token_is_kept_for_a_short_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNAUTHENTICATED_KEEP_ALIVE_S", 0.05)
    async with serving(tmp_path) as (_, connect):
        peer, mine = await connect(), await connect()
        await mine.send(f"{GET}\r\n")
        assert (await mine.answer())[0] == 200
        await peer.send(f"{PAGE}\r\n")
        assert (await peer.answer())[0] == 200
        assert await peer.is_closed()
        await mine.send(f"{GET}\r\n")
        assert (await mine.answer())[0] == 200


async def test_strangers_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as (_, connect):
        for data in ("\0\r\n\r\n", "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"):
            peer = await connect()
            await peer.send(data)
            await peer.answer()
    assert logged(caplog) == []
