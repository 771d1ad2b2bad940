"""Clients that submit, watch and cancel jobs, and note what they ask for and are told; and the job that they submit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.errors import ActorError
from blob.errors import BlobError
from runtime.client import ClusterClient
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.protocol.errors import GatewayError, JobAlreadyTerminatedError, JobNotFoundError
from tests.cluster_harness import Cluster
from tests.faults.history import FINAL, Call, Execution, Operation, Outcome

LENGTHS_S = (0.2, 1.0, 3.0, 6.0, 9.0)
"""Seconds that jobs take."""

# Beats while it lives, so that it is known from when to when it ran; ends by itself after its argument's seconds.
JOB = """\
import os, sys, time

path, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
def note(kind):
    with open(path, "a") as file:
        file.write(f"{kind} {os.getpid()} {time.monotonic()} {os.getppid()}\\n")
note("began")
while time.monotonic() < began + seconds:
    note("alive")
    time.sleep(0.05)
note("ended")
"""


@dataclass
class Recorder:
    """Notes what clients ask for and are told, from several threads."""

    operations: list[Operation] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, call: Call, job_id: str, action: Callable[[], str]) -> Operation:
        """Do it, and note what came of it."""
        asked = time.monotonic()
        try:
            value, outcome = action(), Outcome.OK
        except (JobNotFoundError, JobAlreadyTerminatedError):
            value, outcome = "", Outcome.REFUSED
        except (ActorError, BlobError, GatewayError, OSError) as error:
            value, outcome = f"{type(error).__name__}: {error}", Outcome.UNKNOWN
        operation = Operation(call, job_id, asked, time.monotonic(), outcome, value)
        with self.lock:
            self.operations.append(operation)
        return operation

    def longest_answer_s(self, began: float, ended: float) -> float:
        """Return the seconds until the latest answer to a call that was made between two moments; 0 for none."""
        with self.lock:
            made = [each for each in self.operations if began <= each.asked <= ended]
        return max((each.answered - each.asked for each in made), default=0.0)


class Customer(threading.Thread):
    """A client of the cluster: one job after the other, until it is told to stop.

    Args:
        cluster: where it submits, watches and cancels them.
        scratch: a directory with the file of the jobs, in which they write their notes.
        recorder: notes what it asks for and is told.
        seed: of what it does.
        stop: set when it is to end.
        lengths: seconds that a job takes.
        rest_s: seconds between two jobs.
    """

    def __init__(
        self,
        cluster: Cluster,
        scratch: Path,
        recorder: Recorder,
        seed: int,
        stop: threading.Event,
        lengths: Sequence[float] = LENGTHS_S,
        rest_s: float = 0.0,
    ) -> None:
        super().__init__(name=f"customer-{seed}")
        self._cluster = cluster
        self._scratch = scratch
        self._recorder = recorder
        self._random = random.Random(seed)
        self._stop_now = stop
        self._lengths = lengths
        self._rest_s = rest_s
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._cluster.client() as client:
                while not self._stop_now.is_set():
                    self._one_job(client)
                    self._stop_now.wait(self._rest_s)
        except BaseException as error:  # the main thread raises it
            self.failure = error

    def _one_job(self, client: ClusterClient) -> None:
        job_id, file = JobID.random(), self._scratch / "job.py"
        seconds = self._random.choice(self._lengths)
        arguments = (str(self._scratch / f"{job_id}.run"), f"{seconds}")
        graph = read_job_file(file, arguments, None, job_id)
        submit = lambda: client.submit(graph, file)  # noqa: E731
        submitted = self._recorder.call(Call.SUBMIT, job_id, submit)
        if submitted.outcome is Outcome.UNKNOWN or self._random.random() < 0.3:
            submitted = self._recorder.call(Call.SUBMIT, job_id, submit)  # the same again
        if submitted.outcome is not Outcome.OK:
            return
        cancels = self._random.random() < 0.25
        give_up = time.monotonic() + seconds + 25
        while time.monotonic() < give_up:
            seen = self._recorder.call(Call.STATUS, job_id, lambda: client.status_of(job_id).value)
            if seen.value in FINAL:
                return
            if cancels and self._random.random() < 0.2:
                cancels = False
                self._recorder.call(Call.CANCEL, job_id, lambda: str(client.cancel(job_id) or ""))
            self._stop_now.wait(self._random.uniform(0.05, 0.3))


def executions(scratch: Path) -> list[Execution]:
    """What the jobs themselves noted."""
    found = []
    for path in scratch.glob("*.run"):
        notes: dict[str, list[tuple[str, float, int]]] = {}
        for line in path.read_text().splitlines():
            kind, pid, at, parent = line.split()
            notes.setdefault(pid, []).append((kind, float(at), int(parent)))
        found += [
            Execution(path.stem, lines[0][1], lines[-1][1], ended=lines[-1][0] == "ended", zygote=lines[0][2])
            for lines in notes.values()
        ]
    return found
