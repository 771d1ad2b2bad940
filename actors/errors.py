"""The exception tree of the actor and RPC layer.

ActorError
├── AddressError               an actor address cannot be parsed
├── WireError                  a peer sent bytes that are not the protocol
│   ├── FrameTooLarge          a frame exceeds ``rpc.frame-size``
│   └── ProtocolVersionMismatch
├── AuthenticationError        the peer does not hold the cluster secret
├── EndpointStateError         a call to an endpoint that is not running
├── RecipientUnreachable       nothing listens at the address, or the connection broke
├── UnknownActor               the process is there, the named actor is not
├── FencingError               the call carried a stale fencing token
├── AskTimeout                 no reply within the time allowed: the outcome is unknown
├── RemoteError                the handler raised an exception of a type that this side does not know
└── ActorSystemError           the process system cannot start or stop an actor
"""

from __future__ import annotations


class ActorError(Exception):
    """Base of every error raised by the actor and RPC layer."""


class AddressError(ActorError, ValueError):
    """An actor address cannot be parsed."""


class WireError(ActorError):
    """A peer sent bytes that are not the protocol."""


class FrameTooLarge(WireError):
    """A frame exceeds the agreed maximum (``rpc.frame-size``)."""


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


class UnknownActor(ActorError, LookupError):
    """The process answered, but no actor of that name lives there."""


class FencingError(ActorError):
    """The call carried a stale fencing token (Flink's ``FencingTokenException``)."""


class AskTimeout(ActorError, TimeoutError):
    """No reply came within the time allowed; whether the call took effect is unknown."""


class RemoteError(ActorError):
    """The remote handler raised an exception whose type this side does not know.

    Args:
        type_name: qualified name of the exception's type at the remote side.
        message: its text.
        remote_traceback: the formatted traceback of the remote side, or "".
    """

    def __init__(self, type_name: str, message: str, remote_traceback: str = "") -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback


class ActorSystemError(ActorError):
    """The process system could not start or stop an actor."""
