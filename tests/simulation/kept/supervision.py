"""Plans of faults kept for masters, workers and their commands."""

from __future__ import annotations

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept

_STOPPED_AFTER_A_KILL = (
    Fault(0.1, "command", ("host1", "start")),
    Fault(5.0, "signal", ("host1", 0.0, 9, "entrypoint")),
    Fault(7.0, "command", ("host1", "stop")),
)

KEPT: tuple[Kept, ...] = (
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
)

RARE: tuple[Kept, ...] = (
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
)
