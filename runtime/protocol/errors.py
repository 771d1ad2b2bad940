"""Errors of the components that callers receive with their own type.

    GatewayError
    ├── JobNotFoundError             no job of that id is running or remembered
    ├── JobAlreadyTerminatedError    the job is over: there is nothing to cancel
    ├── RescaleInProgressError       the job is being rescaled, or upgraded, already
    ├── JobVertexNotFoundError       the job has no task of that id
    ├── JobSubmissionError           the job cannot be accepted
    │   ├── SubmissionLimitError         a limit of waiting jobs, or of submissions per minute, is reached
    │   ├── QueueRejectedError           the job names a queue that it may not use
    │   └── JobIDRejectedError           the job has the id of another user's job
    ├── JobNotReachableError         the job's JobMaster does not answer at present
    ├── UnknownTaskExecutorError     the TaskExecutor's registration has been ended
    ├── RegistrationRejectedError    the TaskExecutor cannot work for this cluster
    ├── UnknownJobManagerError       the job's JobMaster is not registered
    ├── SlotOccupiedError            the slot belongs to another allocation
    ├── SlotNotAllocatedError        the slot is not this job's (any more)
    ├── DeploymentNotFoundError      a part of a deployment travels as a blob, which was not found
    ├── UnknownOperationError        no savepoint or checkpoint of that trigger id is known here
    ├── FeatureLevelHeldError        a component does not support a higher feature level
    ├── NoSuchLogError               the requested file is not a log
    ├── NoSuchTaskError              no process of that attempt runs here
    ├── NoSuchSessionError           the job has no open Spark Connect session here
    ├── TaskNotRespondingError       a task process does not answer
    ├── HandOverRefusedError         the TaskExecutor cannot hand its tasks over at present
    ├── IdentityRejectedError        a user or token cannot be added, changed or removed as requested
    │   └── IdentitiesUnreachableError   the store of users does not answer
    └── ShuttingDownError            the cluster is about to be shut down

The errors of an invalid job graph (`runtime.jobgraph.errors`) also reach callers with their own type.
"""

from __future__ import annotations

import re
from typing import Self

from actors.errors import AskTimeout, EndpointStateError, FencingError, RecipientUnreachable, UnknownActor
from actors.rpc.codec import wire_error
from runtime.jobgraph import errors as jobgraph_errors

_RETRY_AFTER = re.compile(r"; submit again in ([0-9]{1,9}) s\Z")


class GatewayError(Exception):
    """Base of the errors of the components."""


@wire_error
class JobNotFoundError(GatewayError):
    """No job of that id is running or remembered."""


@wire_error
class JobAlreadyTerminatedError(GatewayError):
    """The job is over: there is nothing to cancel."""


@wire_error
class RescaleInProgressError(GatewayError):
    """The job is being rescaled, or upgraded, already."""


@wire_error
class JobVertexNotFoundError(GatewayError):
    """The job has no task of that id."""


@wire_error
class JobSubmissionError(GatewayError):
    """The job cannot be accepted."""

    def with_more(self, text: str) -> Self:
        """Return the same error with more to say at its end."""
        return type(self)(f"{self}; {text}")


@wire_error
class SubmissionLimitError(JobSubmissionError):
    """A limit of waiting jobs, or of submissions per minute, is reached; submit again later."""

    @classmethod
    def of(cls, problem: str, retry_after_s: int) -> SubmissionLimitError:
        """Return the error of a submission that may be repeated after that many seconds."""
        return cls(f"{problem}; submit again in {retry_after_s} s")

    @property
    def retry_after_s(self) -> int | None:
        """Seconds after which to submit again. They travel in the message, as all that an error has to say."""
        found = _RETRY_AFTER.search(str(self))
        return None if found is None else int(found[1])

    def with_more(self, text: str) -> Self:
        """Return the same error with more to say before its seconds."""
        found = _RETRY_AFTER.search(str(self))
        if found is None:
            return super().with_more(text)
        return type(self)(f"{str(self)[: found.start()]}; {text}{found[0]}")


@wire_error
class QueueRejectedError(JobSubmissionError):
    """The job names a queue that does not exist, or that its user may not use."""


@wire_error
class JobIDRejectedError(JobSubmissionError):
    """The job has the id of a job of another user, which the cluster has forgotten and the history shows."""


@wire_error
class JobNotReachableError(GatewayError):
    """The job's JobMaster does not answer at present; it is being started or replaced."""


@wire_error
class UnknownTaskExecutorError(GatewayError):
    """The TaskExecutor's registration has been ended; it has to register again."""


@wire_error
class RegistrationRejectedError(GatewayError):
    """The TaskExecutor cannot work for this cluster: its version, its name or its shared directory does not fit."""


@wire_error
class UnknownJobManagerError(GatewayError):
    """The job's JobMaster is not registered; it has to register again."""


@wire_error
class SlotOccupiedError(GatewayError):
    """The slot belongs to another allocation, or the allocation has another slot."""


@wire_error
class SlotNotAllocatedError(GatewayError):
    """The slot is not this job's (any more)."""


@wire_error
class UnknownOperationError(GatewayError):
    """No savepoint or checkpoint is known under that trigger id; trigger it again."""


@wire_error
class FeatureLevelHeldError(GatewayError):
    """The cluster's feature level was not raised: a component does not support a higher one, or does not answer."""

    remedy = "upgrade or stop that component, then run `understudy cluster finalize` again"


@wire_error
class NoSuchLogError(GatewayError):
    """The requested file is not a log."""


@wire_error
class NoSuchTaskError(GatewayError):
    """No process of that attempt runs here."""


@wire_error
class NoSuchSessionError(GatewayError):
    """The job has no Spark Connect session here, or it is not open: not yet, or not any more."""


@wire_error
class TaskNotRespondingError(GatewayError):
    """A task process does not answer."""


@wire_error
class HandOverRefusedError(GatewayError):
    """The TaskExecutor cannot hand its tasks over at present; it keeps them."""


@wire_error
class IdentityRejectedError(GatewayError):
    """A user or token cannot be added, changed or removed as requested."""


@wire_error
class IdentitiesUnreachableError(IdentityRejectedError):
    """The store of users does not answer. A change may or may not have been made: repeat the call."""


@wire_error
class ShuttingDownError(GatewayError):
    """The cluster is about to be shut down, and accepts nothing new."""


@wire_error
class DeploymentNotFoundError(GatewayError):
    """The TaskExecutor does not find a blob that holds a part of a deployment."""


PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout, EndpointStateError, JobNotReachableError)
"""Errors of a leader that changes, starts or stops: look the leader up and repeat the call. Calls have to be
idempotent, since it is unknown whether the first one took effect."""

for _error in vars(jobgraph_errors).values():
    if isinstance(_error, type) and issubclass(_error, jobgraph_errors.JobGraphError):
        wire_error(_error)
