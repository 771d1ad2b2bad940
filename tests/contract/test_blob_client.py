from __future__ import annotations

import io
import multiprocessing
import os
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.errors import (
    BlobConnectionError,
    BlobNotFound,
    BlobProtocolError,
    BlobRequestRefused,
    BlobServerError,
    BlobTimeout,
    BlobTooLarge,
    InvalidBlobKey,
)
from blob.file_store import FileSystemBlobStore
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.offload import Offloaded, offload_if_larger, resolve
from tests.contract.blob_harness import JOB, OTHER_JOB, SECRET, CuttingProxy, Served, wait_until
from tests.waiting import PATIENCE_S

LARGE = random.Random(2).randbytes(6 * 1024 * 1024 + 17)


def test_files_and_streams_with_progress(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    with Served(tmp_path / "blob") as served, served.client() as client:
        sent: list[tuple[int, int]] = []
        got: list[tuple[int, int]] = []
        key = client.put_file(tmp_path / "source", PermanentBlobKey, JOB, lambda *done: sent.append(done))
        client.get_to_file(key, tmp_path / "copy", JOB, lambda *done: got.append(done))
        assert (tmp_path / "copy").read_bytes() == LARGE
        for seen in (sent, got):
            assert seen == sorted(seen)
            assert len(seen) >= 2
            assert seen[-1] == (len(LARGE), len(LARGE))
        stream = io.BytesIO(b"skipped" + LARGE)
        stream.seek(7)
        assert client.get_bytes(client.put_stream(stream, TransientBlobKey)) == LARGE
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "wb") as end:
            thread = threading.Thread(target=lambda: (end.write(LARGE), end.close()))
            thread.start()
            assert client.get_bytes(client.put_stream(pipe, TransientBlobKey)) == LARGE
            thread.join()


def test_a_download_goes_on_where_it_broke(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        key = served.client().put_bytes(LARGE, TransientBlobKey)
        proxy = CuttingProxy(served.server.address, cuts=3, after=1_500_000)
        done: list[tuple[int, int]] = []
        with BlobClient(proxy.address, SECRET, backoff=0.001) as client:
            client.get_to_file(key, tmp_path / "copy", progress=lambda *now: done.append(now))
        proxy.close()
        assert (tmp_path / "copy").read_bytes() == LARGE
        assert proxy.connections == 4
        # What was on its way in the sockets' buffers at each cut is sent again, not the whole.
        assert proxy.bytes_to_client < 1.5 * len(LARGE)
        assert done == sorted(done)
        assert {total for _, total in done} == {len(LARGE)}


def test_an_upload_is_repeated_and_is_one_blob(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        proxy = CuttingProxy(served.server.address, cuts=2, after=1_500_000, upstream=True)
        with BlobClient(proxy.address, SECRET, backoff=0.001) as client:
            key = client.put_bytes(LARGE, TransientBlobKey)
            assert client.get_bytes(key) == LARGE
        proxy.close()
        assert served.files() == [f"no_job/blob_{key}"]


def test_when_the_retries_are_used_up(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        key = served.client().put_bytes(LARGE, TransientBlobKey)
        proxy = CuttingProxy(served.server.address, cuts=99, after=100_000)
        with (
            BlobClient(proxy.address, SECRET, retries=2, backoff=0.001) as client,
            pytest.raises(BlobConnectionError, match="gave up after 3 attempts"),
        ):
            client.get_to_file(key, tmp_path / "copy")
        proxy.close()
        assert proxy.connections == 3
        assert [path.name for path in tmp_path.iterdir()] == ["blob"]


def _bound(sock: socket.socket) -> tuple[str, int]:
    """Take a port that nobody else takes or listens on; return its address."""
    sock.bind(("127.0.0.1", 0))
    host, port = sock.getsockname()
    return host, port


def test_nobody_listens(tmp_path: Path) -> None:
    with (
        socket.socket() as unused,
        BlobClient(_bound(unused), SECRET, retries=1, backoff=0.001) as client,
        pytest.raises(BlobConnectionError, match=r"cannot reach the blob server at 127\.0\.0\.1:\d+: "),
    ):
        client.get_bytes(TransientBlobKey.create(bytes(32)))


def test_a_server_that_says_nothing_or_nonsense() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hasty = BlobClient(listener.getsockname(), SECRET, timeout=0.05, patience=0.2, retries=0)
        with pytest.raises(BlobTimeout, match=r"moved no byte for 0\.2 s"):
            hasty.put_bytes(b"x", TransientBlobKey)
        listener.accept()[0].close()

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 10)
                sock.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        client = BlobClient(listener.getsockname(), SECRET, retries=0)
        with pytest.raises(BlobProtocolError, match="not a blob server of this version"):
            client.put_bytes(b"x", TransientBlobKey)
        thread.join()


def test_a_client_follows_a_restarted_server_to_another_address(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        current = served
        client = BlobClient(lambda: current.server.address, SECRET, retries=3, backoff=0.001)
        key = client.put_bytes(b"x", PermanentBlobKey, JOB)
    with Served(tmp_path / "blob") as current:
        assert client.get_bytes(key, JOB) == b"x"
        client.close()


def test_bad_arguments_send_nothing_and_keep_the_connection(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client(retries=0) as client:
        key = client.put_bytes(b"abc", TransientBlobKey)
        for job_id in ("../etc", "/absolute", "a" * 31 + "\0", ""):
            with pytest.raises(InvalidBlobKey):
                client.put_bytes(b"x", TransientBlobKey, job_id)
            with pytest.raises(InvalidBlobKey):
                client.get_bytes(key, job_id)
        with pytest.raises(FileNotFoundError):
            client.put_file(tmp_path / "nothing", TransientBlobKey)
        with pytest.raises(BlobTooLarge, match="3 bytes, more than 2"):
            client.get_bytes(key, max_size=2)
        with pytest.raises(FileNotFoundError):
            client.get_to_file(key, tmp_path / "no" / "directory")
        assert client.get_bytes(key) == b"abc"
        assert served.files() == [f"no_job/blob_{key}"]


def test_a_source_that_shrinks(tmp_path: Path) -> None:
    class Shrinking(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            return 0

    with Served(tmp_path / "blob") as served, served.client() as client:
        for data in (LARGE, b"abc"):
            with pytest.raises(BlobRequestRefused, match="became shorter"):
                client.put_stream(Shrinking(data), TransientBlobKey)
        assert client.put_bytes(b"x", TransientBlobKey)
        wait_until(lambda: len(served.files()) == 1)


def test_a_forked_process_makes_its_own_connection(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        key = client.put_bytes(LARGE, TransientBlobKey)
        process = multiprocessing.get_context("fork").Process(
            target=lambda: os._exit(0 if client.get_bytes(key) == LARGE else 1)
        )
        process.start()
        assert client.get_bytes(key) == LARGE
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        assert client.get_bytes(key) == LARGE


def test_a_cache_downloads_once_however_many_ask(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        key = served.client().put_bytes(LARGE, PermanentBlobKey, JOB)
        cache = BlobCache(tmp_path / "cache", served.client)
        with ThreadPoolExecutor(8) as pool:
            paths = set(pool.map(lambda _: cache.get_file(JOB, key), range(32)))
        assert paths == {tmp_path / f"cache/job_{JOB}/blob_{key}"}
        assert paths.pop().read_bytes() == LARGE
        assert served.server.stats().gets == 1
        cache.close()
        again = BlobCache(tmp_path / "cache", served.client)
        assert again.read(JOB, key) == LARGE
        assert served.server.stats().gets == 1
        again.close()


def test_a_cache_asks_the_store_when_the_server_is_gone(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        key = client.put_bytes(LARGE, PermanentBlobKey, JOB)
        transient = client.put_bytes(b"x", TransientBlobKey, JOB)
        address = served.server.address
    cache = BlobCache(tmp_path / "cache", lambda: BlobClient(address, SECRET, retries=0), store)
    assert cache.read(JOB, key) == LARGE
    with pytest.raises(BlobConnectionError):
        cache.read(JOB, transient)
    with pytest.raises(BlobConnectionError):
        cache.read(OTHER_JOB, key)
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []
    cache.close()


def test_a_failed_download_fails_for_all_and_leaves_nothing(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        cache = BlobCache(tmp_path / "cache", served.client)
        key = TransientBlobKey.create(bytes(32))

        def missing(_: int) -> bool:
            with pytest.raises(BlobNotFound):
                cache.get_file(None, key)
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(missing, range(8)))
        assert list((tmp_path / "cache" / "incoming").iterdir()) == []
        cache.close()


def test_a_job_is_released_by_its_last_user(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        key = client.put_bytes(b"x", PermanentBlobKey, JOB)
        other = client.put_bytes(b"y", PermanentBlobKey, OTHER_JOB)
        transient = client.put_bytes(b"z", TransientBlobKey)
        cache = BlobCache(tmp_path / "cache", served.client)
        for _ in range(2):
            cache.register_job(JOB)
        paths = [cache.get_file(*pair) for pair in ((JOB, key), (OTHER_JOB, other), (None, transient))]
        assert not cache.release_job(JOB)
        assert paths[0].exists()
        assert cache.release_job(JOB)
        assert [path.exists() for path in paths] == [False, True, True]
        assert cache.delete(None, transient)
        assert not cache.delete(None, transient)
        assert cache.get_file(JOB, key).read_bytes() == b"x"
        assert cache.release_job(JOB)
        assert cache.release_job(JOB)
        cache.close()


def _read_from_another_process(directory: Path, address: tuple[str, int], key: str, found: Any) -> None:
    cache = BlobCache(directory, lambda: BlobClient(address, SECRET))
    found.put(cache.read(JOB, PermanentBlobKey(key)) == LARGE)
    cache.close()


def test_caches_of_several_processes_share_a_directory(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with Served(tmp_path / "blob") as served:
        key = served.client().put_bytes(LARGE, PermanentBlobKey, JOB)
        cache = BlobCache(tmp_path / "cache", served.client)
        # Of this process, under way: another that starts meanwhile must not sweep it.
        descriptor, temporary = cache._directory.new_temporary()
        found = spawn.Queue()
        arguments = (tmp_path / "cache", served.server.address, str(key), found)
        processes = [spawn.Process(target=_read_from_another_process, args=arguments) for _ in range(2)]
        for process in processes:
            process.start()
        assert cache.read(JOB, key) == LARGE
        assert [found.get(timeout=PATIENCE_S) for _ in processes] == [True, True]
        for process in processes:
            process.join(PATIENCE_S)
        assert temporary.exists()
        os.close(descriptor)
        cache.close()
        BlobCache(tmp_path / "cache", served.client).close()
        assert not temporary.exists()
        with pytest.raises(BlobServerError, match="in use by a blob server"):
            BlobCache(tmp_path / "blob", served.client)


def test_an_oversized_message_travels_as_one_blob(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        message = offload_if_larger(LARGE, 1024, client, JOB)
        assert isinstance(message, Offloaded)
        receivers = [BlobCache(tmp_path / f"cache-{number}", served.client) for number in range(3)]
        for cache in receivers:
            assert resolve(message, cache) == resolve(message, cache) == LARGE
        stats = served.server.stats()
        assert (stats.puts, stats.gets) == (1, 3)
        served.do(served.server.delete_job(JOB))
        assert resolve(message, receivers[0]) == LARGE
        receivers[0].release_job(JOB)
        with pytest.raises(BlobNotFound):
            resolve(message, receivers[0])
        for cache in receivers:
            cache.close()
