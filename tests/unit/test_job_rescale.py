"""`job rescale` up to the rollback, and `job run --partitions`: refusals, and what stays after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from actors.errors import ActorError
from conf.configuration import Configuration
from runtime.checkpoint import rescale
from runtime.checkpoint.errors import CheckpointError, SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointJob
from runtime.checkpoint.rescale import RescalePlan
from runtime.checkpoint.retained import METADATA
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.client import ClusterClient, NoAnswerError
from runtime.cluster import rescaling
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import RescaledJob
from runtime.cluster.job_commands import _rescaled_start
from runtime.cluster.rescaling import RescaledStart, rescale_job
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import DriverLostError, SparkError
from tests.streaming_files import StreamingFiles

JOB = JobID("ab" * 16)


class Client:
    """A cluster with one job, whose savepoints have the state of some files."""

    def __init__(self, root: Path) -> None:
        self.files = StreamingFiles(root / "live")
        self.files.run(2)
        self.root = root
        self.has_sink = True
        self.failure = ""
        self.rejects: Exception | None = None
        self.sees_files = True
        self.rolled_back: list[Path] = []

    @property
    def savepoints(self) -> list[str]:
        directory = self.root / "savepoints"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def trigger_savepoint(self, job_id: JobID, directory: Path | None) -> OperationStatus:
        if self.failure:
            return OperationStatus(TriggerID.random(), OperationState.FAILED, error=self.failure)
        location = self.files.query if self.has_sink else QueryLocation("counts", str(self.files.location))
        snapshot = take_snapshot(location, self.root / "chk")
        made = write_savepoint(directory or self.root / "savepoints", SavepointJob(job_id, "job"), [snapshot], name="s")
        return OperationStatus(TriggerID.random(), OperationState.COMPLETED, path=made.path)

    def roll_back(self, job_id: JobID, target: Path) -> None:
        if self.rejects is not None:
            raise self.rejects
        self.rolled_back.append(target)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(rescale, "obstacles", lambda *_: [])

    def run_plan(configuration: Configuration, plan: RescalePlan, interval: int) -> Savepoint:
        snapshots = [one.snapshot for one in plan.savepoint.queries]
        return write_savepoint(plan.target.parent, plan.savepoint.job, snapshots, name=plan.target.name)

    monkeypatch.setattr(rescaling, "run_plan", run_plan)
    return Client(tmp_path)


def rescaled(client: Client, partitions: int = 3, **options: Any) -> RescaledJob:
    return rescale_job(Configuration(), cast("ClusterClient", client), JOB, partitions, **options)


def test_the_job_goes_back_to_the_copy_and_both_savepoints_stay(client: Client) -> None:
    done = rescaled(client, directory=client.root / "savepoints")
    original = client.root / "savepoints" / "s"
    assert done == RescaledJob(JOB, 3, f"{original}-3-partitions", str(original))
    assert client.rolled_back == [Path(done.savepoint)]
    assert client.savepoints == ["s", "s-3-partitions"]


def test_refusals_leave_the_job_and_no_savepoint(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.has_sink = False
    with pytest.raises(SavepointError, match=r"'counts' has no file sink, so it would write .* twice") as caught:
        rescaled(client)
    assert f"`job stop {JOB}`" in caught.value.remedy
    client.has_sink = True
    for partitions, query, why in ((0, None, "no number of partitions"), (3, "x", "no query 'x'")):
        with pytest.raises(SavepointError, match=why):
            rescaled(client, partitions, query=query)
    monkeypatch.undo()
    with pytest.raises(SavepointError, match="its state store is an unknown provider"):
        rescaled(client)
    assert (client.savepoints, client.rolled_back) == ([], [])


@pytest.mark.parametrize("failure", [DriverLostError("Spark has ended"), KeyboardInterrupt(), OSError("full")])
def test_a_rescale_that_fails_leaves_the_job_and_no_savepoint(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(rescaling, "run_plan", fail)
    with pytest.raises((SparkError, SystemExit, OSError)):
        rescaled(client)
    assert (client.savepoints, client.rolled_back) == ([], [])
    if isinstance(failure, KeyboardInterrupt):
        assert f"interrupted: job {JOB} continues as it was" in capsys.readouterr().err


def test_a_rejected_rollback_leaves_no_savepoint(client: Client) -> None:
    client.rejects = CheckpointError("its sink has lost files")
    with pytest.raises(CheckpointError, match="lost files"):
        rescaled(client)
    assert client.savepoints == []


def test_where_the_outcome_is_unknown_the_savepoints_stay(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.rejects = NoAnswerError("the cluster does not answer")
    with pytest.raises(ActorError):
        rescaled(client)
    assert client.savepoints == ["s", "s-3-partitions"]
    assert f"are left; `understudy job info {JOB}` shows" in capsys.readouterr().err


def test_what_needs_no_savepoint_is_refused_before_there_is_one(client: Client) -> None:
    client.failure = "no task has a streaming query"
    with pytest.raises(ClusterError, match=r"no savepoint of job .*: no task has a streaming query"):
        rescaled(client)
    client.failure, client.sees_files = "", False
    with pytest.raises(ClusterError, match="does not see the cluster's files"):
        rescaled(client)
    assert client.savepoints == []


def test_a_start_with_other_partitions_needs_a_savepoint_that_is_seen_from_here(client: Client, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.touch()
    done = CliRunner().invoke(cli, ["job", "run", "--partitions", "3", str(script)])
    assert (done.exit_code, "--partitions needs --from" in done.stderr) == (ExitStatus.WRONG_USAGE, True)
    checkpoint = tmp_path / "chk-7"
    checkpoint.mkdir()
    (checkpoint / METADATA).touch()
    with pytest.raises(SavepointError, match="chk-7 is a checkpoint, and only savepoints can be rescaled"):
        RescaledStart(Configuration(), str(checkpoint), 3)
    client.sees_files = False
    with pytest.raises(ClusterError, match="does not see the cluster's files"):
        _rescaled_start(Configuration(), cast("ClusterClient", client), str(checkpoint), 3)
    assert _rescaled_start(Configuration(), cast("ClusterClient", client), str(checkpoint), None) is None
