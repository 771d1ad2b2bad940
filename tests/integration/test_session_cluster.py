"""The spine, as its users drive it: a session cluster of real processes, with jobs through every component."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runtime.client import ClusterClient
from runtime.cluster.output import SCHEMA
from runtime.ids import JobID
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.spark.driver.java import find_java
from tests.cluster_harness import ROOT, Cluster, WaitingJob, await_full_task_pool, await_value
from tests.job_files import FAILING, PIPELINE, TRIVIAL, WAITING, write_job
from tests.json_output import parsed
from tests.waiting import PATIENCE_S


def test_a_script_runs_and_its_output_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL)))
    assert done.stdout == "sum 499500\n"
    submitted = r"job [0-9a-f]{32} was submitted\n"
    page = r"web page: http://[^/?]+:\d+/#/jobs/[0-9a-f]{32}\n"
    assert re.fullmatch(submitted + page, done.stderr), "in a pipe there is no progress"


def test_a_pipeline_with_a_blocking_edge_runs_as_two_tasks(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cluster.run("job", "run", str(write_job(tmp_path, PIPELINE)), "--", "1000", str(out))
    assert "total 332833500" in done.stdout
    assert list(out.glob("*.parquet"))
    job = next(job for job in cluster.json("job", "list") if job["name"] == "squares")
    info = cluster.job(job["job_id"])
    assert [task["name"] for task in info["tasks"]] == ["numbers -> squares", "total -> write"]
    assert {vertex["state"] for vertex in info["vertices"]} == {"FINISHED"}
    assert not (cluster.directory / "jobs" / job["job_id"]).exists()


def test_a_failing_script_shows_the_users_own_traceback(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("job", "run", str(write_job(tmp_path, FAILING, "failing.py")), check=False)
    assert done.returncode == 1
    assert done.stdout == "before the failure\n"
    assert "FAILED: ZeroDivisionError: division by zero" in done.stderr
    assert 'File "failing.py", line 6, in rate' in done.stderr
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2, "frames of the runtime's own are of no use to the user"
    job_id = next(job["job_id"] for job in cluster.json("job", "list") if job["name"] == "failing")
    assert job_id in done.stderr
    assert cluster.job(job_id)["failure_counts"] == {"user-code": 1}
    failure = cluster.job(job_id)["failure"]
    assert (failure["kind"], failure["task"]) == ("user-code", "failing")
    assert failure["traceback"].startswith('Traceback (most recent call last):\n  File "failing.py"')


def test_two_jobs_run_at_once(cluster: Cluster, tmp_path: Path) -> None:
    jobs = [WaitingJob.start(cluster, tmp_path, name) for name in ("gate-a", "gate-b")]
    assert [cluster.job(job.job_id)["state"] for job in jobs] == ["RUNNING", "RUNNING"]
    for job in jobs:
        job.release()
    for job in jobs:
        cluster.await_status(job.job_id, "FINISHED")


def test_a_cancelled_job_leaves_nothing_running_in_spark(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id
    done = cluster.run("job", "cancel", job_id)
    assert "CANCELED" in done.stdout
    attempt = cluster.job(job_id)["tasks"][0]["attempts"][-1]
    assert attempt["state"] == "CANCELED"
    again = cluster.run("job", "cancel", job_id, check=False)
    assert again.returncode == 1
    assert "CANCELED already" in again.stderr
    # Its slot is free for the next one, and so are Spark's cores.
    assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL, "next.py"))).stdout == "sum 499500\n"
    assert await_value(lambda: cluster.json("status")["overview"]["free_slots"] == 2)


def test_ctrl_c_cancels_an_attached_job(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = cluster.command("job", "run", str(write_job(tmp_path, WAITING)), "--", str(gate))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    await_value(Path(f"{gate}.began").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "CANCELED" in errors


def test_a_cancellation_may_be_left_to_the_cluster_and_who_follows_sees_it(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    with subprocess.Popen(
        cluster.command("job", "logs", "-f", waiting.job_id), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        told = cluster.json("job", "cancel", "--no-wait", waiting.job_id)
        assert told == {"schema": SCHEMA, "job_id": waiting.job_id, "state": "CANCELLING"}
        follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 79  # somebody else cancelled the job that was followed
    assert cluster.job(waiting.job_id)["state"] == "CANCELED"


def test_ctrl_c_of_a_start_leaves_nothing_behind(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    # Spark's driver, which is given a file of arguments, never starts: so the start cannot be over before the signal.
    java.write_text(f'#!/bin/sh\ncase "$*" in *@*) exec sleep 600;; esac\nexec "{find_java(None).executable}" "$@"\n')
    java.chmod(0o755)
    cluster = Cluster(tmp_path / "interrupted", (f"env.java.home={tmp_path / 'java'}",))
    with subprocess.Popen(
        cluster.command("start"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "starting a TaskExecutor" in line:
                break
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (130, ""), errors
    assert errors.endswith("interrupted: all started processes have been stopped again\n")
    assert cluster.processes() == {}
    assert cluster.run("stop", check=False).returncode == 69  # there is nothing to stop


def test_submission_is_idempotent_by_job_id(cluster: Cluster, tmp_path: Path) -> None:
    job_id = JobID.random()
    file = write_job(tmp_path, TRIVIAL, "idempotent.py")
    options = ("--job-id", job_id)
    assert cluster.submit(file, options=options) == job_id
    assert cluster.submit(file, options=options) == job_id
    cluster.await_status(job_id, "FINISHED")
    assert cluster.submit(file, options=options) == job_id
    assert [job["job_id"] for job in cluster.json("job", "list")].count(job_id) == 1


def test_a_job_sets_for_itself_how_it_is_restarted(cluster: Cluster, tmp_path: Path) -> None:
    """By default an exception of a job's own code fails it at once."""
    file = write_job(tmp_path, "raise SystemError('again')", "again.py")
    own = ("restart-strategy.type=fixed-delay", "restart-strategy.fixed-delay.attempts=2")
    flags = [part for option in (*own, "restart-strategy.fixed-delay.delay=10ms") for part in ("-D", option)]
    failed = cluster.run("job", "run", *flags, "--json", str(file), check=False)
    assert failed.returncode == 1
    job = parsed(("job", "run"), failed.stdout)
    assert (job["state"], job["restarts"]) == ("FAILED", 2)
    assert cluster.run("job", "run", "-D", "restart-strategy.type=never", str(file), check=False).returncode == 1


def test_a_python_that_spark_did_not_wait_for_does_not_fail_the_job(cluster: Cluster, tmp_path: Path) -> None:
    lines = (
        "import sys",
        "from pathlib import Path",
        "was_late = Path(sys.argv[1])",
        "if not was_late.exists():",
        "    was_late.touch()",
        "    raise RuntimeError('Python worker failed to connect back.')  # what Spark says",
    )
    file = write_job(tmp_path, "\n".join(lines), "late.py")
    job = parsed(("job", "run"), cluster.run("job", "run", "--json", str(file), str(tmp_path / "late")).stdout)
    assert (job["state"], job["restarts"]) == ("FINISHED", 1)
    (failure,) = job["failure_history"]
    assert failure["kind"] == "task-process-lost"
    assert "had not started within 10 s" in failure["message"]


def test_an_actor_is_looked_up_by_its_address_from_another_process(cluster: Cluster) -> None:
    address = cluster.json("status")["cluster"]["address"]
    secret = (cluster.directory / "secret").read_bytes().strip()
    with ClusterClient(address, secret) as client:  # over TCP: it is not told of the cluster's sockets
        dispatcher = client.lookup("dispatcher", DispatcherGateway)
        assert dispatcher.request_cluster_overview().result().slots == 2


JOBS_IN_A_ROW = 9


def test_the_doctor_asks_the_cluster_and_starts_a_driver(cluster: Cluster) -> None:
    done = cluster.run("doctor", "--json", "--start-spark", check=False)
    told = parsed(("doctor",), done.stdout)
    checks = {check["name"]: check for check in told["checks"]}
    assert done.returncode == (0 if told["ok"] else 1)
    assert not {"jobmanager.rpc.port", "web endpoint"} & set(checks)
    for name in ("Python", "Java", "Redis", "Spark", "permissions", "cluster", "Spark driver"):
        assert checks[name]["ok"], checks[name]
    assert "TaskExecutor(s)" in checks["cluster"]["detail"]
    assert checks["Spark driver"]["detail"].startswith("Spark 4.")


@pytest.mark.slow  # tests/faults/soak.py does so for an hour
def test_jobs_in_a_row_leave_no_growth(cluster: Cluster, tmp_path: Path) -> None:
    file = write_job(tmp_path, TRIVIAL, "row.py")
    # Of a cluster that is at rest: one that has just started still loads jars and starts Spark's Python workers.
    await_value(lambda: " is warm after " in (cluster.directory / "log" / "taskmanager-0.log").read_text())
    # What grows once, however late, is not a leak; what grows with every job grows in each row of them.
    rows, before = [], _footprint_after_jobs(cluster, file, 1)
    for _ in range(5):
        after = _footprint_after_jobs(cluster, file, JOBS_IN_A_ROW)
        rows.append(_grown(before, after))
        if not rows[-1]:
            return
        before = after
    raise AssertionError(f"it grows with each {JOBS_IN_A_ROW} jobs: {rows}")


def test_what_grows_is_named_and_connections_that_come_and_go_are_not() -> None:
    before = {"processes": 9, "redis keys": 6, "descriptors of java": 300, "descriptors of us-rest": 40}
    assert _grown(before, before) == {}
    assert _grown(before, {**before, "processes": 8, "descriptors of java": 308, "descriptors of us-spare": 40}) == {}
    worse = {"processes": 10, "redis keys": 7, "descriptors of java": 309, "descriptors of us-rest": 40}
    assert _grown(before, worse) == {"processes": 1, "redis keys": 1, "descriptors of java": 9}


def _footprint_after_jobs(cluster: Cluster, file: Path, jobs: int) -> dict[str, int]:
    for _ in range(jobs):
        cluster.run("job", "run", str(file))
    await_value(lambda: not _job_masters(cluster))
    await_full_task_pool(cluster)
    return _footprint(cluster)


def _job_masters(cluster: Cluster) -> list[str]:
    names = [process["name"] for process in cluster.json("status")["cluster"]["processes"]]
    return [name for name in names if name.startswith("jobmaster-")]


def _footprint(cluster: Cluster) -> dict[str, int]:
    """Processes, the descriptors of all that bear one name, and keys in Redis.

    Not of each process: those that are kept ready for the next task and the next job are others after every job.
    """
    # A second java is the one that makes the class-data-sharing archive: it comes and goes beside the jobs.
    processes = [name for name in cluster.processes().values() if name != "java"]
    figures = {"processes": len(processes), "redis keys": len(_redis_keys(cluster))}
    for pid, name in cluster.processes().items():
        try:
            descriptors = psutil.Process(pid).num_fds()
        except psutil.Error:
            continue  # it has ended
        key = f"descriptors of {name}"
        figures[key] = figures.get(key, 0) + descriptors
    return figures


def _redis_keys(cluster: Cluster) -> list[str]:
    import redis

    from conf.configuration import Configuration
    from conf.options import HighAvailabilityOptions

    url = Configuration.read(cluster.directory / "configuration.json").get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    with redis.Redis.from_url(url.reveal()) as client:
        return [str(key) for key in client.scan_iter()]


def _grown(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Connections come and go a little; what grows with every job grows by more than this in a row of them."""
    more = {name: count - before.get(name, count) for name, count in now.items()}
    return {name: gain for name, gain in more.items() if gain > (8 if name.startswith("descriptors") else 0)}


@pytest.mark.slow  # tests/integration/test_deployment_offload.py does as much
def test_a_descriptor_over_the_limit_travels_as_a_blob(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster("blob.offload.minsize=1kb", "rpc.frame-size=64kb")
    argument = "x" * 100_000
    file = write_job(tmp_path, "import sys\nprint(len(sys.argv[1]))\n")
    assert cluster.run("job", "run", str(file), "--", argument).stdout == "100000\n"
    assert " is warm after " not in (cluster.directory / "log" / "taskmanager-0.log").read_text(), (
        "it was not asked for"
    )


@pytest.mark.slow  # test_spark_vehicle shows it of both kinds of jobs, test_working_directory by the command
def test_two_versions_of_a_py_file_each_see_their_own(cluster: Cluster, tmp_path: Path) -> None:
    script = write_job(
        tmp_path,
        "import versioned\n"
        "from pyspark.sql import SparkSession\n"
        "from pyspark.sql.functions import udf\n"
        "def in_worker(row):\n"
        "    import versioned\n"
        "    return versioned.VERSION\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(versioned.VERSION, spark.range(1).select(udf(in_worker)('id')).first()[0])\n",
        "script.py",
    )
    pipeline = write_job(
        tmp_path,
        "from runtime.api import Pipeline\n"
        "def show(ctx):\n"
        "    import versioned\n"
        "    from pyspark.sql.functions import udf\n"
        "    def in_worker(row):\n"
        "        import versioned\n"
        "        return versioned.VERSION\n"
        "    print(versioned.VERSION, ctx.spark.range(1).select(udf(in_worker)('id')).first()[0])\n"
        "def pipeline(argv):\n"
        "    p = Pipeline('versions')\n"
        "    p.sink('show', show)\n"
        "    return p\n",
        "pipeline.py",
    )
    for job, version in ((pipeline, "one"), (script, "two"), (pipeline, "three")):
        library = write_job(tmp_path, f"VERSION = {version!r}\n", "versioned.py")
        done = cluster.run("job", "run", "--py-files", str(library), str(job))
        assert done.stdout == f"{version} {version}\n"


def test_a_job_that_a_test_leaves_is_found_and_ended(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.jobs_left() == []
    job = WaitingJob.start(cluster, tmp_path)
    assert cluster.jobs_left(timeout=0) == [f"job ({job.job_id})"]
    cluster.await_status(job.job_id, "CANCELED")
