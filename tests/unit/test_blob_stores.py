from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from blob.errors import BlobServerError, BlobStoreError
from blob.file_store import FileSystemBlobStore
from blob.fsspec_store import FsspecBlobStore, shown_url
from blob.key import PermanentBlobKey
from blob.storage import BlobDirectory
from blob.store import VoidBlobStore
from blob.stores import create_blob_store

JOB = "b" * 32


@pytest.mark.parametrize("url", ["/some/where", "file:///some/where", "file://localhost/some/where"])
def test_a_store_by_url(url: str) -> None:
    assert isinstance(create_blob_store(url), FileSystemBlobStore)


@pytest.mark.parametrize("url", ["relative/path", "file:relative", "no-such-scheme://x", "file://elsewhere/x"])
def test_no_store_by_url(url: str) -> None:
    with pytest.raises(BlobStoreError, match="give an absolute"):
        create_blob_store(url)


def test_a_scheme_whose_plug_in_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(
        BlobStoreError, match=r"'s3://\*{6}@bucket/x\?\*{6}' needs a plug-in of fsspec: .*s3fs"
    ) as caught:
        create_blob_store("s3://key:hidden@bucket/x?token=also-hidden")
    assert "hidden" not in str(caught.value)


def test_other_urls_are_fsspecs() -> None:
    assert isinstance(create_blob_store("memory://somewhere"), FsspecBlobStore)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://user:word@host:21/a/b", "ftp://******@host:21/a/b"),
        ("s3://bucket/a?token=x", "s3://bucket/a?******"),
        ("hdfs://name-node/a", "hdfs://name-node/a"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


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
    store.write_mark(b"x")
    assert (store.read_mark(), store.jobs()) == (None, set())


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
    assert store.jobs() == {JOB}
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
        lambda: store.jobs(),
        lambda: store.read_mark(),
        lambda: store.write_mark(b"x"),
    ):
        with pytest.raises(BlobStoreError, match="check that the storage is reachable"):
            use()


def test_a_copy_is_on_the_disk_before_it_is_a_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name.partition('-')[0][:37]}")

    replace = Path.replace

    def replaced(path: Path, target: Path) -> None:
        steps.append("rename")
        replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    local = tmp_path / "local"
    local.write_bytes(b"x")
    assert FileSystemBlobStore(tmp_path / "store").put(local, JOB, PermanentBlobKey.create(bytes(32), bytes(16)))
    assert steps[-5:] == [
        f"sync {tmp_path.name}",
        "sync store",
        "sync .blob_p",
        "rename",
        f"sync job_{JOB}",
    ], "the names of its directories, its content, its own name"


def test_the_directories_of_blobs_are_private_also_where_they_were_there_before(tmp_path: Path) -> None:
    for directory in (tmp_path / "blobs", tmp_path / "blobs" / "incoming"):
        directory.mkdir()
        directory.chmod(0o755)
    BlobDirectory(tmp_path / "blobs", exclusive=True).close()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("blobs", "blobs/incoming")] == [0o700, 0o700]


def test_a_directory_is_of_one_server(tmp_path: Path) -> None:
    first = BlobDirectory(tmp_path / "blobs", exclusive=True)
    for exclusive in (True, False):
        with pytest.raises(BlobServerError, match="is in use by a blob server"):
            BlobDirectory(tmp_path / "blobs", exclusive=exclusive)
    first.close()
    BlobDirectory(tmp_path / "blobs", exclusive=True).close()
