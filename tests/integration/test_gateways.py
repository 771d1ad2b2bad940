"""The components' gateways on a real cluster: what the command line does not ask for, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blob.client import BlobClient
from blob.key import BlobKey
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobNotFoundError, NoSuchLogError, NoSuchTaskError, UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.resource_manager import ResourceManagerGateway
from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import FAILING, TRIVIAL, write_job
from tests.waiting import PATIENCE_S

WORKER = ResourceID("taskmanager-0")

# Holds its slot until the file is there, and uses no Spark, which others may keep busy.
HOLDING = """\
import sys, time
from pathlib import Path

while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def test_the_dispatcher_tells_of_jobs_until_their_end_and_after_it(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.client() as client:
        dispatcher = client.lookup("dispatcher", DispatcherGateway)
        failing = JobID(cluster.submit(write_job(tmp_path, FAILING)))
        failed = client.result(failing)
        assert failed.status is ApplicationStatus.FAILED
        assert failed.failure is not None
        assert failed.failure.type == "ZeroDivisionError"
        assert failed.failure_counts == {"user-code": 1}
        waiting = WaitingJob.start(cluster, tmp_path)
        job_id = JobID(waiting.job_id)
        assert {failing, job_id} <= set(dispatcher.list_jobs().result())
        overview = client.overview()
        assert overview.jobs_running >= 1
        assert overview.jobs_failed >= 1

        def states() -> dict[JobID, JobStatus]:
            return {job.job_id: job.status for job in dispatcher.request_multiple_job_details().result().jobs}

        await_value(lambda: states()[job_id] is JobStatus.RUNNING)  # RECONCILING where its JobMaster is slow to answer
        assert states()[failing] is JobStatus.FAILED
        result = dispatcher.request_job_result(job_id)
        waiting.release()
        finished = result.result(PATIENCE_S) or client.result(job_id)
        assert finished.status is ApplicationStatus.SUCCEEDED
        assert finished.net_runtime_ms > 0
        assert finished.failure is None
        assert dispatcher.get_blob_server_port().result() == dispatcher.get_blob_server().result().port
        with pytest.raises(JobNotFoundError):
            dispatcher.request_job_result(JobID.random()).result()


def test_a_task_executor_is_looked_into_while_a_task_runs(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    attempt_id = ExecutionAttemptID(cluster.job(waiting.job_id)["tasks"][0]["attempts"][-1]["attempt_id"])
    secret = (cluster.directory / "secret").read_bytes().strip()
    with cluster.client() as client:
        manager = client.lookup("resourcemanager", ResourceManagerGateway)
        info = await_value(
            lambda: (
                (found := manager.request_task_manager_info(WORKER).result())
                and found.metrics is not None
                and found.metrics.tasks == 1
                and found.metrics.jvm
                and [status.job_id for status in found.allocations if status.allocation_id] == [waiting.job_id]
                and found
            )
        )
        assert info.registration.resource_id == WORKER
        assert info.slots.registered == len(info.allocations) == 2
        assert info.slots.allocated == 1
        used, committed, most = (info.metrics.jvm[f"Memory.Heap.{part}"] for part in ("Used", "Committed", "Max"))
        assert 0 < used <= committed <= most <= info.registration.memory_bytes
        assert min(info.metrics.memory_bytes, info.metrics.spark_memory_bytes, info.metrics.open_files) > 0
        with pytest.raises(UnknownTaskExecutorError):
            manager.request_task_manager_info(ResourceID("nobody")).result()

        log = manager.request_task_manager_file_upload(WORKER, "taskexecutor").result(PATIENCE_S)
        blob = client.lookup("dispatcher", DispatcherGateway).get_blob_server().result()
        with BlobClient((blob.host, blob.port), secret) as blobs:
            assert b"registered at the ResourceManager" in blobs.get_bytes(BlobKey.parse(log.blob_key))
        with pytest.raises(NoSuchLogError):
            manager.request_task_manager_file_upload(WORKER, "../../secret").result(PATIENCE_S)

        own = client.thread_dump(WORKER)
        assert own.pid == info.registration.pid
        assert own.threads[0].name == "MainThread"
        of_task = client.thread_dump(WORKER, attempt_id)
        assert of_task.pid != own.pid
        assert re.search(r'File ".*job\.py", line \d+, in <module>', of_task.threads[0].stack)
        with pytest.raises(NoSuchTaskError):
            client.thread_dump(WORKER, ExecutionAttemptID.random())
    waiting.release()
    cluster.await_status(waiting.job_id, "FINISHED")


def test_a_job_of_a_higher_priority_gets_the_next_slot(cluster: Cluster, tmp_path: Path) -> None:
    holders = [WaitingJob.start(cluster, tmp_path, name) for name in ("one", "two")]
    gate, file = tmp_path / "gate", write_job(tmp_path, HOLDING, "holding.py")
    ordinary, urgent = (cluster.submit(file, str(gate), options=("--priority", priority)) for priority in ("0", "5"))
    for job_id in (ordinary, urgent):
        await_value(lambda job_id=job_id: "1 slot for task" in cluster.job(job_id)["tasks"][0]["waiting_for"])
    holders[0].release()
    await_value(lambda: cluster.job(urgent)["tasks"][0]["attempts"][0]["task_executor"] == WORKER)
    assert cluster.job(ordinary)["tasks"][0]["attempts"][0]["task_executor"] == "", "both slots are held"
    holders[1].release()
    gate.touch()
    for job_id in (urgent, ordinary, *(holder.job_id for holder in holders)):
        cluster.await_status(job_id, "FINISHED")


@pytest.mark.slow  # test_elastic has such workers
def test_a_worker_comes_and_goes_with_the_work_until_the_dispatcher_shuts_the_cluster_down(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = Cluster(own_cluster.directory, ("resourcemanager.taskmanager-timeout=5s",))
    cluster.run("start")
    with cluster.client() as client:
        await_value(lambda: client.overview().task_managers == 0)
        await_value(lambda: [process.name for process in client.status().processes if process.is_stopped] == [WORKER])
        assert cluster.run("job", "run", str(write_job(tmp_path, "print('ran')\n"))).stdout == "ran\n"

        manager = client.lookup("resourcemanager", ResourceManagerGateway)
        for _ in range(2):
            manager.deregister_application(ApplicationStatus.SUCCEEDED, "the machine is being maintained").result()
        refused = client.result(JobID(cluster.submit(write_job(tmp_path, TRIVIAL))))
        assert refused.failure is not None
        assert refused.failure.message == "the machine is being maintained"
        assert refused.failure_counts == {"no-resource": 1}
        client.lookup("dispatcher", DispatcherGateway).shut_down_cluster().result()
    await_value(lambda: not cluster.processes())
    assert not (cluster.directory / "cluster.json").exists()
