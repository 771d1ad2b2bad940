"""Large deployments and logs, as a cluster of real processes sends them and keeps them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobServerGateway
from blob.settings import BlobServerStats
from runtime.ids import JobID
from runtime.job_logs import logs_owner
from tests.cluster_harness import Cluster, await_value, paths_below, started
from tests.job_files import write_job

# Two tasks, the first of which fails once: three deployments, of more than a frame each.
LARGE = """\
from pathlib import Path
from runtime.api import Pipeline

def first(ctx):
    assert len(ctx.parameters["large"]) == 100_000
    if ctx.attempt == 0:
        raise ValueError("once")
    return ctx.spark.range(100)

def second(ctx, first):
    print("rows", first.count(), len(ctx.parameters["large"]))

def pipeline(argv):
    p = Pipeline("large", parameters={"large": "x" * 100_000})
    p.source("first", first).blocking().sink("second", second)
    return p
"""


def stats_of(cluster: Cluster) -> BlobServerStats:
    """The BlobServer's figures."""
    with cluster.client() as client:
        return client.lookup(BLOB_SERVER, BlobServerGateway).request_metrics().result()


@pytest.fixture(scope="module")
def small_frames(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose messages are small, and what it keeps of logs and of jobs that are over."""
    yield from started(
        tmp_path_factory.mktemp("c"),
        "blob.offload.minsize=16kb",
        "rpc.frame-size=64kb",
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.delay=0.1s",
        "job.logs.max-size=4kb",
        "jobstore.max-capacity=1",
    )


def test_what_all_deployments_of_a_job_share_is_uploaded_once(small_frames: Cluster, tmp_path: Path) -> None:
    cluster = small_frames
    before = stats_of(cluster)
    done = cluster.run("job", "run", str(write_job(tmp_path, LARGE)))
    assert done.stdout.endswith("rows 100 100000\n")
    job = next(job for job in cluster.json("job", "list") if job["name"] == "large")
    attempts = [len(task["attempts"]) for task in cluster.job(job["job_id"])["tasks"]]
    assert attempts == [2, 1]
    stats = stats_of(cluster)
    received, sent = stats.bytes_received - before.bytes_received, stats.bytes_sent - before.bytes_sent
    assert 200_000 < received < 300_000, "the graph, one part for all deployments, and what is small"
    assert 200_000 < sent < 300_000, "each read once: by the Dispatcher, and by the TaskExecutor"
    # Nothing but the logs is left.
    await_value(lambda: stats_of(cluster).total_bytes < before.total_bytes + 100_000)


# So many vertices that what the JobMaster says of the job at its end exceeds a frame.
WIDE = """\
from runtime.api import Pipeline

def first(ctx):
    return ctx.spark.range(10)

def same(ctx, rows):
    return rows

def last(ctx, rows):
    print("rows", rows.count())

def pipeline(argv):
    p = Pipeline("wide")
    vertex = p.source("first", first)
    for number in range(int(argv[0])):
        vertex = vertex.then(f"a vertex with a name that is rather long, number {number}", same)
    vertex.sink("last", last)
    return p
"""


def test_what_one_component_says_to_another_may_exceed_a_frame(small_frames: Cluster, tmp_path: Path) -> None:
    cluster = small_frames
    job_id = cluster.submit(write_job(tmp_path, WIDE), "400")

    def status() -> str:
        return str(next(job["state"] for job in cluster.json("job", "list") if job["job_id"] == job_id))

    await_value(lambda: status() != "FAILED" and status() == "FINISHED")
    archived = [path for path in paths_below(cluster.directory) if path.name == f"{job_id}.job"]
    assert any(path.stat().st_size > 64 * 1024 for path in archived), "the archived job is what was too large"


LONG = """\
for number in range(3000):
    print("line", number)
"""


def forget_files(cluster: Cluster, job_id: str) -> None:
    """Remove what the TaskExecutors have of a job: as if they were gone with their disks."""
    found = list(cluster.directory.glob(f"*/tasks/{job_id}"))
    assert found
    for directory in found:
        shutil.rmtree(directory)


def test_a_long_log_is_kept_in_part_and_goes_with_its_job(small_frames: Cluster, tmp_path: Path) -> None:
    cluster = small_frames
    job_id = cluster.submit(write_job(tmp_path, LONG))
    job = cluster.await_status(job_id, "FINISHED")
    whole = "".join(f"line {number}\n" for number in range(3000))
    assert cluster.run("job", "logs", job_id).stdout == whole, "while its TaskExecutor lives"
    log = job["tasks"][0]["attempts"][0]["logs"][0]
    assert log["kept"] <= 4096 < log["size"] == len(whole)
    forget_files(cluster, job_id)
    lines = cluster.run("job", "logs", job_id).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("line 0", "line 2999")
    assert any("bytes of this log were left out" in line for line in lines)

    def blobs(of: str) -> list[Path]:
        return [path for path in paths_below(cluster.directory) if path.is_file() and of in str(path)]

    owner = logs_owner(JobID(job_id))
    assert blobs(owner)
    cluster.run("job", "run", str(write_job(tmp_path, "print(1)\n", "next.py")))  # in the place of the other
    await_value(lambda: not [path for path in blobs(owner) if "/incoming/" not in str(path)])
    gone = cluster.run("job", "logs", job_id, check=False)
    assert gone.returncode == 1
    assert "no job" in gone.stderr
