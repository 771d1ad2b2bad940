# ruff: noqa: F811 - fixtures are imported by name
"""A replica becomes the master, by Sentinel or by hand: never two leaders, and no epoch goes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime.ha.connection import RedisConnection
from runtime.ha.errors import LeadershipLostError, RedisAuthenticationError, RedisUnreachableError
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.services import RedisHaServices
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from tests.contract.test_ha_election import Contender, Listener, check_never_two, contend
from tests.fakes.redis_replicas import PASSWORD, SENTINEL_PASSWORD, SERVICE, Server, Servers, TcpProxy, servers  # noqa: F401
from tests.fakes.redis_server import until
from tests.waiting import PATIENCE_S

LEASE = 12.0
NEVER_DOWN = 3600.0
"""In seconds, until Sentinel is told otherwise."""
PATIENCE = PATIENCE_S


async def replicated(master: Server) -> None:
    """Return when the replica has everything that the master has."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(master.command, "WAIT", 1, 500) < 1:
            pass


async def follows(replica: Server) -> None:
    """Return when the replica is one."""
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(replica.command, "INFO", "replication"))["master_link_status"] != "up":
            pass


async def test_sentinel_names_another_master_and_latch_and_stores_go_on(
    servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = await asyncio.to_thread(servers.redis)
    replica = await asyncio.to_thread(servers.redis, f"replicaof 127.0.0.1 {master.port}")
    sentinel = await asyncio.to_thread(servers.sentinel, master, NEVER_DOWN)
    await follows(replica)
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(sentinel.command, "SENTINEL", "REPLICAS", SERVICE):
            pass
    where = f"127.0.0.1:{sentinel.port}/{SERVICE}/0?sentinel-password={SENTINEL_PASSWORD}"
    url = f"redis+sentinel://:{PASSWORD}@{where}"
    services = [RedisHaServices(url, "c1", tmp_path / "ha", lease=LEASE, timeout=10.0) for _ in range(3)]
    check = await services[0].start()
    assert any("min-replicas-to-write" in warning for warning in check.warnings)

    first, second = await contend(services[0]), await contend(services[1])
    listener = Listener()
    await services[2].leader_retrieval(DISPATCHER).start(listener)
    await until(lambda: first.term or second.term, PATIENCE)
    leader = first if first.term else second
    old = leader.terms[-1]
    graphs, jobs = services[2].job_graph_store(), services[2].running_jobs_registry()
    await graphs.put("j1", b"one", old)
    await jobs.set_running("j1", old)
    assert await leader.election.confirm_leadership(old, "akka://old")
    await until(lambda: listener.leader, PATIENCE)
    await replicated(master)
    await asyncio.to_thread(master.kill)
    # Sentinel acts after the lease. Where it acts earlier, the leader keeps its latch, and no new term begins.
    await until(lambda: leader.term is None, PATIENCE)
    # It takes no replica that has been without its master for more than ten times that long.
    down_after = ("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 3000)
    await asyncio.to_thread(sentinel.command, *down_after)

    await until(lambda: any(each.term and each.term != old for each in (first, second)), PATIENCE)
    successor = first if first.term else second
    new = successor.terms[-1]
    assert new.epoch > old.epoch
    await graphs.put("j2", b"two", new)
    await jobs.set_done("j1", {"state": "FINISHED"}, new)
    assert await graphs.get_all() == {"j1": b"one", "j2": b"two"}
    assert await jobs.dirty_results() == {"j1": {"state": "FINISHED"}}
    with pytest.raises(LeadershipLostError):
        await graphs.put("j2", b"stale", old)
    assert await successor.election.confirm_leadership(new, "akka://new")
    await until(lambda: listener.leader and listener.leader.address == "akka://new", PATIENCE)
    for each in (first, second):
        await each.election.stop()
    check_never_two(first, second)
    for each in services:
        await each.close()

    for wrong, error in (
        (f"redis+sentinel://:{PASSWORD}@{where.replace(SERVICE, 'other')}", RedisUnreachableError),
        (f"redis+sentinel://:wrong-s3cret@{where}", RedisAuthenticationError),
        (f"redis+sentinel://:{PASSWORD}@{where}-s3cret", RedisUnreachableError),
    ):
        connection = RedisConnection(wrong, timeout=5.0)
        with pytest.raises(error, match=f"of the Sentinels 127.0.0.1:{sentinel.port}") as told:
            await connection.check()
        assert "s3cret" not in str(told.value)
        await connection.close()
    assert "s3cret" not in caplog.text


async def test_a_server_that_may_have_forgotten_a_leader_waits_for_the_end_of_its_lease(servers: Servers) -> None:
    """A young server without an append-only file may have been restarted; one with it has lost nothing."""
    replies = []
    for setting in ("appendonly no", "appendonly yes"):
        server = await asyncio.to_thread(servers.redis, setting)
        connection = RedisConnection(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0", timeout=10.0)
        latch = RedisLeaderLatch(connection, ClusterKeys("c1"), DISPATCHER, 600.0)
        replies.append(await latch.acquire("s", 0))
        replies.append(await latch.acquire("s", 0))
        if setting == "appendonly no":
            # The pause was of the lease that was asked for; it is over when the server's clock says so.
            await connection.command("HSET", ClusterKeys("c1").incarnation, "until", "1")
            replies.append(await latch.acquire("s", 0))
        await connection.close()
    first, again, after, *durable = replies
    assert [(each.granted, each.epoch) for each in (first, again)] == [(False, 0)] * 2
    assert 0 < again.expires_in <= first.expires_in <= 600.0
    assert after.granted
    assert all(each.granted for each in durable)


async def test_a_clock_that_is_set_back_lengthens_no_lease(servers: Servers) -> None:
    """Redis keeps the moment at which a latch expires: set back by an hour, its clock is an hour away from it."""
    server = await asyncio.to_thread(servers.redis, "appendonly yes")
    connection = RedisConnection(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0", timeout=10.0)
    key, hour = ClusterKeys("c1").leader(DISPATCHER), 3_600_000
    leader, other = (RedisLeaderLatch(connection, ClusterKeys("c1"), DISPATCHER, lease) for lease in (60.0, 6.0))
    await leader.acquire("s", 0)
    await connection.command("PEXPIRE", key, hour)
    reply = await other.acquire("t", 0)
    assert not reply.granted
    assert 6.0 < reply.expires_in <= 60.0, "the leader's lease counts, not the one that this contender asks for"
    assert 6_000 < await connection.command("PTTL", key) <= 60_000
    await connection.command("PEXPIRE", key, hour)
    again = await leader.acquire("s", 0)
    assert again.granted
    assert again.expires_in <= 60.0
    await connection.command("HDEL", key, "lease")  # as the former release leaves it
    await connection.command("PEXPIRE", key, hour)
    assert (await other.acquire("t", 0)).expires_in > 3_000
    await connection.close()


async def test_a_clock_that_is_set_back_lengthens_no_pause(servers: Servers) -> None:
    server = await asyncio.to_thread(servers.redis, "appendonly no")
    connection = RedisConnection(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0", timeout=10.0)
    latch, other = (RedisLeaderLatch(connection, ClusterKeys("c1"), DISPATCHER, lease) for lease in (600.0, 6.0))
    incarnation = ClusterKeys("c1").incarnation
    assert not (await latch.acquire("s", 0)).granted
    until = int(await connection.command("HGET", incarnation, "until"))
    await connection.command("HSET", incarnation, "until", str(until + 3_600_000))
    for contender in (other, latch):
        reply = await contender.acquire("s", 0)
        assert (reply.granted, reply.epoch) == (False, 0)
        assert 6.0 < reply.expires_in <= 600.0
    assert int(await connection.command("HGET", incarnation, "until")) < until + 600_000
    await connection.close()


async def test_a_replica_that_missed_the_last_leader_makes_no_second_one(servers: Servers, tmp_path: Path) -> None:
    """The replica is cut off, a leader rises, the master dies, and the replica that knows nothing of it takes over."""
    master = await asyncio.to_thread(servers.redis)
    replication, clients = TcpProxy(master.port), TcpProxy(master.port)
    await replication.start()
    await clients.start()
    replica = await asyncio.to_thread(servers.redis, f"replicaof 127.0.0.1 {replication.port}")
    await follows(replica)
    url = f"redis://:{PASSWORD}@127.0.0.1:{clients.port}/0"
    services = [RedisHaServices(url, "c1", tmp_path / "ha", lease=LEASE, timeout=10.0) for _ in range(3)]

    former = await contend(services[0])
    await until(lambda: former.term, PATIENCE)
    await former.election.stop()
    await replicated(master)
    replication.lose()
    forgotten = await contend(services[1])
    await until(lambda: forgotten.term, PATIENCE)
    lost = forgotten.terms[0]
    graphs = services[1].job_graph_store()
    await graphs.put("j", b"graph", lost)
    assert "epoch" not in str(await asyncio.to_thread(replica.command, "KEYS", "*leader*")), "it knows no leader"
    await asyncio.to_thread(master.kill)
    await asyncio.to_thread(replica.command, "REPLICAOF", "NO", "ONE")
    clients.turn(replica.port)

    successors = [await contend(services[0]), await contend(services[2])]
    everybody: list[Contender] = [former, forgotten, *successors]
    await until(lambda: any(each.term for each in successors) or forgotten.term not in (None, lost), PATIENCE)
    leader = next(each for each in everybody if each.term)
    new = leader.terms[-1]
    assert new.epoch > lost.epoch > former.terms[0].epoch
    assert not forgotten.election.has_leadership(lost)
    with pytest.raises(LeadershipLostError):
        await graphs.put("j", b"stale", lost)
    with pytest.raises(LeadershipLostError):
        await graphs.put("j", b"forged", LeaderTerm(DISPATCHER, new.epoch, lost.session))
    await graphs.put("j", b"graph", new)
    for each in everybody[1:]:
        await each.election.stop()
    check_never_two(*everybody)
    for service in services:
        await service.close()
    await replication.stop()
    await clients.stop()
