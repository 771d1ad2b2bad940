"""Finding a cluster: the one of this machine, one by an address, or one by its Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

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
    RpcOptions,
    SecurityOptions,
)
from conf.secret import SecretStr
from runtime.application.current import application_client
from runtime.client import ClusterClient
from runtime.cluster.session import connect as connect_local
from runtime.environment.context import open_redis_services, tls_config
from runtime.environment.errors import ClusterNotRunning
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.ha.model import DISPATCHER, LeaderInformation
from runtime.notebook.cluster import Cluster

T = TypeVar("T")

RETRY_S = 0.2
LEASES_WITHOUT_LEADER = 3
"""After how many leases without a leader in Redis it is said that there is no cluster."""

_PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout)


def connect(
    address: str | None = None,
    *,
    redis: str | None = None,
    secret_file: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Cluster:
    """A handle of a running cluster. It follows the leader, whichever master that is.

    Args:
        address: where a master is, ``akka.tcp://understudy@host:6123`` or the address of any actor there. None: the
            cluster of this machine's runtime directory, unless *redis* is given; in an application's main() its own.
        redis: URL of the cluster's Redis, which knows who leads; ``redis+sentinel://`` too. The cluster is the one of
            the setting ``cluster.id``.
        secret_file: the cluster's secret, copied from ``security.secret-file`` there. None: as this machine's
            configuration says, ``~/.understudy/<cluster.id>/secret``.
        config: a configuration file in place of ``$UNDERSTUDY_CONF_DIR/config.yaml``.
        settings: further options by key, as ``-D`` gives them: ``{"cluster.id": "second"}``.

    Raises:
        ClusterNotRunning: no cluster runs there.
        SecurityError: the secret cannot be read, or is not the cluster's.
        ActorError: it does not answer within ``client.timeout``.
        HaError: Redis cannot be used.
        ConfigurationError: a setting is wrong.
    """
    own = application_client()
    if own is not None and address is None and redis is None:
        return Cluster(cast(ClusterClient, own))
    configuration = Configuration.load(None if config is None else Path(config))
    configuration = configuration.overlaid(dict(settings or {}), "settings")
    if secret_file is not None:
        configuration = configuration.set(SecurityOptions.SECRET_FILE, Path(secret_file).expanduser())
    if redis is not None:
        configuration = configuration.set(HighAvailabilityOptions.REDIS_URL, SecretStr(redis))
        client = _by_redis(configuration)
    elif address is not None:
        client = _remote(configuration, (_any_path(address),))
    else:
        client = connect_local(configuration)
    try:
        client.overview()  # says now what is wrong, not at the first use
    except BaseException:
        client.close()
        raise
    return Cluster(client)


def _any_path(address: str) -> str:
    """An address as `ActorAddress` has it: of a master alone, its Dispatcher's."""
    bare = address.rstrip("/")
    return bare if "/" in bare.removeprefix("akka.tcp://") else f"{bare}/user/{DISPATCHER}"


def _remote(configuration: Configuration, systems: tuple[str, ...], **more: Any) -> ClusterClient:
    frame_size = configuration.get(RpcOptions.FRAME_SIZE)
    return ClusterClient(
        systems,
        load_secret(configuration.get(SecurityOptions.SECRET_FILE)),
        rpc=RpcConfig(frame_size=frame_size, tls=tls_config(configuration)),
        inline_limit=min(configuration.get(BlobOptions.OFFLOAD_MINSIZE), frame_size // 2),
        patience_s=configuration.get(ClientOptions.TIMEOUT),
        **more,
    )


def _by_redis(configuration: Configuration) -> ClusterClient:
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
            'name the cluster with settings={"cluster.id": "NAME"}, or start its masters',
        )
    return _remote(configuration, masters, find_masters=find_masters)


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
