"""New versions of jobs whose checkpointLocation is in a remote file system: a real FTP server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.config import conf

from runtime.ids import JobID
from runtime.protocol.query_snapshot import QueryLocation
from tests.ftp_server import PASSWORD, USER, FtpServer
from tests.unit import test_job_shadow, test_job_upgrade


@pytest.fixture
def ftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpServer]:
    monkeypatch.setitem(conf, "ftp", {"username": USER, "password": PASSWORD})
    server = FtpServer(tmp_path / "ftp")
    yield server
    server.close()


class Files(test_job_shadow.Files):
    """A query whose files are on a server."""

    served = ""

    @property
    def query(self) -> QueryLocation:
        return replace(super().query, location=f"{self.served}/checkpoint")


def files_of(ftp: FtpServer, batches: int) -> Files:
    files = Files(ftp.directory / "q")
    files.served = f"ftp://127.0.0.1:{ftp.port}/q"
    files.run(batches)
    return files


def test_the_first_batch_of_an_upgraded_job_is_seen_at_its_remote_location(ftp: FtpServer, tmp_path: Path) -> None:
    cluster: Any = test_job_upgrade.Cluster(tmp_path)
    cluster.files = files_of(ftp, 2)
    done = test_job_upgrade.upgraded(cluster)
    assert (done.outcome, test_job_upgrade.upgrader(cluster).undo(JobID(done.job_id)).outcome) == (
        "upgraded",
        "returned",
    )
    assert cluster.files.next_batch == 4, "the new version has kept its batch, and the former one goes on after it"
