"""Finding a cluster: the one of this machine, one by an address, or one by its Redis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from conf.configuration import Configuration
from conf.options import HighAvailabilityOptions, SecurityOptions
from conf.secret import SecretStr
from runtime.application.client import application_client
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_by_address, connect_by_redis
from runtime.cluster.session import connect as connect_local
from runtime.notebook.cluster import Cluster
from runtime.protocol.leader import DISPATCHER


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
        client = connect_by_redis(configuration)
    elif address is not None:
        client = connect_by_address(configuration, (_any_path(address),))
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
