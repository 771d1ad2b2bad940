"""Plans of faults kept for upgrades of a cluster."""

from __future__ import annotations

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept

_ALL_BUT_MASTER2_UPGRADED = (
    Fault(1.0, "upgrade", ("client1",)),
    Fault(1.5, "upgrade", ("worker1",)),
    Fault(2.0, "upgrade", ("worker2",)),
    Fault(2.5, "upgrade", ("master1",)),
    *(Fault(at_s, "kill", ("master2-dispatcher",)) for at_s in (4.5, 6.0)),  # that of master1 leads
    Fault(8.0, "freeze", ("master2-master", 7.0)),  # it is not listed while the level is raised
)
_UPGRADED = tuple(
    Fault(at_s, "upgrade", (host,))
    for at_s, host in ((1.0, "worker1"), (1.5, "client1"), (2.0, "master2"), (4.0, "master1"))
)
_RETURNED = (
    *_UPGRADED,
    Fault(2.5, "upgrade", ("worker2",)),
    *(Fault(14.0, "downgrade", (host,)) for host in ("worker2", "master2")),
    *(Fault(20.0, "upgrade", (host,)) for host in ("worker2", "master2")),
)
"""Two hosts return to the former release after the level was raised."""

KEPT: tuple[Kept, ...] = (
    Kept(
        "A master of the former release stood still while the feature level was raised, and came back as a standby.",
        "level-not-read-once-listed",
        "upgrade",
        10,
        _ALL_BUT_MASTER2_UPGRADED,
        17.0,
        "the former release never joins",
    ),
    Kept(
        "The JobMaster of an ended job led again. The Dispatcher did not know it, and raised the level beyond it.",
        "job-that-is-over-led-again",
        "upgrade",
        5,
        _ALL_BUT_MASTER2_UPGRADED,
        17.0,
        "the former release never joins",
    ),
)

RARE: tuple[Kept, ...] = (
    Kept(
        "A master of the former release serves although the level of the cluster was raised.",
        "unsupported-level-taken",
        "upgrade",
        1,
        _RETURNED,
        24.0,
        "the former release never joins",
    ),
    Kept(
        "A TaskExecutor of the former release is registered although the level of the cluster was raised.",
        "task-executor-below-the-level-admitted",
        "upgrade",
        1,
        _RETURNED,
        24.0,
        "the former release never joins",
    ),
    Kept(
        "The level is raised beside a TaskExecutor of the former release.",
        "task-executors-not-asked",
        "upgrade",
        1,
        (*_UPGRADED, Fault(16.0, "upgrade", ("worker2",))),
        20.0,
        "all components are asked",
    ),
)
