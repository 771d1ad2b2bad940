"""The Dispatcher's methods on the masters of its cluster: where they are, and that they are to stop."""

from __future__ import annotations

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from runtime.gateways.master import MasterGateway
from runtime.gateways.resource_manager import ResourceManagerGateway
from runtime.jobmaster.archived_execution_graph import ApplicationStatus
from runtime.leaders import LeaderFollower


class DispatcherMasters(RpcEndpoint):
    """A part of the Dispatcher."""

    _master: MasterGateway
    _resource_manager: LeaderFollower[ResourceManagerGateway]

    @rpc
    async def request_masters(self) -> list[str]:
        return list((await self._master.request_status()).masters)

    @rpc
    async def shut_down_cluster(self) -> None:
        await self._shut_down(ApplicationStatus.UNKNOWN, "the cluster is being shut down")

    async def _shut_down(self, end: ApplicationStatus, diagnostics: str) -> None:
        """Have all masters stop; raises `ActorError` when this one cannot be told."""
        status = await self._master.request_status()
        manager = self._resource_manager.gateway
        if manager is not None:
            try:
                await manager.deregister_application(end, diagnostics)
            except ActorError as error:
                self.log.info("the ResourceManager was not told of the end of the cluster: %s", error)
        own = ActorAddress.parse(status.address)
        for system in map(ActorAddress.parse, status.masters):
            if (system.host, system.port) != (own.host, own.port):
                try:
                    await self.gateway(system.with_path("/user/master"), MasterGateway).shut_down_cluster(end)
                except ActorError as error:
                    self.log.info("the master at %s was not told to stop, it may be gone: %s", system, error)
        await self._master.shut_down_cluster(end)
