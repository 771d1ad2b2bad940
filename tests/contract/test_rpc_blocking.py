"""Plain threads that work their connection themselves: who reads, what is held back, interrupts, forks, floods."""

from __future__ import annotations

import _thread
import asyncio
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import AskTimeout, FrameTooLarge, RecipientUnreachable, UnknownActor
from actors.rpc import blocking as rpc_blocking
from actors.rpc import connection as rpc_connection
from actors.rpc.gateway import Ask
from tests.contract.rpc_harness import (
    DEADLINE_S,
    SECRET,
    Item,
    ProbeError,
    ProbeGateway,
    ProbeServer,
    patient_config,
    wait_until,
)
from tests.handshakes import serve_handshake_on
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S


@pytest.fixture(params=["tcp", "uds"])
def socket_dir(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    if request.param == "tcp":
        yield None
        return
    directory = Path(tempfile.mkdtemp(prefix="us-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def server(socket_dir: Path | None) -> Iterator[ProbeServer]:
    server = ProbeServer(socket_dir)
    yield server
    server.close()


@pytest.fixture
def client(server: ProbeServer) -> Iterator[ActorClient]:
    with ActorClient(SECRET, patient_config(socket_dir=server.config.socket_dir)) as client:
        yield client


@pytest.fixture
def probe(server: ProbeServer, client: ActorClient) -> ProbeGateway:
    return client.gateway(server.address, ProbeGateway)


def has_input(client: ActorClient) -> bool:
    """Whether something, or the end, has come to the client's only socket, or was read by its helper already."""

    def has(sock: socket.socket | None) -> bool:
        return sock is None or bool(select.select([sock], [], [], 0)[0])

    return all(one.broken is not None or has(one.sock) for one in client._connections.values())


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "understudy-client"]


# ------------------------------------------------------------------ who reads


def test_the_expected_kind_of_socket_is_used(probe: ProbeGateway, server: ProbeServer) -> None:
    probe.echo(b"").result()
    (connection,) = server.call(lambda: list(server.service.connections))
    assert connection.sock is not None
    assert connection.sock.family == (socket.AF_INET if server.config.socket_dir is None else socket.AF_UNIX)


def test_two_threads_ask_at_once_over_one_connection(server: ProbeServer, probe: ProbeGateway) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: probe.meet(2).result(), range(2))) == [2, 2]
    assert server.call(lambda: len(server.service.connections)) == 1


def test_whoever_stops_reading_hands_on_to_who_waits(server: ProbeServer, probe: ProbeGateway) -> None:
    """The first thread reads for all; the second goes on when it has left."""
    first, second = probe.meet(3), probe.never()
    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(first.result)
        follower = pool.submit(second.result)
        wait_until(lambda: server.probe.waiting == 2, "both asks")
        probe.release()
        assert reader.result(DEADLINE_S) is not None
        assert follower.result(DEADLINE_S) is None


def test_asks_in_one_thread_while_another_floods_tells(probe: ProbeGateway) -> None:
    stop = threading.Event()
    sent = 0

    def flood() -> None:
        nonlocal sent
        while not stop.is_set():
            probe.add(sent)
            sent += 1

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for number in range(200):
            assert probe.echo(b"%d" % number).result() == b"%d" % number
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    wait_until(lambda: len(probe.numbers().result()) == sent, "all tells")
    assert probe.numbers().result() == list(range(sent))


def test_a_threads_tells_and_asks_keep_their_order(probe: ProbeGateway) -> None:
    for number in range(0, 2000, 4):
        probe.add(number)
        probe.add(number + 1)
        ask = probe.add_sync(number + 2)
        probe.add_async(number + 3)
        if number % 100 == 0:
            assert ask.result() == number + 2
    assert probe.numbers().result() == list(range(2000))


def test_replies_in_another_order_and_asks_nobody_waits_for(probe: ProbeGateway) -> None:
    late = probe.meet(2)
    for number in range(3000):  # never waited for, and answered all the same
        probe.add_sync(number)
    assert probe.meet(2).result() == 2
    assert late.result() == 2
    assert probe.numbers().result() == list(range(3000))


def test_results_may_be_had_in_any_order_and_by_several_threads(probe: ProbeGateway) -> None:
    asks = [probe.echo(b"%d" % number) for number in range(500)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda ask: ask.result(), reversed(asks))) == [b"%d" % n for n in reversed(range(500))]
    one = probe.meet(2)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(one.result) for _ in range(3)]
        assert probe.meet(2).result() == 2
        assert [future.result(DEADLINE_S) for future in waiting] == [2, 2, 2]


# ------------------------------------------------------------------ what nobody waits for


def test_a_single_tell_leaves_by_itself(server: ProbeServer, probe: ProbeGateway) -> None:
    probe.add(1)  # makes the connection too
    wait_until(lambda: server.probe.added == [1], "the first tell")
    probe.add(2)
    probe.add(3)
    wait_until(lambda: server.probe.added == [1, 2, 3], "the tells after a pause, and one right behind")


def test_what_is_held_back_leaves_at_the_close(server: ProbeServer) -> None:
    with ActorClient(SECRET, patient_config(socket_dir=server.config.socket_dir)) as client:
        gateway = client.gateway(server.address, ProbeGateway)
        for number in range(100):
            gateway.add(number)
    wait_until(lambda: server.probe.added == list(range(100)), "the tells")


def test_done_may_be_polled(probe: ProbeGateway) -> None:
    ask = probe.meet(2)
    assert not ask.done()
    probe.meet(2).result()
    wait_until(ask.done, "the reply")
    assert ask.result() == 2


def test_callbacks_are_called_though_nobody_waits(probe: ProbeGateway, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[object] = []
    failing = probe.fail_sync("ProbeError", "why")
    failing.add_done_callback(lambda done: outcomes.append(done.exception()))

    def raises(done: object) -> None:
        raise ValueError("in a callback")

    ask = probe.rename(Item("a"), "b")
    ask.add_done_callback(raises)
    ask.add_done_callback(lambda done: outcomes.append(done.result()))
    wait_until(lambda: len(outcomes) == 2, "both callbacks")
    assert isinstance(outcomes[0], ProbeError)
    assert outcomes[1] == Item("b", 1)
    # Where the reply comes in between, the second callback is called here, and the first may still be under way.
    wait_until(lambda: "in a callback" in caplog.text, "what the failing callback raised")
    ask.add_done_callback(lambda done: outcomes.append("at once"))
    assert outcomes[2:] == ["at once"]


def test_a_callback_may_ask_but_not_wait(probe: ProbeGateway) -> None:
    outcomes: list[object] = []

    def ask_on(_: object) -> None:
        further = probe.never()
        try:
            further.result()
        except RuntimeError as error:
            outcomes.append(str(error))
        probe.release()
        further.add_done_callback(lambda done: outcomes.append(done.result()))

    probe.rename(Item("a"), "b").add_done_callback(ask_on)
    wait_until(lambda: len(outcomes) == 2, "both")
    assert "would block the client's own thread" in str(outcomes[0])
    assert outcomes[1] is None


def test_several_event_loops_and_threads_share_a_client(probe: ProbeGateway) -> None:
    async def ask(number: int) -> list[bytes]:
        return list(await asyncio.gather(*(probe.echo(b"%d-%d" % (number, n)) for n in range(100))))

    def in_a_loop(number: int) -> bool:
        return asyncio.run(ask(number)) == [b"%d-%d" % (number, n) for n in range(100)]

    def in_a_thread(number: int) -> bool:
        return all(probe.echo(b"%d-%d" % (number, n)).result() == b"%d-%d" % (number, n) for n in range(100))

    with ThreadPoolExecutor(6) as pool:
        outcomes = [pool.submit(in_a_loop if n % 2 else in_a_thread, n) for n in range(6)]
        assert all(outcome.result(DEADLINE_S) for outcome in outcomes)


def test_an_await_times_out_though_a_thread_reads(client: ActorClient, server: ProbeServer) -> None:
    patient = client.gateway(server.address, ProbeGateway)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(patient.never().result)
        wait_until(lambda: server.probe.waiting == 1, "the reader")

        async def hasty() -> None:
            with pytest.raises(AskTimeout, match=r"never\(\) within 0\.1 s"):
                await client.gateway(server.address, ProbeGateway, timeout_s=0.1).never()
            assert not reading.done(), "it did not wait for the reader"

        asyncio.run(hasty())
        patient.release()
        assert reading.result(DEADLINE_S) is None


def test_a_late_result_is_still_read_when_its_time_is_over(client: ActorClient, server: ProbeServer) -> None:
    assert client.gateway(server.address, ProbeGateway).echo(b"connected").result() == b"connected"
    ask = client.gateway(server.address, ProbeGateway, timeout_s=0.2).add_sync(7)
    wait_until(lambda: server.probe.added == [7], "the ask")
    until = time.monotonic() + 0.3
    wait_until(
        lambda: time.monotonic() > until and (ask.is_done or has_input(client)), "the end of its time, and the reply"
    )
    assert ask.result() == 7


# ------------------------------------------------------------------ broken connections


def test_the_server_is_killed_while_threads_wait(server: ProbeServer, client: ActorClient, probe: ProbeGateway) -> None:
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(probe.never().result) for _ in range(5)]
        wait_until(lambda: server.probe.waiting == 5, "the asks")
        server.break_connections()
        for one in waiting:
            with pytest.raises(RecipientUnreachable, match="the connection broke"):
                one.result(DEADLINE_S)
    assert probe.echo(b"a new connection").result() == b"a new connection"


def test_a_client_that_was_idle_while_its_server_restarted_notices_nothing(
    server: ProbeServer, client: ActorClient, probe: ProbeGateway, socket_dir: Path | None
) -> None:
    assert probe.echo(b"before").result() == b"before"
    server.close()
    wait_until(lambda: has_input(client), "the end of the connection")
    time.sleep(2 * rpc_blocking.STALE_S)
    with pytest.raises(RecipientUnreachable, match="nothing can be reached"):
        probe.echo(b"between").result()
    with ProbeServer(socket_dir, port=server.port).closing() as again:
        assert probe.echo(b"after").result() == b"after"
        again.break_connections()
        wait_until(lambda: has_input(client), "the end of the connection")
        time.sleep(2 * rpc_blocking.STALE_S)
        probe.add(1)
        assert probe.numbers().result() == [1]


def test_a_peer_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the client's helper shakes hands in vain for the first ask, the second waits for the end of that too.
    monkeypatch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf, ActorClient(SECRET, patient_config()) as client:
        address = ActorAddress("s", "127.0.0.1", deaf.getsockname()[1], "/user/a")
        with pytest.raises(AskTimeout):  # its own time was over first
            client.gateway(address, ProbeGateway, timeout_s=0.05).echo(b"x").result()
        monkeypatch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
        with pytest.raises(RecipientUnreachable, match="no handshake"):
            client.gateway(address, ProbeGateway).echo(b"x").result()


def test_closing_leaves_no_thread_and_no_descriptor(server: ProbeServer) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def use() -> None:
        with ActorClient(SECRET, patient_config(socket_dir=server.config.socket_dir)) as client:
            gateway = client.gateway(server.address, ProbeGateway)
            gateway.add(1)
            gateway.echo(b"x").result()
            gateway.echo(b"x").add_done_callback(lambda _: None)
        wait_until(lambda: not server.service.connections, "the end of the connection")

    use()
    before, threads = count(), len(helpers())
    for _ in range(5):
        use()
    wait_until(lambda: count() <= before, "the end of all descriptors")
    wait_until(lambda: len(helpers()) <= threads, "the end of all threads")


# ------------------------------------------------------------------ interrupts and forks


def wait_and_be_interrupted(ask: Ask[None]) -> None:
    """The interrupt may come before the wait has begun, on a busy machine."""
    threading.Timer(0.05, _thread.interrupt_main, (signal.SIGINT,)).start()
    ask.result()


@pytest.mark.usefixtures("no_interrupt_is_lost")
def test_an_interrupted_wait_leaves_the_connection_usable(server: ProbeServer, probe: ProbeGateway) -> None:
    """Ctrl-C in a notebook: other threads' asks go on, and so does the connection."""
    others = ThreadPoolExecutor(1)
    other = probe.meet(2)
    reading = others.submit(other.result)
    for _ in range(5):
        waiting = probe.never()
        with pytest.raises(KeyboardInterrupt):
            wait_and_be_interrupted(waiting)
        assert probe.echo(b"x").result() == b"x"
    assert server.call(lambda: len(server.service.connections)) == 1
    assert probe.meet(2).result() is not None
    assert reading.result(DEADLINE_S) is not None
    others.shutdown()


@pytest.mark.usefixtures("no_interrupt_is_lost")
def test_interrupts_at_any_moment_lose_no_reply(server: ProbeServer, client: ActorClient) -> None:
    """Signals in quick succession hit every step of asking; a send that is cut short is the one that may reconnect."""
    gateway = client.gateway(server.address, ProbeGateway)
    gateway.echo(b"x").result()
    stop = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not stop.wait(0.003):
            signal.pthread_kill(main, signal.SIGUSR1)

    class Interrupted(BaseException):
        pass

    interrupted = answered = 0
    is_armed = False

    def on_signal(*_: object) -> None:
        nonlocal interrupted, is_armed
        if is_armed:  # one at a time, and none that comes when nothing is asked: nobody would catch it
            is_armed = False
            interrupted += 1
            raise Interrupted

    previous = signal.signal(signal.SIGUSR1, on_signal)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        while answered < 500:
            try:
                is_armed = True
                ask = gateway.echo(b"%d" % answered)
                begun = answered
                while True:
                    try:
                        is_armed = True
                        assert ask.result() == b"%d" % begun
                        is_armed = False
                        answered += 1
                        break
                    except Interrupted:
                        pass
                    except RecipientUnreachable:
                        break
                is_armed = False
            except Interrupted:
                pass
    finally:
        is_armed = False
        stop.set()
        thread.join(DEADLINE_S)
        signal.signal(signal.SIGUSR1, previous)
    assert interrupted > 0
    assert gateway.echo(b"after").result() == b"after"


def test_a_forked_child_makes_connections_of_its_own(server: ProbeServer, probe: ProbeGateway) -> None:
    script = textwrap.dedent(
        f"""
        import os, sys, threading
        from pathlib import Path
        from actors.client import ActorClient
        from actors.errors import RecipientUnreachable
        from tests.contract.rpc_harness import SECRET, ProbeGateway, patient_config
        directory = {str(server.config.socket_dir) if server.config.socket_dir else None!r}
        client = ActorClient(SECRET, patient_config(socket_dir=Path(directory) if directory else None))
        probe = client.gateway({str(server.address)!r}, ProbeGateway)
        assert probe.echo(b"parent").result() == b"parent"
        waiting = probe.never()
        waiting.add_done_callback(lambda done: None)
        pid = os.fork()
        if pid == 0:
            try:
                waiting.result()
            except RecipientUnreachable as error:
                assert "forked" in str(error)
            for number in range(100):
                assert probe.echo(b"child %d" % number).result() == b"child %d" % number
            sys.stdout.write("child ")
            sys.stdout.flush()
            os._exit(0)
        for number in range(100):
            assert probe.echo(b"parent %d" % number).result() == b"parent %d" % number
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        probe.release()
        waiting.result()
        client.close()
        print("parent")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, cwd=Path.cwd(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child parent\n"


# ------------------------------------------------------------------ floods


def test_a_flood_of_large_asks_that_reads_nothing_does_not_lock_up(probe: ProbeGateway) -> None:
    """The server stops reading until we read its replies; we read them while we wait for room."""
    data = bytes(64 * 1024)
    asks = [probe.echo(data) for _ in range(500)]
    assert [ask.result() for ask in asks] == [data] * 500


def test_floods_of_several_threads_do_not_lock_up(probe: ProbeGateway) -> None:
    data = bytes(256 * 1024)

    def work(_: int) -> bool:
        asks = [probe.echo(data) for _ in range(50)]
        return all(ask.result() == data for ask in asks)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


class Deaf(threading.Thread):
    """A server that shakes hands and then reads nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ActorAddress("s", "127.0.0.1", self._listener.getsockname()[1], "/user/probe")
        self._over = threading.Event()

    def run(self) -> None:
        peer, _ = self._listener.accept()
        serve_handshake_on(peer, SECRET)
        self._over.wait(DEADLINE_S)
        peer.close()

    def __enter__(self) -> Deaf:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self.join()
        self._listener.close()


def test_a_server_that_takes_nothing_makes_senders_wait_and_memory_stays_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.client.REPORT_S", LONGER_THAN_PATIENCE_S)
    with Deaf() as deaf, ActorClient(SECRET, patient_config(ask_timeout_s=0.3)) as client:
        gateway = client.gateway(deaf.address, ProbeGateway)
        begin = time.monotonic()
        while client.dropped < 2:
            for _ in range(100):
                gateway.add(2**40)
                if client.dropped >= 2:
                    break
            assert time.monotonic() - begin < DEADLINE_S
        (connection,) = client._connections.values()
        assert rpc_blocking.HIGH_WATER // 2 < connection.unsent < 2 * rpc_blocking.HIGH_WATER
        assert time.monotonic() - begin >= 0.6, "each tell was made to wait before it was dropped"
        assert len([record for record in caplog.records if "was not sent" in record.getMessage()]) == 1
        with pytest.raises((RecipientUnreachable, AskTimeout)):
            gateway.echo(b"x").result()


def test_an_event_loop_is_never_made_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Deaf() as deaf,
        ActorClient(SECRET, patient_config(outbox_size=4 << 20, ask_timeout_s=LONGER_THAN_PATIENCE_S)) as client,
    ):
        gateway = client.gateway(deaf.address, ProbeGateway)

        async def flood() -> None:
            data = bytes(1 << 20)
            asks = [gateway.echo(data) for _ in range(100)]
            refused = [ask for ask in asks if ask.done()]
            assert len(refused) > 90
            with pytest.raises(RecipientUnreachable, match="takes nothing"):
                await refused[-1]

        asyncio.run(flood())


# ------------------------------------------------------------------ refusals


def test_what_cannot_be_sent_fails_its_ask_only(probe: ProbeGateway) -> None:
    waiting = probe.never()
    with pytest.raises(FrameTooLarge, match=r"rpc\.frame-size"):
        probe.echo(bytes(11 << 20)).result()
    with pytest.raises(UnknownActor):
        probe.service.gateway(probe.address.with_path("/user/nobody"), ProbeGateway).echo(b"x").result()  # type: ignore[attr-defined]
    assert not waiting.done()
    probe.release()
    assert waiting.result() is None


def test_a_server_with_a_smaller_frame_size_says_so(server: ProbeServer, socket_dir: Path | None) -> None:
    with (
        ProbeServer(socket_dir, frame_size=1 << 20).closing() as small,
        ActorClient(SECRET, patient_config(socket_dir=socket_dir)) as client,
    ):
        gateway = client.gateway(small.address, ProbeGateway)
        waiting = gateway.never()
        with pytest.raises(FrameTooLarge, match=r"over 1048576; .*rpc\.frame-size"):
            gateway.echo(bytes(5 << 20)).result()
        with pytest.raises(FrameTooLarge):
            waiting.result()
        assert gateway.echo(b"x").result() == b"x"


def test_what_is_no_host_name_is_an_error_at_once(client: ActorClient) -> None:
    probe = client.gateway(ActorAddress.parse("akka.tcp://s@master..example.org:6123/user/probe"), ProbeGateway)
    with pytest.raises(RecipientUnreachable, match=r"at master\.\.example\.org:6123 \(it is not a host name\)"):
        probe.echo(b"").result()
