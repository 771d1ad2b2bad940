"""The short form of the run with a nemesis; the long one is ``python -m tests.faults.nemesis --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import nemesis
from tests.faults.full_disk import SmallDisk


@pytest.mark.timeout(2400)
def test_what_clients_were_told_stays_true_whatever_is_harmed(tmp_path: Path) -> None:
    result = nemesis.run(tmp_path, nemesis.SHORT_S, seed=5)
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    assert sum(result.deeds.values()) >= 5, summary
    assert len(result.history.last) >= 5, summary
    assert result.history.reigns, summary
    assert result.history.leaderships, summary


def test_a_disk_can_be_filled(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "small")
    if disk.why_not:
        pytest.skip(f"full disks are left out of the run with a nemesis: {disk.why_not}")
    try:
        (tmp_path / "small" / "empty").touch()
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "small" / "empty").write_bytes(b"x")
        disk.free()
        (tmp_path / "small" / "empty").write_bytes(b"x")
    finally:
        disk.close()
