from __future__ import annotations

import asyncio

import pytest

from runtime.ha.errors import JobAlreadyDoneError, LeadershipLostError, StateHandleNotFoundError
from runtime.ha.model import DISPATCHER, LeaderInformation, LeaderTerm
from runtime.ha.standalone import EmbeddedHaServices, first_term


class Contender:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.terms: list[LeaderTerm | None] = []
        self.errors: list[Exception] = []

    def grant_leadership(self, term: LeaderTerm) -> None:
        self.terms.append(term)
        if self.fails:
            raise RuntimeError("cannot")

    def revoke_leadership(self) -> None:
        self.terms.append(None)

    def handle_error(self, error: Exception) -> None:
        self.errors.append(error)


class Listener:
    def __init__(self) -> None:
        self.seen: list[LeaderInformation | None] = []

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        self.seen.append(leader)

    def handle_error(self, error: Exception) -> None:
        raise error


async def turn() -> None:
    """Let everything happen that is due in this turn of the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_of_two_leads_and_the_other_after_it_with_a_higher_epoch() -> None:
    ha = EmbeddedHaServices()
    first, second, listener = Contender(), Contender(), Listener()
    elections = [ha.leader_election(DISPATCHER), ha.leader_election(DISPATCHER)]
    await ha.leader_retrieval(DISPATCHER).start(listener)
    await elections[0].start(first)
    await elections[1].start(second)
    await turn()
    term = first.terms[0]
    assert term == first_term(DISPATCHER)
    assert second.terms == []
    assert listener.seen == []
    assert await elections[0].confirm_leadership(term, "akka://a")
    await elections[0].stop()
    await turn()
    assert first.terms == [term, None]
    assert second.terms == [first_term(DISPATCHER, 2)]
    assert not elections[0].has_leadership(term)
    assert elections[1].has_leadership(first_term(DISPATCHER, 2))
    assert listener.seen == [LeaderInformation(DISPATCHER, "akka://a", 1, term.session), None]
    assert not await elections[1].confirm_leadership(term, "akka://b")


async def test_a_contender_that_fails_to_take_office_gives_way() -> None:
    ha = EmbeddedHaServices()
    bad, good = Contender(fails=True), Contender()
    await ha.leader_election(DISPATCHER).start(bad)
    await ha.leader_election(DISPATCHER).start(good)
    await turn()
    await turn()
    assert isinstance(bad.errors[0], RuntimeError)
    assert bad.terms == [first_term(DISPATCHER), None]
    assert good.terms == [first_term(DISPATCHER, 2)]


async def test_a_higher_epoch_seen_elsewhere_brings_a_new_term_above_it() -> None:
    ha, contender = EmbeddedHaServices(), Contender()
    election = ha.leader_election(DISPATCHER)
    await election.start(contender)
    await turn()
    election.observe_epoch(9)
    await turn()
    assert contender.terms == [first_term(DISPATCHER), None, first_term(DISPATCHER, 10)]


async def test_leaders_of_other_processes_are_found_by_address() -> None:
    ha, listener = EmbeddedHaServices({DISPATCHER: "akka://far"}), Listener()
    await ha.leader_retrieval(DISPATCHER).start(listener)
    await turn()
    there = EmbeddedHaServices()
    contender = Contender()
    await there.leader_election(DISPATCHER).start(contender)
    await turn()
    assert [seen.term for seen in listener.seen if seen] == contender.terms


async def test_the_stores_obey_the_fence() -> None:
    ha, contender = EmbeddedHaServices(), Contender()
    election = ha.leader_election(DISPATCHER)
    await election.start(contender)
    await turn()
    term = contender.terms[0]
    assert term is not None
    graphs, jobs = ha.job_graph_store(), ha.running_jobs_registry()
    await graphs.put("j", b"g", term)
    await jobs.set_pending("j", term)
    await jobs.set_running("j", term)
    await jobs.set_done("j", {"state": "FINISHED"}, term)
    assert await jobs.dirty_results() == {"j": {"state": "FINISHED"}}
    with pytest.raises(JobAlreadyDoneError):
        await jobs.set_running("j", term)
    await jobs.mark_clean("j", term)
    assert await graphs.remove("j", term)
    with pytest.raises(StateHandleNotFoundError):
        await graphs.get("j")
    await election.stop()
    with pytest.raises(LeadershipLostError):
        await graphs.put("j", b"g", term)
    with pytest.raises(LeadershipLostError):
        await jobs.set_running("k", term)
