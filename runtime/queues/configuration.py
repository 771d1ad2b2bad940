"""Queues and limits, as the file of ``queues.file`` sets them. Pure, except `QueuesFile`, which reads the file.

::

    half-life: 1 h                # slot-seconds of an hour ago count half
    queues:
      etl: {weight: 3, groups: [data], slots: 6}
      urgent: {priority: 10, users: [ada], waiting-jobs: 5}
    groups:
      data: {members: [ada, bob], running-jobs: 8, memory-mb: 16384}
    users:
      ada: {slots: 4, cpus: 6}
    each-user: {slots: 2, submissions-per-minute: 30}
    each-task: {memory-mb: 2048, cpus: 1}    # of a job that does not say what its tasks take

JSON is YAML too. There is always a queue ``default``, for everybody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from conf.options import JobOptions
from conf.values import Duration

DEFAULT_QUEUE = "default"
DEFAULT_HALF_LIFE_S = 3600.0
MOST_BYTES = 1024 * 1024
MOST_PRIORITY = 1_000_000
MOST_WEIGHT = 1_000_000
MOST_OF_A_LIMIT = 1_000_000_000
MB = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")
_LIMITS = {"slots": 1, "running-jobs": 1, "waiting-jobs": 0, "submissions-per-minute": 1, "memory-mb": 1, "blob-mb": 1}
"""The limits that are whole numbers, each with its lowest value."""
_KEYS = (*_LIMITS, "cpus")
_HALF_LIFE = Duration("1 h", minimum=1.0)


class QueuesError(ValueError):
    """The file of queues is missing or wrong; the message names the place, the cause and the remedy, on one line."""


class QueueRefusedError(Exception):
    """A job names a queue that does not exist, or that its user may not use; the message says it on one line."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a user, a group or a queue; None is no limit.

    Args:
        slots: most slots that its jobs hold at a time.
        running_jobs: most jobs that hold a slot at a time.
        waiting_jobs: most jobs that hold no slot; a further submission is refused.
        submissions_per_minute: most jobs that are accepted within 60 seconds.
        memory_mb: most memory of the tasks in the slots that its jobs hold, in MB of 1024 * 1024 bytes.
        cpus: most processors of these tasks.
        blob_mb: most MB of the blobs with the files of jobs that are not over; a further submission is refused.
    """

    slots: int | None = None
    running_jobs: int | None = None
    waiting_jobs: int | None = None
    submissions_per_minute: int | None = None
    memory_mb: int | None = None
    cpus: Decimal | None = None
    blob_mb: int | None = None

    def over(self, base: Limits) -> Limits:
        """Return these limits, and those of *base* where these have none."""
        mine = {each.name: getattr(self, each.name) for each in fields(self)}
        return Limits(**{name: getattr(base, name) if value is None else value for name, value in mine.items()})


@dataclass(frozen=True, slots=True)
class Demand:
    """Memory and processors that each task of a job takes while it holds a slot.

    Args:
        memory_mb: MB of 1024 * 1024 bytes.
        cpus: processors; decimal, so that sums are exact.
    """

    memory_mb: int = 0
    cpus: Decimal = Decimal()


@dataclass(frozen=True, slots=True)
class Asked:
    """Memory and processors that each task of a job asks for, None if the job does not say; and bytes of its blobs.

    Args:
        memory_mb: ``job.task.memory``, or the ``memory`` of the job's largest vertex if that is more.
        cpus: ``job.task.cpus``.
        blob_bytes: of the blobs with its files.
    """

    memory_mb: int | None = None
    cpus: Decimal | None = None
    blob_bytes: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, str], vertex_bytes: int = 0, blob_bytes: int = 0) -> Asked:
        """Return what a job asks for.

        Args:
            settings: of the job; they are checked already.
            vertex_bytes: ``memory`` of its largest vertex; 0 for none.
            blob_bytes: of its blobs.
        """
        memory, cpus = JobOptions.TASK_MEMORY, JobOptions.TASK_CPUS
        size = memory.value_type.parse(settings[memory.key]) if memory.key in settings else 0
        number = cpus.value_type.parse(settings[cpus.key]) if cpus.key in settings else None
        memory_mb = math.ceil(max(size, vertex_bytes) / MB) or None
        return cls(memory_mb, None if number is None else _decimal(number), blob_bytes)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue.

    Args:
        name: of the queue.
        weight: its share of the slots among queues of the same priority; twice the weight is twice the share.
        priority: queues of a higher one are served first.
        users: may use it, beside the members of *groups*. With neither, everybody may.
        groups: whose members may use it.
        limits: of all its jobs together.
    """

    name: str
    weight: float = 1.0
    priority: int = 0
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def is_open(self) -> bool:
        """Return whether everybody may use it."""
        return not self.users and not self.groups


@dataclass(frozen=True, slots=True)
class Group:
    """A group of users, with the limits of all its members together."""

    name: str
    members: tuple[str, ...]
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Scope:
    """A user, group or queue whose limits a job counts for.

    Args:
        kind: ``user``, ``group`` or ``queue``.
        name: of it.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Member:
    """A job's place in the queues: its user (empty for none), and its queue."""

    user: str
    queue: str


@dataclass(frozen=True, slots=True)
class Queues:
    """All queues and limits. The defaults are those without a file: one queue for everybody, and no limit.

    Args:
        queues: in the order of the file; one of them is `DEFAULT_QUEUE`.
        groups: by name.
        users: limits of single users, by name.
        each_user: limits of each user, where *users* sets none.
        half_life_s: seconds after which a slot-second counts half.
        each_task: what a task takes whose job does not say it.
        is_set: whether a file sets them; else requests are served in the order of their jobs' priorities alone.
    """

    queues: tuple[Queue, ...] = (Queue(DEFAULT_QUEUE),)
    groups: Mapping[str, Group] = field(default_factory=dict)
    users: Mapping[str, Limits] = field(default_factory=dict)
    each_user: Limits = Limits()
    half_life_s: float = DEFAULT_HALF_LIFE_S
    each_task: Demand = Demand()
    is_set: bool = False

    @property
    def limits_sizes(self) -> bool:
        """Return whether any memory or processors are limited."""
        every = [self.each_user, *self.users.values()]
        every += [group.limits for group in self.groups.values()]
        every += [queue.limits for queue in self.queues]
        return any(limits.memory_mb is not None or limits.cpus is not None for limits in every)

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, or else the default one."""
        found = {queue.name: queue for queue in self.queues}
        return found.get(name, found[DEFAULT_QUEUE])

    def groups_of(self, user: str) -> list[Group]:
        """Return the groups of a user, in the order of the file; the empty name is in none."""
        return [group for group in self.groups.values() if user and user in group.members]

    def may_use(self, user: str, queue: Queue) -> bool:
        """Return whether a user may use a queue."""
        return queue.is_open or self._is_named(user, queue)

    def _is_named(self, user: str, queue: Queue) -> bool:
        return user in queue.users or any(group.name in queue.groups for group in self.groups_of(user))

    def queue_of(self, user: str, wanted: str) -> Queue:
        """Return the queue of a user's job.

        Without a request for one, it is the first queue that names the user or one of their groups, or else the
        default one.

        Args:
            user: name of the job's owner; empty if it has none.
            wanted: name of the queue that the job asks for; empty for none.

        Raises:
            QueueRefusedError: there is no such queue, or the user may not use it.
        """
        if not wanted:
            return next((queue for queue in self.queues if self._is_named(user, queue)), self.queue(DEFAULT_QUEUE))
        allowed = [queue for queue in self.queues if self.may_use(user, queue)]
        for queue in allowed:
            if queue.name == wanted:
                return queue
        there = "may not be used by " + (f"user {user}" if user else "a job without a user")
        problem = there if any(queue.name == wanted for queue in self.queues) else "does not exist"
        raise QueueRefusedError(
            f"the queue {wanted[:64]!r} {problem}; job.queue can be {', '.join(queue.name for queue in allowed)}"
        )

    def member(self, user: str, wanted: str) -> Member:
        """Return user and queue of a job that was accepted. If it may not use its queue any more, it is the default."""
        try:
            return Member(user, self.queue_of(user, wanted).name)
        except QueueRefusedError:
            return Member(user, DEFAULT_QUEUE)

    def limits_of(self, scope: Scope) -> Limits:
        """Return the limits of a user, group or queue."""
        if scope.kind == "user":
            return self.users.get(scope.name, Limits()).over(self.each_user)
        if scope.kind == "group":
            return self.groups[scope.name].limits if scope.name in self.groups else Limits()
        return self.queue(scope.name).limits

    def demand(self, asked: Asked) -> Demand:
        """Return what each task of a job takes."""
        memory_mb = self.each_task.memory_mb if asked.memory_mb is None else asked.memory_mb
        return Demand(memory_mb, self.each_task.cpus if asked.cpus is None else asked.cpus)

    def check_demand(self, member: Member, demand: Demand) -> None:
        """Check that the limits of a job's user, groups and queue can ever give what one task of it takes.

        Raises:
            QueueRefusedError: one of them cannot.
        """
        for scope in self.scopes_of(member.user, member.queue):
            limits = self.limits_of(scope)
            if limits.memory_mb is not None and demand.memory_mb > limits.memory_mb:
                raise QueueRefusedError(
                    f"each of its tasks takes {demand.memory_mb} MB of memory, and {scope} may use {limits.memory_mb} "
                    f"MB in total; set {JobOptions.TASK_MEMORY.key} to less"
                )
            if limits.cpus is not None and demand.cpus > limits.cpus:
                raise QueueRefusedError(
                    f"each of its tasks takes {cpus_text(demand.cpus)} CPUs, and {scope} may use "
                    f"{cpus_text(limits.cpus)} in total; set {JobOptions.TASK_CPUS.key} to less"
                )

    def check_blobs(self, scopes: Iterable[Scope], blob_bytes: int, blobs_text: str = "") -> None:
        """Check that the limits of a job's user, groups and queue can ever give what its blobs take.

        Args:
            scopes: all whose limits count.
            blob_bytes: of the job.
            blobs_text: names the blobs (`runtime.jobgraph.job_graph.files_text`); empty if they are not known here.

        Raises:
            QueueRefusedError: one of them cannot.
        """
        for scope in scopes:
            most = self.limits_of(scope).blob_mb
            if most is not None and blob_bytes > most * MB:
                raise QueueRefusedError(
                    f"its files have {mb(blob_bytes)} MB, and {scope} may hold {most} MB of blobs; ship less, or put "
                    f"large files where its tasks can read them{with_files(blobs_text)}"
                )

    def scopes_of(self, user: str, queue: str) -> tuple[Scope, ...]:
        """Return all whose limits a job counts for: its user, their groups, its queue. No user is the empty name."""
        return (*self.scopes_of_user(user), Scope("queue", queue))

    def scopes_of_user(self, user: str) -> tuple[Scope, ...]:
        """Return those of `scopes_of` that do not depend on the queue: a user and their groups."""
        own = [Scope("user", user)] if user else []
        return (*own, *(Scope("group", group.name) for group in self.groups_of(user)))


def _decimal(number: float) -> Decimal:
    return Decimal(f"{number:.3f}")


def with_files(blobs_text: str) -> str:
    """Return the end of a refusal, with the text that names the blobs if there is one."""
    return f"; {blobs_text}" if blobs_text else ""


def mb(size: int) -> int:
    """Return bytes as MB, rounded up."""
    return math.ceil(size / MB)


def cpus_text(cpus: Decimal) -> str:
    """Return a number of processors as a text without needless zeros."""
    return f"{cpus.normalize():f}"


def parse_queues(text: str, name: str) -> Queues:
    """Return the queues that a file sets.

    Args:
        text: the file.
        name: the file's name, for errors.

    Raises:
        QueuesError: it is not YAML, or has an unknown key or a wrong value.
    """
    root = _Part(_load(text, name), name, "")
    root.only("queues", "groups", "users", "each-user", "each-task", "half-life")
    groups = {
        group: Group(group, part.names("members"), part.only("members", *_KEYS).limits())
        for group, part in root.parts("groups").items()
    }
    queues = [_queue(queue, part, groups) for queue, part in root.parts("queues").items()]
    if all(queue.name != DEFAULT_QUEUE for queue in queues):
        queues.append(Queue(DEFAULT_QUEUE))
    for queue in queues:
        if queue.name == DEFAULT_QUEUE and not queue.is_open:
            raise QueuesError(
                f"{name}: queues.{DEFAULT_QUEUE}: this queue is for all users; remove users and groups from it, or "
                "limit it with slots"
            )
    users = {user: part.only(*_KEYS).limits() for user, part in root.parts("users").items()}
    each = root.part("each-user").only(*_KEYS).limits()
    of_task = root.part("each-task").only("memory-mb", "cpus").limits()
    every = [each, *users.values(), *(group.limits for group in groups.values()), *(queue.limits for queue in queues)]
    for key, name_of in (("memory-mb", "memory_mb"), ("cpus", "cpus")):
        if getattr(of_task, name_of) is None and any(getattr(limits, name_of) is not None for limits in every):
            raise root.error(
                f"each-task.{key}",
                f"there are limits of {key}; set here what a task takes whose job does not ask for any",
            )
    half_life = root.given("half-life")
    try:
        half_life_s = DEFAULT_HALF_LIFE_S if half_life is None else _HALF_LIFE.parse(str(half_life))
    except ValueError:
        raise root.error("half-life", f"{half_life!r} is not a time; write {_HALF_LIFE.expected}") from None
    each_task = Demand(of_task.memory_mb or 0, of_task.cpus or Decimal())
    return Queues(tuple(queues), groups, users, each, half_life_s, each_task, True)


def _queue(name: str, part: _Part, groups: Collection[str]) -> Queue:
    part.only("weight", "priority", "users", "groups", *_KEYS)
    weight = part.number("weight", 1.0)
    priority = part.whole("priority", -MOST_PRIORITY, MOST_PRIORITY)
    of_groups = part.names("groups")
    for group in of_groups:
        if group not in groups:
            there = f"there are {', '.join(groups)}" if groups else "there are none"
            raise part.error("groups", f"there is no group {group!r}: {there}; add it to the section groups")
    return Queue(name, weight, priority or 0, part.names("users"), of_groups, part.limits())


class _NoDuplicates(yaml.SafeLoader):
    """YAML's plain values; a key given twice is an error, and so is an alias."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {str(key.value)[:64]!r} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _load(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_NoDuplicates)  # noqa: S506  # it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise QueuesError(f"{place}: {error.problem or error.context}; fix this line") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise QueuesError(f"{name}: not valid YAML: {problem}; save the file as YAML or JSON in UTF-8") from None


@dataclass(frozen=True, slots=True)
class _Part:
    """A map of the file: its content, the file's name, and its path in the file."""

    content: Any
    file: str
    path: str

    def error(self, key: str, problem: str) -> QueuesError:
        place = ".".join(filter(None, (self.path, key)))
        return QueuesError(f"{self.file}: {place}: {problem}" if place else f"{self.file}: {problem}")

    def map(self) -> dict[str, Any]:
        if self.content is None:
            return {}
        if not isinstance(self.content, dict):
            raise self.error("", f"{str(self.content)[:64]!r} is not a map; write `key: value` on each line")
        for key in self.content:
            if not isinstance(key, str):
                raise self.error("", f"the key {str(key)[:64]!r} is not text; put it in quotation marks")
        return self.content

    def only(self, *known: str) -> _Part:
        for key in self.map():
            if key not in known:
                raise self.error(key[:64], f"there is no such key here; there are {', '.join(known)}")
        return self

    def given(self, key: str) -> Any:
        return self.map().get(key)

    def part(self, key: str) -> _Part:
        return _Part(self.given(key), self.file, ".".join(filter(None, (self.path, key))))

    def parts(self, key: str) -> dict[str, _Part]:
        section = self.part(key)
        for name in section.map():
            if _NAME.fullmatch(name) is None:
                raise section.error("", f"{name[:80]!r} is not a name; a name has at most 64 letters, digits and ._@-")
        return {name: section.part(name) for name in section.map()}

    def names(self, key: str) -> tuple[str, ...]:
        found = self.given(key)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(item, str) and _NAME.fullmatch(item) for item in found):
            raise self.error(key, f"{str(found)[:64]!r} is not a list of names; write [ada, bob]")
        return tuple(dict.fromkeys(found))

    def whole(self, key: str, least: int, most: int) -> int | None:
        found = self.given(key)
        if found is None and key not in self.map():
            return None
        if type(found) is not int or not least <= found <= most:
            raise self.error(key, f"{str(found)[:64]!r} must be a whole number from {least} to {most}; correct it")
        return found

    def number(self, key: str, default: float) -> float:
        found = self.map().get(key, default)
        if type(found) not in (int, float) or not 0.001 <= found <= MOST_WEIGHT:
            raise self.error(key, f"{str(found)[:64]!r} must be a number from 0.001 to {MOST_WEIGHT}; correct it")
        return float(found)

    def limits(self) -> Limits:
        whole = {key.replace("-", "_"): self.whole(key, low, MOST_OF_A_LIMIT) for key, low in _LIMITS.items()}
        cpus = _decimal(self.number("cpus", 1.0)) if "cpus" in self.map() else None
        return Limits(**whole, cpus=cpus)


class QueuesFile:
    """The file of ``queues.file``, read again when it has changed. Blocking: call it from an I/O thread.

    Args:
        path: the file; None if the option is not set, which sets no limits.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._queues: Queues | None = Queues() if path is None else None
        self._problem = ""

    @property
    def is_set(self) -> bool:
        """Return whether there is a file."""
        return self._path is not None

    @property
    def problem(self) -> str:
        """Why the content of the file is not in use, on one line; empty if it is."""
        return self._problem

    def read(self) -> Queues:
        """Return the queues of the file, or of its last valid content while it is invalid.

        Raises:
            QueuesError: the file is missing or invalid, and had no valid content since the start.
        """
        if self._path is not None:
            try:
                found = self._path.stat()
                state = found.st_mtime_ns, found.st_size, found.st_ino
                if state != self._state:
                    self._queues = self._parsed(self._path)
                    self._state, self._problem = state, ""
            except OSError as error:
                self._state = None
                self._problem = f"{self._path}: {error.strerror or error}; create the file, or unset queues.file"
            except QueuesError as error:
                self._state = None
                self._problem = str(error)
        if self._queues is None:
            raise QueuesError(self._problem)
        return self._queues

    @staticmethod
    def _parsed(path: Path) -> Queues:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise QueuesError(f"{path}: the file has more than {MOST_BYTES} bytes; remove some of it")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise QueuesError(f"{path}: the file is not UTF-8 text; save it as such") from None
        return parse_queues(text, str(path))
