"""Replaces the code of a running streaming job, exactly once: for ``understudy job upgrade``.

The decisions are those of `runtime.cluster.job_upgrade_plan`; this module asks the cluster and keeps files. While an
upgrade is unfinished or can be undone, a directory has the graphs and all files of both versions:

    <savepoint dir>/.upgrades/<blue's id>.lock      held by the command that works on it
    <savepoint dir>/.upgrades/<blue's id>/          upgrade.json, blue/, green/

All functions block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from blob.key import BlobKey
from conf.files import make_private, remove_tree, write_private
from runtime.checkpoint.compatibility import Verdict, left_behind
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.names import change_lock, savepoint_name
from runtime.checkpoint.retained import read_checkpoint
from runtime.checkpoint.savepoint import open_savepoint, read_savepoint
from runtime.checkpoint.snapshot import live_batches
from runtime.cluster.documents import UpgradedJob
from runtime.cluster.job_upgrade_plan import Action, Batches, Order, Outcome, Step, Upgrade, check_fit, decide, judge
from runtime.cluster.rescaling import JobSavepoints, changing, silent
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.job_file import read_job_file
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, JobKind, SavepointRestoreSettings
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.protocol.archived_execution_graph import STANDS_BY
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotFoundError,
    JobSubmissionError,
    UnknownOperationError,
)
from runtime.protocol.places import absolute_place, place_below
from runtime.protocol.query_snapshot import QuerySnapshot

if TYPE_CHECKING:
    from runtime.client import ClusterClient
    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph

LOOK_S = 0.25
"""Seconds between two looks at a new version that has not committed a batch."""

STANDBY_S = 60.0
"""Seconds for which a new version may take until its code has come to its first query; then it starts afterwards."""

_JOURNAL, _GRAPH, _FILES, _BLUE, _GREEN = "upgrade.json", "graph", "files", "blue", "green"
_UNDONE = "the upgrade was undone"
_CANNOT_STAND_BY = frozenset({"", "0.1.0"})
"""Releases whose TaskExecutors cannot let a job stand by."""
_READ_HERE = "the new version is checked and kept"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """The code of a job, with all that it needs to be submitted.

    Args:
        graph: its graph, without the files.
        files: the files with their roles; the first one is the job file.
    """

    graph: JobGraph
    files: tuple[tuple[Path, ArtifactRole], ...]

    @property
    def main(self) -> Path:
        """Return the job file."""
        return self.files[0][0]

    def with_role(self, role: ArtifactRole) -> list[Path]:
        """Return the files of one role."""
        return [path for path, its_role in self.files if its_role is role]

    def is_same(self, other: Version) -> bool:
        """Return whether the code and the arguments are those of another version."""
        return self.graph.argv == other.graph.argv and self._contents() == other._contents()

    def _contents(self) -> list[tuple[str, ArtifactRole, bytes]]:
        return sorted((path.name, role, path.read_bytes()) for path, role in self.files)

    def keep(self, directory: Path) -> Version:
        """Copy it into a new directory, for its owner only; raises OSError."""
        kept = []
        for number, (path, role) in enumerate(self.files):
            place = directory / _FILES / str(number) / path.name
            make_private(place.parent, durable=True)
            write_private(place, path.read_bytes())
            kept.append((place, role))
        graph = self.graph.with_artifacts(*(Artifact(path.name, role) for path, role in kept))
        write_private(directory / _GRAPH, encode(graph))
        return replace(self, files=tuple(kept))

    @classmethod
    def read(cls, directory: Path) -> Version:
        """Return a version that was kept; raises OSError or WireError."""
        graph = decode_job_graph((directory / _GRAPH).read_bytes())
        files = [
            (directory / _FILES / str(number) / artifact.name, artifact.role)
            for number, artifact in enumerate(graph.artifacts)
        ]
        return cls(graph.with_artifacts(), tuple(files))


def new_version(
    file: Path, args: Sequence[str], kind: JobKind | None, py_files: Sequence[Path], tell: Callable[[str], object]
) -> Callable[[Version], Version]:
    """Return what makes the new version of a job of its present one.

    It keeps the job's name, arguments, libraries, environment, directory and settings.

    Args:
        file: the job file.
        args: replace the arguments, if there are any.
        kind: as of `runtime.job_file.read_job_file`.
        py_files: replace the py-files, if there are any.
        tell: as of `runtime.job_file.read_job_file`.
    """

    def make(present: Version) -> Version:
        old = present.graph
        new = read_job_file(file, args or old.argv, old.name, kind=kind, tell=tell)
        place = old.working_directory
        if place is not None:
            here = WorkingDirectory.of_caller(file)
            if place.caller not in (None, here.caller):  # the job runs there, where a relative name means another file
                here = replace(here, file=str(file.absolute()))
            place = replace(here, caller=place.caller)
        graph = replace(
            new,
            restart_strategy=old.restart_strategy,
            priority=old.priority,
            configuration=old.configuration,
            submitter=old.submitter,
            owner=old.owner,
            working_directory=place,
            environment=old.environment,
        )
        replaced = {ArtifactRole.MAIN, *([ArtifactRole.PY_FILE] if py_files else [])}
        kept = [(path, role) for path, role in present.files if role not in replaced]
        own = [(path, ArtifactRole.PY_FILE) for path in py_files]
        return Version(graph, ((file, ArtifactRole.MAIN), *own, *kept))

    return make


def fetch_version(client: ClusterClient, graph: JobGraph, directory: Path) -> Version:
    """Keep the version of a running job: its files leave the cluster with it.

    Args:
        client: of the cluster.
        graph: of the job.
        directory: where it is kept, see `Version.keep`.

    Raises:
        OSError, GatewayError, ActorError, BlobError: a file cannot be had.
    """
    scratch = directory / "fetched"
    files = []
    with client.blobs() as blobs:
        for number, artifact in enumerate(graph.artifacts):
            path = scratch / str(number) / artifact.name
            make_private(path.parent)
            content = artifact.content
            if content is None:
                content = blobs.get_bytes(BlobKey.parse(artifact.blob_key), graph.job_id)
            write_private(path, content, durable=False)
            files.append((path, artifact.role))
    files.sort(key=lambda file: file[1] is not ArtifactRole.MAIN)
    kept = Version(graph.with_artifacts(), tuple(files)).keep(directory)
    remove_tree(scratch)
    return kept


def end_job(client: ClusterClient, job_id: JobID) -> None:
    """Cancel a job, and wait for its end; one that was never submitted, or is over, needs nothing."""
    try:
        client.cancel(job_id)
    except (JobAlreadyTerminatedError, JobNotFoundError):
        return
    client.result(job_id)


def require_file(graph: JobGraph) -> None:
    """Raise `ClusterError` if a job runs no file that could be replaced."""
    if graph.is_function or graph.session_id:
        raise ClusterError(
            f"job {graph.job_id} runs no file, so there is none to replace",
            f"`understudy job stop {graph.job_id}`, and start the new version from its savepoint",
        )


def encode_upgrade(upgrade: Upgrade) -> bytes:
    """Return the stored form of an upgrade."""
    return json.dumps(to_plain(upgrade), indent=1).encode()


def decode_upgrade(data: bytes) -> Upgrade:
    """Return an upgrade from its stored form; raises ValueError or WireError."""
    found: Upgrade = from_plain(json.loads(data), Upgrade)
    return found


class _Place:
    """The directory of one upgrade."""

    def __init__(self, home: Path, job_id: str) -> None:
        self._job_id = job_id
        self._lock = change_lock(home, job_id)
        self.path = self._lock.with_suffix("")

    def held(self) -> AbstractContextManager[None]:
        """Let no other command work on it; raises ClusterError if one does."""
        return changing(self._lock, self._job_id)

    def read(self) -> Upgrade | None:
        """Return the upgrade; None if there is none, or it was interrupted before it stopped anything."""
        try:
            return decode_upgrade((self.path / _JOURNAL).read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, WireError) as error:
            raise ClusterError(
                f"{self.path / _JOURNAL} is damaged: {error}",
                f"`understudy job list` shows what runs; remove {self.path}, and start the job with `understudy job "
                "run --from` if it does not run",
            ) from error

    def write(self, upgrade: Upgrade) -> Upgrade:
        """Record a step, and return it."""
        write_private(self.path / _JOURNAL, encode_upgrade(upgrade))
        return upgrade

    def version(self, name: str) -> Version:
        """Return blue's or green's version."""
        return Version.read(self.path / name)

    def remove(self) -> None:
        """Forget the upgrade. Its record goes first: files alone mean nothing."""
        (self.path / _JOURNAL).unlink(missing_ok=True)
        remove_tree(self.path)

    def forget(self) -> None:
        """Remove the upgrade and its lock."""
        self.remove()
        self._lock.unlink(missing_ok=True)


Check = Callable[[Version, Path], Sequence[Verdict]]
"""Returns for each query of a version whether it can continue from the savepoint in a directory."""


class JobUpgrader:
    """Replaces the code of running streaming jobs, and puts the former code back.

    Args:
        client: of the cluster. This process has to see the cluster's files.
        home: the cluster's directory of savepoints.
        check: compares a version with a savepoint.
        step: as of `runtime.cluster.rescaling.JobRescaler`.
        note: as of `runtime.cluster.rescaling.JobRescaler`.
        clock: returns seconds that never jump.
        pause: waits for some seconds.
    """

    def __init__(
        self,
        client: ClusterClient,
        home: Path,
        check: Check,
        *,
        step: Callable[[str, str], AbstractContextManager[None]] = silent,
        note: Callable[[str], object] = logger.warning,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._home = home
        self._check = check
        self._step = step
        self._note = note
        self._clock = clock
        self._pause = pause
        self._savepoints = JobSavepoints(client, step, note, home)

    def upgrade(
        self,
        job_id: JobID,
        make: Callable[[Version], Version],
        directory: Path | None = None,
        *,
        accepts_loss: bool = False,
    ) -> UpgradedJob:
        """Replace the code of a running job.

        1. A savepoint of the job is taken while it runs. If the new version does not fit that, it is refused.
        2. The new version is submitted as a job of its own. In a free slot its code runs to the start of its first
           query, and stands by there. If it fails before, it is refused.
        3. The job is stopped between two batches, with a savepoint.
        4. The new version takes over from that savepoint, by itself.
        5. If the new version fails before it has committed a batch, it is ended. Then the former version starts from
           the savepoint, as a job of its own, too.

        If this is interrupted, `finish` or `undo` continues. A call with the same version finishes it, too.

        Args:
            job_id: the job.
            make: returns the new version, given the present one. Its job id is set here.
            directory: where the savepoints are made. Default: the cluster's.
            accepts_loss: whether the new version may lose state of a query.

        Raises:
            ClusterError: the job cannot be upgraded, or does not fit; it runs on.
            GatewayError, ActorError, BlobError: the cluster does not answer, or refuses.
        """
        self._savepoints.require_files(_READ_HERE)
        with self._held(job_id) as place:
            known = place.read()
            if known is not None and known.step in (Step.STOPPING, Step.STARTING):
                made = make(place.version(_BLUE))
                decide(known, job_id, Order.UPGRADE, is_same=made.is_same(place.version(_GREEN)))
                return self._go_on(place, known)
            if decide(known, job_id, Order.UPGRADE) is Action.GO_ON and known is not None:
                return self._go_on(place, known)
        return self._begin(job_id, make, directory, accepts_loss=accepts_loss)

    def finish(self, job_id: JobID) -> UpgradedJob:
        """Finish an upgrade, or an undo, that was interrupted; otherwise as `upgrade`."""
        self._savepoints.require_files(_READ_HERE)
        with self._held(job_id) as place:
            known = place.read()
            action = decide(known, job_id, Order.FINISH)
            assert known is not None
            return self._answer(place, known) if action is Action.REPORT else self._go_on(place, known)

    def undo(self, job_id: JobID, directory: Path | None = None, *, accepts_loss: bool = False) -> UpgradedJob:
        """Go back to the version before the last upgrade.

        If the new version has committed no batch, the former one starts from the savepoint before it. Otherwise the
        former one takes the place of the new one as in an upgrade, so that no batch is repeated.

        Args:
            job_id: the job that was upgraded, or the one that took its place.
            directory: as of `upgrade`.
            accepts_loss: as of `upgrade`.

        Raises:
            ClusterError: there is nothing to undo; or the new version has committed batches, and does not run any more.
            Exception: as `upgrade`.
        """
        self._savepoints.require_files(_READ_HERE)
        with self._held(job_id) as place:
            known = place.read()
            match decide(known, job_id, Order.UNDO):
                case Action.REPORT:
                    assert known is not None
                    return self._answer(place, known)
                case Action.TAKE_BACK:
                    assert known is not None
                    if not self._was_asked_to_stop(known):
                        self._give_up(place, known)
                        return UpgradedJob(known.blue, "", "returned", "the job was not stopped yet", "", {})
                    known = self._stop(place, known)
                case Action.GO_ON:
                    assert known is not None
                    return self._go_on(place, known)
            assert known is not None
            if not self._has_committed(known):
                return self._return(place, known, _UNDONE)
            former = place.version(_BLUE)
        job = self._client.job(known.green)
        if job.status.is_globally_terminal:
            raise ClusterError(
                f"job {known.green} is {job.status.value}, and has committed batches since the upgrade: there is no "
                "savepoint of its present state",
                f"`understudy job run --from {known.savepoint} FILE` repeats all batches since the upgrade, and rolls "
                "file sinks back",
            )
        return self._begin(known.green, lambda _: former, directory, accepts_loss=accepts_loss, undone=True)

    # --------------------------------------------------------------- the steps

    def _begin(
        self,
        job_id: JobID,
        make: Callable[[Version], Version],
        directory: Path | None,
        *,
        accepts_loss: bool,
        undone: bool = False,
    ) -> UpgradedJob:
        """Begin an upgrade, and do all its steps."""
        place = _Place(self._home, job_id)
        with place.held():
            place.remove()  # left by a command that was killed before it stopped anything
            try:
                upgrade = self._prepare(place, job_id, make, directory, accepts_loss=accepts_loss)
            except BaseException:
                place.remove()
                raise
            done = self._go_on(place, place.write(upgrade))
            if undone and done.outcome == "returned":
                raise ClusterError(
                    f"the undo was given up, and job {done.job_id} was started with the new version: "
                    f"{done.because.replace('the new version', 'the former version')}",
                    f"`understudy job exceptions {done.upgraded_from}` shows the failure",
                )
            return replace(done, outcome="returned", because=_UNDONE) if undone else done

    def _prepare(
        self,
        place: _Place,
        job_id: JobID,
        make: Callable[[Version], Version],
        directory: Path | None,
        *,
        accepts_loss: bool,
    ) -> Upgrade:
        """Keep both versions, and check the new one, while the job runs."""
        graph = self._client.job_graph(job_id)
        require_file(graph)
        blue = fetch_version(self._client, graph, place.path / _BLUE)
        upgrade = Upgrade(job_id, JobID.random(), JobID.random(), TriggerID.random(), str(directory or ""))
        made = make(blue)
        new = replace(made.graph, job_id=upgrade.green, upgraded_from=job_id, client_heartbeat_timeout_s=None)
        green = replace(made, graph=new).keep(place.path / _GREEN)
        taken = self._savepoints.take(job_id, directory, "only a job with running streaming queries can be upgraded")
        try:
            with self._step(f"checking {green.main.name} against the state of job {job_id}", f"job {job_id} runs on"):
                verdicts = self._check(green, taken)
                check_fit(verdicts, accepts_loss=accepts_loss)
        finally:
            self._savepoints.remove(taken)
        return replace(upgrade, dropped=left_behind(verdicts))

    def _go_on(self, place: _Place, upgrade: Upgrade) -> UpgradedJob:
        """Do the steps that are left."""
        try:
            if upgrade.step is Step.STOPPING:
                if not self._was_asked_to_stop(upgrade):
                    self._stand_by(place, upgrade)
                upgrade = self._stop(place, upgrade)
            if upgrade.step is Step.STARTING or upgrade.is_waiting:
                upgrade = self._start(place, upgrade)
            if upgrade.step is Step.RETURNING:
                upgrade = self._restart(place, upgrade)
        except Exception:
            if place.path.exists():  # else the job runs on
                self._note(f"the upgrade of job {upgrade.blue} is unfinished: {_unfinished(upgrade)}")
            raise
        return self._answer(place, upgrade)

    def _start(self, place: _Place, upgrade: Upgrade) -> Upgrade:
        """Start green, unless it was started, and record whether it works."""
        if upgrade.step is Step.STARTING:
            try:
                if not self._exists(upgrade.green):
                    self._submit(place.version(_GREEN), upgrade, upgrade.green, upgrade.blue)
            except (JobSubmissionError, JobGraphError) as error:
                return place.write(_returning(upgrade, f"the new version was not accepted: {error}"))
            self._note(f"job {upgrade.green} takes the place of job {upgrade.blue}")
        outcome, failure, locations = self._watch(upgrade)
        upgrade = replace(upgrade, locations=locations)
        if outcome is Outcome.FAILED:
            return place.write(_returning(upgrade, f"the new version failed before its first batch: {failure}"))
        if failure:
            self._note(f"note: job {upgrade.green} has committed a batch, and has failed since: {failure}")
        upgrade = place.write(replace(upgrade, step=Step.UPGRADED, is_waiting=outcome is Outcome.IDLE))
        if former := place.version(_BLUE).graph.upgraded_from:  # only the last upgrade can be undone
            _Place(self._home, former).forget()
        return upgrade

    def _was_asked_to_stop(self, upgrade: Upgrade) -> bool:
        if self._savepoint(upgrade).is_dir():
            return True
        try:
            self._client.operation(upgrade.blue, upgrade.trigger_id)
        except (UnknownOperationError, JobAlreadyTerminatedError, JobNotFoundError):
            return False
        return True

    def _savepoint(self, upgrade: Upgrade) -> Path:
        """Return where the stop leaves its savepoint."""
        directory = absolute_place(self._directory(upgrade) or self._home)
        return Path(place_below(directory, savepoint_name(upgrade.blue, upgrade.trigger_id)))

    def _directory(self, upgrade: Upgrade) -> Path | None:
        return self._savepoints.directory(Path(upgrade.directory) if upgrade.directory else None)

    def _give_up(self, place: _Place, upgrade: Upgrade) -> None:
        """End green, which stands by, and forget the upgrade: blue was not stopped by it."""
        end_job(self._client, upgrade.green)
        place.remove()

    def _stand_by(self, place: _Place, upgrade: Upgrade) -> None:
        """Submit green while blue runs, and wait until its code is at the start of its first query.

        Without a free slot, and beside a TaskExecutor of release 0.1.0, green is submitted after blue has ended.

        Raises:
            ClusterError: green is not accepted, or fails; blue runs on.
        """
        if not self._has_room():
            return
        early = replace(upgrade, savepoint=str(self._savepoint(upgrade)))
        try:
            self._submit(place.version(_GREEN), early, upgrade.green, upgrade.blue, is_early=True)
        except JobGraphError:
            self._give_up(place, upgrade)
            raise
        except JobSubmissionError as error:  # its queue may have no place for two
            self._note(f"note: job {upgrade.green} starts after job {upgrade.blue} has ended: {error}")
            return
        begun = self._clock()
        with self._step(f"starting job {upgrade.green} beside job {upgrade.blue}", _unfinished(upgrade)):
            while True:
                job = self._client.job(upgrade.green)
                if (failure := failure_of(job)) or job.status.is_globally_terminal:
                    self._give_up(place, upgrade)
                    raise ClusterError(
                        f"the new version has not come to its first query: {failure or f'it is {job.status.value}'}",
                        f"change it; job {upgrade.blue} runs on",
                    )
                if any(task.waiting_for == STANDS_BY for task in job.tasks):
                    return
                if self._clock() - begun > STANDBY_S:
                    self._note(f"note: job {upgrade.green} is not at its first query after {STANDBY_S:g} s")
                    return
                self._pause(LOOK_S)

    def _has_room(self) -> bool:
        """Return whether a job may stand by: a slot is free, and all TaskExecutors know how to."""
        views = self._client.task_managers()
        return any(view.free_slots for view in views) and all(
            view.registration.version not in _CANNOT_STAND_BY for view in views
        )

    def _stop(self, place: _Place, upgrade: Upgrade) -> Upgrade:
        """Stop blue between two batches, and record its savepoint. If that fails, blue runs on."""
        directory, path = self._directory(upgrade), str(self._savepoint(upgrade))
        try:
            with self._step(f"stopping job {upgrade.blue}", _unfinished(upgrade)):
                status, _ = self._client.stop_and_await_end(upgrade.blue, directory, trigger_id=upgrade.trigger_id)
        except (JobAlreadyTerminatedError, JobNotFoundError):
            if not Path(path).is_dir():  # it has ended by itself; else it was stopped, and is forgotten since
                self._give_up(place, upgrade)
                raise
        else:
            if status.state is not OperationState.COMPLETED:
                self._give_up(place, upgrade)
                raise ClusterError(
                    f"job {upgrade.blue} was not stopped: {status.error}",
                    "the job runs on; fix the cause and try again",
                )
            path = status.path
            for line in status.notes:
                self._note(f"note: {line}")
        batches = {one.snapshot.name: one.snapshot.batch_id for one in read_savepoint(Path(path)).queries}
        return place.write(replace(upgrade, step=Step.STARTING, savepoint=path, batches=batches))

    def _submit(
        self, version: Version, upgrade: Upgrade, job_id: JobID, upgraded_from: JobID, *, is_early: bool = False
    ) -> None:
        """Submit a version that starts from the savepoint; submitting a job again changes nothing.

        *is_early*: before the job in whose place it starts has ended.
        """
        # What the user accepted to lose was checked. The query continues, so it keeps its id wherever it starts.
        state = SavepointRestoreSettings(
            upgrade.savepoint,
            allow_non_restored_state=True,
            new_query_id=False,
            after=upgraded_from if is_early else "",
            dropped=upgrade.dropped if job_id == upgrade.green else (),
        )
        graph = replace(
            version.graph,
            job_id=job_id,
            upgraded_from=upgraded_from,
            savepoint=state,
            client_heartbeat_timeout_s=None,
        )
        with self._step(f"submitting job {job_id}", _unfinished(upgrade)):
            self._client.submit(graph, version.main, libraries=version.files[1:])

    def _watch(self, upgrade: Upgrade) -> tuple[Outcome, str, dict[str, str]]:
        """Wait until green has committed a batch, waits for data, or has failed.

        Returns:
            that, the failure, and the checkpointLocations of its queries as far as they are known.
        """
        locations: dict[str, str] | None = None
        known: dict[str, str] = {}
        seen: Mapping[str, Batches] | None = None
        quiet_since = self._clock()
        with self._step(f"waiting for the first batch of job {upgrade.green}", _unfinished(upgrade)):
            while True:
                job = self._client.job(upgrade.green)
                running = _running(job)
                if running and (locations is None or running & upgrade.batches.keys() - locations.keys()):
                    locations = self._locations(upgrade, running)
                    known |= locations or {}
                queries = None if locations is None else _batches(upgrade, locations)
                if queries != seen:
                    seen, quiet_since = queries, self._clock()
                outcome = judge(job.status, failure_of(job), queries, self._clock() - quiet_since)
                if outcome is not Outcome.WAIT:
                    ended = f"it is {job.status.value}" if job.status.is_globally_terminal else ""
                    return outcome, failure_of(job) or ended, known
                self._pause(LOOK_S)

    def _locations(self, upgrade: Upgrade, running: Set[str]) -> dict[str, str] | None:
        """Return the checkpointLocations of green's queries that the savepoint has, by name.

        None if none of them runs, or if the checkpoint that was taken for it lacks one of those that run.
        """
        found = {query.name: query.location for query in self._snapshots(upgrade)}
        expected = upgrade.batches.keys() & (found.keys() | running)
        if expected - found.keys() or (upgrade.batches and not expected):
            return None
        return {name: found[name] for name in expected}

    def _snapshots(self, upgrade: Upgrade) -> Sequence[QuerySnapshot]:
        """Take a checkpoint of green, and return its snapshots; none if its queries do not run."""
        try:
            status = self._client.trigger_checkpoint(upgrade.green)
            if status.state is OperationState.COMPLETED:
                return read_checkpoint(Path(status.path)).queries
        except (JobAlreadyTerminatedError, JobNotFoundError, CheckpointError) as error:
            logger.info("no checkpoint of job %s: %s", upgrade.green, error)
        return ()

    def _has_committed(self, upgrade: Upgrade) -> bool:
        """Return whether green has committed a batch of a query that began from the savepoint."""
        if upgrade.step is Step.STOPPING:
            return False
        found = {one.snapshot.name: one.snapshot.location for one in read_savepoint(Path(upgrade.savepoint)).queries}
        found |= upgrade.locations
        found |= {query.name: query.location for query in self._snapshots(upgrade)}
        return any(query.has_committed for query in _batches(upgrade, found).values())

    def _return(self, place: _Place, upgrade: Upgrade, because: str) -> UpgradedJob:
        return self._go_on(place, place.write(_returning(upgrade, because)))

    def _restart(self, place: _Place, upgrade: Upgrade) -> Upgrade:
        """End green, and start blue's version from the savepoint, unless that was done."""
        if self._exists(upgrade.back):
            return place.write(replace(upgrade, step=Step.RETURNED))
        with self._step(f"ending job {upgrade.green}", _unfinished(upgrade)):
            end_job(self._client, upgrade.green)
        if self._has_committed(upgrade):
            # It has committed a batch since the last look. Its output is taken back, where that is possible.
            queries = open_savepoint(Path(upgrade.savepoint)).queries
            if names := [one.snapshot.name for one in queries if one.snapshot.sink is None]:
                raise ClusterError(
                    f"job {upgrade.green} was ended, and has committed a batch before: query {names[0]!r} has no file "
                    "sink, so its former version would write that batch again",
                    f"`understudy job run --from {upgrade.savepoint} FILE` writes it again",
                )
        self._submit(place.version(_BLUE), upgrade, upgrade.back, upgrade.green)
        return place.write(replace(upgrade, step=Step.RETURNED))

    def _exists(self, job_id: JobID) -> bool:
        try:
            self._client.status_of(job_id)
        except JobNotFoundError:
            return False
        return True

    def _answer(self, place: _Place, upgrade: Upgrade) -> UpgradedJob:
        is_back = upgrade.step is Step.RETURNED
        if is_back:
            place.remove()
        outcome = "returned" if is_back else "waiting" if upgrade.is_waiting else "upgraded"
        former = upgrade.green if is_back else upgrade.blue
        return UpgradedJob(upgrade.working, former, outcome, upgrade.because, upgrade.savepoint, dict(upgrade.batches))

    @contextlib.contextmanager
    def _held(self, job_id: JobID) -> Iterator[_Place]:
        """Hold the upgrade that a job is in: as the one that is replaced, or as the one that took its place."""
        place = _Place(self._home, job_id)
        if not place.path.exists():
            with contextlib.suppress(JobNotFoundError):
                place = _Place(self._home, self._client.job(job_id).upgraded_from or job_id)
        with place.held():
            yield place


def _returning(upgrade: Upgrade, because: str) -> Upgrade:
    return replace(upgrade, step=Step.RETURNING, because=because, is_waiting=False)


def _unfinished(upgrade: Upgrade) -> str:
    return (
        f"`understudy job upgrade {upgrade.blue}` finishes the upgrade, and `understudy job upgrade --undo "
        f"{upgrade.blue}` undoes it"
    )


def failure_of(job: ArchivedExecutionGraph) -> str:
    """Return the first failure in a job, in one line; empty if there was none."""
    failures = [*job.failure_history, *([] if job.failure is None else [job.failure])]
    return failures[0].cause if failures else ""


def _running(job: ArchivedExecutionGraph) -> set[str]:
    return {query.name for task in job.tasks for query in task.attempts[-1].queries}


def _batches(upgrade: Upgrade, locations: Mapping[str, str]) -> dict[str, Batches]:
    """Return the batches of the queries that began from the savepoint, as their checkpointLocations have them."""
    found = {}
    for name, location in locations.items():
        if name in upgrade.batches:
            planned, committed = live_batches(location)
            found[name] = Batches(upgrade.batches[name], committed, planned)
    return found
