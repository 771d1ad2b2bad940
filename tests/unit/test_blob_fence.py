from __future__ import annotations

import errno
from pathlib import Path

import pytest

from actors.errors import FencingError
from actors.rpc.gateway import FencingToken
from blob import server
from blob.errors import BlobServerError, BlobStoreError
from blob.file_store import FileSystemBlobStore
from blob.server import Fence
from blob.store import VoidBlobStore


def test_an_earlier_leadership_does_not_pass(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "fence", VoidBlobStore())
    fence.pass_through(FencingToken(5, "a"))
    fence.pass_through(FencingToken(5, "a"))
    for token in (FencingToken(4, "a"), FencingToken(5, "b")):
        with pytest.raises(FencingError, match="a leader of the past"):
            fence.pass_through(token)
    fence.pass_through(FencingToken(6, "b"))
    with pytest.raises(FencingError, match=r"leadership 5 .* heard of 6") as refused:
        fence.pass_through(FencingToken(5, "a"))
    assert refused.value.epoch == 6


def test_a_restarted_server_and_one_that_shares_the_store_know_it(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    Fence(tmp_path / "one", VoidBlobStore()).pass_through(FencingToken(5, "a"))
    with pytest.raises(FencingError):
        Fence(tmp_path / "one", VoidBlobStore()).pass_through(FencingToken(4, "b"))
    Fence(tmp_path / "one", store).pass_through(FencingToken(7, "a"))
    with pytest.raises(FencingError):
        Fence(tmp_path / "two", store).pass_through(FencingToken(6, "b"))
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"epoch": "x"}'])
def test_a_damaged_fence_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fence").write_bytes(content)
    with pytest.raises(BlobServerError, match="fence"):
        Fence(tmp_path / "fence", VoidBlobStore())
    store = FileSystemBlobStore(tmp_path / "store")
    store.write_mark(content)
    with pytest.raises(BlobStoreError, match="damaged"):
        Fence(tmp_path / "another", store).pass_through(FencingToken(1, "a"))


def test_a_full_disk_keeps_no_leader_from_its_deletes_if_the_store_has_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    fence = Fence(tmp_path / "fence", FileSystemBlobStore(tmp_path / "store"))
    alone = Fence(tmp_path / "alone", VoidBlobStore())
    monkeypatch.setattr(server, "write_private", full)
    fence.pass_through(FencingToken(7, "a"))
    with pytest.raises(FencingError):
        fence.pass_through(FencingToken(6, "b"))
    with pytest.raises(OSError, match="No space left"):
        alone.pass_through(FencingToken(7, "a"))
