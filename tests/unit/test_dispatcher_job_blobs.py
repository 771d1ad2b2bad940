from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.dispatcher.resource_cleaner import live_jobs
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ids import JobID
from runtime.job_logs import logs_owner

A, B, C, D = (JobID(digit * 32) for digit in "abcd")
JOBS = st.sets(st.sampled_from([A, B, C]))
REGISTRY = st.dictionaries(st.sampled_from([A, B, C, D]), st.sampled_from(JobSchedulingStatus))
PENDING = JobEntry(JobSchedulingStatus.PENDING)


def with_logs(*jobs: JobID) -> set[str]:
    return {*jobs, *(logs_owner(job) for job in jobs)}


@given(JOBS, JOBS, JOBS, REGISTRY)
def test_no_job_of_which_there_is_a_record_is_an_orphan_nor_are_its_logs(
    known: set[JobID], archived: set[JobID], stored: set[JobID], registry: dict[JobID, JobSchedulingStatus]
) -> None:
    live = live_jobs(known, archived, stored, {job: JobEntry(status) for job, status in registry.items()})
    assert live == sorted(set(live))
    assert with_logs(*known, *archived, *stored) <= set(live)
    assert set(live) <= with_logs(*known, *archived, *stored, *registry)
    for job, status in registry.items():
        assert status is JobSchedulingStatus.PENDING or with_logs(job) <= set(live)


def test_a_submission_that_did_not_get_as_far_as_a_stored_graph_leaves_an_orphan() -> None:
    assert set(live_jobs([], [], [B], {A: PENDING, B: PENDING})) == with_logs(B)
    assert set(live_jobs([A], [], [B], {A: PENDING, B: PENDING})) == with_logs(A, B), "it is being submitted"


def test_a_job_whose_graph_cannot_be_read_and_an_ended_one_are_kept() -> None:
    registry = {A: JobEntry(JobSchedulingStatus.RUNNING), B: JobEntry(JobSchedulingStatus.DONE, {})}
    assert set(live_jobs([], [], [], registry)) == with_logs(A, B)
