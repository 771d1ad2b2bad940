# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.ha.connection import RedisConnection
from runtime.ha.election import DefaultLeaderElectionService
from runtime.ha.errors import LeadershipLostError, RedisUnreachableError
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import LatchReader, RedisLeaderLatch
from runtime.ha.services import LatchedHaServices, RedisHaServices
from runtime.protocol.leader import DISPATCHER, LeaderInformation, LeaderTerm, boottime, job_master
from tests.fakes.ha_keeper import LONG_LEASE, Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server, until  # noqa: F401
from tests.waiting import PATIENCE_S

LEASE = 1.0
"""For tests of a lease that ends, in seconds; no other test loses its leader on a busy machine."""

Open = Callable[..., RedisHaServices]


class Contender:
    """Records when it led by its own clock: a loop on a busy machine may tell it late that its lease is over."""

    def __init__(self, election: DefaultLeaderElectionService) -> None:
        self.election = election
        self.term: LeaderTerm | None = None
        self.terms: list[LeaderTerm] = []
        self.intervals: list[tuple[float, float, int]] = []
        self.errors: list[Exception] = []
        self.fails = False
        self._since = 0.0

    def grant_leadership(self, term: LeaderTerm) -> None:
        assert self.term is None
        self.term, self._since = term, boottime()
        self.terms.append(term)
        if self.fails:
            raise RuntimeError("cannot lead")

    def revoke_leadership(self) -> None:
        assert self.term is not None
        deadline = self.election._driver._state._deadline
        self.intervals.append((self._since, min(boottime(), deadline), self.term.epoch))
        self.term = None

    def handle_error(self, error: Exception) -> None:
        self.errors.append(error)


class Listener:
    def __init__(self) -> None:
        self.leader: LeaderInformation | None = None
        self.seen: list[LeaderInformation | None] = []

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        self.leader = leader
        self.seen.append(leader)

    def handle_error(self, error: Exception) -> None:
        raise error


@pytest.fixture
async def open_ha(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[RedisHaServices] = []

    def open_services(url: str | None = None, lease: float = LONG_LEASE) -> RedisHaServices:
        timeout = PATIENCE_S if lease >= LONG_LEASE else None
        services = RedisHaServices(url or redis_server.url, "c1", tmp_path / "ha", lease=lease, timeout=timeout)
        opened.append(services)
        return services

    yield open_services
    for services in opened:
        await services.close()


async def contend(services: LatchedHaServices, component: str = DISPATCHER) -> Contender:
    contender = Contender(services.leader_election(component))
    await contender.election.start(contender)
    return contender


def check_never_two(*contenders: Contender) -> None:
    intervals = sorted(interval for contender in contenders for interval in contender.intervals)
    for (_, end, epoch), (begin, _, next_epoch) in itertools.pairwise(intervals):
        assert end <= begin
        assert epoch < next_epoch


async def test_release_hands_over_at_once_and_listeners_follow(keeper: Keeper) -> None:
    services = keeper.open(lease=3600.0), keeper.open(lease=3600.0), keeper.open(lease=3600.0)
    listener = Listener()
    await services[2].leader_retrieval(DISPATCHER).start(listener)
    first = await contend(services[0])
    await until(lambda: first.term)
    second = await contend(services[1])
    term = first.terms[0]
    assert first.election.has_leadership(term)
    assert await first.election.confirm_leadership(term, "akka.tcp://u@a:1/user/d")
    # With a lease of 1 h polling alone would take longer than tests wait: the subscription brings the news.
    await until(lambda: listener.leader)
    assert listener.leader == LeaderInformation(DISPATCHER, "akka.tcp://u@a:1/user/d", term.epoch, term.session)
    await first.election.stop()
    await until(lambda: second.term and listener.seen[-1] is None)
    assert await second.election.confirm_leadership(second.terms[0], "akka.tcp://u@b:1/user/d")
    await until(lambda: listener.leader and listener.leader.address == "akka.tcp://u@b:1/user/d")
    assert not await first.election.confirm_leadership(term, "akka.tcp://u@a:1/user/d")
    await second.election.stop()
    check_never_two(first, second)


async def test_who_follows_a_leader_again_is_told_of_it_again(keeper: Keeper) -> None:
    """A contender that could not take over stops to follow, and begins anew when it is elected the next time."""
    services = keeper.open(lease=3600.0)
    leader = await contend(services)
    await until(lambda: leader.term)
    assert await leader.election.confirm_leadership(leader.terms[0], "akka.tcp://u@a:1/user/d")
    retrieval = services.leader_retrieval(DISPATCHER)
    for listener in (Listener(), Listener()):
        await retrieval.start(listener)
        await until(lambda listener=listener: listener.leader)
        await retrieval.stop()
    await leader.election.stop()


async def test_a_silent_leader_is_succeeded_when_its_lease_ends(keeper: Keeper) -> None:
    dead = keeper.latch(DISPATCHER, LEASE)
    began = boottime()
    granted = await dead.acquire("dead", 0)
    standby = await contend(keeper.open(LEASE))
    await until(lambda: standby.term)
    waited = boottime() - began
    assert waited >= LEASE
    assert standby.terms[0].epoch > granted.epoch
    assert not await dead.renew(LeaderTerm(DISPATCHER, granted.epoch, "dead"), 1.0)
    assert not await dead.confirm(LeaderTerm(DISPATCHER, granted.epoch, "dead"), "akka://old")
    assert not await dead.release(LeaderTerm(DISPATCHER, granted.epoch, "dead"))


async def test_an_epoch_is_above_all_that_a_receiver_has_seen(keeper: Keeper) -> None:
    seen = 2**51  # far ahead of every clock
    reply = await keeper.latch(DISPATCHER, 60.0).acquire("s", seen)
    assert (reply.granted, reply.epoch) == (True, seen + 1)


async def test_a_latch_that_was_given_ends_with_its_lease(redis_server: RedisServer) -> None:
    connection, keys = RedisConnection(redis_server.url, timeout=PATIENCE_S), ClusterKeys("c1")
    assert (await RedisLeaderLatch(connection, keys, DISPATCHER, 60.0).acquire("s", 0)).granted
    assert 0 < await connection.command("PTTL", keys.leader(DISPATCHER)) <= 60_000
    await connection.close()


async def test_a_lost_reply_to_the_acquisition_is_the_same_request_again(keeper: Keeper) -> None:
    latch = keeper.latch(DISPATCHER, 60.0)
    first = await latch.acquire("s", 0)
    async with asyncio.timeout(PATIENCE_S):
        while (again := await latch.acquire("s", 0)).expires_in == first.expires_in:
            pass
    other = await latch.acquire("t", 0)
    assert first.granted
    assert again.granted
    assert again.epoch == first.epoch
    assert again.expires_in < first.expires_in, "it does not begin another lease"
    assert not other.granted
    assert other.epoch == first.epoch
    assert 0 < other.expires_in <= 60.0
    above = await latch.acquire("s", first.epoch + 10**6)
    assert above.granted
    assert above.epoch == first.epoch + 10**6 + 1


async def test_epochs_rise_over_restarts_and_even_over_the_loss_of_all_data(keeper: Keeper) -> None:
    epochs = []
    for loses in (False, False, True, False):
        latch = keeper.latch(DISPATCHER, LEASE)
        for session in "ab":
            reply = await latch.acquire(session, 0)
            assert reply.granted
            epochs.append(reply.epoch)
            await latch.release(LeaderTerm(DISPATCHER, reply.epoch, session))
        await keeper.restart(loses=loses)
    assert epochs == sorted(set(epochs))


async def test_a_short_absence_of_redis_changes_nothing(redis_server: RedisServer, open_ha: Open) -> None:
    leader = await contend(open_ha())
    await until(lambda: leader.term)
    redis_server.kill()
    await until(lambda: leader.election._driver._outage)  # a renewal was not answered
    await asyncio.to_thread(redis_server.start)
    term = leader.terms[0]
    restarted = boottime()
    # By a renewal that the restarted Redis has granted: its lease ends later than any that was asked for before.
    await until(lambda: leader.election._driver._state._deadline > restarted + LONG_LEASE * 0.9)
    assert leader.terms == [term]
    assert leader.election.has_leadership(term)


async def test_a_leader_steps_down_before_its_lease_ends_and_leads_again_later(keeper: Keeper) -> None:
    services = keeper.open(LEASE), keeper.open(LEASE)
    contenders = [await contend(each) for each in services]
    await until(lambda: any(each.term for each in contenders))
    leader = next(each for each in contenders if each.term)
    term = leader.terms[0]
    keeper.pause()
    paused = boottime()
    await until(lambda: leader.term is None)
    # Its last renewal was sent before the pause.
    assert leader.intervals[-1][1] - paused < LEASE, "by its own clock, whenever it was told"
    assert not leader.election.has_leadership(term)
    assert not await leader.election.confirm_leadership(term, "akka://x")
    keeper.resume()
    await until(lambda: any(each.term for each in contenders))
    assert not any(each.errors for each in contenders)
    for each in contenders:
        await each.election.stop()
    check_never_two(*contenders)


async def test_nobody_to_ask_at_the_start_means_standby(keeper: Keeper) -> None:
    keeper.pause()
    contender = await contend(keeper.open(LEASE))
    await until(lambda: contender.election._driver._outage)
    assert contender.terms == []
    keeper.resume()
    await until(lambda: contender.term)
    assert contender.errors == []


async def test_never_two_leaders_while_redis_comes_and_goes(redis_server: RedisServer, open_ha: Open) -> None:
    contenders = [await contend(open_ha(lease=LEASE)) for _ in range(3)]
    for blow in range(6):
        await until(lambda: any(each.term for each in contenders))
        if blow % 2:
            redis_server.pause()
            gone = boottime()
            await until(lambda: not any(each.term for each in contenders))
            assert all(end - gone < LEASE for each in contenders for _, end, _ in each.intervals), "by their own clocks"
            redis_server.resume()
        else:
            redis_server.kill()
            await asyncio.to_thread(redis_server.start)
    for each in contenders:
        await each.election.stop()
    check_never_two(*contenders)
    assert sum(len(each.intervals) for each in contenders) >= 3, "each pause ends a term"


async def test_lost_replies_of_renewals_and_acquisitions_end_in_one_leader(
    redis_proxy: RedisProxy, open_ha: Open
) -> None:
    counter = itertools.count()
    redis_proxy.lose = lambda request: b"EVAL" in request and next(counter) % 2 == 0
    contenders = [await contend(open_ha(redis_proxy.url, LEASE)) for _ in range(2)]
    await until(lambda: any(each.term for each in contenders))
    await until(lambda: redis_proxy.lost >= 8)
    for each in contenders:
        await each.election.stop()
    check_never_two(*contenders)
    assert len([each for each in contenders if each.terms]) >= 1


async def test_a_stale_leader_can_write_nothing(keeper: Keeper) -> None:
    services = keeper.open()
    leader = await contend(services)
    await until(lambda: leader.term)
    old = leader.terms[0]
    leader.election.step_down(old, "for the test")
    await until(lambda: len(leader.terms) == 2)
    new = leader.terms[1]
    assert new.epoch > old.epoch
    assert new.session != old.session
    graphs, jobs = services.job_graph_store(), services.running_jobs_registry()
    await graphs.put("j", b"live", new)
    for write in (
        graphs.put("j", b"stale", old),
        graphs.put("j", b"live", old),
        graphs.remove("j", old),
        jobs.set_running("j", old),
        graphs.put("j", b"forged", LeaderTerm(DISPATCHER, new.epoch, old.session)),
        graphs.put("j", b"forged", LeaderTerm(DISPATCHER, old.epoch, new.session)),
    ):
        with pytest.raises(LeadershipLostError, match=f"epoch {new.epoch} leads now"):
            await write
    assert await graphs.get("j") == b"live"
    assert await jobs.entries() == {}


async def test_a_higher_epoch_seen_by_a_receiver_is_passed(keeper: Keeper) -> None:
    leader = await contend(keeper.open())
    await until(lambda: leader.term)
    ahead = leader.terms[0].epoch + 10**9
    leader.election.observe_epoch(ahead)
    await until(lambda: len(leader.terms) == 2)
    assert leader.terms[1].epoch == ahead + 1


async def test_a_contender_that_fails_to_lead_gives_way(keeper: Keeper) -> None:
    bad = await contend(keeper.open())
    bad.fails = True
    await until(lambda: bad.errors)
    good = await contend(keeper.open())
    await until(lambda: good.term)
    await good.election.stop()
    await bad.election.stop()
    check_never_two(bad, good)


async def confirmed(leader: Contender) -> None:
    """Have a leader say where it is; on a busy machine its first terms may end before it comes to that."""
    async with asyncio.timeout(PATIENCE_S):
        while leader.term is None or not await leader.election.confirm_leadership(leader.term, "akka://a"):  # noqa: ASYNC110
            await asyncio.sleep(0.003)


async def test_a_listener_gives_up_a_leader_that_cannot_lead_any_more(keeper: Keeper) -> None:
    services = keeper.open(LEASE)
    leader = await contend(services)
    await confirmed(leader)
    listener = Listener()
    await keeper.open(LEASE).leader_retrieval(DISPATCHER).start(listener)
    await until(lambda: listener.leader)
    keeper.pause()
    paused = boottime()
    await until(lambda: listener.leader is None)
    assert boottime() - paused > LEASE / 3
    former = leader.terms[-1]
    keeper.resume()
    await until(lambda: leader.terms[-1] != former)
    await confirmed(leader)
    await until(lambda: listener.leader and listener.leader.term != former)
    assert listener.leader is not None
    assert listener.leader.term in leader.terms


async def test_the_end_of_the_cluster_leaves_nothing(keeper: Keeper) -> None:
    services = keeper.open()
    leader = await contend(services)
    await until(lambda: leader.term)
    await services.job_graph_store().put("j", b"g" * 100_000, leader.terms[0])
    await services.running_jobs_registry().set_running("j", leader.terms[0])
    await leader.election.stop()
    await services.cleanup()
    assert await services.job_graph_store().job_ids() == []
    assert await services.running_jobs_registry().entries() == {}
    assert list(keeper.storage.iterdir()) == []


async def test_nothing_is_left_behind(redis_server: RedisServer, open_ha: Open, tmp_path: Path) -> None:
    services = open_ha()
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    await connection.command("SET", "{understudy:c10}:epoch", "1")
    leader, master = await contend(services), await contend(services, "jobmaster-1")
    await until(lambda: leader.term and master.term)
    assert await services.job_graph_store().sweep(leader.terms[0]) == 0
    await services.job_graph_store().put("j", b"g" * 100_000, leader.terms[0])
    await services.running_jobs_registry().set_running("j", leader.terms[0])
    await leader.election.stop()
    await master.election.stop()
    assert not await connection.command("KEYS", "*leader*"), "a stopped contender leaves no latch"
    await services.cleanup()
    assert await connection.command("KEYS", "*") == ["{understudy:c10}:epoch"], "another cluster's key stays"
    assert list((tmp_path / "ha").iterdir()) == []
    await services.close()
    async with asyncio.timeout(PATIENCE_S):  # no connection but this one is left open
        while len(str(await connection.command("CLIENT", "LIST")).splitlines()) > 1:
            pass
    await connection.close()
    assert {task for task in asyncio.all_tasks() if task.get_name().startswith("ha-")} == set()


async def test_a_renewal_restores_the_address_that_a_promoted_replica_has_missed(redis_server: RedisServer) -> None:
    """Seed 1536925223 of the simulator: the replica had the latch, but not yet its confirmation.

    The leader led on, and no follower ever found it.
    """
    connection, keys = RedisConnection(redis_server.url, timeout=PATIENCE_S), ClusterKeys("c1")
    reader = LatchReader(connection, keys)
    latch = RedisLeaderLatch(connection, keys, DISPATCHER, 600.0)
    reply = await latch.acquire("s", 0)
    term = LeaderTerm(DISPATCHER, reply.epoch, "s")
    assert await latch.renew(term, 1.0)
    assert await reader.leader(DISPATCHER) is None, "it has not confirmed its leadership"
    await latch.confirm(term, "akka.tcp://u@a:1/user/d")
    pubsub = connection.pubsub()
    await pubsub.subscribe(keys.changes)
    await connection.command("HDEL", keys.leader(DISPATCHER), "address")
    for _ in range(2):
        assert await latch.renew(term, 1.0)
        assert await reader.leader(DISPATCHER) == LeaderInformation(
            DISPATCHER, "akka.tcp://u@a:1/user/d", reply.epoch, "s"
        )
    await connection.command("PUBLISH", keys.changes, "the last")
    told = [message async for message in _until(pubsub, "the last") if message["type"] == "message"]
    assert [message["data"] for message in told] == [DISPATCHER, "the last"], "one change, not one for each renewal"
    await pubsub.aclose()  # type: ignore[no-untyped-call, unused-ignore]
    await reader.close()
    await connection.close()


async def _until(pubsub: Any, last: str) -> AsyncIterator[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        async for message in pubsub.listen():
            yield message
            if message["data"] == last:
                return


async def test_a_thousand_followers_ask_together(redis_server: RedisServer) -> None:
    connection, keys = RedisConnection(redis_server.url, timeout=PATIENCE_S), ClusterKeys("c1")
    reader = LatchReader(connection, keys)
    latch = RedisLeaderLatch(connection, keys, "jobmaster-7", 600.0)
    reply = await latch.acquire("s", 0)
    assert await reader.leader("jobmaster-7") is None, "it has not confirmed its leadership"
    await latch.confirm(LeaderTerm("jobmaster-7", reply.epoch, "s"), "akka.tcp://u@a:1/user/j")
    await connection.command("CONFIG", "RESETSTAT")
    found = await asyncio.gather(*(reader.leader(f"jobmaster-{number}") for number in range(1000)))
    assert found[7] == LeaderInformation("jobmaster-7", "akka.tcp://u@a:1/user/j", reply.epoch, "s")
    assert found[:7] + found[8:] == [None] * 999
    statistics = await connection.command("INFO", "commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] <= 20
    redis_server.kill()
    for outcome in await asyncio.gather(*(reader.leader("x") for _ in range(3)), return_exceptions=True):
        assert isinstance(outcome, RedisUnreachableError)
    redis_server.start()
    assert await reader.leader("jobmaster-8") is None
    await reader.close()
    await connection.close()


async def test_a_component_that_has_ended_is_deposed_and_what_it_wrote_comes_too_late(keeper: Keeper) -> None:
    """A JobMaster's last write may still be on its way when the Dispatcher removes all that is left of the job."""
    services = keeper.open()
    leader = await contend(services)
    await until(lambda: leader.term)
    term = leader.terms[0]
    component = job_master("a" * 32)
    latch = keeper.latch(component, 60.0)
    reply = await latch.acquire("killed", 0)
    ended = LeaderTerm(component, reply.epoch, "killed")
    executions = services.execution_store()
    await executions.put("a" * 32, b"running", ended)
    with pytest.raises(LeadershipLostError):
        await services.depose(component, LeaderTerm(DISPATCHER, term.epoch, "forged"))
    await executions.put("a" * 32, b"still running", ended)
    await services.depose(component, term)
    await services.depose(component, term)
    with pytest.raises(LeadershipLostError):
        await executions.put("a" * 32, b"late", ended)
    await executions.remove("a" * 32, term)
    assert await executions.find("a" * 32) is None
    assert not await latch.renew(ended, 1.0)
