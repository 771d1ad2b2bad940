from __future__ import annotations

import heapq
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.ha.latch import Acquire, LatchState, LatchTiming, Renew, StepDown, Wait
from runtime.ha.standalone_endpoint import HaMemory
from runtime.protocol.leader import LeaderTerm

LEASE = 3.0
TIMING = LatchTiming(LEASE)
DEADLINE = LEASE - TIMING.margin


def new_state(name: str = "s") -> LatchState:
    numbers = itertools.count(1)
    return LatchState("dispatcher", TIMING, lambda: f"{name}{next(numbers)}")


def leading_state(sent: float = 0.0, now: float = 0.1, epoch: int = 7) -> LatchState:
    state = new_state()
    assert state.granted(sent, now, "s1", epoch, LEASE)
    return state


def test_asks_at_once_and_leads_when_granted() -> None:
    state = new_state()
    assert state.next_step(0.0) == Acquire("s1", 0)
    assert state.granted(0.0, 0.2, "s1", 7, LEASE)
    assert state.term == LeaderTerm("dispatcher", 7, "s1")
    assert state.leading(0.2)


def test_lease_counts_from_before_the_request_was_sent() -> None:
    state = leading_state(sent=0.0, now=1.0)
    assert state.leading(DEADLINE - 0.001)
    assert not state.leading(DEADLINE)
    step = state.next_step(DEADLINE)
    assert isinstance(step, StepDown)
    assert "lease" in step.reason


def test_a_grant_that_comes_too_late_begins_nothing_and_is_asked_for_again() -> None:
    state = new_state()
    assert not state.granted(0.0, DEADLINE, "s1", 7, LEASE)
    assert state.term is None
    assert state.next_step(DEADLINE) == Wait(pytest.approx(LEASE + 0.002))
    assert state.next_step(LEASE + 0.01) == Acquire("s1", 0)


def test_a_grant_to_a_session_that_was_given_up_begins_nothing() -> None:
    state = leading_state()
    state.refused()
    state.stepped_down(1.0)
    assert not state.granted(1.0, 1.1, "s1", 8, LEASE)
    assert state.term is None


def test_a_grant_below_what_a_receiver_has_seen_begins_nothing() -> None:
    state = new_state()
    state.observed(9)
    assert not state.granted(0.0, 0.1, "s1", 9, LEASE)
    assert state.term is None
    assert state.granted(1.0, 1.1, "s1", 10, LEASE)


def test_a_grant_whose_first_reply_was_lost_has_only_what_is_left_of_its_lease() -> None:
    state = new_state()
    assert state.granted(10.0, 10.1, "s1", 7, 1.0)
    assert state.next_step(10.1) == Renew(LeaderTerm("dispatcher", 7, "s1"), pytest.approx(1.0 - TIMING.margin - 0.1))
    assert not state.leading(11.0 - TIMING.margin)


def test_renews_each_third_of_the_lease_with_a_time_limit_at_the_deadline() -> None:
    state = leading_state()
    assert state.next_step(0.1) == Wait(1.0)
    step = state.next_step(1.0)
    assert step == Renew(LeaderTerm("dispatcher", 7, "s1"), DEADLINE - 1.0)
    state.renewed(1.0)
    assert state.next_step(1.2) == Wait(2.0)
    assert state.leading(1.0 + DEADLINE - 0.001)
    assert not state.leading(1.0 + DEADLINE)


def test_an_unanswered_renewal_is_repeated_until_the_deadline_and_not_beyond() -> None:
    state = leading_state()
    now, tries = 1.0, 0
    while isinstance(step := state.next_step(now), Renew | Wait):
        if isinstance(step, Renew):
            tries += 1
            state.unreachable(now)
        else:
            assert step.until > now
            now = step.until
    assert now == DEADLINE
    assert tries == 4
    assert not state.leading(now)


def test_a_refused_renewal_ends_the_term_at_once() -> None:
    state = leading_state()
    state.refused()
    assert not state.leading(0.2)
    assert isinstance(state.next_step(0.2), StepDown)


def test_each_term_has_a_session_of_its_own() -> None:
    state = leading_state()
    state.refused()
    state.stepped_down(1.0)
    assert state.next_step(1.0) == Wait(1.0 + TIMING.retry_every)
    assert state.next_step(1.5) == Acquire("s2", 0)
    assert not state.granted(1.5, 1.6, "s1", 8, LEASE), "a grant for a session given up"


def test_a_standby_looks_again_when_the_latch_expires_or_soon() -> None:
    state = new_state()
    state.held_by_other(10.0, 0.1)
    assert state.next_step(10.0) == Wait(pytest.approx(10.102))
    state.held_by_other(10.0, 2.9)
    assert state.next_step(10.0) == Wait(10.0 + TIMING.retry_every)
    state.changed()
    assert state.next_step(10.0) == Acquire("s1", 0)


def test_a_change_does_not_shorten_the_pause_after_a_failure_or_after_giving_up() -> None:
    state = new_state()
    state.unreachable(5.0)
    state.changed()
    assert state.next_step(5.0) == Wait(5.0 + TIMING.retry_every)
    state = leading_state()
    state.abandon("cannot")
    assert state.next_step(0.2) == StepDown(LeaderTerm("dispatcher", 7, "s1"), "cannot")
    state.stepped_down(0.2)
    state.changed()
    assert state.next_step(0.2) == Wait(0.2 + TIMING.retry_every)


def test_a_higher_epoch_seen_by_a_receiver_ends_the_term_and_raises_the_floor() -> None:
    state = leading_state(epoch=7)
    state.observed(7)
    assert state.leading(0.2)
    state.observed(9)
    assert not state.leading(0.2)
    state.stepped_down(0.2)
    assert state.next_step(1.0) == Acquire("s2", 9)
    assert not state.granted(1.0, 1.1, "s2", 9, LEASE)
    assert state.granted(1.0, 1.1, "s2", 10, LEASE)


@pytest.mark.parametrize("lease", [0.0, 0.05, -1.0, 4000.0])
def test_impossible_leases_are_refused(lease: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        LatchTiming(lease)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), slowness=st.floats(0.001, 2.5))
def test_never_two_leaders_under_lost_and_late_messages(seed: int, loss: float, slowness: float) -> None:
    chance = random.Random(seed)
    server_time = 0.0
    server = HaMemory(clock=lambda: server_time, milliseconds=lambda: 0)
    states = [new_state(name) for name in ("a", "b", "c")]
    intervals: list[tuple[float, float, int]] = []
    for_order = itertools.count()
    events: list[tuple[float, int, int]] = [(0.0, next(for_order), index) for index in range(3)]
    since: dict[int, float] = {}
    ends: dict[int, float] = {}
    while events and events[0][0] < 60:
        now, _, index = heapq.heappop(events)
        state = states[index]
        if index in since:
            ends[index] = state._deadline
        step = state.next_step(now)
        then = now
        match step:
            case Wait(until):
                then = until
            case StepDown():
                assert state.term is not None
                intervals.append((since.pop(index), min(now, ends.pop(index)), state.term.epoch))
                state.stepped_down(now)
            case Acquire() | Renew():
                there, back = (chance.expovariate(1 / slowness) for _ in range(2))
                limit = 1.0 if isinstance(step, Acquire) else min(1.0, step.timeout)
                lost_there, lost_back = chance.random() < loss, chance.random() < loss
                # Requests are carried out in the order of this loop, which is not that of their arrival: the server
                # takes its time from the latest it has seen.
                at = server_time = max(now + there, server_time)
                in_time = not lost_there and not lost_back and at + back - now <= limit
                then = at + back if in_time else now + limit
                if isinstance(step, Acquire):
                    reply = None if lost_there else server.acquire("dispatcher", step.session, LEASE, step.floor)
                    if reply is None or not in_time:
                        state.unreachable(then)
                    elif not reply.granted:
                        state.held_by_other(then, reply.expires_in)
                    elif state.granted(now, then, step.session, reply.epoch, reply.expires_in):
                        since[index] = then
                else:
                    renewed = None if lost_there else server.renew(step.term, LEASE)
                    if renewed is None or not in_time:
                        state.unreachable(then)
                    elif renewed:
                        state.renewed(now)
                    else:
                        state.refused()
        heapq.heappush(events, (max(then, now), next(for_order), index))
    for index, began in since.items():
        term = states[index].term
        assert term is not None
        intervals.append((began, states[index]._deadline, term.epoch))
    intervals.sort()
    for (_, end, epoch), (begin, _, next_epoch) in itertools.pairwise(intervals):
        assert end <= begin
        assert epoch < next_epoch
