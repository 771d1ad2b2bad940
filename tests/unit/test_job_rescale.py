"""`job rescale` up to the rollback, and `job run --partitions`: refusals, and what stays after a failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from actors.errors import ActorError
from conf.configuration import Configuration
from runtime.checkpoint import rescale
from runtime.checkpoint.errors import CheckpointError, SavepointError
from runtime.checkpoint.manifest import RescaledFrom, Savepoint, SavepointJob
from runtime.checkpoint.rescale import RescalePlan
from runtime.checkpoint.retained import METADATA
from runtime.checkpoint.savepoint import dispose_savepoint, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.client import ClusterClient, NoAnswerError
from runtime.cluster import rescaling
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import RescaledJob
from runtime.cluster.job_commands import _rescaled_start
from runtime.cluster.rescaling import JobRescaler, RescaledStart
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.notebook import AsyncJob, Job
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.errors import RescaleInProgressError
from runtime.protocol.query_snapshot import QueryLocation
from runtime.protocol.rescales import Rescale
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
        self.name = "s"
        self.rolled_back: list[Path] = []
        self.triggers: list[TriggerID | None] = []
        self.plans: list[tuple[int, list[str]]] = []
        self.history = RescaleHistory()
        self.refuses: Exception | None = None
        self.savepoint_dir = str(root / "savepoints")

    @property
    def savepoints(self) -> list[str]:
        directory = self.root / "savepoints"
        names = (path.name for path in directory.iterdir()) if directory.exists() else ()
        return sorted(name for name in names if name != ".upgrades")

    def overview(self) -> Any:
        return SimpleNamespace(savepoint_dir=self.savepoint_dir)

    def report_rescale(self, job_id: JobID, rescale: Rescale) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.history.report(rescale, 5)

    def trigger_savepoint(
        self, job_id: JobID, directory: Path | None, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        self.triggers.append(trigger_id)
        if self.failure:
            return OperationStatus(TriggerID.random(), OperationState.FAILED, error=self.failure)
        location = self.files.query if self.has_sink else QueryLocation("counts", str(self.files.location))
        snapshot = take_snapshot(location, self.root / "chk")
        made = write_savepoint(
            directory or self.root / "savepoints", SavepointJob(job_id, "job"), [snapshot], name=self.name
        )
        return OperationStatus(TriggerID.random(), OperationState.COMPLETED, path=made.path)

    def roll_back(self, job_id: JobID, target: Path, *, trigger_id: TriggerID) -> None:
        if self.rejects is not None:
            raise self.rejects
        self.rolled_back.append(target)
        self.history.rolled_back(trigger_id, str(target), 6)

    def checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        return CheckpointStatsSnapshot(rolled_back_to=str(self.rolled_back[-1]) if self.rolled_back else "")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(rescale, "obstacles", lambda *_: [])

    client = Client(tmp_path)

    def run_plan(plan: RescalePlan, java_home: str | None, interval: int) -> Savepoint:
        client.plans.append((plan.partitions, [one.snapshot.name for one in plan.queries]))
        old, snapshots = plan.savepoint, [one.snapshot for one in plan.savepoint.queries]
        origin = RescaledFrom(old.path, old.created_ms, plan.partitions, ("counts",))
        return write_savepoint(plan.target.parent, old.job, snapshots, name=plan.target.name, rescaled=origin)

    monkeypatch.setattr(rescaling, "run_plan", run_plan)
    return client


def rescaler(client: Client) -> JobRescaler:
    return JobRescaler.of_command(Configuration(), cast("ClusterClient", client))


def rescaled(client: Client, partitions: int = 3, *queries: str, directory: Path | None = None) -> RescaledJob:
    return rescaler(client).rescale(JOB, partitions, *queries, directory=directory)


def test_the_job_goes_back_to_the_copy_and_both_savepoints_stay(client: Client) -> None:
    done = rescaled(client, directory=client.root / "savepoints")
    original = client.root / "savepoints" / "s"
    assert done == RescaledJob(JOB, 3, f"{original}-3-partitions", str(original))
    assert client.rolled_back == [Path(done.savepoint)]
    assert client.savepoints == ["s", "s-3-partitions"]


def outcomes(client: Client) -> list[tuple[int, bool, dict[str, int], int | None, OperationState, str]]:
    """The job's history, without ids and times."""
    return [
        (one.number, one.is_undo, one.before, one.partitions, one.state, one.savepoint or one.error)
        for one in client.history.all
    ]


def test_the_history_has_each_rescale_with_the_partitions_before_and_its_outcome(client: Client) -> None:
    done = rescaled(client)
    undone = rescaler(client).undo(JOB)
    client.files.run(1)
    client.failure = "no task has a streaming query"
    with pytest.raises(ClusterError, match="no savepoint of job"):
        rescaled(client, 7)
    completed, failed = OperationState.COMPLETED, OperationState.FAILED
    assert outcomes(client) == [
        (1, False, {"counts": 2}, 3, completed, done.savepoint),
        (2, True, {"counts": 3}, 2, completed, undone.savepoint),
        (3, False, {}, 7, failed, f"no savepoint of job {JOB}: no task has a streaming query"),
    ]
    assert client.triggers == [client.history.all[0].trigger_id, client.history.all[2].trigger_id]


def test_a_second_rescale_of_a_job_is_refused_while_the_first_is_under_way(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, met = client.root / "savepoints" / ".upgrades" / f"{JOB}.lock", []
    run = rescaling.run_plan

    def meanwhile(plan: RescalePlan, java_home: str | None, interval: int) -> Savepoint:
        for second in (lambda: rescaled(client, 4), lambda: rescaler(client).undo(JOB)):
            with pytest.raises(ClusterError, match=f"job {JOB} is being rescaled or upgraded at this moment") as caught:
                second()
            met.append(caught.value.remedy)
        return run(plan, java_home, interval)

    monkeypatch.setattr(rescaling, "run_plan", meanwhile)
    rescaled(client)
    assert met == ["wait until that has ended"] * 2
    assert (len(client.history.all), len(client.rolled_back)) == (1, 1)
    assert not lock.exists()
    monkeypatch.setattr(rescaling, "run_plan", run)
    client.name = "other"
    assert rescaled(client, 4).partitions == 4


def test_a_rescale_is_refused_while_a_job_of_the_cluster_does_one(client: Client) -> None:
    client.refuses = RescaleInProgressError("job d rescales job a already")
    with pytest.raises(RescaleInProgressError):
        rescaled(client)
    assert (client.savepoints, client.rolled_back, client.history.all) == ([], [], ())
    assert list((client.root / "savepoints" / ".upgrades").iterdir()) == [], "and the lock is released"


def test_a_cluster_of_release_0_1_0_is_rescaled_without_a_history(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.savepoint_dir = ""
    rescaled(client)
    assert (len(client.rolled_back), client.history.all) == (1, ())
    assert "note: the cluster has release 0.1.0" in capsys.readouterr().err


def test_where_the_outcome_is_unknown_the_history_waits_for_the_cluster(client: Client) -> None:
    client.rejects = NoAnswerError("the cluster does not answer")
    with pytest.raises(ActorError):
        rescaled(client)
    assert [one.state for one in client.history.all] == [OperationState.IN_PROGRESS]


def test_refusals_leave_the_job_and_no_savepoint(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.has_sink = False
    with pytest.raises(SavepointError, match=r"'counts' has no file sink, so it would write .* twice") as caught:
        rescaled(client)
    assert f"`understudy job stop {JOB}`" in caught.value.remedy
    client.has_sink = True
    for partitions, queries, why in ((0, (), "not a number of partitions"), (3, ("x",), "no query 'x'")):
        with pytest.raises(SavepointError, match=why):
            rescaled(client, partitions, *queries)
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


def test_an_undo_without_batches_since_goes_back_to_the_former_savepoint(client: Client) -> None:
    done = rescaled(client)
    client.failure = "no task has a streaming query"  # the rescaled tasks do not start
    undone = rescaler(client).undo(JOB)
    assert undone == RescaledJob(JOB, 2, done.original, done.savepoint)
    assert client.rolled_back == [Path(done.savepoint), Path(done.original)]
    with pytest.raises(SavepointError, match=rf"{JOB} was not rescaled since its rollback to {done.original}") as no:
        rescaler(client).undo(JOB)
    assert "only the last rescale can be undone, once" in str(no.value)
    assert f"`understudy job info {JOB}` shows the former ones" in no.value.remedy


def test_an_undo_after_further_batches_rescales_the_present_state(client: Client) -> None:
    done = rescaled(client)
    client.files.run(1)
    client.name = "later"
    undone = rescaler(client).undo(JOB, client.root / "savepoints")
    later = client.root / "savepoints" / "later"
    assert undone == RescaledJob(JOB, 2, f"{later}-2-partitions", str(later))
    assert client.rolled_back == [Path(done.savepoint), Path(undone.savepoint)]
    assert client.plans == [(3, ["counts"]), (2, ["counts"])]


def test_an_undo_without_a_savepoint_says_what_a_rollback_would_do(client: Client) -> None:
    done = rescaled(client)
    client.files.run(1)
    client.failure = "no task has a streaming query"
    with pytest.raises(ClusterError, match="no savepoint of job") as caught:
        rescaler(client).undo(JOB)
    assert f"job rollback {JOB} --to {done.original}` repeats all batches" in caught.value.remedy
    assert len(client.rolled_back) == 1


def test_an_undo_needs_a_rescale_and_its_savepoints(client: Client) -> None:
    def refused(why: str) -> None:
        with pytest.raises(CheckpointError, match=why) as caught:
            rescaler(client).undo(JOB)
        assert f"`understudy job rescale {JOB} --partitions N` sets any number" in caught.value.remedy

    refused(f"job {JOB} was not rescaled since it started, so there is nothing to undo")
    checkpoint = client.root / "chk-7"
    checkpoint.mkdir()
    (checkpoint / METADATA).touch()
    client.rolled_back = [checkpoint]
    refused(f"was not rescaled since its rollback to {checkpoint}")
    client.rolled_back = []
    done = rescaled(client)
    dispose_savepoint(Path(done.original))
    refused(f"the partitions before the rescale are not known any more: {done.original} is not a savepoint")
    dispose_savepoint(Path(done.savepoint))
    refused(f"was rolled back to is gone: {done.savepoint} is not a savepoint")
    client.sees_files = False
    with pytest.raises(ClusterError, match="does not see the cluster's files"):
        rescaler(client).undo(JOB)
    assert len(client.rolled_back) == 1


def test_an_undo_that_the_cluster_rejects_changes_nothing(client: Client) -> None:
    done = rescaled(client)
    client.rejects = CheckpointError("its sink has lost files")
    with pytest.raises(CheckpointError, match="lost files"):
        rescaler(client).undo(JOB)
    assert client.savepoints == ["s", "s-3-partitions"]
    assert client.rolled_back == [Path(done.savepoint)]


def test_the_location_that_an_undo_looks_at_must_exist(client: Client) -> None:
    rescaled(client)
    client.files.location.rename(client.root / "elsewhere")
    with pytest.raises(CheckpointError, match=f"query 'counts': {client.files.location} does not exist"):
        rescaler(client).undo(JOB)


async def test_a_handle_rescales_and_undoes_as_the_commands_do(client: Client) -> None:
    job: Job[Any] = Job(cast("ClusterClient", client), JOB)
    done = job.rescale(3, query="counts", directory=str(client.root / "savepoints"))
    original = client.root / "savepoints" / "s"
    assert done == RescaledJob(JOB, 3, f"{original}-3-partitions", str(original))
    assert await AsyncJob(job).undo_rescale() == RescaledJob(JOB, 2, done.original, done.savepoint)
    assert client.plans == [(3, ["counts"])]
    client.name = "other"
    with pytest.raises(SavepointError, match="no query 'x'"):
        job.rescale(3, query="x")


def test_a_handle_logs_where_savepoints_are_left(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.rejects = NoAnswerError("the cluster does not answer")
    with pytest.raises(ActorError):
        Job(cast("ClusterClient", client), JOB).rescale(3)
    assert "s-3-partitions are left" in caplog.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "Missing option '--partitions', or '--undo'"),
        (("--undo", "--partitions", "3"), "--undo takes neither --partitions nor --query"),
        (("--undo", "--query", "counts"), "--undo takes neither --partitions nor --query"),
        (("--partitions", "0"), "0 is not in the range x>=1"),
        (("--detach", "--partitions", "-1"), "-1 is not in the range x>=1"),
    ],
)
def test_a_rescale_needs_either_a_number_or_an_undo(options: tuple[str, ...], why: str) -> None:
    done = CliRunner().invoke(cli, ["job", "rescale", *options, JOB])
    assert (done.exit_code, why in done.stderr) == (ExitStatus.WRONG_USAGE, True)


def test_what_needs_no_savepoint_is_refused_before_there_is_one(client: Client) -> None:
    client.failure = "no task has a streaming query"
    with pytest.raises(ClusterError, match=r"no savepoint of job .*: no task has a streaming query"):
        rescaled(client)
    client.failure, client.sees_files = "", False
    with pytest.raises(ClusterError, match="does not see the cluster's files") as refused:
        rescaled(client)
    assert "--detach" in refused.value.remedy
    assert "run the command on a machine that sees them" in refused.value.remedy
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


def test_a_start_rescales_a_copy_beside_the_savepoint_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    kept = client.trigger_savepoint(JOB, None).path
    target = f"{kept}-3-partitions"
    starts = [RescaledStart(Configuration(), kept, number).make() for number in (3, 3, 2)]
    assert (starts, client.plans) == ([target, target, kept], [(3, ["counts"])])
    assert capsys.readouterr().err.splitlines()[-3:] == [
        f"rescaled to 3 partitions: {target}",
        f"{target} has 3 partitions: the job starts from it as it is",
        f"{kept} has 2 partitions: the job starts from it as it is",
    ]
