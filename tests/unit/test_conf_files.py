"""Files are replaced whole and durably, and what a killed process left beside them goes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.files import (
    LEFT_BEHIND_S,
    make_private,
    name_when_whole,
    private_file,
    rename_durably,
    sync_names,
    write_private,
)
from tests.waiting import PATIENCE_S

KILLED = """\
import os, pathlib, sys
from conf.files import write_private
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
write_private(pathlib.Path(sys.argv[1]), b"half")
"""


def test_the_file_and_its_name_are_synced_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    write_private(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert [Path(path).parent for path in synced] == [tmp_path, tmp_path.parent]
    assert synced[1] == str(tmp_path)
    synced.clear()
    write_private(tmp_path / "file", b"what may be lost", durable=False)
    assert ((tmp_path / "file").read_bytes(), synced) == (b"what may be lost", [])


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    target = tmp_path / "file"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".file.")
    write_private(target, b"new")
    assert left.exists(), "it might be somebody's who has just begun"
    long_ago = left.stat().st_mtime - 2 * LEFT_BEHIND_S
    os.utime(left, (long_ago, long_ago))
    other = tmp_path / ".file.notes"
    other.write_bytes(b"a user's")
    os.utime(other, (long_ago, long_ago))
    write_private(target, b"newer")
    assert sorted(tmp_path.iterdir()) == [other, target]
    assert target.read_bytes() == b"newer"


def test_what_somebody_is_slow_to_write_is_not_taken_for_left_behind(tmp_path: Path) -> None:
    slow = tmp_path / ".file.00000001"
    with slow.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        os.utime(slow, (0, 0))
        write_private(tmp_path / "file", b"content")
        assert slow.exists()
    write_private(tmp_path / "file", b"content")
    assert not slow.exists()


def test_a_name_that_another_call_has_taken_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".file.00000002"
    left.write_bytes(b"left behind")
    os.utime(left, (0, 0))
    lock = fcntl.flock

    def after_another_removal(file: Any, operation: int) -> None:
        lock(file, operation)
        if Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink() == left:
            left.unlink()
            left.write_bytes(b"being written")
            os.utime(left, (0, 0))

    monkeypatch.setattr(fcntl, "flock", after_another_removal)
    write_private(tmp_path / "file", b"content")
    assert left.read_bytes() == b"being written"


def test_many_calls_at_once_write_one_name_and_leave_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(10):
            stack.enter_context(private_file(tmp_path / "file")).write(b"%d" % number)
        assert len(list(tmp_path.iterdir())) == 10
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"0")]


def test_a_write_lists_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory may have ten thousand files, such as those of ended jobs."""
    monkeypatch.setattr(os, "listdir", None)
    monkeypatch.setattr(os, "scandir", None)
    write_private(tmp_path / "file", b"content")


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_of_several_first_writers_one_wins_and_nothing_is_left(tmp_path: Path) -> None:
    def slow() -> None:
        with private_file(tmp_path / "file", replace=False) as file:
            file.write(b"second")
            write_private(tmp_path / "file", b"first", replace=False)

    with pytest.raises(FileExistsError):
        slow()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"first")]


def test_an_error_in_the_block_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    def fail() -> None:
        with private_file(tmp_path / "file") as file:
            file.write(b"half")
            assert [name_when_whole(path.name) for path in tmp_path.iterdir()] == ["file", "file"]
            raise RuntimeError

    write_private(tmp_path / "file", b"old")
    with pytest.raises(RuntimeError):
        fail()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("name", ["file", ".file", ".file.0123", ".file.0123456g", ".01234567", "file.01234567"])
def test_only_temporary_names_are_those_of_others(name: str) -> None:
    assert name_when_whole(name) == name


def test_the_name_of_each_directory_that_is_made_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_names(tmp_path)
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    make_private(tmp_path / "a" / "b", durable=True)
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_private(tmp_path / "a" / "b", durable=True)
    make_private(tmp_path / "c")
    assert len(synced) == 2


def test_the_names_of_directories_that_another_process_made_are_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_names(tmp_path)
    for name in ("a/b/c", "a/b/d"):
        (tmp_path / name).mkdir(parents=True)  # and its process is killed before it has synced a name
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    make_private(tmp_path / "a" / "b" / "c", durable=True)
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"], "from the top"
    make_private(tmp_path / "a" / "b" / "c", durable=True)
    assert len(synced) == 3
    sync_names(tmp_path / "a" / "b" / "c", tmp_path / "a" / "b" / "d")
    assert synced[3:] == [tmp_path / "a" / "b"], "the one that is not known yet"
    shutil.rmtree(tmp_path / "a")
    make_private(tmp_path / "a", durable=True)
    assert synced[4:] == [tmp_path], "another directory, with the name and perhaps the inode of a removed one"


def test_names_that_the_disk_did_not_take_are_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_names(tmp_path)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            make_private(tmp_path / "a" / "b", durable=True)
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    make_private(tmp_path / "a" / "b", durable=True)
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_the_names_above_a_directory_that_is_renamed_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_names(tmp_path)
    make_private(tmp_path / "job" / "chk-1" / ".part")
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    rename_durably(tmp_path / "job" / "chk-1" / ".part", tmp_path / "job" / "chk-1" / "whole")
    assert [path for path in synced if path.name != ".part"] == [
        tmp_path,
        tmp_path / "job",
        tmp_path / "job" / "chk-1",
    ]


def test_a_directory_is_renamed_when_its_names_are_on_the_disk_and_its_own_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part" / "queries" / "0").mkdir(parents=True)
    sync_names(tmp_path)
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        assert (tmp_path / "part").exists() == (len(steps) < 3)
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", synced)
    rename_durably(tmp_path / "part", tmp_path / "whole")
    assert steps == ["part", "queries", "0", tmp_path.name]
    assert (tmp_path / "whole" / "queries" / "0").is_dir()


@pytest.mark.parametrize("works", range(2))
def test_a_name_that_may_not_last_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int) -> None:
    (tmp_path / "part").mkdir()
    sync_names(tmp_path)
    synced: list[int] = []

    def fail(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > works:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        rename_durably(tmp_path / "part", tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_a_directory_that_goes_elsewhere_is_synced_in_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from" / "part").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    sync_names(tmp_path / "to")
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
    )
    rename_durably(tmp_path / "from" / "part", tmp_path / "to" / "whole")
    assert synced == ["part", "from", "to"]
