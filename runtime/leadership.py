"""The base of elected components: fenced endpoints that serve only while they lead."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, FencingError
from actors.process.logs import set_process_context
from actors.receptionist import Listing, ReceptionistGateway
from actors.ref import Origin
from actors.rpc.endpoint import FencedRpcEndpoint
from actors.rpc.fencing import Fence
from actors.rpc.gateway import FencingToken, RpcGateway
from actors.rpc.service import RpcService
from actors.service_system import EVENT_STREAM
from runtime.ha.election import LeaderElectionService
from runtime.ha.errors import FeatureLevelUnsupportedError
from runtime.protocol.leader import LeaderTerm

REGISTRATION_INTERVAL_S = 2.0

G = TypeVar("G", bound=RpcGateway)


class LeaderEndpoint(FencedRpcEndpoint):
    """An endpoint that takes part in the election of its component (Flink's `LeaderContender` endpoints).

    When leadership is granted:

    1. It prepares (`lead`).
    2. It opens its gateway under the new fencing token.
    3. It confirms itself as the leader.
    4. It lists itself at the receptionist, repeatedly, so that a replaced receptionist learns of it too.

    When leadership is revoked, it rejects every call from that moment, and then calls `on_revoked`.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        election: the election of its component.
        receptionist: the actor system's directory.
    """

    def __init__(
        self, service: RpcService, name: str, election: LeaderElectionService, receptionist: ReceptionistGateway
    ) -> None:
        super().__init__(service, name)
        self._election = election
        self._receptionist = receptionist
        self._term: LeaderTerm | None = None
        self._stepping_back: asyncio.Task[None] | None = None

    @property
    def term(self) -> LeaderTerm:
        """Return the present term; raises `FencingError` if there is none: it may end after a call was accepted."""
        if self._term is None:
            raise FencingError(f"{self.path} does not lead any more; look the leader up again")
        return self._term

    async def lead(self, term: LeaderTerm) -> None:
        """Prepare to serve: recover the predecessor's state. An exception returns the leadership.

        After a `FeatureLevelUnsupportedError` it does not contend for the leadership any more.
        """
        raise NotImplementedError

    async def serve(self) -> None:
        """Start working, once the leadership is confirmed and the gateway is open."""

    async def on_revoked(self) -> None:
        """Release everything that belonged to the leadership. The gateway is closed already."""
        raise NotImplementedError

    def check_token(self, token: FencingToken | None) -> None:
        """Reject a call for another leadership, or after the end of the lease; raises `FencingError`.

        A process that was suspended (SIGSTOP) may read a call before the timer that ends its term has run. A caller
        with the token of a later leadership shows that a higher epoch is needed.
        """
        if token is not None and self._term is not None and token.epoch > self._term.epoch:
            self._election.observe_epoch(token.epoch)
        super().check_token(token)
        if self._term is None or not self._election.has_leadership(self._term):
            raise FencingError(f"the lease of {self.path} is over; look the leader up again")

    # --------------------------------------------------------------- acts of the leader

    def act(self, term: LeaderTerm | None = None) -> LeaderTerm:
        """Check by the clock that the lease still holds, before each act of the leader.

        All messages of its gateways pass this check. Any other act outside of the leader's own memory has to call it
        too, unless the store of the high-availability services compares the term itself.

        A process that was suspended (SIGSTOP) may run handlers and timers before the election ends its term. A leader
        that may not act any more gives up its term, so that no component waits for the omitted act.

        Args:
            term: the leadership that the act belongs to. Default: the present one.

        Returns:
            The leadership to act under.

        Raises:
            FencingError: the leadership is over, or may be.
        """
        own = self._term
        if own is None or (term is not None and term != own):
            raise FencingError(f"{self.path} does not act: its leadership is over")
        if not self._election.has_leadership(own):
            self._election.step_down(own, "its lease was over when it was about to act")
            raise FencingError(f"{self.path} does not act: its lease may be over")
        return own

    def may_act(self, term: LeaderTerm) -> bool:
        """Return whether `act` permits an act of *term* now."""
        try:
            self.act(term)
        except FencingError as error:
            self.log.info("%s", error)
            return False
        return True

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
        *,
        term: LeaderTerm | None = None,
    ) -> G:
        """Return a gateway whose calls carry this endpoint's leadership, and are checked by `act` when they are sent.

        Args:
            address: the actor's address.
            gateway_type: the interface that it implements.
            token: the leadership that the calls are meant for, for fenced endpoints.
            timeout_s: time allowed for each ask, in seconds.
            term: the leadership that the calls belong to. Default: for each call, the leadership when it is sent.
        """
        # A Fence replaces the token in every gateway.
        fence = Fence(token, functools.partial(self.act, term), self.refused)
        return self.service.gateway(address, gateway_type, fence, timeout_s)

    def refused(self, error: FencingError) -> None:
        """Handle the rejection of a call: the next term has to be above the epoch that the receiver has seen.

        The receiver may have seen this leader's own epoch, of another session. Redis repeats an epoch after a failover
        that has forgotten a grant, if the clocks of both servers are behind. Receivers accept only a higher one.
        """
        if error.epoch is not None and self._term is not None and error.epoch >= self._term.epoch:
            self.log.warning("%s of epoch %d was refused: %s", self.path, self._term.epoch, error)
            self._election.observe_epoch(max(error.epoch, self._term.epoch + 1))

    async def on_start(self) -> None:
        await self._election.start(self)

    async def on_stop(self) -> None:
        leading = self._term is not None
        self._withdraw()
        if leading:
            await self.on_revoked()
        await self._election.stop()

    def grant_leadership(self, term: LeaderTerm) -> None:
        """Take over the leadership; called by the election."""
        self._term = term
        set_process_context(epoch=term.epoch)
        self.spawn(self._take_over(term), "taking over the leadership")

    def revoke_leadership(self) -> None:
        """End the leadership; called by the election."""
        was_leading = self._term is not None
        self._withdraw()
        if was_leading:
            self.log.warning("%s lost its leadership", self.path)
            self._stepping_back = self.spawn(self.on_revoked(), "stepping back")

    def handle_error(self, error: Exception) -> None:
        """Handle a fatal error of the election, which calls this."""
        self.on_error("the leader election", error)

    async def give_up(self, error: FeatureLevelUnsupportedError) -> None:
        """End the leadership and do not contend again: another release has to lead."""
        self.log.critical("%s does not lead: %s; %s", self.path, error, error.remedy)
        await self._election.stop()

    async def _take_over(self, term: LeaderTerm) -> None:
        if self._stepping_back is not None:
            # `on_revoked` of the earlier term must not end what the new term starts.
            await asyncio.gather(self._stepping_back, return_exceptions=True)
            if self._term != term:
                return
        try:
            await self.lead(term)
        except FeatureLevelUnsupportedError as error:
            await self.give_up(error)
            return
        except Exception:
            self._election.step_down(term, "it could not take over")
            raise
        if self._term != term:
            return
        self.leads_since_ms = time.time_ns() // 1_000_000
        self.fencing_token = FencingToken(term.epoch, term.session)
        if not await self._election.confirm_leadership(term, str(self.address)):
            self.log.warning("%s was elected and lost its leadership before it could serve", self.path)
            # A concurrent renewal may have saved the term: then there would be no leader, and no contender.
            self._election.step_down(term, "it was not confirmed as the leader")
            return
        self.log.info("%s leads at %s, epoch %d", self.path, self.address, term.epoch)
        self._list_again(term)  # in the background: followers learn of the leader from the latch
        await self.serve()

    async def _list(self, term: LeaderTerm) -> None:
        if self._term != term:
            return
        try:
            await self._receptionist.register(Listing(self.path, str(self.address), os.getpid(), self.fencing_token))
        except FencingError as error:
            self.refused(error)
        except ActorError as error:
            self.log.debug("the receptionist does not answer: %s", error)
        self.schedule_run_async(REGISTRATION_INTERVAL_S, lambda: self._list_again(term))

    def announce(self, event: Any) -> None:
        """Publish an event on this process's event stream, and on that of the process whose address users know.

        Args:
            event: a message; see `runtime.protocol.events`.
        """
        node = self.service.node
        node.publish(event)
        if node.remote is not None:
            home = self._receptionist.address
            node.ref(EVENT_STREAM, 0, Origin(home.system, home.host, home.port)).tell(event, None)

    def _list_again(self, term: LeaderTerm) -> None:
        self.spawn(self._list(term), "listing itself")

    def _withdraw(self) -> None:
        if self.fencing_token is not None:
            self._receptionist.deregister(self.path, str(self.address))
        set_process_context(epoch=None)
        self._term = None
        self.fencing_token = None
