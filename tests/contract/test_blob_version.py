"""A blob server that is greeted in another version of the protocol names its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from actors.rpc.security import HELLO_SIZE, MAGIC, REFUSAL, VERSION, ClientHandshake
from blob.client import BlobClient
from blob.errors import BlobProtocolError
from blob.key import TransientBlobKey
from tests.contract.blob_harness import SECRET, Served
from tests.waiting import PATIENCE_S


def test_another_version_is_told_the_servers(tmp_path: Path) -> None:
    with (
        Served(tmp_path / "blob") as served,
        socket.create_connection(served.server.address, timeout=PATIENCE_S) as sock,
    ):
        sock.sendall((MAGIC + bytes([VERSION + 1])).ljust(HELLO_SIZE, b"\0"))
        assert sock.recv(len(REFUSAL), socket.MSG_WAITALL) == REFUSAL
        assert sock.recv(1) == b""


def test_a_client_names_both_versions_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = ClientHandshake.hello
    monkeypatch.setattr(ClientHandshake, "hello", lambda self: MAGIC + bytes([VERSION + 1]) + hello(self)[5:])
    later = (MAGIC + bytes([VERSION + 1])).ljust(len(REFUSAL), b"\0")
    monkeypatch.setattr("actors.rpc.security.REFUSAL", later)
    told = f"version {VERSION + 1}, this side speaks {VERSION}: install the same release"
    with (
        Served(tmp_path / "blob") as served,
        BlobClient(served.server.address, SECRET, retries=0) as client,
        pytest.raises(BlobProtocolError, match=told),
    ):
        client.put_bytes(b"x", TransientBlobKey)
