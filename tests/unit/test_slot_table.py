"""The slots of a TaskExecutor: each is in one job's hands, under one allocation."""

from __future__ import annotations

import pytest

from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.errors import SlotNotAllocatedError, SlotOccupiedError
from runtime.taskexecutor.slot_table import Allocation, TaskSlotTable

NAME = ResourceID("taskmanager-0")
SLOT = SlotID(NAME, 0)
JOB, OTHER_JOB = JobID("a" * 32), JobID("b" * 32)
ALLOCATION, OTHER = AllocationID("1" * 32), AllocationID("2" * 32)


def test_a_slot_has_one_allocation() -> None:
    table = TaskSlotTable(NAME, 1)
    assert table.allocate(SLOT, JOB, ALLOCATION)
    assert not table.allocate(SLOT, JOB, ALLOCATION), "the same again is not news"
    for job in (JOB, OTHER_JOB):
        with pytest.raises(SlotOccupiedError, match=f"belongs to job {JOB}"):
            table.allocate(SLOT, job, OTHER)
    assert table.of_job(JOB) == [Allocation(ALLOCATION, JOB, SLOT)]
    assert table.free(OTHER) is None
    assert table.free(ALLOCATION) == Allocation(ALLOCATION, JOB, SLOT)
    assert table.free(ALLOCATION) is None
    assert table.allocate(SLOT, OTHER_JOB, OTHER)


def test_an_allocation_has_one_slot() -> None:
    table = TaskSlotTable(NAME, 2)
    table.allocate(SLOT, JOB, ALLOCATION)
    with pytest.raises(SlotOccupiedError, match=f"has slot {SLOT} under allocation {ALLOCATION} already"):
        table.allocate(SlotID(NAME, 1), JOB, ALLOCATION)
    table.free(ALLOCATION)
    assert table.allocate(SlotID(NAME, 1), JOB, ALLOCATION)


def test_there_are_as_many_slots_as_there_are() -> None:
    table = TaskSlotTable(NAME, 1)
    for slot_id in (SlotID(NAME, 1), SlotID(ResourceID("taskmanager-1"), 0)):
        with pytest.raises(SlotOccupiedError, match="there is no slot"):
            table.allocate(slot_id, JOB, ALLOCATION)


def test_a_job_uses_its_own_allocations_only() -> None:
    table = TaskSlotTable(NAME, 2)
    table.allocate(SLOT, JOB, ALLOCATION)
    table.check(JOB, ALLOCATION)
    for job, allocation in ((OTHER_JOB, ALLOCATION), (JOB, OTHER)):
        with pytest.raises(SlotNotAllocatedError, match=f"{allocation} is not job {job}"):
            table.check(job, allocation)
    table.free(ALLOCATION)
    with pytest.raises(SlotNotAllocatedError):
        table.check(JOB, ALLOCATION)


def test_offers_are_of_one_job_and_the_report_is_of_all_slots() -> None:
    table = TaskSlotTable(NAME, 2)
    table.allocate(SLOT, JOB, ALLOCATION)
    assert [(offer.allocation_id, offer.slot_id) for offer in table.offers(JOB)] == [(ALLOCATION, SLOT)]
    assert table.offers(OTHER_JOB) == []
    statuses = [(status.slot_id, status.job_id, status.allocation_id) for status in table.report().slots]
    assert statuses == [(SLOT, JOB, ALLOCATION), (SlotID(NAME, 1), None, None)]


def test_the_slots_are_one_users_also_after_the_last_one_was_freed() -> None:
    table = TaskSlotTable(NAME, 2)
    assert table.report().user is None
    assert table.allocate(SLOT, JOB, ALLOCATION, "ada")
    for user in ("bob", ""):
        with pytest.raises(SlotOccupiedError, match="has served another user"):
            table.allocate(SlotID(NAME, 1), OTHER_JOB, OTHER, user)
    table.free(ALLOCATION)
    with pytest.raises(SlotOccupiedError, match="has served another user"):
        table.allocate(SLOT, OTHER_JOB, OTHER, "bob")
    assert table.allocate(SLOT, OTHER_JOB, OTHER, "ada")
    assert table.report().user == "ada"


def test_after_a_job_whose_user_was_not_named_the_slots_are_no_named_users() -> None:
    table = TaskSlotTable(NAME, 2, "ada")
    assert table.allocate(SLOT, JOB, ALLOCATION)
    with pytest.raises(SlotOccupiedError, match="has served another user"):
        table.allocate(SlotID(NAME, 1), OTHER_JOB, OTHER, "ada")
