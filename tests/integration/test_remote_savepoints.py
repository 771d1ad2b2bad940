"""Savepoints in remote file systems, which the cluster reaches and Spark does not: a real FTP and a real S3 server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.config import conf

from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.checkpoint.remote_savepoint import verify_at
from tests.cluster_harness import Cluster, await_value, started
from tests.ftp_server import FtpServer
from tests.job_files import write_job
from tests.s3_server import BUCKET, S3Server
from tests.streaming_rows import STREAM, Source, rows_of, rows_so_far


@pytest.fixture(params=["ftp", pytest.param("s3", marks=pytest.mark.slow)])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, str]]:
    """A cluster, and a URL that it reaches. For S3 its processes are told of the server in their environment."""
    if request.param == "ftp":
        logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
        ftp = FtpServer(tmp_path / "ftp", anonymous=True)
        yield request.getfixturevalue("cluster"), f"ftp://127.0.0.1:{ftp.port}/kept"
        ftp.close()
        return
    s3 = S3Server()
    monkeypatch.setitem(conf, "s3", s3.settings)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    for cluster in started(tmp_path / "c"):
        yield cluster, f"s3://{BUCKET}/kept"
    s3.close()


def test_a_stream_is_stopped_with_a_remote_savepoint_and_another_job_begins_from_it(
    stored: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, url = stored
    source, sink = Source(tmp_path / "in"), tmp_path / "out"
    script = write_job(tmp_path, STREAM, "stream.py")
    settings = ("-D", "spark.sql.session.timeZone=UTC")
    source.write(3)
    job_id = cluster.submit(script, str(source.directory), str(sink), str(tmp_path / "live"), options=settings)
    await_value(lambda: rows_so_far(sink).total() > 0)

    # What cannot be written is refused, and nothing is taken or stopped for it.
    for words, why in (
        (("job", "savepoint", job_id, "nosuch://host/x"), "no file system for the scheme 'nosuch'"),
        (("job", "stop", "--savepoint", "ftp://127.0.0.1:1/x", job_id), "check that the storage is reachable"),
    ):
        refused = cluster.run(*words, check=False)
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr
        assert [refused.stderr.count(text) for text in ("Traceback", "SavepointError", "\n")] == [0, 0, 1]
    figures = cluster.job(job_id)
    assert (figures["state"], figures["checkpoints"]["counts"]["total"]) == ("RUNNING", 0)

    # One is damaged on the server, and found; a job does not begin from it.
    damaged = cluster.run("job", "savepoint", job_id, url).stdout.strip()
    files = RemoteDirectory(damaged)
    name = next(name for name in files.files() if "/offsets/" in name)
    changed = tmp_path / "changed"
    changed.write_bytes((files.read(name) or b"")[:-1] + b"x")
    files.put(changed, name)
    (problem,) = verify_at(damaged)
    assert f"{name} is damaged" in problem
    failed = cluster.submit(script, str(source.directory), str(sink), "", options=("--from", damaged))
    cluster.await_status(failed, "FAILED")
    assert "is damaged: its digest is another one" in cluster.run("job", "exceptions", failed).stdout
    with cluster.client() as client:
        client.dispose_savepoint(damaged)

    # Stopped with another, and begun from it at a location of its own.
    source.write(2)
    stopped = cluster.run("job", "stop", "--savepoint", url, job_id)
    place = stopped.stdout.strip()
    assert f"job {job_id} is FINISHED" in stopped.stderr
    assert list(RemoteDirectory(url).names()) == [Path(place).name]
    assert verify_at(place) == []
    options = ("--from", place, *settings)
    second = cluster.submit(script, str(source.directory), str(sink), "", options=options)
    cluster.await_status(second, "RUNNING")
    source.write(1)
    source.close()
    await_value(lambda: rows_so_far(sink).total() >= source.expected.total())
    assert rows_of(sink) == source.expected
    restored = cluster.job(second)["checkpoints"]["latest_restored"]
    assert (restored["path"], restored["is_savepoint"]) == (place, True)
    cluster.run("job", "cancel", second)
    assert not (cluster.directory / "checkpoints" / second).exists(), "the local copy goes with the job"
