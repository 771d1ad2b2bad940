"""Which cluster a job gets, and when a cluster of its own ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.configuration import Configuration
from conf.options import ClusterOptions, DeploymentOptions, ExecutionTarget, JobManagerOptions, RestOptions
from runtime.cluster.deployment import own_configuration, reached_by, target_of
from runtime.cluster.master import ENTRYPOINTS, entrypoint_of
from runtime.dispatcher.mini_dispatcher import ClusterEnd, end_of_cluster
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.protocol.archived_execution_graph import ApplicationStatus

JOB = "0" * 32


def load(*given: str, file: dict[str, object] | None = None) -> Configuration:
    """A configuration of a file with what was given with -D over it."""
    overrides = dict(item.split("=", 1) for item in given)
    return Configuration.from_dict(file or {}, "a file").overlaid(overrides, "-D")


def ended(status: str, *, dirty: bool = False) -> dict[str, JobEntry]:
    return {JOB: JobEntry(JobSchedulingStatus.DONE, {"status": status, "end_ms": 1}, dirty)}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("FINISHED", ApplicationStatus.SUCCEEDED),
        ("FAILED", ApplicationStatus.FAILED),
        ("CANCELED", ApplicationStatus.CANCELED),
    ],
)
def test_a_cluster_of_one_job_ends_as_the_job_did(status: str, end: ApplicationStatus) -> None:
    assert end_of_cluster(ended(status), is_attached=False) == ClusterEnd(end, f"job {JOB} is {status}")


def test_it_does_not_end_before_its_client_has_read_the_result() -> None:
    assert end_of_cluster(ended("FINISHED"), is_attached=True) is None
    assert end_of_cluster({}, is_attached=True) is None, "the job is still to be submitted"


def test_it_does_not_end_before_everything_of_the_job_is_cleaned_up() -> None:
    assert end_of_cluster(ended("FINISHED", dirty=True), is_attached=False) is None


@pytest.mark.parametrize("status", [JobSchedulingStatus.PENDING, JobSchedulingStatus.RUNNING])
def test_it_goes_on_without_its_client_while_the_job_is_not_over(status: JobSchedulingStatus) -> None:
    assert end_of_cluster({JOB: JobEntry(status)}, is_attached=False) is None


def test_it_ends_when_its_client_has_gone_without_submitting_the_job() -> None:
    end = end_of_cluster({}, is_attached=False)
    assert end is not None
    assert end.status is ApplicationStatus.UNKNOWN


def test_a_cluster_of_its_own_has_a_name_and_ports_of_its_own() -> None:
    own = own_configuration(
        load(file={"rest.port": 8081, "rest.bind-port": "8081-8090"}), "job-1", ExecutionTarget.PER_JOB
    )
    assert own.get(ClusterOptions.ID) == "job-1"
    assert own.get(ClusterOptions.RUNTIME_DIR) == Path.home() / ".understudy" / "job-1"
    assert (own.get(JobManagerOptions.RPC_PORT), own.get(RestOptions.PORT), own.get(RestOptions.BIND_PORT)) == (
        0,
        0,
        None,
    )
    assert own.get(DeploymentOptions.TARGET) is ExecutionTarget.PER_JOB
    assert reached_by(own) == "-D cluster.id=job-1"


def test_it_never_takes_the_directory_of_the_session_cluster_but_the_one_that_is_given() -> None:
    session = {"cluster.runtime-dir": "/var/lib/understudy/main"}
    own = own_configuration(load(file=session), "job-1", ExecutionTarget.PER_JOB)
    assert own.get(ClusterOptions.RUNTIME_DIR) == Path("/var/lib/understudy/job-1")
    given = load("cluster.runtime-dir=/tmp/mine", "rest.port=9000", "cluster.id=mine", file=session)
    own = own_configuration(given, "job-1", ExecutionTarget.PER_JOB)
    assert own.get(ClusterOptions.RUNTIME_DIR) == Path("/tmp/mine")
    assert (own.get(ClusterOptions.ID), own.get(RestOptions.PORT)) == ("mine", 9000)
    assert reached_by(own) == "-D cluster.runtime-dir=/tmp/mine"


def test_the_command_line_chooses_the_target_before_the_configuration() -> None:
    per_job = load("execution.target=per-job")
    assert target_of(load(), None, 1) is ExecutionTarget.SESSION
    assert target_of(per_job, None, 2) is ExecutionTarget.PER_JOB
    assert target_of(per_job, "session", 1) is ExecutionTarget.SESSION
    with pytest.raises(ClusterError, match="--masters"):
        target_of(load(), None, 2)


def test_each_kind_of_cluster_has_its_entrypoint_and_its_exit_codes() -> None:
    session = entrypoint_of(load())
    assert session is ENTRYPOINTS[ExecutionTarget.SESSION]
    entrypoint = entrypoint_of(load("execution.target=per-job"))
    assert entrypoint is ENTRYPOINTS[ExecutionTarget.PER_JOB]
    codes = {status: entrypoint.exit_code(status) for status in ApplicationStatus}
    assert codes == {
        ApplicationStatus.SUCCEEDED: 0,
        ApplicationStatus.CANCELED: 0,
        ApplicationStatus.FAILED: 1,
        ApplicationStatus.UNKNOWN: 2,
    }
    assert session.exit_code(ApplicationStatus.UNKNOWN) == 0


def test_what_is_left_of_a_cluster_of_one_job_is_what_its_user_may_want(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    directory.secret.touch()
    for name in (
        "rest-token",
        "cluster.json",
        "archive/1.job",
        "log/master.log",
        "ha/x",
        "redis/dump",
        "blob/b",
        "mine",
    ):
        (directory.root / name).touch()
    (directory.root / "tm-0" / "spark").mkdir(parents=True)
    ENTRYPOINTS[ExecutionTarget.PER_JOB].clean_up(directory)
    left = sorted(str(path.relative_to(directory.root)) for path in directory.root.rglob("*") if path.is_file())
    assert left == ["archive/1.job", "log/master.log", "mine"]
    ENTRYPOINTS[ExecutionTarget.PER_JOB].clean_up(directory)
