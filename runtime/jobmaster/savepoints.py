"""Files that a job starts from or is rolled back to: savepoints written, found, read, and rollbacks. All calls block.

Flink rolls a job back by cancelling it and running it again from an older checkpoint. Here a running job is rolled back
in its place. The rollback is written before it takes effect. From then on all attempts start from the older state,
under any JobMaster, until a checkpoint is complete that was taken after the rollback.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conf.configuration import Configuration
from conf.files import make_private, remove_tree, rename_durably, sync_directories, sync_names
from conf.options import CheckpointingOptions
from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.files import list_files, take_files
from runtime.checkpoint.handover import handover_file, pending_state, read_handover, start_file, write_handover
from runtime.checkpoint.names import directory_name, savepoint_name
from runtime.checkpoint.remote_savepoint import (
    check_target,
    default_target,
    fetched_once,
    is_complete,
    publish_manifest,
    remove_files,
    upload_files,
)
from runtime.checkpoint.restore import check_sink
from runtime.checkpoint.retained import NOT_STARTED, PREFIX, is_checkpoint, open_checkpoint, read_checkpoint
from runtime.checkpoint.savepoint import SavepointJob, open_savepoint, read_savepoint, write_savepoint
from runtime.checkpoint.task_restore import restored_queries, tasks_of_queries
from runtime.feature_level import FeatureLevel
from runtime.ids import JobID, JobVertexID, TriggerID
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.protocol.checkpoints import (
    CheckpointMetadata,
    CheckpointTrigger,
    EarlierCheckpoint,
    InitialState,
    JobManagerTaskRestore,
)
from runtime.protocol.places import is_url, place_below
from runtime.protocol.query_snapshot import QuerySnapshot

logger = logging.getLogger(__name__)

_PART = ".part"
_NUMBER = re.compile(rf"(?:{PREFIX})?([0-9]{{1,18}})")
_PINNED = "rollback-"
_STARTED_FROM = "from-"
_FETCHED = "fetched-"
_OF_EPOCH = re.compile(r".+-[0-9a-f]{32}-([0-9]+)")


class SavepointWriter:
    """Writes and finds savepoints by their triggers, in local directories and in remote file systems.

    The directory's name is made of the job's id and the trigger id. So if a JobMaster is lost after it has written a
    savepoint, the next one finds it.

    A remote savepoint is first written here, then copied. JobMasters of several epochs may copy at once, so each uses
    names of its own, and the manifest, which is written last, decides. See `runtime.checkpoint.remote_savepoint`.

    Args:
        job: the job.
        configuration: the cluster's.
    """

    def __init__(self, job: JobGraph, configuration: Configuration) -> None:
        self._job = job
        self._default = default_target(configuration)
        self._own = configuration.get(CheckpointingOptions.CHECKPOINTS_DIR) / job.job_id

    def place_of(self, trigger: CheckpointTrigger) -> str:
        """Return the place of a trigger's savepoint: a local directory, or a URL."""
        return place_below(trigger.target or self._default, savepoint_name(self._job.job_id, trigger.trigger_id))

    def find(self, trigger: CheckpointTrigger) -> str:
        """Return the place of a trigger's complete savepoint, whose name is on the disk; empty if there is none.

        Raises:
            CheckpointError, OSError: it is damaged, or the disk failed; or a remote file system cannot be used.
        """
        if not trigger.type.is_savepoint:
            return ""
        place = self.place_of(trigger)
        if is_url(place):
            return place if is_complete(place) else ""
        path = Path(place)
        try:
            if not path.is_dir():
                return ""
        except OSError:  # no access, or the name is too long: writing the savepoint reports it
            return ""
        read_savepoint(path)
        sync_names(path)  # the JobMaster that has written it may have been lost before it has synced that
        return place

    def prepare(self, trigger: CheckpointTrigger) -> str:
        """Find a trigger's savepoint as `find`; if there is none, check that a remote one can be written.

        So a remote file system that cannot be used is reported before anything is taken or stopped. Whether a local
        savepoint can be written is found out when it is.

        Raises:
            CheckpointError, OSError: as `find`, or the remote savepoint cannot be written. The message has the remedy,
                since only messages travel to clients.
        """
        target = trigger.target or self._default
        if not is_url(target):
            return self.find(trigger)
        try:
            there = self.find(trigger)
            if not there and trigger.type.is_savepoint:
                check_target(target)
        except SavepointError as error:
            raise SavepointError("; ".join(filter(None, (str(error), error.remedy)))) from error
        return there

    def copy(
        self,
        trigger: CheckpointTrigger,
        metadata: CheckpointMetadata,
        epoch: int,
        wanted: Callable[[], bool],
        level: FeatureLevel | None = None,
        carried: Sequence[QuerySnapshot] = (),
    ) -> Path:
        """Copy the snapshots into a directory that `publish` makes the savepoint.

        Its name has the epoch, so that JobMasters of several epochs never touch each other's. The directories of
        earlier JobMasters for the same trigger are removed first, so that a JobMaster that was suspended cannot publish
        its own any more.

        Args:
            trigger: of the savepoint.
            metadata: of the checkpoint that was taken for it.
            epoch: of the JobMaster.
            wanted: returns whether the savepoint is still needed; otherwise what was copied is removed.
            level: of the cluster. Default: the lowest of this release.
            carried: further snapshots, of queries that the job has not started yet.

        Returns:
            the directory; hidden, beside the place of the savepoint. For a remote savepoint it is one of the job's own,
            and its files are copied too.

        Raises:
            CheckpointError, OSError: the savepoint cannot be written. Nothing of it is left here.
        """
        place = self.place_of(trigger)
        path = self._own / Path(place).name if is_url(place) else Path(place)
        part = path.with_name(f".{path.name}.{epoch}{_PART}")
        for other in path.parent.glob(f".{path.name}.*{_PART}"):
            number = other.name.removeprefix(f".{path.name}.").removesuffix(_PART)
            if number.isdecimal() and int(number) <= epoch:
                _take_away(other)
        try:
            job = SavepointJob(self._job.job_id, self._job.name, self._job.owner)
            attempt = f"{epoch}-{os.urandom(4).hex()}-" if is_url(place) else ""
            made = Path(write_savepoint(part, job, (*metadata.queries, *carried), level, attempt=attempt).path)
            if is_url(place):
                self._upload(made, place, wanted)
        except BaseException:
            _remove(part)
            raise
        if not wanted():
            self.discard(trigger, made)
        return made

    def _upload(self, made: Path, place: str, wanted: Callable[[], bool]) -> None:
        try:
            upload_files(made, place, wanted)
        except BaseException:
            _remove_uploaded(made, place)
            raise

    def publish(self, trigger: CheckpointTrigger, made: Path) -> str:
        """Make the directory of `copy` the savepoint, in one step; only while the JobMaster leads.

        If a former JobMaster has published this trigger's savepoint in the meantime, that one stays.

        Raises:
            OSError: there is no savepoint.
            CheckpointError: something else is in its place, or a remote file system failed.
        """
        place = self.place_of(trigger)
        try:
            if is_url(place):
                publish_manifest(made, place)
            else:
                rename_durably(made, Path(place))
        except (OSError, SavepointError):
            if not self.find(trigger):
                raise
        finally:
            self.discard(trigger, made)
        return place

    def discard(self, trigger: CheckpointTrigger, made: Path) -> None:
        """Remove the directory of `copy`, and its remote files unless it is published."""
        place = self.place_of(trigger)
        if is_url(place) and made.is_dir():
            _remove_uploaded(made, place)
        _remove(made.parent)

    def read(self, settings: SavepointRestoreSettings) -> tuple[JobID, JobManagerTaskRestore]:
        """Return the verified state that a job starts from, and the job that it was taken of.

        A remote savepoint is copied once into the job's own directory, for all JobMasters and TaskExecutors.

        Raises:
            CheckpointError: it is neither savepoint nor checkpoint, or is damaged.
        """
        path = Path(settings.path)
        if is_url(settings.path):
            name = hashlib.sha256(settings.path.encode()).hexdigest()[:12]
            path = fetched_once(settings.path, self._own / f"{_STARTED_FROM}{name}")
        owner, checkpoint_id, queries = _open(path)
        return owner, JobManagerTaskRestore(
            checkpoint_id,
            queries,
            settings.path,
            settings.allow_non_restored_state,
            new_query_id=settings.new_query_id,
        )

    def begun_from(self) -> JobManagerTaskRestore | None:
        """Return the state that a former JobMaster of the job has read; None if there is none.

        The job's tasks may run, or their queries may have their state already. So the savepoint is not read again: it
        may be gone by now.
        """
        return self._left(start_file(self._own))

    def beside_checkpoints(self) -> JobManagerTaskRestore | None:
        """Return the state that the job was started from, or has taken over; None if none of it was written."""
        return self._left(handover_file(self._own)) or self.begun_from()

    def note_begin(self, restore: JobManagerTaskRestore) -> None:
        """Write the state that the job starts from, for the next JobMasters; raises OSError."""
        write_handover(start_file(self._own), restore)

    def _left(self, file: Path) -> JobManagerTaskRestore | None:
        try:
            return read_handover(file)
        except SnapshotError as error:
            logger.warning("%s: that file is not used", error)
            return None

    def pending(self, settings: SavepointRestoreSettings) -> JobManagerTaskRestore:
        """Return the state of the tasks while the former job has not ended."""
        return pending_state(settings.path, settings.after, handover_file(self._own))

    def take_over(self, settings: SavepointRestoreSettings) -> JobManagerTaskRestore:
        """Return the state that the former job has left, and write it for the tasks that wait for it.

        If a former JobMaster has written it, that counts: the savepoint may be gone by now. The contents of the
        savepoint are compared when a query starts: with its own files, or while they are copied.

        Raises:
            CheckpointError: the former job has left no savepoint.
            OSError: the state cannot be written.
        """
        if (left := self._left(handover_file(self._own))) is not None:
            return left
        try:
            savepoint = read_savepoint(Path(settings.path))
        except SavepointError as error:
            raise SavepointError(
                f"job {settings.after} has ended without the savepoint from which this job starts: {error}",
                "`understudy job info` shows how it has ended",
            ) from error
        restore = JobManagerTaskRestore(
            0,
            tuple(query.snapshot for query in savepoint.queries),
            settings.path,
            settings.allow_non_restored_state,
            new_query_id=settings.new_query_id,
            continues=True,
        )
        write_handover(handover_file(self._own), restore)
        return restore


@dataclass(frozen=True, slots=True)
class Rollback:
    """A decision to restart a job from an earlier checkpoint or savepoint of its own.

    Args:
        trigger_id: of the request.
        path: the directory that keeps the files of the rollback.
        shown: the original path, at the time of the request.
        new_query_id: whether the queries get new ids.
        after: number of the last checkpoint that may have been taken before; later ones replace the rollback.
    """

    trigger_id: TriggerID
    path: str
    shown: str
    new_query_id: bool
    after: int = 0


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A rollback, and the queries by their tasks; None is the key of those of a savepoint whose task is not known.

    *late* are queries of a savepoint that the job has not started, so that no task waits for them.
    """

    rollback: Rollback
    checkpoint_id: int = 0
    queries: dict[JobVertexID | None, tuple[QuerySnapshot, ...]] = field(default_factory=dict)
    late: tuple[QuerySnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """State of queries that a job has not started when a savepoint of it is taken.

    Args:
        snapshots: what the savepoint takes over from the state that the job was started from.
        notes: messages for the user who has requested the savepoint.
    """

    snapshots: tuple[QuerySnapshot, ...] = ()
    notes: tuple[str, ...] = ()


def carry_over(
    initial: JobManagerTaskRestore,
    settings: SavepointRestoreSettings,
    started: Collection[str],
    taken: Iterable[QuerySnapshot],
    copies: Path,
) -> CarriedOver:
    """Choose the state that a savepoint or retained checkpoint takes over from the one that the job was started from.

    As Flink, where the state of an operator is in each savepoint, whether or not the operator has had any records.

    Args:
        initial: the state that the job was started from.
        settings: of that start.
        started: the queries that had taken their state when the savepoint was triggered, by `directory_name`. Those
            of a task that has ended are in no savepoint any more.
        taken: the snapshots of the job's queries.
        copies: the directory of `carry_into`, which may have a copy of state that is gone by now.
    """
    names = {query.name for query in taken}
    carried, notes = [], []
    for query in initial.queries:
        if query.name in names or directory_name(query.name) in started:
            continue
        where = f"the state of query {query.name!r} in {initial.savepoint}"
        if settings.drops(query.name):
            if settings.dropped is None:
                notes.append(f"{where} is left out: the job may leave state unused, and has not started the query")
        elif (place := _first_there(Path(query.path), copies / directory_name(query.name))) is not None:
            carried.append(replace(query, path=str(place)))
            notes.append(f"{where} is carried over: the job has not started the query")
        else:
            notes.append(f"{where} is lost: the job has not started the query, and {query.path} is gone")
    return CarriedOver(tuple(carried), tuple(notes))


def _first_there(*directories: Path) -> Path | None:
    return next((directory for directory in directories if directory.is_dir()), None)


class TaskRestores:
    """State that the tasks of one job start from: its last rollback, its last checkpoint, or the job's own start.

    Args:
        job_id: the job.
        directory: of the job's checkpoints.
        epoch: of the JobMaster. The names of what it keeps for rollbacks have it, so that a JobMaster that was
            suspended never touches what a later one keeps.

    Attributes:
        initial: the state that the job was started from, if any.
    """

    def __init__(self, job_id: JobID, directory: Path, epoch: int) -> None:
        self._job_id = job_id
        self._directory = directory
        self._epoch = epoch
        self._taken_up: TakenUp | None = None
        self.initial: JobManagerTaskRestore | None = None

    def started(self) -> frozenset[str]:
        """Return the queries that have taken their state from the job's start, by `directory_name`.

        Raises:
            CheckpointError: they cannot be read.
        """
        return frozenset(restored_queries(self._directory))

    @property
    def last(self) -> Rollback | None:
        """The last rollback, which the next JobMaster needs."""
        return None if self._taken_up is None else self._taken_up.rollback

    def prepare(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> Rollback:
        """Check that the job can be rolled back to *target*, and keep the files of the target.

        Args:
            trigger_id: of the request.
            target: ``chk-<number>`` or the number of one of the job's checkpoints, or a savepoint's directory or URL.
            new_query_id: see `Rollback`.

        Raises:
            CheckpointError: the target is not valid, not complete, or cannot be kept, or the file sink has lost files
                that it needs.
        """
        number = _NUMBER.fullmatch(target)
        path = self._directory / f"{PREFIX}{number[1]}" if number else Path(target)
        if number and not is_checkpoint(path):
            kept = sorted(
                int(each.name.removeprefix(PREFIX))
                for each in self._directory.glob(f"{PREFIX}*")
                if is_checkpoint(each)
            )
            has = f"it has {', '.join(f'{PREFIX}{each}' for each in kept)}" if kept else "it has none"
            raise SavepointError(f"job {self._job_id} has no checkpoint {path.name}: {has}")
        if not is_url(target):
            return Rollback(trigger_id, str(self._checked(path, trigger_id)), str(path), new_query_id)
        # It stays until the rollback is written: a request that is repeated because the copy took long finds it.
        fetched = self._kept_at(_FETCHED, trigger_id)
        try:
            pinned = self._checked(fetched_once(target, fetched), trigger_id)
        except BaseException:
            _remove(fetched)
            raise
        return Rollback(trigger_id, str(pinned), target, new_query_id)

    def _checked(self, path: Path, trigger_id: TriggerID) -> Path:
        """Check a local state of the job, and return the directory that keeps its files."""
        owner, _, queries = _open(path)
        if owner != self._job_id:
            raise SavepointError(
                f"{path} is of job {owner}, and not of job {self._job_id}",
                "a job can only be rolled back to its own state; start another job with `understudy job run --from`",
            )
        for query in queries:
            if query.sink is not None:
                check_sink(query, query.sink)
        return self._pin(path, trigger_id)

    def _pin(self, path: Path, trigger_id: TriggerID) -> Path:
        """Link to its files: it may be subsumed, or disposed of, before all tasks were rolled back."""
        pinned = self._kept_at(_PINNED, trigger_id)
        try:
            remove_tree(pinned)
            make_private(pinned)
            take_files(path, list_files(path), pinned)
            sync_directories(pinned)
            sync_names(pinned)
        except OSError as error:
            raise SnapshotError(f"the files of {path} cannot be kept for the rollback: {error}") from error
        if is_checkpoint(pinned):
            open_checkpoint(pinned)  # raises if it was just subsumed, and was being removed
        return pinned

    def read(self, rollback: Rollback, latest_id: int = 0) -> TakenUp:
        """Read the files of a rollback that this JobMaster or a former one decides; raises CheckpointError, OSError.

        *latest_id* is the number of the last completed checkpoint. If it was taken after the rollback, it replaces it.
        """
        path = Path(rollback.path)
        if latest_id > rollback.after:
            return TakenUp(rollback)
        if is_checkpoint(path):
            state = read_checkpoint(path)
            queries: dict[JobVertexID | None, tuple[QuerySnapshot, ...]] = {
                task.task_key: task.queries for task in state.tasks if task.task_key != NOT_STARTED
            }
            return TakenUp(rollback, state.checkpoint_id, queries)
        kept = tuple(query.snapshot for query in read_savepoint(path).queries)
        begun = {query.name for query in self.initial.queries} if self.initial is not None else set()
        started = {name: place for name, place in restored_queries(self._directory).items() if place != rollback.path}
        late = tuple(one for one in kept if one.name in begun and directory_name(one.name) not in started)
        tasks, by_task = tasks_of_queries(self._directory), defaultdict[JobVertexID | None, list[QuerySnapshot]](list)
        for one in kept:
            if one not in late:
                by_task[tasks.get(directory_name(one.name))].append(one)
        return TakenUp(rollback, 0, {key: tuple(part) for key, part in by_task.items()}, late)

    def take_up(self, decided: TakenUp) -> None:
        """Use a rollback from now on."""
        self._taken_up = decided

    def _kept_at(self, prefix: str, trigger_id: TriggerID) -> Path:
        return self._directory / f"{prefix}{trigger_id}-{self._epoch}"

    def _kept(self, prefix: str) -> list[Path]:
        """Return what this JobMaster and former ones have kept; not what later ones have."""
        return [path for path in self._directory.glob(f"{prefix}*") if _epoch_of(path) <= self._epoch]

    def forget_former(self) -> None:
        """Remove the links of former rollbacks, and what was fetched, once the last is written; raises OSError."""
        for pinned in self._kept(_PINNED):
            if self.last is not None and pinned != Path(self.last.path):
                remove_tree(pinned)
        for fetched in self._kept(_FETCHED):
            remove_tree(fetched)

    def restore(
        self, task_key: JobVertexID, completed: Sequence[CheckpointMetadata]
    ) -> tuple[JobManagerTaskRestore, str] | None:
        """Return the state that a task starts from, and the path to show for it; None if there is none.

        Args:
            task_key: the task.
            completed: the completed checkpoints, the newest first. A savepoint has no tasks. If a task of an earlier
                release has started a query, the newest checkpoint tells whether it belongs to this task.

        A checkpoint may be complete while queries of the job's own start are still being restored. So that state is
        returned beside each checkpoint that lacks one of them.
        """
        latest = completed[0] if completed else None
        own = None if latest is None else _queries_of(latest, task_key)
        taken_up, rollback = self._taken_up, self.last
        if taken_up is not None and rollback is not None and (latest is None or latest.checkpoint_id <= rollback.after):
            queries = taken_up.queries.get(task_key, ())
            if None in taken_up.queries:
                names = {query.name for query in own or ()}
                others = taken_up.queries[None]
                queries += tuple(query for query in others if latest is None or query.name in names)
            restore = JobManagerTaskRestore(
                taken_up.checkpoint_id,
                queries,
                rollback.path,
                allow_non_restored_state=True,
                rollback=rollback.trigger_id,
                new_query_id=rollback.new_query_id,
                begun_from=self._late(taken_up)
                or self._begun_beside(query for part in taken_up.queries.values() for query in part),
            )
            return restore, rollback.shown
        if latest is None:
            return None if self.initial is None else (self.initial, self.initial.savepoint)
        begun_from = self._begun_beside(latest.queries)
        if own is None:
            return None if begun_from is None else (begun_from.restore, begun_from.savepoint)
        earlier = tuple(
            EarlierCheckpoint(item.checkpoint_id, _queries_of(item, task_key) or ()) for item in completed[1:]
        )
        return JobManagerTaskRestore(latest.checkpoint_id, own, earlier=earlier, begun_from=begun_from), latest.path

    def _late(self, taken_up: TakenUp) -> InitialState | None:
        """Return the state of queries that have not started, if the savepoint of a rollback carries it over."""
        if self.initial is None or not taken_up.late:
            return None
        rollback, allows = taken_up.rollback, self.initial.allow_non_restored_state
        return InitialState(0, taken_up.late, rollback.path, allows, rollback.new_query_id, continues=False)

    def _begun_beside(self, queries: Iterable[QuerySnapshot]) -> InitialState | None:
        """Return the state that the job was started from, if some of its queries are not among *queries*."""
        if self.initial is None or self.initial.pending:
            return None
        names = {query.name for query in self.initial.queries}
        return self.initial.initial if names - {query.name for query in queries} else None


def _epoch_of(kept: Path) -> int:
    """Return the epoch of the JobMaster that keeps a directory; 0 if its name has none, as in earlier releases."""
    match = _OF_EPOCH.fullmatch(kept.name)
    return int(match[1]) if match else 0


def _queries_of(metadata: CheckpointMetadata, task_key: JobVertexID) -> tuple[QuerySnapshot, ...] | None:
    """Return the part of a checkpoint that belongs to a task; None if the task took no part."""
    return next((task.queries for task in metadata.tasks if task.task_key == task_key), None)


def _open(path: Path) -> tuple[JobID, int, tuple[QuerySnapshot, ...]]:
    """Read and verify a checkpoint or savepoint; return its job, its number (0 for a savepoint), its queries.

    Raises:
        CheckpointError: it is neither, or is damaged.
    """
    if is_checkpoint(path):
        kept = open_checkpoint(path)
        return kept.job_id, kept.checkpoint_id, kept.queries
    savepoint = open_savepoint(path)
    return JobID(savepoint.job.id), 0, tuple(query.snapshot for query in savepoint.queries)


def _take_away(part: Path) -> None:
    """Remove a directory that another process may be writing to, or about to rename: first its name, in one step."""
    gone = part.with_name(f"{part.name}.{os.urandom(4).hex()}")
    try:
        part.rename(gone)
    except FileNotFoundError:
        return
    _remove(gone)


def _remove_uploaded(made: Path, place: str) -> None:
    """Remove the remote files of an attempt. Those that stay are not a savepoint, because they have no manifest."""
    with contextlib.suppress(SavepointError):
        remove_files(made, place)


def _remove(directory: Path) -> None:
    """Remove as much as possible: the rest is hidden, and is not a savepoint."""
    shutil.rmtree(directory, ignore_errors=True)
