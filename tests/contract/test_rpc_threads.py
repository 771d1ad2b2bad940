"""Callers that are no actors: plain threads, notebooks, event loops of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import (
    AddressError,
    AskTimeout,
    AuthenticationError,
    FencingError,
    RecipientUnreachable,
    UnknownActor,
)
from actors.receptionist import PATH, Listing, Receptionist, ReceptionistGateway
from actors.rpc.gateway import FencingToken
from tests.contract.rpc_harness import (
    OTHER_SECRET,
    SECRET,
    Item,
    LeaderGateway,
    LoopThread,
    ProbeError,
    ProbeGateway,
    ProbeServer,
    patient_config,
    wait_until,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer(None)
    yield server
    server.close()


@pytest.fixture
def client(server: ProbeServer) -> Iterator[ActorClient]:
    with ActorClient(SECRET, patient_config()) as client:
        yield client


@pytest.fixture
def probe(server: ProbeServer, client: ActorClient) -> ProbeGateway:
    return client.gateway(server.address, ProbeGateway)


def test_results_in_a_plain_thread(probe: ProbeGateway) -> None:
    assert probe.rename(Item("a", 1), "b").result() == Item("b", 2)
    probe.add(1)
    probe.add(2)
    assert probe.numbers().result(timeout=PATIENCE_S) == [1, 2]
    with pytest.raises(ProbeError, match="why"):
        probe.fail_async("ProbeError", "why").result()


def test_a_remote_time_out_error_is_not_taken_for_ones_own(probe: ProbeGateway) -> None:
    with pytest.raises(TimeoutError, match="the handler's") as caught:
        probe.fail_sync("TimeoutError", "the handler's").result()
    assert not isinstance(caught.value, AskTimeout)


def test_many_threads_share_one_gateway(probe: ProbeGateway) -> None:
    def work(thread: int) -> bool:
        return all(probe.echo(b"%d-%d" % (thread, n)).result() == b"%d-%d" % (thread, n) for n in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_each_threads_messages_keep_their_order(probe: ProbeGateway) -> None:
    def work(thread: int) -> None:
        for number in range(200):
            if number % 3:
                probe.add(thread * 1000 + number)
            else:
                probe.add_async(thread * 1000 + number)
        probe.numbers().result()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    numbers = probe.numbers().result()
    for thread in range(4):
        assert [number for number in numbers if number // 1000 == thread] == [thread * 1000 + n for n in range(200)]


def test_an_ask_of_one_thread_is_awaited_in_another_event_loop(probe: ProbeGateway) -> None:
    async def work() -> list[bytes]:
        return await asyncio.gather(*(probe.echo(b"%d" % n) for n in range(50)))

    assert asyncio.run(work()) == [b"%d" % n for n in range(50)]

    async def fail() -> None:
        with pytest.raises(ProbeError, match="why"):
            await probe.fail_sync("ProbeError", "why")

    asyncio.run(fail())


def test_an_await_given_up_in_another_loop_leaves_no_noise(
    server: ProbeServer, client: ActorClient, probe: ProbeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up(text: str) -> None:
        ask = probe.never() if text == "late reply" else probe.meet(99)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask, 0.05)

    asyncio.run(give_up("late reply"))
    wait_until(lambda: server.probe.waiting == 1, "the arrival")
    probe.release()
    assert probe.echo(b"after").result() == b"after"
    server.call(server.probe.gate.clear)
    asyncio.run(give_up("late failure"))
    server.break_connections()
    wait_until(
        lambda: not any(one.broken is None for one in client._connections.values()),
        "the end of the connection at the client",
    )
    assert probe.echo(b"again").result() == b"again"
    assert [record.getMessage() for record in caplog.records if record.name in ("asyncio", "concurrent.futures")] == []


def test_result_is_refused_on_the_loops_own_thread(server: ProbeServer, client: ActorClient) -> None:
    """In a handler, say: it could only wait for itself."""
    gateway = server.service.gateway(server.address, ProbeGateway)

    def in_a_handler() -> None:
        gateway.echo(b"x").result()

    with pytest.raises(RuntimeError, match="await it instead"):
        server.call(in_a_handler)
    ask = gateway.meet(2)  # made on this thread, waited for on the loop's
    with pytest.raises(RuntimeError, match="await it instead"):
        server.call(ask.result)
    assert gateway.meet(2).result() == 2
    assert ask.result() == 2


def test_time_outs_in_a_plain_thread(server: ProbeServer, client: ActorClient) -> None:
    patient = client.gateway(server.address, ProbeGateway)
    assert patient.echo(b"connected").result() == b"connected"
    hasty = client.gateway(server.address, ProbeGateway, timeout_s=0.1)
    with pytest.raises(AskTimeout, match=r"never\(\) within 0\.1 s"):
        hasty.never().result()
    ask = patient.meet(3)  # the third is the one above, which still waits at the server
    with pytest.raises(AskTimeout, match=r"no reply within 0\.05 s"):
        ask.result(timeout=0.05)
    assert patient.meet(3).result() == 3
    assert ask.result() == 3, "waiting shorter than the ask lasts does not end the ask"


def test_done_callbacks_of_plain_threads(probe: ProbeGateway) -> None:
    outcome: concurrent.futures.Future[bytes] = concurrent.futures.Future()
    probe.echo(b"x").add_done_callback(lambda done: outcome.set_result(done.result()))
    assert outcome.result(PATIENCE_S) == b"x"


# ------------------------------------------------------------------ the receptionist, and looking up


@pytest.fixture
def receptionist(server: ProbeServer) -> Receptionist:
    receptionist = server.call(Receptionist, server.service)
    server.do(server.service.start_server(receptionist))
    return receptionist


def listing(server: ProbeServer, name: str, token: FencingToken | None = None, pid: int = 1) -> Listing:
    address = server.service.address_of(f"/user/{name}")
    return Listing(address.path, str(address), pid, token)


def test_lookup_by_the_systems_address(server: ProbeServer, client: ActorClient, receptionist: Receptionist) -> None:
    with ProbeServer(None).closing() as elsewhere:
        client.gateway(server.address.with_path(PATH), ReceptionistGateway).register(
            listing(elsewhere, "probe")
        ).result()
        system = f"akka.tcp://understudy@127.0.0.1:{server.port}/user/probe"
        assert client.find(system).address == str(elsewhere.address)
        client.lookup(system, ProbeGateway).add_sync(7).result()
        assert elsewhere.probe.added == [7]
        assert server.probe.added == []


def test_lookup_carries_the_present_token(server: ProbeServer, client: ActorClient, receptionist: Receptionist) -> None:
    old, new = FencingToken(1, "old"), FencingToken(2, "new")
    address = f"akka.tcp://understudy@127.0.0.1:{server.port}/user/leader"
    server.leader.fencing_token = old
    server.call(receptionist.enter, listing(server, "leader", old))
    gateway = client.lookup(address, LeaderGateway)
    assert gateway.lead().result() == "led"
    server.leader.fencing_token = new
    server.call(receptionist.enter, listing(server, "leader", new))
    with pytest.raises(FencingError):
        gateway.lead().result()
    assert client.lookup(address, LeaderGateway).lead().result() == "led"


def test_the_receptionist_is_found_at_its_own_address(
    server: ProbeServer, client: ActorClient, receptionist: Receptionist
) -> None:
    server.call(receptionist.enter, listing(server, "probe"))
    directory = client.lookup(server.address.with_path(PATH), ReceptionistGateway)
    assert directory.listings().result() == [listing(server, "probe")]


def test_a_listing_of_an_older_leadership_does_not_replace_a_newer(
    server: ProbeServer, client: ActorClient, receptionist: Receptionist
) -> None:
    directory = client.gateway(server.address.with_path(PATH), ReceptionistGateway)
    newer, older = listing(server, "a", FencingToken(2, "n"), 2), listing(server, "a", FencingToken(1, "o"), 1)
    directory.register(newer).result()
    for late in (older, listing(server, "a", None, 3)):
        with pytest.raises(FencingError, match="a later leadership of /user/a") as refused:
            directory.register(late).result()
        assert refused.value.epoch == 2
    assert directory.find("/user/a").result() == newer
    newest = listing(server, "a", FencingToken(3, "x"), 4)
    directory.register(newest).result()
    assert directory.find("/user/a").result() == newest


def test_listings_come_and_go(server: ProbeServer, client: ActorClient, receptionist: Receptionist) -> None:
    directory = client.gateway(server.address.with_path(PATH), ReceptionistGateway)
    for name, pid in (("b", 1), ("a", 2), ("c", 2)):
        directory.register(listing(server, name, pid=pid)).result()
    assert [one.path for one in directory.listings().result()] == ["/user/a", "/user/b", "/user/c"]
    directory.deregister("/user/b", "akka.tcp://understudy@elsewhere:1/user/b")
    assert len(directory.listings().result()) == 3, "an actor that moved is not removed by its former home"
    directory.deregister("/user/b", listing(server, "b").address)
    assert [one.path for one in directory.listings().result()] == ["/user/a", "/user/c"]
    server.call(receptionist.forget_process, 2)
    assert directory.listings().result() == []


def test_errors_of_a_lookup(server: ProbeServer, client: ActorClient, receptionist: Receptionist) -> None:
    with pytest.raises(UnknownActor, match="no actor /user/nobody is known to akka"):
        client.lookup(server.address.with_path("/user/nobody"), ProbeGateway)
    with pytest.raises(AddressError):
        client.lookup("probe", ProbeGateway)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(RecipientUnreachable, match=f"nothing can be reached at 127.0.0.1:{port}"):
            client.lookup(ActorAddress("s", "127.0.0.1", port, "/user/a"), ProbeGateway)
    with (
        ActorClient(OTHER_SECRET, patient_config()) as intruder,
        pytest.raises(AuthenticationError, match="does not hold"),
    ):
        intruder.lookup(server.address, ProbeGateway)


# ------------------------------------------------------------------ the end of a client


def test_close_ends_the_thread_and_what_is_asked(server: ProbeServer) -> None:
    before = set(threading.enumerate())
    client = ActorClient(SECRET, patient_config())
    gateway = client.gateway(server.address, ProbeGateway)
    ask = gateway.never()
    wait_until(lambda: server.probe.waiting == 1, "the arrival")
    client.close()
    client.close()
    with pytest.raises(RecipientUnreachable, match="closed"):
        ask.result(timeout=PATIENCE_S)
    wait_until(
        lambda: {thread for thread in threading.enumerate() if thread.name.startswith("understudy-client")} <= before,
        "the end of the thread",
    )
    wait_until(lambda: not server.service.connections, "the end of the connection")


def test_calls_after_close_say_so(server: ProbeServer) -> None:
    client = ActorClient(SECRET, patient_config())
    gateway = client.gateway(server.address, ProbeGateway)
    assert gateway.echo(b"x").result() == b"x"
    client.close()
    with pytest.raises(RecipientUnreachable, match="closed"):
        gateway.echo(b"x").result(timeout=PATIENCE_S)
    gateway.add(1)  # a tell is never an error to its sender
    with pytest.raises(RecipientUnreachable, match="closed"):
        client.find(server.address)


def test_a_loop_thread_may_use_a_client_too(server: ProbeServer, client: ActorClient) -> None:
    other = LoopThread()

    async def work() -> bytes:
        return await client.gateway(server.address, ProbeGateway).echo(b"x")

    assert other.do(work()) == b"x"
    other.end()
