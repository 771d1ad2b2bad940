"""A component's access to latches and handles in the master (``high-availability.type: none``)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.rpc.service import RpcService
from runtime.ha.changes import Wake
from runtime.ha.errors import LeadershipLostError, MasterUnreachableError
from runtime.ha.fenced import Demand, HashWrite, in_words
from runtime.ha.latch import AcquireReply
from runtime.ha.standalone_gateway import PATH, POLL_S, HighAvailabilityGateway, Wanted
from runtime.protocol.leader import LeaderInformation, LeaderTerm

T = TypeVar("T")


class MasterConnection:
    """Calls the master; raises `MasterUnreachableError` if it does not answer.

    Args:
        service: the RPC service of the process.
        system: any address at the master's port.
        timeout: seconds that each call may take.
    """

    def __init__(self, service: RpcService, system: ActorAddress, timeout: float) -> None:
        self._service = service
        self._address = system.with_path(PATH)
        self._timeout = timeout
        self.gateway = self.within(timeout)

    @property
    def where(self) -> str:
        """Host and port of the master."""
        return f"{self._address.host}:{self._address.port}"

    def within(self, timeout: float) -> HighAvailabilityGateway:
        """Return the gateway with another time limit."""
        return self._service.gateway(self._address, HighAvailabilityGateway, timeout_s=timeout)

    def renewing(self, timeout: float) -> HighAvailabilityGateway:
        """Return the gateway with the shorter one of *timeout* and the connection's own time limit."""
        return self.within(max(min(timeout, self._timeout), 0.001))

    async def ask(self, answer: Awaitable[T]) -> T:
        """Return the answer to an ask.

        Raises:
            MasterUnreachableError: there is no answer; the outcome is unknown.
            LeadershipLostError: the master refused a write.
        """
        try:
            return await answer
        except LeadershipLostError:
            raise
        except ActorError as error:
            raise MasterUnreachableError(self.where, str(error)) from error


class MasterLeaderLatch:
    """A `LeaderLatch` that the master keeps."""

    def __init__(self, connection: MasterConnection, component: str, lease: float) -> None:
        self._connection = connection
        self._component = component
        self._lease = lease

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        ask = self._connection.gateway.acquire(self._component, session, self._lease, floor)
        return await self._connection.ask(ask)

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        return await self._connection.ask(self._connection.renewing(timeout).renew(term, self._lease))

    async def release(self, term: LeaderTerm) -> bool:
        return await self._connection.ask(self._connection.gateway.release(term))

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        return await self._connection.ask(self._connection.gateway.confirm(term, address))


class MasterLeaderReader:
    """A `LeaderReader` that asks the master."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection

    async def leader(self, component: str) -> LeaderInformation | None:
        return await self._connection.ask(self._connection.gateway.find_leader(component))


class MasterMaps:
    """`FencedMaps` that the master keeps."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection

    async def get(self, key: str, field: str) -> str | None:
        return await self._connection.ask(self._connection.gateway.read_field(key, field))

    async def get_all(self, key: str) -> dict[str, str]:
        return await self._connection.ask(self._connection.gateway.read_map(key))

    async def fields(self, key: str) -> list[str]:
        return list(await self.get_all(key))

    async def hset(self, key: str, field: str, value: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        wanted = Wanted(*in_words(demand))
        return await self._connection.ask(self._connection.gateway.write_field(key, field, value, term, wanted))

    async def hdel(self, key: str, field: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        wanted = Wanted(*in_words(demand))
        return await self._connection.ask(self._connection.gateway.delete_field(key, field, term, wanted))

    async def depose(self, component: str, term: LeaderTerm) -> None:
        await self._connection.ask(self._connection.gateway.depose(component, term))


class MasterChangeSource:
    """A `ChangeSource` that always has an open ask to the master, which answers when a leader changes."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection
        self._gateway = connection.within(2 * POLL_S)

    async def listen(self, wake: Wake) -> None:
        version = -1
        while True:
            changes = await self._connection.ask(self._gateway.await_changes(version))
            version = changes.version
            for component in [None] if changes.components is None else changes.components:
                wake(component)
