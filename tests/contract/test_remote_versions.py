"""New versions of jobs whose checkpointLocation is in a remote file system: a real FTP server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.config import conf

from runtime.checkpoint.errors import RemoteStorageError
from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.ids import JobID
from runtime.protocol.query_snapshot import QueryLocation
from tests.ftp_server import PASSWORD, USER, FtpServer
from tests.unit import test_job_shadow, test_job_upgrade
from tests.unit.test_job_upgrade import kept


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


def test_both_versions_run_the_batches_of_a_job_with_a_remote_location(ftp: FtpServer, tmp_path: Path) -> None:
    cluster = test_job_shadow.Cluster(tmp_path)
    cluster.files = files_of(ftp, 2)
    before = sorted(path for path in ftp.directory.rglob("*") if path.is_file())
    done = test_job_shadow.rehearse(cluster, new=3)
    assert (done.is_equal, [batch.batch for batch in done.queries[0].batches]) == (True, [2, 3])
    assert len(cluster.plans) == 2
    assert (cluster.running, kept(cluster)) == (["# commit blue"], [])
    left = {path for path in ftp.directory.rglob("*") if path.is_file()}
    assert set(before) <= left
    assert not [path for path in left if re.search("understudy|restore", path.name)]


def test_sources_whose_remote_log_is_compacted_meanwhile_are_copied_again(
    ftp: FtpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = test_job_shadow.Cluster(tmp_path)
    cluster.files = files_of(ftp, 2)
    fetch, lost = RemoteDirectory.fetch, ["once"]

    def fails_once(directory: RemoteDirectory, *arguments: Any) -> None:
        fetch(directory, *arguments)
        if directory.url.endswith("/sources") and lost:
            raise FileNotFoundError(f"{directory.url}/0/3 has disappeared: {lost.pop()}")

    monkeypatch.setattr(RemoteDirectory, "fetch", fails_once)
    assert test_job_shadow.rehearse(cluster).is_equal
    assert lost == []


def test_a_location_that_cannot_be_reached_starts_nothing(ftp: FtpServer, tmp_path: Path) -> None:
    cluster = test_job_shadow.Cluster(tmp_path)
    cluster.files = files_of(ftp, 2)
    original = cluster.files.run

    def run(batches: int = 1) -> None:
        original(batches)
        ftp.close()

    cluster.files.run = run  # type: ignore[method-assign]
    with pytest.raises(RemoteStorageError, match="cannot list it"):
        test_job_shadow.rehearse(cluster)
    ftp.open()
    assert (cluster.plans, cluster.running, kept(cluster)) == ([], ["# commit blue"], [])


def test_the_first_batch_of_an_upgraded_job_is_seen_at_its_remote_location(ftp: FtpServer, tmp_path: Path) -> None:
    cluster: Any = test_job_upgrade.Cluster(tmp_path)
    cluster.files = files_of(ftp, 2)
    done = test_job_upgrade.upgraded(cluster)
    assert (done.outcome, test_job_upgrade.upgrader(cluster).undo(JobID(done.job_id)).outcome) == (
        "upgraded",
        "returned",
    )
    assert cluster.files.next_batch == 4, "the new version has kept its batch, and the former one goes on after it"
