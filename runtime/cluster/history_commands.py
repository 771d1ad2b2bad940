"""The commands ``understudy history-server``, Spark's History Server behind a proxy, and ``understudy history``."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.files import make_private
from conf.options import (
    ClusterOptions,
    EnvironmentOptions,
    HighAvailabilityOptions,
    HistoryOptions,
    RestOptions,
    SparkOptions,
)
from runtime.cluster.command_line import configured, examples, readable_errors
from runtime.cluster.output import print_line, say
from runtime.errors import ClusterError

if TYPE_CHECKING:
    from runtime.environment.claims import Claim
    from runtime.history.reader import ClusterHistory
    from runtime.spark.history_server import HistoryServer
    from runtime.users.identities import Identities

DEFAULT_PORT = 18080
"""The port of Spark's own History Server."""
LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 64

HISTORY_REFRESH_S = 5.0
"""How often a page asks for the history anew, unless `web.refresh-interval` is set."""

_WATCH_S = 0.5
_BACKLOG = 128
_PASSED_ON = ("spark.history.", "spark.hadoop.")
"""Prefixes of the cluster's settings that the History Server gets."""


@click.command(
    name="history-server",
    epilog=examples(
        "understudy history-server",
        "understudy history-server --port 0",
        "understudy history-server -D spark.history.retainedApplications=10",
    ),
)
@configured
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port on loopback; 0 takes a free one.",
)
def history_server(configuration: Configuration, port: int) -> None:
    """Serve Spark's own pages of all drivers, running and ended, until Ctrl-C. The cluster need not run.

    It prints a link that logs in once. Clients show a token of a user with the role operator or admin, or the
    cluster's own (rest-token), as a bearer token.
    """
    given = configuration.spark_properties()
    logs = event_log_url(given, configuration.get(ClusterOptions.RUNTIME_DIR))
    with readable_errors():
        asyncio.run(_serve(configuration, logs, port, given))


def event_log_url(given: Mapping[str, str], runtime_dir: Path) -> str:
    """Return the URL of the event logs of a cluster's drivers: a user's own directory, or the cluster's.

    Args:
        given: the cluster's settings of Spark.
        runtime_dir: its runtime directory.

    Raises:
        ClusterError: it is a directory of this machine that does not exist, and no running driver serves its UI.
    """
    from runtime.environment.directory import EVENT_LOGS
    from runtime.rest.spark_links import local_directory, log_directory
    from runtime.spark.driver.ui import find_uis

    url = log_directory(given, runtime_dir)
    directory = local_directory(url)
    if directory is not None and not directory.is_dir():
        if directory != runtime_dir / EVENT_LOGS or not find_uis(runtime_dir):
            raise ClusterError(
                f"there are no event logs of Spark: {directory} does not exist; and no running driver serves its UI",
                f"run a job first, in a cluster without {SparkOptions.EVENT_LOG_ENABLED.key}=false; or name another "
                "cluster with -D cluster.runtime-dir=DIR",
            )
        make_private(directory)
    return url


async def _serve(configuration: Configuration, logs: str, port: int, given: Mapping[str, str]) -> None:
    import tempfile

    from runtime.environment.directory import ClusterDirectory
    from runtime.rest.authorization import KnownIdentities
    from runtime.rest.server import RestServer
    from runtime.rest.spark_history import LIVE, LOGIN, HistoryProxy, Logins, Upstream
    from runtime.spark.driver.ui import find_uis, token
    from runtime.spark.history_server import HistoryServer
    from runtime.users.audit import AuditLog

    get = configuration.get
    java_home = get(EnvironmentOptions.JAVA_HOME)
    settings = {key: value for key, value in given.items() if key.startswith(_PASSED_ON)}
    log_dir = get(ClusterOptions.RUNTIME_DIR) / "log"
    log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def live(application: str) -> Upstream | None:
        info = find_uis(get(ClusterOptions.RUNTIME_DIR)).get(application)
        if info is None:
            return None
        return Upstream(info.ui_port, token(bytes.fromhex(info.ui_key), time.time()), LIVE + application)

    with tempfile.TemporaryDirectory(prefix="us-history-") as scratch, _listen(port) as listener:
        say("Spark's History Server starts ...")
        upstream = await HistoryServer.start(
            logs,
            Path(scratch),
            log_dir / "history-server.log",
            settings,
            None if java_home is None else str(java_home),
            get(SparkOptions.DRIVER_START_TIMEOUT),
        )
        try:
            own_port, code = listener.getsockname()[1], secrets.token_urlsafe(32)
            proxy = HistoryProxy(
                Logins(_token(configuration), code),
                own_port,
                lambda: Upstream(upstream.port, upstream.token()),
                lambda: secrets.token_urlsafe(32),
                KnownIdentities(lambda: read_users(configuration)),
                live,
                AuditLog(ClusterDirectory(get(ClusterOptions.RUNTIME_DIR)).audit_log),
            )
            server = RestServer(proxy, listener, None, MAX_CONNECTIONS)
            await server.start()
            claim = None
            try:
                claim = _announce(configuration, own_port)
                print_line(f"Spark's history: http://{LOOPBACK}:{own_port}{LOGIN}?code={code}")
                say("the link works once; Ctrl-C ends the server")
                await _until_over(stopped, upstream)
            finally:
                if claim is not None:
                    claim.forget()
                await server.stop()
        finally:
            upstream.stop()


def _announce(configuration: Configuration, port: int) -> Claim | None:
    """Let the web page and `job info` link to this server; return the claim, or None if another one is announced."""
    from runtime.environment.descriptor import ProcessRecord
    from runtime.environment.directory import ClusterDirectory

    claim = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR)).history_server_claim()
    if not claim.try_acquire():
        say("another `understudy history-server` of this cluster runs: the web page links to that one")
        return None
    claim.note(ProcessRecord.of("history-server", os.getpid()), f"http://{LOOPBACK}:{port}")
    return claim


async def read_users(configuration: Configuration) -> Identities:
    """Return the users of a cluster and their tokens, also of a stopped one if its store is still there.

    Args:
        configuration: of the command. That of the running cluster counts instead, since it names the embedded Redis.

    Raises:
        HaError: the store does not answer, or cannot be read.
    """
    from runtime.cluster.discovery import running_configuration
    from runtime.environment.context import has_redis, open_redis_services
    from runtime.environment.directory import ClusterDirectory
    from runtime.ha.errors import HaUnreachableError
    from runtime.ha.user_store import UserFile
    from runtime.users.identities import Identities

    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    try:
        configuration = running_configuration(configuration)
    except ConfigurationError as error:
        raise HaUnreachableError(f"the cluster's configuration cannot be read: {error}", str(error)) from error
    if not has_redis(configuration):
        return Identities(await asyncio.to_thread(UserFile(directory.users).read))
    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:
        raise HaUnreachableError("the cluster's Redis, which has its users, does not run", "the cluster is stopped")
    services = open_redis_services(configuration)
    try:
        return await services.user_store().read()
    finally:
        await services.close()


async def _until_over(stopped: asyncio.Event, upstream: HistoryServer) -> None:
    """Wait for a signal. Raises ClusterError if the History Server ends before."""
    while not stopped.is_set():
        if not upstream.lives:
            raise ClusterError("Spark's History Server has ended", "its log is log/history-server.log")
        try:
            await asyncio.wait_for(stopped.wait(), _WATCH_S)
        except TimeoutError:
            continue


def _token(configuration: Configuration) -> bytes | None:
    """Return the token of the cluster; None if there is none, such as after `understudy stop`."""
    from actors.rpc.security import load_secret

    path = configuration.get(RestOptions.TOKEN_FILE)
    return load_secret(path, RestOptions.TOKEN_FILE.key) if path.exists() else None


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on loopback. Raises ClusterError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise ClusterError(
            f"port {port} of {LOOPBACK} is taken, or only root's", "choose another with --port; 0 takes a free one"
        ) from error
    return listener


# ------------------------------------------------------------ understudy history


@click.command(
    epilog=examples(
        "understudy history",
        "understudy history --port 0 -D cluster.id=nightly",
        "understudy history --dir ~/.understudy/default --dir ~/.understudy/nightly",
    ),
)
@configured
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Runtime directory of a cluster; repeatable.  [default: cluster.runtime-dir]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port; 0 takes a free one.  [default: historyserver.web.port]"
)
def history(configuration: Configuration, directories: tuple[Path, ...], port: int | None) -> None:
    """Serve the web page and the REST API of a cluster's history, read only, until Ctrl-C. The cluster need not run.

    It shows ended jobs, jobs that the cluster did not end, figures over time and the audit log.
    """
    with readable_errors():
        roots = [directory.expanduser().resolve() for directory in directories]
        if roots:
            configuration = configuration.set(ClusterOptions.RUNTIME_DIR, roots[0])
        if not configuration.is_set(RestOptions.REFRESH_INTERVAL):
            configuration = configuration.set(RestOptions.REFRESH_INTERVAL, HISTORY_REFRESH_S)
        histories = open_histories(configuration, roots or [configuration.get(ClusterOptions.RUNTIME_DIR)])
        asyncio.run(_serve_history(configuration, histories, port))


def open_histories(configuration: Configuration, roots: Sequence[Path]) -> list[ClusterHistory]:
    """Return the histories of clusters; if two have the same name, it is followed by the directory.

    Args:
        configuration: of the command.
        roots: their runtime directories.

    Raises:
        ClusterError: a directory holds no history.
    """
    from runtime.history.reader import ClusterHistory

    histories = [ClusterHistory.open(root, configuration) for root in dict.fromkeys(roots)]
    named = Counter(history.name for history in histories)
    for each in histories:
        if named[each.name] > 1:
            each.name = f"{each.name} ({each.directory.root})"
    return histories


async def _serve_history(configuration: Configuration, histories: Sequence[ClusterHistory], port: int | None) -> None:
    from actors.rpc.security import load_or_create_secret
    from runtime.rest.authorization import KnownIdentities, nobody
    from runtime.rest.history import history_application
    from runtime.rest.listening import bind_address, check_exposure, listen
    from runtime.rest.server import RestServer, tls_context

    get = configuration.get
    check_exposure(configuration)
    secured, file = get(RestOptions.SSL_ENABLED), get(RestOptions.TOKEN_FILE)
    certificate, private = get(RestOptions.SSL_CERTIFICATE), get(RestOptions.SSL_KEY)
    tls = tls_context(certificate, private) if secured and certificate and private else None
    token = load_or_create_secret(file, RestOptions.TOKEN_FILE.key) if get(RestOptions.TOKEN_ENABLED) else None
    # A user belongs to one cluster, and must not see the jobs of another one.
    users = KnownIdentities((lambda: read_users(configuration)) if len(histories) == 1 else nobody)
    stopped, closing = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    wanted = get(HistoryOptions.PORT) if port is None else port
    with listen(bind_address(configuration), [wanted], HistoryOptions.PORT.key, "") as listener:
        shown = get(RestOptions.ADDRESS).strip("[]")
        scheme = "https" if secured else "http"
        url = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"
        application = history_application(histories, configuration, url, closing, token, users)
        server = RestServer(application, listener, tls, get(RestOptions.MAX_CONNECTIONS))
        await server.start()
        try:
            for each in histories:
                jobs = await asyncio.to_thread(each.jobs)
                say(f"{each.name}: {len(jobs)} job{'' if len(jobs) == 1 else 's'} in {each.directory.root}")
                for line in each.damaged():
                    say(f"warning: {line}")
            print_line(f"the history of {', '.join(each.name for each in histories)}: {url}/")
            if token is None:
                say(f"WARNING: {RestOptions.TOKEN_ENABLED.key} is false: everyone who reaches this address reads it")
            say(f"it asks for the token in {file}; Ctrl-C ends the server" if token else "Ctrl-C ends the server")
            await stopped.wait()
        finally:
            closing.set()
            await server.stop()
