"""Large deployments, as a cluster of real processes sends them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobServerGateway
from blob.settings import BlobServerStats
from tests.cluster_harness import Cluster, await_value, paths_below
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


def test_what_all_deployments_of_a_job_share_is_uploaded_once(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(
        "blob.offload.minsize=16kb",
        "rpc.frame-size=64kb",
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.delay=0.1s",
    )
    done = cluster.run("job", "run", str(write_job(tmp_path, LARGE)))
    assert done.stdout.endswith("rows 100 100000\n")
    job = next(job for job in cluster.json("job", "list") if job["name"] == "large")
    attempts = [len(task["attempts"]) for task in cluster.job(job["job_id"])["tasks"]]
    assert attempts == [2, 1]
    stats = stats_of(cluster)
    assert 200_000 < stats.bytes_received < 300_000, "the graph, one part for all deployments, and what is small"
    assert 200_000 < stats.bytes_sent < 300_000, "each read once: by the Dispatcher, and by the TaskExecutor"
    assert await_value(lambda: stats_of(cluster).total_bytes < 100_000), "nothing but the logs is left"


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


def test_what_one_component_says_to_another_may_exceed_a_frame(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("blob.offload.minsize=16kb", "rpc.frame-size=64kb")
    job_id = cluster.submit(write_job(tmp_path, WIDE), "400")

    def status() -> str:
        return str(next(job["state"] for job in cluster.json("job", "list") if job["job_id"] == job_id))

    await_value(lambda: status() != "FAILED" and status() == "FINISHED")
    archived = [path for path in paths_below(cluster.directory) if path.name == f"{job_id}.job"]
    assert any(path.stat().st_size > 64 * 1024 for path in archived), "the archived job is what was too large"
