"""One checkpointLocation, one writer: who has it, who gets it, and who is kept off it."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.lease import (
    SETTLE_S,
    LeaseDecision,
    LeaseHolder,
    LeaseUnknownError,
    LocationInUseError,
    decide,
    lease_file,
    lock_holder,
    may_be_written_to,
    read_holder,
    refusal,
)
from runtime.spark.errors import DriverCallError, DriverLostError
from runtime.taskexecutor import location_leases as module
from runtime.taskexecutor.location_leases import LocationLeases
from tests.waiting import PATIENCE_S

OURS, OTHERS = 100, 200
PATIENCE = 30.0
FIRST = LeaseHolder("job", "flights", "task", "first", 0, OTHERS, epoch=5)
SECOND = LeaseHolder("job", "flights", "task", "second", 1, OURS, epoch=5)
REMOTE = dataclasses.replace(FIRST, host="192.0.2.7")
STRANGER = LeaseHolder("another", "weather", "task", "stranger", 7, OTHERS)


@pytest.mark.parametrize(
    ("wanted", "named", "locked_by", "waited_s", "decision"),
    [
        (SECOND, None, None, 0.0, LeaseDecision.GRANTED),
        (SECOND, FIRST, None, 0.0, LeaseDecision.GRANTED),  # its driver has died
        (SECOND, STRANGER, None, 0.0, LeaseDecision.GRANTED),
        (SECOND, SECOND, OURS, 0.0, LeaseDecision.GRANTED),  # the query is started again
        (SECOND, FIRST, OTHERS, 0.0, LeaseDecision.WAIT),
        (SECOND, FIRST, OTHERS, PATIENCE, LeaseDecision.FENCE),
        (SECOND, dataclasses.replace(FIRST, driver_pid=OURS), OURS, PATIENCE, LeaseDecision.REFUSED),
        (FIRST, SECOND, OURS, 0.0, LeaseDecision.REFUSED),  # the old one has come back
        (FIRST, SECOND, OURS, PATIENCE, LeaseDecision.REFUSED),
        (FIRST, SECOND, None, 0.0, LeaseDecision.REFUSED),  # the new one has ended already
        (FIRST, dataclasses.replace(SECOND, attempt_number=0, epoch=6), None, 0.0, LeaseDecision.REFUSED),
        # The job's id was that of an earlier job, or the file is of an earlier version.
        (FIRST, dataclasses.replace(SECOND, epoch=4), None, 0.0, LeaseDecision.GRANTED),
        (FIRST, dataclasses.replace(SECOND, epoch=0), None, 0.0, LeaseDecision.GRANTED),
        (FIRST, dataclasses.replace(SECOND, task_key="another"), None, 0.0, LeaseDecision.GRANTED),
        (SECOND, STRANGER, OTHERS, 0.0, LeaseDecision.WAIT),
        (SECOND, STRANGER, OTHERS, SETTLE_S, LeaseDecision.REFUSED),
        # An earlier attempt, but of another job, or of another task of this one.
        (SECOND, dataclasses.replace(FIRST, job_id="another"), OTHERS, PATIENCE, LeaseDecision.REFUSED),
        (SECOND, dataclasses.replace(FIRST, task_key="another"), OTHERS, PATIENCE, LeaseDecision.REFUSED),
        (SECOND, None, OTHERS, 0.0, LeaseDecision.WAIT),  # it has not said yet who it is
        (SECOND, None, OTHERS, SETTLE_S, LeaseDecision.REFUSED),
        (SECOND, FIRST, 300, PATIENCE, LeaseDecision.REFUSED),  # not the process that the file names
        # On another host: the kernel names no process of it, and nobody here can end one there.
        (SECOND, REMOTE, 300, 0.0, LeaseDecision.WAIT),
        (SECOND, REMOTE, OTHERS, PATIENCE, LeaseDecision.REFUSED),
        (SECOND, REMOTE, None, 0.0, LeaseDecision.GRANTED),
    ],
)
def test_decision(
    wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int | None, waited_s: float, decision: LeaseDecision
) -> None:
    assert decide(wanted, named, locked_by, waited_s, PATIENCE) is decision


HOLDERS = st.builds(
    LeaseHolder,
    st.sampled_from(["a", "b"]),
    st.just("name"),
    st.sampled_from(["t", "u"]),
    st.sampled_from(["x", "y", "z"]),
    st.integers(0, 3),
    st.sampled_from([OURS, OTHERS]),
    st.sampled_from(["", "192.0.2.7"]),
    st.sampled_from([0, 5, 6]),
)


@given(HOLDERS, st.none() | HOLDERS, st.none() | st.sampled_from([OURS, OTHERS]), st.floats(0, 100))
def test_only_an_earlier_attempt_of_the_same_task_in_another_driver_is_ever_killed(
    wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int | None, waited_s: float
) -> None:
    if decide(wanted, named, locked_by, waited_s, PATIENCE) is LeaseDecision.FENCE:
        assert named is not None
        assert (named.job_id, named.task_key) == (wanted.job_id, wanted.task_key)
        assert named.attempt_number <= wanted.attempt_number
        assert named.epoch <= wanted.epoch or not wanted.epoch
        assert named.host == wanted.host
        assert named.driver_pid == locked_by != wanted.driver_pid
        assert waited_s >= PATIENCE


def test_a_refusal_names_the_holder() -> None:
    text = str(refusal("/live", SECOND, STRANGER, OTHERS))
    assert "/live is written to by job another (weather; Spark driver: process 200): give the query" in text
    former = dataclasses.replace(FIRST, epoch=0)
    assert "attempt 1 of this job" in str(refusal("/live", former, SECOND, OURS))
    text = str(refusal("/live", FIRST, SECOND, None))
    assert text.endswith("/live is no longer for attempt 0 of this job: attempt 1 has replaced it")
    assert "process 200 on 192.0.2.7)" in str(refusal("/live", SECOND, REMOTE, 300))
    assert "by process 300: " in str(refusal("/live", SECOND, STRANGER, 300))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"job_id": 1}', b"\xff"])
def test_a_file_that_names_nobody(content: bytes) -> None:
    assert LeaseHolder.decode(content) is None


def test_whom_a_file_names() -> None:
    assert LeaseHolder.decode(FIRST.encode()) == FIRST


def test_the_lease_lies_beside_the_location_whatever_it_is_called_by(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "live")
    assert lease_file(f"{tmp_path}/live/../live/") == tmp_path / ".live.lease"
    assert lease_file(f"{tmp_path}/link") == tmp_path / ".live.lease"


class Driver:
    """A Spark driver's locks, held by this process."""

    def __init__(self) -> None:
        self.locked: dict[Path, Any] = {}
        self.error: Exception | None = None
        self.errors: list[Exception] = []

    async def lock_file(self, path: Path, owner: str) -> bool:
        if self.error is not None:
            raise self.error
        if self.errors:
            raise self.errors.pop(0)
        file = path.open("r+b")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self.locked[path] = file
        return True


HOLD = """\
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease of ``tmp_path/live``."""
    path = tmp_path / ".live.lease"
    path.touch()
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


class Attempt:
    """Wants the lease of ``tmp_path/live``."""

    def __init__(self, tmp_path: Path, patience_s: float = 0.0) -> None:
        self.location, self.file = str(tmp_path / "live"), tmp_path / ".live.lease"
        self.driver: Any = Driver()
        self.told: list[str] = []
        self.given_up: list[str] = []
        self.me = dataclasses.replace(SECOND, driver_pid=os.getpid())
        self.leases = LocationLeases(self.driver, self.me, patience_s, self.told.append, self.given_up.append)


async def test_a_free_lease_is_taken_and_says_by_whom(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "not yet there")
    await attempt.leases.acquire(attempt.location)
    assert list(attempt.driver.locked) == [attempt.file]
    assert read_holder(attempt.file) == attempt.me
    assert attempt.file.stat().st_mode & 0o777 == 0o600
    assert attempt.told == []


async def test_the_lease_of_a_remote_location_is_a_private_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    attempt = Attempt(tmp_path)
    for url in ("s3://bucket/live", "s3://bucket/live/", "s3://bucket/other"):
        await attempt.leases.acquire(url)
    one, other = attempt.driver.locked
    assert (one, other) == (lease_file("s3://bucket/live"), lease_file("s3://bucket/other"))
    assert one.parent == tmp_path / "cache" / "understudy" / "leases"
    assert (one.parent.stat().st_mode & 0o777, one.stat().st_mode & 0o777) == (0o700, 0o600)
    assert attempt.told == []


async def test_another_job_keeps_it(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.checkpoint.lease.SETTLE_S", 0.0)
    attempt = Attempt(tmp_path)
    assert lock_holder(attempt.file) == holder.pid
    attempt.file.write_bytes(dataclasses.replace(STRANGER, driver_pid=holder.pid).encode())
    with pytest.raises(LocationInUseError, match=rf"job another \(weather; Spark driver: process {holder.pid}\)"):
        await attempt.leases.acquire(attempt.location)
    assert holder.poll() is None, "another job's driver is left alone"


async def test_a_frozen_driver_of_an_earlier_attempt_is_killed_and_can_commit_nothing_any_more(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    attempt = Attempt(tmp_path)
    attempt.file.write_bytes(dataclasses.replace(FIRST, driver_pid=holder.pid).encode())
    os.kill(holder.pid, signal.SIGSTOP)
    await attempt.leases.acquire(attempt.location)
    assert holder.wait(PATIENCE_S) == -signal.SIGKILL
    assert read_holder(attempt.file) == attempt.me
    assert f"process {holder.pid}, is killed" in attempt.told[0]


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "just before the lock"])
async def test_an_attempt_that_was_replaced_while_it_stood_still_does_not_go_back(
    tmp_path: Path, meanwhile: bool
) -> None:
    """A machine that was suspended begins a task that another has finished since: its state is long out of date."""
    attempt = Attempt(tmp_path)
    third = dataclasses.replace(attempt.me, attempt_id="third", attempt_number=2)
    if meanwhile:
        lock = attempt.driver.lock_file

        async def late(path: Path, owner: str) -> bool:
            path.write_bytes(third.encode())
            return bool(await lock(path, owner))

        attempt.driver.lock_file = late
    else:
        attempt.file.write_bytes(third.encode())
    with pytest.raises(LocationInUseError, match="no longer for attempt 1 of this job: attempt 2 has replaced it"):
        await attempt.leases.acquire(attempt.location)
    assert read_holder(attempt.file) == third
    assert list(attempt.driver.locked) == ([attempt.file] if meanwhile else [])


async def test_whatever_comes_the_task_is_answered(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert await attempt.leases.request(attempt.location) is None
    attempt.driver.error = ValueError("a defect")
    answer = await attempt.leases.request(attempt.location)
    assert answer is not None
    assert answer.endswith("could be taken: ValueError: a defect")
    assert attempt.given_up == [answer], "the task has failed, whatever its code makes of the answer"


async def test_no_lock_is_taken_after_the_attempt_has_given_up_its_locks(tmp_path: Path) -> None:
    attempt, begun, go_on = Attempt(tmp_path), asyncio.Event(), asyncio.Event()
    lock = attempt.driver.lock_file

    async def slow(path: Path, owner: str) -> bool:
        begun.set()
        await go_on.wait()
        return bool(await lock(path, owner))

    attempt.driver.lock_file = slow
    asking = asyncio.create_task(attempt.leases.request(attempt.location))
    await begun.wait()
    asking.cancel()
    done, _ = await asyncio.wait((asking,), timeout=0)
    assert not done, "it waits for what is being locked"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert list(attempt.driver.locked) == [attempt.file]


async def test_a_driver_that_is_lost_while_an_ended_attempt_asks_leaves_no_unretrieved_error(tmp_path: Path) -> None:
    attempt, begun, go_on = Attempt(tmp_path), asyncio.Event(), asyncio.Event()
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def lost(path: Path, owner: str) -> bool:
        begun.set()
        await go_on.wait()
        raise DriverLostError("its process has ended")

    attempt.driver.lock_file = lost
    asking = asyncio.create_task(attempt.leases.request(attempt.location))
    await begun.wait()
    asking.cancel()
    go_on.set()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    del asking
    gc.collect()
    assert unhandled == []


async def test_the_lease_of_the_dead_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    attempt = Attempt(tmp_path)
    attempt.file.write_bytes(dataclasses.replace(STRANGER, driver_pid=holder.pid).encode())
    holder.kill()
    await attempt.leases.acquire(attempt.location)
    assert read_holder(attempt.file) == attempt.me


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_where_there_are_no_locks_a_query_runs_and_its_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(path: Path) -> int | None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "lock_holder", no_locks)
    attempt = Attempt(tmp_path)
    attempt.driver.error = DriverCallError("java.io.IOException: whatever Java says of it")
    await attempt.leases.acquire(attempt.location)
    (told,) = attempt.told
    assert told.startswith(f"no lease protects the checkpointLocation {attempt.location} from other jobs: ")
    assert told.endswith(os.strerror(number))


ERRORS = [
    DriverLostError("the driver JVM does not answer: Answer from Java side is empty"),
    DriverCallError("java.io.IOException: Input/output error"),
    OSError(errno.EIO, os.strerror(errno.EIO)),
    OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
]


@pytest.mark.parametrize("error", ERRORS)
async def test_a_driver_that_did_not_answer_is_asked_again(tmp_path: Path, error: Exception) -> None:
    attempt = Attempt(tmp_path)
    attempt.driver.errors = [error, error]
    await attempt.leases.acquire(attempt.location)
    assert list(attempt.driver.locked) == [attempt.file]
    assert (attempt.told, attempt.given_up) == ([], [])


@pytest.mark.parametrize("error", ERRORS)
async def test_without_an_answer_no_query_starts_and_the_attempt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    attempt = Attempt(tmp_path)
    attempt.driver.error = error
    with pytest.raises(LeaseUnknownError, match="could not be found out for 0 s, so the query is not started: "):
        await attempt.leases.acquire(attempt.location)
    answer = await attempt.leases.request(attempt.location)
    assert attempt.told == []
    assert attempt.given_up == [answer]
    assert str(error) in str(answer)


def test_whether_a_location_may_be_written_to(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_be_written_to(str(tmp_path / "live"))
    assert not may_be_written_to(str(tmp_path / "nobody ever did"))
    holder.kill()
    holder.wait()
    assert not may_be_written_to(str(tmp_path / "live"))

    def unknown(path: Path) -> int | None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("runtime.checkpoint.lease.lock_holder", unknown)
    assert may_be_written_to(str(tmp_path / "live")), "as far as is known it is"


async def test_a_link_or_a_file_of_another_in_its_place_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    attempt.file.symlink_to(victim)
    await attempt.leases.acquire(attempt.location)
    assert victim.read_text() == "precious"
    assert attempt.told.pop().startswith("no lease protects the checkpointLocation")
    attempt.file.unlink()
    attempt.file.write_text("another's")
    monkeypatch.setattr(os, "geteuid", lambda: attempt.file.stat().st_uid + 1)
    await attempt.leases.acquire(attempt.location)
    assert attempt.file.read_text() == "another's"
    assert "it belongs to user" in attempt.told.pop()
