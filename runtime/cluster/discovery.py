"""Clients of a running cluster: found by this machine's runtime directory, by Redis, by an address, or by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from actors.client import ActorClient
from actors.errors import AskTimeout, FencingError, RecipientUnreachable, UnknownActor
from actors.rpc.gateway import FencingToken
from actors.rpc.security import load_or_create_secret, load_secret
from actors.rpc.service import RpcConfig
from conf.configuration import Configuration
from conf.errors import ConfigurationFileError
from conf.options import (
    BlobOptions,
    ClientOptions,
    ClusterOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    RestOptions,
    RpcOptions,
    SecurityOptions,
)
from conf.values import is_loopback
from runtime.client import ClusterClient
from runtime.cluster.logins import stored_token
from runtime.cluster.output import say_anyway
from runtime.environment.context import has_redis, open_redis_services, tls_config
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.http_client import CONNECT_S, INLINE_LIMIT, HttpLink, WebAddress, WebClient
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, LeaderInformation

URL_VARIABLE = "UNDERSTUDY_URL"
TOKEN_VARIABLE = "UNDERSTUDY_TOKEN"  # noqa: S105
RETRY_S = 0.2
LEASES_WITHOUT_LEADER = 3
"""Number of leases after which a Redis without a leader means that no cluster runs."""

_PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout)


def connect(configuration: Configuration) -> ClusterClient:
    """Return a command's client: as `connect_as_configured`, for a user who waits.

    It says on standard error that the cluster does not answer, and gives up if all URLs refuse the first connection.
    """
    client = connect_as_configured(configuration, gives_up=True)
    client.tell_of_silence(say_anyway)
    return client


def connect_as_configured(configuration: Configuration, *, gives_up: bool = False) -> ClusterClient:
    """Return a client of the cluster at ``client.url`` or the environment's UNDERSTUDY_URL, else `connect_locally`.

    Args:
        configuration: of the client.
        gives_up: as of `HttpLink`.

    Raises:
        ClusterError, AuthenticationError, HttpError: the URL or the token cannot be used.
    """
    urls = urls_of(configuration)
    return connect_by_http(configuration, urls, gives_up=gives_up) if urls else connect_locally(configuration)


def is_remote(configuration: Configuration) -> bool:
    """Return whether `connect` reaches the cluster by HTTP, and so not by this machine's runtime directory."""
    return bool(urls_of(configuration))


def running_configuration(configuration: Configuration) -> Configuration:
    """Return the configuration of the cluster that runs in the configuration's runtime directory, else the given one.

    Raises:
        ConfigurationError: the cluster's configuration cannot be read.
    """
    file = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR)).configuration_file
    return Configuration.read(file) if file.exists() else configuration


def urls_of(configuration: Configuration) -> str | None:
    """Return the URLs by which `connect` reaches the cluster; None if it reaches it in another way."""
    return configuration.get(ClientOptions.URL) or os.environ.get(URL_VARIABLE) or None


def connect_by_http(
    configuration: Configuration, urls: str, token: str | None = None, *, gives_up: bool = False
) -> ClusterClient:
    """Return a client that reaches the cluster only by web endpoints.

    Arguments and errors as `web_client`; *gives_up* as of `HttpLink`.
    """
    web = web_client(configuration, urls, token)
    patience_s = configuration.get(ClientOptions.TIMEOUT)
    return ClusterClient.over(HttpLink(web, gives_up=gives_up), patience_s=patience_s, inline_limit=INLINE_LIMIT)


def web_client(
    configuration: Configuration, urls: str, token: str | None = None, *, is_public: bool = False
) -> WebClient:
    """Return what sends requests to a cluster's web endpoints.

    Args:
        configuration: of the client.
        urls: of the endpoints, with commas between them.
        token: sent to them; None: the environment's UNDERSTUDY_TOKEN, or ``client.token-file``, or the stored login.
        is_public: whether to send no token at all.

    Raises:
        ClusterError: others could read the token on its way, or the authorities' file or the login cannot be used.
        HttpError: an address is not valid.
        AuthenticationError: the token's file cannot be used.
    """
    endpoints = endpoints_of(urls)
    for endpoint in endpoints:
        is_private = endpoint.scheme == "https" or is_loopback(endpoint.host)
        if not is_private and not configuration.get(RestOptions.ALLOW_INSECURE):
            raise ClusterError(
                f"{endpoint} is not a loopback address: others could read the token and the jobs on their way",
                "use https://, or a tunnel to a port of this machine; rest.allow-insecure allows it anyway",
            )
    shown: str | Callable[[str], str] | None = token
    if token is None and not is_public:
        shown = _token(configuration, endpoints, urls)
    patience_s = configuration.get(ClientOptions.TIMEOUT)
    return WebClient(endpoints, shown, _trusted(configuration), min(CONNECT_S, patience_s))


def endpoints_of(urls: str) -> list[WebAddress]:
    """Return the addresses of web endpoints in a text with commas between them. Raises HttpError."""
    return [WebAddress.parse(url.strip()) for url in urls.split(",") if url.strip()]


def _token(configuration: Configuration, endpoints: list[WebAddress], urls: str) -> str | Callable[[str], str] | None:
    file = configuration.get(ClientOptions.TOKEN_FILE)
    if token := os.environ.get(TOKEN_VARIABLE):
        return token
    if file is not None:
        return load_secret(file, ClientOptions.TOKEN_FILE.key).decode()
    return stored_token(configuration, endpoints, lambda: web_client(configuration, urls, is_public=True))


def _trusted(configuration: Configuration) -> ssl.SSLContext | None:
    file = configuration.get(ClientOptions.CA_FILE)
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(
            f"client.ca-file: {file} cannot be used: {error}", "it must be a PEM file with certificates"
        ) from error


def connect_locally(configuration: Configuration) -> ClusterClient:
    """Return a client of the cluster that runs in the configuration's runtime directory.

    If no cluster was started there, find one on other hosts: by ``high-availability.redis.url``, or without Redis by
    ``jobmanager.rpc.address``, if that is set.

    Raises:
        ClusterNotRunning: no cluster runs, or Redis has no leader.
        ConfigurationError: the cluster's configuration cannot be read.
        HaError: Redis cannot be used.
        AuthenticationError: the secret cannot be read.
    """
    get, directory = configuration.get, ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if not directory.cluster_json.exists():
        if has_redis(configuration) and configuration.is_set(HighAvailabilityOptions.REDIS_URL):
            return connect_by_redis(configuration)
        if not has_redis(configuration) and configuration.is_set(JobManagerOptions.RPC_ADDRESS):
            address = f"akka.tcp://understudy@{get(JobManagerOptions.RPC_ADDRESS)}:{get(JobManagerOptions.RPC_PORT)}"
            return connect_by_address(configuration, (f"{address}/user/{DISPATCHER}",))
    descriptor = directory.read_descriptor()
    if not directory.is_running():
        raise ClusterNotRunning(
            f"the cluster in {directory.root} is not running: its master has ended",
            "`understudy start-master` takes it over, `stop` cleans up, `start` starts it again",
        )
    try:
        running = Configuration.read(directory.configuration_file)  # has the limits of the cluster itself
    except ConfigurationFileError as error:
        if directory.configuration_file.exists():
            raise
        raise ClusterNotRunning(
            f"the cluster in {directory.root} is being stopped or started", "retry when that has ended"
        ) from error
    return _client(
        running,
        (*directory.masters().values(), *descriptor.masters) or (descriptor.system_address,),
        load_or_create_secret(running.get(SecurityOptions.SECRET_FILE)),
        patience_s=get(ClientOptions.TIMEOUT),
        socket_dir=Path(descriptor.socket_dir),
        find_masters=lambda: tuple(directory.masters().values()),
        # The file outlives killed masters: another master may take over.
        was_stopped=lambda: not directory.configuration_file.exists() and not directory.is_running(),
    )


def connect_by_address(
    configuration: Configuration, systems: tuple[str, ...], find_masters: Callable[[], Iterable[str]] = tuple
) -> ClusterClient:
    """Return a client that knows these masters, and finds others by *find_masters*; raises AuthenticationError."""
    secret = load_secret(configuration.get(SecurityOptions.SECRET_FILE))
    patience_s = configuration.get(ClientOptions.TIMEOUT)
    return _client(configuration, systems, secret, patience_s=patience_s, find_masters=find_masters)


def _client(
    running: Configuration,
    systems: tuple[str, ...],
    secret: bytes,
    *,
    patience_s: float,
    socket_dir: Path | None = None,
    find_masters: Callable[[], Iterable[str]] = tuple,
    was_stopped: Callable[[], bool] = bool,
) -> ClusterClient:
    frame_size = running.get(RpcOptions.FRAME_SIZE)
    return ClusterClient(
        systems,
        secret,
        rpc=RpcConfig(socket_dir=socket_dir, frame_size=frame_size, tls=tls_config(running)),
        inline_limit=min(running.get(BlobOptions.OFFLOAD_MINSIZE), frame_size // 2),
        patience_s=patience_s,
        find_masters=find_masters,
        was_stopped=was_stopped,
    )


def connect_by_redis(configuration: Configuration) -> ClusterClient:
    """Return a client that finds the masters through the leader in Redis; raises as `connect`."""
    from runtime.ha.errors import HaUnreachableError

    def look() -> tuple[str, ...]:
        # On another thread, because the caller's may run a loop, as that of Jupyter's kernel does.
        with ThreadPoolExecutor(max_workers=1) as thread:
            leader = thread.submit(asyncio.run, _leader(configuration)).result()
        if leader is not None:
            with contextlib.suppress(*_PASSING):  # it has lost its leadership since
                return _masters_of(configuration, leader)
        return ()

    def find_masters() -> tuple[str, ...]:
        with contextlib.suppress(HaUnreachableError):  # Redis is being replaced: the client asks again
            return look()
        return ()

    deadline = time.monotonic() + configuration.get(HighAvailabilityOptions.LEASE) * LEASES_WITHOUT_LEADER
    while not (masters := look()) and time.monotonic() < deadline:
        time.sleep(RETRY_S)
    if not masters:
        raise ClusterNotRunning(
            f"Redis has no leader of the cluster {configuration.get(ClusterOptions.ID)!r}",
            'name the cluster by cluster.id (a notebook: settings={"cluster.id": "NAME"}), or start its masters',
        )
    return connect_by_address(configuration, masters, find_masters)


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
