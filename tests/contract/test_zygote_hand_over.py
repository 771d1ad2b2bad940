"""A zygote that is handed over has one owner at a time, or none for a while, whatever ends; else its tasks end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from actors.errors import AuthenticationError
from runtime.protocol.leader import boottime
from runtime.spark.errors import WireError
from runtime.spark.messages import Note
from runtime.spark.process import start_time
from runtime.spark.task import zygote, zygote_client
from runtime.spark.task.zygote_client import HELD, HeldZygote, TaskProcess, Zygote
from runtime.spark.wire import encode
from tests.cluster_harness import await_value
from tests.processes import lives
from tests.waiting import PATIENCE_S

PROGRAM = """\
import os, socket, sys
from runtime.spark.messages import Note, pack
from runtime.spark.task import zygote

def run_task(spec, channel):
    channel.send(pack(Note("begun")))
    while (message := channel.receive()) is not None:
        if message["type"] == "EndSession":
            return 7
        channel.send(pack(Note(message["type"])))
    return 137

zygote.decode = lambda data, kind: data
zygote.run_task = run_task
zygote._Zygote(socket.socket(fileno=int(sys.argv[1]))).serve()
"""
"""A zygote without its modules, whose tasks say what they are told, and end when they are told to, or have no owner."""

LONG_S = 10 * PATIENCE_S


@dataclass
class Scene:
    zygote: Zygote
    process: subprocess.Popen[bytes]
    driver: subprocess.Popen[bytes]
    directory: Path

    @property
    def driver_key(self) -> tuple[int, int]:
        started = start_time(self.driver.pid)
        assert started is not None
        return self.driver.pid, started

    async def task(self) -> TaskProcess:
        task = await self.zygote._fork({"spec": b""})
        assert await told(task) == "begun"
        return task

    def leave(self, *kept: TaskProcess, seconds: float = LONG_S, state: bytes = b"state") -> None:
        """The owner hands the tasks over, and ends, as far as anybody sees."""
        self.zygote.hand_over(kept, state, boottime() + seconds, self.driver_key, self.directory)
        self.end_owner(*kept)

    def end_owner(self, *tasks: TaskProcess) -> None:
        self.zygote._reading.cancel()
        self.zygote._sock.close()
        for task in tasks:
            task.close()

    def found(self) -> HeldZygote:
        (held,) = HeldZygote.find(self.directory)
        return held


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", PROGRAM, str(theirs.fileno()), "runtime.spark.task.zygote"]
    process = subprocess.Popen(words, pass_fds=(theirs.fileno(),))  # noqa: ASYNC220  # returns at once
    theirs.close()
    ours.setblocking(False)
    driver = subprocess.Popen(["sleep", str(int(LONG_S))])  # noqa: ASYNC220
    zygote = Zygote(process, process.pid, ours)
    try:
        await zygote._ready
        yield Scene(zygote, process, driver, tmp_path)
    finally:
        for each in (process, driver):
            each.kill()
            each.wait()


async def told(task: TaskProcess) -> str | None:
    """The next message of a task; None if it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        message = await task._receive()
    assert message is None or isinstance(message, Note)
    return None if message is None else message.text


async def ended(*pids: int) -> None:
    await asyncio.to_thread(await_value, lambda: not any(map(lives, pids)))


async def adopted(held: HeldZygote) -> tuple[Zygote, dict[int, TaskProcess]]:
    held.adopt()
    return held.owned()


async def test_a_successor_has_the_tasks_as_they_were_and_their_end_ends_them(scene: Scene) -> None:
    kept, other = await scene.task(), await scene.task()
    await kept.cancel()
    assert await told(kept) == "Cancel"
    await kept.cancel()  # the answer waits in the socket, or in the old owner
    scene.leave(kept)
    await ended(other.pid)
    held = scene.found()
    assert (held.state, held.pids) == (b"state", {kept.pid})
    zygote, tasks = await adopted(held)
    task = tasks[kept.pid]
    assert await told(task) == "Cancel"
    await task.cancel()
    assert await told(task) == "Cancel"
    assert list(scene.directory.glob(f"{HELD}*")) == []
    await task.end_session()
    async with asyncio.timeout(PATIENCE_S):
        assert await task.wait() == 7
        await zygote.wait_until_idle()
    await zygote.stop()
    await ended(scene.process.pid)
    assert lives(scene.driver.pid)


async def test_what_was_read_and_not_acted_on_goes_on_with_the_successor(scene: Scene) -> None:
    kept = await scene.task()
    await kept.cancel()
    await kept._readable()
    data = kept._control.recv(65536)
    kept.feed(data[:5])  # half a message
    assert kept.unread == data[:5]
    unread = kept.unread
    scene.leave(kept)
    _, tasks = await adopted(scene.found())
    tasks[kept.pid].feed(unread + data[5:])
    tasks[kept.pid].feed(data)
    assert (await told(tasks[kept.pid]), await told(tasks[kept.pid])) == ("Cancel", "Cancel")


async def test_the_end_of_a_task_is_known_whenever_it_ends(scene: Scene) -> None:
    before, meanwhile, after = [await scene.task() for _ in range(3)]
    await before.end_session()
    await ended(before.pid)
    scene.leave(before, meanwhile, after)
    os.kill(meanwhile.pid, signal.SIGKILL)
    await ended(meanwhile.pid)
    _, tasks = await adopted(scene.found())
    os.kill(after.pid, signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        assert [await tasks[each.pid].wait() for each in (before, meanwhile, after)] == [7, -9, -15]


Step = Callable[[Scene, TaskProcess], None]


@pytest.mark.parametrize(
    "step",
    [
        lambda scene, task: None,
        lambda scene, task: socket.send_fds(scene.zygote._sock, [keep(task)], [task.control.fileno()]),
    ],
    ids=["before it", "after a task was named"],
)
async def test_an_owner_that_is_killed_before_the_zygote_holds_takes_its_tasks_along(scene: Scene, step: Step) -> None:
    task = await scene.task()
    step(scene, task)
    scene.end_owner(task)
    await ended(scene.process.pid, task.pid)
    assert list(HeldZygote.find(scene.directory)) == []
    assert lives(scene.driver.pid)


def keep(task: TaskProcess) -> bytes:
    return encode({"op": "keep", "pid": task.pid})


async def test_a_successor_that_is_killed_before_it_adopts_leaves_everything_to_the_next(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task)
    for _ in range(3):
        scene.found().close()
    _, tasks = await adopted(scene.found())
    await tasks[task.pid].cancel()
    assert await told(tasks[task.pid]) == "Cancel"


async def test_a_successor_that_is_killed_after_it_has_adopted_takes_the_tasks_along(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task)
    held = scene.found()
    held.adopt()
    held.close()
    await ended(scene.process.pid, task.pid)
    assert list(HeldZygote.find(scene.directory)) == []


async def test_no_second_successor_gets_in_while_there_is_one_or_while_the_owner_lives(scene: Scene) -> None:
    task = await scene.task()
    scene.zygote.hand_over([task], b"", boottime() + LONG_S, scene.driver_key, scene.directory)
    early = socket.socket(socket.AF_UNIX)
    early.setblocking(False)
    early.connect(str(scene.directory / f"{HELD}{scene.process.pid}"))
    assert silent(early), "the owner lives"
    scene.end_owner(task)
    await asyncio.get_running_loop().sock_recv(early, 1)
    early.close()
    held = scene.found()
    zygote, tasks = await adopted(held)
    assert list(HeldZygote.find(scene.directory)) == []
    await tasks[task.pid].cancel()
    assert await told(tasks[task.pid]) == "Cancel"
    assert zygote.alive


def silent(sock: socket.socket) -> bool:
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    return False


async def test_without_a_successor_in_time_the_tasks_end_with_their_driver(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task, seconds=0.0)
    await asyncio.to_thread(scene.driver.wait, PATIENCE_S)
    assert scene.driver.returncode == -signal.SIGKILL
    await ended(scene.process.pid, task.pid)


async def test_an_owner_that_stands_still_after_it_has_left_its_tasks_keeps_them_no_longer(scene: Scene) -> None:
    task = await scene.task()
    scene.zygote.hand_over([task], b"", boottime() + 1.0, scene.driver_key, scene.directory)
    assert await asyncio.to_thread(scene.driver.wait, PATIENCE_S) == -signal.SIGKILL
    await ended(scene.process.pid, task.pid)
    scene.end_owner(task)


async def test_a_successor_that_hangs_gets_no_more_time(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task, seconds=1.0)
    held = scene.found()  # and neither adopts nor ends
    await ended(scene.process.pid, task.pid)
    with pytest.raises((OSError, WireError)):
        held.adopt()
    assert scene.driver.wait(PATIENCE_S) == -signal.SIGKILL


async def test_the_end_of_the_driver_ends_the_wait_and_the_tasks(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task)
    scene.driver.kill()
    scene.driver.wait()
    await ended(scene.process.pid, task.pid)


async def test_a_killed_zygote_takes_the_tasks_along(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task)
    scene.process.kill()
    await ended(task.pid)
    assert list(HeldZygote.find(scene.directory)) == []


async def test_a_successor_that_cannot_use_the_tasks_ends_them(scene: Scene) -> None:
    task = await scene.task()
    scene.leave(task)
    await asyncio.to_thread(scene.found().discard)
    await ended(scene.process.pid, task.pid)
    assert lives(scene.driver.pid), "the successor decides about it"


async def test_a_zygote_that_does_not_answer_is_ended_with_its_tasks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So whoever has looked for tasks knows that none runs without an owner."""
    monkeypatch.setattr(zygote_client, "HAND_OVER_S", 0.5)
    task = await scene.task()
    scene.leave(task)
    scene.process.send_signal(signal.SIGSTOP)
    assert await asyncio.to_thread(lambda: list(HeldZygote.find(scene.directory))) == []
    await ended(scene.process.pid, task.pid)
    assert list(scene.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("pidfd_open", ProcessLookupError()),
        ("pidfd_open", FileNotFoundError(errno.ENOENT, "it is reaped, or its pid is a thread's")),
        ("pidfd_open", OSError(errno.EINVAL, "its pid is a thread's, to an older kernel")),
        ("read_bytes", FileNotFoundError(errno.ENOENT, "it is gone meanwhile")),
        ("read_bytes", PermissionError(errno.EPERM, "its pid is another user's process")),
    ],
)
def test_a_socket_whose_zygote_has_ended_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: OSError
) -> None:
    """Also if its pid belongs to something else by now; else no TaskExecutor could start there again."""
    (tmp_path / f"{HELD}{os.getpid()}").touch()
    owner = os if function == "pidfd_open" else Path
    monkeypatch.setattr(owner, function, Mock(side_effect=error))
    assert list(HeldZygote.find(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


async def test_the_socket_may_have_a_long_path(scene: Scene) -> None:
    scene.directory = scene.directory / ("long" * 30)
    scene.directory.mkdir()
    task = await scene.task()
    scene.leave(task, state=b"x" * 5_000_000)
    assert len((await asyncio.to_thread(scene.found)).state) == 5_000_000


def test_when_the_time_is_over_the_driver_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the former owner, which has left everything, still lives."""
    monkeypatch.setattr(zygote, "boottime", lambda: 100.0)
    killed: list[int] = []
    ours, theirs = socket.socketpair()
    with ours, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "held"))
        listener.listen(1)
        driver: Any = SimpleNamespace(fileno=listener.fileno, send_signal=killed.append)
        left = zygote._Zygote(theirs)
        left._held = zygote._Held(b"state", 99.0, listener, driver, {})
        assert not left._turn()
        assert left._await_successor(left._held) is None
    assert killed == [signal.SIGKILL]


async def test_another_users_process_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    state = zygote._Zygote(theirs)
    monkeypatch.setattr(zygote, "check_peer_is_us", refuse)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "held"))
    listener.listen(1)
    held = zygote._Held(b"state", boottime() + LONG_S, listener, None, {1: ours.fileno()})
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(tmp_path / "held"))
    assert state._introduce(held, LONG_S) is None
    assert stranger.recv(1) == b""
    for each in (ours, theirs, listener, stranger):
        each.close()


async def test_nothing_is_adopted_from_another_users_process(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await scene.task()
    scene.leave(task)
    with monkeypatch.context() as patch:
        patch.setattr(zygote_client, "check_peer_is_us", refuse)
        assert list(HeldZygote.find(scene.directory)) == []
    assert scene.found().pids == {task.pid}


def refuse(sock: socket.socket) -> None:
    """Refuse a peer, as `check_peer_is_us` does with another user's process, which tests do not have."""
    raise AuthenticationError("the other end is a process of user 1")
