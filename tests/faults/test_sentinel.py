"""A cluster whose Redis is watched by Sentinel: the replica takes over, and no job notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.fakes.redis_replicas import (  # noqa: F401
    PASSWORD,
    SENTINEL_PASSWORD,
    SERVICE,
    Server,
    Servers,
    servers,
)
from tests.job_files import PAUSED, PRINTING, write_job


def holds_everything(replica: Server) -> bool:
    """Whether a replica has got all that its master has sent."""
    state = replica.command("INFO", "replication")
    return bool(state["master_link_status"] == "up" and not int(state["master_sync_in_progress"]))


def await_replicated(master: Server, replica: Server) -> None:
    """Wait until the replica has what its master was sent until now; the rest would be lost with the master."""
    written = int(master.command("INFO", "replication")["master_repl_offset"])
    await_value(lambda: int(replica.command("INFO", "replication")["slave_repl_offset"]) >= written)


@pytest.mark.slow  # contract/test_ha_failover.py has the same servers
def test_the_replica_takes_over_while_a_job_runs(
    servers: Servers,  # noqa: F811
    make_cluster: Callable[..., Cluster],
    tmp_path: Path,
) -> None:
    first = servers.redis()
    replica = servers.redis(f"replicaof 127.0.0.1 {first.port}")
    sentinel = servers.sentinel(first, down_after=10.0)  # nothing is down because the machine is busy
    await_value(lambda: holds_everything(replica))
    await_value(lambda: sentinel.command("SENTINEL", "REPLICAS", SERVICE))
    url = f"redis+sentinel://:{PASSWORD}@127.0.0.1:{sentinel.port}/{SERVICE}/0?sentinel-password={SENTINEL_PASSWORD}"
    cluster = make_cluster(f"high-availability.redis.url={url}", "high-availability.lease=1s")
    waiting = WaitingJob.start(cluster, tmp_path, text=PAUSED)
    attempts = [attempt["attempt_id"] for attempt in cluster.job(waiting.job_id)["tasks"][0]["attempts"]]
    await_replicated(first, replica)
    first.kill()
    await_value(replica.is_master)
    await_value(lambda: {"dispatcher", "resourcemanager"} <= set(cluster.leaders()))
    cluster.await_status(waiting.job_id, "RUNNING")
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert [attempt["attempt_id"] for attempt in job["tasks"][0]["attempts"]] == attempts
    assert cluster.run("job", "run", str(write_job(tmp_path, PRINTING, "after.py"))).stdout == "sum 499500\n"
    assert PASSWORD not in cluster.logs()
