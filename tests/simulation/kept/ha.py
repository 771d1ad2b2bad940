"""Plans of faults kept for leader election and the stores of high availability."""

from __future__ import annotations

from typing import Any

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept

_HA_HOSTS = ("host1", "host2", "host3")
_FOLLOWER_CUT_OFF = (
    Fault(3.0, "partition", ("host1", "keeper1", 14.0)),
    *(Fault(3.0 + 0.5 * number, "freeze", (f"contender{number}", 3.0)) for number in (1, 2, 3, 4)),  # others lead
)
_OF_A_FILE = '{"created"'
"""How a handle's text begins if the state is in a file, and not in the handle."""
_LOSSES_OF_FILES = tuple(Fault(at_s, "disk_crash", ("shared", "everything")) for at_s in (3.0, 4.0, 5.0))


def _late_write(at_s: float, text: str, late_s: float, *then: tuple[float, str, tuple[Any, ...]]) -> Fault:
    """Return a fault that lets a leader's next write to Redis with a text arrive late, after those that it sends then.

    Args:
        at_s: since when the write is waited for.
        text: part of the write.
        late_s: how late it arrives; the leader waits for one second.
        then: faults, and the seconds after which each happens.
    """
    return Fault(at_s, "at_request", ("contender", "fenced hset", text, 1, ("late", late_s), then))


KEPT: tuple[Kept, ...] = (
    Kept(
        "A promoted replica had a latch without its leader's address: nobody who started later found the leader.",
        "renewal-without-the-address",
        "ha",
        59,
        (
            Fault(0.0, "redis_slow", (0.05, 1.5)),
            Fault(2.216, "redis_fail_over", (0.416, 0.05)),
            Fault(2.816, "kill", ("contender1",)),
        ),
        3.0,
        "followers find the leader",
    ),
    Kept(
        "The clock of Redis's host was set back by an hour, the leader died, and nobody led for an hour.",
        "lengthened-lease-kept-by-the-model",
        "ha",
        1,
        (
            Fault(2.0, "keeper_jump", (-3600.0,)),
            *(Fault(2.0, "kill", (f"contender{number}",)) for number in (1, 2, 3, 4)),
        ),
        3.0,
        "the cluster heals",
    ),
)

RARE: tuple[Kept, ...] = (
    Kept(
        "A leader counts a renewed lease from the late reply, and leads beside its successor.",
        "lease-counted-from-the-reply",
        "ha",
        1,
        tuple(Fault(at_s, "late_renewal", (0.65, 2.5)) for at_s in (3.0, 7.0, 11.0, 15.0)),
        19.0,
        "one leader at a time",
    ),
    Kept(
        "A leader counts its first lease from the late reply, and leads beside its successor.",
        "grant-counted-from-the-reply",
        "ha",
        1,
        tuple(
            Fault(at_s, "late_grant", (host, 0.55, 3.0))
            for at_s, host in ((3.0, "host1"), (9.0, "host2"), (15.0, "host3"), (21.0, "host1"))
        ),
        27.0,
        "one leader at a time",
    ),
    Kept(
        "A leader that stops keeps its latch, and nobody leads until its lease is over.",
        "latch-kept-at-the-end",
        "ha",
        1,
        (),
        2.0,
        "a stop releases the latch",
    ),
    Kept(
        "The files of states that were replaced stay, until the next leader sweeps them.",
        "old-file-left",
        "ha",
        1,
        (),
        4.0,
        "replaced files go",
    ),
    Kept(
        "The second result of a job replaces the first.",
        "second-result-of-a-job",
        "ha",
        1,
        (),
        8.0,
        "the first result stands",
    ),
    Kept(
        "A checkpoint that was overtaken is stored after the later one.",
        "older-checkpoint-stored-after-a-newer",
        "ha",
        1,
        (Fault(3.0, "overtaken_checkpoint"),),
        8.0,
        "no checkpoint after a later one",
    ),
    Kept(
        "A sweep deletes a file of its own term, the handle of which is being written.",
        "states-of-present-terms-swept",
        "ha",
        1,
        tuple(_late_write(at_s, "handles:jobgraphs", 0.3, (0.0, "sweep", ())) for at_s in (3.0, 4.0, 5.0, 6.0, 7.0)),
        9.0,
        "no handle dangles",
    ),
    Kept(
        "A leader that has lost its latch hears that its state is stored, which it was before.",
        "same-state-acknowledged-without-the-leadership",
        "ha",
        1,
        (Fault(1.0, "stores_again", (15.0,)), *(Fault(at_s, "latch_taken") for at_s in (3.0, 7.03, 11.06))),
        15.0,
        "no former leader writes",
    ),
    Kept(
        "A leader that stood still beyond its lease writes to the memory of the master.",
        "memory-write-without-fence",
        "ha",
        0,
        (
            Fault(1.0, "clings", (20.0,)),
            *(Fault(3.0 + 4 * number, "freeze", (f"contender{1 + number}", 3.0)) for number in range(3)),
        ),
        15.0,
        "no former leader writes",
    ),
    Kept(
        "A follower that cannot read the latch follows a leader that has ended.",
        "leader-believed-beyond-its-lease",
        "ha",
        1,
        _FOLLOWER_CUT_OFF,
        18.0,
        "followers give up a former leader",
    ),
    Kept(
        "A follower that has missed a message follows the former leader.",
        "changes-listened-to-once",
        "ha",
        5,
        _FOLLOWER_CUT_OFF,
        18.0,
        "followers give up a former leader",
    ),
    Kept(
        "A loss of power takes the content of a state, to which a handle refers.",
        "private-file-not-synced",
        "ha",
        1,
        _LOSSES_OF_FILES,
        8.0,
        "no handle dangles",
    ),
    Kept(
        "A loss of power takes the name of a state's file, to which a handle refers.",
        "private-file-name-not-synced",
        "ha",
        1,
        _LOSSES_OF_FILES,
        8.0,
        "no handle dangles",
    ),
    Kept(
        "A loss of power takes the directory of states, to which handles refer.",
        "name-of-a-new-directory-not-synced",
        "ha",
        1,
        _LOSSES_OF_FILES,
        8.0,
        "no handle dangles",
    ),
    Kept(
        "A leader whose host was suspended leads beside its successor.",
        "lease-by-a-clock-that-sleeps",
        "ha",
        1,
        tuple(Fault(3.0 + 4 * number, "suspend", (host, 3.0)) for number, host in enumerate(_HA_HOSTS)),
        18.0,
        "one leader at a time",
    ),
    Kept(
        "A leader whose wall clock was set back leads beside its successor.",
        "lease-by-the-wall-clock",
        "ha",
        1,
        tuple(
            fault
            for at_s, host in zip((3.0, 10.0, 17.0), _HA_HOSTS, strict=True)
            for fault in (
                Fault(at_s, "jump", (host, -10.0)),
                Fault(at_s + 0.1, "partition", (host, "keeper1", 6.0)),
            )
        ),
        25.0,
        "one leader at a time",
    ),
    Kept(
        "A leader counts its first lease beyond its end, and leads beside its successor.",
        "first-lease-beyond-the-servers",
        "ha",
        1,
        tuple(
            Fault(at_s, "late_grant", (host, 0.2, 3.0)) for at_s, host in zip((3.0, 9.0, 15.0), _HA_HOSTS, strict=True)
        ),
        20.0,
        "one leader at a time",
    ),
    Kept(
        "An increment that arrives late sets the counter of checkpoints back.",
        "checkpoint-number-given-twice",
        "ha",
        1,
        tuple(_late_write(at_s, "checkpoint-ids", 2.5) for at_s in (3.0, 6.0)),
        10.0,
        "each number once",
    ),
    Kept(
        "A write that arrives late refers to a file that was deleted.",
        "file-deleted-though-the-write-is-in-doubt",
        "ha",
        3,
        tuple(_late_write(at_s, _OF_A_FILE, 1.12, (1.06, "kill", ("this",))) for at_s in (3.0, 7.0)),  # no repetition
        10.0,
        "no handle dangles",
    ),
    Kept(
        "A leader that stood still takes the increment of its successor for its own.",
        "checkpoint-number-of-a-successor",
        "ha",
        6,
        (Fault(1.0, "clings", (20.0,)), Fault(2.5, "increment_lost", (2.6,))),
        12.0,
        "each number once",
    ),
)
