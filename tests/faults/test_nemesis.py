"""The short form of the run with a nemesis; the long one is ``python -m tests.faults.nemesis --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import nemesis
from tests.faults.full_disk import SmallDisk
from tests.faults.processes import KINDS, PAIRS
from tests.seeds import printed_seed

OF_REDIS = ("slow", "cut off briefly", "cut off", "connections dropped", "connections reset", "mute", "replies lost")
POSSIBLE = {
    *(f"{what} {kind}" for kind in KINDS for what in ("kill", "stop")),
    *(f"stop {kind} briefly" for kind in KINDS),
    *(f"{what} {kind} from {other}" for kind, other in PAIRS for what in ("cut", "disconnect")),
    *(f"redis {what}" for what in OF_REDIS),
    *(f"{name} disk full" for name in nemesis.DISKS),
}


@pytest.mark.slow  # the simulator does the like in each run
@pytest.mark.timeout(3600)
def test_what_clients_were_told_stays_true_whatever_is_harmed(tmp_path: Path) -> None:
    """Each kind of deed, in a random order."""
    seed = printed_seed()
    result = nemesis.run(tmp_path, None, seed, pause_s=nemesis.SHORT_PAUSE_S)
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    left_out = {name for name in POSSIBLE for start in result.left_out if name.startswith(start)}
    assert {*result.deeds, *result.missing} == POSSIBLE - left_out, summary
    assert all(result.left_out.values()), "each is left out for a reason"
    assert result.history.reigns, summary
    assert result.history.leaderships, summary
    assert result.told["rows of the stream"], summary
    assert not result.missing, summary
    assert len(result.history.last) >= 5, summary
    assert result.history.absences, f"JobMasters were away for certain: {summary}"
    assert result.history.silences, summary


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
