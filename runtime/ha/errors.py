"""The exception tree of high availability.

All are ordinary exceptions; of them, only `LeadershipLostError` is sent over RPC:

    HaError
    ├── HaUnreachableError           Redis or the master does not answer: the outcome of a write is unknown
    │   ├── RedisUnreachableError
    │   └── MasterUnreachableError
    ├── RedisAuthenticationError     the server refuses the credentials
    ├── RedisRequirementError        the server answers but must not hold leaderships (version, eviction, replica)
    ├── RedisCommandError            the server answered with an error (disk full, wrong type, ...)
    ├── RedisServerError             the embedded redis-server cannot be started or stopped
    │   ├── RedisBinaryNotFoundError
    │   ├── RedisSocketPathError     the path of its socket is too long
    │   └── RedisInUseError          another redis-server already runs there
    ├── LeadershipLostError          a write was refused: its (owner, epoch) is not the leader's any more
    ├── StateHandleError
    │   ├── StateHandleNotFoundError no such entry
    │   ├── StateHandleConflictError another write changed the entry at the same time
    │   ├── StateCorruptedError      the file is missing or is not the one that was stored
    │   └── StateWriteUnknownError   a write may or may not have taken effect
    ├── FeatureLevelUnsupportedError the cluster's feature level is not one that this release supports
    └── JobAlreadyDoneError          the job has ended and must not run again
"""

from __future__ import annotations

from actors.errors import FencingError
from actors.rpc.codec import wire_error
from runtime.feature_level import Release


class HaError(Exception):
    """Base of every error raised by the high-availability services."""


class HaUnreachableError(HaError):
    """No connection, or no reply in time; whether a write took effect is unknown.

    It is not an OSError: a caller that handles the errors of its own files must not take this for one of them.

    Args:
        message: for users.
        cause: the event, in one line.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class RedisUnreachableError(HaUnreachableError):
    """Redis does not answer.

    Args:
        where: the server, without credentials (``host:port`` or ``unix:/path``).
        cause: the event, in one line.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(
            f"Redis at {where} cannot be reached: {cause}. "
            "Start it, or set high-availability.redis.url to one that runs.",
            cause,
        )
        self.where = where


class MasterUnreachableError(HaUnreachableError):
    """The master does not answer, which keeps the latches if ``high-availability.type`` is ``none``.

    Args:
        where: its address.
        cause: the event, in one line.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(
            f"the master at {where} does not answer: {cause}. If it is lost, "
            "`understudy stop` ends the processes that it left, and `understudy start` starts a new cluster.",
            cause,
        )


class RedisAuthenticationError(HaError):
    """The server refuses the user name or the password of the URL."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"Redis at {where} refuses the credentials. Put the right password into high-availability.redis.url "
            "(redis://:PASSWORD@host:port)."
        )


class RedisRequirementError(HaError):
    """The server is reachable but cannot hold leaderships and handles."""


class RedisCommandError(HaError):
    """The server answered a command with an error; the command had no effect."""


class RedisServerError(HaError):
    """The embedded redis-server cannot be started or stopped."""


class RedisBinaryNotFoundError(RedisServerError):
    """No usable redis-server on this machine."""


class RedisSocketPathError(RedisServerError):
    """The path of the Unix socket is longer than the operating system allows."""


class RedisInUseError(RedisServerError):
    """Another redis-server already serves the directory or the socket."""


@wire_error
class LeadershipLostError(HaError, FencingError):
    """A write was refused because its term is over (Flink: the lost ``LeaderLatch`` of the writer)."""


class StateHandleError(HaError):
    """Base of the errors of the stores of state handles."""


class StateHandleNotFoundError(StateHandleError, LookupError):
    """The store has no entry of that name."""


class StateHandleConflictError(StateHandleError):
    """Another write changed the entry between the read and the write of this one."""


class StateCorruptedError(StateHandleError):
    """The file behind a handle is missing, or its size or digest is not the one that was stored."""


class StateWriteUnknownError(StateHandleError):
    """A write may or may not have taken effect; repeating it is safe."""


class JobAlreadyDoneError(HaError):
    """The job has a result and must not be run again (Flink's ``DuplicateJobSubmissionException``)."""


class FeatureLevelUnsupportedError(HaError):
    """The feature level that a cluster stores is not one that this release supports: it must leave the cluster alone.

    Args:
        level: of the cluster.
        own: this release.
    """

    def __init__(self, level: int, own: Release) -> None:
        super().__init__(
            f"the cluster has feature level {level}, and {own} supports {own.levels}: it does not work for this cluster"
        )
        later = level > own.levels.newest
        self.remedy = (
            "install the release that the other hosts run: the cluster was finalized, which ends downgrades"
            if later
            else "run `understudy cluster finalize` with the release that the cluster runs now, then upgrade again"
        )
