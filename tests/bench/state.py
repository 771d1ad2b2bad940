"""Rescaling the state of a streaming query: what it costs, how long the query pauses, and what kills do to it.

The query drops duplicates of keys into a file sink, over RocksDB. So its state has one row for each key, and the sink
has each key once.

- ``rescale_s_per_1e6_keys``: seconds of `savepoint rescale` for each million keys, from 4 to 8 partitions and with the
  comparison of the result. Spark's start is not in it: it is the difference of two sizes of state.
- ``rescale_start_s``: seconds of the same command with the small state, most of them Spark's start.
- ``rescale_vs_rebuild_ratio``: the command with the large state, beside a new query with 8 partitions that reads the
  whole source on the same cluster, from its submission to its last commit.
- ``rescale_downtime_s``: the longest time without a commit during a `job rescale` of the large state, while the source
  gets a small file every 0.2 s; ``rescale_downtime_undisturbed_s``: the same without a rescale.
- ``rescale_kills``: rescales of the running job during which one process of `VICTIMS` was killed, at a random moment.
  ``rescale_kills_survived``: those after which the command succeeded when it was called again, and the query committed.
- ``rows_lost``, ``rows_doubled``: in the file sink in the end.

Medians of the rounds. ``--kills 50`` is the long form. `all` leaves this benchmark out. ``UNDERSTUDY_SEED`` repeats the
choice of kills.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet

from actors.errors import ActorError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from tests.cluster_harness import Cluster, await_value, started
from tests.faults.processes import Finder, kill
from tests.job_files import write_job
from tests.seeds import printed_seed
from tests.streaming_rows import files_so_far, lost_and_doubled

SMALL, LARGE = 2_000, 200_000
"""Keys of the two sizes of state."""
FILES = 10
"""Files, each a batch, that bring the state."""
FED = 10
"""Keys of each file that comes later."""
EVERY_S = 0.2
CALM_S = 10.0
VICTIMS = ("command", "dispatcher", "jobmaster", "taskexecutor", "driver", "task")
FEWER, MORE = 4, 8
SETTINGS = (
    "state.backend.type=rocksdb",
    "execution.checkpointing.interval=5s",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "task.cancellation.timeout=5min",
    "client.timeout=60s",
)
QUERY = """\
import sys
from pyspark.sql import SparkSession

source, sink, location, partitions = sys.argv[1:5]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", partitions).getOrCreate()
rows = spark.readStream.schema("key STRING").option("maxFilesPerTrigger", 1).json(source)
writer = rows.dropDuplicates(["key"]).writeStream.queryName("keys").format("parquet")
writer = writer.option("checkpointLocation", location).trigger(processingTime="100 milliseconds")
writer.start(sink).awaitTermination()
"""

Rows = list[tuple[str, str]]


def run(rounds: int, kills: int = 6) -> tuple[dict[str, float], Rows]:
    """Measure; return the figures and the rows of the table.

    Args:
        rounds: how often each time is taken.
        kills: number of rescales of the running job with a kill.
    """
    with contextlib.redirect_stdout(sys.stderr):  # the figures may go to standard output
        choice = random.Random(printed_seed())
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch)
        with contextlib.contextmanager(started)(directory / "c", *SETTINGS) as cluster:
            small, large = (_Query(cluster, directory / str(keys), keys) for keys in (SMALL, LARGE))
            start_s, large_s = (statistics.median(query.rescale_savepoint(rounds)) for query in (small, large))
            rebuild_s = statistics.median(large.rebuild(number) for number in range(rounds))
            with large.fed():
                calm_s = large.longest_pause(lambda: time.sleep(CALM_S))
                pauses = [large.longest_pause(large.rescale) for _ in range(rounds)]
                survived = sum(large.rescale_with_a_kill(choice) for _ in range(kills))
            lost, doubled = large.wrong_rows()
    figures = {
        "rescale_s_per_1e6_keys": (large_s - start_s) / (LARGE - SMALL) * 1e6,
        "rescale_start_s": start_s,
        "rescale_vs_rebuild_ratio": large_s / rebuild_s,
        "rescale_downtime_s": statistics.median(pauses),
        "rescale_downtime_undisturbed_s": calm_s,
        "rescale_kills": kills,
        "rescale_kills_survived": survived,
        "rows_lost": lost,
        "rows_doubled": doubled,
    }
    rows = [
        (f"`savepoint rescale` of {SMALL:,} keys", f"{start_s:.1f} s, most of them Spark's start"),
        (f"of {LARGE:,} keys", f"{large_s:.1f} s: {figures['rescale_s_per_1e6_keys']:.1f} s more for a million"),
        ("a new query over the whole source instead", f"{rebuild_s:.1f} s"),
        ("longest pause of the query, `job rescale`", f"{statistics.median(pauses):.2f} s  (undisturbed {calm_s:.2f})"),
        ("rescales with a kill, survived", f"{kills}, {survived}"),
        ("keys lost, doubled in the file sink", f"{lost}, {doubled}"),
    ]
    return figures, rows


@dataclass
class _Query:
    """A query with a state of so many keys: its files, its job, and what its sink has to hold."""

    cluster: Cluster
    directory: Path
    keys: int
    job_id: str = ""
    savepoint: str = ""
    written: int = 0
    partitions: int = FEWER
    _files: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.source, self.sink, self.location = (self.directory / name for name in ("in", "out", "live"))
        self.source.mkdir(parents=True)
        for _ in range(FILES):
            self._add(self.keys // FILES)
        self.script = write_job(self.directory, QUERY, "query.py")
        job_id = self.cluster.submit(self.script, *self._arguments(self.sink, self.location, FEWER))
        await_value(lambda: _committed(self.location) >= FILES - 1)
        stop = ("job", "stop", "--savepoint", str(self.directory / "savepoints"), job_id)
        self.savepoint = self.cluster.run(*stop).stdout.strip()

    def rescale_savepoint(self, rounds: int) -> Iterator[float]:
        """Yield the seconds of each `savepoint rescale`."""
        for number in range(rounds):
            began = time.monotonic()
            target = self.directory / f"rescaled-{number}"
            words = ("savepoint", "rescale", "--partitions", str(MORE), "--to", str(target), self.savepoint)
            subprocess.run([sys.executable, "-m", "runtime.cluster", *words], check=True, stdout=subprocess.DEVNULL)
            yield time.monotonic() - began

    def rebuild(self, number: int) -> float:
        """Return the seconds of a new query over the whole source."""
        sink, location = (self.directory / f"{name}-{number}" for name in ("new-out", "new-live"))
        began = time.monotonic()
        job_id = self.cluster.submit(self.script, *self._arguments(sink, location, MORE))
        await_value(lambda: _committed(location) >= FILES - 1)
        took = time.monotonic() - began
        self.cluster.run("job", "cancel", job_id)
        return took

    @contextlib.contextmanager
    def fed(self) -> Iterator[None]:
        """Resume the query from its savepoint, and feed it."""
        words = ("job", "run", "--detach", "--from", self.savepoint, str(self.script), "--")
        arguments = self._arguments(self.sink, self.location, FEWER)
        self.job_id = self.cluster.run(*words, *arguments).stdout.strip()
        self._await_commit()
        feeding = threading.Thread(target=self._feed, daemon=True)
        feeding.start()
        try:
            yield
        finally:
            self._over.set()
            feeding.join()

    def rescale(self) -> None:
        """Rescale the running job to the other number of partitions, and wait for a commit."""
        self.partitions = MORE if self.partitions == FEWER else FEWER
        self.cluster.run(*self._rescaling())
        self._await_commit()

    def rescale_with_a_kill(self, choice: random.Random) -> bool:
        """Rescale the running job while a process is killed, then again; return whether it goes on with the number."""
        self.partitions = MORE if self.partitions == FEWER else FEWER
        victim, wait_s = choice.choice(VICTIMS), choice.uniform(0.0, 15.0)
        with subprocess.Popen(
            self.cluster.command(*self._rescaling()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as command:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(wait_s)
            pid = command.pid if victim == "command" else self._pid_of(victim, choice)
            if pid is not None and (victim != "command" or command.poll() is None):
                kill(pid)
        try:
            await_value(self._has_the_number)
            self._await_commit()
        except AssertionError as error:
            print(f"not survived: the kill of {victim} after {wait_s:.1f} s: {error}", file=sys.stderr)
            return False
        return True

    def longest_pause(self, act: Callable[[], object]) -> float:
        """Return the longest time between two commits, in seconds, while something is done."""
        seen: set[float] = set()
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.02):
                seen.update(moment for moment in self._commit_times() if moment >= began)

        began = time.time()
        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            act()
        finally:
            over.set()
            looking.join()
        moments = [began, *sorted(seen)]
        return max(after - before for before, after in itertools.pairwise(moments))

    def wrong_rows(self) -> tuple[int, int]:
        """Return how many keys are lost and how many are doubled in the sink, once the query has read its source."""
        expected = Counter(str(key) for key in range(self.written))
        await_value(lambda: _keys_of(self.sink).total() >= expected.total())
        lost, doubled = lost_and_doubled(expected, _keys_of(self.sink))
        return lost.total(), doubled.total()

    def _arguments(self, sink: Path, location: Path, partitions: int) -> tuple[str, ...]:
        return str(self.source), str(sink), str(location), str(partitions)

    def _rescaling(self) -> tuple[str, ...]:
        savepoints = str(self.directory / "savepoints")
        return "job", "rescale", "--savepoint", savepoints, "--partitions", str(self.partitions), self.job_id

    def _has_the_number(self) -> bool:
        done = self.cluster.run(*self._rescaling(), check=False)
        return done.returncode == 0 or f"has {self.partitions} partitions already" in done.stderr

    def _pid_of(self, victim: str, choice: random.Random) -> int | None:
        with contextlib.suppress(ActorError):  # at this moment no leader answers
            return Finder(self.cluster, choice).one_of(victim)
        return None

    def _await_commit(self) -> None:
        began = time.time()
        await_value(lambda: any(moment > began for moment in self._commit_times()))

    def _commit_times(self) -> list[float]:
        with contextlib.suppress(OSError):  # a rollback exchanges the directory
            return [path.stat().st_mtime for path in (self.location / "commits").glob("[0-9]*")]
        return []

    def _feed(self) -> None:
        while not self._over.wait(EVERY_S):
            self._add(FED)

    def _add(self, keys: int) -> None:
        unfinished = self.directory / "unfinished"
        lines = (json.dumps({"key": str(key)}) for key in range(self.written, self.written + keys))
        unfinished.write_text("\n".join(lines))
        os.utime(unfinished, (self._files, self._files))  # Spark takes the files in the order of these times
        unfinished.rename(self.source / f"{self._files:06}.json")
        self.written += keys
        self._files += 1


def _committed(location: Path) -> int:
    return last_commit(f"commits/{name}" for name in list_names(location / "commits"))


def _keys_of(sink: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    with contextlib.suppress(FileNotFoundError):  # the log was put back while it was read
        for path in files_so_far(sink):
            found.update(pyarrow.parquet.read_table(path)["key"].to_pylist())
    return found
