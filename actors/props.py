"""Recipes for actors (Akka's `Props`): class, constructor arguments, placement, mailbox."""

from __future__ import annotations

import enum
import importlib
import inspect
import math
import weakref
from typing import TYPE_CHECKING, Any

from actors.actor import Actor
from actors.errors import ActorSystemError
from actors.ref import ActorRef
from actors.serialization import message

if TYPE_CHECKING:
    from actors.mailbox import MailboxType
    from actors.routing import RouterConfig


class Placement(enum.Enum):
    """Process in which an actor runs."""

    DEFAULT = "default"
    """A child: its parent's process. A top-level actor: a process of its own."""
    LOCAL = "local"
    """The process of its parent; for a top-level actor that of the actor system."""
    PINNED = "pinned"
    """A process of its own."""
    SHARED = "shared"
    """The process that the system keeps for such actors; thousands may share it."""


class Props:
    """An immutable recipe; the methods return changed copies.

    Args:
        actor_class: the actor's class, or its import path ``module:Qualname``.
        *args: arguments of its constructor; for an actor of another process they must be serializable.
        **kwargs: the same, by name.

    Raises:
        TypeError: *actor_class* is neither a class derived from `Actor` nor an import path, or its constructor does
            not take these arguments. For an import path the arguments are checked only when the actor is created.
    """

    __slots__ = ("actor_class", "args", "deploy_to", "kwargs", "made", "mailbox", "placement", "router", "throughput")

    actor_class: type[Actor] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Actor | None
    placement: Placement
    deploy_to: str | None
    mailbox: MailboxType | None
    router: RouterConfig | None
    throughput: int | None

    def __init__(self, actor_class: type[Actor] | str, *args: Any, **kwargs: Any) -> None:
        if not (isinstance(actor_class, str) and ":" in actor_class):
            _expect_arguments(_expect_actor(actor_class), args, kwargs)
        for field, value in (
            ("actor_class", actor_class),
            ("args", args),
            ("kwargs", kwargs),
            ("made", None),
            ("placement", Placement.DEFAULT),
            ("deploy_to", None),
            ("mailbox", None),
            ("router", None),
            ("throughput", None),
        ):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Props are immutable; use with_{name}() or its like to get changed ones")

    @classmethod
    def of(cls, actor: Actor) -> Props:
        """Return the recipe of an existing instance, such as an endpoint. It runs once and cannot be restarted.

        Args:
            actor: the instance; it must not have a cell yet.
        """
        recipe = cls(f"{type(actor).__module__}:{type(actor).__qualname__}")
        return recipe._with(actor_class=type(actor), made=actor, placement=Placement.LOCAL)

    def _with(self, **changes: Any) -> Props:
        changed: Props = object.__new__(Props)
        for field in Props.__slots__:
            object.__setattr__(changed, field, changes.get(field, getattr(self, field)))
        return changed

    def with_mailbox(self, mailbox: MailboxType) -> Props:
        """Use another mailbox than the unbounded one; see `actors.mailbox`."""
        return self._with(mailbox=mailbox)

    def with_router(self, router: RouterConfig) -> Props:
        """Make the actor a router. A `Pool` creates its routees from these props; those of a `Group` exist already."""
        return self._with(router=router)

    def with_throughput(self, messages: int) -> Props:
        """Handle at most *messages* messages in one turn, before other actors run; default: the system's.

        Raises:
            ValueError: not a positive number.
        """
        if messages < 1:
            raise ValueError(f"the throughput is a positive number of messages, not {messages}")
        return self._with(throughput=messages)

    def local(self) -> Props:
        """Place the actor in the process of its parent or, at top level, of the actor system."""
        return self._with(placement=Placement.LOCAL, deploy_to=None)

    def pinned(self) -> Props:
        """Place the actor in a process of its own."""
        return self._with(placement=Placement.PINNED, deploy_to=None)

    def shared(self) -> Props:
        """Place the actor in a process that it shares with others; `SystemConfig.shared_hosts` sets their number."""
        return self._with(placement=Placement.SHARED, deploy_to=None)

    def deploy(self, address: str) -> Props:
        """Place the actor in another actor system, ``akka.tcp://<system>@<host>:<port>``."""
        return self._with(deploy_to=str(address))

    @property
    def class_path(self) -> str:
        """The import path of the actor's class, ``module:Qualname``."""
        if isinstance(self.actor_class, str):
            return self.actor_class
        return f"{self.actor_class.__module__}:{self.actor_class.__qualname__}"

    def allocate(self) -> Actor:
        """Return an instance whose constructor has not run, or the instance given to `of`.

        Raises:
            ActorSystemError: the class cannot be imported here, or the instance given to `of` has run once.
        """
        if self.made is None:
            actor_class = self.load_class()
            return actor_class.__new__(actor_class)
        if hasattr(self.made, "context"):
            raise ActorSystemError(f"{type(self.made).__name__} was made before its cell, and cannot be made again")
        return self.made

    def load_class(self) -> type[Actor]:
        """Return the actor's class.

        Raises:
            ActorSystemError: it cannot be imported here.
        """
        return load_actor_class(self.actor_class) if isinstance(self.actor_class, str) else self.actor_class

    def __repr__(self) -> str:
        arguments = [
            self.class_path,
            *map(repr, self.args),
            *(f"{key}={value!r}" for key, value in self.kwargs.items()),
        ]
        return f"Props({', '.join(arguments)})"


@message
class CreateOrder:
    """Recipe by which another process creates an actor. Plain data: it names code by import path, never sends it.

    Args:
        path: path of the new actor.
        uid: its incarnation.
        parent: its parent, which supervises it.
        class_path: import path of its class.
        args: arguments of its constructor.
        kwargs: the same, by name.
        placement: value of a `Placement`.
        deploy_to: address of the system that is to host it, or None.
        mailbox: its mailbox, or None for the default.
        router: how it routes, or None.
        throughput: messages in one turn, or None for the default.
    """

    path: str
    uid: int
    parent: ActorRef
    class_path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    placement: str
    deploy_to: str | None
    mailbox: Any
    router: Any
    throughput: int | None

    @classmethod
    def of(cls, props: Props, path: str, uid: int, parent: ActorRef) -> CreateOrder:
        """Return the order to create an actor from *props*.

        Raises:
            ActorSystemError: the class has no import path.
        """
        if "<locals>" in props.class_path:
            raise ActorSystemError(
                f"{props.class_path} is defined inside a function, so that another process cannot import it; "
                "move it to the top of its module, or place the actor with Props.local()"
            )
        return cls(
            path,
            uid,
            parent,
            props.class_path,
            props.args,
            props.kwargs,
            props.placement.value,
            props.deploy_to,
            props.mailbox,
            props.router,
            props.throughput,
        )

    def props(self) -> Props:
        """Return the recipe for use in this process; the placement is decided already."""
        return Props(self.class_path, *self.args, **self.kwargs)._with(
            mailbox=self.mailbox, router=self.router, throughput=self.throughput, placement=Placement.LOCAL
        )


def load_actor_class(path: str) -> type[Actor]:
    """Import the class that *path* (``module:Qualname``) names.

    Raises:
        ActorSystemError: the module or class does not exist here, or is not an actor class.
    """
    module_name, _, qualified = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for element in qualified.split("."):
            found = getattr(found, element)
    except (ImportError, AttributeError) as error:
        remedy = (
            "classes of __main__ are known only to processes forked after their definition: move it to a module"
            if module_name == "__main__"
            else "the module has to be importable in every process that hosts such actors"
        )
        raise ActorSystemError(f"the actor class {path} cannot be loaded here ({error}); {remedy}") from error
    try:
        return _expect_actor(found)
    except TypeError as error:
        raise ActorSystemError(str(error)) from error


class _Constructor:
    """The arguments that an actor class takes: by position alone, between *fewest* and *most* of them."""

    def __init__(self, actor_class: type[Actor]) -> None:
        constructor: Any = actor_class.__init__
        parameters: list[inspect.Parameter] = []
        if constructor is not object.__init__:
            _, *parameters = inspect.signature(constructor).parameters.values()
        self.signature = inspect.Signature(parameters)
        positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        is_open = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        needs_names = any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters)
        self.fewest = sum(each.default is each.empty for each in positional)
        self.most = math.inf if is_open else len(positional)
        if needs_names:
            self.most = -1


_constructors: weakref.WeakKeyDictionary[type, _Constructor] = weakref.WeakKeyDictionary()


def _expect_arguments(actor_class: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    constructor = _constructors.get(actor_class)
    if constructor is None:
        constructor = _constructors[actor_class] = _Constructor(actor_class)
    if not kwargs and constructor.fewest <= len(args) <= constructor.most:
        return  # a system may make a hundred thousand actors, and to bind takes longer than all else here
    signature = constructor.signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        path = f"{actor_class.__module__}:{actor_class.__qualname__}"
        raise TypeError(
            f"{error} in Props of {path}, which is made by {actor_class.__name__}{signature}: "
            "give what its constructor takes behind the class"
        ) from None


def _expect_actor(candidate: Any) -> type[Actor]:
    if not (isinstance(candidate, type) and issubclass(candidate, Actor)):
        raise TypeError(f"{candidate!r} is not an actor class: derive it from actors.Actor, or give 'module:Qualname'")
    return candidate
