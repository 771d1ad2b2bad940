"""A query whose checkpointLocation, or file sink, is on a real FTP server: Spark writes there, by Hadoop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import SINK_LOG
from runtime.checkpoint.lease import lease_file
from runtime.checkpoint.metadata_log import last_entry
from runtime.checkpoint.savepoint import read_savepoint
from runtime.checkpoint.stored_snapshot import load_snapshot
from tests.cluster_harness import Cluster, await_value
from tests.ftp_server import HADOOP_FTP, FtpServer
from tests.job_files import write_job
from tests.streaming_rows import STREAM, Source, rows_of, rows_so_far


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[FtpServer]:
    server = FtpServer(tmp_path / "ftp", anonymous=True)
    yield server
    server.close()


def test_a_query_with_a_remote_location_is_checkpointed_and_goes_back(
    cluster: Cluster, ftp: FtpServer, tmp_path: Path
) -> None:
    url = f"ftp://127.0.0.1:{ftp.port}/live"
    source, sink = Source(tmp_path / "in"), tmp_path / "out"
    script = write_job(tmp_path, STREAM.replace("rows = ", HADOOP_FTP + "rows = ", 1), "stream.py")
    settings = ("-D", "spark.sql.session.timeZone=UTC")
    source.write(3)
    job_id = cluster.submit(script, str(source.directory), str(sink), url, options=settings)
    await_value(lambda: rows_so_far(sink).total() > 0)
    taken = Path(cluster.run("job", "checkpoint", job_id).stdout.strip())
    (snapshot,) = (load_snapshot(path.parent) for path in taken.rglob("snapshot.json"))
    assert (snapshot.location, snapshot.batch_id >= 0) == (url, True)

    # The state is at the URL, and the query goes on from there. It may be away for more attempts than other jobs have.
    (task,) = cluster.tasks_of(job_id)
    os.kill(task, signal.SIGKILL)
    ftp.close()

    def has_restarted() -> dict[str, Any] | None:
        job = cluster.job(job_id)
        assert job["state"] != "FAILED", job["failure"]
        return job if job["restarts"] > 3 else None

    job = await_value(has_restarted)
    assert {failure["kind"] for failure in job["failure_history"]} == {"task-process-lost", "runtime"}
    assert "RemoteStorageError" in job["failure_history"][-1]["type"]
    seen = rows_so_far(sink).total()  # no query runs now
    ftp.open()
    source.write(2)
    await_value(lambda: rows_so_far(sink).total() > seen)

    # Stopped, and begun again at the same place from where it was before: the batches since then are done again.
    kept = cluster.run("job", "savepoint", job_id, str(tmp_path / "savepoints")).stdout.strip()
    seen = rows_so_far(sink).total()
    source.write(2)
    await_value(lambda: rows_so_far(sink).total() > seen)
    cluster.run("job", "stop", "--savepoint", str(tmp_path / "others"), job_id)
    second = cluster.submit(script, str(source.directory), str(sink), url, options=("--from", kept, *settings))
    source.close()
    await_value(lambda: rows_so_far(sink).total() >= source.expected.total())
    assert rows_of(sink) == source.expected
    assert cluster.job(second)["checkpoints"]["latest_restored"]["path"] == kept
    cluster.run("job", "cancel", second)
    assert not (ftp.directory / "live" / ".understudy-restore").exists()
    lease_file(url).unlink()


def test_a_remote_file_sink_goes_back_with_its_query_also_if_that_is_killed_meanwhile(
    cluster: Cluster, ftp: FtpServer, tmp_path: Path
) -> None:
    url, served = f"ftp://127.0.0.1:{ftp.port}/out put", ftp.directory
    source, sink = Source(tmp_path / "in"), served / "out put"
    script = write_job(tmp_path, STREAM.replace("rows = ", HADOOP_FTP + "rows = ", 1), "stream.py")
    settings = ("-D", "spark.sql.session.timeZone=UTC")
    source.write(3)
    job_id = cluster.submit(script, str(source.directory), url, str(tmp_path / "live"), options=settings)
    await_value(lambda: rows_so_far(sink, served).total() > 0)
    taken = Path(cluster.run("job", "checkpoint", job_id).stdout.strip())
    (snapshot,) = (load_snapshot(path.parent) for path in taken.rglob("snapshot.json"))
    assert snapshot.sink == url
    kept = cluster.run("job", "savepoint", job_id, str(tmp_path / "savepoints")).stdout.strip()
    (saved,) = (query.snapshot for query in read_savepoint(Path(kept)).queries)
    source.write(4)
    await_value(lambda: last_entry(list_names(sink / SINK_LOG)) > saved.batch_id + 2)

    removed, killed = [], []

    def kill_once(path: Path) -> None:
        """Kill the job's task when it has changed a part of the log."""
        if path.parent.name == "_spark_metadata" and (sink / "_understudy_restore").exists():
            removed.append(path.name)
            if len(removed) == 2:
                killed.extend(cluster.tasks_of(job_id))
                for task in killed:
                    os.kill(task, signal.SIGKILL)

    ftp.before_removal = kill_once
    cluster.run("job", "rollback", job_id, "--to", kept)
    source.write(2)
    source.close()
    await_value(lambda: rows_so_far(sink, served).total() >= source.expected.total())
    assert killed, removed
    assert rows_of(sink, served) == source.expected
    assert not (sink / "_understudy_restore").exists()

    # A job that begins at another place, with the same sink, takes it back once more.
    cluster.run("job", "cancel", job_id)
    options = ("--from", kept, *settings)
    second = cluster.submit(script, str(source.directory), url, str(tmp_path / "other"), options=options)
    other = tmp_path / "other" / "commits"
    await_value(lambda: last_entry(list_names(other)) > saved.batch_id + 2)
    await_value(lambda: rows_so_far(sink, served).total() >= source.expected.total())
    assert rows_of(sink, served) == source.expected
    cluster.run("job", "cancel", second)
