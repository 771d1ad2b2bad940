"""The short form of the proof of exactly once; the long one is ``python -m tests.faults.exactly_once --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import exactly_once
from tests.seeds import printed_seed


def test_no_row_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    _exactly_once(tmp_path, seed=7)


@pytest.mark.slow
def test_and_whenever(tmp_path: Path) -> None:
    _exactly_once(tmp_path, printed_seed())


def _exactly_once(directory: Path, seed: int) -> None:
    result = exactly_once.run(directory, exactly_once.SHORT, seed)
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    assert (result.lost, result.doubled) == (0, 0), summary
    assert result.survived == result.kills.total() == exactly_once.SHORT, summary
    assert len(result.kills) == 5, summary
    assert result.attempts > 1, summary
