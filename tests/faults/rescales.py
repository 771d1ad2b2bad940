"""Rescales under SIGKILL: ``python -m tests.faults.rescales [--long] [--kills N] [--seed N]``.

The streaming job of `tests.faults.exactly_once` is rescaled again and again, by the command and by a job of the cluster
in turn at random. At a random moment of each rescale a process is killed: the one that rescales, Spark's JVM, the job's
task process, its TaskExecutor, its JobMaster, or all processes. Afterwards the query commits batches, in as many
partitions as the history of the job's rescales says, and the next rescale begins. At the end the sink holds what was
written to the source. The short form has 6 kills, the long one 50.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from actors.errors import ActorError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.ids import JobID
from runtime.protocol.errors import GatewayError
from tests.cluster_harness import Cluster, await_value
from tests.faults import exactly_once
from tests.faults.exactly_once import AHEAD, STREAM, WINDOW_MINUTES, end_all, kill_one, last_commit_ns, worker_process
from tests.faults.processes import kill
from tests.job_files import write_job
from tests.processes import lives
from tests.streaming_rows import Source, partitions_of, rows_of, rows_so_far
from tests.waiting import PATIENCE_S

SHORT = 6
LONG = 50
NUMBERS = (2, 5)
"""Partitions of the state, in turn. The job starts with the first."""
WAYS = {"command": 1, "cluster": 3}
"""How often each way is taken: a command with a Spark of its own, which takes long to start, or a job in a slot."""
SETTINGS = (*exactly_once.SETTINGS, "taskmanager.numberOfTaskSlots=2", "state.backend.type=rocksdb")
LOOK_S = 0.25
"""Seconds between two looks whether a rescale is over."""
LATE = 1.1
"""The latest moment of a kill, as a part of the duration of the last rescale that was finished.

A rescale that ends earlier is followed by its kill at once: the tasks restart then.
"""


@dataclass
class Result(exactly_once.Result):
    """A run: what was killed, and what became of the rescales and of the rows."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Rescales that were killed, by their outcome: finished, undone, or not begun."""

    def summary(self) -> dict[str, object]:
        """In numbers."""
        return {**super().summary(), "outcomes": dict(self.outcomes)}


def run(directory: Path, kills: int, seed: int) -> Result:
    """Start a cluster, kill that often, let the query come to its end, and compare.

    Args:
        directory: for the cluster and the query.
        kills: how many.
        seed: of the moments, and of what is killed.
    """
    cluster = Cluster(directory / "c", SETTINGS)
    cluster.run("start")
    try:
        return _Run(cluster, directory, Result(seed, "rocksdb")).carry_out(kills)
    finally:
        cluster.run("stop")


class _Run:
    def __init__(self, cluster: Cluster, directory: Path, result: Result) -> None:
        self._cluster = cluster
        self._directory = directory
        self._result = result
        self._random = random.Random(result.seed)
        self._source = Source(directory / "in", WINDOW_MINUTES)
        self._sink, self._location = directory / "out", directory / "live"
        self._job_id = ""
        self._partitions = NUMBERS[0]
        self._took_s: dict[str, float] = {}
        self._deeds: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
            "rescaling process": self._kill_rescaler,
            "spark": self._kill_spark,
            "task process": lambda _: self._kill_task(),
            "taskexecutor": lambda _: kill_one(lambda: worker_process(cluster, "pid")),
            "jobmaster": lambda _: kill_one(self._job_master),
            "everything": self._kill_everything,
        }

    def carry_out(self, kills: int) -> Result:
        result, deeds = self._result, list[str]()
        self._source.write(AHEAD)
        script = write_job(self._directory, STREAM, "stream.py")
        self._job_id = self._cluster.submit(script, *map(str, (self._source.directory, self._sink, self._location, 1)))
        await_value(lambda: self._committed >= 1)
        for _ in range(kills):
            (way,) = self._random.choices(list(WAYS), list(WAYS.values()))
            if way not in self._took_s:
                self._took_s[way] = self._undisturbed(way)
            deeds = deeds or self._random.sample(sorted(self._deeds), len(self._deeds))
            deed, moment_s = deeds.pop(), self._random.uniform(0, LATE * self._took_s[way])
            self._killed(way, deed, moment_s)
        self._source.close()
        await_value(lambda: rows_so_far(self._sink).total() >= self._source.expected.total())
        with self._cluster.client() as client:
            result.attempts = client.job(JobID(self._job_id)).tasks[0].attempts[-1].number + 1
        self._cluster.run("job", "cancel", self._job_id)
        # What an undisturbed query makes of the same files is shown by `tests.faults.exactly_once`.
        result.compare(self._source.expected, rows_of(self._sink), self._source.expected)
        return result

    def _undisturbed(self, way: str) -> float:
        """Rescale once without a kill; returns how many seconds that takes."""
        known, began = self._known(), time.monotonic()
        with self._rescaling(way):
            await_value(lambda: self._state(known))
        took_s = time.monotonic() - began
        assert self._outcome(known) == "finished", self._log.read_text()
        self._see_partitions("finished")
        return took_s

    def _killed(self, way: str, deed: str, moment_s: float) -> None:
        known, began = self._known(), time.monotonic()
        with self._rescaling(way) as process:
            self._source.write(AHEAD)
            while (left_s := began + moment_s - time.monotonic()) > 0 and not self._state(known):
                threading.Event().wait(min(left_s, LOOK_S))
            took_s = time.monotonic() - began
            if self._state(known) == "COMPLETED":
                self._took_s[way] = took_s
            self._deeds[deed](process)
            killed_ns = last_commit_ns(self._location)
            sys.stderr.write(f"{self._result.kills.total() + 1}: {deed} killed {took_s:.1f} s into a rescale by {way}")
            self._result.kills[deed] += 1
            process.wait(PATIENCE_S)
        self._source.write(AHEAD)
        await_value(lambda: last_commit_ns(self._location) > killed_ns)
        outcome = self._outcome(known)
        self._see_partitions(outcome)
        sys.stderr.write(f": {outcome}\n")
        self._result.outcomes[outcome] += 1
        self._result.survived += 1

    @property
    def _committed(self) -> int:
        return last_commit(f"commits/{name}" for name in list_names(self._location / "commits"))

    @property
    def _log(self) -> Path:
        return self._directory / "rescale.log"

    @property
    def _wanted(self) -> int:
        return next(number for number in NUMBERS if number != self._partitions)

    @contextlib.contextmanager
    def _rescaling(self, way: str) -> Iterator[subprocess.Popen[bytes]]:
        """Begin a rescale; the process of the command has ended at the end of the context."""
        options = ("--detach",) if way == "cluster" else ()
        command = self._cluster.command("job", "rescale", *options, "--partitions", str(self._wanted), self._job_id)
        with self._log.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            yield process

    def _history(self) -> list[dict[str, Any]]:
        """The job's rescales, by the cluster that may have to recover first."""

        def look() -> list[list[dict[str, Any]]]:
            try:
                return [self._cluster.job(self._job_id)["rescales"]]
            except (ActorError, GatewayError):
                return []  # a component is being replaced

        (found,) = await_value(look)
        return list(found)

    def _known(self) -> frozenset[str]:
        return frozenset(one["trigger_id"] for one in self._history())

    def _state(self, known: frozenset[str]) -> str:
        """State of the rescale that is not known, once it is over; empty before."""
        new = [one for one in self._history() if one["trigger_id"] not in known][-1:]
        return new[0]["state"] if new and new[0]["state"] != "IN_PROGRESS" else ""

    def _outcome(self, known: frozenset[str]) -> str:
        """Return the outcome of the rescale, once nothing does it any more."""
        if self._known() <= known:
            return "not begun"
        return {"COMPLETED": "finished", "FAILED": "undone"}[await_value(lambda: self._state(known))]

    def _see_partitions(self, outcome: str) -> None:
        """Wait for batches whose state has one of both numbers of partitions: it is the one that the outcome says."""
        numbers = {self._partitions: "the former", self._wanted: "the new"}
        expected = self._wanted if outcome == "finished" else self._partitions
        before = self._committed
        self._source.write(AHEAD)

        def look() -> int:
            if self._committed <= before:
                return 0
            written = partitions_of(self._location, self._committed + 1)
            return next((number for number in numbers if written == list(range(number))), 0)

        found = int(await_value(look))
        if found != expected:
            self._result.problems.append(f"a rescale is {outcome}, and the state has {numbers[found]} partitions")
        self._partitions = found

    # ------------------------------------------------------------------- deeds

    def _kill_task(self) -> None:
        kill_one(lambda: next(iter(self._cluster.tasks_of(self._job_id)), None))

    def _kill_rescaler(self, command: subprocess.Popen[bytes]) -> None:
        """Kill the command, or the task process of the job that rescales; neither may be there any more."""
        command.kill()
        doing = self._history()[-1]["rescale_job"]
        for pid in self._cluster.tasks_of(doing) if doing else ():
            kill(pid)

    def _kill_spark(self, command: subprocess.Popen[bytes]) -> None:
        """Kill the JVM of the command, where it has one, or of the TaskExecutor."""
        with contextlib.suppress(psutil.NoSuchProcess):  # the command has ended
            children = psutil.Process(command.pid).children(recursive=True)
            if own := [child.pid for child in children if child.name() == "java"]:
                kill(own[0])
                return
        kill_one(lambda: worker_process(self._cluster, "spark_pid"))

    def _job_master(self) -> int | None:
        try:
            with self._cluster.client() as client:
                views = client.status().processes
        except ActorError:
            return None  # a component is being replaced
        mine = (view.pid for view in views if view.name.startswith(f"jobmaster-{self._job_id}"))
        return next((pid for pid in mine if lives(pid)), None)

    def _kill_everything(self, command: subprocess.Popen[bytes]) -> None:
        command.kill()
        end_all(self._cluster)
        self._cluster.run("start")


def main() -> int:
    """Run it once, and print the summary as JSON; the exit status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.rescales", description=__doc__)
    parser.add_argument("--long", action="store_true", help=f"{LONG} kills")
    parser.add_argument("--kills", type=int, help=f"so many kills (default {SHORT})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory, with its logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="us-rescales-"))
    sys.stderr.write(f"seed {arguments.seed}, files in {directory}\n")
    result = run(directory, arguments.kills or (LONG if arguments.long else SHORT), arguments.seed)
    sys.stdout.write(json.dumps(result.summary(), indent=2) + "\n")
    if result.problems or arguments.keep:
        sys.stderr.write(f"the files are in {directory}\n")
    else:
        shutil.rmtree(directory)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
