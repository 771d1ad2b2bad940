"""The process system over real processes. A driver process owns the system, as the runtime's Master does; run as a
module, this file is that driver: one JSON command a line on its input, one JSON answer a line on its output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError, ActorSystemError, RecipientUnreachable, UnknownActor
from actors.process.host import HostSpec
from actors.process.logs import LogConfig
from actors.process.system import HostedActor, ProcessActorSystem
from actors.receptionist import PATH, Listing, Receptionist, ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc, rpc_sync, rpc_tell
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcConfig, RpcService
from tests.processes import lives
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.integration.test_actor_system"
DEADLINE_S = PATIENCE_S

# ------------------------------------------------------------------ the actors


class GreeterGateway(RpcGateway):
    def greet(self, name: str) -> Ask[str]: ...

    def pid(self) -> Ask[int]: ...

    def after(self, delay_s: float) -> Ask[float]: ...

    def write_log(self, text: str) -> None: ...

    def greet_through(self, address: str, name: str) -> Ask[str]: ...

    def die(self) -> None: ...

    def hang(self) -> None: ...


class Greeter(RpcEndpoint, GreeterGateway):
    def __init__(self, service: RpcService, name: str, greeting: str = "hello", stopped: str = "") -> None:
        super().__init__(service, name)
        self._greeting = greeting
        self._stopped = stopped

    async def on_stop(self) -> None:
        if self._stopped:
            Path(self._stopped).touch()

    @rpc_sync
    def greet(self, name: str) -> str:
        return f"{self._greeting} {name}"

    @rpc_sync
    def pid(self) -> int:
        return os.getpid()

    @rpc
    async def after(self, delay_s: float) -> float:
        await asyncio.sleep(delay_s)
        return delay_s

    @rpc_tell
    def write_log(self, text: str) -> None:
        logging.getLogger("greeter").info(text)

    @rpc
    async def greet_through(self, address: str, name: str) -> str:
        return await self.service.gateway(address, GreeterGateway).greet(name)

    @rpc_tell
    def die(self) -> None:
        os._exit(3)

    @rpc_tell
    def hang(self) -> None:
        threading.Event().wait()


async def make_greeter(service: RpcService, name: str, **arguments: Any) -> RpcEndpoint:
    return Greeter(service, name, **arguments)


class Companion(RpcEndpoint):
    """Stops once as many companions as there are stop."""

    def __init__(self, service: RpcService, name: str, directory: str, count: int) -> None:
        super().__init__(service, name)
        self._directory = Path(directory)
        self._count = count

    async def on_stop(self) -> None:
        (self._directory / f"{self.path.rpartition('/')[2]}.stops").touch()
        while len(list(self._directory.glob("*.stops"))) < self._count:  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.01)
        (self._directory / f"{self.path.rpartition('/')[2]}.stopped").touch()


async def make_companion(service: RpcService, name: str, **arguments: Any) -> RpcEndpoint:
    return Companion(service, name, **arguments)


_prepared: list[str] = []


async def prepare_greeting(service: RpcService, greeting: str) -> None:
    _prepared.append(f"{greeting}, prepared in {os.getpid()},")


async def make_prepared_greeter(service: RpcService, name: str, greeting: str) -> RpcEndpoint:
    return Greeter(service, name, _prepared.pop() if _prepared else greeting)


async def prepare_badly(service: RpcService) -> None:
    raise ValueError("the disk of this actor is on fire")


async def make_receptionist(service: RpcService, name: str) -> RpcEndpoint:
    return Receptionist(service)


async def make_nothing(service: RpcService, name: str) -> RpcEndpoint:
    raise ValueError("the disk of this actor is on fire")


async def make_dying(service: RpcService, name: str) -> RpcEndpoint:
    os._exit(3)


class FailsToStart(RpcEndpoint):
    async def on_start(self) -> None:
        raise ValueError("on_start is on fire")


async def make_failing(service: RpcService, name: str) -> RpcEndpoint:
    return FailsToStart(service, name)


# ------------------------------------------------------------------ the driver


def drive(directory: Path) -> None:
    load_or_create_secret(directory / "secret")
    system = ProcessActorSystem()
    actors: dict[str, HostedActor] = {}
    answer({"admin": system.admin_pid})
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            if command in ("start", "spare"):
                name, factory, values, unix, prepare = arguments
                rpc_config = RpcConfig(system="tests", socket_dir=directory / "run" if unix else None)
                spec = HostSpec(
                    name=name,
                    factory=f"{MODULE}:{factory}" if ":" not in factory else factory,
                    arguments=values,
                    rpc=rpc_config,
                    secret_file=directory / "secret",
                    log=LogConfig(directory / "log" / f"{name}.log"),
                    prepare=prepare and f"{MODULE}:{prepare}",
                )
                if command == "spare":
                    system.keep_spare(spec)
                    answer({})
                    continue
                actors[name] = system.start(spec)
                answer({"address": str(actors[name].address), "pid": actors[name].pid})
            elif command == "stop":
                system.stop(actors.pop(arguments[0]), arguments[1])
                answer({})
            elif command == "stop_all":
                names, deadline_s = arguments
                system.stop_all([actors.pop(name) for name in names], deadline_s)
                answer({})
            elif command == "shutdown":
                system.shutdown(*arguments)
                answer({})
        except ActorError as error:
            answer({"error": str(error), "type": type(error).__name__})


def answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


@dataclass
class Started:
    address: ActorAddress
    pid: int


class Driver:
    """The tests' hand on a driver process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("run", "log"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        with (directory / "driver.err").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )
        self.seen: dict[int, psutil.Process] = {}
        self.admin = int(self._read()["admin"])
        self.look()

    @property
    def secret(self) -> bytes:
        return load_or_create_secret(self.directory / "secret")

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the driver ended: {(self.directory / 'driver.err').read_text()}")
        return dict(json.loads(line))

    def command(self, *words: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        result = self._read()
        self.look()
        return result

    def start(
        self, name: str, factory: str = "make_greeter", unix: bool = True, prepare: str = "", **arguments: Any
    ) -> Started:
        result = self.command("start", name, factory, arguments, unix, prepare)
        if "error" in result:
            assert result["type"] == "ActorSystemError"
            raise ActorSystemError(result["error"])
        return Started(ActorAddress.parse(result["address"]), result["pid"])

    def stop(self, name: str, deadline_s: float = DEADLINE_S) -> None:
        assert self.command("stop", name, deadline_s) == {}

    def processes(self) -> list[psutil.Process]:
        """The driver and everything below it that runs."""
        return [process for process in self.seen.values() if is_running(process)]

    def look(self) -> None:
        """Remember every process that there is, so that none is lost when its parent ends."""
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.process.pid)
            self.seen.update({process.pid: process for process in [driver, *driver.children(recursive=True)]})

    def await_end_of_all(self) -> None:
        wait_until(lambda: not self.processes(), lambda: f"the end of {self.processes()}")

    def errors(self) -> str:
        return (self.directory / "driver.err").read_text()

    def close(self) -> None:
        """End everything, in order where that goes and by force where not."""
        self.look()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and lives(process.pid)


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what if isinstance(what, str) else what()} did not come about")
        time.sleep(0.01)


@contextlib.contextmanager
def new_driver() -> Iterator[Driver]:
    directory = Path(tempfile.mkdtemp(prefix="us-"))
    driver = Driver(directory)
    try:
        yield driver
    finally:
        driver.close()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def shared() -> Iterator[Driver]:
    """For the tests that leave it as they found it."""
    with new_driver() as driver:
        yield driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    with new_driver() as driver:
        yield driver


@contextlib.contextmanager
def calling(driver: Driver, unix: bool = True) -> Iterator[ActorClient]:
    config = RpcConfig(system="tests", socket_dir=driver.directory / "run" if unix else None)
    with ActorClient(driver.secret, config) as client:
        yield client


def greeter(client: ActorClient, actor: Started, timeout_s: float = DEADLINE_S) -> GreeterGateway:
    return client.gateway(actor.address, GreeterGateway, timeout_s=timeout_s)


# ------------------------------------------------------------------ hosted actors


@pytest.mark.parametrize("unix", [True, False], ids=["uds", "tcp"])
def test_hosted_actors_answer_from_processes_of_their_own(shared: Driver, unix: bool) -> None:
    started = [shared.start(f"greeter-{n}", greeting=f"salve{n}") for n in range(3)]
    with calling(shared, unix) as client:
        assert [greeter(client, one).greet("ann").result() for one in started] == [f"salve{n} ann" for n in range(3)]
        assert [greeter(client, one).pid().result() for one in started] == [one.pid for one in started]
        assert greeter(client, started[0]).after(0.05).result() == 0.05
    assert len({one.pid for one in started} | {shared.process.pid, shared.admin, os.getpid()}) == 6
    for n in range(3):
        shared.stop(f"greeter-{n}")


def test_an_actor_that_was_prepared_for_starts_in_the_spare_process_and_finds_what_it_prepared(driver: Driver) -> None:
    factory, prepare = "make_prepared_greeter", "prepare_greeting"
    assert driver.command("spare", "spare", factory, {"greeting": "salve"}, True, prepare) == {}
    first = driver.start("first", factory, prepare=prepare, greeting="ave")
    second = driver.start("second", factory, prepare=prepare, greeting="ave")
    with calling(driver) as client:
        assert greeter(client, first).greet("ann").result() == f"salve, prepared in {first.pid}, ann"
        assert greeter(client, second).greet("ann").result() == "ave ann", "there was one spare process"


def test_a_spare_process_runs_what_wants_nothing_prepared_and_nothing_that_wants_something_else(driver: Driver) -> None:
    factory, prepare = "make_prepared_greeter", "prepare_greeting"
    assert driver.command("spare", "spare", factory, {"greeting": "salve"}, True, prepare) == {}
    other = driver.start("other", prepare="prepare_nothing", greeting="ave")
    plain = driver.start("plain", factory, greeting="ave")
    with calling(driver) as client:
        assert greeter(client, other).greet("ann").result() == "ave ann"
        assert greeter(client, plain).greet("ann").result() == f"salve, prepared in {plain.pid}, ann"


def test_what_cannot_be_prepared_is_told_and_leaves_no_process(driver: Driver) -> None:
    before = len(driver.processes())
    told = driver.command("spare", "spare", "make_greeter", {}, True, "prepare_badly")
    assert "the disk of this actor is on fire" in told["error"]
    wait_until(lambda: len(driver.processes()) == before, "the end of the spare process")


def test_actors_ask_each_other(shared: Driver) -> None:
    first, second = shared.start("first"), shared.start("second", greeting="ave")
    with calling(shared) as client:
        assert greeter(client, first).greet_through(str(second.address), "bob").result() == "ave bob"
    shared.stop("first")
    shared.stop("second")


def test_many_timers_and_asks_at_once_through_one_embedded_loop(shared: Driver) -> None:
    actor = shared.start("busy")
    with calling(shared) as client:
        gateway = greeter(client, actor)
        delays = [gateway.after(0.001 * n) for n in range(200)]
        greetings = [gateway.greet(str(n)) for n in range(2000)]
        assert [ask.result() for ask in greetings] == [f"hello {n}" for n in range(2000)]
        assert [ask.result() for ask in delays] == [0.001 * n for n in range(200)]
    shared.stop("busy")


def test_an_idle_actor_uses_next_to_no_processor_time(shared: Driver) -> None:
    actor = shared.start("idle")
    with calling(shared) as client:
        assert greeter(client, actor).greet("x").result() == "hello x"
        process = psutil.Process(actor.pid)

        def rests() -> bool:
            before = process.cpu_times()
            # Not a wait for something to come about: the time is what is measured.
            time.sleep(1.0)
            after = process.cpu_times()
            return bool(after.user + after.system - before.user - before.system <= 0.05)

        wait_until(rests, "a second of rest, once the actor has done what its start has left to do")
    shared.stop("idle")


def test_lookup_by_the_address_of_the_system(shared: Driver) -> None:
    directory, actor = shared.start("receptionist", "make_receptionist"), shared.start("greeter")
    assert directory.address.path == PATH
    with calling(shared) as client:
        client.lookup(directory.address, ReceptionistGateway).register(
            Listing("/user/greeter", str(actor.address), actor.pid)
        ).result()
        system = f"akka.tcp://tests@127.0.0.1:{directory.address.port}"
        assert client.find(f"{system}/user/greeter").pid == actor.pid
        assert client.lookup(f"{system}/user/greeter", GreeterGateway).greet("ann").result() == "hello ann"
        with pytest.raises(UnknownActor, match="/user/nobody"):
            client.lookup(f"{system}/user/nobody", GreeterGateway)
    shared.stop("receptionist")
    shared.stop("greeter")


def test_an_actor_has_a_name_in_the_process_list(shared: Driver) -> None:
    actor = shared.start("named")
    assert Path(f"/proc/{actor.pid}/comm").read_text().strip() == "us-named"
    shared.stop("named")


def test_stop_lets_the_endpoint_stop_and_leaves_no_process_and_no_socket(shared: Driver) -> None:
    marker = shared.directory / "stopped"
    actor = shared.start("orderly", stopped=str(marker))
    socket_file = shared.directory / "run" / f"rpc-{actor.address.port}"
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
    shared.stop("orderly")
    assert marker.exists()
    assert not socket_file.exists()
    wait_until(lambda: not psutil.pid_exists(actor.pid), "the end of the process, reaped")
    with calling(shared) as client, pytest.raises(RecipientUnreachable):
        greeter(client, actor).greet("x").result()


def test_actors_that_are_stopped_together_wait_neither_for_each_other_nor_for_a_deaf_one(driver: Driver) -> None:
    names = [f"companion-{n}" for n in range(3)]
    arguments = {"directory": str(driver.directory), "count": len(names)}
    started = [driver.start(name, "make_companion", **arguments) for name in names]
    deaf = driver.start("deaf")
    os.kill(deaf.pid, signal.SIGSTOP)

    def end_the_deaf_one_last() -> None:
        wait_until(lambda: not any(psutil.pid_exists(one.pid) for one in started), "the ends of the others, reaped")
        os.kill(deaf.pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(end_the_deaf_one_last)
        assert driver.command("stop_all", ["deaf", *names], LONGER_THAN_PATIENCE_S) == {}
        last.result()
    assert sorted(path.stem for path in driver.directory.glob("*.stopped")) == names


def test_a_name_can_be_taken_again_after_a_stop(shared: Driver) -> None:
    first = shared.start("again")
    shared.stop("again")
    second = shared.start("again")
    assert second.pid != first.pid
    shared.stop("again")


# ------------------------------------------------------------------ failures to start


@pytest.mark.parametrize(
    ("factory", "arguments", "reason"),
    [
        ("make_nothing", {}, "ValueError: the disk of this actor is on fire"),
        ("make_failing", {}, "ValueError: on_start is on fire"),
        ("no.such.module:make", {}, "ModuleNotFoundError: No module named 'no'"),
        ("no_such_function", {}, "AttributeError: .*no_such_function"),
        ("make_greeter", {"no_such_argument": 1}, "TypeError: .*no_such_argument"),
    ],
)
def test_what_cannot_be_started_says_why_in_one_line(
    shared: Driver, factory: str, arguments: dict[str, Any], reason: str
) -> None:
    before = {process.pid for process in shared.processes()}
    with pytest.raises(ActorSystemError, match=rf"^broken could not be started: {reason}") as caught:
        shared.start("broken", factory, **arguments)
    assert "\n" not in str(caught.value)
    log = shared.directory / "log" / "broken.log"
    assert str(log) in str(caught.value)
    assert "Traceback" in log.read_text()
    wait_until(lambda: {process.pid for process in shared.processes()} <= before, "the end of the failed actor")
    started = shared.start("works", "make_greeter")
    with calling(shared) as client:
        assert greeter(client, started).greet("x").result() == "hello x"
    shared.stop("works")


def test_a_process_that_dies_while_it_starts_is_noticed(shared: Driver) -> None:
    with pytest.raises(ActorSystemError, match=r"^dying could not be started: its process ended without a word"):
        shared.start("dying", "make_dying")
    shared.start("next")
    shared.stop("next")


def test_a_start_after_the_admins_end_says_so(driver: Driver) -> None:
    admin = os.pidfd_open(driver.admin)
    try:
        signal.pidfd_send_signal(admin, signal.SIGKILL)
        assert select.select([admin], [], [], DEADLINE_S)[0], "the admin does not end"
    finally:
        os.close(admin)
    with pytest.raises(
        ActorSystemError, match=rf"late could not be started: .*admin \(process {driver.admin}\) has ended"
    ):
        driver.start("late")


# ------------------------------------------------------------------ logs


def test_an_actor_logs_to_its_file_and_nowhere_else(shared: Driver) -> None:
    actor = shared.start("logger")
    log = shared.directory / "log" / "logger.log"
    with calling(shared) as client:
        gateway = greeter(client, actor)
        for number in range(50):
            gateway.write_log(f"line {number} of the greeter")
        gateway.greet("x").result()
    lines = [line for line in log.read_text().splitlines() if "of the greeter" in line]
    assert len(lines) == 50
    assert all(f"[{actor.pid}] greeter - line {number} of" in line for number, line in enumerate(lines))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "of the greeter" not in shared.errors()
    others = [file for file in (shared.directory / "log").iterdir() if file != log]
    assert not [file for file in others if "of the greeter" in file.read_text()]
    shared.stop("logger")


# ------------------------------------------------------------------ kills


def test_a_killed_actor_is_noticed_by_who_asks_it_and_the_system_goes_on(driver: Driver) -> None:
    victim, other = driver.start("victim"), driver.start("other")
    with calling(driver) as client:
        assert greeter(client, victim).greet("x").result() == "hello x"
        ask = greeter(client, victim, LONGER_THAN_PATIENCE_S).after(LONGER_THAN_PATIENCE_S)
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(RecipientUnreachable):
            ask.result()
        with pytest.raises(RecipientUnreachable):
            greeter(client, victim).greet("x").result()
        assert greeter(client, other).greet("x").result() == "hello x"
        wait_until(lambda: not psutil.pid_exists(victim.pid), "the end of the process, reaped")
        driver.stop("victim")  # of a dead actor: nothing to do
        again = driver.start("victim")
        assert greeter(client, again).greet("x").result() == "hello x"


def test_an_actor_that_ends_itself_does_not_harm_the_system(driver: Driver) -> None:
    actor = driver.start("mortal")
    with calling(driver) as client:
        greeter(client, actor).die()
        wait_until(lambda: not psutil.pid_exists(actor.pid), "the end of the process, reaped")
        assert greeter(client, driver.start("next")).greet("x").result() == "hello x"


def test_many_actors_killed_at_once(driver: Driver) -> None:
    victims = [driver.start(f"victim-{n}") for n in range(6)]
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(victim.pid) for victim in victims), "the end of all")
    with calling(driver) as client:
        assert greeter(client, driver.start("survivor")).greet("x").result() == "hello x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_terminals_signals_do_not_end_an_actor(shared: Driver, number: signal.Signals) -> None:
    actor = shared.start("steady")
    os.kill(actor.pid, number)
    with calling(shared) as client:
        assert greeter(client, actor).greet("x").result() == "hello x"
    shared.stop("steady")


def test_a_killed_admin_takes_all_its_actors_with_it(driver: Driver) -> None:
    started = [driver.start(f"actor-{n}") for n in range(3)]
    below = [process for process in driver.processes() if process.pid != driver.process.pid]
    assert {one.pid for one in started} | {driver.admin} <= {process.pid for process in below}
    os.kill(driver.admin, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, below)), lambda: f"the end of {list(filter(is_running, below))}")
    assert driver.process.poll() is None


def test_a_killed_driver_takes_the_whole_system_with_it(driver: Driver) -> None:
    for n in range(3):
        driver.start(f"actor-{n}")
    assert len(driver.processes()) >= 5
    driver.process.kill()
    driver.process.wait(DEADLINE_S)
    driver.await_end_of_all()


def test_stop_of_a_deaf_actor_ends_it_by_force(driver: Driver) -> None:
    deaf, other = driver.start("deaf"), driver.start("other")
    os.kill(deaf.pid, signal.SIGSTOP)
    begin = time.monotonic()
    driver.stop("deaf", 1.0)
    assert time.monotonic() - begin >= 0.9
    wait_until(lambda: not psutil.pid_exists(deaf.pid), "the end of the process, reaped")
    assert f"deaf (process {deaf.pid}) did not stop within 1 s: killed" in driver.errors()
    with calling(driver) as client:
        assert greeter(client, other).greet("x").result() == "hello x"
        assert greeter(client, driver.start("next")).greet("x").result() == "hello x"
    driver.stop("other", LONGER_THAN_PATIENCE_S)  # the message that the deaf one never took is not waited for again
    driver.stop("next", LONGER_THAN_PATIENCE_S)


def test_shutdown_leaves_nothing_behind(driver: Driver) -> None:
    marker = driver.directory / "stopped"
    driver.start("orderly", stopped=str(marker))
    for n in range(3):
        driver.start(f"actor-{n}", unix=n > 0)
    below = [process for process in driver.processes() if process.pid != driver.process.pid]
    assert driver.command("shutdown", DEADLINE_S) == {}
    assert not any(psutil.pid_exists(process.pid) for process in below), "no zombies either"
    assert driver.command("shutdown") == {}, "a second time there is nothing to do"
    assert marker.exists(), "actors that still run are stopped in order"
    assert list((driver.directory / "run").iterdir()) == []
    assert driver.errors() == ""


def test_shutdown_with_a_deaf_actor_ends_all_the_same(driver: Driver) -> None:
    deaf = driver.start("deaf")
    os.kill(deaf.pid, signal.SIGSTOP)
    below = [process for process in driver.processes() if process.pid != driver.process.pid]
    driver.command("shutdown", LONGER_THAN_PATIENCE_S)  # a suspended process cannot stop, and is not waited for
    wait_until(lambda: not any(map(is_running, below)), lambda: f"the end of {list(filter(is_running, below))}")


def test_shutdown_kills_what_does_not_stop_in_time_and_lets_the_others_stop(driver: Driver) -> None:
    hangs = driver.start("hangs")
    driver.start("orderly", stopped=str(driver.directory / "stopped"))
    with calling(driver) as client:
        greeter(client, hangs).hang()
        wait_until(lambda: not answers(client, hangs), "the hang")
    below = [process for process in driver.processes() if process.pid != driver.process.pid]
    begin = time.monotonic()
    driver.command("shutdown", 15.0)  # enough for the other one on a busy machine
    assert time.monotonic() - begin > 15
    assert (driver.directory / "stopped").exists()
    assert "hangs (process" in driver.errors()
    assert "orderly (process" not in driver.errors()
    wait_until(lambda: not any(map(is_running, below)), lambda: f"the end of {list(filter(is_running, below))}")


def answers(client: ActorClient, actor: Started) -> bool:
    try:
        greeter(client, actor, timeout_s=0.2).pid().result()
    except ActorError:
        return False
    return True


def test_shutdown_after_the_admin_was_killed(driver: Driver) -> None:
    actor = driver.start("actor")
    os.kill(driver.admin, signal.SIGKILL)
    assert driver.command("shutdown", LONGER_THAN_PATIENCE_S) == {}
    assert not any(psutil.pid_exists(pid) for pid in (driver.admin, actor.pid)), "no zombies either"


# ------------------------------------------------------------------ ports


def listening_ports(process: psutil.Process) -> list[tuple[str, int]]:
    return [
        (connection.laddr.ip, connection.laddr.port)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    ]


def test_every_port_is_loopback_only(shared: Driver) -> None:
    actor = shared.start("ports")
    ports = {process.pid: listening_ports(process) for process in shared.processes()}
    assert ("127.0.0.1", actor.address.port) in ports[actor.pid]
    assert len(ports[actor.pid]) >= 2, "its own and Thespian's"
    assert ports[shared.admin], "Thespian's admin port is there to be looked at"
    assert {ip for held in ports.values() for ip, _ in held} == {"127.0.0.1"}
    shared.stop("ports")


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def throw(port: int, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    with contextlib.suppress(OSError):  # it may hang up on the first bytes
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    return sock


def await_hang_up(sock: socket.socket) -> None:
    """Wait until the other side has dealt with what was thrown: it hangs up, perhaps after an answer."""
    with sock, contextlib.suppress(ConnectionError):
        while sock.recv(4096):
            pass


def throw_everywhere(driver: Driver, pieces: list[bytes]) -> None:
    """At every port of the system, and see that all is dealt with and the system goes on."""
    actor = driver.start("target")
    held = {process.pid: {port for _, port in listening_ports(process)} for process in driver.processes()}
    own = held.pop(driver.process.pid)  # served by the driver itself, while it talks to Thespian
    ports = set().union(*held.values()) - own
    assert own
    assert actor.address.port in ports
    assert len(ports) >= 3, "the admin's, the actor's RPC port, and its Thespian port"
    thrown = [throw(port, data) for port in own for data in pieces]
    for port in ports:
        for data in pieces:
            await_hang_up(throw(port, data))
    with calling(driver) as client:
        assert greeter(client, actor).greet("x").result() == "hello x"
        for n in range(3):
            assert greeter(client, driver.start(f"afterwards-{n}")).greet("x").result() == "hello x"
    for sock in thrown:
        await_hang_up(sock)
    assert driver.admin in {process.pid for process in driver.processes()}


def thespian_frame(data: bytes) -> bytes:
    return b"%d>%s" % (len(data), data)


STOCK = """
import sys
from thespian.actors import ActorSystem
system = ActorSystem("multiprocTCPBase", {"Admin Port": int(sys.argv[1])}, transientUnique=True)
print("up", flush=True)
sys.stdin.read()
system.shutdown()
"""


def test_the_bombs_of_these_tests_go_off_in_stock_thespian(tmp_path: Path) -> None:
    """Without which the next test would prove nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-c", STOCK, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as stock:
        assert stock.stdin is not None
        assert stock.stdout is not None
        assert stock.stdout.readline() == b"up\n"
        await_hang_up(throw(port, thespian_frame(pickle.dumps(Bomb(tmp_path / "executed")))))
        wait_until((tmp_path / "executed").exists, "the explosion")
        stock.stdin.close()
        stock.wait(DEADLINE_S)


def test_a_pickle_thrown_at_any_port_is_not_executed_and_harms_nothing(driver: Driver, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    pieces = [bomb, bytes(32) + bomb, bytes(32 + 24) + bomb]
    throw_everywhere(driver, [*pieces, *map(thespian_frame, pieces)])
    assert not (tmp_path / "executed").exists()


GARBAGE = [b"99999999999>", b"-5>abc", b"x" * 5000, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(5000), b"10>short", b""]


def test_garbage_thrown_at_any_port_harms_nothing(driver: Driver) -> None:
    throw_everywhere(driver, GARBAGE)


def test_connections_that_say_nothing_do_not_hold_the_system_up(driver: Driver) -> None:
    ports = {port for process in driver.processes() for _, port in listening_ports(process)}
    with contextlib.ExitStack() as stack:
        for port in ports:
            for data in [b"", b"10", b"10>short"] * 10:
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
                sock.sendall(data)
        with calling(driver) as client:
            assert greeter(client, driver.start("meanwhile")).greet("x").result() == "hello x"
        driver.stop("meanwhile")


def test_a_client_without_the_secret_reaches_no_actor(shared: Driver) -> None:
    actor = shared.start("guarded")
    with (
        ActorClient(b"not the secret of the system", RpcConfig(system="tests")) as intruder,
        pytest.raises(ActorError, match="secret"),
    ):
        greeter(intruder, actor).greet("x").result()
    log = shared.directory / "log" / "guarded.log"
    wait_until(lambda: "refused" in log.read_text(), "the log line")
    assert shared.secret.decode() not in log.read_text()
    shared.stop("guarded")


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
