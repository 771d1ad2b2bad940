"""All that the command line answers as JSON on one real cluster, held against its schema; and how jobs are named.

At the end the cluster is stopped while a client waits for its job.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster_harness import Cluster, await_value
from tests.integration.test_attached_job import BEGUN, begin, output_of
from tests.integration.test_attached_job import run as attached
from tests.job_files import FAILING, write_job
from tests.json_output import parsed
from tests.streaming_rows import STREAM, Source
from tests.waiting import PATIENCE_S


def test_every_answer_is_as_its_schema_says_and_jobs_are_found_by_prefix_name_and_latest(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, source = own_cluster, Source(tmp_path / "in")
    started = cluster.json("start")
    assert (started["task_executors"], started["directory"]) == (1, str(cluster.directory))
    joined = cluster.json("start-master")
    assert joined["cluster_id"] == started["cluster_id"]

    source.write(3)
    script = write_job(tmp_path, STREAM, "stream.py")
    arguments = (str(source.directory), str(tmp_path / "out"), str(tmp_path / "live"))
    submitted = cluster.run("job", "run", "--detach", "--json", str(script), "--", *arguments)
    job = parsed(("job", "run"), submitted.stdout)
    job_id = job["job_id"]
    assert job["web_page"].endswith(f"/#/jobs/{job_id}")
    assert f"web page: {job['web_page']}\n" in submitted.stderr
    cluster.await_status(job_id, "RUNNING")
    await_value(lambda: cluster.job(job_id)["streams"])

    for reference in (job_id, job_id[:6], "stream", "latest"):
        assert cluster.json("job", "info", reference)["job_id"] == job_id
    # A job whose JobMaster is slow to answer is listed as RECONCILING.
    (line,) = await_value(lambda: cluster.json("job", "list", "--state", "RUNNING", "--name", "str*"))
    assert (line["job_id"], line["streams"], line["kind"]) == (job_id, True, "script")
    assert line["submitter"] == cluster.job(job_id)["submitter"] != ""
    assert cluster.json("job", "list", "--submitter", "nobody else") == []

    taken = cluster.json("job", "checkpoint", "stream")
    assert (taken["state"], taken["checkpoint_id"]) == ("COMPLETED", 1)
    saved = cluster.json("job", "savepoint", job_id[:6], str(tmp_path / "savepoints"))
    cluster.json("job", "rollback", "latest", "--to", saved["path"])
    await_value(lambda: cluster.job(job_id)["checkpoints"]["latest_restored"])
    cluster.await_status(job_id, "RUNNING")
    await_value(lambda: cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"])
    stopped = cluster.json("job", "stop", "stream", "--savepoint", str(tmp_path / "savepoints"))
    assert stopped["state"] == "COMPLETED"
    for words in (("job", "info"), ("job", "logs")):  # of a job that is over, too
        assert cluster.json(*words, "stream")
    figures = cluster.json("job", "info", job_id[:6])["checkpoints"]
    assert figures["latest_savepoint"]["path"] == stopped["path"]
    assert figures["latest_completed"]["state"] == "COMPLETED"

    failed = cluster.run("job", "run", "--json", str(write_job(tmp_path, FAILING, "failing.py")), check=False)
    assert parsed(("job", "run"), failed.stdout)["state"] == "FAILED"
    assert cluster.json("job", "exceptions", "latest")["failures"][0]["type"] == "ZeroDivisionError"
    unknown = cluster.run("job", "info", "streem", check=False)
    assert unknown.returncode == 1
    assert "no job has the id or name 'streem'; there is: " in unknown.stderr
    assert f"{job_id[:8]} (stream, FINISHED, " in unknown.stderr

    status = cluster.json("status")
    assert len(status["cluster"]["masters"]) == 2
    assert {job["state"] for job in status["jobs"]} == {"FINISHED", "FAILED"}

    # Whoever waits for a job when the cluster is stopped is told so by the exit status, and whoever submits one then.
    file, gate = begin(tmp_path)
    with attached(cluster, file, gate) as process:
        assert output_of(process).readline() == BEGUN
        assert cluster.json("stop")["stopped"]
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 69, errors
    again = cluster.run("job", "run", str(file), "--", gate, check=False)
    assert again.returncode == 69
    assert "remedy: " in again.stderr
