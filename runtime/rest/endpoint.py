"""The WebMonitorEndpoint: an elected component that serves the REST API (Flink's `WebMonitorEndpoint`).

Each master has one. All of them serve requests, and ask the leading components; the cluster lists the elected one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.gateway import FencingToken, rpc_sync
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcService
from conf.configuration import Configuration
from conf.options import ClusterOptions, ConnectOptions, HighAvailabilityOptions, OidcOptions, RestOptions
from runtime.environment.context import ComponentContext
from runtime.ha.services import CONNECT_SESSIONS, HighAvailabilityServices
from runtime.history.reader import ClusterHistory
from runtime.leadership import LeaderEndpoint
from runtime.metrics.prometheus import PushReporter, exposition
from runtime.protocol.leader import REST_ENDPOINT, LeaderTerm
from runtime.protocol.web_monitor import RestAddress, WebMonitorGateway
from runtime.rest.access import AccessPolicy
from runtime.rest.app import RestApplication
from runtime.rest.authorization import KnownIdentities
from runtime.rest.backend import ClusterBackend
from runtime.rest.context import Rest
from runtime.rest.history_writer import HistoryWriter
from runtime.rest.issuer import Issuer, device_offer_of
from runtime.rest.listening import (
    allowed_hosts,
    bind_address,
    check_exposure,
    exposure_warning,
    listen,
    ports,
    ports_key,
)
from runtime.rest.page_login import PageLogin
from runtime.rest.server import RestServer, tls_context
from runtime.rest.snapshots import Snapshots
from runtime.users.audit import AuditLog

if TYPE_CHECKING:
    from runtime.rest.connect.gateway import ConnectGateway


class WebMonitorEndpoint(LeaderEndpoint, WebMonitorGateway):
    """The component that serves HTTP, from its start to its end.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        context: its environment.
        port: the port of the endpoint that this one replaces; 0 to choose one by the configuration.
        others_serve: whether other masters of the machine have an endpoint: then it takes any free port if necessary.
    """

    def __init__(
        self,
        service: RpcService,
        name: str,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        context: ComponentContext,
        port: int = 0,
        *,
        others_serve: bool = False,
    ) -> None:
        super().__init__(service, name, ha.leader_election(REST_ENDPOINT), receptionist)
        self._ha = ha
        self._context = context
        self._wanted = port
        self._others_serve = others_serve
        self._backend = ClusterBackend(self, ha, context.configuration, context.system)
        self._server: RestServer | None = None
        self._connect: ConnectGateway | None = None
        self._closing = asyncio.Event()
        self._where: RestAddress | None = None
        self._reporter = PushReporter.of(context.configuration, self._metrics)
        self._history = HistoryWriter.of(context.configuration, self._backend)

    async def on_start(self) -> None:
        await self._backend.start()
        configuration = self._context.configuration
        check_exposure(configuration)
        host = bind_address(configuration)
        wanted = [self._wanted] if self._wanted else []
        wanted += [*ports(configuration), *([0] if self._others_serve else [])]
        listener = listen(host, wanted, ports_key(configuration))
        port = listener.getsockname()[1]
        secured = configuration.get(RestOptions.SSL_ENABLED)
        shown = configuration.get(RestOptions.ADDRESS).strip("[]")
        scheme = "https" if secured else "http"
        url = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}"
        self._where = RestAddress(url, port)
        policy = self._access_policy(configuration, scheme)
        issuer = Issuer.of(configuration)
        identities = KnownIdentities(self._ha.user_store().read, issuer=issuer)
        audit = AuditLog(self._context.directory.audit_log)
        page_login = PageLogin.of(configuration, issuer, identities, policy)
        app = self._application(configuration, url, policy, identities, audit, page_login)
        certificate, private = configuration.get(RestOptions.SSL_CERTIFICATE), configuration.get(RestOptions.SSL_KEY)
        files = (certificate, private) if secured and certificate and private else None
        tls = None if files is None else tls_context(*files)
        self._server = RestServer(app, listener, tls, configuration.get(RestOptions.MAX_CONNECTIONS))
        await self._server.start()
        self.log.info("the REST API is served at %s", url)
        if configuration.get(ConnectOptions.ENABLED):
            await self._serve_connect(host, files, policy, identities, audit)
        if warning := exposure_warning(configuration):
            self.log.warning("%s", warning)
        await super().on_start()

    async def _serve_connect(
        self,
        host: str,
        tls: tuple[Path, Path] | None,
        policy: AccessPolicy,
        identities: KnownIdentities,
        audit: AuditLog,
    ) -> None:
        from runtime.rest.connect.gateway import ConnectGateway  # gRPC takes 50 ms and 20 MB, which few clusters need
        from runtime.rest.connect.record_files import RecordFiles

        get = self._context.configuration.get
        directory = get(HighAvailabilityOptions.STORAGE_DIR) / get(ClusterOptions.ID) / CONNECT_SESSIONS
        idle_timeout_s, most_recorded = get(ConnectOptions.IDLE_TIMEOUT), get(ConnectOptions.MOST_RECORDED)
        records = RecordFiles(directory, idle_timeout_s)
        self._connect = ConnectGateway(self._backend, identities, policy, idle_timeout_s, audit, records, most_recorded)
        port = await self._connect.start(host, get(ConnectOptions.PORT), tls, self._context.directory.run)
        self.log.info("Spark Connect clients are served at port %d of %s", port, host)

    def _access_policy(self, configuration: Configuration, scheme: str) -> AccessPolicy:
        get = configuration.get
        file, key = get(RestOptions.TOKEN_FILE), RestOptions.TOKEN_FILE.key
        token = load_or_create_secret(file, key) if get(RestOptions.TOKEN_ENABLED) else None
        has_issuer = get(OidcOptions.ISSUER) is not None
        return AccessPolicy(
            token, allowed_hosts(configuration), scheme, get(RestOptions.MAX_CONTENT_LENGTH), has_issuer=has_issuer
        )

    def _application(
        self,
        configuration: Configuration,
        url: str,
        policy: AccessPolicy,
        identities: KnownIdentities,
        audit: AuditLog,
        page_login: PageLogin | None,
    ) -> RestApplication:
        get = configuration.get
        snapshots = Snapshots(get(RestOptions.REFRESH_INTERVAL), asyncio.get_running_loop().time)
        directory = self._context.directory
        history = ClusterHistory(get(ClusterOptions.ID), directory.root, configuration)
        rest = Rest(
            self._backend,
            snapshots,
            configuration,
            directory.log,
            url,
            self._closing,
            identities=identities,
            histories=(history,),
        )
        max_content, with_token = get(RestOptions.MAX_CONTENT_LENGTH), get(RestOptions.TOKEN_ENABLED)
        return RestApplication(
            rest,
            policy,
            max_content,
            with_token=with_token,
            audit=audit,
            offer=device_offer_of(configuration),
            page_login=page_login,
        )

    async def on_stop(self) -> None:
        self._closing.set()
        if self._history is not None:
            await self._history.stop()
        if self._reporter is not None:
            await self._reporter.stop(forget=True)
        if self._connect is not None:
            await self._connect.stop()
        if self._server is not None:
            await self._server.stop()
        await super().on_stop()
        await self._backend.stop()
        await self._ha.close()

    async def lead(self, term: LeaderTerm) -> None:
        """Begin to send metrics and to write the history, as only the leader does; every endpoint serves requests."""
        if self._history is not None:
            self._history.start()
        if self._reporter is not None:
            self._reporter.start()

    async def on_revoked(self) -> None:
        """Stop sending metrics and writing the history, and keep serving requests."""
        if self._history is not None:
            await self._history.stop()
        if self._reporter is not None:
            await self._reporter.stop()

    async def _metrics(self) -> str:
        return exposition((await self._backend.metrics()).scopes)

    def check_token(self, token: FencingToken | None) -> None:
        """Check the fencing token of callers that need the leader; the endpoint's own master shows none."""
        if token is not None:
            super().check_token(token)

    @rpc_sync
    def request_rest_address(self) -> RestAddress:
        if self._where is None:
            raise RuntimeError(f"{self.path} has not begun to serve")
        return self._where


async def create(
    service: RpcService, name: str, *, runtime_dir: str, system: str, port: int, others_serve: bool
) -> WebMonitorEndpoint:
    """Create the endpoint, in the process that hosts the actor."""
    context = ComponentContext.read(runtime_dir, system)
    return WebMonitorEndpoint(
        service,
        name,
        await context.ha_services(service),
        receptionist_of(service, context.system),
        context,
        port,
        others_serve=others_serve,
    )
