"""Rehearses a new version of a running job over batches that the job has committed: for ``job upgrade --shadow``.

`runtime.checkpoint.rehearsal` has the decisions, and `runtime.spark.task.rehearsal` runs the batches. This module asks
the cluster and keeps files. All of them are in a directory that is removed at the end, or by the next rehearsal:

    <savepoint dir>/.upgrades/<blue's id>.shadow/
        jobs.json                   ids of the jobs that run the two versions
        savepoint/                  the savepoint of blue
        offsets/<n>/                blue's offset log of the batches to run, by query
        blue/, green/               the version; code/, plan.json; <n>/location, <n>/rows, <n>/result.json by query

All functions block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from conf.files import make_private, remove_tree, write_private
from runtime.checkpoint.compatibility import Verdict
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import SavepointQuery
from runtime.checkpoint.names import change_lock
from runtime.checkpoint.rehearsal import (
    BATCHES,
    BLUE,
    GREEN,
    MOST_BATCHES,
    SETTLE_S,
    Plan,
    PlannedQuery,
    Position,
    RehearsedQuery,
    StartedQuery,
    compare,
    decode_result,
    encode,
    has_enough,
    kind_of_running,
    last_batches,
    refuse,
)
from runtime.checkpoint.remote_files import RemoteDirectory, is_remote
from runtime.checkpoint.remote_location import RemoteLocation
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.savepoint import open_savepoint
from runtime.checkpoint.snapshot import live_batches
from runtime.cluster.documents import RehearsedJob
from runtime.cluster.job_upgrade import LOOK_S, Version, end_job, failure_of, fetch_version, require_file
from runtime.cluster.job_upgrade_plan import check_fit
from runtime.cluster.rescaling import JobSavepoints, changing, silent
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobKind
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import MAX_NAME_LENGTH
from runtime.spark.task.rehearsal import SCRIPT

if TYPE_CHECKING:
    from runtime.client import ClusterClient

_JOBS, _PLAN = "jobs.json", "plan.json"
_RUNS_ON = "the job runs on"
_ATTEMPTS = 5

logger = logging.getLogger(__name__)

Look = Callable[[Version, Path], tuple[Sequence[Verdict], Sequence[StartedQuery]]]
"""Compares a version with the savepoint in a directory; returns that, and the queries that the version starts."""


@dataclass(frozen=True, slots=True)
class _Live:
    """A query of blue: its number in the savepoint, and its state there. Reads its live checkpointLocation.

    That may be in a remote file system.
    """

    number: int
    query: SavepointQuery

    @property
    def name(self) -> str:
        return self.query.snapshot.name

    @property
    def before(self) -> int:
        return self.query.snapshot.batch_id

    def started(self, descriptions: Sequence[str]) -> StartedQuery:
        """Return what its offsets and Spark's descriptions of its sources tell of it.

        If the kind of a source is not known, the run of its code refuses the source, if need be.
        """
        offsets = self.query.description.sources
        known = descriptions if len(descriptions) == len(offsets) else [None] * len(offsets)
        kinds = (kind_of_running(kind, description) for kind, description in zip(offsets, known, strict=True))
        return StartedQuery(self.name, "", "repeated", tuple(kinds))

    @property
    def location(self) -> str:
        return self.query.snapshot.location

    def position(self) -> Position:
        """Return its batches, as its checkpointLocation has them now."""
        planned, committed = live_batches(self.location)
        return Position(self.before, committed, planned)

    def offsets_of(self, batch_id: int) -> bytes:
        """Return the offsets of a batch; raises FileNotFoundError if they are not there."""
        name = f"offsets/{batch_id}"
        return RemoteLocation(self.location).read(name) if self._is_remote else Path(self.location, name).read_bytes()

    def copy_sources(self, target: Path) -> None:
        """Copy the entries of the sources' logs that a copy lacks; raises FileNotFoundError if one has disappeared.

        Checksums are not needed, and may be of other files.
        """
        source = Path(self.location, "sources")
        remote = RemoteDirectory(f"{self.location}/sources") if self._is_remote else None
        listing = {} if remote is None else remote.listing()
        names = listing if remote is not None else list_files(source) if source.is_dir() else ()
        missing = [name for name in names if not Path(name).name.startswith(".") and not (target / name).exists()]
        if remote is not None:
            fetched = target.with_name(".sources")
            remove_tree(fetched)
            remote.fetch(missing, listing, fetched, None)
            source = fetched
        for name in missing:
            make_private((target / name).parent)
            shutil.copyfile(source / name, target / name)
        if remote is not None:
            remove_tree(source)

    @property
    def _is_remote(self) -> bool:
        return is_remote(self.location)


class JobRehearser:
    """Rehearses new versions of running streaming jobs. It changes neither the jobs nor their sinks.

    Args:
        client: of the cluster. This process has to see the cluster's files.
        home: the cluster's directory of savepoints.
        look: compares a version with a savepoint.
        heartbeat: seconds between two heartbeats to the jobs of the rehearsal, and those after which they end without
            one. None: they need none.
        step: as of `runtime.cluster.rescaling.JobRescaler`.
        note: as of `runtime.cluster.rescaling.JobRescaler`.
        clock: returns seconds that never jump.
        pause: waits for some seconds.
    """

    def __init__(
        self,
        client: ClusterClient,
        home: Path,
        look: Look,
        heartbeat: tuple[float, float] | None = None,
        *,
        step: Callable[[str, str], AbstractContextManager[None]] = silent,
        note: Callable[[str], object] = logger.warning,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._home = home
        self._look = look
        self._heartbeat = heartbeat
        self._step = step
        self._clock = clock
        self._pause = pause
        self._savepoints = JobSavepoints(client, step, note)

    def rehearse(
        self,
        job_id: JobID,
        make: Callable[[Version], Version],
        batches: int = BATCHES,
        *,
        accepts_loss: bool = False,
    ) -> RehearsedJob:
        """Run a new version of a job over batches that the job has committed, and compare its output.

        1. A savepoint of the job is taken while it runs. A version that does not fit it, or that cannot be rehearsed,
           is refused.
        2. The job commits some more batches.
        3. Its present version runs these batches once more from a private copy of the savepoint, as a job of its own.
        4. The new version does the same after it.

        Args:
            job_id: the job, which runs on.
            make: returns the new version, given the present one.
            batches: number of batches of each query; fewer if the sources have no more data.
            accepts_loss: whether the new version may lose state of a query.

        Raises:
            ClusterError: the job cannot be rehearsed.
            GatewayError, ActorError, BlobError: the cluster does not answer, or refuses.
        """
        if not 1 <= batches <= MOST_BATCHES:
            raise ClusterError(f"{batches} batches cannot be rehearsed", f"choose 1 to {MOST_BATCHES}")
        self._savepoints.require_files("the rehearsal is prepared and compared")
        lock = change_lock(self._home, job_id)
        with changing(lock, job_id):
            place = _Place(lock.with_suffix(".shadow"), self._client)
            place.clear()  # left by a command that was killed
            try:
                return self._rehearse(place, job_id, make, batches, accepts_loss=accepts_loss)
            finally:
                with self._step("", f"the next rehearsal of job {job_id} removes {place.path}"):
                    place.clear()

    def _rehearse(
        self, place: _Place, job_id: JobID, make: Callable[[Version], Version], batches: int, *, accepts_loss: bool
    ) -> RehearsedJob:
        graph = self._client.job_graph(job_id)
        require_file(graph)
        blue = fetch_version(self._client, graph, place.path / BLUE)
        green = make(blue).keep(place.path / GREEN)
        if JobKind.PIPELINE in (blue.graph.kind, green.graph.kind):
            raise ClusterError(
                f"job {job_id} cannot be rehearsed: the streaming queries of a pipeline run in Spark Connect, and only "
                "those of a script can be diverted",
                f"`understudy job upgrade` without --shadow replaces the code without a rehearsal; {_RUNS_ON}",
            )
        directory = place.path / "savepoint"
        remedy = "only a job with running streaming queries can be rehearsed"
        taken = open_savepoint(self._savepoints.take(job_id, directory, remedy))
        live = [_Live(number, query) for number, query in enumerate(taken.queries)]
        with self._step(f"checking {green.main.name} against the state of job {job_id}", _RUNS_ON):
            verdicts, started = self._look(green, Path(taken.path))
        check_fit(verdicts, accepts_loss=accepts_loss)
        described = self._descriptions(job_id)
        refuse([one.started(described.get(one.name, ())) for one in live], started)
        last = self._await_batches(place, job_id, live, batches)
        plans = self._prepare(place, live, last)
        names = {query.name for query in started}
        return self._run_both(place, job_id, {BLUE: blue, GREEN: green}, plans, names)

    def _descriptions(self, job_id: JobID) -> dict[str, tuple[str, ...]]:
        """Return Spark's descriptions of the sources of each query that has a name and has reported a batch."""
        return {
            query.name: tuple(source.description for source in query.progress.sources)
            for task in self._client.job(job_id).tasks
            for query in task.attempts[-1].queries
            if query.progress is not None
        }

    def _await_batches(self, place: _Place, job_id: JobID, live: Sequence[_Live], wanted: int) -> dict[str, int]:
        """Wait for blue's batches, and keep their offsets; return the last batch to run of each query."""
        seen: Mapping[str, Position] = {}
        quiet_since = self._clock()
        with self._step(f"waiting for {wanted} batches of job {job_id}", _RUNS_ON):
            while True:
                is_over = self._client.status_of(job_id).is_globally_terminal
                found = {one.name: one.position() for one in live}
                for one in live:
                    place.keep_offsets(one, found[one.name], wanted)
                if found != seen:
                    seen, quiet_since = found, self._clock()
                if has_enough(found, wanted, self._clock() - quiet_since, is_over=is_over):
                    return last_batches(found, wanted)
                self._pause(LOOK_S)

    def _prepare(
        self, place: _Place, live: Sequence[_Live], last: Mapping[str, int]
    ) -> dict[str, tuple[PlannedQuery, ...]]:
        """Make the private copies of both versions."""
        for one in live:
            place.check_offsets(one, last[one.name])
        plans = {}
        for colour in (BLUE, GREEN):
            planned = [place.planned(colour, one, last[one.name]) for one in live]
            for one, query in zip(live, planned, strict=True):
                _copy(one, Path(query.location))
            plans[colour] = tuple(planned)
        return plans

    def _run_both(
        self,
        place: _Place,
        job_id: JobID,
        versions: Mapping[str, Version],
        plans: Mapping[str, tuple[PlannedQuery, ...]],
        names: set[str],
    ) -> RehearsedJob:
        plan = Plan(BLUE, place.code(BLUE, versions[BLUE]), plans[BLUE])
        before, failure = self._run(place, BLUE, versions[BLUE], plan)
        missing = [name for name, result in before.items() if result is None]
        if missing:
            why = failure or "its code has ended before"
            raise ClusterError(
                f"the present version of job {job_id} could not repeat the batches of query {missing[0]!r}: {why}",
                f"`understudy job upgrade` without --shadow replaces the code without a rehearsal; {_RUNS_ON}",
            )
        queries = tuple(query for query in plans[GREEN] if query.name in names)
        plan = Plan(GREEN, place.code(GREEN, versions[GREEN]), queries, plans[BLUE])
        after, failure = self._run(place, GREEN, versions[GREEN], plan)
        compared = tuple(compare(one, after.get(name)) for name, one in before.items() if one is not None)
        is_equal = all(query.is_equal for query in compared)
        is_whole = all(result is not None for result in after.values())
        return RehearsedJob(job_id, is_equal, "" if is_whole else failure, compared)

    def _run(
        self, place: _Place, colour: str, version: Version, plan: Plan
    ) -> tuple[dict[str, RehearsedQuery | None], str]:
        """Run a version as a job of its own; return the results of its queries, and the failure of the job."""
        if not plan.queries:
            return {}, ""
        what = "present" if colour == BLUE else "new"
        job_id = place.new_job()
        interval, timeout = self._heartbeat or (0.0, None)
        graph = replace(
            version.graph,
            job_id=job_id,
            name=f"rehearse the {what} version of {version.graph.name}"[:MAX_NAME_LENGTH],
            savepoint=None,
            restart_strategy=RestartStrategyConfig.none(),
            upgraded_from="",
            client_heartbeat_timeout_s=timeout,
        )
        script = place.script(colour, version, plan)
        beating = self._client.heartbeats(job_id, interval) if self._heartbeat else contextlib.nullcontext()
        with self._step(f"running the {what} version over the same batches", "its job is cancelled"):
            self._client.submit(graph, script, libraries=version.files[1:])
            with beating:
                return self._results(job_id, plan)

    def _results(self, job_id: JobID, plan: Plan) -> tuple[dict[str, RehearsedQuery | None], str]:
        """Wait for the results of a job; end it if its code still runs after the last one."""
        all_since: float | None = None
        while True:
            job = self._client.job(job_id)
            results = {query.name: _result_of(query) for query in plan.queries}
            if job.status.is_globally_terminal:
                return results, failure_of(job) or f"its job is {job.status.value}"
            if all(result is not None for result in results.values()):
                all_since = self._clock() if all_since is None else all_since
                if self._clock() - all_since >= SETTLE_S:
                    end_job(self._client, job_id)
                    return results, ""
            self._pause(LOOK_S)


class _Place:
    """The directory of a rehearsal."""

    def __init__(self, path: Path, client: ClusterClient) -> None:
        self.path = path
        self._client = client

    def clear(self) -> None:
        """End the jobs of the rehearsal, and remove its files."""
        for job_id in self._jobs():
            end_job(self._client, JobID(job_id))
        remove_tree(self.path)

    def new_job(self) -> JobID:
        """Return the id of a new job of the rehearsal, which is recorded first."""
        job_id = JobID.random()
        write_private(self.path / _JOBS, json.dumps([*self._jobs(), job_id]).encode())
        return job_id

    def _jobs(self) -> list[str]:
        try:
            found: list[str] = json.loads((self.path / _JOBS).read_bytes())
        except FileNotFoundError:
            return []
        return found

    def offsets(self, one: _Live) -> Path:
        """Return the directory of blue's offset log."""
        return self.path / "offsets" / str(one.number)

    def keep_offsets(self, one: _Live, position: Position, wanted: int) -> None:
        """Copy the offsets of the committed batches to run, before Spark removes them."""
        directory = self.offsets(one)
        make_private(directory)
        for batch_id in range(one.before + 1, min(position.committed, one.before + wanted) + 1):
            if not (directory / str(batch_id)).exists():
                try:
                    content = one.offsets_of(batch_id)
                except FileNotFoundError:
                    raise CheckpointError(
                        f"the job cannot be rehearsed: query {one.name!r} has removed the offsets of batch {batch_id}",
                        f"try again with fewer --batches; {_RUNS_ON}",
                    ) from None
                write_private(directory / str(batch_id), content, durable=False)

    def check_offsets(self, one: _Live, last: int) -> None:
        """Check that blue was not rolled back since: its batches would be others."""
        for batch_id in range(one.before + 1, last + 1):
            with contextlib.suppress(FileNotFoundError):
                now = one.offsets_of(batch_id)
                if now != (self.offsets(one) / str(batch_id)).read_bytes():
                    raise CheckpointError(
                        f"query {one.name!r} was rolled back during its rehearsal, and has run batch {batch_id} again",
                        f"try again; {_RUNS_ON}",
                    )

    def planned(self, colour: str, one: _Live, last: int) -> PlannedQuery:
        """Return what one version runs of a query."""
        directory = self.path / colour / str(one.number)
        make_private(directory)
        return PlannedQuery(
            one.name,
            one.before,
            last,
            str(directory / "location"),
            str(self.offsets(one)),
            str(directory / "rows"),
            str(directory / "result.json"),
        )

    def code(self, colour: str, version: Version) -> str:
        """Return the path of the job file, as the task reads it."""
        return str(self.path / colour / "code" / version.main.name)

    def script(self, colour: str, version: Version, plan: Plan) -> Path:
        """Write the plan, the code, and the job file that runs it; return that."""
        directory = self.path / colour
        make_private(directory / "code")
        make_private(directory / "script")
        write_private(Path(plan.code), version.main.read_bytes(), durable=False)
        write_private(directory / _PLAN, encode(plan), durable=False)
        script = directory / "script" / version.main.name
        write_private(script, SCRIPT.format(plan=str(directory / _PLAN)).encode(), durable=False)
        return script


def _result_of(query: PlannedQuery) -> RehearsedQuery | None:
    """Return the result of a query, None if there is none yet."""
    try:
        return decode_result(Path(query.result).read_bytes())
    except FileNotFoundError:
        return None


def _copy(one: _Live, location: Path) -> None:
    """Make a private copy of a query's state in the savepoint, with what its sources have recorded since."""
    restore_snapshot(one.query.snapshot, location, None, new_query_id=True, copy=True)
    for log in ("offsets", "commits"):
        make_private(location / log)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            one.copy_sources(location / "sources")
            return
        except FileNotFoundError as error:  # Spark has compacted the log at this moment
            if attempt == _ATTEMPTS:
                raise CheckpointError(
                    f"the sources' log of query {one.name!r} in {one.location} cannot be copied: {error}",
                    f"try again; {_RUNS_ON}",
                ) from error
