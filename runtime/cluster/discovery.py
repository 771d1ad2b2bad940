"""Reaching a cluster whose masters are on other hosts: by its Redis, or by an address."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from actors.client import ActorClient
from actors.errors import AskTimeout, FencingError, RecipientUnreachable, UnknownActor
from actors.rpc.gateway import FencingToken
from actors.rpc.security import load_secret
from actors.rpc.service import RpcConfig
from conf.configuration import Configuration
from conf.options import (
    BlobOptions,
    ClientOptions,
    ClusterOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    RpcOptions,
    SecurityOptions,
)
from runtime.client import ClusterClient
from runtime.environment.context import has_redis, open_redis_services, tls_config
from runtime.errors import ClusterNotRunning
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, LeaderInformation

T = TypeVar("T")

RETRY_S = 0.2
LEASES_WITHOUT_LEADER = 3
"""After how many leases without a leader in Redis it is said that there is no cluster."""

_PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout)


def connect_elsewhere(configuration: Configuration) -> ClusterClient | None:
    """A client of the cluster that the configuration says how to find; None where it does not.

    Raises:
        ClusterNotRunning: its Redis knows no leader.
        HaError: its Redis cannot be used.
        AuthenticationError: the secret cannot be read.
    """
    if has_redis(configuration):
        return connect_by_redis(configuration) if configuration.is_set(HighAvailabilityOptions.REDIS_URL) else None
    if not configuration.is_set(JobManagerOptions.RPC_ADDRESS):
        return None
    get = configuration.get
    address = f"akka.tcp://understudy@{get(JobManagerOptions.RPC_ADDRESS)}:{get(JobManagerOptions.RPC_PORT)}"
    return connect_by_address(configuration, (f"{address}/user/{DISPATCHER}",))


def connect_by_address(configuration: Configuration, systems: tuple[str, ...], **more: Any) -> ClusterClient:
    """A client that knows these masters; raises AuthenticationError."""
    frame_size = configuration.get(RpcOptions.FRAME_SIZE)
    return ClusterClient(
        systems,
        load_secret(configuration.get(SecurityOptions.SECRET_FILE)),
        rpc=RpcConfig(frame_size=frame_size, tls=tls_config(configuration)),
        inline_limit=min(configuration.get(BlobOptions.OFFLOAD_MINSIZE), frame_size // 2),
        patience_s=configuration.get(ClientOptions.TIMEOUT),
        **more,
    )


def connect_by_redis(configuration: Configuration) -> ClusterClient:
    """A client that finds the masters by the leader that Redis knows; raises as `connect_elsewhere`."""
    from runtime.ha.errors import HaUnreachableError

    def look() -> tuple[str, ...]:
        leader = _elsewhere(_leader(configuration))
        if leader is not None:
            with contextlib.suppress(*_PASSING):  # it has lost its leadership since
                return _masters_of(configuration, leader)
        return ()

    def find_masters() -> tuple[str, ...]:
        with contextlib.suppress(HaUnreachableError):  # Redis is being replaced: it is asked again
            return look()
        return ()

    deadline = time.monotonic() + configuration.get(HighAvailabilityOptions.LEASE) * LEASES_WITHOUT_LEADER
    while not (masters := look()) and time.monotonic() < deadline:
        time.sleep(RETRY_S)
    if not masters:
        raise ClusterNotRunning(
            f"Redis knows no leader of the cluster {configuration.get(ClusterOptions.ID)!r}",
            'name the cluster by cluster.id (a notebook: settings={"cluster.id": "NAME"}), or start its masters',
        )
    return connect_by_address(configuration, masters, find_masters=find_masters)


async def _leader(configuration: Configuration) -> LeaderInformation | None:
    services = open_redis_services(configuration)
    try:
        await services.start()
        return await services.current_leader(DISPATCHER)
    finally:
        await services.close()


def _masters_of(configuration: Configuration, leader: LeaderInformation) -> tuple[str, ...]:
    secret = load_secret(configuration.get(SecurityOptions.SECRET_FILE))
    with ActorClient(secret, RpcConfig(tls=tls_config(configuration))) as client:
        token = FencingToken(leader.epoch, leader.session)
        return tuple(client.gateway(leader.address, DispatcherGateway, token).request_masters().result())


def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a thread of its own: the caller's, as Jupyter's kernel, may have a loop running."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
