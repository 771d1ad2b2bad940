"""Plans of faults kept for checkpoints of streaming queries."""

from __future__ import annotations

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept

_LOSSES_OF_POWER = tuple(Fault(at_s, "total_power_loss", ("everything", 1.0)) for at_s in (9.0, 12.0, 16.0, 21.0))

KEPT: tuple[Kept, ...] = (
    Kept(
        "A TaskExecutor that stood still began an attempt that was replaced, and put older state over newer files.",
        "attempt-that-was-replaced-goes-back",
        "streaming",
        868789,
        (
            Fault(8.134, "freeze", ("worker1", 10.21)),
            Fault(20.561, "freeze", ("worker2", 6.243)),
            Fault(28.145, "freeze", ("worker1", 7.246)),
        ),
        36.0,
        "no query goes back too far",
    ),
    Kept(
        "A TaskExecutor that stood still took part in a checkpoint when its job had ended elsewhere; its files stayed.",
        "directory-of-a-removed-checkpoint-made-again",
        "streaming",
        1,
        (
            Fault(8.0, "freeze", ("worker2", 25.0)),  # the trigger of the checkpoint arrives meanwhile
            Fault(9.0, "kill", ("spark-worker2",)),  # so its lease is free, and the job runs elsewhere to its end
        ),
        36.0,
        "nothing is left",
    ),
    Kept(
        "A savepoint that was being written at a rollback ended its job, and named files that the rollback removed.",
        "savepoint-of-abandoned-batches",
        "streaming",
        765835,
        (
            Fault(8.75, "freeze", ("worker1", 8.932)),
            Fault(21.22, "freeze", ("worker2", 7.513)),
            Fault(27.82, "freeze", ("worker1", 7.095)),
        ),
        36.0,
        "rows exactly once",
    ),
)

RARE: tuple[Kept, ...] = (
    Kept(
        "A task starts from the checkpoint before the one that is being stored, and removes rows of that one.",
        "restart-while-a-checkpoint-is-stored",
        "streaming",
        3,
        (
            Fault(8.0, "location_lost_in_store", ("line1", 2.1)),
            Fault(8.0, "location_lost_in_store", ("line2", 2.1)),
        ),
        20.0,
        "completed checkpoints are restorable",
    ),
    Kept(
        "A query that went back to an earlier checkpoint takes no checkpoint: its files differ from the later one's.",
        "restored-query-compared-with-former-files",
        "streaming",
        2,
        (
            Fault(8.0, "state_damaged", ("line1", 0.8)),
            Fault(8.0, "state_damaged", ("line2", 0.8)),
        ),
        20.0,
        "files stay as they are",
    ),
    Kept(
        "A loss of power takes the files of a checkpoint that is acknowledged: their names were not synced.",
        "names-in-a-directory-not-synced",
        "streaming",
        0,
        _LOSSES_OF_POWER,
        24.0,
        "no handle dangles",
    ),
    Kept(
        "A loss of power takes a checkpoint that is acknowledged: its name was not synced.",
        "name-of-a-directory-not-synced",
        "streaming",
        0,
        _LOSSES_OF_POWER,
        24.0,
        "no handle dangles",
    ),
    Kept(
        "A driver that stands still keeps the lease of its attempt from the next one.",
        "former-attempt-not-fenced",
        "streaming",
        0,
        tuple(Fault(8.0, "driver_stopped", (name, 30.0)) for name in ("worker1", "worker2")),
        40.0,
        "a former attempt is fenced",
    ),
    Kept(
        "A JobMaster is lost after it has published a savepoint, and the next one reports that it failed.",
        "present-savepoint-made-again",
        "streaming",
        0,
        tuple(Fault(1.0, "lost_at_savepoint", ("master", 0.004)) for _ in range(5)),
        30.0,
        "a savepoint is made once",
    ),
    Kept(
        "A task is lost at the end of a stop and runs again, and the stop has COMPLETED.",
        "stop-completed-though-its-task-runs",
        "streaming",
        0,
        (Fault(1.0, "lost_at_savepoint", ("worker", 0.0)),),
        40.0,
        "a stop ends its job",
    ),
    Kept(
        "A query plans a batch again that its sink has, and the sink skips the new rows.",
        "sink-ahead-of-the-offsets-unseen",
        "streaming",
        0,
        tuple(Fault(round(8.0 + 1.1 * n, 2), "offsets_lost", (f"line{1 + n % 2}",)) for n in range(4)),
        14.4,
        "rows exactly once",
    ),
    Kept(
        "A checkpoint on a slow disk is in progress beyond its timeout.",
        "checkpoint-without-timeout",
        "streaming",
        0,
        (Fault(8.0, "disk_slow", ("shared", 3.0, 25.0)),),
        36.0,
        "a checkpoint times out",
    ),
    Kept(
        "A checkpoint that is requested while its job removes its files is in progress for ever.",
        "request-after-the-end-of-a-job-waits-for-ever",
        "streaming",
        0,
        (Fault(3.5, "job_cancelled", ("line1",)), Fault(3.6, "job_cancelled", ("line2",))),
        12.0,
        "an accepted request ends",
    ),
)
