"""Makes ``docs/reliability.md`` of the scenarios: ``python -m tests.faults.table [--write | --check]``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.scenarios import SCENARIOS, Scenario

FILE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_HEAD = """\
# Reliability

<!-- Written by `python -m tests.faults.table --write` from tests/faults/scenarios.py: change that, not this. -->

The failures that hurt users of such systems most, by the issues of Flink, Spark, Kyuubi, Livy, Ray and others: what is
done here, what must hold, and the tests that show it, named from `tests/`. A test fails when one of them is gone.

    python -m tests.faults list                        # the scenarios
    python -m tests.faults run redis-blip              # runs the tests of one, and says what became of each
    python -m tests.faults run all --json FILE         # of all; the exit status is 1 where one fails
    python -m tests.faults run stopped-leader --long --seed 7     # its long forms too
    python -m tests.faults.soak --minutes 60           # a mixed load with the nemesis on: what grows, and what broke

"""
_TAIL = """\
## The nemesis

Some tests do one thing. The nemesis does them all, at random, to a cluster of two masters and two TaskExecutors, while
clients submit, watch and cancel jobs and a streaming query counts what it is given:

- It kills and stops (SIGSTOP, for less and for longer than the lease and `heartbeat.timeout`) every kind of process:
  Dispatcher, ResourceManager, BlobServer, JobMaster, TaskExecutor, master, Redis, Spark driver, zygote, task process,
  and Python worker of Spark.
- It cuts the connections between components: Dispatcher, JobMaster, ResourceManager and one TaskExecutor from each
  other, and the BlobServer from all. Either nothing passes for a while, or the connections break.
- It harms what passes between the cluster and its Redis, and fills its disks.

What the clients were told, what the jobs noted themselves, what Redis accepted and what really ran is one history,
which has to be free of contradictions (`tests/faults/history.py`): no acknowledged job is lost, no end is taken back,
nothing runs twice, epochs rise, RUNNING is said only where somebody knows. The query's sink has each row once in the
end.

    python -m tests.faults.nemesis                     # each kind of deed once, in a random order; some minutes
    python -m tests.faults.nemesis --seed 7            # in the order of that seed
    python -m tests.faults.nemesis --long              # an hour

A broken connection alone does not make a TaskExecutor lost: the JobMaster sends its request again. Only its heartbeats
do, or the end of its process. A TaskExecutor that counts as lost, and lives, is then told to end its tasks of the job.

Limits: a TaskExecutor that stands still or is cut off does not end its tasks. The JobMaster runs them again on another
one, so a batch task may run twice until the first TaskExecutor is heard again. A streaming query does not: its
checkpointLocation has one writer.

## The simulator

The control plane also runs in a simulated world, where time is virtual and each fault comes by a seed:
[simulation](simulation.md) says what it covers. It finds what is too rare for real processes; it says nothing about
Spark, Java, redis-server and Thespian themselves, which it models.

    python -m tests.simulation run --minutes 3         # new random seeds

## The soak

Short jobs and a streaming job, with the nemesis on, for an hour. Memory, descriptors, threads and processes by role,
Redis' keys and memory, files and bytes by directory are noted every five seconds. In the second half of the time none
may gain more than a tenth (descriptors: a quarter), or a small amount where that is more (`tests/faults/growth.py:
BOUNDS`), by the median slope of all pairs of samples; what single processes gain while they live is judged besides.
The JVM's heap has a ceiling instead. All invariants of the nemesis' history have to hold, and the stream must not
have lost or doubled a row.

An hour on two cores, which other work kept busy besides (2026-11-22, seed 20261122): 366 faults of 20 kinds, 2,838 jobs
acknowledged, 2,122 submissions told to be unknown, 48,476 answers to questions, 861 leaderships. No invariant was
broken; of the stream's 6,256,763 rows none was lost and none doubled; none of 135 figures grew beyond its bound. One
came near: killed processes had left two hundred sockets, which are removed since.
"""


def render() -> str:
    """The page."""
    rows = "\n".join(map(_row, SCENARIOS))
    head = "| scenario | what is done | what must hold | verdict |\n|---|---|---|---|\n"
    return f"{_HEAD}{head}{rows}\n\n{_details()}{_TAIL}"


def _row(scenario: Scenario) -> str:
    return f"| `{scenario.name}` | {scenario.done} | {scenario.holds} | {scenario.verdict} |"


def _details() -> str:
    parts = []
    for scenario in SCENARIOS:
        parts.append(f"## {scenario.name}\n\n")
        parts += [f"- `{test}`\n" for test in scenario.tests]
        parts += [f"- `python -m {run}`\n" for run in scenario.runs]
        parts.append(f"\nLimits: {scenario.limits}\n\n" if scenario.limits else "\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """The command; the exit status is 1 when ``--check`` finds the file untrue, 2 for a wrong argument."""
    if arguments == ["--write"]:
        FILE.write_text(render(), "utf-8")
    elif arguments == ["--check"]:
        if not FILE.exists() or FILE.read_text("utf-8") != render():
            sys.stderr.write(f"error: {FILE} is not true\nremedy: python -m tests.faults.table --write\n")
            return 1
    elif arguments:
        sys.stderr.write("error: expected --write, --check or nothing\nremedy: python -m tests.faults.table\n")
        return 2
    else:
        sys.stdout.write(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
