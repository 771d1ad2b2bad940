"""How the parts grow: a thousand TaskExecutors, ten thousand jobs, ten thousand blobs, a hundred streaming queries.

One machine of two cores stands for many, so what is many is light, and what is one is real:

- **ResourceManager**: the true one in a process of its own; TaskExecutors of the true gateway, registration and slot
  table, without Spark, some hundreds in a process, each with sockets of its own.
- **Dispatcher**: the true one in a process of its own, the true Redis, the true BlobServer; JobMasters that are
  elected, write their state, report a finished job and are stopped, all in one process, and run nothing.
- **blobs**: the true BlobServer in a process of its own, its true client.
- **checkpoints**: the true coordinator, counter and store of completed checkpoints on the true Redis; tasks that
  acknowledge at once, and no Spark.
- **users**: the true ResourceManager with queues; fifty users whose five hundred jobs hold a slot for their time.

Processor seconds of the measured process are the measure, since they hold on a machine that does other work too; wall
times do not. Sizes double four times, in one system that grows, so a figure at the end has all before it in its tables.
An exponent is the slope of the cost against the size, both logarithmic: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence

from tests.bench.scale.growth import Figures, sizes
from tests.bench.scale.surroundings import Surroundings

Rows = list[tuple[str, str]]
PARTS = {"resource_manager": 1000, "dispatcher": 10_000, "blobs": 10_000, "checkpoints": 100, "users": 50}
"""The modules here that have a ``measure``, and how many there are of what each counts."""


def run(_rounds: int, size: float = 1.0, parts: Sequence[str] = tuple(PARTS)) -> tuple[Figures, Rows]:
    """Measure; returns the figures and the table's rows.

    Args:
        size: of the whole, as a part of the thousand, ten thousand and hundred.
        parts: which of `PARTS`.
    """
    figures: Figures = {}
    for part in parts:
        measure = importlib.import_module(f"{__name__}.{part}").measure
        most = PARTS[part]
        with Surroundings() as cluster:
            figures |= asyncio.run(cluster.serve(lambda it: measure(it, sizes(most * size))))  # noqa: B023  # is run here
    return figures, [(name, f"{value:12,.4g}") for name, value in figures.items()]
