"""Plans of faults kept for Dispatcher, ResourceManager, JobMasters and TaskExecutors."""

from __future__ import annotations

from typing import Any

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept


def _at_request(name: str, text: str, count: int, outcome: str, *then: tuple[float, str, tuple[Any, ...]]) -> Fault:
    """Return a fault at a write to Redis: part of the process's name, part of the write, and which one it is."""
    return Fault(3.0, "at_request", (name, "fenced hset", text, count, outcome, then))


_LEADERS = ("master1-dispatcher", "master2-dispatcher", "master1-resourcemanager", "master2-resourcemanager")

KEPT: tuple[Kept, ...] = (
    Kept(
        "A connection broke just after a task was submitted, its TaskExecutor counted as lost, and the job ran twice.",
        "task-executor-of-a-broken-connection-given-up",
        "cluster",
        0,
        (Fault(0.0, "break_after", (88,)),),  # the 88th delivery is the first task's
        4.0,
        "no job runs twice",
    ),
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
        "an idle slot goes back",
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
