"""The TaskExecutor's registration at the ResourceManager (Flink's `TaskExecutorToResourceManagerConnection`)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from actors.errors import ActorError, AuthenticationError
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.gateways.errors import GatewayError, RegistrationRejectedError
from runtime.gateways.messages import RegistrationSuccess
from runtime.gateways.resource_manager import ResourceManagerGateway
from runtime.ha.model import RESOURCE_MANAGER
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat.manager import Silence
from runtime.ids import InstanceID
from runtime.leaders import LeaderFollower
from runtime.taskexecutor.registration_state import REFUSED, REGISTERED, WAITING, RegistrationState

if TYPE_CHECKING:
    from runtime.taskexecutor.endpoint import TaskExecutor

RETRY_S = 0.5


class ResourceManagerConnection:
    """Stays registered at whichever ResourceManager leads, and tells it the slots.

    Args:
        endpoint: the TaskExecutor.
        ha: finds the leader.
        silence_s: seconds without a heartbeat after which it registers anew (``heartbeat.timeout``).
        on_registered: told the answer to each registration.
        state: told how far it is.
    """

    def __init__(
        self,
        endpoint: TaskExecutor,
        ha: HighAvailabilityServices,
        silence_s: float,
        on_registered: Callable[[RegistrationSuccess], None],
        state: RegistrationState,
    ) -> None:
        self._endpoint = endpoint
        self._silence_s = silence_s
        self._on_registered = on_registered
        self._state = state
        self._follower = LeaderFollower(
            endpoint, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway, self._leader_changed
        )
        self._instance_id: InstanceID | None = None
        self._registering: asyncio.Task[None] | None = None
        self._silence = Silence()
        self._abandoned = Silence()
        self.blob: BlobAddress | None = None
        """Where the leader's BlobServer is; None before the first registration."""

    async def start(self) -> None:
        """Follow the leader."""
        self._state.write(WAITING, "no ResourceManager leads, or who does cannot be found out")
        await self._follower.start()

    async def stop(self) -> None:
        """Tell the leader that this TaskExecutor goes, and follow it no more."""
        self.disconnect("it stops")
        await self._follower.stop()

    def disconnect(self, reason: str) -> None:
        """Tell the leader, if there is one, that this TaskExecutor goes."""
        if self._follower.gateway is not None:
            self._follower.gateway.disconnect_task_manager(self._endpoint.resource_id, reason)

    def heard(self) -> None:
        """The ResourceManager has asked for a heartbeat."""
        self._silence.heard()
        self._abandoned.heard()

    async def end_when_abandoned(self, configuration: Configuration, runner_pid: int) -> None:
        """End the worker's process when no ResourceManager was heard of for ``taskmanager.registration.timeout``.

        Nobody would ever stop a worker that was started on demand, and whose cluster is gone for good (Flink's
        `onRegistrationTimeout`). Only time in which this process has run counts: one that stood still listens first.
        """
        if configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE:
            return
        timeout_s = configuration.get(TaskManagerOptions.REGISTRATION_TIMEOUT)
        await self._abandoned.lasts(timeout_s)
        self._endpoint.log.error("no ResourceManager was heard of for %g s: this worker ends itself", timeout_s)
        os.kill(runner_pid, signal.SIGTERM)

    def slots_changed(self) -> None:
        """Report the slots."""
        gateway = self._follower.gateway
        if gateway is not None and self._instance_id is not None:
            gateway.notify_slot_available(self._instance_id, self._endpoint.slots.report())

    def _leader_changed(self, gateway: ResourceManagerGateway | None) -> None:
        if self._registering is not None:
            self._registering.cancel()
            self._registering = None
        self._instance_id = None
        if gateway is not None:
            self._registering = self._endpoint.spawn(
                self._stay_registered(gateway), "registering at the ResourceManager"
            )

    async def _stay_registered(self, gateway: ResourceManagerGateway) -> None:
        endpoint, silence_s = self._endpoint, self._silence_s
        while True:
            try:
                success = await gateway.register_task_executor(endpoint.registration)
                self.blob, self._instance_id = success.blob, success.instance_id
                self._on_registered(success)
                await gateway.send_slot_report(success.instance_id, endpoint.slots.report())
            except (ActorError, GatewayError) as error:
                refused = isinstance(error, RegistrationRejectedError | AuthenticationError)
                self._state.write(REFUSED if refused else WAITING, str(error))
                endpoint.log.info("the ResourceManager does not register this TaskExecutor yet: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            endpoint.log.info("registered at the ResourceManager")
            self._state.write(REGISTERED)
            self.heard()
            await self._silence.lasts(silence_s)
            endpoint.log.warning("the ResourceManager was silent for %g s: registering anew", silence_s)
