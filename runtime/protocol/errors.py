"""Errors of the components that reach their askers as themselves.

GatewayError
├── JobNotFoundError             no job of that id is running or remembered
├── JobAlreadyTerminatedError    the job is over: there is nothing to cancel
├── JobVertexNotFoundError       the job has no task of that id
├── JobSubmissionError           the job cannot be accepted
├── JobNotReachableError         the job's JobMaster does not answer at present
├── UnknownTaskExecutorError     the TaskExecutor's registration has been ended
├── RegistrationRejectedError    the TaskExecutor cannot work for this cluster
├── UnknownJobManagerError       the job's JobMaster is not registered
├── SlotOccupiedError            the slot belongs to another allocation
├── SlotNotAllocatedError        the slot is not this job's (any more)
├── DeploymentNotFoundError      a part of a deployment travels as a blob, which is not to be found
├── UnknownOperationError        no such savepoint or checkpoint was asked for here
├── NoSuchLogError               what was asked for is no log
├── NoSuchTaskError              no process of that attempt runs here
├── TaskNotRespondingError       a task process does not answer
└── ShuttingDownError            the cluster is about to be shut down

The errors of a bad job graph (`runtime.jobgraph.errors`) travel as themselves too.
"""

from __future__ import annotations

from actors.errors import AskTimeout, EndpointStateError, FencingError, RecipientUnreachable, UnknownActor
from actors.rpc.codec import wire_error
from runtime.jobgraph import errors as jobgraph_errors


class GatewayError(Exception):
    """Base of the errors of the components."""


@wire_error
class JobNotFoundError(GatewayError):
    """No job of that id is running or remembered."""


@wire_error
class JobAlreadyTerminatedError(GatewayError):
    """The job is over: there is nothing to cancel."""


@wire_error
class JobVertexNotFoundError(GatewayError):
    """The job has no task of that id."""


@wire_error
class JobSubmissionError(GatewayError):
    """The job cannot be accepted."""


@wire_error
class JobNotReachableError(GatewayError):
    """The job's JobMaster does not answer at present; it is being started or replaced."""


@wire_error
class UnknownTaskExecutorError(GatewayError):
    """The TaskExecutor's registration has been ended; it has to register again."""


@wire_error
class RegistrationRejectedError(GatewayError):
    """The TaskExecutor cannot work for this cluster as it is: its version, its name or its file system do not fit."""


@wire_error
class UnknownJobManagerError(GatewayError):
    """The job's JobMaster is not registered; it has to register again."""


@wire_error
class SlotOccupiedError(GatewayError):
    """The slot belongs to another allocation."""


@wire_error
class SlotNotAllocatedError(GatewayError):
    """The slot is not this job's (any more)."""


@wire_error
class UnknownOperationError(GatewayError):
    """No savepoint or checkpoint was asked for under that trigger id, or it has been forgotten; ask for it again."""


@wire_error
class NoSuchLogError(GatewayError):
    """What was asked for is no log."""


@wire_error
class NoSuchTaskError(GatewayError):
    """No process of that attempt runs here."""


@wire_error
class TaskNotRespondingError(GatewayError):
    """A task process does not answer."""


@wire_error
class ShuttingDownError(GatewayError):
    """The cluster is about to be shut down; nothing new is begun."""


@wire_error
class DeploymentNotFoundError(GatewayError):
    """A part of a deployment travels as a blob, which the TaskExecutor does not find."""


PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout, EndpointStateError, JobNotReachableError)
"""Errors of a leader that changes, starts or stops: look it up and ask again. Whether the question took effect is
unknown, so it has to be idempotent."""

for _error in vars(jobgraph_errors).values():
    if isinstance(_error, type) and issubclass(_error, jobgraph_errors.JobGraphError):
        wire_error(_error)
