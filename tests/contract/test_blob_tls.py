"""The blob protocol inside TLS, with certificates of an authority of the test's."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest

from blob.client import BlobClient
from blob.errors import BlobAuthenticationError, BlobConnectionError, BlobError, BlobProtocolError
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.protocol import INLINE_CONTENT
from blob.settings import BlobServerOptions
from tests.contract.blob_harness import JOB, SECRET, CuttingProxy, RawPeer, Served, is_closed, wait_until
from tests.fakes.certificates import CertificateAuthority

LARGE = random.Random(6).randbytes(6 * 1024 * 1024 + 17)


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return CertificateAuthority(tmp_path).issue().contexts()


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.mark.parametrize("size", [0, 1, INLINE_CONTENT, INLINE_CONTENT + 1, len(LARGE)])
def test_what_is_put_is_got(tmp_path: Path, contexts: Contexts, size: int) -> None:
    data = LARGE[:size]
    with Served(tmp_path / "blob", tls=contexts[0]) as served, served.client(tls=contexts[1]) as client:
        key = client.put_bytes(data, PermanentBlobKey, JOB)
        assert client.get_bytes(key, JOB) == data
        client.get_to_file(key, tmp_path / "copy", JOB)
        assert (tmp_path / "copy").read_bytes() == data
        transient = client.put_bytes(data, TransientBlobKey)
        assert client.delete(transient)


def test_one_side_without_tls(tmp_path: Path, contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path / "with", tls=contexts[0]) as served:
        with monkeypatch.context() as patch, served.client(retries=0) as client:
            patch.setattr("blob.connection.HANDSHAKE_TIMEOUT", 2.0)
            with pytest.raises(BlobError):
                client.put_bytes(b"x", TransientBlobKey)
        with served.client(tls=contexts[1]) as client:
            client.put_bytes(b"x", TransientBlobKey)
    with (
        Served(tmp_path / "without") as served,
        served.client(tls=contexts[1], retries=0) as client,
        pytest.raises((BlobConnectionError, BlobProtocolError), match=r"TLS"),
    ):
        client.put_bytes(b"x", TransientBlobKey)


def test_a_certificate_of_another_authority(tmp_path: Path, contexts: Contexts) -> None:
    stranger = CertificateAuthority(tmp_path).issue().contexts()[1]
    with Served(tmp_path / "blob", tls=contexts[0]) as served:
        with served.client(tls=stranger, retries=0) as client, pytest.raises(BlobAuthenticationError):
            client.put_bytes(b"x", TransientBlobKey)
        assert served.files() == []


def test_a_client_without_a_certificate(tmp_path: Path, contexts: Contexts) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with Served(tmp_path / "blob", tls=contexts[0]) as served:
        with (
            served.client(tls=bare, retries=0) as client,
            pytest.raises(
                (BlobAuthenticationError, BlobConnectionError)  # whether the server's reason comes before its end
            ),
        ):
            client.put_bytes(b"x", TransientBlobKey)
        wait_until(lambda: served.server.stats().connections == 0)


def test_a_silent_client_is_dropped(tmp_path: Path, contexts: Contexts) -> None:
    options = BlobServerOptions(disk_reserve=0, timeout=2.0)
    with Served(tmp_path / "blob", tls=contexts[0], options=options) as served:
        with RawPeer(served.server.address, tls=contexts[1]) as silent:
            assert is_closed(silent.sock)
        wait_until(lambda: served.server.stats().connections == 0)


def test_a_download_goes_on_where_it_broke(tmp_path: Path, contexts: Contexts) -> None:
    with Served(tmp_path / "blob", tls=contexts[0]) as served:
        key = served.client(tls=contexts[1]).put_bytes(LARGE, TransientBlobKey)
        proxy = CuttingProxy(served.server.address, cuts=2, after=2_500_000)
        with BlobClient(proxy.address, SECRET, backoff=0.001, tls=contexts[1]) as client:
            client.get_to_file(key, tmp_path / "copy")
        proxy.close()
        assert (tmp_path / "copy").read_bytes() == LARGE
        assert proxy.connections == 3
        assert proxy.bytes_to_client < 2 * len(LARGE)


def test_a_server_is_closed_in_mid_transfer(tmp_path: Path, contexts: Contexts) -> None:
    with Served(tmp_path / "blob", tls=contexts[0]) as served:
        with RawPeer(served.server.address, tls=contexts[1]) as peer:
            served.do(served.server.close())
            assert is_closed(peer.sock)
        served.do(served.server.start())
        with served.client(tls=contexts[1]) as client:
            client.put_bytes(b"x", TransientBlobKey)
