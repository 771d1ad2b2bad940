"""The costs of changing the state of a running query: rescales and upgrades, undisturbed and under SIGKILL.

A session cluster on this machine has one TaskExecutor with two slots, and state in RocksDB with changelog. Queries
count rows by window and key into a file sink, which is exactly once.

- ``rescale_s``, ``rescale_small_s``: from the request of a rescale in the cluster until the cluster has recorded that
  the tasks restart from the rescaled state, at ``--keys`` keys and at a few. Medians of ``--rounds`` rescales, there
  and back between 2 and 4 partitions, in the Spark of the TaskExecutor. The query works meanwhile, which costs time.
- ``rescale_s_per_1e6_keys``: an extrapolation. ``rescale_small_s`` is the part that does not depend on the keys; the
  rest is taken as proportional to them. With ``--keys 1000000`` it is ``rescale_s``.
- ``rebuild_s``: from the submission of the same query, without state, until it has worked through the same files with
  its own settings: 10 rows of each key, in 10 batches. Measured once. The same Spark has run another query before.
- ``rescale_vs_rebuild_ratio``: ``rescale_s`` over ``rebuild_s``. A source with a longer history makes it smaller.
- ``rescale_downtime_s``: from the last batch that is committed before the tasks restart to the first one after, at
  ``--keys`` keys. Median. ``rescale_pause_s``: the longest time between two batches from the request on. Tasks of the
  rescale take cores of the same Spark, so that batches wait for them.
- ``rescale_kills_survived``: kills at a random moment of a rescale, after which the query went on
  (`tests.faults.rescales`). ``rescale_kills_finished``: those whose rescale was finished; the others left the job as
  it was. ``rescale_kill_problems``: contradictions, each of which is printed.
- ``cutovers``: upgrades of a running query by `job upgrade` after which the new version has committed batches.
- ``cutover_pause_s``: the longest pause between two commits of each upgrade; the median.
- ``cutover_pause_batches``: the greatest of these pauses, in batches that the query would have committed at its usual
  pace. It has a trigger of 1 s.
- ``rows_lost``, ``rows_doubled``: of all these queries; the rows in the sinks against those in the sources.
- ``autoscale_lag_held``, ``autoscale_slot_hours_ratio``: a simulation, not a run of Spark. The autoscaler's policy
  decides over two days of a made-up load (`tests.day_and_night`), where each change stops the query for
  ``rescale_downtime_s``. The share of the batches whose lag was within the objective, and the slot time over that of a
  job which always has the partitions of the peak. ``autoscale_lag_held_time`` weighs the batches by their time.

``--kills 50 --cutovers 100`` is the long form. ``UNDERSTUDY_SEED`` repeats its kills.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.checkpoint.names import savepoint_name
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import OperationState
from tests.cluster_harness import Cluster, await_value, started
from tests.day_and_night import replay
from tests.faults import rescales
from tests.job_files import write_job
from tests.json_output import parsed
from tests.seeds import printed_seed
from tests.streaming_rows import Source, files_of, lost_and_doubled, rows_of, rows_so_far, unless_it_changes

ROWS_PER_KEY = 10
BATCHES_AFTER = 3
"""How many batches show that a query works again."""
NUMBERS = (2, 4)
EVERY_S = 1.0
"""Seconds between two files that a query gets while its state is changed."""
BEHIND = 5
"""So many files, each a batch, may wait for it."""
LOOK_S = 0.05
SETTINGS = (*rescales.SETTINGS, "spark.driver.memory=2g", "execution.checkpointing.interval=10s")
LARGE = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
rows = spark.readStream.schema("at TIMESTAMP, key BIGINT").option("maxFilesPerTrigger", 1).parquet(source)
counts = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 day"), "key").count()
writer = counts.select("key", "count").writeStream.queryName("counts").format("parquet")
writer.option("checkpointLocation", location).trigger(processingTime="200 milliseconds").start(sink).awaitTermination()
"""
SMALL = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location = sys.argv[1:4]  # this is version VERSION
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
windows = rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "5 minutes"), "key").count()
writer = windows.selectExpr("window.start AS start", "key", "count").writeStream.queryName("counts").format("parquet")
writer.option("checkpointLocation", location).trigger(processingTime="1 second").start(sink).awaitTermination()
"""

Figures = dict[str, float]
T = TypeVar("T")


# ------------------------------------------------------------------ pure parts


def per_million(small_s: float, took_s: float, keys: int) -> float:
    """Seconds for 10^6 keys; what is above the seconds for a few keys is proportional to the keys."""
    return small_s + max(took_s - small_s, 0.0) * 1e6 / keys


def longest_pause(times: Sequence[float], since: float) -> float:
    """The longest time between two commits, of those pairs whose second one is after *since*."""
    pairs = itertools.pairwise(sorted(times))
    return max((later - earlier for earlier, later in pairs if later > since), default=0.0)


def missed_batches(pause_s: float, usual_s: float) -> float:
    """How many batches a query would have committed in a pause at its usual pace."""
    return max(pause_s / usual_s - 1, 0.0)


@dataclass
class Rows:
    """Rows of all queries that were lost or doubled."""

    lost: int = 0
    doubled: int = 0

    def compare(self, expected: Counter[T], found: Counter[T]) -> None:
        """Add those of one query."""
        lost, doubled = lost_and_doubled(expected, found)
        self.lost += lost.total()
        self.doubled += doubled.total()


# ------------------------------------------------------------------ the run


def run(rounds: int, kills: int, cutovers: int, keys: int) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; return the figures and the rows of the table."""
    rows = Rows()
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch)
        with contextlib.contextmanager(started)(directory / "c", *SETTINGS) as cluster:
            figures = _small(cluster, directory, rounds, cutovers, rows)
            figures |= _large(cluster, directory, rounds, keys, figures["rescale_small_s"], rows)
        figures |= _killed(directory, kills, rows)
    figures |= {"rows_lost": rows.lost, "rows_doubled": rows.doubled}
    return figures | _autoscaled(figures["rescale_downtime_s"]), _table(figures, kills, cutovers, keys)


class Commits:
    """Sees when batches are committed, while a thread looks.

    Args:
        location: the query's checkpointLocation.
    """

    def __init__(self, location: Path) -> None:
        self._location = location
        self._seen: set[tuple[str, int]] = set()
        self._forgotten: set[tuple[str, int]] = set()

    @property
    def times(self) -> list[float]:
        """Times of the commits, in seconds since the epoch."""
        return sorted(at_ns / 1e9 for _, at_ns in self._seen - self._forgotten)

    def look(self) -> None:
        """See those that are new; one that a rollback to a checkpoint or savepoint has put back has kept its time."""
        self._seen |= _commits_in(self._location)

    def forget(self, original: Path, rescaled: Path) -> None:
        """Forget those that a rescale has written into its copy of a savepoint: no batch was done then."""
        written, known = set[tuple[str, int]](), set[tuple[str, int]]()
        for directory, found in ((rescaled, written), (original, known)):
            for commits in directory.glob("**/commits"):
                found |= _commits_in(commits.parent)
        self._forgotten |= written - known

    def after(self, moment: float) -> int:
        """How many commits there are after a time."""
        self.look()
        return sum(at > moment for at in self.times)


def _commits_in(location: Path) -> set[tuple[str, int]]:
    found = set()
    with contextlib.suppress(FileNotFoundError):  # a rollback replaces the directory
        for entry in os.scandir(location / "commits"):
            if entry.name.isdigit():
                found.add((entry.name, entry.stat().st_mtime_ns))
    return found


@contextlib.contextmanager
def _working(commits: Commits, write: Callable[[], object]) -> Iterator[None]:
    """Give a query a file each second, unless it is far behind, and look at its commits; in a thread."""
    over, errors = threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            written, due, before = 0, 0.0, len(commits.times)
            while not over.wait(LOOK_S):
                commits.look()
                if time.monotonic() >= due and written < BEHIND + len(commits.times) - before:
                    write()
                    written, due = written + 1, time.monotonic() + EVERY_S
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


@dataclass
class _Rescaled:
    took_s: list[float] = field(default_factory=list)
    downtime_s: list[float] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)


def _rescaled(cluster: Cluster, job_id: str, commits: Commits, rounds: int) -> _Rescaled:
    """Rescale a running job there and back."""
    found = _Rescaled()
    with cluster.client() as client:
        for number in range(rounds):
            trigger_id, began = TriggerID.random(), time.time()
            client.trigger_rescale(JobID(job_id), NUMBERS[(number + 1) % 2], trigger_id=trigger_id)
            status = client.await_rescale(JobID(job_id), trigger_id)
            ended = time.time()
            if status.state is not OperationState.COMPLETED:
                raise RuntimeError(f"job {job_id} was not rescaled: {status.error}")
            rescale = client.job(JobID(job_id)).rescales[-1]
            recorded, rescaled = (rescale.ended_ms or 0) / 1000, Path(rescale.savepoint)
            await_value(lambda ended=ended: commits.after(ended) >= BATCHES_AFTER)  # type: ignore[misc]
            commits.forget(rescaled.with_name(savepoint_name(job_id, trigger_id)), rescaled)
            found.took_s.append(recorded - began)
            found.downtime_s.append(longest_pause(commits.times, recorded))
            found.pause_s.append(longest_pause(commits.times, began))
            figures = found.took_s[-1], found.downtime_s[-1], found.pause_s[-1]
            print("rescale: {:.1f} s, {:.1f} s without a batch, at most {:.1f} s".format(*figures), file=sys.stderr)
    return found


def _small(cluster: Cluster, directory: Path, rounds: int, cutovers: int, rows: Rows) -> Figures:
    """A query with a few keys: what a rescale costs without state, and upgrades of its code."""
    source, sink, location = Source(directory / "few", 5), directory / "few-out", directory / "few-live"
    commits = Commits(location)
    source.write(BATCHES_AFTER)
    files = [write_job(directory, SMALL.replace("VERSION", name), f"{name}.py") for name in ("blue", "green")]
    job_id = cluster.submit(files[0], str(source.directory), str(sink), str(location))
    await_value(lambda: commits.after(0) >= BATCHES_AFTER)
    pauses: list[float] = []
    with _working(commits, lambda: source.write(1)):
        took = _rescaled(cluster, job_id, commits, rounds).took_s
        calm = time.time()
        await_value(lambda: commits.after(calm) >= 3 * BATCHES_AFTER)
        usual_s = statistics.median(b - a for a, b in itertools.pairwise(at for at in commits.times if at > calm))
        for number in range(cutovers):
            began, words = time.time(), ("job", "upgrade", "--json", job_id, str(files[(number + 1) % 2]))
            done = parsed(words, cluster.run(*words).stdout)
            if done["outcome"] != "upgraded":
                raise RuntimeError(f"job {job_id} was not upgraded: {done}")
            job_id, ended = done["job_id"], time.time()
            await_value(lambda ended=ended: commits.after(ended) >= BATCHES_AFTER)  # type: ignore[misc]
            pauses.append(longest_pause(commits.times, began))
            print(f"cut-over {number + 1}: {pauses[-1]:.1f} s without a batch", file=sys.stderr)
    source.close()
    _await_rows(lambda: rows_so_far(sink), source.expected)
    cluster.run("job", "cancel", job_id)
    rows.compare(source.expected, rows_of(sink))
    figures: Figures = {"rescale_small_s": statistics.median(took), "cutovers": cutovers}
    if pauses:
        figures |= {
            "cutover_pause_s": statistics.median(pauses),
            "cutover_pause_batches": missed_batches(max(pauses), usual_s),
        }
    return figures


class Keys:
    """The source of the large query: files in which each key has a row, then small ones.

    Args:
        directory: which is made.
        keys: how many.
    """

    def __init__(self, directory: Path, keys: int) -> None:
        self.directory = directory
        self._counts = np.zeros(keys, dtype=np.int64)
        self._files = 0
        self._random = np.random.default_rng(keys)
        directory.mkdir()

    @property
    def expected(self) -> Counter[int]:
        """Rows of each key."""
        return Counter({int(key): int(self._counts[key]) for key in np.flatnonzero(self._counts)})

    def all(self) -> None:
        """Add a row of each key."""
        self._add(self._random.permutation(len(self._counts)))

    def some(self) -> None:
        """Add a row of a hundred keys."""
        self._add(self._random.integers(0, len(self._counts), 100))

    def close(self) -> None:
        """Close the window: its rows are written; that of this one row is not."""
        self._write(np.array([0]), np.datetime64("2030-01-01T00:00:00", "us"))

    def _add(self, keys: np.ndarray) -> None:
        np.add.at(self._counts, keys, 1)
        self._write(keys, np.datetime64("2026-01-01T12:00:00", "us"))

    def _write(self, keys: np.ndarray, at: np.datetime64) -> None:
        table = pa.table({"at": pa.array(np.full(len(keys), at), pa.timestamp("us", "UTC")), "key": keys})
        unfinished = self.directory.parent / "unfinished.parquet"
        pq.write_table(table, unfinished)
        os.utime(unfinished, (1_400_000_000 + self._files,) * 2)  # Spark takes the oldest first
        unfinished.rename(self.directory / f"{self._files:05}.parquet")
        self._files += 1


def counted_rows(sink: Path) -> Counter[int]:
    """Rows of each key by the sink of the large query; a file that is there twice counts twice."""
    found: Counter[int] = Counter()
    for path in files_of(sink):
        table = pq.read_table(path)
        for key, count in zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True):
            found[key] += count
    return found


def _large(cluster: Cluster, directory: Path, rounds: int, keys: int, small_s: float, rows: Rows) -> Figures:
    """A query with many keys: what it costs to build their state, and to rescale it."""
    source, sink, location = Keys(directory / "many", keys), directory / "many-out", directory / "many-live"
    commits = Commits(location)
    for _ in range(ROWS_PER_KEY):
        source.all()
    script, began = write_job(directory, LARGE, "large.py"), time.time()
    job_id = cluster.submit(script, str(source.directory), str(sink), str(location))
    await_value(lambda: commits.after(0) >= ROWS_PER_KEY)
    rebuild_s = commits.times[ROWS_PER_KEY - 1] - began
    print(f"rebuilt: {rebuild_s:.1f} s", file=sys.stderr)
    with _working(commits, source.some):
        found = _rescaled(cluster, job_id, commits, rounds)
    source.close()
    _await_rows(lambda: unless_it_changes(counted_rows, sink) or Counter(), source.expected)
    cluster.run("job", "cancel", job_id)
    rows.compare(source.expected, counted_rows(sink))
    rescale_s = statistics.median(found.took_s)
    return {
        "keys": keys,
        "rescale_s": rescale_s,
        "rescale_s_per_1e6_keys": per_million(small_s, rescale_s, keys),
        "rebuild_s": rebuild_s,
        "rescale_vs_rebuild_ratio": rescale_s / rebuild_s,
        "rescale_downtime_s": statistics.median(found.downtime_s),
        "rescale_pause_s": statistics.median(found.pause_s),
    }


def _await_rows(found: Callable[[], Counter[T]], expected: Counter[T]) -> None:
    """Wait until a sink has as many rows as it should; where it never has, the comparison counts what is missing."""
    with contextlib.suppress(AssertionError):
        await_value(lambda: found().total() >= expected.total())


def _killed(directory: Path, kills: int, rows: Rows) -> Figures:
    if not kills:
        return {}
    with contextlib.redirect_stdout(sys.stderr):  # the figures may go to standard output
        seed = printed_seed()
    (directory / "kills").mkdir()
    result = rescales.run(directory / "kills", kills, seed)
    for problem in result.problems:
        print(problem, file=sys.stderr)
    rows.lost += result.lost
    rows.doubled += result.doubled
    return {
        "rescale_kills_survived": result.survived,
        "rescale_kills_finished": result.outcomes["finished"],
        "rescale_kill_problems": len(result.problems),
    }


def _autoscaled(down_s: float) -> Figures:
    """The days of a seed, with the measured downtime."""
    found = replay(1, down_s)
    return {
        "autoscale_lag_held": found.held,
        "autoscale_lag_held_time": found.held_time,
        "autoscale_slot_hours_ratio": found.slots,
        "autoscale_oscillations": found.oscillations,
    }


def _table(figures: Figures, kills: int, cutovers: int, keys: int) -> list[tuple[str, str]]:
    goals = {
        "rescale_kills_survived": str(kills),
        "cutovers": str(cutovers),
        "cutover_pause_batches": "at most 1",
        "rows_lost": "0",
        "rows_doubled": "0",
        "rescale_kill_problems": "0",
        "autoscale_lag_held": "at least 0.99; a simulation",
        "autoscale_slot_hours_ratio": "at most 0.60; a simulation",
        "autoscale_oscillations": "at most 1; a simulation",
    }
    notes = {"rescale_s_per_1e6_keys": f"extrapolated from {keys:,} keys"} if keys != 1_000_000 else {}
    return [
        (
            name,
            f"{value:9.3f}"
            + (f"  to reach: {goals[name]}" if name in goals else "")
            + (f"  {notes[name]}" if name in notes else ""),
        )
        for name, value in figures.items()
    ]
