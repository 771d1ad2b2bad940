"""Creation, failure, restart and termination of an actor (Akka's `FaultHandling`).

Hooks may be coroutines, so each step that calls one goes on in a method of its own. While a hook runs the cell handles
nothing else, system messages included, as if the hook were a plain one.
"""

from __future__ import annotations

import functools
import logging
import traceback

from actors.core.children import Waiting
from actors.core.death_watch import DeathWatch
from actors.core.system_messages import Failed, Perform, Recreate, Resume, Suspend, Terminate
from actors.errors import ActorInitializationError
from actors.ref import ActorRef
from actors.timers import TimerEnvelope

log = logging.getLogger(__name__)


class FaultHandling(DeathWatch):
    """The part of a cell that knows its life."""

    __slots__ = ()

    # ------------------------------------------------------------------ creation

    def create(self) -> None:
        """Make the instance and call `pre_start`."""
        try:
            result = self.new_instance().pre_start()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the supervisor decides, whatever it is
            self._creation_failed(error)
            return
        self.run_hook(result, self.wake, self._creation_failed)

    def _creation_failed(self, error: BaseException) -> None:
        self.reset_behavior()
        self.actor = None
        self._ended = True
        self.handle_failure(self._initialization_error("creation", error), "its creation")

    def _initialization_error(self, what: str, error: BaseException) -> ActorInitializationError:
        wrapped = ActorInitializationError(f"{self.ref.path}: {what} failed: {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped

    def _create_anew(self) -> None:
        """A restart of an actor that has never lived is its creation, once its constructor's children are gone."""
        self._stop_children()
        if not self.children.wait_for(Waiting.CREATION):
            self._finish_creation()

    def _finish_creation(self) -> None:
        self._suspended -= 1
        self._failed = None
        self.create()

    # ------------------------------------------------------------------ failure

    def handle_failure(
        self, error: BaseException, handling: str, perpetrator: ActorRef | None = None, spare: tuple[ActorRef, ...] = ()
    ) -> None:
        """Suspend this actor and its children, and ask the parent what is to be done.

        Args:
            error: why it fails.
            handling: what it was doing.
            perpetrator: the child whose failure this one escalates.
            spare: children that are not to be suspended (because they are already).
        """
        if self._failed is not None:
            log.error(
                "%s failed in %s while it was failing or stopping already", self.ref.path, handling, exc_info=error
            )
            return
        self._suspended += 1
        self._failed = perpetrator or self.ref
        if self._children is not None:
            for child in self._children.refs():
                if child not in spare:
                    self.node.send_system(child, Suspend())
        is_far = self.parent._target is None
        trace = "".join(traceback.format_exception(error)) if is_far else ""
        failed = Failed(self.ref, error, handling, trace, escalated=perpetrator is not None)
        self.node.send_system(self.parent, failed)

    def suspend(self) -> None:
        """Handle no user messages; nor do the children."""
        self._suspended += 1
        if self._children is not None:
            for child in self._children.refs():
                self.node.send_system(child, Suspend())

    def resume(self, cause: BaseException | None) -> None:
        """Take one suspension back, here and in the children.

        Args:
            cause: the failure of this actor that its supervisor passes over; None when it is not about this actor.
        """
        if self.actor is None:
            self._create_anew()
        elif cause is not None and self._ended and self._failed is not None:
            self.recreate(cause)  # there is no instance that could go on
        else:
            self._resume(cause)

    def _resume(self, cause: BaseException | None) -> None:
        perpetrator = self._failed
        self._suspended -= 1
        if cause is not None:
            self._failed = None
            self.envelope = None
        if self._children is not None:
            for child in self._children.refs():
                self.node.send_system(child, Resume(cause if child == perpetrator else None))

    # ------------------------------------------------------------------ restart

    def recreate(self, cause: BaseException, delay_s: float = 0.0) -> None:
        """Restart: the old instance's `pre_restart`, the end of the children that it stops, a new instance.

        With a delay the old instance is gone at once, and the new one comes later (as with Akka's `BackoffSupervisor`).
        """
        due = self.node.loop.time() + delay_s
        if self.actor is None:
            self._create_anew()
        elif not self.children.is_normal:
            self._resume(None)  # it is being restarted or stopped already: the suspensions have to stay balanced
        elif self._ended:
            self._await_children(cause, due)
        else:
            self.unstash_all()
            self.cancel_timers()
            message = None if self.envelope is None else self.envelope.message
            try:
                result = self.actor.pre_restart(cause, message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._pre_restart_failed(cause, due, error)
                return
            self.run_hook(
                result,
                functools.partial(self._await_children, cause, due),
                functools.partial(self._pre_restart_failed, cause, due),
            )

    def _pre_restart_failed(self, cause: BaseException, due: float, error: BaseException) -> None:
        # As in Akka: it is the old instance that has failed once more, and there is nothing left to decide about it.
        log.error("%s failed in pre_restart; it is restarted all the same", self.ref.path, exc_info=error)
        self._await_children(cause, due)

    def _await_children(self, cause: BaseException, due: float) -> None:
        self._ended = True
        self.reset_behavior()
        if not self.children.wait_for(Waiting.RECREATION, (cause, due)):
            self._await_time(cause, due)

    def _await_time(self, cause: BaseException, due: float) -> None:
        if due > self.node.loop.time():
            self.children.waiting = Waiting.DELAY
            come = Perform(functools.partial(self._time_has_come, cause))
            self.node.loop.call_at(due, self.deliver_system, come)
        else:
            self._finish_recreation(cause)

    def _time_has_come(self, cause: BaseException) -> None:
        if self._children is not None and self._children.waiting is Waiting.DELAY:  # it was not stopped meanwhile
            self._children.waiting = Waiting.NOTHING
            self._finish_recreation(cause)

    def _finish_recreation(self, cause: BaseException) -> None:
        survivors = tuple(self.children.refs())
        self._suspended -= 1
        self._failed = None
        self.envelope = None
        try:
            result = self.new_instance().post_restart(cause)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._recreation_failed(survivors, error)
            return
        self.run_hook(
            result,
            functools.partial(self._recreated, survivors, cause),
            functools.partial(self._recreation_failed, survivors),
        )

    def _recreated(self, survivors: tuple[ActorRef, ...], cause: BaseException) -> None:
        if self._receive_timer is not None:
            self._receive_timer.restart()
        for child in survivors:  # those that pre_restart has not stopped are restarted with their parent
            self.node.send_system(child, Recreate(cause))
        self.wake()

    def _recreation_failed(self, survivors: tuple[ActorRef, ...], error: BaseException) -> None:
        self.reset_behavior()
        self._ended = True
        self.handle_failure(self._initialization_error("restart", error), "its restart", spare=survivors)

    # ------------------------------------------------------------------ termination

    def stop(self, ref: ActorRef) -> None:
        """Stop a child, or this actor itself."""
        child = None if self._children is None else self._children.find(ref)
        if child is not None and child.lost:
            self.child_terminated(ref)  # its process is gone, and no other was started yet
            return
        if child is not None:
            self.children.shall_die(ref)
        self.node.send_system(ref, Terminate())

    def _stop_children(self) -> None:
        if self._children is not None:
            for child in self._children.refs():
                self.stop(child)

    def terminate(self) -> None:
        """Stop: the children first, then the instance's `post_stop`; what is left becomes dead letters."""
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self.unwatch_all()
        was_terminating = self._children is not None and self._children.is_terminating
        self._stop_children()
        if not was_terminating:
            # No user message is handled any more, and failures of dying children are nobody's business.
            self._suspended += 1
            self._failed = self.ref
        if self._children is None or not self._children.wait_for(Waiting.TERMINATION):
            self._finish_termination()

    def _finish_termination(self) -> None:
        actor = self.actor
        if actor is None or self._ended:
            self._terminated()
            return
        self._ended = True
        self.cancel_timers()
        try:
            result = actor.post_stop()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._post_stop_failed(error)
            return
        self.run_hook(result, self._terminated, self._post_stop_failed)

    def _post_stop_failed(self, error: BaseException) -> None:
        log.error("%s failed in post_stop; it is stopped all the same", self.ref.path, exc_info=error)
        self._terminated()

    def _terminated(self) -> None:
        self.reset_behavior()
        self._closed = True
        stash, self._stash = self._stash, None
        left = [*(stash or ()), *self.mailbox.drain()]
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self.node.cell_stopped(self)
        for envelope in left:
            if type(envelope) is not TimerEnvelope:
                self.node.undeliverable(self.ref, *envelope)
        self.tell_watchers()
        waiting, self._system = self._system, None
        for message in waiting or ():
            self.node.undeliverable_system(self.ref, message)
        self.actor = None
        self.envelope = None
        self._children = None
        self._watching = None

    def child_terminated(self, ref: ActorRef) -> None:
        """A child has stopped: its name is free, and whatever waited for the last of them goes on."""
        waiting, restart = self.children.remove(ref)
        if waiting is Waiting.TERMINATION:
            self._finish_termination()
        elif waiting is Waiting.RECREATION and restart is not None:
            self._await_time(*restart)
        elif waiting is Waiting.CREATION:
            self._finish_creation()
