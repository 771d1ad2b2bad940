"""Savepoints in a remote file system: a real FTP server, which the cluster reaches and Spark does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.checkpoint.remote_savepoint import verify_at
from tests.cluster_harness import Cluster, await_value
from tests.ftp_server import FtpServer
from tests.integration.test_checkpoints import STREAM
from tests.job_files import write_job
from tests.streaming_rows import Source, rows_of, rows_so_far


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[FtpServer]:
    logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
    server = FtpServer(tmp_path / "ftp", anonymous=True)
    yield server
    server.close()


def test_a_stream_is_stopped_with_a_remote_savepoint_and_another_job_begins_from_it(
    cluster: Cluster, ftp: FtpServer, tmp_path: Path
) -> None:
    url = f"ftp://127.0.0.1:{ftp.port}/kept"
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
    state = next(path for path in (ftp.directory / "kept" / Path(damaged).name).rglob("offsets/*"))
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    (problem,) = verify_at(damaged)
    assert f"offsets/{state.name} is damaged" in problem
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
    assert [path.name for path in (ftp.directory / "kept").iterdir()] == [Path(place).name]
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
