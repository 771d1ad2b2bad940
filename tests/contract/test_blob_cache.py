"""Caches of limited size, and caches that begin with what an earlier process left."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blob.cache import BlobCache
from blob.errors import BlobNotFound, BlobServerError
from blob.key import PermanentBlobKey, TransientBlobKey
from tests.contract.blob_harness import JOB, OTHER_JOB, Served

SIZE = 100_000


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def names(directory: Path) -> set[str]:
    return {path.name.removeprefix("blob_") for path in directory.rglob("blob_*")}


def test_the_least_recently_used_goes_when_there_are_too_many(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        keys = [client.put_bytes(content(number), TransientBlobKey) for number in range(4)]
        cache = BlobCache(tmp_path / "cache", served.client, max_bytes=3 * SIZE)
        for number in (0, 1, 2, 0, 3):
            assert cache.read(None, keys[number]) == content(number)
            assert cache.total_bytes <= 3 * SIZE
        assert names(tmp_path / "cache") == {keys[0], keys[2], keys[3]}
        assert cache.read(None, keys[1]) == content(1)
        assert served.server.stats().gets == 5
        cache.close()


def test_what_is_referenced_stays_even_beyond_the_limit(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        mine = [client.put_bytes(content(number), PermanentBlobKey, JOB) for number in range(2)]
        other = client.put_bytes(content(2), PermanentBlobKey, OTHER_JOB)
        nobodys = client.put_bytes(content(3), TransientBlobKey)
        cache = BlobCache(tmp_path / "cache", served.client, max_bytes=SIZE)
        cache.register_job(OTHER_JOB)
        cache.read(OTHER_JOB, other)
        paths = [cache.get_file(JOB, key) for key in mine]
        with cache.pinned(None, nobodys) as pinned:
            assert [path.exists() for path in (*paths, pinned)] == [True] * 3
            assert cache.total_bytes == 4 * SIZE
        assert not pinned.exists()
        assert names(tmp_path / "cache") == {*mine, other}
        assert cache.release_job(JOB)
        assert names(tmp_path / "cache") == {other}
        assert cache.release_job(OTHER_JOB)
        assert (names(tmp_path / "cache"), cache.total_bytes) == (set(), 0)
        cache.close()


def test_many_threads_in_a_small_cache(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        keys = [client.put_bytes(content(number), TransientBlobKey) for number in range(6)]
        cache = BlobCache(tmp_path / "cache", served.client, max_bytes=2 * SIZE)

        def work(seed: int) -> bool:
            source = random.Random(seed)
            picked = [source.randrange(6) for _ in range(20)]
            return all(cache.read(None, keys[number]) == content(number) for number in picked)

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(6)))
        assert cache.total_bytes == SIZE * len(names(tmp_path / "cache")) <= 2 * SIZE
        assert list((tmp_path / "cache" / "incoming").iterdir()) == []
        cache.close()


def test_a_cache_takes_over_what_an_earlier_process_left(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        keys = [client.put_bytes(content(number), TransientBlobKey) for number in range(3)]
        before = BlobCache(tmp_path / "cache", served.client)
        paths = [before.get_file(None, key) for key in keys]
        before.close()
        for number, path in enumerate(paths):
            os.utime(path, (number, number))
        (tmp_path / "cache" / "incoming" / "temp-1-1").write_bytes(b"half-written")
        gets = served.server.stats().gets
        after = BlobCache(tmp_path / "cache", served.client, max_bytes=2 * SIZE)
        # The oldest went at once; the others are known, and right.
        assert (names(tmp_path / "cache"), after.total_bytes) == ({*keys[1:]}, 2 * SIZE)
        assert list((tmp_path / "cache" / "incoming").iterdir()) == []
        assert [after.read(None, keys[number]) for number in (1, 2)] == [content(1), content(2)]
        assert served.server.stats().gets == gets
        after.close()


@pytest.mark.parametrize("damage", [b"", b"x" * SIZE])
def test_a_copy_that_was_damaged_meanwhile_is_fetched_anew(tmp_path: Path, damage: bytes) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        key = client.put_bytes(content(0), PermanentBlobKey, JOB)
        before = BlobCache(tmp_path / "cache", served.client)
        path = before.get_file(JOB, key)
        before.close()
        path.write_bytes(damage)
        after = BlobCache(tmp_path / "cache", served.client)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: after.read(JOB, key), range(8))) == {content(0)}
        assert after.total_bytes == SIZE
        served.do(served.server.delete_job(JOB))
        path.write_bytes(damage)
        after.close()
        last = BlobCache(tmp_path / "cache", served.client)
        with pytest.raises(BlobNotFound):
            last.read(JOB, key)
        assert names(tmp_path / "cache") == set()
        last.close()


def test_a_directory_with_a_limit_is_for_one_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blob.storage.LOCK_WAIT", 0.05)
    with Served(tmp_path / "blob") as served:
        one = BlobCache(tmp_path / "cache", served.client, max_bytes=SIZE)
        with pytest.raises(BlobServerError, match="in use"):
            BlobCache(tmp_path / "cache", served.client)
        with pytest.raises(BlobServerError, match="in use"):
            BlobCache(tmp_path / "cache", served.client, max_bytes=SIZE)
        one.close()
        BlobCache(tmp_path / "cache", served.client, max_bytes=SIZE).close()


def test_what_another_cache_of_the_directory_fetched_is_used(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served, served.client() as client:
        key = client.put_bytes(content(0), TransientBlobKey)
        one, two = (BlobCache(tmp_path / "cache", served.client) for _ in range(2))
        assert one.read(None, key) == two.read(None, key) == content(0)
        assert served.server.stats().gets == 1
        assert one.delete(None, key)
        assert two.read(None, key) == content(0)
        assert served.server.stats().gets == 2
        one.close()
        two.close()
