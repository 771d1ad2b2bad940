"""The long soak: ``python -m tests.faults.soak [--minutes N] [--seed N] [--json FILE]``.

Clients run short jobs and a streaming job counts what it is given, while the nemesis is at work. What the cluster
holds is noted every few seconds: memory, descriptors, threads and processes by role, Redis' keys and memory, files and
bytes by directory. In the second half of the time none of it may grow beyond `tests.faults.growth.BOUNDS`; and the
whole history has to hold (`tests.faults.history.check`), the stream's rows included: none lost, none doubled.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from actors.errors import ActorError
from runtime.client import ClusterClient
from runtime.protocol.errors import GatewayError
from tests.cluster_harness import Cluster
from tests.faults import nemesis
from tests.faults.growth import Sample, Verdict, judge
from tests.faults.history import LastState
from tests.faults.sampling import take_sample
from tests.faults.streaming import StreamingQuery

MINUTES = 60.0
SAMPLE_S = 5.0
PAUSE_S = (2.0, 12.0)
"""The nemesis takes its time: what is killed all the time cannot grow."""
SETTINGS = (
    *(item for item in nemesis.SETTINGS if not item.startswith("jobstore.")),
    "jobstore.max-capacity=40",
    "job.logs.retention=30s",
    "blob.service.cleanup.interval=30s",
    "blob.service.cleanup.ttl=30s",
    "taskmanager.python.environment-retention=30s",
    "env.log.max-size=1mb",
    "env.log.max=1",
)
"""Whatever is kept is kept for so short that it is thrown away in the first half of ten minutes already."""


class Load(StreamingQuery):
    """The streaming query, and whoever takes the samples.

    Args:
        directory: for the query's files.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.samples: list[Sample] = []
        self._last: dict[str, LastState] = {}
        self._enough = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="watching", daemon=True)

    def begin(self, cluster: Cluster) -> None:
        super().begin(cluster)
        self._watching.start()

    def end(self) -> dict[str, LastState]:
        self._enough.set()
        self._watching.join()
        super().end()
        return self._last

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._enough.wait(SAMPLE_S):
            self.samples.append(take_sample(self._cluster, time.monotonic() - began))
            try:
                with self._cluster.client() as client:
                    self._note_ended(client)
            except (ActorError, GatewayError, OSError):
                continue  # something was harmed; what has ended meanwhile is there next time

    def _note_ended(self, client: ClusterClient) -> None:
        """How jobs ended that the cluster will have forgotten when the history is checked."""
        for job in client.list_jobs():
            if job.status.is_globally_terminal and job.job_id not in self._last and job.job_id != self.job_id:
                self._last[job.job_id] = nemesis.last_state(client, job)


def run(directory: Path, minutes: float, seed: int) -> tuple[nemesis.Result, Load, list[Verdict]]:
    """The soak: what happened, the load's own findings, and what grew."""
    load = Load(directory)
    result = nemesis.run(directory, minutes * 60, seed, SETTINGS, PAUSE_S, load)
    verdicts = judge(load.samples)
    if not verdicts:
        result.problems.append(f"{len(load.samples)} samples are too few to say what grows: let it run for longer")
    return result, load, verdicts


def summary(minutes: float, result: nemesis.Result, load: Load, verdicts: list[Verdict]) -> dict[str, object]:
    """In numbers."""
    return {
        "minutes": minutes,
        "samples": len(load.samples),
        "grows": [str(verdict) for verdict in verdicts if not verdict.holds],
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        **result.summary(),
        "taken": [asdict(sample) for sample in load.samples],
    }


def main() -> int:
    """Run it once; the exit status is 1 where something grew or was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long (default {MINUTES:g})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go; `-` is standard output")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory, with its logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="us-soak-"))
    sys.stderr.write(f"seed {arguments.seed}, files in {directory}\n")
    result, load, verdicts = run(directory, arguments.minutes, arguments.seed)
    told = json.dumps(summary(arguments.minutes, result, load, verdicts), indent=2) + "\n"
    if arguments.json == Path("-"):
        sys.stdout.write(told)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in [*map(str, verdicts), *result.problems]))
        if arguments.json is not None:
            arguments.json.write_text(told)
    bad = bool(result.problems) or not all(verdict.holds for verdict in verdicts)
    if bad or arguments.keep:
        sys.stderr.write(f"the files are in {directory}\n")
    else:
        shutil.rmtree(directory)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
