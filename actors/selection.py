"""Selections (Akka's ``ActorSelection``): actors by path, with wildcards, in their present incarnations.

The leading elements of a selection without wildcards name one actor, its *anchor*. The message travels to the anchor.
From there it follows the remaining elements from parent to child, also into other processes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import functools
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.errors import ActorNotFound, AddressError, AskTimeout, RecipientTerminated
from actors.messages import Identify
from actors.ref import CURRENT, ActorRef, Origin
from actors.serialization import message

if TYPE_CHECKING:
    from actors.core.node import Node
    from actors.rpc.gateway import Ask

AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]

PARENT = ".."
_ADDRESS = re.compile(
    r"(akka\.tcp://([A-Za-z0-9_-]+)@(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5}))(/.*)?", re.DOTALL
)
_ELEMENT = re.compile(r"[A-Za-z0-9_.~$*?-]+")
_UID = re.compile(r"#[0-9]{1,19}$")


@message
class SelectionMessage:
    """A message on its way through a selection: the cell that receives it forwards it with `step`.

    Args:
        message: the message for the selected actors.
        elements: the remaining elements, seen from the recipient; never empty.
        wildcard_fan_out: whether an earlier wildcard matched several actors; an actor without a match is then no miss.
    """

    message: Any
    elements: tuple[str, ...]
    wildcard_fan_out: bool = False


class SelectionPath(NamedTuple):
    """A parsed selection.

    Args:
        origin: the system that it selects in; None for the system that uses it.
        absolute: whether the elements begin at the root; otherwise at the actor that uses it.
        elements: names, patterns and ``..``.
    """

    origin: Origin | None
    absolute: bool
    elements: tuple[str, ...]

    def anchored(self, base: str) -> tuple[str, tuple[str, ...]]:
        """Return the path of the anchor, and the remaining elements.

        Args:
            base: path of the actor at which a relative selection begins.
        """
        anchor = [] if self.absolute else [element for element in base.split("/") if element]
        for position, element in enumerate(self.elements):
            if is_pattern(element):
                return "/" + "/".join(anchor), self.elements[position:]
            if element != PARENT:
                anchor.append(element)
            elif anchor:  # the parent of the root is the root
                anchor.pop()
        return "/" + "/".join(anchor), ()


def parse_selection(text: str) -> SelectionPath:
    """Parse ``/user/a/*``, ``../b?``, ``child`` or ``akka.tcp://system@host:port/user/a``; a ref's ``#uid`` is ignored.

    Raises:
        AddressError: *text* has none of these forms, or an element is not a name.
    """
    address = _ADDRESS.fullmatch(text)
    origin = None
    path = text
    if address is not None:
        host, port = address[3].strip("[]"), int(address[4])
        if not 0 < port < 65536:
            raise AddressError(f"{text!r} selects no actor: {port} is not a TCP port")
        origin = Origin(address[2], host, port)
        path = _UID.sub("", address[5] or "/")
    elements = tuple(element for element in path.split("/") if element not in ("", "."))
    for element in elements:
        if not _ELEMENT.fullmatch(element):
            raise AddressError(
                f"{text!r} selects no actor: {element!r} is not a name. Forms: /user/a/*, ../b?, child, "
                "akka.tcp://<system>@<host>:<port>/user/a"
            )
    if not path:
        raise AddressError(
            "the empty text selects no actor; '.' is the actor itself, '/user/*' are all top-level actors"
        )
    return SelectionPath(origin, path.startswith("/"), elements)


def is_pattern(element: str) -> bool:
    """Return whether an element has wildcards: ``*`` for any number of characters, ``?`` for exactly one."""
    return "*" in element or "?" in element


def matches(pattern: str, name: str) -> bool:
    """Return whether *name* matches *pattern*, in O(len(pattern) * len(name)) time, also for hostile patterns."""
    at_pattern = at_name = 0
    star = resume = -1
    while at_name < len(name):
        if at_pattern < len(pattern) and pattern[at_pattern] == "*":
            star, resume = at_pattern, at_name
            at_pattern += 1
        elif at_pattern < len(pattern) and pattern[at_pattern] in ("?", name[at_name]):
            at_pattern += 1
            at_name += 1
        elif star >= 0:  # the last star takes one character more
            resume += 1
            at_pattern, at_name = star + 1, resume
        else:
            return False
    return all(character == "*" for character in pattern[at_pattern:])


class Step(NamedTuple):
    """Next recipients of a selection, seen from an actor.

    Args:
        to_parent: whether the actor's parent is the recipient.
        children: names of the children that are recipients.
        rest: the message for each: a `SelectionMessage`, or the message itself after the last element.
        missed: whether no actor matches and the sender has to learn that. The message then becomes a dead letter, and
            an `Identify` is answered without a ref.
    """

    to_parent: bool
    children: tuple[str, ...]
    rest: Any
    missed: bool


def step(selection: SelectionMessage, children: Collection[str]) -> Step:
    """Take the first element of *selection* in an actor with such children (Akka's ``deliverSelection``)."""
    element, rest = selection.elements[0], selection.elements[1:]
    to_parent = element == PARENT
    if to_parent:
        found: tuple[str, ...] = ()
    elif is_pattern(element):
        found = tuple(child for child in children if matches(element, child))
    else:
        found = (element,) if element in children else ()
    fan_out = selection.wildcard_fan_out or len(found) > 1
    message = SelectionMessage(selection.message, rest, fan_out) if rest else selection.message
    return Step(to_parent, found, message, not found and not to_parent and not fan_out)


class ActorSelection:
    """The actors that match a path; made by `actor_selection`. It looks them up again for each message.

    Args:
        node: the node that uses it.
        text: the path.
        base: the actor at which a relative path begins; it also gives the system.

    Raises:
        AddressError: *text* is not a path.
    """

    __slots__ = ("anchor", "elements", "text")

    def __init__(self, node: Node, text: str, base: ActorRef) -> None:
        parsed = parse_selection(text)
        path, self.elements = parsed.anchored(base.path)
        self.anchor: ActorRef = node.ref(path, 0, parsed.origin or base.origin)
        """The actor at the end of the path's part without wildcards."""
        self.text = text

    def tell(self, message: Any, sender: ActorRef | None = CURRENT) -> None:
        """Send *message* to all actors that match; without a match it becomes a dead letter."""
        self.anchor.tell(self._wrapped(message), sender)

    def forward(self, message: Any) -> None:
        """Send *message* to all actors that match, with the sender of the current message as its sender."""
        self.anchor.forward(self._wrapped(message))

    def resolve_one(self, timeout_s: float | None = None) -> Ask[ActorRef]:
        """Ask for the ref of a matching actor, the first one that answers.

        The ask ends in `ActorNotFound` when none answers in *timeout_s* seconds (default: the system's ask timeout).
        """
        ask = self.anchor.ask(self._wrapped(Identify(None)), timeout_s)
        identity = ask._future
        future: AnyFuture
        if isinstance(identity, concurrent.futures.Future):
            future = concurrent.futures.Future()
        else:
            future = identity.get_loop().create_future()
        resolved = copy.copy(ask)  # keeps the ask's class: that of the deterministic system waits in its own way
        resolved._future = future
        ask.add_done_callback(functools.partial(self._resolve, future))
        return resolved

    def _resolve(self, future: AnyFuture, identity: AnyFuture) -> None:
        error = None if identity.cancelled() else identity.exception()
        if future.done():  # the caller has cancelled
            return
        if identity.cancelled():
            future.cancel()
        elif isinstance(error, (AskTimeout, RecipientTerminated)):
            future.set_exception(ActorNotFound(f"no actor matches {self}: {error}"))
        elif error is not None:
            future.set_exception(error)
        elif identity.result().ref is None:
            future.set_exception(ActorNotFound(f"no actor matches {self}"))
        else:
            future.set_result(identity.result().ref)

    def _wrapped(self, message: Any) -> Any:
        return SelectionMessage(message, self.elements) if self.elements else message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorSelection) and (self.anchor, self.elements) == (other.anchor, other.elements)

    def __hash__(self) -> int:
        return hash((self.anchor, self.elements))

    def __str__(self) -> str:
        return "/".join((str(self.anchor).rstrip("/"), *self.elements))

    __repr__ = __str__
