"""The short form of the kills within rescales; the longest one is ``python -m tests.faults.rescales --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import rescales
from tests.seeds import printed_seed


@pytest.mark.slow
def test_a_rescale_is_finished_or_undone_whatever_is_killed_and_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    result = rescales.run(tmp_path, rescales.SHORT, printed_seed())
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    assert (result.lost, result.doubled) == (0, 0), summary
    assert result.survived == result.kills.total() == rescales.SHORT, summary
    assert len(result.kills) == rescales.SHORT, summary
