"""The leaders write the history: figures, states of running jobs, logs of forgotten ones, jobs at a stop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from actors.errors import RecipientUnreachable
from blob.errors import BlobNotFound
from blob.key import BlobKey
from runtime.dispatcher.endpoint import Dispatcher
from runtime.dispatcher.running_job import RunningJob
from runtime.history.directory import HistoryDirectory
from runtime.history.figures import Sample, read_samples
from runtime.ids import JobID
from runtime.job_logs import KeptLog, logs_owner
from runtime.jobgraph.codec import decode, encode
from runtime.metrics.metric import MetricScope, ScopeCategory, ScopeDump, gauges
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import ClusterOverview
from runtime.protocol.streaming_query import QueryHistory
from runtime.rest.history_writer import HEAP_MAX, HEAP_USED, ROWS, HistoryWriter, due, sample_of
from tests.dispatcher_arguments import dispatcher_arguments
from tests.unit.test_history import KEY, job, write
from tests.unit.test_rest_messages import HISTORY
from tests.waiting import PATIENCE_S

OVERVIEW = ClusterOverview(2, 8, 3, 1, 2, 0, 0, 0)


def task_metrics(job_id: str, task: str, **values: Any) -> ScopeDump:
    return ScopeDump(MetricScope(ScopeCategory.TASK, job_id=job_id, task_id=task), gauges(values))


def worker_metrics(name: str, **values: Any) -> ScopeDump:
    return ScopeDump(MetricScope(ScopeCategory.TASK_MANAGER, task_manager=name), gauges(values))


METRICS = MetricStore(
    [
        task_metrics("a", "1", **{ROWS: 2.5}),
        task_metrics("a", "2", **{ROWS: 1.0}),
        task_metrics("b", "1", attempt=0),
        task_metrics("c", "1", **{ROWS: float("nan")}),
        worker_metrics("tm-0", **{HEAP_USED: 10, HEAP_MAX: 100}),
        worker_metrics("tm-1", **{HEAP_USED: 5}),
    ]
)


class Cluster:
    """A cluster that is asked as a `ClusterBackend` is."""

    def __init__(self, *graphs: ArchivedExecutionGraph) -> None:
        self.graphs = {graph.job_id: graph for graph in graphs}
        self.failure: Exception | None = None
        self.asked: list[JobID] = []

    async def overview(self) -> ClusterOverview:
        if self.failure is not None:
            raise self.failure
        return OVERVIEW

    async def metrics(self) -> MetricStore:
        return METRICS

    async def jobs(self) -> tuple[JobDetails, ...]:
        return tuple(graph.details() for graph in self.graphs.values())

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        self.asked.append(job_id)
        if self.graphs[job_id].name == "gone":
            raise JobNotFoundError("it is gone")
        return self.graphs[job_id]

    async def query_histories(self, job_id: JobID) -> list[QueryHistory]:
        return [HISTORY]


def writer_of(cluster: Cluster, root: Path, interval_s: float = PATIENCE_S) -> HistoryWriter:
    return HistoryWriter(cluster, HistoryDirectory(root, 1 << 20, 60.0), interval_s)  # type: ignore[arg-type]


def stored(root: Path) -> dict[str, ArchivedExecutionGraph]:
    return {path.stem: decode(path.read_bytes(), ArchivedExecutionGraph) for path in (root / "running").glob("*.job")}


def test_figures_are_sums_of_what_the_processes_report() -> None:
    assert sample_of(7, OVERVIEW, METRICS) == Sample(7, 2, 8, 3, 1, 2, 15, 100, {"a": 3.5})
    assert sample_of(7, OVERVIEW, MetricStore([])) == Sample(7, 2, 8, 3, 1, 2)


def test_the_states_that_were_written_longest_ago_are_next() -> None:
    jobs = [job(number, JobStatus.RUNNING).details() for number in range(4)]
    jobs.append(job(4).details())
    ids = [each.job_id for each in jobs]
    assert due(jobs, [ids[1], ids[0]], 3) == [ids[2], ids[3], ids[1]]
    assert due(jobs, ids, 10) == ids[:4], "a job that is over is not written"


async def test_a_point_has_figures_and_the_states_of_running_jobs(tmp_path: Path) -> None:
    running, ended = job(1, JobStatus.RUNNING), job(2)
    cluster = Cluster(running, ended)
    writer = writer_of(cluster, tmp_path)
    await writer.write(7)
    assert read_samples(tmp_path, 0, 10)[0] == [sample_of(7, OVERVIEW, METRICS)]
    assert stored(tmp_path) == {running.job_id: replace(running, query_histories=(HISTORY,))}
    cluster.graphs[running.job_id] = job(1)
    await writer.write(8)
    assert stored(tmp_path) == {}, "the archive has it from now on"


async def test_a_job_that_does_not_answer_costs_no_other(tmp_path: Path) -> None:
    gone, running = replace(job(1, JobStatus.RUNNING), name="gone"), job(2, JobStatus.RUNNING)
    cluster = Cluster(gone, running)
    await writer_of(cluster, tmp_path).write(7)
    assert cluster.asked == [gone.job_id, running.job_id]
    assert set(stored(tmp_path)) == {running.job_id}


async def test_the_writer_goes_on_after_a_failure_and_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    cluster.failure = RecipientUnreachable("no Dispatcher leads")
    writer = writer_of(cluster, tmp_path, interval_s=0.001)
    writer.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not caplog.records:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            cluster.failure = None
            while not read_samples(tmp_path, 0, 10**14)[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        await writer.stop()
    assert [record.message for record in caplog.records] == ["the history misses figures: no Dispatcher leads"]
    await writer.stop()


# -------------------------------------------------------------- the Dispatcher


def dispatcher_of(root: Path) -> tuple[Dispatcher, HistoryDirectory]:
    history = HistoryDirectory(root / "history", 1 << 20, 60.0)
    return Dispatcher(**dispatcher_arguments(root), history=history), history


async def test_ends_of_logs_are_kept_before_their_blobs_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher, history = dispatcher_of(tmp_path)
    one = job(1)
    logs = (KeptLog("stdout", 3, 3, KEY), KeptLog(".function-result", 3, 3, KEY.replace("1", "3")))
    task = replace(one.tasks[0], attempts=(replace(one.tasks[0].attempts[0], logs=logs),))
    write(history.root / "jobs" / f"{one.job_id}.job", encode(replace(one, tasks=(task,))))
    blobs: Any = dispatcher._blobs
    blobs.get_bytes.return_value = b"log"
    dispatcher._keep_log_ends(history, one.job_id)
    blobs.get_bytes.assert_called_once_with(BlobKey.parse(KEY), logs_owner(one.job_id))
    assert (history.root / "logs" / KEY).read_bytes() == b"log"
    blobs.get_bytes.side_effect = BlobNotFound("it is gone")
    dispatcher._keep_log_ends(history, one.job_id)
    assert "not all logs of job" in caplog.text
    dispatcher._keep_log_ends(history, job(2).job_id)
    await dispatcher.service.close()


async def test_jobs_that_run_at_a_stop_are_noted_unless_more_is_known(tmp_path: Path) -> None:
    dispatcher, history = dispatcher_of(tmp_path)
    known, young = job(1, JobStatus.RUNNING), job(2, JobStatus.RUNNING)
    history.note_running(known)
    jobs = [RunningJob(replace(graph.details(), owner="ada"), MagicMock(), lambda _: None) for graph in (known, young)]
    dispatcher._note_unfinished(history, jobs)
    found = stored(history.root)
    assert found[known.job_id] == known
    assert found[young.job_id].tasks == ()
    assert (found[young.job_id].name, found[young.job_id].owner) == (young.name, "ada")
    assert found[young.job_id].start_ms == young.start_ms
    await dispatcher.service.close()
