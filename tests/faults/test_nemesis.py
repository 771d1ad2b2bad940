"""The short form of the run with a nemesis; the long one is ``python -m tests.faults.nemesis --long``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import nemesis


@pytest.mark.timeout(600)
def test_what_clients_were_told_stays_true_whatever_is_killed_or_stopped(tmp_path: Path) -> None:
    result = nemesis.run(tmp_path, nemesis.SHORT_S, seed=5)
    summary = json.dumps(result.summary(), indent=2)
    assert not result.problems, summary
    assert sum(result.deeds.values()) >= 8, summary
    assert len(result.history.last) >= 10, summary
