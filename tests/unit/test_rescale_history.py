"""The history of a job's rescales, as its JobMaster keeps it."""

from __future__ import annotations

import io
from dataclasses import replace

from runtime.cluster.views import JobView, print_job
from runtime.dispatcher.rescale_job import settled
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.job_graph import JobKind
from runtime.jobmaster.rescale_history import MOST_CHARACTERS, RescaleHistory
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.rescales import MOST_RESCALES, VANISHED, Advice, Rescale, RescaleCause

ASKED = Rescale(
    TriggerID("a" * 32), 8, cause=RescaleCause.AUTOSCALER, reason="90% busy", rescale_job="d" * 32, number=77
)
OTHER = Rescale(TriggerID("b" * 32), None, is_undo=True)


def test_a_rescale_is_recorded_from_its_request_to_its_rollback() -> None:
    history = RescaleHistory()
    history.report(ASKED, 10)
    history.report(Rescale(ASKED.trigger_id, None, {"counts": 2}, started_ms=3), 11)  # as its task reports it
    (known,) = history.all
    assert known == replace(ASKED, before={"counts": 2}, number=1, started_ms=10)
    history.rolled_back(TriggerID("c" * 32), "/s/other", 12)
    assert history.all == (known,)
    history.rolled_back(ASKED.trigger_id, "/s/8", 13)
    done = replace(known, state=OperationState.COMPLETED, ended_ms=13, savepoint="/s/8")
    assert history.all == (done,)
    history.report(replace(ASKED, state=OperationState.FAILED, error="lost after the rollback"), 14)
    history.job_ended(15)
    assert history.all == (done,)
    assert RescaleHistory(history.all).all == (done,), "the next JobMaster knows it"


def test_a_failure_is_recorded_and_a_rollback_that_comes_later_is_the_truth() -> None:
    history = RescaleHistory()
    history.report(OTHER, 10)
    history.report(replace(OTHER, state=OperationState.FAILED, error="x" * 5000), 11)
    (failed,) = history.all
    assert (failed.state, failed.ended_ms, failed.is_undo) == (OperationState.FAILED, 11, True)
    assert len(failed.error) == MOST_CHARACTERS
    history.rolled_back(OTHER.trigger_id, "/s/2", 12)
    (done,) = history.all
    assert (done.state, done.ended_ms, done.error) == (OperationState.COMPLETED, 12, "")


def test_what_is_in_progress_when_another_one_begins_or_the_job_ends_has_failed() -> None:
    history = RescaleHistory()
    history.report(ASKED, 10)
    history.report(OTHER, 20)
    first, second = history.all
    assert (first.state, first.ended_ms, first.error) == (OperationState.FAILED, 20, VANISHED)
    assert (second.number, second.state) == (2, OperationState.IN_PROGRESS)
    history.job_ended(30)
    assert history.all[0] == first
    assert (history.all[1].state, history.all[1].error) == (
        OperationState.FAILED,
        "the job has ended before it was done",
    )


def test_the_last_ones_are_kept_and_numbered_on() -> None:
    history = RescaleHistory()
    for number in range(MOST_RESCALES + 5):
        history.report(Rescale(TriggerID(f"{number:032x}"), 8), number)
    history = RescaleHistory(history.all)
    history.report(OTHER, 99)
    assert len(history.all) == MOST_RESCALES
    assert [one.number for one in history.all] == list(range(7, MOST_RESCALES + 7))


def test_a_rescale_that_nothing_does_any_more_is_shown_as_failed() -> None:
    assert settled(ASKED, is_alive=True) is ASKED
    done = replace(ASKED, state=OperationState.COMPLETED)
    assert settled(done, is_alive=False) is done
    lost = settled(OTHER, is_alive=False)
    assert (lost.state, lost.error, lost.ended_ms) == (OperationState.FAILED, VANISHED, None)
    does = JobDetails(JobID("d" * 32), "rescale", JobKind.SCRIPT, JobStatus.FAILED, 1, 9, {}, 0, "no Spark")
    failed = settled(ASKED, is_alive=False, ended=does)
    assert (failed.error, failed.ended_ms) == (f"job {'d' * 32}, which rescales it, is FAILED: no Spark", 9)
    cancelled = settled(ASKED, is_alive=False, ended=replace(does, status=JobStatus.CANCELED, error=""))
    assert cancelled.error == f"job {'d' * 32}, which rescales it, is CANCELED"


def test_job_info_lists_the_rescales_of_a_job() -> None:
    history = RescaleHistory()
    history.report(ASKED, 0)
    history.report(replace(ASKED, before={"counts": 2, "sums": 2}), 1)
    history.rolled_back(ASKED.trigger_id, "/s/8", 4000)
    history.report(OTHER, 6000)
    out = io.StringIO()
    print_job(JobView("j" * 32, "job", "RUNNING", 0, rescales=history.all), out, now_ms=9000)
    header, first, second = out.getvalue().splitlines()[-3:]
    assert header.split() == ["RESCALE", "PARTITIONS", "STATE", "ASKED", "BY", "STARTED", "TOOK", "REASON,", "OUTCOME"]
    assert first.split()[:5] == ["1", "2", "->", "8", "COMPLETED"]
    assert "autoscaler" in first
    assert first.endswith("90% busy; /s/8")
    assert second.split()[:6] == ["2", "(undo)", "?", "->", "?", "IN_PROGRESS"]


def test_job_info_shows_what_the_autoscaler_has_decided_last() -> None:
    out = io.StringIO()
    advice = (Advice("counts", 2, 2, "90% busy", True, 2, "tm-1"), Advice("plain", None, None, "no state"))
    print_job(JobView("j" * 32, "job", "RUNNING", 0, advice=advice), out, now_ms=9000)
    header, first, second = out.getvalue().splitlines()[-3:]
    assert header.split() == ["QUERY", "PARTITIONS", "WANTED", "CORES", "REASON"]
    assert first.split() == ["counts", "2", "2", "2", "90%", "busy"]
    assert second.split()[:4] == ["plain", "-", "-", "-"]
