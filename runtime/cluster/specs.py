"""How each component of one master is hosted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.errors import ActorError
from actors.process.host import HostSpec
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress
from conf.options import BlobOptions, ClusterOptions
from runtime.environment.context import ComponentContext, blob_store_url, log_config
from runtime.ids import JobID
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, REST_ENDPOINT, job_master
from runtime.protocol.web_monitor import RestAddress


class ComponentSpecs:
    """The components of one master.

    Args:
        context: their surroundings.
        suffix: of this master's logs and of its BlobServer's directory; empty for the first one.

    Attributes:
        blob: where the BlobServer of this master listens, once it has been started.
        rest: where the web endpoint of this master serves, once it has been started.
    """

    def __init__(self, context: ComponentContext, suffix: str) -> None:
        self._context = context
        self._suffix = suffix
        self.blob: BlobAddress | None = None
        self.rest: RestAddress | None = None

    def _spec(self, name: str, factory: str, arguments: dict[str, Any]) -> HostSpec:
        log = log_config(self._context.configuration, self._context.directory, name + self._suffix)
        return replace(self._context.host_spec(name, factory, **arguments), log=log)

    def blob_server(self) -> HostSpec:
        """The BlobServer; started again at the port that it had."""
        get, directory = self._context.configuration.get, self._context.directory
        wanted = 0 if self._suffix else get(BlobOptions.SERVER_PORT)
        local = Path(f"{directory.blob}{self._suffix}")
        local.mkdir(mode=0o700, exist_ok=True)
        arguments = {
            "directory": str(local),
            "store": blob_store_url(self._context.configuration),
            "host": get(ClusterOptions.HOST),
            "port": wanted if self.blob is None else self.blob.port,
            "options": {
                "max_connections": get(BlobOptions.MAX_CONNECTIONS),
                "transient_ttl": get(BlobOptions.CLEANUP_TTL),
                "cleanup_interval": get(BlobOptions.CLEANUP_INTERVAL),
                "disk_reserve": get(BlobOptions.DISK_RESERVE),
                "orphan_age": get(BlobOptions.CLEANUP_TTL),
                "timeout": get(BlobOptions.SERVER_SOCKET_TIMEOUT),
                "max_bytes": get(BlobOptions.SERVER_MAX_SIZE),
                "max_bytes_per_job": get(BlobOptions.JOB_MAX_SIZE),
            },
        }
        spec = self._spec(BLOB_SERVER, "runtime.metrics.blob_server:create", {})
        return replace(spec, arguments=arguments)

    def _blob_arguments(self) -> dict[str, Any]:
        if self.blob is None:
            raise ActorError("the BlobServer has not been started")
        host = self._context.configuration.get(ClusterOptions.HOST)
        return {"blob_host": host, "blob_port": self.blob.port}

    def resource_manager(self) -> HostSpec:
        """The ResourceManager."""
        return self._spec(RESOURCE_MANAGER, "runtime.resourcemanager.endpoint:create", self._blob_arguments())

    def dispatcher(self, factory: str, master_address: str) -> HostSpec:
        """The Dispatcher that *factory* makes, which has JobMasters started by the master at that address."""
        arguments = {"master_address": master_address, **self._blob_arguments()}
        return self._spec(DISPATCHER, factory, arguments)

    def web_monitor(self) -> HostSpec:
        """The web endpoint; started again at the port that it had."""
        arguments = {"port": 0 if self.rest is None else self.rest.port, "others_serve": bool(self._suffix)}
        return self._spec(REST_ENDPOINT, "runtime.rest.endpoint:create", arguments)

    def job_master(self, job_id: JobID) -> HostSpec:
        """The JobMaster of a job."""
        arguments = {"job_id": job_id, **self._blob_arguments()}
        spec = self._spec(job_master(job_id), "runtime.jobmaster.endpoint:create", arguments)
        return replace(spec, prepare="runtime.jobmaster.endpoint:prepare")
