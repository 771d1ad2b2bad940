"""A job and a checkpoint cost no more reads, writes, fsyncs, messages and bytes than tests/bench/bounds.json says.

These are counts, so they are the same on every machine. Who has a reason to make something dearer raises the bound.
"""

from __future__ import annotations

from tests.bench.costs import measure
from tests.bench.guard import bounds, exceeded


def test_what_a_job_and_a_checkpoint_cost_is_within_its_bounds() -> None:
    measured = measure()
    assert exceeded(measured, bounds()["counts"]) == []
    assert measured.keys() == bounds()["counts"].keys(), "each has a bound"
    assert measured["job_fsyncs"] == bounds()["counts"]["job_fsyncs"], "one that is lost is a state that may be lost"
    assert all(value > 0 for value in measured.values()), "what is not counted any more guards nothing"
