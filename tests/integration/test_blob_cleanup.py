"""Whose blobs go and whose stay, on a cluster of real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.errors import FencingError
from actors.rpc.gateway import FencingToken
from blob.client import BlobClient
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobServerGateway
from blob.key import PermanentBlobKey
from conf.configuration import Configuration
from runtime.client import CARRIED_SIZE
from runtime.environment.context import blob_store_url
from runtime.ids import JobID
from runtime.protocol.dispatcher import DispatcherGateway
from tests.cluster_harness import Cluster, WaitingJob, await_value, paths_below
from tests.job_files import PAUSED

AGE_S = 12
SETTINGS = ("blob.service.cleanup.interval=0.5s", f"blob.service.cleanup.ttl={AGE_S}s")


def upload_orphan(cluster: Cluster) -> JobID:
    """Upload a job's file, as a client does that dies before it submits the job."""
    job_id = JobID.random()
    secret = (cluster.directory / "secret").read_bytes().strip()
    with cluster.client() as client:
        address = client.lookup("dispatcher", DispatcherGateway).get_blob_server().result()
    with BlobClient((address.host, address.port), secret) as blobs:
        blobs.put_bytes(b"never submitted", PermanentBlobKey, job_id)
    assert len(files_of(cluster, job_id)) == 2, "at the server, and in the store"
    return job_id


def files_of(cluster: Cluster, job_id: str) -> set[Path]:
    """The blobs of a job at the server and in the store, without the TaskExecutors' copies."""
    store = blob_store_url(Configuration.read(cluster.directory / "configuration.json")).reveal()
    found = [path for root in (cluster.directory / "blob", Path(store)) for path in paths_below(root)]
    return {path for path in found if path.parent.name == f"job_{job_id}" and path.name.startswith("blob_")}


@pytest.mark.slow  # unit/test_dispatcher_job_blobs.py shows what goes
def test_an_orphan_goes_and_what_runs_keeps_its_blobs_whoever_leads(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(*SETTINGS)
    running = WaitingJob.start(cluster, tmp_path, comment="x" * CARRIED_SIZE, text=PAUSED)
    own = files_of(cluster, running.job_id)
    assert len(own) == 2

    orphan = upload_orphan(cluster)
    await_value(lambda: not files_of(cluster, orphan))
    assert files_of(cluster, running.job_id) == own, "it is older than the orphan was"

    # The next leader knows the job by its recovery, and what the one before it knew counts no more.
    former = cluster.pid_of("dispatcher")
    os.kill(former, signal.SIGKILL)
    await_value(lambda: cluster.pid_of("dispatcher") not in (0, former))
    cluster.await_status(running.job_id, "RUNNING")
    orphan = upload_orphan(cluster)
    await_value(lambda: not files_of(cluster, orphan))
    assert files_of(cluster, running.job_id) == own
    with cluster.client() as client, pytest.raises(FencingError):
        client.lookup(BLOB_SERVER, BlobServerGateway).sweep_orphans([], FencingToken(1, "a former leader")).result()
    assert files_of(cluster, running.job_id) == own

    running.release()
    cluster.await_status(running.job_id, "FINISHED")
    await_value(lambda: not files_of(cluster, running.job_id))


def test_a_small_job_file_needs_no_blob(cluster: Cluster, tmp_path: Path) -> None:
    job = WaitingJob.start(cluster, tmp_path, text=PAUSED)
    assert not files_of(cluster, job.job_id)
    job.release()
    cluster.await_status(job.job_id, "FINISHED")
