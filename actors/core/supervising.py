"""What a parent does when a child fails, or its process dies (the acting part of Akka's `SupervisorStrategy`)."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from typing import Any

from actors.core.children import Child
from actors.core.fault_handling import FaultHandling
from actors.core.system_messages import Failed, Perform, Recreate, Resume, Suspend
from actors.errors import ActorError
from actors.messages import Terminated
from actors.ref import ActorRef
from actors.supervision import BackoffCounter, Directive, SupervisorStrategy

log = logging.getLogger(__name__)


class Supervising(FaultHandling):
    """The part of a cell that supervises its children."""

    __slots__ = ()

    def handle_failed(self, failed: Failed) -> None:
        """A child waits for a directive."""
        child = None if self._children is None else self._children.find(failed.child)
        if child is None:
            return  # an earlier incarnation, or one that has stopped meanwhile
        self._decide(child, failed)

    def child_lost(self, ref: ActorRef, error: BaseException) -> None:
        """The process of a child has died, or its creation in another process has failed.

        The strategy decides as for any error. A restart is a new incarnation in a new process; to resume is to stop.
        """
        child = None if self._children is None else self._children.find(ref)
        if child is None or child.lost:
            return
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self.announce(Terminated(ref, existence_confirmed=True, address_terminated=True))
        self.node.unwatching(ref, self)
        if self.children.is_dying(ref):
            self.child_terminated(ref)
            return
        child.lost = True
        self._decide(child, Failed(ref, error, "its process"))

    def _decide(self, child: Child, failed: Failed) -> None:
        if self.actor is None:  # its own creation has failed: there is nobody to decide
            self.stop(child.ref)
            return
        strategy = self.actor.supervisor_strategy
        directive = strategy.decide(failed.error)
        if child.lost and directive is Directive.RESUME:
            directive = Directive.STOP
        affected = self.children.all() if strategy.all_for_one else [child]
        delay_s = 0.0
        verdict = directive.name.lower()
        if directive is Directive.RESTART:
            now = self.node.loop.time()
            allowed = [
                _may_restart(each, strategy, now) for each in affected
            ]  # it counts for each, whatever the others'
            if all(allowed):
                delay_s = _delay(child, strategy, now, self.node.rng)
                verdict = f"restart in {delay_s:.2f} s" if delay_s else verdict
            else:
                directive = Directive.STOP
                verdict = "stop, for it has failed too often"
        self._report(failed, verdict)
        unmatched = strategy.unmatched(failed.error)
        if unmatched is not None:
            log.warning("%s: %s", self.ref.path, unmatched)
        match directive:
            case Directive.RESUME:
                self.node.send_system(child.ref, Resume(failed.error))
            case Directive.RESTART:
                self._restart(affected, child, failed.error, delay_s)
            case Directive.STOP:
                for each in affected:
                    self.stop(each.ref)
            case Directive.ESCALATE:
                if child.lost:
                    self.child_terminated(child.ref)
                self.handle_failure(failed.error, failed.handling, failed.child, spare=(failed.child,))

    def _report(self, failed: Failed, verdict: str) -> None:
        """One line for each decision; the traceback once, at the failure and not at each level that it rises to."""
        path = failed.child.path
        error: Any = failed.error
        name = type(error).__name__
        if failed.escalated:
            log.error("%s has escalated %s: %s; directive: %s", path, name, error, verdict)
        elif failed.trace:
            log.error(
                "%s failed in %s: %s: %s; directive: %s\n%s", path, failed.handling, name, error, verdict, failed.trace
            )
        else:
            log.error(
                "%s failed in %s: %s: %s; directive: %s", path, failed.handling, name, error, verdict, exc_info=error
            )

    # ------------------------------------------------------------------ restarting

    def _restart(self, affected: list[Child], failed: Child, cause: BaseException, delay_s: float) -> None:
        for each in affected:
            if each is not failed and not each.lost:
                self.node.send_system(each.ref, Suspend())
        for each in affected:
            if not each.lost:
                self.node.send_system(each.ref, Recreate(cause, delay_s))
            elif delay_s:
                self._later(delay_s, functools.partial(self._make_again, each))
            else:
                self._make_again(each)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.node.loop.call_later(delay_s, self.deliver_system, Perform(action))

    def _make_again(self, child: Child) -> None:
        """A new incarnation, in a new process, takes the place of one whose process has died."""
        if self._children is None or self._children.find(child.ref) is not child:
            return  # it was stopped while it waited
        name = child.ref.name
        try:
            ref = self.node.create_child(self, child.props, name)
        except ActorError as error:
            log.error("%s cannot be made again: %s", child.ref.path, error)
            self.child_terminated(child.ref)
            return
        child.lost = False
        child.ref = ref


def _may_restart(child: Child, strategy: SupervisorStrategy, now: float) -> bool:
    if child.window is None:
        child.window = strategy.window()
    return child.window.restart_permissible(now)


def _delay(child: Child, strategy: SupervisorStrategy, now: float, rng: random.Random) -> float:
    """How long the restart is put off, in seconds."""
    if strategy.backoff is None:
        return 0.0
    if child.backoff is None:
        child.backoff = BackoffCounter(strategy.backoff)
    return child.backoff.next_delay(now, rng)
