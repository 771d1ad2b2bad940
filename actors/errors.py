"""The exception tree of the actor and RPC layer.

Every error derives from the one above it::

    ActorError
    ├── AddressError               an actor address cannot be parsed
    ├── WireError                  a peer sent bytes that are not the protocol
    │   ├── FrameTooLarge          a frame exceeds ``rpc.frame-size``
    │   │   └── OffloadError       a value that travels apart could not be uploaded or fetched
    │   └── ProtocolVersionMismatch
    ├── AuthenticationError        the peer does not hold the cluster secret
    ├── EndpointStateError         a call to an endpoint that is not running
    ├── RecipientUnreachable       nothing listens at the address, or the connection broke
    │   ├── ClientClosed           the caller's own client was closed
    │   ├── RecipientTerminated    the actor has stopped, or there never was one
    │   └── Quarantined            the other system was declared dead; only a new incarnation of it is reached
    ├── UnknownActor               the process is there, the named actor is not
    ├── FencingError               the call carried a stale fencing token
    ├── AskTimeout                 no reply within the time allowed: the outcome is unknown
    ├── InvalidActorName           a child's name is taken or malformed
    ├── ActorNotFound              a selection matches no actor
    ├── MailboxFull                a bounded mailbox refuses a message
    ├── StashOverflow              more messages were stashed than the stash holds
    ├── SerializationError         a message cannot be sent to another process
    ├── UnhandledMessageError      the actor does not handle the message of an ask
    ├── ActorInitializationError   an actor's constructor or `pre_start` failed
    ├── ActorKilled                an actor was sent `Kill`
    ├── DeathPactError             an actor watches another and does not handle its `Terminated`
    ├── ActorProcessDied           the process of a child has ended
    ├── RemoteError                the handler raised an exception of a type that this side does not know
    └── ActorSystemError           the process system cannot start or stop an actor
"""

from __future__ import annotations

import re

_SEEN = re.compile(r"\(epoch (\d{1,18}) was seen\)$")


class ActorError(Exception):
    """Base of every error raised by the actor and RPC layer."""


class AddressError(ActorError, ValueError):
    """An actor address cannot be parsed."""


class WireError(ActorError):
    """A peer sent bytes that are not the protocol."""


class FrameTooLarge(WireError):
    """A frame exceeds the agreed maximum (``rpc.frame-size``)."""


class OffloadError(FrameTooLarge):
    """A value larger than ``rpc.frame-size`` travels apart from its frame; it could not be uploaded or fetched."""


class ProtocolVersionMismatch(WireError):
    """The peer speaks another version of the protocol."""


class AuthenticationError(ActorError):
    """The peer does not hold the cluster secret."""


class EndpointStateError(ActorError):
    """A call reached an endpoint that is not running (not started yet, or already stopped)."""


class RecipientUnreachable(ActorError, ConnectionError):
    """Nothing listens at the address, or the connection broke before the reply came.

    The outcome of an ask that was already sent is unknown (Flink's ``RecipientUnreachableException``).
    """


class ClientClosed(RecipientUnreachable):
    """The caller's own client was closed, so that a repeated call is of no use."""

    def __init__(self, message: str = "the client was closed") -> None:
        super().__init__(message)


class UnknownActor(ActorError, LookupError):
    """The process answered, but no actor of that name lives there."""


class FencingError(ActorError):
    """The call carried a stale fencing token (Flink's ``FencingTokenException``).

    Args:
        message: text for people.
        epoch: highest epoch of the component that the rejecting process has seen; given when the caller's own
            leadership is stale. It travels as part of the message, like everything of an error.
    """

    def __init__(self, message: str, epoch: int | None = None) -> None:
        super().__init__(message if epoch is None else f"{message} (epoch {epoch} was seen)")

    @property
    def epoch(self) -> int | None:
        """The highest epoch that the rejecting process has seen; None when the message does not contain it."""
        found = _SEEN.search(str(self))
        return None if found is None else int(found[1])


class AskTimeout(ActorError, TimeoutError):
    """No reply came within the time allowed; whether the call took effect is unknown."""


class RemoteError(ActorError):
    """The remote handler raised an exception whose type this side does not know.

    Args:
        type_name: qualified name of the exception's type at the remote side.
        message: its text.
        remote_traceback: the formatted traceback of the remote side, or "".
        kinds: names of the exception's type and its bases, ``module:Qualname``, the most special first; default: the
            type's own name and those of `Exception` and `BaseException`.
    """

    def __init__(self, type_name: str, message: str, remote_traceback: str = "", kinds: tuple[str, ...] = ()) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback
        self.kinds = kinds or (type_name, "builtins:Exception", "builtins:BaseException")

    def was_a(self, kind: type[BaseException]) -> bool:
        """Return whether the exception was of the class *kind* or of one derived from it, compared by name."""
        return f"{kind.__module__}:{kind.__qualname__}" in self.kinds


class ActorSystemError(ActorError):
    """The process system could not start or stop an actor."""


class RecipientTerminated(RecipientUnreachable):
    """The actor that was asked has stopped, or never existed."""


class Quarantined(RecipientUnreachable):
    """The other system was declared dead and stays unreachable until it is restarted (Akka's quarantine)."""


class InvalidActorName(ActorError, ValueError):
    """A child's name is taken, or is not a path element (Akka's ``InvalidActorNameException``)."""


class ActorNotFound(ActorError, LookupError):
    """A selection matches no actor (Akka's ``ActorNotFound``)."""


class MailboxFull(ActorError):
    """A bounded mailbox rejects a message because its overflow policy is to fail the sender."""


class StashOverflow(ActorError):
    """More messages were stashed than the stash holds (Akka's ``StashOverflowException``)."""


class SerializationError(ActorError, TypeError):
    """A message cannot be sent to another process, or bytes from one cannot be decoded."""


class UnhandledMessageError(ActorError):
    """The actor does not handle the message of an ask."""


class ActorInitializationError(ActorError):
    """An actor's constructor or its `pre_start` failed (Akka's ``ActorInitializationException``)."""


class ActorKilled(ActorError):
    """An actor was sent `Kill` (Akka's ``ActorKilledException``)."""


class DeathPactError(ActorError):
    """An actor watches another and did not handle its `Terminated` (Akka's ``DeathPactException``)."""


class ActorProcessDied(ActorError):
    """The process that hosted a child has ended: killed, out of memory, or lost with its host."""


def why_unreachable(error: BaseException) -> str:
    """Return why a connection was not opened, in few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, UnicodeError):
        return "it is not a host name"
    return getattr(error, "strerror", None) or str(error)
