"""Checkpoints and savepoints of a streaming job: every part of the cluster is killed, and no row is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.files import list_names, path_of
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.savepoint import read_savepoint
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import OperationState
from tests.cluster_harness import ROOT, Cluster, await_value, paths_below
from tests.flights import expected_arrivals, written_arrivals
from tests.job_files import write_job
from tests.json_output import parsed
from tests.rest_client import Reply, RestClient
from tests.streaming_rows import STREAM, Source, files_of, files_so_far, rows_of, rows_so_far

# A second query beside that of STREAM.
KEYS = """\
keys = rows.groupBy('key').count().writeStream.queryName('keys').format('noop').outputMode('update')
keys.option('checkpointLocation', location + '-keys').start()
"""

# On Spark Connect, with neither a name nor a location: it has nothing but what the job gives it.
PIPELINE = """\
from runtime.api import Parameter, Pipeline, parse_parameters

def read(ctx):
    ctx.spark.conf.set("spark.sql.shuffle.partitions", 2)
    return ctx.spark.readStream.schema("at TIMESTAMP, key STRING").json(ctx.parameters["source"])

def write(ctx, rows):
    writer = rows.groupBy("key").count().writeStream.format("noop").outputMode("update")
    writer.trigger(processingTime="200 milliseconds").start().awaitTermination()

def pipeline(argv):
    p = Pipeline("unnamed-stream", parse_parameters(argv, Parameter("source")))
    p.source("read", read).sink("write", write)
    return p
"""

RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


@pytest.fixture(scope="module")
def checkpointed(cluster: Cluster) -> Cluster:
    """The cluster of all, where the jobs of this file checkpoint often and restart at once."""
    return cluster.with_settings(
        "execution.checkpointing.interval=1s",
        "execution.checkpointing.num-retained=2",
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=20",
        "restart-strategy.fixed-delay.delay=200ms",
        "spark.sql.session.timeZone=UTC",
    )


def attempts(cluster: Cluster, job_id: str) -> int:
    return int(cluster.job(job_id)["tasks"][0]["attempts"][-1]["number"])


def await_checkpoints(cluster: Cluster, job_id: str, more: int = 1) -> dict[str, Any]:
    """Wait until as many more checkpoints are complete."""
    latest = lambda: (cluster.job(job_id)["checkpoints"]["latest_completed"] or {"id": 0})["id"]  # noqa: E731
    before = latest()
    await_value(lambda: latest() >= before + more)
    figures: dict[str, Any] = cluster.job(job_id)["checkpoints"]
    return figures


def kill_and_await_restart(cluster: Cluster, job_id: str, pid: int) -> None:
    before = attempts(cluster, job_id)
    os.kill(pid, signal.SIGKILL)
    await_value(lambda: attempts(cluster, job_id) > before)
    cluster.await_status(job_id, "RUNNING")


def test_a_stream_that_is_killed_stopped_restored_and_rolled_back_loses_and_doubles_no_row(
    checkpointed: Cluster, tmp_path: Path
) -> None:
    cluster, source, sink = checkpointed, Source(tmp_path / "in"), tmp_path / "out"
    script = write_job(tmp_path, STREAM, "stream.py")
    source.write(3)
    job_id = cluster.submit(script, str(source.directory), str(sink), str(tmp_path / "live"))
    cluster.await_status(job_id, "RUNNING")
    figures = await_checkpoints(cluster, job_id, 2)
    counts = figures["counts"]
    assert counts["total"] == counts["completed"] + counts["failed"] + counts["in_progress"]
    assert len(list((cluster.directory / "checkpoints" / job_id).glob("chk-*"))) >= 1

    # The task process, the JobMaster: the job goes on from where it was. `tests.faults.exactly_once` kills the rest.
    (task,) = cluster.tasks_of(job_id)
    kill_and_await_restart(cluster, job_id, task)
    source.write(3)
    before = await_checkpoints(cluster, job_id)["latest_completed"]["id"]
    restored = cluster.job(job_id)["checkpoints"]["counts"]["restored"]
    assert restored >= 1
    number = attempts(cluster, job_id)
    os.kill(cluster.pid_of(f"jobmaster-{job_id}"), signal.SIGKILL)
    known = lambda: cluster.job(job_id)["checkpoints"]["latest_completed"]  # noqa: E731
    assert await_value(known)["id"] >= before, "the successor knows what was stored"
    cluster.await_status(job_id, "RUNNING")
    counts = await_checkpoints(cluster, job_id)["counts"]
    assert (counts["restored"], attempts(cluster, job_id)) == (restored, number), "the task has gone on"

    # The same request twice is one savepoint, also for a JobMaster that does not know of the first time.
    trigger = TriggerID.random()
    with cluster.client() as client:
        first = client.trigger_savepoint(JobID(job_id), tmp_path / "savepoints", trigger)
        assert first.state is OperationState.COMPLETED, first.error
        os.kill(cluster.pid_of(f"jobmaster-{job_id}"), signal.SIGKILL)
        again = client.trigger_savepoint(JobID(job_id), tmp_path / "savepoints", trigger)
    assert (again.state, again.path) == (OperationState.COMPLETED, first.path)
    assert [str(path) for path in (tmp_path / "savepoints").iterdir()] == [first.path]

    # Back to it while the job runs, and then to a checkpoint: what came after is done once more. What is none of the
    # job's own changes nothing.
    source.write(3)
    await_checkpoints(cluster, job_id)
    refused = cluster.run("job", "rollback", "--to", "chk-999999", job_id, check=False)
    assert (refused.returncode, "has no checkpoint chk-999999: it has chk-" in refused.stderr) == (1, True)
    number = attempts(cluster, job_id)
    cluster.run("job", "rollback", "--to", first.path, "--new-query-id", job_id)
    restored_path = lambda: (cluster.job(job_id)["checkpoints"]["latest_restored"] or {}).get("path")  # noqa: E731
    await_value(lambda: restored_path() == first.path)
    assert attempts(cluster, job_id) > number
    await_checkpoints(cluster, job_id)

    def back_to_the_latest() -> bool:
        with cluster.client() as client:
            latest = client.checkpoint_statistics(JobID(job_id)).latest_completed
            try:
                client.roll_back(JobID(job_id), f"chk-{latest.id}" if latest else "none")
            except CheckpointError:
                return False  # it was subsumed meanwhile
            return True

    await_value(back_to_the_latest)
    await_value(lambda: Path(restored_path() or "").name.startswith("chk-"))
    await_checkpoints(cluster, job_id)

    # Stopped with a savepoint, and begun again from it by another job, at a location of that job's own.
    source.write(3)
    cluster.await_status(job_id, "RUNNING")
    stopped = cluster.run("job", "stop", "--savepoint", str(tmp_path / "stopped"), "--drain", job_id)
    assert f"job {job_id} is FINISHED" in stopped.stderr
    assert not (cluster.directory / "checkpoints" / job_id).exists(), "what was the job's own goes with it"
    options = ("--from", stopped.stdout.strip())
    second = cluster.submit(script, str(source.directory), str(sink), "", options=options)
    cluster.await_status(second, "RUNNING")
    restored_from = lambda: cluster.job(second)["checkpoints"]["latest_restored"]  # noqa: E731
    assert await_value(restored_from)["is_savepoint"], "a job is RUNNING before its task is deployed"
    source.write(2)
    await_checkpoints(cluster, second)
    source.close()
    await_value(lambda: rows_so_far(sink).total() >= source.expected.total())
    assert rows_of(sink) == source.expected
    cluster.run("job", "cancel", second)
    done_once = set(files_of(sink))

    # Rolled back to the first savepoint, in place: everything after it is done again, and nothing is there twice.
    options = ("--from", first.path, "-D", f"{RETENTION}=RETAIN_ON_CANCELLATION")
    third = cluster.submit(script, str(source.directory), str(sink), str(tmp_path / "live"), options=options)
    cluster.await_status(third, "RUNNING")
    await_value(lambda: set(files_so_far(sink)) - done_once and rows_so_far(sink).total() >= source.expected.total())
    assert rows_of(sink) == source.expected
    latest = await_checkpoints(cluster, third)["latest_completed"]
    cluster.run("job", "cancel", third)

    # Its checkpoints outlive it, and another job begins from the latest, by the name of the job.
    kept = [path.name for path in (cluster.directory / "checkpoints" / third).iterdir()]
    assert max(int(name.removeprefix("chk-")) for name in kept) >= latest["id"]
    fourth = cluster.submit(script, str(source.directory), str(sink), "", options=("--from", third))
    await_checkpoints(cluster, fourth)
    began = cluster.job(fourth)["checkpoints"]["latest_restored"]
    assert (began["is_savepoint"], Path(began["path"]).parent.name) == (False, third)
    # That checkpoint may be of the batch before the last windows were closed; a query that is started again closes them
    # only with the next data (Spark).
    source.close()
    await_value(lambda: rows_so_far(sink) == source.expected)
    cluster.run("job", "cancel", fourth)
    assert not (cluster.directory / "checkpoints" / fourth).exists(), "none outlives its job unless that is set"


@pytest.mark.slow  # test_upgraded_jobs has a version that does not fit
def test_a_changed_job_is_told_whether_it_fits_and_nothing_is_touched(checkpointed: Cluster, tmp_path: Path) -> None:
    cluster, source = checkpointed, Source(tmp_path / "in")
    source.write(1)
    arguments = str(source.directory), str(tmp_path / "out"), str(tmp_path / "live")
    two = STREAM.replace("writer.start(sink)", f"{KEYS}writer.start(sink)")
    job_id = cluster.submit(write_job(tmp_path, two, "two.py"), *arguments)
    cluster.await_status(job_id, "RUNNING")
    await_value(lambda: all((Path(f"{arguments[2]}{keys}") / "commits" / "0").exists() for keys in ("", "-keys")))
    savepoint = cluster.run("job", "stop", job_id).stdout.strip()

    # Another name of one query.
    renamed = write_job(tmp_path, two.replace('queryName("counts")', 'queryName("other")'), "renamed.py")
    once = ("-D", "restart-strategy.type=none", "--from", savepoint)
    refused = cluster.run("job", "run", *once, str(renamed), "--", *arguments, check=False)
    assert refused.returncode == 1
    assert "holds no state of query 'other', but of 'counts'" in refused.stderr
    missing = cluster.run("job", "run", "--from", str(tmp_path), str(renamed), "--", *arguments, check=False)
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    failed = cluster.run("job", "savepoint", job_id, check=False)
    assert "FINISHED already" in failed.stderr

    # Another key of the other one, and a third; what comes after the wait is not run.
    changed = two.replace("groupBy('key')", "groupBy(F.length('key').alias('key'))").replace(
        "writer.start(sink).awaitTermination()",
        "rows.writeStream.queryName('third').foreachBatch(lambda frame, batch: 1 / 0).start()\n"
        "writer.start(sink).awaitTermination()\nraise RuntimeError('it waited')",
    )
    file = write_job(tmp_path, changed, "changed.py")
    before = {path: path.stat().st_mtime_ns for path in paths_below(tmp_path)}
    done = cluster.run("job", "check", "--from", savepoint, "--json", str(file), "--", *arguments, check=False)
    assert done.returncode == 1, done.stderr
    assert {path: path.stat().st_mtime_ns for path in paths_below(tmp_path)} == before
    verdicts = {verdict["query"]: verdict for verdict in parsed(("job", "check"), done.stdout)}
    assert {query: verdicts[query]["fit"] for query in ("counts", "keys")} == {"counts": "fits", "keys": "does not fit"}
    assert "was string and is integer" in " ".join(verdicts["keys"]["reasons"])
    assert verdicts["third"]["notes"] == ["it is new, and begins without state"]
    unknown = cluster.run("job", "check", "--from", "0" * 32, str(file), check=False)
    assert (unknown.returncode, "there is no checkpoint" in unknown.stderr) == (1, True)


@pytest.mark.slow
def test_a_query_on_connect_without_a_location_goes_on_where_it_was(checkpointed: Cluster, tmp_path: Path) -> None:
    cluster, source = checkpointed, Source(tmp_path / "in")

    def batch() -> int:
        queries = cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"]
        return -1 if not queries or queries[0]["batch"] is None else int(queries[0]["batch"])

    source.write(1)
    job_id = cluster.submit(write_job(tmp_path, PIPELINE), f"--source={source.directory}")
    await_value(lambda: batch() >= 0)
    source.write(1)
    await_value(lambda: batch() >= 1)
    before = cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"][0]
    (task,) = cluster.tasks_of(job_id)
    kill_and_await_restart(cluster, job_id, task)
    source.write(1)
    await_value(lambda: batch() > before["batch"])
    after = cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"][0]
    assert (after["id"], after["run_id"] != before["run_id"]) == (before["id"], True), "it is the same query"
    savepoint = Path(cluster.run("job", "stop", job_id).stdout.strip())
    assert cluster.job(job_id)["state"] == "FINISHED"
    assert [query.snapshot.name for query in read_savepoint(savepoint).queries] == ["query-0"]
    file = str(write_job(tmp_path, PIPELINE))
    checked = cluster.run("job", "check", "--from", str(savepoint), file, "--", f"--source={source.directory}")
    assert checked.stdout.splitlines()[0] == "query-0: fits"


@pytest.mark.slow  # test_examples upgrades a stream, too
def test_the_replayed_flights_equal_a_batch_over_all_of_them(checkpointed: Cluster, tmp_path: Path) -> None:
    cluster, out, script = checkpointed, tmp_path / "out", ROOT / "examples" / "flight_stream.py"
    committed = lambda: last_commit(f"commits/{name}" for name in list_names(out / "checkpoint" / "commits"))  # noqa: E731
    job_id = cluster.submit(script, "--out", str(out))  # hundreds of batches, of which only the first ones are awaited
    await_value(lambda: committed() >= 2)
    with cluster.client() as client:
        stopped = client.stop_with_savepoint(JobID(job_id), tmp_path / "savepoints")
    assert stopped.state is OperationState.COMPLETED, stopped.error
    assert stopped.path is not None
    (query,) = read_savepoint(Path(stopped.path)).queries
    assert query.snapshot.name == "arrivals"
    cluster.await_status(job_id, "FINISHED")
    expected = expected_arrivals(tmp_path)
    assert written_arrivals(files_of(out / "arrivals")) != expected, "it was stopped in the middle"

    arguments = "--out", str(out), "--days-per-batch", "90"
    done = cluster.run("job", "run", "--from", stopped.path, str(script), "--", *arguments)
    assert written_arrivals(files_of(out / "arrivals")) == expected
    assert f"{sum(row[2] for row in expected):,} arrivals counted" in done.stdout


def test_savepoints_and_a_stop_by_rest(checkpointed: Cluster, tmp_path: Path) -> None:
    cluster, source, rest = checkpointed, Source(tmp_path / "in"), RestClient.of(checkpointed)
    source.write(1)
    script = write_job(tmp_path, STREAM, "stream.py")
    job_id = cluster.submit(script, str(source.directory), str(tmp_path / "out"), str(tmp_path / "live"))
    cluster.await_status(job_id, "RUNNING")
    await_checkpoints(cluster, job_id)
    job = f"/v1/jobs/{job_id}"

    def post(target: str, body: dict[str, Any]) -> str:
        def look() -> Reply | None:
            reply = rest.ask("POST", target, json.dumps(body).encode())
            if reply.status == 503 and "triggerId" in body:
                return None  # while a JobMaster is being replaced; with its id the request may be made again
            assert reply.status in (200, 202), reply.body
            return reply

        return str(await_value(look).json["request-id"])

    def done(target: str) -> Any:
        def look() -> Any:
            reply = rest.ask("GET", target)
            assert reply.status in (200, 503), reply.body  # 503 while a JobMaster is being replaced
            return reply.status == 200 and reply.json["status"]["id"] == "COMPLETED" and reply.json

        return await_value(look)["operation"]

    # The same request twice is one savepoint, also where the JobMaster that had begun it is no more.
    request = {"target-directory": f"file://{tmp_path}/savepoints", "formatType": "CANONICAL", "triggerId": "c" * 32}
    assert post(f"{job}/savepoints", request) == "c" * 32
    os.kill(cluster.pid_of(f"jobmaster-{job_id}"), signal.SIGKILL)
    assert post(f"{job}/savepoints", request) == "c" * 32
    first = done(f"{job}/savepoints/{'c' * 32}")["location"]
    assert [f"file:{path}" for path in (tmp_path / "savepoints").iterdir()] == [first]
    assert [query.snapshot.name for query in read_savepoint(path_of(first)).queries] == ["counts"]
    within = rest.ask("POST", f"{job}/savepoints", json.dumps({"target-directory": str(cluster.directory)}).encode())
    assert (within.status, "own directories" in within.json["errors"][0]) == (400, True)

    number = done(f"{job}/checkpoints/{post(f'{job}/checkpoints', {'checkpointType': 'CONFIGURED'})}")["checkpointId"]
    latest = await_value(lambda: (now := rest.get(f"{job}/checkpoints")["latest"]["completed"])["id"] >= number and now)
    assert (latest["status"], latest["num_acknowledged_subtasks"]) == ("COMPLETED", 1)
    assert latest["state_size"] > 0
    assert rest.get(f"{job}/checkpoints/config")["mode"] == "exactly_once"
    ((vertex, part),) = latest["tasks"].items()
    assert (part["state_size"], part["num_acknowledged_subtasks"]) == (latest["state_size"], 1)

    stopped = done(f"{job}/savepoints/{post(f'{job}/stop', {'targetDirectory': None, 'drain': False})}")["location"]
    assert path_of(stopped).parent == cluster.directory / "savepoints"
    assert rest.get(job)["state"] == "FINISHED"
    figures = rest.get(f"{job}/checkpoints")
    assert figures["latest"]["savepoint"]["external_path"] == stopped
    kept = rest.get(f"{job}/checkpoints/details/{figures['latest']['savepoint']['id']}")
    assert kept["checkpoint_type"] == "SYNC_SAVEPOINT"
    details = rest.get(f"{job}/checkpoints/details/{kept['id']}/subtasks/{vertex}")
    assert [subtask["className"] for subtask in details["subtasks"]] == ["completed"]
    assert rest.ask("POST", f"{job}/savepoints", b"{}").status == 409

    assert done(f"/v1/savepoint-disposal/{post('/v1/savepoint-disposal', {'savepoint-path': first})}") == {}
    assert not path_of(first).exists()
    again = done(f"/v1/savepoint-disposal/{post('/v1/savepoint-disposal', {'savepoint-path': first})}")
    assert "there is no savepoint" in again["failure-cause"]["stack-trace"]
