"""The benchmark of scale measures what there is: all of it runs, with sixteen of each where it has a thousand and more.

Its figures mean nothing at that size; that there are any does, since its parts stand in for those of the runtime.
Memory may be less after sixteen jobs than before them; no other amount is below zero.
"""

from __future__ import annotations

import pytest

from tests.bench import scale
from tests.bench.scale import dispatcher, resource_manager


@pytest.mark.parametrize("part", scale.PARTS)
def test_the_benchmark_of_scale_runs(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_manager, "INTERVALS", 0.1)
    monkeypatch.setattr(dispatcher, "IDLE_S", 0.1)
    figures, rows = scale.run(1, size=0.0, parts=(part,))
    assert len(rows) == len(figures) > 0
    amounts = {name: figure for name, figure in figures.items() if "_bytes_per_" not in name}
    negative = {name: figure for name, figure in amounts.items() if figure < 0}
    assert [name for name in negative if not name.endswith("_growth_exponent")] == [], negative
