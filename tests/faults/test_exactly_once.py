"""The short forms of the proof of exactly once; the longest one is ``python -m tests.faults.exactly_once --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import exactly_once
from tests.seeds import printed_seed

FEW_SEED, FEW = 1, ("task process", "everything, and the checkpointLocation")
"""Victims by that seed: the last one takes TaskExecutor, driver and task along."""


def test_no_row_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    result = _exactly_once(tmp_path, FEW_SEED, len(FEW))
    assert sorted(result.kills) == sorted(FEW), result.summary()


@pytest.mark.slow
def test_and_whenever(tmp_path: Path) -> None:
    result = _exactly_once(tmp_path, printed_seed(), exactly_once.SHORT)
    assert len(result.kills) == 5, result.summary()


def _exactly_once(directory: Path, seed: int, kills: int) -> exactly_once.Result:
    result = exactly_once.run(directory, kills, seed)
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    assert (result.lost, result.doubled) == (0, 0), summary
    assert result.survived == result.kills.total() == kills, summary
    assert result.attempts > 1, summary
    return result
