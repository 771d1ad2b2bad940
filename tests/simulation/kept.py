"""Plans of faults that have found a defect of the product.

Each names the planted fault of `tests.simulation.planted` that takes the mend out again. With that fault the plan has
to fail, and without it to pass. A plan that meets the old situation no more, after a change of a workload or of the
product, passes with the fault too. Then the test fails, and another seed or plan has to be found:

    python -m tests.simulation.with_fault renewal-without-the-address shrink --workload ha --seed 7 --short 4

`RARE` has plans for planted faults that random seeds may not find for long. They were no defects of the product.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.faults import Fault

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Kept:
    """A plan of faults to keep.

    Args:
        defect: what it has found.
        planted: name of the planted fault that brings the defect back.
        workload: its name.
        seed: of everything but the plan.
        plan: the faults.
        faults_s: virtual seconds of faults.
        check: what fails without the mend.
    """

    defect: str
    planted: str
    workload: str
    seed: int
    plan: Sequence[Fault]
    faults_s: float
    check: str

    def command(self, *, is_mended: bool) -> list[str]:
        """Return the command that runs the plan, with the mend or without it."""
        module = ["tests.simulation"] if is_mended else ["tests.simulation.with_fault", self.planted]
        return [
            *(sys.executable, "-W", "ignore", "-m", *module, "replay", "--workload", self.workload),
            *("--seed", str(self.seed), "--short", str(self.faults_s), "--faults", repr(list(self.plan))),
        ]

    def start(self, *, is_mended: bool) -> subprocess.Popen[str]:
        """Start the command in a process of its own."""
        return subprocess.Popen(
            self.command(is_mended=is_mended),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


_ALL_BUT_MASTER2_UPGRADED = (
    Fault(1.0, "upgrade", ("client1",)),
    Fault(1.5, "upgrade", ("worker1",)),
    Fault(2.0, "upgrade", ("worker2",)),
    Fault(2.5, "upgrade", ("master1",)),
    *(Fault(at_s, "kill", ("master2-dispatcher",)) for at_s in (4.5, 6.0)),  # that of master1 leads
    Fault(8.0, "freeze", ("master2-master", 7.0)),  # it is not listed while the level is raised
)

_STOPPED_AFTER_A_KILL = (
    Fault(0.1, "command", ("host1", "start")),
    Fault(5.0, "signal", ("host1", 0.0, 9, "entrypoint")),
    Fault(7.0, "command", ("host1", "stop")),
)

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
    Kept(
        "The only master got SIGTERM, as at a reboot, and the cluster's jobs were forgotten.",
        "jobs-forgotten-after-a-signal",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(8.0, "command", ("host1", "submit")),
            Fault(14.0, "signal", ("host1", 0.375, 15)),  # the fifth of twelve processes, `entrypoint`
        ),
        18.0,
        "no job is lost",
    ),
    Kept(
        "What a failing disk did not remove stayed in the BlobServer's directory until it restarted.",
        "rest-of-a-failed-removal-forgotten",
        "blobs",
        0,
        (Fault(15.0, "disk_remove_errors", ("m1", 1.0, 5.0)),),
        20.0,
        "nothing is left behind",
    ),
    Kept(
        "A client that reads into a stream got the server's damaged copy again each time, and never the store's.",
        "damaged-copy-streamed-again",
        "blobs",
        3,
        (Fault(4.6, "blob_damage", ("m1", 0.48)),),
        11.0,
        "a damaged copy is replaced",
    ),
    Kept(
        "`status` beside the end of `stop` complained about a configuration that was just being removed.",
        "configuration-that-is-being-removed-is-an-error",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(10.0, "command", ("host1", "stop")),
            Fault(10.1, "disk_slow", ("d", 0.1, 9.5)),
            *(Fault(round(11.5 + 0.05 * number, 3), "command", ("host1", "status")) for number in range(50)),
        ),
        20.0,
        "no unhandled error",
    ),
    Kept(
        "A loss of power after `stop` left the configuration and no directory of sockets: `start-master` failed.",
        "configuration-of-a-stopped-cluster-removed-last",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(10.0, "command", ("host1", "stop")),
            Fault(15.0, "power_loss", ("host1", 0.9, "latest")),
        ),
        20.0,
        "the cluster heals",
    ),
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
    Kept(
        "A connection broke just after a task was submitted, its TaskExecutor counted as lost, and the job ran twice.",
        "task-executor-of-a-broken-connection-given-up",
        "cluster",
        0,
        (Fault(0.0, "break_after", (88,)),),  # the 88th delivery is the first task's
        4.0,
        "no job runs twice",
    ),
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
            Fault(8.884, "freeze", ("worker1", 8.932)),
            Fault(21.332, "freeze", ("worker2", 7.513)),
            Fault(27.97, "freeze", ("worker1", 7.095)),
        ),
        36.0,
        "rows exactly once",
    ),
)
LOSSES_OF_POWER = tuple(Fault(at_s, "total_power_loss", ("everything", 1.0)) for at_s in (9.0, 12.0, 16.0, 21.0))
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


def _at_request(name: str, text: str, count: int, outcome: str, *then: tuple[float, str, tuple[Any, ...]]) -> Fault:
    """Return a fault at a write to Redis: part of the process's name, part of the write, and which one it is."""
    return Fault(3.0, "at_request", (name, "fenced hset", text, count, outcome, then))


_LEADERS = ("master1-dispatcher", "master2-dispatcher", "master1-resourcemanager", "master2-resourcemanager")

_HA_HOSTS = ("host1", "host2", "host3")
_FOLLOWER_CUT_OFF = (
    Fault(3.0, "partition", ("host1", "keeper1", 14.0)),
    *(Fault(at_s, "freeze", (name, 3.0)) for at_s, name in ((3.5, "contender1"), (4.0, "contender2"))),  # others lead
)
_LOSSES_OF_FILES = tuple(Fault(at_s, "disk_crash", ("shared", "everything")) for at_s in (3.0, 4.0, 5.0))


def _late_requests(times: int, every_s: float, late_s: float, for_s: float) -> tuple[Fault, ...]:
    """Return faults that delay some requests to Redis, while those of other connections overtake them."""
    return tuple(
        Fault(round(2.0 + every_s * number, 3), "slow", (host, "keeper1", late_s, for_s))
        for number in range(times)
        for host in _HA_HOSTS
    )


RARE: tuple[Kept, ...] = (
    Kept(
        "Leaders that stood still beyond their lease go on sending when they run again.",
        "act-after-the-lease",
        "cluster",
        0,
        (
            *(Fault(9.0, "freeze", (leader, 4.0)) for leader in _LEADERS),
            *(Fault(18.0, "freeze", (leader, 6.0)) for leader in _LEADERS),
        ),
        28.0,
        "only leaders send",
    ),
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
    Kept(
        "A task starts from the checkpoint before the one that is being stored, and removes rows of that one.",
        "restart-while-a-checkpoint-is-stored",
        "streaming",
        2,
        (
            Fault(8.0, "location_lost_in_store", ("line1", 4.0)),
            Fault(8.0, "location_lost_in_store", ("line2", 4.0)),
        ),
        20.0,
        "completed checkpoints are restorable",
    ),
    Kept(
        "A query that went back to an earlier checkpoint takes no checkpoint: its files differ from the later one's.",
        "restored-query-compared-with-former-files",
        "streaming",
        0,
        (
            Fault(8.0, "state_damaged", ("line1", 1.3)),
            Fault(8.0, "state_damaged", ("line2", 1.3)),
        ),
        20.0,
        "files stay as they are",
    ),
    Kept(
        "A server that finds its copy damaged serves it, and does not take the store's.",
        "damaged-copy-here-served",
        "blobs",
        3,
        (Fault(4.6, "blob_damage", ("m1", 0.48)),),
        11.0,
        "a damaged copy is replaced",
    ),
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
        "A loss of power takes the files of a checkpoint that is acknowledged: their names were not synced.",
        "names-in-a-directory-not-synced",
        "streaming",
        0,
        LOSSES_OF_POWER,
        24.0,
        "no handle dangles",
    ),
    Kept(
        "A loss of power takes a checkpoint that is acknowledged: its name was not synced.",
        "name-of-a-directory-not-synced",
        "streaming",
        0,
        LOSSES_OF_POWER,
        24.0,
        "no handle dangles",
    ),
    Kept(
        "`stop` after the end of the only master leaves the jobs to the next cluster.",
        "jobs-of-a-stopped-cluster-recovered",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(8.0, "command", ("host1", "submit")),
            Fault(14.0, "signal", ("host1", 0.375, 9)),  # `entrypoint`
            Fault(14.0, "command", ("host1", "stop")),
        ),
        18.0,
        "a stopped job stays stopped",
    ),
    Kept(
        "`status` shows the process of a worker that has ended while its next start keeps failing.",
        "ended-process-shown",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(18.1, "fail_start", ("worker", 14)),  # the supervisor's pause grows to some seconds
            Fault(18.2, "signal", ("host1", 0.99, 9)),  # the last by name, `worker`
            *(Fault(at_s, "command", ("host1", "status")) for at_s in (22.0, 24.0, 26.0, 27.0, 28.0, 30.0)),
        ),
        33.0,
        "shown states are true",
    ),
    Kept(
        "A worker that does not listen to SIGTERM keeps the last master from its end, until `stop` kills it.",
        "sigterm-trusted",
        "supervision",
        0,
        (Fault(0.1, "command", ("host1", "start")), Fault(18.0, "deaf", ("host1", 0.0))),
        19.0,
        "the last master ends all processes",
    ),
    # ------------------------------------------------------------------ of masters, workers and their commands
    Kept(
        "Redis's replies wake no loop of a thread before its next timer.",
        "reply-does-not-wake-a-thread",  # of the simulator, which notices it
        "supervision",
        0,
        (Fault(0.1, "command", ("host1", "start")),),
        1.0,
        "no unhandled error",
    ),
    Kept(
        "A master whose actor system has ended keeps the cluster, and starts no component any more.",
        "master-outlives-its-actor-system",
        "supervision",
        0,
        (Fault(0.1, "command", ("host1", "start")), Fault(6.0, "signal", ("host1", 0.0, 9, "admin"))),
        10.0,
        "the cluster heals",
    ),
    Kept(
        "A master whose actor system has ended ends the workers, which are the next master's.",
        "master-ends-the-cluster-with-its-actor-system",
        "supervision",
        0,
        (Fault(0.1, "command", ("host1", "start")), Fault(6.0, "signal", ("host1", 0.0, 9, "admin"))),
        10.0,
        "a worker ends by a fault or a stop",
    ),
    Kept(
        "A worker whose actor system has ended stays, without a TaskExecutor.",
        "worker-outlives-its-actor-system",
        "supervision",
        0,
        (Fault(0.1, "command", ("host1", "start")), Fault(6.0, "signal", ("host1", 0.99, 9, "admin"))),
        10.0,
        "the cluster heals",
    ),
    Kept(
        "The second of two masters does not take over the worker of the first, and starts it no more.",
        "processes-not-taken-over",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start2")),
            Fault(6.0, "signal", ("host1", 0.0, 9, "entrypoint")),
            Fault(8.0, "signal", ("host1", 0.0, 9, "worker")),
        ),
        12.0,
        "the cluster heals",
    ),
    Kept(
        "The second start of Redis fails, and there is no third one.",
        "component-that-cannot-be-started-given-up",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(5.9, "fail_start", ("redis-server", 1)),
            Fault(6.0, "signal", ("host1", 0.0, 9, "redis-server")),
        ),
        10.0,
        "the cluster heals",
    ),
    Kept(
        "A start that fails, because the JVM of its worker ends, leaves its master running.",
        "failed-start-takes-nothing-down",
        "supervision",
        0,
        (Fault(0.05, "fail_start", ("java", 5)), Fault(0.1, "command", ("host1", "start"))),
        5.0,
        "a failed start leaves no master",
    ),
    Kept(
        "cluster.json does not name the second master, which is the only one later.",
        "cluster-file-not-kept",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(5.0, "command", ("host1", "join")),
            Fault(8.0, "signal", ("host1", 0.0, 9, "entrypoint")),
        ),
        12.0,
        "cluster.json names the masters",
    ),
    Kept(
        "`stop` leaves the files of a cluster whose master was killed.",
        "files-of-the-cluster-kept-by-stop",
        "supervision",
        0,
        _STOPPED_AFTER_A_KILL,
        11.0,
        "a stop leaves no file",
    ),
    Kept(
        "`stop` leaves the worker of a master that was killed.",
        "left-behind-not-swept",
        "supervision",
        0,
        _STOPPED_AFTER_A_KILL,
        11.0,
        "a stop leaves no process",
    ),
    Kept(
        "Two masters leave at once, each sees the other, and none of them ends the worker.",
        "two-last-masters",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start2")),
            Fault(6.0, "command", ("host1", "stop")),
            Fault(6.0, "slow_locks", (0.02, 10.0)),
        ),
        20.0,
        "the last master ends all processes",
    ),
    Kept(
        "A start that fails takes away the configuration that a killed cluster has left.",
        "start-that-fails-takes-the-configuration-along",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(5.0, "signal", ("host1", 0.0, 9, "entrypoint")),
            Fault(5.5, "fail_start", ("worker", 9)),
            Fault(6.0, "command", ("host1", "start")),
        ),
        10.0,
        "a failed start keeps the configuration",
    ),
    Kept(
        "A start locks the file that `stop` has removed meanwhile, and ends the cluster of another start.",
        "lock-of-a-removed-file",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(5.0, "signal", ("host1", 0.0, 9, "entrypoint")),
            Fault(5.9, "slow_locks", (5.0, 4.5, "client-start2")),
            Fault(6.0, "command", ("host1", "start2")),
            Fault(7.0, "command", ("host1", "stop")),
            Fault(9.0, "command", ("host1", "start")),
        ),
        22.0,
        "one cluster runs in a directory",
    ),
    Kept(
        "`stop` finds nothing while the redis-server of a killed master has not written its number yet.",
        "redis-being-started-is-left",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(0.85, "pause", ("host1", 0.0, 3.0, "redis-server")),
            Fault(0.86, "signal", ("host1", 0.0, 9, "entrypoint")),
            Fault(0.86, "signal", ("host1", 0.0, 9, "client-start")),
            Fault(0.95, "command", ("host1", "stop")),
        ),
        6.0,
        "a stop leaves no process",
    ),
    Kept(
        "A master is killed between the start of a worker and the note of it, and the next one starts another.",
        "process-that-nobody-noted-begins",
        "supervision",
        0,
        (
            Fault(0.1, "command", ("host1", "start")),
            Fault(6.0, "signal", ("host1", 0.0, 9, "worker")),
            Fault(6.0, "hit_at_effect", ("host1", 0.0, 6, "entrypoint")),
            Fault(8.0, "command", ("host1", "join")),
        ),
        12.0,
        "one process of a kind",
    ),
    # With `submit` in a plan the clients submit nothing else.
    Kept(
        "A TaskExecutor that stands still is registered for as long as its host accepts connections.",
        "silence-unnoticed",
        "cluster",
        0,
        (Fault(3.0, "freeze", ("taskmanager-1", 10.0)),),
        14.0,
        "a silent TaskExecutor is lost",
    ),
    Kept(
        "A TaskExecutor that is cut off runs its task while the cluster starts another attempt of it.",
        "isolation-unnoticed",
        "cluster",
        0,
        (
            Fault(3.0, "submit", ("client1", 1, "20")),
            Fault(6.0, "isolate", ("worker1", 9.0)),
            Fault(6.0, "isolate", ("worker2", 9.0)),
        ),
        16.0,
        "a TaskExecutor that is cut off ends its tasks",
    ),
    Kept(
        "A task is cancelled as soon as its JobMaster is silent, although that comes back some seconds later.",
        "tasks-without-a-job-master-cancelled-at-once",
        "cluster",
        0,
        (Fault(3.0, "submit", ("client1", 1, "20")), Fault(6.0, "freeze", ("jobmaster", 9.0))),
        16.0,
        "tasks outlast their JobMaster",
    ),
    Kept(
        "A job returns the first slot that it does not need any more, and keeps the next ones to its end.",
        "alarm-lost",
        "cluster",
        0,
        (Fault(3.0, "submit", ("client1", 1, "1/5/20")), Fault(3.0, "submit", ("client1", 2, "1/5/20"))),
        20.0,
        "an idle slot goes back",
    ),
    Kept(
        "A slot for the request of a former JobMaster is accepted beside that of the present one, and used by no task.",
        "slot-nobody-waits-for-kept",
        "cluster",
        0,
        (Fault(3.0, "submit", ("client1", 1, "30")), Fault(3.02, "kill", ("jobmaster",))),
        24.0,
        "a slot that its job does not have is free",
    ),
    Kept(
        "A TaskExecutor keeps a slot that the present JobMaster did not accept.",
        "refused-slot-kept",
        "cluster",
        0,
        (Fault(3.0, "submit", ("client1", 1, "30")), Fault(3.02, "kill", ("jobmaster",))),
        24.0,
        "a slot that its job does not have is free",
    ),
    Kept(
        "The connection breaks between a registration and the offer after it, and the offer is not made again.",
        "offer-made-once",
        "cluster",
        0,
        (Fault(3.0, "submit", ("client1", 1, "20")), Fault(2.995, "break_after", (25,))),
        12.0,
        "a slot that its job does not have is free",
    ),
    Kept(
        "TaskExecutors that stood still give slots to a job that was cancelled meanwhile, and keep them.",
        "slot-of-a-job-that-is-over-kept",
        "cluster",
        0,
        (
            Fault(3.0, "submit", ("client1", 1, "30")),
            *(Fault(2.9, "freeze", (f"taskmanager-{number}", 3.0)) for number in (1, 2, 3)),
            Fault(3.3, "cancel", ("client1", 1)),
        ),
        10.0,
        "no slot leaks",
    ),
    Kept(
        "A ResourceManager that could not reach a JobMaster has forgotten its job, which gets no slot any more.",
        "registration-once",
        "cluster",
        3,
        (
            Fault(3.0, "submit", ("client1", 1, "30")),
            Fault(6.0, "partition", ("master1", "master2", 8.0)),
            *(Fault(16.0, "kill", (f"taskmanager-{number}",)) for number in (1, 2, 3)),
        ),
        20.0,
        "an accepted job ends",
    ),
    Kept(
        "A request whose answer was lost is made again, although it has its slot, and gets another one.",
        "request-repeated-counts-twice",
        "cluster",
        3,
        (Fault(3.0, "submit", ("client1", 1, "8")), Fault(2.995, "break_after", (23,))),
        6.0,
        "a request has one slot",
    ),
    Kept(
        "A broken connection loses the end of a job for its TaskExecutor, which keeps the slot while the Dispatcher is "
        "away.",
        "slots-kept-at-the-end",
        "cluster",
        0,
        (
            Fault(3.0, "submit", ("client1", 1, "4")),
            *(Fault(5.0, "freeze", (f"master{number}-dispatcher", 42.0)) for number in (1, 2)),
            *(Fault(6.5, "slow", ("master1", f"worker{number}", 0.3, 40.0)) for number in (1, 2)),
            Fault(6.9, "break_after", (18,)),
        ),
        48.0,
        "a slot that its job does not have is free",
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
        tuple(Fault(round(3.0 + 0.03 * number, 3), "sweep") for number in range(150)),
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
        5,
        _late_requests(8, 2.0, 2.0, 0.1),
        20.0,
        "each number once",
    ),
    Kept(
        "A write that arrives late refers to a file that was deleted.",
        "file-deleted-though-the-write-is-in-doubt",
        "ha",
        5,
        _late_requests(5, 1.1, 1.1, 0.12),
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
        tuple(Fault(round(8.0 + 0.37 * n, 2), "offsets_lost", (f"line{1 + n % 2}",)) for n in range(20)),
        20.0,
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
    # ------------------------------------------------------------------ cluster, by requests to Redis
    Kept(
        "A loop of a former leadership goes on when its process leads again.",
        "act-of-a-former-term",
        "cluster",
        0,
        tuple(
            Fault(at_s, "partition", (master, "keeper", 3.0))
            for at_s, master in ((3.0, "master1"), (8.0, "master2"), (12.0, "master1"))
        ),
        18.0,
        "no act of a former term",
    ),
    Kept(
        "A TaskExecutor that is stopping takes the calls of JobMasters while it closes its driver.",
        "served-before-the-start",
        "cluster",
        0,
        tuple(Fault(7.0, "stop_process", (f"taskmanager-{number}", 1.0)) for number in (1, 2, 3)),
        10.0,
        "only started endpoints accept calls",
    ),
    Kept(
        "A job is refused whose storing is in doubt, and the next leader runs it.",
        "submission-in-doubt-refused",
        "cluster",
        0,
        (_at_request("dispatcher", "handles:jobgraphs", 1, "lose reply", (0.0, "partition", ("here", "keeper", 3.0))),),
        12.0,
        "a refused job is not accepted",
    ),
    Kept(
        "A submission that is repeated begins another follower of the job's JobMaster, which nothing ends.",
        "submission-repeated-is-another-job",
        "cluster",
        1,
        tuple(Fault(at_s, "break_after", (1,)) for at_s in (5.6, 6.0, 6.4)),
        10.0,
        "no job is followed after its end",
    ),
    Kept(
        "The entry of a job without a graph stays for ever: Dispatcher and clients ended during its submission.",
        "half-submission-kept-by-the-next",
        "cluster",
        0,
        (
            _at_request(
                "dispatcher",
                '"status": "PENDING"',
                1,
                "pass",
                *((0.0, "kill", (name,)) for name in ("this", "client1", "client2")),
            ),
        ),
        10.0,
        "no job leaves anything",
    ),
    Kept(
        "A job is shown as ended while the record of its end is repeated.",
        "end-told-before-it-is-recorded",
        "cluster",
        0,
        (_at_request("dispatcher", '"status": "DONE"', 1, "lose"),),
        10.0,
        "a shown end is recorded",
    ),
    Kept(
        "A Dispatcher ended between the archive and the record of an end; the next one shows what it has not recorded.",
        "end-in-the-archive-forgotten",
        "cluster",
        0,
        (
            _at_request(
                "dispatcher",
                '"status": "DONE"',
                1,
                "lose",
                (0.0, "crash", ("here", 1.0)),
                (0.0, "starts_fail", (9,)),  # else the next JobMaster reports the end at once
            ),
        ),
        14.0,
        "a shown end is recorded",
    ),
    Kept(
        "A JobMaster ends before it has written the deployment that it has sent. The next one sends another.",
        "state-told-before-it-is-written",
        "cluster",
        0,
        (_at_request("jobmaster", "handles:executions", 3, "lose", (0.2, "kill", ("this",))),),
        10.0,
        "no job runs twice",
    ),
    Kept(
        "A JobMaster stood still until the TaskExecutors had freed its slots, and tries them again and again.",
        "slot-of-an-unregistered-task-executor-kept",
        "cluster",
        0,
        (_at_request("jobmaster", "handles:executions", 3, "pass", (0.01, "freeze", ("this", 17.0))),),
        26.0,
        "an accepted job ends",
    ),
    Kept(
        "A job waits for ever after one failed start of its JobMaster.",
        "job-master-not-started-again",
        "cluster",
        0,
        (Fault(5.0, "starts_fail", (3,)),),
        10.0,
        "an accepted job ends",
    ),
    Kept(
        "A process that stood still while it took over, beyond its lease, keeps the latch and never serves.",
        "unconfirmed-term-kept",
        "cluster",
        0,
        (
            Fault(
                0.0,
                "at_request",
                (
                    *("dispatcher", "fenced hset", '"status": "PENDING"', 1, "pass"),
                    tuple((0.0, "kill", (name,)) for name in ("this", "client1", "client2")),
                ),
            ),
            # Its last step before it serves is answered while it stands still, and its renewal after that.
            Fault(1.0, "at_request", ("dispatcher", "HGET", "feature-level", 1, 0.1, ())),
            Fault(1.0, "at_request", ("dispatcher", "fenced hdel", "jobs:status", 2, 0.7, ())),
            Fault(
                1.0,
                "at_request",
                ("dispatcher", "renew", ":leader:dispatcher", 1, 0.5, ((0.05, "freeze", ("this", 1.3)),)),
            ),
        ),
        10.0,
        "the cluster answers",
    ),
    Kept(
        "A leader whose epoch the receivers have seen of another session is refused for ever.",
        "refusal-unheard",
        "cluster",
        0,
        (Fault(4.2, "epoch_repeated", ("resourcemanager",)),),
        12.0,
        "an accepted job ends well",
    ),
    Kept(
        "A JobMaster whose ResourceManager has ended repeats its requests without a pause.",
        "retried-without-pause",
        "cluster",
        0,
        tuple(Fault(5.2, "kill", (f"{master}-resourcemanager",)) for master in ("master1", "master2")),
        9.0,
        "the simulation runs",
    ),
)
