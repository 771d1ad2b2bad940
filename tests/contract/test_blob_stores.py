"""One suite over the stores: a directory, and by fsspec its memory, a real FTP server and a real S3 server."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from fsspec.config import conf

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.errors import BlobStoreError
from blob.fsspec_store import FsspecBlobStore
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.store import BlobStore
from blob.stores import create_blob_store
from tests.contract.blob_harness import JOB, OTHER_JOB, SECRET, Served
from tests.ftp_server import PASSWORD, FtpServer
from tests.s3_server import BUCKET, S3Server

LARGE = random.Random(4).randbytes(6 * 1024 * 1024 + 17)


@pytest.fixture
def ftp(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[FtpServer]:
    logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
    server = FtpServer(tmp_path / "ftp")
    yield server
    server.close()
    assert PASSWORD not in caplog.text


@pytest.fixture(params=["file", "memory", "ftp", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlobStore]:
    if request.param == "ftp":
        yield create_blob_store(request.getfixturevalue("ftp").url())
    elif request.param == "s3":
        server = S3Server()
        monkeypatch.setitem(conf, "s3", server.settings)
        yield create_blob_store(f"s3://{BUCKET}/deep/store")
        server.close()
    elif request.param == "file":
        yield create_blob_store(str(tmp_path / "deep" / "store"))
    else:
        yield create_blob_store("memory://deep/store")
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs.clear()


def key_of(data: bytes) -> PermanentBlobKey:
    return PermanentBlobKey.create(hashlib.sha256(data).digest())


def test_what_is_put_is_got(store: BlobStore, tmp_path: Path) -> None:
    local, copy = tmp_path / "local", tmp_path / "copy"
    keys = {}
    for data in (b"", b"small", LARGE):
        local.write_bytes(data)
        key = keys[data] = key_of(data)
        assert not store.get(JOB, key, copy)
        assert store.put(local, JOB, key)
        assert store.put(local, JOB, key)
    for data, key in keys.items():
        assert store.get(JOB, key, copy)
        assert copy.read_bytes() == data
        assert not store.get(OTHER_JOB, key, copy)


def test_what_is_deleted_is_gone(store: BlobStore, tmp_path: Path) -> None:
    local, copy = tmp_path / "local", tmp_path / "copy"
    local.write_bytes(b"x")
    assert store.jobs() == set()
    keys = [key_of(b"x") for _ in range(3)]
    for key in keys:
        store.put(local, JOB, key)
    store.put(local, OTHER_JOB, keys[0])
    assert store.jobs() == {JOB, OTHER_JOB}
    assert store.delete(JOB, keys[0])
    assert not store.delete(JOB, keys[0])
    assert not store.get(JOB, keys[0], copy)
    assert store.get(JOB, keys[1], copy)
    store.delete_all(JOB)
    store.delete_all(JOB)
    assert not store.get(JOB, keys[1], copy)
    assert store.get(OTHER_JOB, keys[0], copy)
    assert store.jobs() == {OTHER_JOB}


def test_the_mark(store: BlobStore) -> None:
    assert store.read_mark() is None
    for mark in (b"one, and long", b"two"):
        store.write_mark(mark)
        assert store.read_mark() == mark
    assert store.jobs() == set()


def test_several_threads_at_once(store: BlobStore, tmp_path: Path) -> None:
    def work(number: int) -> bool:
        local, copy = tmp_path / f"local-{number}", tmp_path / f"copy-{number}"
        data = random.Random(number).randbytes(100_000)
        local.write_bytes(data)
        key, job_id = key_of(data), f"{number:032x}"
        store.put(local, job_id, key)
        found = store.get(job_id, key, copy)
        store.delete_all(job_id)
        return found and copy.read_bytes() == data

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))
    assert store.jobs() == set()


def test_a_server_recovers_from_it_and_its_copies_are_its_blobs(store: BlobStore, tmp_path: Path) -> None:
    with Served(tmp_path / "one", store) as served, served.client() as client:
        permanent = client.put_bytes(LARGE, PermanentBlobKey, JOB)
        client.put_bytes(b"x", TransientBlobKey, OTHER_JOB)
        address = served.server.address
        assert store.jobs() == {JOB}
    cache = BlobCache(tmp_path / "cache", lambda: BlobClient(address, SECRET, retries=0), store)
    assert cache.read(JOB, permanent) == LARGE
    cache.close()
    with Served(tmp_path / "two", store) as served, served.client() as client:
        assert client.get_bytes(permanent, JOB) == LARGE
        assert served.do(served.server.delete_job(JOB))
    assert store.jobs() == set()


def test_half_a_copy_is_no_blob(ftp: FtpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create_blob_store(ftp.url())
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        with monkeypatch.context() as patch:
            # As if the connection had broken between the transfer and the rename.
            patch.setattr("fsspec.implementations.ftp.FTPFileSystem.mv", lambda *_: 1 / 0)
            with pytest.raises(BlobStoreError, match=r"cannot write blob_p-.*: division by zero"):
                client.put_bytes(LARGE, PermanentBlobKey, JOB)
        assert served.files() == []
        assert [path for path in ftp.directory.rglob("*") if path.is_file()] == []


def test_a_server_that_is_gone_is_no_blob_that_is_not_there(ftp: FtpServer, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x")
    store, key = create_blob_store(ftp.url()), key_of(b"x")
    assert store.put(local, JOB, key)
    ftp.close()
    for use in (store.jobs, store.read_mark, lambda: store.get(JOB, key, local), lambda: store.delete_all(JOB)):
        with pytest.raises(BlobStoreError, match=r"in the blob store ftp://\*{6}@127\.0\.0\.1:.*refused"):
            use()
    again = FtpServer(ftp.directory, ftp.port)
    assert store.get(JOB, key, local)
    again.close()


@pytest.mark.parametrize("answer", [EOFError("closed"), ConnectionResetError("reset"), TimeoutError("too slow")])
def test_a_connection_that_breaks_is_no_blob_that_is_not_there(
    ftp: FtpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    def fail(*_: object) -> None:
        raise answer

    monkeypatch.setattr("ftplib.FTP.mlsd", fail)
    with pytest.raises(BlobStoreError, match=str(answer)):
        create_blob_store(ftp.url()).get(JOB, key_of(b"x"), tmp_path / "local")


def test_credentials_are_in_no_message(ftp: FtpServer, tmp_path: Path) -> None:
    url = ftp.url("wrong-and-secret")
    store = create_blob_store(url)
    assert isinstance(store, FsspecBlobStore)
    with pytest.raises(BlobStoreError) as caught:
        store.jobs()
    error: BaseException | None = caught.value
    assert str(error) == (
        f"cannot list store in the blob store ftp://******@127.0.0.1:{ftp.port}/deep/store: "
        "530 Authentication failed.; check that the storage is reachable, writable and not full"
    )
    # Neither where a log would show it with its causes.
    assert error.__cause__ is None
    assert error.__suppress_context__
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        with pytest.raises(BlobStoreError, match="Authentication failed") as refusal:
            client.put_bytes(b"x", PermanentBlobKey, JOB)
        assert "wrong-and-secret" not in str(refusal.value)
        assert served.files() == []


def test_a_reason_that_quotes_the_credentials_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("cannot open memory://user:pass%21@host?token=abc nor user with pass!")

    store = create_blob_store("memory://user:pass%21@host/x?token=abcdef")
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.info", fail)
    with pytest.raises(BlobStoreError) as caught:
        store.jobs()
    assert "pass" not in str(caught.value)
