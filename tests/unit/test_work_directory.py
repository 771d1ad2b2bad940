"""Work directories beside the result of an edit: one that a kill has left goes, and those of living processes stay."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from conf.files import LEFT_BEHIND_S
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.work_directory import work_directory


def aged(path: Path) -> Path:
    past = time.time() - LEFT_BEHIND_S - 1
    os.utime(path, (past, past), follow_symlinks=False)
    return path


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".savepoint-1.abcd_123.rescale-work"
    (left / "0" / "location").mkdir(parents=True)
    (left / "0" / "location" / "state").write_text("copies of state")
    names = (".savepoint-1.abcd_124.rescale-work", "kept.abcd_123.edit-work", ".savepoint-1.part", ".a.abcd_123.edit")
    new, *others = [tmp_path / name for name in names]
    for path in (new, *others):
        path.mkdir()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "theirs").mkdir(parents=True)
    (link := tmp_path / ".b.abcd_123.edit-work").symlink_to(elsewhere)
    for path in (left, *others, link, elsewhere):
        aged(path)
    with work_directory(tmp_path / "made", "edit", "no") as living:
        assert living.parent == tmp_path
        assert not left.exists()
        aged(living)
        with work_directory(tmp_path / "other", "convert", "no") as second:
            assert second != living
            assert living.exists(), "its process lives"
    assert sorted(tmp_path.iterdir()) == sorted((new, *others, link, elsewhere))
    assert (elsewhere / "theirs").exists()


def fails(target: Path) -> None:
    with work_directory(target, "edit", "it cannot be made") as work:
        (work / "part").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_is_left_after_an_error_which_says_what_failed(tmp_path: Path) -> None:
    with pytest.raises(SavepointError, match=r"^it cannot be made: .*No space left"):
        fails(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(SavepointError, match=r"^it cannot be made: .*file"):
        fails(tmp_path / "file" / "made")
