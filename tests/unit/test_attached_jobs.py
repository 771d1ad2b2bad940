"""When an attached job ends because its client has vanished: with the time as an argument."""

from __future__ import annotations

from runtime.dispatcher.attached_jobs import AttachedJobs
from runtime.ids import JobID

JOB, OTHER = JobID("a" * 32), JobID("b" * 32)


def test_a_job_ends_when_its_client_is_silent_for_the_timeout() -> None:
    jobs = AttachedJobs()
    assert jobs.pause_s is None
    jobs.attach(0.0, JOB, 180.0)
    jobs.attach(0.0, OTHER, 300.0)
    assert jobs.pause_s == 18.0
    assert jobs.look(179.9, 179.9) == {}
    assert jobs.look(180.0, 180.0) == {JOB: "its client has not been heard of for 180 s"}
    assert jobs.look(250.0, 250.0) == {}, "each is told once"
    assert jobs.pause_s == 30.0


def test_a_sign_of_life_grants_a_full_timeout() -> None:
    jobs = AttachedJobs()
    jobs.attach(0.0, JOB, 180.0)
    jobs.heard(170.0, JOB)
    jobs.heard(170.0, OTHER)  # not attached
    assert jobs.look(349.0, 349.0) == {}
    assert list(jobs.look(350.0, 350.0)) == [JOB]


def test_a_job_that_is_detached_or_over_is_not_ended() -> None:
    jobs = AttachedJobs()
    jobs.attach(0.0, JOB, 10.0)
    jobs.detach(JOB)
    jobs.detach(JOB)
    assert (jobs.look(100.0, 100.0), jobs.pause_s) == ({}, None)
    jobs.attach(0.0, JOB, 10.0)
    jobs.clear()
    assert jobs.look(100.0, 100.0) == {}


def test_a_leader_that_stood_still_leaves_that_time_out() -> None:
    jobs = AttachedJobs()
    jobs.attach(0.0, JOB, 10.0)
    assert jobs.look(3601.0, 1.0) == {}, "it was stopped for an hour, and deaf"
    jobs.attach(3601.0, OTHER, 10.0)
    assert jobs.look(3609.9, 3609.9) == {}
    assert list(jobs.look(3610.0, 3610.0)) == [JOB]
    assert jobs.look(9000.0, 3600.0) == {}, "nobody is heard of in the future"
    assert list(jobs.look(9010.0, 9010.0)) == [OTHER]
