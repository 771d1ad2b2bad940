"""Jobs whose state gets another number of partitions: the file sink has the rows of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.options import StateBackend
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.names import savepoint_name
from runtime.checkpoint.savepoint import read_savepoint
from runtime.cluster.documents import RescaledJob
from runtime.ids import JobID, TriggerID
from runtime.notebook import Job
from runtime.taskexecutor.spark_options import state_backend_properties
from tests.cluster_harness import Cluster, attempt_of, await_value
from tests.job_files import write_job
from tests.json_output import parsed
from tests.rest_client import RestClient
from tests.streaming_rows import STREAM, Source, partitions_of, rows_of, rows_so_far


@pytest.fixture(scope="module")
def rocksdb(cluster: Cluster) -> Cluster:
    """The cluster of all, where the queries of this file have state that can be rescaled, and checkpoint often."""
    return cluster.with_settings(
        *(f"{key}={value}" for key, value in state_backend_properties(StateBackend.ROCKSDB).items()),
        "execution.checkpointing.interval=1s",
        "spark.sql.session.timeZone=UTC",
    )


def committed(location: Path) -> int:
    return last_commit(f"commits/{name}" for name in list_names(location / "commits"))


@pytest.mark.slow  # the test below does so with its own savepoint
def test_a_job_goes_on_from_a_savepoint_with_other_partitions(rocksdb: Cluster, tmp_path: Path) -> None:
    cluster, source, sink, live = rocksdb, Source(tmp_path / "in"), tmp_path / "out", tmp_path / "live"
    arguments = str(write_job(tmp_path, STREAM, "stream.py")), "--", str(source.directory), str(sink), str(live)
    source.write(3)
    first = cluster.run("job", "run", "--detach", *arguments).stdout.strip()
    await_value(lambda: committed(live) >= 2)
    savepoint = cluster.run("job", "stop", "--savepoint", str(tmp_path / "savepoints"), first).stdout.strip()
    batch = read_savepoint(Path(savepoint)).queries[0].snapshot.batch_id
    assert partitions_of(live, batch + 1) == [0, 1]

    jobs = len(cluster.json("job", "list"))
    refused = cluster.run("job", "run", "--from", savepoint, "--partitions", "0", *arguments, check=False)
    assert (refused.returncode, "0 is not in the range x>=1" in refused.stderr) == (64, True)
    assert len(cluster.json("job", "list")) == jobs
    assert [path.name for path in (tmp_path / "savepoints").iterdir()] == [Path(savepoint).name]

    target = f"{savepoint}-5-partitions"
    words = "savepoint", "rescale", "--json", "--partitions", "5", "--to", target, savepoint
    done = subprocess.run([sys.executable, "-m", "runtime.cluster", *words], capture_output=True, text=True, check=True)
    printed = parsed(words, done.stdout)
    assert (printed["path"], printed["rescaled"]["path"], printed["rescaled"]["partitions"]) == (target, savepoint, 5)
    assert read_savepoint(Path(target)).rescaled is not None

    # It is where `job run` would put it; tests/unit/test_job_rescale.py has what happens where it is not there.
    resumed = cluster.run("job", "run", "--detach", "--from", savepoint, "--partitions", "5", *arguments)
    assert f"{target} has 5 partitions: the job starts from it as it is\n" in resumed.stderr
    source.write(3)
    await_value(lambda: committed(live) > batch + 2)
    source.close()
    await_value(lambda: rows_so_far(sink).total() >= source.expected.total())
    assert rows_of(sink) == source.expected
    assert partitions_of(live, batch + 3) == [0, 1, 2, 3, 4]
    restored = cluster.job(resumed.stdout.strip())["checkpoints"]["latest_restored"]
    assert restored["path"] == target
    cluster.run("job", "cancel", resumed.stdout.strip())


def test_a_running_job_gets_other_partitions_and_its_former_ones_again(rocksdb: Cluster, tmp_path: Path) -> None:
    """By the command and from Python; batches between a savepoint and the rescale are done once more."""
    cluster, source, sink, live = rocksdb, Source(tmp_path / "in"), tmp_path / "out", tmp_path / "live"
    source.write(3)
    job_id = cluster.submit(write_job(tmp_path, STREAM, "stream.py"), str(source.directory), str(sink), str(live))
    await_value(lambda: committed(live) >= 2)

    def begun(name: str) -> tuple[subprocess.Popen[str], Path]:
        """Begin to rescale, up to the savepoint."""
        words = "job", "rescale", "--savepoint", str(tmp_path / name), "--json", "--partitions", "5", job_id
        process = subprocess.Popen(cluster.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return process, await_value(lambda: next((tmp_path / name).glob("savepoint-*"), None))

    def goes_on_with(done: RescaledJob, partitions: int, repeated: int = 0) -> None:
        """The tasks restart from a savepoint, repeat batches, and further ones have so many partitions."""
        await_value(lambda: restored_from(cluster, job_id) == done.savepoint)
        before = read_savepoint(Path(done.savepoint)).queries[0].snapshot.batch_id
        source.write(2)
        await_value(lambda: committed(live) > before + repeated + 2)
        await_value(lambda: partitions_of(live, committed(live) + 1) == list(range(partitions)))

    words = "job", "rescale", "--savepoint", str(tmp_path / "refused"), "--partitions", "2"
    refused = cluster.run(*words, job_id, check=False)
    assert (refused.returncode, "its state has 2 partitions already" in refused.stderr) == (1, True)
    assert list((tmp_path / "refused").iterdir()) == []
    refused = cluster.run("job", "rescale", "--undo", job_id, check=False)
    assert (refused.returncode, f"job {job_id} was not rescaled" in refused.stderr) == (1, True)

    killed, _ = begun("killed")
    with killed:
        killed.kill()
    assert (cluster.job(job_id)["state"], restored_from(cluster, job_id)) == ("RUNNING", None)

    rescaling, taken = begun("savepoints")
    with rescaling:
        rescaling.send_signal(signal.SIGSTOP)
        batch = read_savepoint(taken).queries[0].snapshot.batch_id
        source.write(3)
        await_value(lambda: committed(live) >= batch + 3)  # these are done once more
        rescaling.send_signal(signal.SIGCONT)
        output, errors = rescaling.communicate()
    assert rescaling.returncode == 0, errors
    answer = parsed(("job", "rescale"), output)
    rescaled = RescaledJob(job_id, 5, answer["savepoint"], str(taken))
    assert (answer["job_id"], answer["partitions"], answer["original"]) == (job_id, 5, str(taken))
    goes_on_with(rescaled, 5, repeated=3)

    # Batches were committed since: what they did stays, and only the number of partitions is the former one.
    with cluster.client() as client:
        job: Job[Any] = Job(client, JobID(job_id))
        undone = asyncio.run(undone_in_a_loop(job, tmp_path / "undone"))
    assert (undone.job_id, undone.partitions, Path(undone.original).parent) == (job_id, 2, tmp_path / "undone")
    before, after = (read_savepoint(Path(one.original)).queries[0].snapshot for one in (rescaled, undone))
    assert after.batch_id > before.batch_id
    await_value(lambda: restored_from(cluster, job_id) == undone.savepoint)

    # No batch was committed since: the job goes back to the former savepoint itself, and so to 5.
    words = "job", "rescale", "--undo", "--json"
    answer = parsed(words, cluster.run(*words, job_id).stdout)
    back = RescaledJob(job_id, answer["partitions"], answer["savepoint"], answer["original"])
    assert back == RescaledJob(job_id, 5, undone.original, undone.savepoint)
    goes_on_with(back, 5)

    source.close()
    await_value(lambda: rows_so_far(sink) == source.expected)
    cluster.run("job", "cancel", job_id)
    assert rows_of(sink) == source.expected


@pytest.mark.slow
def test_the_cluster_rescales_a_job_in_a_slot(rocksdb: Cluster, tmp_path: Path) -> None:
    """By REST and by the command; a repeated request is one, and refused, killed or cancelled ones change nothing."""
    cluster, source, sink, live = rocksdb, Source(tmp_path / "in"), tmp_path / "out", tmp_path / "live"
    rest, directory = RestClient.of(cluster), tmp_path / "savepoints"
    source.write(3)
    job_id = cluster.submit(write_job(tmp_path, STREAM, "stream.py"), str(source.directory), str(sink), str(live))
    await_value(lambda: committed(live) >= 2)

    def asked(partitions: int) -> tuple[str, str]:
        """Ask for a rescale; return its trigger id, and the job that does it."""
        body = {"partitions": partitions, "targetDirectory": str(directory), "triggerId": TriggerID.random()}
        told = [rest.ask("POST", f"/v1/jobs/{job_id}/rescales", json.dumps(body).encode()) for _ in range(2)]
        assert [one.status for one in told] == [202, 202]
        assert told[0].json == told[1].json
        return told[0].json["request-id"], told[0].json["rescale-job"]

    def ended(trigger_id: str) -> dict[str, Any]:
        status = await_value(
            lambda: next(
                (
                    told
                    for told in [rest.get(f"/v1/jobs/{job_id}/rescales/{trigger_id}")]
                    if told["status"]["id"] == "COMPLETED"
                ),
                None,
            )
        )
        return dict(status["operation"])

    trigger_id, doing = asked(5)
    done = ended(trigger_id)
    location = directory / f"{savepoint_name(job_id, trigger_id)}-5-partitions"
    assert done == {"location": f"file:{location}"}
    assert cluster.await_status(doing, "FINISHED")["name"] == "rescale stream to 5 partitions"
    await_value(lambda: restored_from(cluster, job_id) == str(location))
    batch = read_savepoint(location).queries[0].snapshot.batch_id
    source.write(3)
    await_value(lambda: committed(live) > batch + 2)
    await_value(lambda: partitions_of(live, committed(live) + 1) == [0, 1, 2, 3, 4])

    requirements = rest.get(f"/v1/jobs/{job_id}/resource-requirements")
    assert list(requirements.values()) == [{"parallelism": {"lowerBound": 1, "upperBound": 5}}]
    unchanged = rest.ask("PUT", f"/v1/jobs/{job_id}/resource-requirements", json.dumps(requirements).encode())
    assert (unchanged.status, unchanged.json) == (200, {})

    words = "job", "rescale", "--detach", "--savepoint", str(tmp_path / "refused"), "--partitions", "5", job_id
    refused = cluster.await_status(cluster.run(*words).stdout.strip(), "FAILED")
    assert "its state has 5 partitions already" in refused["failure"]["message"]
    assert list((tmp_path / "refused").iterdir()) == []

    killed, doing = asked(3)
    await_value((directory / savepoint_name(job_id, killed)).is_dir)
    (bounds,) = requirements.values()
    bounds["parallelism"]["upperBound"] = 4
    second = rest.ask("PUT", f"/v1/jobs/{job_id}/resource-requirements", json.dumps(requirements).encode())
    assert (second.status, f"job {doing} rescales job {job_id} already" in second.json["errors"][0]) == (409, True)
    os.kill(next(pid for pid in cluster.processes() if doing in attempt_of(pid)), signal.SIGKILL)
    assert "has not succeeded" in ended(killed)["failure-cause"]["stack-trace"]
    with cluster.client() as client:
        client.job(JobID(job_id))  # it is connected before
        cancelled, doing = asked(3)
        await_value((directory / savepoint_name(job_id, cancelled)).is_dir)
        client.cancel(JobID(doing))
    assert "CANCELED" in ended(cancelled)["failure-cause"]["stack-trace"]
    assert (cluster.job(job_id)["state"], restored_from(cluster, job_id)) == ("RUNNING", str(location))

    source.close()
    await_value(lambda: rows_so_far(sink) == source.expected)
    cluster.run("job", "cancel", job_id)
    assert rows_of(sink) == source.expected
    history = rest.get(f"/v1/jobs/{job_id}/rescales/history")  # of an ended job
    assert [(one["partitions"], one["terminalState"], one["requestedBy"]) for one in history] == [
        (3, "FAILED", "USER"),
        (3, "FAILED", "USER"),
        (5, "FAILED", "USER"),
        (5, "COMPLETED", "USER"),
    ]
    assert (list(history[3]["partitionsBefore"].values()), history[3]["location"]) == ([2], f"file:{location}")
    assert "has 5 partitions already" in history[2]["failure"]


async def undone_in_a_loop(job: Job[Any], directory: Path) -> RescaledJob:
    """As in a notebook, whose main thread runs an event loop."""
    return job.undo_rescale(directory=directory)


def restored_from(cluster: Cluster, job_id: str) -> str | None:
    restored: dict[str, str] | None = cluster.job(job_id)["checkpoints"]["latest_restored"]
    return None if restored is None else restored["path"]
