"""Asks whose arguments or results are larger than a frame, by an offloader in memory and by a real BlobServer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import AskTimeout, FrameTooLarge, OffloadError, WireError
from actors.rpc import offload as rpc_offload
from actors.rpc import wire
from actors.rpc.offload import Offloader
from actors.rpc.service import RpcService
from blob.client import BlobClient
from blob.errors import InvalidBlobKey
from blob.rpc_offload import BlobOffloader
from tests.contract.blob_harness import SECRET as BLOB_SECRET
from tests.contract.blob_harness import Served
from tests.contract.rpc_harness import SECRET, Probe, ProbeGateway, ProbeServer, patient_config, wait_until
from tests.waiting import PATIENCE_S

FRAME = 16 * 1024
LARGE = b"x" * (4 * FRAME)
CONFIG = patient_config(frame_size=FRAME)


class Store:
    """What several offloaders share."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.puts = 0
        self.gate = asyncio.Event()
        self.gate.set()


class MemoryOffloader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.closed = False

    async def put(self, data: bytes, /) -> str:
        self.store.puts += 1
        key = f"key-{self.store.puts}"
        self.store.held[key] = data
        await self.store.gate.wait()
        return key

    async def get(self, key: str, /) -> bytes:
        await self.store.gate.wait()
        return self.store.held[key]

    def release(self, key: str, /) -> None:
        del self.store.held[key]

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def pair(asker: Offloader | None, server: Offloader | None) -> AsyncIterator[ProbeGateway]:
    loop = asyncio.get_running_loop()
    serving, asking = RpcService(loop, SECRET, CONFIG), RpcService(loop, SECRET, CONFIG)
    for service, offloader in ((serving, server), (asking, asker)):
        if offloader is not None:
            service.use_offloader(offloader)
    await serving.listen()
    try:
        address: ActorAddress = await serving.start_server(Probe(serving, "probe"))
        yield asking.gateway(address, ProbeGateway)
    finally:
        await asking.close()
        await serving.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await body()

    asyncio.run(bounded())


class Releases:
    """Holds what would release results after a while, until the test says so: all of them have been fetched then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[Callable[[], object]] = []
        self._call_later = loop.call_later
        loop.call_later = self._held  # type: ignore[method-assign]

    def _held(self, delay: float, callback: Callable[..., object], *args: Any, **options: Any) -> Any:
        if getattr(callback, "__func__", None) is not rpc_offload.Offload.release:
            return self._call_later(delay, callback, *args, **options)
        assert delay == rpc_offload.RESULT_KEPT_S
        self._due.append(partial(callback, *args))
        return None

    def happen(self) -> int:
        """Release them, on the loop; return how many there were."""
        for release in self._due:
            release()
        return len(self._due)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # of another thread's doing
        await asyncio.sleep(0.005)


def test_arguments_and_results_over_a_frame_arrive_and_small_ones_are_not_touched() -> None:
    async def body() -> None:
        results = Releases(asyncio.get_running_loop())
        store = Store()
        asker, server = MemoryOffloader(store), MemoryOffloader(store)
        async with pair(asker, server) as probe:
            assert await probe.echo(b"small") == b"small"
            assert store.puts == 0
            assert await probe.zeros(3 * FRAME) == bytes(3 * FRAME)
            assert store.puts == 1
            assert await probe.echo(LARGE) == LARGE
            assert store.puts == 3
            await until(lambda: len(store.held) == 2)  # the arguments go with the answer
            assert results.happen() == 2
            assert not store.held
        assert asker.closed
        assert server.closed

    run(body)


def test_without_an_offloader_on_both_sides_too_large_is_too_large_and_the_connection_goes_on() -> None:
    async def body() -> None:
        store = Store()
        for asker, server in ((None, None), (None, MemoryOffloader(store))):
            async with pair(asker, server) as probe:
                with pytest.raises(FrameTooLarge):
                    await probe.echo(LARGE)
                with pytest.raises(FrameTooLarge):
                    await probe.zeros(3 * FRAME)
                assert await probe.echo(b"small") == b"small"
        assert store.puts == 0
        async with pair(MemoryOffloader(store), None) as probe:
            with pytest.raises(FrameTooLarge):
                await probe.zeros(3 * FRAME)
            with pytest.raises(WireError):
                await probe.echo(LARGE)
            assert await probe.echo(b"small") == b"small"
            assert store.held == {}

    run(body)


def test_others_are_served_while_a_large_one_is_under_way_and_its_time_out_counts_from_the_call() -> None:
    async def body() -> None:
        store = Store()
        async with pair(MemoryOffloader(store), MemoryOffloader(store)) as probe:
            store.gate.clear()
            hasty = probe.service.gateway(probe.address, ProbeGateway, timeout_s=0.5)  # type: ignore[attr-defined]
            large, result = hasty.echo(LARGE), hasty.zeros(3 * FRAME)
            assert await probe.echo(b"small") == b"small"
            for ask in (large, result):
                with pytest.raises(AskTimeout):
                    await ask
            store.gate.set()
            assert await probe.echo(LARGE) == LARGE

    run(body)


def test_what_cannot_be_put_or_is_gone_is_an_error_of_that_ask_alone() -> None:
    class Broken(MemoryOffloader):
        async def put(self, data: bytes, /) -> str:
            raise OSError("no room")

    class Forgetful(MemoryOffloader):
        async def get(self, key: str, /) -> bytes:
            raise KeyError(key)

    async def body() -> None:
        store = Store()
        for asker, server in (
            (Broken(store), MemoryOffloader(store)),
            (MemoryOffloader(store), Forgetful(store)),
        ):
            async with pair(asker, server) as probe:
                with pytest.raises(OffloadError):
                    await probe.echo(LARGE)
                assert await probe.echo(b"small") == b"small"
        for asker, server in (
            (MemoryOffloader(store), Broken(store)),
            (Forgetful(store), MemoryOffloader(store)),
        ):
            async with pair(asker, server) as probe:
                with pytest.raises(OffloadError):
                    await probe.zeros(3 * FRAME)
                assert await probe.echo(b"small") == b"small"

    run(body)


@pytest.mark.parametrize("content", [b"\xc1", wire.pack_value({"no": "list"}), wire.pack_value([1]), b""])
def test_arguments_that_were_tampered_with_are_a_wire_error(content: bytes) -> None:
    class Tampering(MemoryOffloader):
        async def get(self, key: str, /) -> bytes:
            return content

    async def body() -> None:
        store = Store()
        async with pair(MemoryOffloader(store), Tampering(store)) as probe:
            with pytest.raises(WireError):
                await probe.echo(LARGE)
            assert await probe.echo(b"small") == b"small"

    run(body)


def test_by_a_real_blob_server_uploads_are_shared_and_nothing_stays(tmp_path: Path) -> None:
    with Served(tmp_path) as served:

        def offloader() -> BlobOffloader:
            return BlobOffloader(lambda location: BlobClient(location, BLOB_SECRET), lambda: served.server.address)

        async def body() -> None:
            results = Releases(asyncio.get_running_loop())
            async with pair(offloader(), offloader()) as probe:
                answers = await asyncio.gather(*(probe.echo(LARGE) for _ in range(8)))
                assert answers == [LARGE] * 8
                assert served.server.stats().puts < 16, "8 calls with one content, there and back"
                assert results.happen() == 8
                await until(lambda: served.server.stats().total_bytes == 0)
                with pytest.raises(OffloadError):
                    async with pair(
                        BlobOffloader(
                            lambda _: BlobClient(("127.0.0.1", 1), b"s", retries=0), lambda: ("127.0.0.1", 1)
                        ),
                        None,
                    ) as other:
                        await other.echo(LARGE)

        run(body)
        assert served.server.stats().total_bytes == 0


@pytest.mark.parametrize(
    "key", ["", "/", "host/t-x", "host:x/t-", "127.0.0.1:1/p-" + "0" * 64 + "-" + "0" * 32, "a:99999999/t"]
)
def test_a_key_that_is_none_asks_nobody(key: str) -> None:
    def nobody(location: tuple[str, int]) -> BlobClient:
        return BlobClient(location, b"secret", retries=0)

    async def body() -> None:
        offloader = BlobOffloader(nobody, lambda: ("127.0.0.1", 1))
        with pytest.raises(InvalidBlobKey):
            await offloader.get(key)
        await offloader.close()

    run(body)


def test_an_upload_that_its_asker_gave_up_leaves_nothing(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        gate = threading.Event()

        def address() -> tuple[str, int]:
            gate.wait(PATIENCE_S)
            return served.server.address

        async def body() -> None:
            offloader = BlobOffloader(lambda location: BlobClient(location, BLOB_SECRET), address)
            put = asyncio.ensure_future(offloader.put(LARGE))
            await asyncio.sleep(0)
            put.cancel()
            with pytest.raises(asyncio.CancelledError):
                await put
            gate.set()
            await until(lambda: served.server.stats().deletes == 1)
            assert served.server.stats().total_bytes == 0
            await offloader.close()

        run(body)


# ------------------------------------------------------------------ asked by plain threads


class Fetches(BlobOffloader):
    """Counts what is fetched, and does before it what it is told to."""

    def __init__(self, served: Served) -> None:
        super().__init__(lambda location: BlobClient(location, BLOB_SECRET), lambda: served.server.address)
        self.number = 0
        self.before: Callable[[], object] = lambda: None

    def get_blocking(self, key: str, /) -> bytes:
        self.number += 1
        self.before()
        return super().get_blocking(key)


@contextmanager
def threads(tmp_path: Path) -> Iterator[tuple[ProbeGateway, Fetches, Served, ProbeServer]]:
    with Served(tmp_path) as served, ProbeServer(None, frame_size=FRAME).closing() as server:
        served_by = BlobOffloader(lambda location: BlobClient(location, BLOB_SECRET), lambda: served.server.address)
        server.call(server.service.use_offloader, served_by)
        fetches = Fetches(served)
        with ActorClient(SECRET, patient_config(frame_size=FRAME), fetches) as client:
            yield client.gateway(server.address, ProbeGateway), fetches, served, server


def test_a_plain_thread_sends_and_fetches_what_is_larger_than_a_frame(tmp_path: Path) -> None:
    with threads(tmp_path) as (probe, fetches, served, server):
        results = Releases(server.loop)
        assert probe.echo(b"small").result() == b"small"
        assert served.server.stats().puts == 0
        ask = probe.echo(LARGE)
        assert ask.result() == LARGE
        assert ask.exception() is None
        assert ask.result() == LARGE
        assert fetches.number == 1, "however often it is looked at"
        called: list[bytes] = []
        probe.zeros(3 * FRAME).add_done_callback(lambda ask: called.append(ask.result()))
        wait_until(lambda: called == [bytes(3 * FRAME)], "the callback")
        assert server.call(results.happen) == 2
        wait_until(lambda: served.server.stats().total_bytes == 0, "the blobs to be deleted")


def test_a_coroutine_awaits_what_is_larger_than_a_frame_and_its_loop_goes_on(tmp_path: Path) -> None:
    with threads(tmp_path) as (probe, fetches, _, _):
        gate = threading.Event()

        fetches.before = lambda: gate.wait(PATIENCE_S)

        async def body() -> None:
            large = asyncio.ensure_future(_awaited(probe.zeros(3 * FRAME)))
            assert await probe.echo(b"small") == b"small"
            await until(lambda: fetches.number == 1)
            assert await probe.echo(b"small") == b"small"
            gate.set()
            assert await large == bytes(3 * FRAME)

        run(body)


async def _awaited(ask: Any) -> Any:
    return await ask


def test_what_a_plain_thread_cannot_fetch_is_an_error_of_that_ask_alone(tmp_path: Path) -> None:
    with threads(tmp_path) as (probe, fetches, _, _):

        def fail() -> None:
            raise OSError("no way")

        fetches.before = fail
        ask = probe.zeros(3 * FRAME)
        for _ in range(2):
            with pytest.raises(OffloadError, match="could not be fetched: no way"):
                ask.result()
        assert isinstance(ask.exception(), OffloadError)
        assert probe.echo(b"small").result() == b"small"


def test_plain_threads_whose_offloader_is_missing_or_broken_are_told_and_go_on() -> None:
    def nobody() -> tuple[str, int]:
        raise OSError("there is no BlobServer yet")

    broken = BlobOffloader(lambda location: BlobClient(location, BLOB_SECRET), nobody)
    with ProbeServer(None, frame_size=FRAME).closing() as server:
        for offloader, error in ((None, "frame"), (broken, "could not be sent apart: there is no BlobServer yet")):
            with ActorClient(SECRET, patient_config(frame_size=FRAME), offloader) as client:
                probe = client.gateway(server.address, ProbeGateway)
                with pytest.raises(FrameTooLarge, match=error):
                    probe.echo(LARGE).result()
                with pytest.raises(FrameTooLarge):
                    probe.zeros(3 * FRAME).result()
                assert probe.echo(b"small").result() == b"small"
