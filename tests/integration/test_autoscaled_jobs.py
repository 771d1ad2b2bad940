"""The cluster changes the partitions of a query by itself, by the load of a real Spark; no row is lost or doubled."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.metadata_log import last_entry
from tests.cluster_harness import FEW_PARTITIONS, NO_WARM_UP, Cluster, await_value, started
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.streaming_rows import STREAM, Source, partitions_of, rows_of, rows_so_far

WITHOUT_A_PAUSE = STREAM.replace("200 milliseconds", "0 seconds")
"""Batches follow each other as long as there are files: the query is busy all the time."""
BACKLOG = 10
"""So many files wait for it at least."""
REST = 5
"""A quiet query gets its next file after so many times the time that the last one took."""
SETTINGS = (
    "state.backend.type=rocksdb",
    "execution.checkpointing.interval=1s",
    "taskmanager.numberOfTaskSlots=2",
    "spark.master=local[2]",
    "autoscaling.interval=1s",
    "autoscaling.partitions-per-core=2",
    "autoscaling.pause-before-increase=1s",
    "autoscaling.pause-before-decrease=10s",
    "autoscaling.quiet-time=20s",
    "spark.sql.session.timeZone=UTC",
    FEW_PARTITIONS,
    NO_WARM_UP,
)


class _QuietSource:
    """Gives a query a file from time to time, so that it is busy for little of it, however fast the machine is."""

    def __init__(self, source: Source, location: Path) -> None:
        self._source = source
        self._location = location
        self._written_s = time.monotonic()
        self._next_s = self._written_s
        self._commit = -1

    def go_on(self) -> None:
        """Write a file if it is time for one."""
        now_s, commit = time.monotonic(), committed(self._location)
        if self._next_s <= now_s:
            self._source.write(1)
            self._written_s, self._next_s, self._commit = now_s, float("inf"), commit
        elif commit != self._commit and self._next_s == float("inf"):
            self._next_s = now_s + REST * (now_s - self._written_s)


@pytest.mark.slow
def test_a_busy_query_gets_more_partitions_and_a_quiet_one_fewer(tmp_path: Path) -> None:
    with contextlib.contextmanager(started)(tmp_path / "c", *SETTINGS) as cluster:
        source, sink, live = Source(tmp_path / "in"), tmp_path / "out", tmp_path / "live"
        script = write_job(tmp_path, WITHOUT_A_PAUSE, "stream.py")
        arguments = str(source.directory), str(sink), str(live)
        job_id = cluster.submit(script, *arguments, options=("--autoscale", "2..16"))

        def has_state_of(partitions: int) -> bool:
            done = history(cluster, job_id)
            return bool(done) and (done[0]["partitions"], done[0]["terminalState"]) == (partitions, "COMPLETED")

        def busy() -> bool:
            source.write(max(0, BACKLOG - waiting(source, live)))
            return has_state_of(4)

        await_value(busy)
        await_value(lambda: partitions_of(live, committed(live) + 1) == [0, 1, 2, 3])

        def is_bounded_by_the_cores() -> bool:
            source.write(max(0, BACKLOG - waiting(source, live)))
            decided = RestClient.of(cluster).get(f"/v1/jobs/{job_id}/rescales/decisions")
            return [(one["wanted"], one["cores"], one["lacksCores"]) for one in decided] == [(4, 2, True)]

        await_value(is_bounded_by_the_cores)
        await_value(lambda: waiting(source, live) == 0)
        quiet = _QuietSource(source, live)

        def calm() -> bool:
            quiet.go_on()
            return has_state_of(2)

        await_value(calm)
        source.write(2)
        await_value(lambda: partitions_of(live, committed(live) + 1) == [0, 1])
        source.close()
        await_value(lambda: rows_so_far(sink) == source.expected)
        cluster.run("job", "cancel", job_id)
        assert rows_of(sink) == source.expected
        changes = history(cluster, job_id)[::-1]
        numbers = [one["partitions"] for one in changes]
        assert numbers in [up + down for up in ([4], [3, 4]) for down in ([2], [3, 2])], changes
        assert {(one["terminalState"], one["requestedBy"]) for one in changes} == {("COMPLETED", "AUTOSCALER")}
        assert "busy, above 80%" in changes[0]["reason"]
        assert "busy at most, below 35% for 20 s" in changes[-1]["reason"]


def history(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    """The job's rescales, the newest first."""
    found: list[dict[str, Any]] = RestClient.of(cluster).get(f"/v1/jobs/{job_id}/rescales/history")
    return found


def committed(location: Path) -> int:
    return last_commit(f"commits/{name}" for name in list_names(location / "commits"))


def waiting(source: Source, location: Path) -> int:
    """How many files no batch has taken."""
    return len(list_names(source.directory)) - last_entry(list_names(location / "sources" / "0")) - 1
