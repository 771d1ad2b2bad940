"""The simulated operating system: parents, zombies, signals, pidfds, pipes, descriptors, ``/proc`` and `subprocess`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.kernel import Kernel
from tests.simulation.patches import installed
from tests.simulation.processes import FIRST_PID, PIDS, Entry, System

Program = Callable[[System], object]


def simulated(main: Program, *, seed: int = 1, until_s: float = 30.0, **programs: Callable[[], object]) -> Any:
    """Run *main* as a process of a user, with programs that it can start by their names; return what it returns."""
    kernel = Kernel(seed)
    system = System(kernel)
    for name, program in programs.items():
        system.programs[name] = lambda arguments, program=program: int(bool(program()))
    with installed(kernel):
        host = kernel.add_host("one")
        entry = system.start(host, "main", lambda: main(system))
        kernel.run(until_s)
        waits = kernel.describe_waits()
        result, complaints, code = entry.sim.result, list(kernel.complaints), entry.sim.exit_code
        kernel.close()
    assert not complaints, complaints[0]
    assert code == 0, waits
    return result


def sleep_for_ever() -> None:
    time.sleep(1e6)


def states() -> dict[int, str]:
    """Return the states of all processes, as ``/proc`` shows them."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_a_child_is_a_zombie_until_its_parent_waits_for_it() -> None:
    def main(system: System) -> Any:
        child = subprocess.Popen(["child"])
        running = states()[child.pid]
        time.sleep(5.0)
        ended = states()[child.pid]
        assert system.zombies()
        status = child.wait()
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, 0)
        return running, ended, status, child.pid in states(), system.zombies()

    assert simulated(main, child=lambda: 3) == ("S", "Z", 1, False, [])


def test_orphans_go_to_the_next_subreaper_and_a_parent_death_signal_kills() -> None:
    def main(system: System) -> Any:
        system.entry().is_subreaper = True
        found: list[Entry] = []

        def middle() -> None:
            found.extend(system.fork(name, sleep_for_ever) for name in ("kept", "killed"))
            found[1].dies_with_parent = True
            time.sleep(1.0)

        between = system.fork("middle", middle)
        os.waitpid(between.pid, 0)
        time.sleep(1.0)
        kept, killed = found
        assert kept.parent is system.entry()
        return kept.is_running, killed.is_running, os.waitpid(killed.pid, 0)[1]

    assert simulated(main) == (True, False, 9)


def test_a_stopped_process_takes_signals_when_it_goes_on_and_sigkill_at_once() -> None:
    def main(system: System) -> Any:
        first, second = subprocess.Popen(["child"]), subprocess.Popen(["child"])
        time.sleep(1.0)
        for child in (first, second):
            child.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        first.terminate()
        second.kill()
        time.sleep(1.0)
        seen = first.poll(), states()[first.pid], second.poll()
        first.send_signal(signal.SIGCONT)
        return *seen, first.wait(timeout=1.0)

    assert simulated(main, child=sleep_for_ever) == (None, "T", -9, -15)


def test_a_pidfd_means_its_process_even_after_the_pid_was_used_again() -> None:
    def main(system: System) -> Any:
        first = subprocess.Popen(["child"])
        descriptor = os.pidfd_open(first.pid)
        assert not select.select([descriptor], [], [], 0.0)[0]
        first.kill()
        assert select.select([descriptor], [], [], 5.0)[0] == [descriptor]
        first.wait()
        others = [subprocess.Popen(["child"]) for _ in range(PIDS - 1)]
        assert first.pid in [other.pid for other in others]
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert all(FIRST_PID <= other.pid < FIRST_PID + PIDS for other in others)
        os.close(descriptor)
        host = system.entry().sim.host
        before = list(host.processes)
        with pytest.raises(BlockingIOError):
            subprocess.Popen(["child"])
        assert host.processes == before  # the end of a suspend would wake one without a pid
        return [other.poll() for other in others] == [None] * len(others)

    assert simulated(main, child=sleep_for_ever)


def test_a_pipe_ends_when_the_last_process_that_can_write_has_ended() -> None:
    def main(system: System) -> Any:
        reading, writing = os.pipe()
        child = subprocess.Popen(["child"], pass_fds=(writing,))
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            before = bool(select.select([pipe], [], [], 1.0)[0])
            child.kill()
            return before, pipe.read(10)

    assert simulated(main, child=sleep_for_ever) == (False, b"")


def test_a_started_process_has_only_the_descriptors_that_it_was_given_and_a_forked_one_has_all() -> None:
    def main(system: System) -> Any:
        _reading, writing = os.pipe()
        outcomes: list[object] = []

        def write() -> None:
            try:
                outcomes.append(os.write(writing, b"x"))
            except OSError as error:
                outcomes.append(error.errno)

        system.programs["child"] = lambda arguments: int(bool(write()))
        subprocess.Popen(["child"]).wait()
        subprocess.Popen(["child"], pass_fds=(writing,)).wait()
        os.waitpid(system.fork("forked", write).pid, 0)
        return outcomes

    assert simulated(main) == [9, 1, 1]


def test_a_module_runs_with_its_arguments_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def main_of_module() -> int:
        seen.extend([sys.argv[1:], os.environ["COLOUR"], os.environ.get("HOME")])
        return 4

    module = types.ModuleType("simulated_program")
    module.main = main_of_module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "simulated_program", module)

    def main(system: System) -> Any:
        child = subprocess.Popen(
            [sys.executable, "-m", "simulated_program", "one", "two"], env={"COLOUR": "red"}, stdout=subprocess.DEVNULL
        )
        environ = Path(f"/proc/{child.pid}/environ").read_bytes()
        return child.wait(), environ

    assert simulated(main) == (4, b"COLOUR=red\0")
    assert seen == [["one", "two"], "red", None]


def test_a_start_fails_as_often_as_it_was_ordered() -> None:
    def main(system: System) -> Any:
        system.failing["child"] = 2
        return [subprocess.Popen(["child"]).wait() for _ in range(3)]

    assert simulated(main, child=lambda: 0) == [1, 1, 0]


def test_a_host_that_loses_its_power_has_no_process_and_another_boot_id() -> None:
    kernel = Kernel(1)
    system = System(kernel)
    boots: list[str] = []

    def main() -> None:
        boots.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        system.fork("child", sleep_for_ever)
        sleep_for_ever()

    with installed(kernel):
        host = kernel.add_host("one")
        first = system.start(host, "main", main)
        kernel.run(1.0)
        assert len(system.running()) == 2
        host.crash()
        assert not system.running()
        assert not system.zombies()
        assert first.is_reaped
        host.boot()
        system.start(host, "main", main)
        kernel.run(2.0)
        assert boots[0] != boots[1]
        kernel.close()


def test_a_process_killed_at_a_step_does_not_do_it() -> None:
    def main(system: System) -> Any:
        reading, writing = os.pipe()

        def write() -> None:
            for letter in b"abcdef":
                os.write(writing, bytes([letter]))

        child = system.fork("child", write)
        child.sim.kill_at_effect(4)
        status = os.waitpid(child.pid, 0)[1]
        return os.read(reading, 10), status

    assert simulated(main) == (b"abc", 9)


def test_a_killed_process_ends_though_its_loop_always_has_something_to_do() -> None:
    turns: list[float] = []

    def main(system: System) -> Any:
        async def turn_for_ever() -> None:
            while True:
                with contextlib.suppress(SystemExit):  # as code that handles every error
                    system.entry().sim.effect()
                turns.append(time.monotonic())
                await asyncio.sleep(0)

        child = system.fork("child", lambda: asyncio.run(turn_for_ever()))
        child.sim.kill_at_effect(5)
        return os.waitpid(child.pid, 0)[1]

    assert simulated(main) == 9
    assert len(turns) == 5
