"""A blob server that is greeted in another version of the protocol names its own."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from actors.rpc.security import PROOF_SIZE, SPOKEN, ClientHandshake, Versions, far_end, refusal
from blob.client import BlobClient
from blob.errors import BlobProtocolError
from blob.key import TransientBlobKey
from tests.contract.blob_harness import SECRET, Served
from tests.waiting import PATIENCE_S

LATER = Versions(SPOKEN.newest + 1, SPOKEN.newest + 2)


def test_another_version_is_told_the_servers(tmp_path: Path) -> None:
    with (
        Served(tmp_path / "blob") as served,
        socket.create_connection(served.server.address, timeout=PATIENCE_S) as sock,
    ):
        sock.sendall(ClientHandshake(SECRET, "blob", far_end(sock), LATER).hello())
        assert sock.recv(PROOF_SIZE, socket.MSG_WAITALL) == refusal(SPOKEN)
        assert sock.recv(1) == b""


def test_a_client_names_both_versions_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blob.link.ClientHandshake", partial(ClientHandshake, spoken=LATER))
    told = f"version {SPOKEN}, this side speaks {LATER}: install the same release"
    with (
        Served(tmp_path / "blob") as served,
        BlobClient(served.server.address, SECRET, retries=0) as client,
        pytest.raises(BlobProtocolError, match=told),
    ):
        client.put_bytes(b"x", TransientBlobKey)
