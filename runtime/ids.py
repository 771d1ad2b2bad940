"""Identifiers of the runtime: strings that are checked when they are made (Flink's `AbstractID` and its subclasses)."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from typing import Self

_HEX = re.compile(r"[0-9a-f]{32}")


class AbstractID(str):
    """A 128-bit identifier as 32 lower-case hexadecimal digits (Flink's `AbstractID`).

    It is a plain string on the wire and in file names, and is checked whenever one is constructed. Ids of different
    kinds with the same digits compare equal, as strings do; the type checker distinguishes them. An id with a
    ``log_field`` sets that field of a log line if it is one of the line's arguments (`actors.process.logs`).

    Raises:
        ValueError: the text is not 32 lower-case hexadecimal digits.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not isinstance(text, str) or _HEX.fullmatch(text) is None:
            raise ValueError(f"{text!r} is not a valid {cls.__name__}: it must be 32 lower-case hexadecimal digits")
        return super().__new__(cls, text)

    @classmethod
    def random(cls) -> Self:
        """Return a new id from the system's random source."""
        return cls(secrets.token_hex(16))

    @classmethod
    def from_name(cls, *names: str) -> Self:
        """Return the id of these *names*, which is a digest of them."""
        return cls(hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32])


class JobID(AbstractID):
    """A job; chosen by the client, so that a repeated submission has no effect."""

    __slots__ = ()
    log_field = "job"


class ApplicationID(AbstractID):
    """A user's program that runs in its own cluster, with all its jobs, whose ids are derived from this one."""

    __slots__ = ()


class JobVertexID(AbstractID):
    """A vertex of a JobGraph; the same for every submission of the same job (see `of`)."""

    __slots__ = ()

    @classmethod
    def of(cls, job_name: str, vertex_name: str) -> JobVertexID:
        """Return the id of a vertex by the names of its job and its own, by which results and state are found again."""
        return cls.from_name(job_name, vertex_name)


class ExecutionAttemptID(AbstractID):
    """One attempt to run a task."""

    __slots__ = ()
    log_field = "attempt"


class AllocationID(AbstractID):
    """The allocation of one slot to one job, by which ResourceManager, TaskExecutor and JobMaster identify it."""

    __slots__ = ()


class SlotRequestID(AbstractID):
    """A task's request for a slot, inside the JobMaster (between the ExecutionGraph and the SlotPool)."""

    __slots__ = ()


class InstanceID(AbstractID):
    """One registration of a TaskExecutor at the ResourceManager; a TaskExecutor that comes back has a new one."""

    __slots__ = ()


class RestartID(AbstractID):
    """One scheduled restart of the tasks of a failed region."""

    __slots__ = ()


class TriggerID(AbstractID):
    """A client's request for a savepoint or a checkpoint; repeating it has no further effect (Flink's `TriggerId`)."""

    __slots__ = ()


class ResourceID(str):
    """The name of a process that takes part in the cluster, e.g. ``tm-1`` (Flink's `ResourceID`).

    Raises:
        ValueError: the text is empty or holds white space or control characters.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not isinstance(text, str) or not text or not text.isprintable() or any(char.isspace() for char in text):
            raise ValueError(f"{text!r} is not a ResourceID: it must be printable, not empty, and without white space")
        return super().__new__(cls, text)


@dataclass(frozen=True, slots=True, order=True)
class SlotID:
    """A slot of a TaskExecutor: the executor's resource id and the slot's index, from 0."""

    resource_id: ResourceID
    index: int

    def __str__(self) -> str:
        return f"{self.resource_id}/{self.index}"
