from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cattrs.preconf.msgpack import make_converter

from blob.errors import BlobStoreError, InvalidBlobKey
from blob.key import BlobKey, PermanentBlobKey
from blob.offload import Inline, MaybeOffloaded, Offloaded, offload_if_larger, resolve
from blob.store import FileSystemBlobStore, VoidBlobStore, create_blob_store

JOB = "b" * 32


class Blobs:
    """A writer and reader in memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[str | None, str], bytes] = {}

    def put_bytes(self, data: bytes, key_type: type[PermanentBlobKey], job_id: str | None = None) -> PermanentBlobKey:
        key = key_type.create(hashlib.sha256(data).digest())
        self.held[job_id, key] = data
        return key

    def read(self, job_id: str | None, key: BlobKey) -> bytes:
        return self.held[job_id, key]


def test_only_what_is_over_the_limit_is_uploaded() -> None:
    blobs = Blobs()
    assert offload_if_larger(b"12345", 5, blobs, JOB) == Inline(b"12345")
    assert blobs.held == {}
    offloaded = offload_if_larger(b"123456", 5, blobs, JOB)
    assert isinstance(offloaded, Offloaded)
    assert (offloaded.size, offloaded.job_id, len(blobs.held)) == (6, JOB, 1)
    assert [resolve(offloaded, blobs) for _ in range(3)] == [b"123456"] * 3
    assert resolve(Inline(b"1"), blobs) == b"1"


def test_both_travel_as_plain_data() -> None:
    converter = make_converter()
    for value in (Inline(b"\x00\xff"), Offloaded(str(PermanentBlobKey.create(b"d" * 32)), JOB, 7)):
        data = converter.dumps(value, unstructure_as=MaybeOffloaded)
        assert converter.loads(data, MaybeOffloaded) == value


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidBlobKey):
        resolve(Offloaded("../../etc/passwd", JOB, 1), Blobs())


@pytest.mark.parametrize("url", ["/some/where", "file:///some/where", "file://localhost/some/where"])
def test_a_store_by_url(url: str) -> None:
    assert isinstance(create_blob_store(url), FileSystemBlobStore)


@pytest.mark.parametrize("url", ["relative/path", "file:relative", "s3://bucket/x", "file://elsewhere/x"])
def test_no_store_by_url(url: str) -> None:
    with pytest.raises(BlobStoreError, match="give an absolute"):
        create_blob_store(url)


@pytest.mark.parametrize("url", [None, ""])
def test_the_void_store_keeps_nothing(url: str | None, tmp_path: Path) -> None:
    store = create_blob_store(url)
    assert isinstance(store, VoidBlobStore)
    key = PermanentBlobKey.create(b"d" * 32)
    local = tmp_path / "file"
    local.write_bytes(b"content")
    assert not store.put(local, JOB, key)
    assert not store.get(JOB, key, local)
    assert not store.delete(JOB, key)
    store.delete_all(JOB)


def test_the_file_system_store(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "deep" / "store")
    key, other = PermanentBlobKey.create(b"d" * 32), PermanentBlobKey.create(b"e" * 32)
    local, copy = tmp_path / "file", tmp_path / "copy"
    local.write_bytes(b"content")
    assert not store.get(JOB, key, copy)
    assert store.put(local, JOB, key)
    assert store.put(local, JOB, key)
    assert store.put(local, JOB, other)
    assert store.get(JOB, key, copy)
    assert copy.read_bytes() == b"content"
    names = {str(p.relative_to(tmp_path / "deep" / "store")) for p in tmp_path.glob("deep/store/*/*")}
    assert names == {f"job_{JOB}/blob_{key}", f"job_{JOB}/blob_{other}"}
    modes = {p.stat().st_mode & 0o777 for p in tmp_path.glob("deep/store/*/*")}
    assert (modes, (tmp_path / f"deep/store/job_{JOB}").stat().st_mode & 0o777) == ({0o600}, 0o700)
    assert store.delete(JOB, key)
    assert not store.delete(JOB, key)
    store.delete_all(JOB)
    store.delete_all(JOB)
    assert not store.get(JOB, other, copy)


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a directory")
    store = FileSystemBlobStore(tmp_path / "store")
    key = PermanentBlobKey.create(b"d" * 32)
    local = tmp_path / "file"
    local.write_bytes(b"content")
    for use in (
        lambda: store.put(local, JOB, key),
        lambda: store.get(JOB, key, local),
        lambda: store.delete(JOB, key),
        lambda: store.delete_all(JOB),
    ):
        with pytest.raises(BlobStoreError, match="check that the storage is reachable"):
            use()
