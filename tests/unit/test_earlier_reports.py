"""Reports of batches that end between two looks at a streaming query are read too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.spark.driver.jvm import query_info


def report(batch: int) -> Any:
    return SimpleNamespace(batchId=lambda: batch, json=lambda: f"report of {batch}")


def query(*batches: int) -> Any:
    """A running query of Spark whose last batches are these, as Py4J shows it."""
    reports = [report(batch) for batch in batches]
    trigger = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: "ProcessingTimeTrigger"), intervalMs=lambda: 0
    )
    return SimpleNamespace(
        name=lambda: "counts",
        id=lambda: SimpleNamespace(toString=lambda: "q"),
        runId=lambda: SimpleNamespace(toString=lambda: "r"),
        isActive=lambda: True,
        lastProgress=lambda: reports[-1] if reports else None,
        recentProgress=lambda: reports,
        streamingQuery=lambda: SimpleNamespace(trigger=lambda: trigger),
        status=lambda: SimpleNamespace(isTriggerActive=lambda: False),
    )


@pytest.mark.parametrize(
    ("batches", "known", "earlier"),
    [
        ((), {}, ()),
        ((0, 1, 2), {}, ()),  # the first look
        ((0, 1, 2), {"r": 2}, ()),
        ((0, 1, 2), {"r": 1}, ()),
        ((0, 1, 2), {"r": 0}, (1,)),
        ((3, 4, 4, 5, 6), {"r": 1}, (3, 4, 4, 5)),  # Spark has dropped batch 2
        (tuple(range(40)), {"r": 0}, tuple(range(31, 39))),  # the newest of them
        ((0, 1), {"of another run": 0}, ()),
    ],
)
def test_batches_since_the_last_look_are_read(
    batches: tuple[int, ...], known: dict[str, int], earlier: tuple[int, ...]
) -> None:
    assert query_info(query(*batches), known).earlier == tuple(f"report of {batch}" for batch in earlier)
