"""Selections (Akka's ``ActorSelection``): actors by path, with wildcards, whichever incarnations live there.

A selection's leading elements without wildcards name one actor, its *anchor*; the message travels there, and from there
with the elements that are left from parent to child, wherever those live.
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
    """A message on its way through a selection: the cell that gets it passes it on with `step`.

    Args:
        message: what the selected actors are to get.
        elements: the way that is left, from the recipient; never empty.
        wildcard_fan_out: whether a wildcard that matched several lies behind: then nobody is missed where the way ends.
    """

    message: Any
    elements: tuple[str, ...]
    wildcard_fan_out: bool = False


class SelectionPath(NamedTuple):
    """A parsed selection.

    Args:
        origin: the system it lies in; None for the one it is used in.
        absolute: whether the elements begin at the root, or at the actor that uses it.
        elements: names, patterns and ``..``.
    """

    origin: Origin | None
    absolute: bool
    elements: tuple[str, ...]

    def anchored(self, base: str) -> tuple[str, tuple[str, ...]]:
        """The path of the anchor, and the elements that are left from there.

        Args:
            base: path of the actor that a relative selection begins at.
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
        AddressError: it is no such form, or an element is no name.
    """
    address = _ADDRESS.fullmatch(text)
    origin = None
    path = text
    if address is not None:
        host, port = address[3].strip("[]"), int(address[4])
        if not 0 < port < 65536:
            raise AddressError(f"{text!r} selects no actor: {port} is no TCP port")
        origin = Origin(address[2], host, port)
        path = _UID.sub("", address[5] or "/")
    elements = tuple(element for element in path.split("/") if element not in ("", "."))
    for element in elements:
        if not _ELEMENT.fullmatch(element):
            raise AddressError(
                f"{text!r} selects no actor: {element!r} is no name. Forms: /user/a/*, ../b?, child, "
                "akka.tcp://<system>@<host>:<port>/user/a"
            )
    if not path:
        raise AddressError(
            "the empty text selects no actor; '.' is the actor itself, '/user/*' are all top-level actors"
        )
    return SelectionPath(origin, path.startswith("/"), elements)


def is_pattern(element: str) -> bool:
    """Whether an element has wildcards: ``*`` for any number of characters, ``?`` for exactly one."""
    return "*" in element or "?" in element


def matches(pattern: str, name: str) -> bool:
    """Whether *name* matches *pattern*. Takes time of length times length at worst, also for hostile patterns."""
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
    """Where a selection goes from an actor.

    Args:
        to_parent: to its parent, rather than to the children.
        children: names of the children that it goes to.
        rest: the message for each: a `SelectionMessage`, or at the end of the way the message itself.
        missed: nobody is there, and that is to be told: the message is a dead letter, an `Identify` is answered with
            no ref.
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
    """The actors that match a path; made by `actor_selection`. May be kept: it is looked up anew for each message.

    Args:
        node: where it is used.
        text: the path.
        base: the actor that a relative path begins at; it also gives the system.

    Raises:
        AddressError: *text* is no path.
    """

    __slots__ = ("anchor", "elements", "text")

    def __init__(self, node: Node, text: str, base: ActorRef) -> None:
        parsed = parse_selection(text)
        path, self.elements = parsed.anchored(base.path)
        self.anchor: ActorRef = node.ref(path, 0, parsed.origin or base.origin)
        """The actor at the end of the path's part without wildcards."""
        self.text = text

    def tell(self, message: Any, sender: ActorRef | None = CURRENT) -> None:
        """Send *message* to all that match. When nobody does, it is a dead letter."""
        self.anchor.tell(self._wrapped(message), sender)

    def forward(self, message: Any) -> None:
        """The same, keeping the sender of the message that is being handled."""
        self.anchor.forward(self._wrapped(message))

    def resolve_one(self, timeout_s: float | None = None) -> Ask[ActorRef]:
        """The ref of an actor that matches, the first that answers.

        The ask ends in `ActorNotFound` when none does within *timeout_s* seconds (default: the system's ask timeout).
        """
        ask = self.anchor.ask(self._wrapped(Identify(None)), timeout_s)
        identity = ask._future
        future: AnyFuture
        if isinstance(identity, concurrent.futures.Future):
            future = concurrent.futures.Future()
        else:
            future = identity.get_loop().create_future()
        resolved = copy.copy(ask)  # its class may wait in a way of its own, as that of the deterministic system does
        resolved._future = future
        ask.add_done_callback(functools.partial(self._resolve, future))
        return resolved

    def _resolve(self, future: AnyFuture, identity: AnyFuture) -> None:
        error = None if identity.cancelled() else identity.exception()
        if future.done():  # whoever asked has given up
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
