"""In which order, and how many at once, JobMasters are started."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.dispatcher.job_master_starts import StartQueue
from runtime.ids import JobID


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


def test_recovered_jobs_leave_one_start_to_new_ones() -> None:
    queue = StartQueue(4)
    for number in range(1000):
        queue.recovered(job(number))
    assert queue.next() == [job(0), job(1), job(2)]
    assert queue.next() == []
    queue.submitted(job(5000))
    assert queue.next() == [job(5000)], "at once, whatever the recovered ones do"
    queue.submitted(job(5001))
    assert queue.next() == []
    queue.started(job(1))
    assert queue.next() == [job(5001)], "new ones first"
    queue.started(job(5000))
    assert queue.next() == [job(3)]


def test_one_at_a_time_is_shared() -> None:
    queue = StartQueue(1)
    queue.recovered(job(1))
    queue.recovered(job(2))
    assert queue.next() == [job(1)]
    queue.submitted(job(3))
    queue.started(job(1))
    assert queue.next() == [job(3)]
    queue.started(job(3))
    assert queue.next() == [job(2)]


def test_a_failed_start_is_tried_again_behind_those_that_wait() -> None:
    queue = StartQueue(2)
    for number in (1, 2, 3):
        queue.recovered(job(number))
    assert queue.next() == [job(1)]
    queue.failed(job(1))
    assert queue.next() == [job(2)]
    queue.again(job(1))
    queue.again(job(1))
    queue.started(job(2))
    assert queue.next() == [job(3)]
    queue.started(job(3))
    assert queue.next() == [job(1)]
    queue.failed(job(1))
    queue.forget(job(1))
    queue.again(job(1))
    assert queue.next() == [], "it is over"


def test_what_is_under_way_counts_also_for_the_next_leadership() -> None:
    queue = StartQueue(2)
    queue.recovered(job(1))
    assert queue.next() == [job(1)]
    queue.clear()
    queue.recovered(job(1))
    queue.recovered(job(2))
    assert queue.next() == []
    queue.started(job(1))
    assert queue.next() == [job(2)]


class Starts(RuleBasedStateMachine):
    """Whatever happens: never too many at once, nothing twice at once, and in the end everything that is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = StartQueue(3)
        self.under_way: list[JobID] = []
        self.failed: list[JobID] = []
        self.wanted: set[JobID] = set()
        self.started: Counter[JobID] = Counter()

    @rule(number=st.integers(0, 9), new=st.booleans())
    def want(self, number: int, new: bool) -> None:
        (self.queue.submitted if new else self.queue.recovered)(job(number))
        self.wanted.add(job(number))
        self.go()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), works=st.booleans())
    def end(self, data: st.DataObject, works: bool) -> None:
        ended = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(ended)
        if works:
            self.queue.started(ended)
            self.wanted.discard(ended)
        else:
            self.queue.failed(ended)
            self.failed.append(ended)
        self.go()

    @precondition(lambda self: self.failed)
    @rule()
    def again(self) -> None:
        self.queue.again(self.failed.pop(0))
        self.go()

    @rule(number=st.integers(0, 9))
    def forget(self, number: int) -> None:
        self.queue.forget(job(number))
        self.wanted.discard(job(number))

    def go(self) -> None:
        begun = self.queue.next()
        assert not set(begun) & set(self.under_way)
        assert set(begun) <= self.wanted
        self.under_way += begun

    @invariant()
    def bounded(self) -> None:
        assert len(self.under_way) <= 3

    def teardown(self) -> None:
        for _ in range(100):
            while self.under_way:
                ended = self.under_way.pop()
                self.queue.started(ended)
                self.wanted.discard(ended)
            while self.failed:
                self.queue.again(self.failed.pop())
            self.go()
        assert self.wanted == set()


TestStarts = Starts.TestCase
