"""Claims, and the lock that several masters share. A lock belongs to an open file: two objects are as two processes."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.environment.claims import Claim, is_claimed
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import _GATE, ClusterDirectory, ClusterLock, _lock
from runtime.errors import ClusterAlreadyRunning, RuntimeDirectoryError
from tests.waiting import PATIENCE_S


def test_a_claim_has_one_holder_and_is_free_when_that_is_gone(tmp_path: Path) -> None:
    one, other = Claim(tmp_path / "redis"), Claim(tmp_path / "redis")
    assert one.try_acquire()
    assert one.try_acquire(), "it is ours already"
    assert not other.try_acquire()
    one.release()
    one.release()
    assert other.try_acquire()
    assert not one.held


def test_a_claim_of_a_file_that_its_holder_removes_is_of_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second opens the first's file, and gets its lock when the first has removed the file and released it."""
    path = tmp_path / "job.lock"
    first, second, third = Claim(path), Claim(path), Claim(path)
    assert first.try_acquire()
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        first.release()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert second.try_acquire()
    assert not third.try_acquire()
    assert path.exists()


def test_a_look_at_a_claim_neither_takes_nor_creates_it(tmp_path: Path) -> None:
    path = tmp_path / "job.lock"
    assert not is_claimed(path)
    assert not path.exists()
    claim = Claim(path)
    assert claim.try_acquire()
    assert is_claimed(path)
    claim.release()
    assert not is_claimed(path)
    assert claim.try_acquire()


def test_a_forked_child_does_not_keep_a_claim(tmp_path: Path) -> None:
    one, other = Claim(tmp_path / "redis"), Claim(tmp_path / "redis")
    assert one.try_acquire()
    process = multiprocessing.get_context("fork")
    ready, over = process.Event(), process.Event()
    child = process.Process(target=lambda: (ready.set(), over.wait(PATIENCE_S)))
    child.start()
    try:
        assert ready.wait(PATIENCE_S)
        one.release()
        assert other.try_acquire()
    finally:
        over.set()
        child.join()


def test_a_claim_names_its_process_as_long_as_that_lives(tmp_path: Path) -> None:
    claim, reader = Claim(tmp_path / "worker"), Claim(tmp_path / "worker")
    assert reader.living() is None
    with pytest.raises(RuntimeError, match="not held"):
        claim.note(ProcessRecord.of("worker", os.getpid()))
    assert claim.try_acquire()
    assert reader.living() is None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = ProcessRecord.of("worker", child.pid)
    claim.note(record, "akka.tcp://s@h:1/x")
    assert reader.living() == (record, "akka.tcp://s@h:1/x")
    claim.release()
    assert reader.living() == (record, "akka.tcp://s@h:1/x"), "the process outlives who looked after it"
    child.communicate()
    assert reader.living() is None
    assert reader.noted() == (record, "akka.tcp://s@h:1/x")


def test_a_damaged_claim_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "c").write_text('{"process": 7')
    assert Claim(tmp_path / "c").living() is None
    assert Claim(tmp_path / "c").noted() is None


def test_masters_of_a_directory_are_those_that_live_and_serve(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    serving, starting = directory.claim("master-1"), directory.claim("master-0")
    assert serving.try_acquire()
    assert starting.try_acquire()
    serving.note(ProcessRecord.of("master", os.getpid()), "akka.tcp://s@h:1/x")
    assert directory.masters() == {1: "akka.tcp://s@h:1/x"}
    serving.forget()
    assert directory.masters() == {}


def test_masters_share_the_lock_and_the_last_one_removes_it(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    first = directory.acquire()
    assert first.exclusive
    with pytest.raises(RuntimeDirectoryError, match="being started"):
        directory.join()
    first.share()
    second = directory.join()
    assert not second.exclusive
    with pytest.raises(ClusterAlreadyRunning):
        directory.acquire()
    assert directory.is_running()
    assert not first.is_alone()
    first.release()
    assert directory.is_running()
    assert directory.lock_file.exists()
    assert second.is_alone()
    second.release()
    assert not directory.lock_file.exists()
    assert not directory.is_running()


def test_of_two_that_leave_at_once_exactly_one_is_the_last(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    first = directory.acquire()
    first.share()
    second = directory.join()
    assert not first.is_alone()
    assert not second.is_alone(), "who is refused keeps its share"
    assert not first.leave()
    assert second.leave()
    assert second.exclusive
    with pytest.raises(RuntimeDirectoryError, match="being started or cleaned up"):
        directory.join()
    first.release()
    assert directory.is_running(), "the last one has it still"
    second.release()
    assert not directory.is_running()


def test_one_that_has_left_and_releases_late_leaves_the_file_of_the_next_holder(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    first = directory.acquire()
    first.share()
    second = directory.join()
    assert not first.leave()
    assert second.leave()
    second.release()
    following = directory.acquire()
    first.release()
    assert directory.is_running()
    with pytest.raises(ClusterAlreadyRunning):
        directory.acquire()
    following.release()


def test_who_looks_whether_it_is_the_last_lets_nobody_else_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or of two that leave at once each would see the other, and both would leave the clean-up to it."""
    directory = ClusterDirectory(tmp_path / "c")
    first = directory.acquire()
    first.share()
    second, looked, is_alone = directory.join(), [], ClusterLock.is_alone

    def look(lock: ClusterLock) -> bool:
        with pytest.raises(BlockingIOError):
            _lock(second.descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _GATE)
        looked.append(lock)
        return is_alone(lock)

    with monkeypatch.context() as patch:
        patch.setattr(ClusterLock, "is_alone", look)
        assert not first.leave()
    assert looked == [first]
    assert second.leave()
    first.release()
    second.release()


@pytest.mark.parametrize("seed", range(3))
def test_of_many_that_leave_at_any_moment_exactly_one_is_the_last(tmp_path: Path, seed: int) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    locks = [directory.acquire()]
    locks[0].share()
    locks += [directory.join() for _ in range(15)]
    random.Random(seed).shuffle(locks)
    start = threading.Barrier(len(locks))

    def leave(lock: ClusterLock) -> bool:
        start.wait()
        return lock.leave()

    with ThreadPoolExecutor(len(locks)) as threads:
        assert sum(threads.map(leave, locks)) == 1
    for lock in locks:
        lock.release()


def test_looking_at_the_lock_takes_it_from_nobody(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    looks, over = [], threading.Event()

    def look() -> None:
        while not over.is_set():
            looks.append(directory.is_running())

    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        for _ in range(200):
            directory.acquire().release()  # it is never refused
            directory.join().release()
        over.set()
        looking.result()
    assert len(looks) > 10


def test_a_receiver_that_fails_leaves_the_lock_to_its_starter(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    lock = directory.acquire()
    with (
        pytest.raises(OSError, match="no port"),
        ClusterLock.handed(directory.lock_file, os.dup(lock.descriptor), exclusive=True),
    ):
        raise OSError("no port")
    with pytest.raises(ClusterAlreadyRunning):
        directory.acquire()
    lock.release()
    assert not directory.lock_file.exists()


def test_a_lock_that_was_handed_over_is_its_receivers_and_free_at_its_end(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    lock = directory.acquire()
    code = (
        "import sys; from pathlib import Path; from runtime.environment.directory import ClusterLock\n"
        "lock = ClusterLock.handed(Path(sys.argv[1]), int(sys.argv[2]), exclusive=True)\n"
        "print(lock.incarnation, flush=True); input(); lock.share(); print('shared', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory.lock_file), str(lock.descriptor)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock.descriptor,),
    ) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        assert receiver.stdout.readline().decode().strip() == lock.incarnation == directory.incarnation()
        lock.hand_over()
        with pytest.raises(ClusterAlreadyRunning, match=f"another command starts .*process {receiver.pid}"):
            directory.acquire()
        receiver.stdin.write(b"\n")
        receiver.stdin.flush()
        assert receiver.stdout.readline() == b"shared\n"
        directory.join().release()
        receiver.kill()
        receiver.wait()
    again = directory.acquire()
    assert again.incarnation != lock.incarnation
    again.release()


def test_reading_claims_registers_nothing_at_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters read the claims four times a second, and Python keeps what is registered for ever."""
    registered: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: registered.append(functions))
    claim = Claim(tmp_path / "redis")
    assert claim.living() is None
    assert registered == []
    for _ in range(3):
        assert claim.try_acquire()
        claim.release()
    assert registered == [{"after_in_child": claim.release}]
