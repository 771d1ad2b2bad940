"""Certificates for tests, of an authority made on the spot."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import trustme

from actors.rpc.tls import TlsConfig


class CertificateAuthority:
    """Signs certificates into files of a directory.

    Args:
        directory: where the files go.
        authority: the authority, if it is to be a certain one.
    """

    def __init__(self, directory: Path, authority: trustme.CA | None = None) -> None:
        self.authority = authority or trustme.CA()
        self._directory = directory
        self._numbers = itertools.count()

    def issue(self, name: str = "understudy.example", not_after: datetime.datetime | None = None) -> TlsConfig:
        """A certificate, its key and the authority's own, each in a file."""
        number = next(self._numbers)
        issued = self.authority.issue_cert(name, not_after=not_after)
        files = {kind: self._directory / f"{kind}-{number}.pem" for kind in ("certificate", "key", "ca")}
        files["certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        files["key"].touch(mode=0o600)
        files["key"].write_bytes(issued.private_key_pem.bytes())
        files["ca"].write_bytes(self.authority.cert_pem.bytes())
        return TlsConfig(files["certificate"], files["key"], files["ca"])
