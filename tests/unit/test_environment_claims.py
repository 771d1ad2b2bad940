"""Claims, and the lock that several masters share. A lock belongs to an open file: two objects are as two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.environment.claims import Claim
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory
from runtime.environment.errors import ClusterAlreadyRunning, RuntimeDirectoryError


def test_a_claim_has_one_holder_and_is_free_when_that_is_gone(tmp_path: Path) -> None:
    one, other = Claim(tmp_path / "redis"), Claim(tmp_path / "redis")
    assert one.try_acquire()
    assert one.try_acquire(), "it is ours already"
    assert not other.try_acquire()
    one.release()
    one.release()
    assert other.try_acquire()
    assert not one.held


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


def test_a_damaged_claim_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "c").write_text('{"process": 7')
    assert Claim(tmp_path / "c").living() is None


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
