"""One actor system over real processes: where actors live, how messages find them, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors import (
    ActorError,
    ActorNotFound,
    ActorSystem,
    ActorSystemError,
    AskTimeout,
    AuthenticationError,
    DeadLetter,
    InvalidActorName,
    Props,
    RecipientTerminated,
    RecipientUnreachable,
    SerializationError,
)
from actors.ref import ActorRef
from actors.rpc.security import load_or_create_secret
from actors.testkit import TestProbe
from tests.integration.actors_kit import (
    DEADLINE_S,
    MODULE,
    PATIENT,
    ROOT,
    Collector,
    Echo,
    Forwarder,
    Loud,
    Make,
    Parent,
    Tell,
    Work,
    await_count,
    descendants,
    until,
)
from tests.processes import lives
from tests.waiting import PATIENCE_S

PLACEMENTS = ["local", "shared", "pinned"]


@pytest.fixture(scope="module")
def system() -> Iterator[ActorSystem]:
    with ActorSystem("tests", config=PATIENT) as made:
        yield made


def placed(kind: type, placement: str, *args: Any) -> Props:
    props: Props = getattr(Props(kind, *args), placement)()
    return props


# ------------------------------------------------------------------ where actors live


def test_a_pinned_actor_has_a_process_of_its_own_and_shared_ones_have_one_together(system: ActorSystem) -> None:
    refs = {
        name: system.actor_of(props, f"place-{name}")
        for name, props in {
            "default": Props(Echo),
            "pinned": Props(Echo).pinned(),
            "shared-1": Props(Echo).shared(),
            "shared-2": Props(Echo).shared(),
            "local": Props(Echo).local(),
        }.items()
    }
    pids = {name: ref.ask("pid").result() for name, ref in refs.items()}
    assert pids["local"] == os.getpid()
    assert pids["shared-1"] == pids["shared-2"]
    assert len({pids[name] for name in ("default", "pinned", "shared-1", "local")}) == 4
    assert {pids["default"], pids["pinned"], pids["shared-1"]} <= set(system.processes.values())
    for ref in refs.values():
        assert system.graceful_stop(ref, DEADLINE_S).result()
    until(lambda: lives(pids["pinned"]) or lives(pids["default"]), lambda alive: not alive, "their end")
    assert lives(pids["shared-1"]), "others may come"


def test_refs_name_the_system_not_the_process(system: ActorSystem) -> None:
    ref = system.actor_of(Props(Echo), "location")
    assert str(ref).startswith(f"akka.tcp://tests@127.0.0.1:{system.address.port}/user/location#")
    assert ref.ask("self").result() == ref
    assert ActorRef.parse(str(ref), system).ask("pid").result() == ref.ask("pid").result()
    assert system.graceful_stop(ref, DEADLINE_S).result()


def test_several_shared_hosts_are_filled_evenly() -> None:
    with ActorSystem("spread", config=replace(PATIENT, shared_hosts=2)) as system:
        refs = [system.actor_of(Props(Echo).shared()) for _ in range(6)]
        pids = [ref.ask("pid").result() for ref in refs]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]


@pytest.mark.parametrize("of_child", PLACEMENTS)
@pytest.mark.parametrize("of_parent", PLACEMENTS)
def test_children_live_where_their_props_say(system: ActorSystem, of_parent: str, of_child: str) -> None:
    parent = system.actor_of(placed(Parent, of_parent), f"parent-{of_parent}-{of_child}")
    child = parent.ask(Make(of_child, "kid")).result()
    assert child.path == f"{parent.path}/kid"
    pids = parent.ask("pid").result(), child.ask("pid").result()
    assert (pids[0] == pids[1]) == (of_child == "local" or (of_parent == of_child == "shared"))
    assert parent.ask("children").result() == [child]
    assert system.graceful_stop(parent, DEADLINE_S).result()
    with pytest.raises(RecipientTerminated):
        child.ask("x").result()


def test_names_are_unique_and_free_again_when_the_actor_has_stopped(system: ActorSystem) -> None:
    for placement in PLACEMENTS:
        first = system.actor_of(placed(Echo, placement), "unique")
        with pytest.raises(InvalidActorName, match="unique"):
            system.actor_of(placed(Echo, placement), "unique")
        assert first.ask("a").result() == "a"
        assert system.graceful_stop(first, DEADLINE_S).result()
        second = system.actor_of(placed(Echo, placement), "unique")
        assert second != first
        assert second.ask("b").result() == "b"
        with pytest.raises(RecipientTerminated):
            first.ask("c").result()
        assert system.graceful_stop(second, DEADLINE_S).result()


def test_an_actor_that_cannot_be_made_elsewhere_is_told_of(system: ActorSystem) -> None:
    ref = system.actor_of(Props("no.such.module:Actor").pinned(), "impossible")
    with pytest.raises(ActorError):
        ref.ask("x").result()
    until(lambda: [name for name in system.processes if name.startswith("impossible")], lambda names: not names)
    again = system.actor_of(Props(Echo).pinned(), "impossible")
    assert again.ask("x").result() == "x"
    assert system.graceful_stop(again, DEADLINE_S).result()


def test_a_class_inside_a_function_is_refused_with_the_remedy(system: ActorSystem) -> None:
    class Inner(Echo):
        pass

    with pytest.raises(ActorSystemError, match="top of its module"):
        system.actor_of(Props(Inner).shared(), "inner")
    local = system.actor_of(Props(Inner).local(), "inner")
    assert local.ask(1).result() == 1
    assert system.graceful_stop(local).result()


# ------------------------------------------------------------------ messages


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_ask_tell_and_forward(system: ActorSystem, placement: str) -> None:
    echo = system.actor_of(placed(Echo, placement), f"echo-{placement}")
    forwarder = system.actor_of(placed(Forwarder, placement, echo), f"forwarder-{placement}")
    probe = TestProbe(system)
    for value in (1, "text", b"bytes", None, [1, {"a": (2, 3)}], Work(7, "x"), {1, 2}):
        assert echo.ask(value).result() == value
        assert forwarder.ask(value).result() == value
    probe.send(echo, Work(1))
    assert probe.expect_msg_type(Work, DEADLINE_S).number == 1
    assert probe.last_sender == echo
    probe.send(forwarder, "through")
    assert probe.expect_msg("through", DEADLINE_S) == "through"
    assert probe.last_sender == echo
    echo.tell(Tell(probe.ref, echo))
    assert probe.expect_msg(echo, DEADLINE_S).ask("pid").result() == echo.ask("pid").result()

    async def asking() -> list[Any]:
        return list(await asyncio.gather(*(echo.ask(number) for number in range(100))))

    assert asyncio.run(asking()) == list(range(100))
    for ref in (echo, forwarder):
        assert system.graceful_stop(ref, DEADLINE_S).result()


def test_asks_end_in_an_error_or_a_time_out(system: ActorSystem) -> None:
    echo = system.actor_of(Props(Echo).shared(), "failing")
    with pytest.raises(ValueError, match="as ordered"):
        echo.ask("fail").result()
    with pytest.raises(AskTimeout, match=r"/user/failing .* str .* 0\.1 s"):
        echo.ask("forget", 0.1).result()
    with pytest.raises(SerializationError, match="import path"):
        echo.ask(lambda: None).result()
    with pytest.raises(RecipientTerminated):
        ActorRef.parse(f"{system.address}/nobody", system).ask("x").result()
    assert system.graceful_stop(echo).result()


def test_messages_keep_their_order_from_the_first_on(system: ActorSystem) -> None:
    """Those that wait for the actor's process to be known, and those that do not, from each thread."""
    for placement in PLACEMENTS:
        collector = system.actor_of(placed(Collector, placement), f"collector-{placement}")

        def tell(sender: int, to: ActorRef = collector) -> None:
            for number in range(2000):
                to.tell((sender, number))

        threads = [threading.Thread(target=tell, args=(sender,)) for sender in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await_count(collector, 6000)
        got = collector.ask("got").result()
        assert all([n for s, n in got if s == sender] == list(range(2000)) for sender in range(3))
        assert system.graceful_stop(collector, DEADLINE_S).result()


def test_messages_between_two_hosts_keep_their_order(system: ActorSystem) -> None:
    collector = system.actor_of(Props(Collector).pinned(), "ordered")
    forwarder = system.actor_of(Props(Forwarder, collector).pinned(), "ordering")
    for number in range(3000):
        forwarder.tell(number)
    await_count(collector, 3000)
    assert collector.ask("got").result() == list(range(3000))
    for ref in (forwarder, collector):
        assert system.graceful_stop(ref, DEADLINE_S).result()


def test_selections_reach_every_process(system: ActorSystem) -> None:
    refs = {name: system.actor_of(placed(Echo, name), f"select-{name}") for name in PLACEMENTS}
    for name, ref in refs.items():
        found = system.actor_selection(f"/user/select-{name}").resolve_one(DEADLINE_S).result()
        assert found == ref
    probe = TestProbe(system)
    system.actor_selection("/user/select-*").tell("all", probe.ref)
    assert probe.receive_n(3, DEADLINE_S) == ["all"] * 3
    with pytest.raises(ActorNotFound):
        system.actor_selection("/user/nobody").resolve_one(DEADLINE_S).result()
    for ref in refs.values():
        assert system.graceful_stop(ref, DEADLINE_S).result()


def test_the_event_stream_is_the_whole_systems(system: ActorSystem) -> None:
    probe = TestProbe(system)
    system.event_stream.subscribe(probe.ref, DeadLetter)
    collector = system.actor_of(Props(Echo).pinned(), "publisher")
    collector.ask("x").result()
    collector.tell(Tell(ActorRef.parse(f"{collector.address}/nobody", system), "lost"))
    letter = probe.expect_msg_type(DeadLetter, DEADLINE_S)
    assert letter.message == "lost"
    assert letter.recipient.path == "/user/publisher/nobody"
    system.event_stream.unsubscribe(probe.ref)
    assert system.graceful_stop(collector, DEADLINE_S).result()


# ------------------------------------------------------------------ watching and supervision across processes


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_watchers_of_other_processes_are_told_of_the_end(system: ActorSystem, placement: str) -> None:
    echo = system.actor_of(placed(Echo, placement), f"watched-{placement}")
    probe = TestProbe(system)
    probe.watch(echo)
    system.stop(echo)
    told = probe.expect_terminated(echo, DEADLINE_S)
    assert told.existence_confirmed
    assert not told.address_terminated
    probe.watch(echo)
    assert not probe.expect_terminated(echo, DEADLINE_S).existence_confirmed


@pytest.mark.parametrize("of_child", PLACEMENTS)
def test_a_parent_in_another_process_restarts_its_child(system: ActorSystem, of_child: str) -> None:
    probe = TestProbe(system)
    parent = system.actor_of(Props(Parent, probe.ref).shared(), f"restarts-{of_child}")
    child = parent.ask(Make(of_child, "kid")).result()
    pid = child.ask("pid").result()
    child.tell("fail")
    assert probe.receive_one(DEADLINE_S) == ("failed", "ValueError", "as ordered")
    assert child.ask("pid").result() == pid, "the same incarnation, in the same process"
    assert system.graceful_stop(parent, DEADLINE_S).result()


def test_the_hooks_of_a_restart_and_of_a_stop_run_in_the_other_process(system: ActorSystem) -> None:
    probe = TestProbe(system)
    loud = system.actor_of(Props(Loud, probe.ref).pinned(), "loud")
    assert probe.receive_one(DEADLINE_S) == ("made", loud.ask("pid").result())
    loud.tell("fail")
    assert probe.receive_one(DEADLINE_S) == ("pre_restart", "as ordered")
    assert probe.receive_one(DEADLINE_S)[0] == "made"
    assert probe.receive_one(DEADLINE_S) == ("post_restart", "as ordered")
    system.stop(loud)
    assert probe.receive_one(DEADLINE_S) == "post_stop"


def test_a_stopped_child_of_another_process_leaves_its_parent(system: ActorSystem) -> None:
    parent = system.actor_of(Props(Parent).shared(), "left-alone")
    child = parent.ask(Make("pinned", "kid")).result()
    pid = child.ask("pid").result()
    parent.tell(("stop", "kid"))
    until(lambda: parent.ask("children").result(), lambda children: children == [])
    until(lambda: lives(pid), lambda running: not running, "the end of its process")
    assert system.graceful_stop(parent, DEADLINE_S).result()


# ------------------------------------------------------------------ many


def test_a_thousand_shared_actors(system: ActorSystem) -> None:
    refs = [system.actor_of(Props(Echo).shared(), f"many-{number}") for number in range(1000)]
    asks = [ref.ask(number) for number, ref in enumerate(refs)]
    assert [ask.result() for ask in asks] == list(range(1000))
    stops = [system.graceful_stop(ref, DEADLINE_S) for ref in refs]
    assert all(stop.result() for stop in stops)


# ------------------------------------------------------------------ clients


def test_a_client_tells_asks_selects_and_stops(system: ActorSystem) -> None:
    refs = {name: system.actor_of(placed(Echo, name), f"client-{name}") for name in PLACEMENTS}
    collector = system.actor_of(Props(Collector).shared(), "client-collector")
    with ActorSystem.connect(str(system.address), system.secret_file) as client:
        for name, ref in refs.items():
            found = client.actor_selection(f"/user/client-{name}").resolve_one(DEADLINE_S).result()
            assert found == ref
            assert found.ask(Work(1)).result() == Work(1)
            with pytest.raises(ValueError, match="as ordered"):
                found.ask("fail").result()
        for number in range(100):
            client.actor_selection("/user/client-collector").tell(number)
        await_count(collector, 100)
        assert sorted(collector.ask("got").result()) == list(range(100))
        with pytest.raises(ActorNotFound):
            client.actor_selection("/user/client-nobody").resolve_one(DEADLINE_S).result()
        with pytest.raises(ActorSystemError, match="no actors of its own"):
            client.actor_of(Props(Echo))
        for name in PLACEMENTS:
            found = client.actor_selection(f"/user/client-{name}").resolve_one(DEADLINE_S).result()
            assert client.graceful_stop(found, DEADLINE_S).result()
    for ref in refs.values():
        with pytest.raises(RecipientTerminated):
            ref.ask("x").result()
    assert system.graceful_stop(collector).result()


def test_a_client_with_another_secret_is_refused(system: ActorSystem, tmp_path: Path) -> None:
    load_or_create_secret(tmp_path / "another")
    with pytest.raises(AuthenticationError, match="secret"):
        ActorSystem.connect(str(system.address), tmp_path / "another")


def test_a_client_of_nothing_says_so(system: ActorSystem) -> None:
    with pytest.raises(
        RecipientUnreachable, match=r"no actor system can be reached at akka\.tcp://x@127\.0\.0\.1:1/user"
    ):
        ActorSystem.connect("akka.tcp://x@127.0.0.1:1", system.secret_file)


# ------------------------------------------------------------------ the beginning and the end


def test_the_port_of_a_system_is_its_own(system: ActorSystem) -> None:
    with pytest.raises(ActorSystemError, match=f"port {system.address.port}"):
        ActorSystem("second", port=system.address.port)


@pytest.mark.parametrize(("name", "host"), [("a b", "127.0.0.1"), ("", "127.0.0.1"), ("a", "0.0.0.0"), ("a", "::")])
def test_bad_names_and_hosts_are_refused(name: str, host: str) -> None:
    with pytest.raises(ValueError):
        ActorSystem(name, host=host)


def test_terminate_leaves_nothing_behind() -> None:
    before = set(descendants(os.getpid())), threading.active_count()
    system = ActorSystem("gone", config=PATIENT)
    probe = TestProbe(system)
    for placement in PLACEMENTS:
        system.actor_of(placed(Loud, placement, probe.ref)).ask("pid").result()
    directory = system.secret_file.parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(system.secret_file.stat().st_mode) == 0o600
    below = set(descendants(os.getpid())) - before[0]
    assert len(below) >= 3
    ref = system.actor_of(Props(Echo).local())
    system.terminate()
    system.terminate()
    assert not any(map(lives, below))
    assert not directory.exists()
    assert set(descendants(os.getpid())) <= before[0]
    assert threading.active_count() <= before[1]
    with pytest.raises(ActorError):
        ref.ask("x").result()
    with pytest.raises(ActorSystemError, match="terminated"):
        system.actor_of(Props(Echo))


def test_actors_of_other_processes_are_stopped_in_order(tmp_path: Path) -> None:
    class_path = f"{__name__}:LeavesAFile"
    with ActorSystem("orderly", config=PATIENT) as system:
        for placement in PLACEMENTS:
            ref = system.actor_of(getattr(Props(class_path, str(tmp_path / placement)), placement)())
            ref.ask("x").result()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(PLACEMENTS)


class LeavesAFile(Echo):
    def __init__(self, path: str) -> None:
        self.path = path

    def post_stop(self) -> None:
        Path(self.path).touch()


SCRIPT = """
import os, signal, sys, threading
from actors import ActorSystem, Actor, Props

class Mine(Actor):
    def receive(self, message):
        if message == "terminate":
            self.context.system.terminate()
        else:
            self.reply((message, os.getpid()))

def main():
    system = ActorSystem("script")
    for props in (Props(Mine), Props(Mine).shared(), Props(Mine).local()):
        ref = system.actor_of(props)
        assert ref.ask("x").result()[0] == "x"
    print(*system.processes.values(), system.secret_file.parent, flush=True)
    if sys.argv[1] == "wait":
        sys.stdin.read()
    elif sys.argv[1] == "terminate":
        ref = system.actor_of(Props(Mine))
        ref.tell("terminate")
        system.when_terminated.result(600)

if sys.argv[1] == "thread":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
"""


@pytest.mark.parametrize("how", ["forget", "terminate", "thread"])
def test_classes_of_main_work_and_a_forgotten_system_ends_with_its_process(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    *pids, directory = done.stdout.split()
    assert len(pids) == 2
    until(lambda: [pid for pid in pids if lives(int(pid))], lambda alive: not alive, "their end")
    assert not Path(directory).exists()
    assert "Traceback" not in done.stderr


def test_a_killed_process_takes_its_system_with_it_and_the_next_one_clears_up(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), "wait"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        *_, directory = process.stdout.readline().split()
        below = descendants(process.pid)
        assert len(below) >= 3
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    until(lambda: [pid for pid in below if lives(pid)], lambda alive: not alive, "the end of all")
    with ActorSystem("next"):
        assert not Path(directory).exists()


TERMINATED = """
import signal, sys
from pathlib import Path
from actors import Actor, ActorSystem, Props


class Diary(Actor):
    def __init__(self, path):
        self.path = path

    def receive(self, message):
        self.reply("lives")

    def post_stop(self):
        Path(self.path).touch()


if sys.argv[2] == "handled":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
system = ActorSystem("terminated")
actors = [
    system.actor_of(getattr(Props(Diary, f"{sys.argv[1]}/{how}"), how)(), how) for how in ("local", "shared", "pinned")
]
print(*[actor.ask("x").result() for actor in actors], system.secret_file.parent, flush=True)
if sys.argv[2] == "terminate":
    system.terminate()
    print("terminated", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("how", "status"), [("wait", -signal.SIGTERM), ("handled", 7), ("terminate", -signal.SIGTERM)])
def test_sigterm_stops_the_actors_before_the_process_ends(tmp_path: Path, how: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(TERMINATED)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        *_, directory = process.stdout.readline().split()
        if how == "terminate":
            assert process.stdout.readline() == "terminated\n"
        below = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == status
    assert [name for name in ("local", "shared", "pinned") if (tmp_path / name).exists()] == [
        "local",
        "shared",
        "pinned",
    ]
    until(lambda: [pid for pid in below if lives(pid)], lambda alive: not alive, "the end of all")
    assert not Path(directory).exists()


def test_two_systems_in_one_process() -> None:
    with (
        ActorSystem("one", config=PATIENT) as one,
        ActorSystem("two", secret_file=one.secret_file, config=PATIENT) as two,
    ):
        first, second = one.actor_of(Props(Collector), "a"), two.actor_of(Props(Collector), "b")
        seen = two.actor_selection(str(first.address)).resolve_one(DEADLINE_S).result()
        assert seen == first
        assert seen.ask("count").result() == 0
        assert second.ask("count").result() == 0
        one.terminate()
        with pytest.raises(ActorError):
            seen.ask("count").result()
        assert second.ask("count").result() == 0
        assert MODULE


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, actors; print([m for m in ('thespian', 'msgpack', 'asyncio', 'cattrs') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_of_the_package_is_there() -> None:
    import actors

    for name in actors.__all__:
        assert getattr(actors, name) is not None
    assert set(actors.__all__) <= set(dir(actors))
    with pytest.raises(AttributeError, match="no_such_name"):
        actors.no_such_name  # noqa: B018


GRPC_CLIENT = """
import grpc
from concurrent import futures
from actors import ActorSystem
from actors.errors import ActorSystemError

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((Echo(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
assert channel.unary_unary("/a/b")(b"x") == b"x"
try:
    with ActorSystem("beside-grpc"):
        print("started")
except ActorSystemError as error:
    print(error)
"""


@pytest.mark.parametrize("setting", ["", "0"])
def test_an_actor_system_starts_in_a_client_of_grpc_or_says_what_to_do(setting: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_ENABLE_FORK_SUPPORT": setting or "1"}
    command = [sys.executable, "-c", GRPC_CLIENT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    if setting == "0":
        assert done.stdout == "started\n"
    else:
        assert done.stdout == "started\n" or "start the process with GRPC_ENABLE_FORK_SUPPORT=0" in done.stdout
