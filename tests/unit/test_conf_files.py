"""Files are replaced whole and durably, and what a killed process left beside them goes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from conf.files import LEFT_BEHIND_S, write_private

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
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], timeout=60)
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
    slow = tmp_path / ".file.01234567"
    with slow.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        os.utime(slow, (0, 0))
        write_private(tmp_path / "file", b"content")
        assert slow.exists()
    write_private(tmp_path / "file", b"content")
    assert not slow.exists()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
