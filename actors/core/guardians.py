"""The ancestors of all actors of a system: ``/``, ``/user`` and ``/system`` (Akka's guardians)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from actors.actor import Actor
from actors.core.children import Children
from actors.core.system_messages import DeathWatchNotification, Failed, SystemMessage, Terminate
from actors.errors import AskTimeout
from actors.props import Props
from actors.ref import ActorRef
from actors.supervision import OneForOneStrategy, SupervisorStrategy

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.core.node import Node

logger = logging.getLogger(__name__)

ABORT_GRACE_S = 1.0


class Guardian(Actor):
    """Parent of the top-level actors.

    Args:
        strategy: what becomes of those that fail.
    """

    def __init__(self, strategy: SupervisorStrategy) -> None:
        self.supervisor_strategy = strategy


class Root:
    """Parent of the guardians: it has no parent and no mailbox, and the system ends with its children.

    Args:
        node: the root node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._deadline: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._stopping = False
        self.children = Children()
        self.ref = ActorRef(node, node.origin, "/", node.new_uid(), self)
        self.parent = self.ref
        self.system = self._guardian("system")
        self.user = self._guardian("user")

    def _guardian(self, name: str) -> Cell:
        props = Props(Guardian, OneForOneStrategy())
        cell = self._node.start_cell(props, f"/{name}", self._node.new_uid(), self.ref)
        self.children.add(name, cell.ref, props)
        return cell

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Nobody has anything to say to the root."""
        self._node.undeliverable(self.ref, message, sender)

    def deliver_system(self, message: SystemMessage) -> None:
        """A guardian has failed, or has stopped."""
        if isinstance(message, Failed):
            logger.critical(
                "%s failed (%s: %s): the actor system %s is terminated",
                message.child.path,
                type(message.error).__name__,
                message.error,
                self._node.name,
                exc_info=message.error,
            )
            self.terminate(None)
        elif isinstance(message, DeathWatchNotification):
            self.children.remove(message.actor)
            if self.children.refs():
                self.terminate(None)  # a guardian that was stopped on its own takes the system with it
                self._node.send_system(self.system.ref, Terminate())
            elif not self._node.terminated.done():
                if self._deadline is not None:
                    self._deadline.cancel()
                self._node.terminated.set_result(None)

    def terminate(self, timeout_s: float | None) -> None:
        """Stop ``/user`` and all below it, then ``/system``; `Node.terminated` says when that has been done.

        Args:
            timeout_s: after so many seconds coroutines that still run are cancelled; what does not end then within
                another second is left behind. None for no limit.
        """
        if timeout_s is not None and self._deadline is None and not self._node.terminated.done():
            self._timeout_s = timeout_s
            self._deadline = self._node.loop.call_later(timeout_s, self._abort)
        if not self._stopping:
            self._stopping = True
            self._node.letters.silent = True  # they are to be expected now
            self._node.send_system(self.user.ref, Terminate())

    def _abort(self) -> None:
        logger.warning(
            "actors of %s did not stop within %g s: their coroutines are cancelled", self._node.name, self._timeout_s
        )
        self._node.abort()
        self._deadline = self._node.loop.call_later(ABORT_GRACE_S, self._give_up)

    def _give_up(self) -> None:
        if not self._node.terminated.done():
            living = [path for path in self._node.cells if path.startswith("/user/")]
            text = f"these actors of {self._node.name} do not stop and are left behind: {', '.join(living[:10])}"
            logger.error("%s", text)
            self._node.terminated.set_exception(AskTimeout(text))


def start_guardians(node: Node) -> Root:
    """Make the root of all paths and the two guardians."""
    return Root(node)
