"""The client by HTTP against the real server over a made-up cluster: calls, blobs, errors, TLS, and whom it trusts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from actors.errors import AuthenticationError, ClientClosed, UnknownActor
from blob.errors import BlobNotFound, BlobTooLarge, DigestMismatch, QuotaExceeded
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from conf.configuration import Configuration
from conf.options import ClientOptions
from runtime import http_client
from runtime.client import ClusterClient, NoAnswerError
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.discovery import connect, connect_by_http
from runtime.errors import ClusterError
from runtime.http_client import HttpError, HttpLink, WebAddress, WebClient
from runtime.ids import JobID, ResourceID
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph
from runtime.notebook import connect as connect_a_notebook
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError, SubmissionLimitError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.http_gateways import HTTP_GATEWAYS, MSGPACK
from runtime.protocol.leader import DISPATCHER
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.queues.admission import ALL_FILES
from runtime.rest.listening import listen
from runtime.rest.server import RestServer, tls_context
from runtime.users.identities import Role
from tests.fakes.certificates import CertificateAuthority
from tests.unit.test_rest_app import BLOB, MAX_CONTENT, TOKEN, UNKNOWN, MadeUpCluster, Site
from tests.unit.test_rest_messages import ID
from tests.unit.test_rest_roles import NEW, OwnedSite
from tests.waiting import PATIENCE_S

ENDED = JobID("2" * 32)


@dataclass
class Served:
    """A web endpoint, on a thread of its own."""

    cluster: MadeUpCluster
    port: int
    scheme: str
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@contextlib.contextmanager
def served(
    directory: Path, port: int = 0, authority: CertificateAuthority | None = None, site: Site | None = None
) -> Iterator[Served]:
    site, ready, places = site or Site(directory), threading.Event(), list[Any]()
    tls = None if authority is None else authority.issue("127.0.0.1")

    async def serve() -> None:
        listener = listen("127.0.0.1", [port], "rest.port")
        context = None if tls is None else tls_context(tls.certificate, tls.key)
        server = RestServer(site.app, listener, context, 50)
        await server.start()
        stopped = asyncio.Event()
        places.append((listener.getsockname()[1], asyncio.get_running_loop(), stopped))
        ready.set()
        await stopped.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    chosen, loop, stopped = places[0]

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(stopped.set)
            thread.join()

    try:
        yield Served(site.cluster, chosen, "http" if tls is None else "https", stop)
    finally:
        stop()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


@contextlib.contextmanager
def client_of(urls: str, token: str = TOKEN.decode(), timeout: str = "10 min") -> Iterator[ClusterClient]:
    configuration = Configuration.from_dict({"client.timeout": timeout})
    with connect_by_http(configuration, urls, token) as client:
        yield client


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    with socket.socket() as taken:  # does not listen
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def command_client(urls: str) -> Iterator[ClusterClient]:
    configuration = Configuration.from_dict({"client.timeout": "10 min"})
    with connect_by_http(configuration, urls, TOKEN.decode(), gives_up=True) as client:
        yield client


@pytest.fixture
def client(endpoint: Served) -> Iterator[ClusterClient]:
    with client_of(endpoint.url) as found:
        yield found


def web_client(url: str) -> WebClient:
    return WebClient([WebAddress.parse(url)], TOKEN.decode())


# ----------------------------------------------------------------------------- calls


def test_jobs_are_listed_looked_at_and_cancelled(endpoint: Served, client: ClusterClient) -> None:
    assert [job.job_id for job in client.list_jobs()] == [ID, ENDED]
    assert client.job(ID) == endpoint.cluster.running
    assert client.status_of(ENDED) is JobStatus.FINISHED
    client.cancel(ID)
    assert endpoint.cluster.cancelled == [ID]
    assert client.overview().task_managers == 1
    assert client.status().cluster_id == "made-up"


def test_a_job_is_watched_to_its_end(endpoint: Served, client: ClusterClient) -> None:
    cluster = endpoint.cluster
    cluster.answers["request_job_result"] = None
    looks = []
    for job in client.watch(ID, interval_s=0.01):
        looks.append(job.status)
        if len(looks) == 3:
            cluster.running = replace(cluster.running, status=JobStatus.FINISHED)
    assert looks == [JobStatus.RUNNING] * 3 + [JobStatus.FINISHED]
    cluster.answers["request_job_result"] = cluster.finished.result()
    assert client.result(ENDED) == cluster.finished.result()


def test_errors_are_those_of_rpc(client: ClusterClient) -> None:
    with pytest.raises(JobNotFoundError, match=UNKNOWN):
        client.job(UNKNOWN)
    with pytest.raises(JobAlreadyTerminatedError):
        client.cancel(ENDED)


def test_gateways_are_typed(endpoint: Served, client: ClusterClient) -> None:
    endpoint.cluster.answers["request_log_list"] = []
    dispatcher = client.lookup("dispatcher", DispatcherGateway)
    asks = [dispatcher.request_job_status(ID) for _ in range(1000)]
    assert {ask.result() for ask in asks} == {endpoint.cluster.running.status}
    assert client.task_executor(ResourceID("tm-0")).request_log_list().result() == []
    gone = client.lookup_address("akka.tcp://u@127.0.0.1:9/user/tm-9", TaskExecutorGateway)
    with pytest.raises(UnknownActor):
        gone.request_log_list().result()


async def test_an_ask_can_be_awaited(client: ClusterClient) -> None:
    gateway = await asyncio.to_thread(client.lookup, "dispatcher", DispatcherGateway)
    assert (await gateway.request_cluster_overview()).task_managers == 1


def test_what_is_not_for_clients_is_refused_here(endpoint: Served, client: ClusterClient) -> None:
    dispatcher = client.lookup("dispatcher", DispatcherGateway)
    with pytest.raises(HttpError, match="job_reached_terminal_state") as refused:
        dispatcher.job_reached_terminal_state(endpoint.cluster.finished).result()
    assert "akka.tcp" in refused.value.remedy
    with pytest.raises(HttpError, match="mine"):
        client.lookup("mine", DispatcherGateway)
    with pytest.raises(HttpError):
        client.lookup("dispatcher", ResourceManagerGateway)
    executor = client.lookup_address("akka.tcp://u@127.0.0.1:1/user/tm-0", TaskExecutorGateway)
    with pytest.raises(HttpError, match="notify_checkpoint_aborted"):
        executor.notify_checkpoint_aborted("1" * 32, 1)  # type: ignore[arg-type]
    assert client.lookup("master", MasterGateway).request_status().result().cluster_id == "made-up"
    assert endpoint.cluster.called[-1] == ("master", "request_status", ())


def test_a_notebook_is_connected_by_http(endpoint: Served) -> None:
    with connect_a_notebook(endpoint.url, token=TOKEN.decode()) as cluster:
        assert repr(cluster) == f"<Cluster at {endpoint.url}>"
        assert cluster.dispatcher.request_cluster_overview().slots == 2
        assert len(cluster.jobs()) == 2
        assert endpoint.url in cluster._repr_html_()


# ------------------------------------------------------------------------------ files


def test_a_job_is_submitted_with_its_files(endpoint: Served, client: ClusterClient, tmp_path: Path) -> None:
    script, library = tmp_path / "job.py", tmp_path / "library.zip"
    script.write_text("print(1)\n")
    library.write_bytes(bytes(range(256)) * 200)
    graph = JobGraph.for_script("job", created_ms=1)
    assert client.submit(graph, script, libraries=[(library, ArtifactRole.PY_FILE)]) == graph.job_id
    ((submitted, _),) = endpoint.cluster.submitted
    kept = {artifact.name: endpoint.cluster.blobs.kept[artifact.blob_key] for artifact in submitted.artifacts}
    assert kept == {"job.py": script.read_bytes(), "library.zip": library.read_bytes()}
    assert client.submit(JobGraph.for_script("small", created_ms=1), script)
    assert endpoint.cluster.submitted[-1][0].artifacts[0].content == b"print(1)\n"


def test_a_file_that_is_too_large_is_named_with_the_remedy(client: ClusterClient, tmp_path: Path) -> None:
    """The limit is the one of the server, which the client is told before it sends anything."""
    large = tmp_path / "large.zip"
    with large.open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    with client.blobs() as blobs, pytest.raises(BlobTooLarge, match=r"large.zip.*rest.server.max-content-length"):
        blobs.put_file(large, PermanentBlobKey, ID)


def test_what_the_server_alone_finds_too_large_is_said_too(client: ClusterClient) -> None:
    with client.blobs() as blobs, pytest.raises(BlobTooLarge, match=str(MAX_CONTENT)):
        blobs.put_bytes(b"x" * (MAX_CONTENT + 1), PermanentBlobKey, ID)
    assert client.overview().task_managers == 1


def job_of(client: ClusterClient, *sizes: int, directory: Path) -> JobID:
    """Submit a job with files of these sizes, the first of which is its script."""
    paths = [directory / f"file-{number}.zip" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"#" * size)
    libraries = [(path, ArtifactRole.PY_FILE) for path in paths[1:]]
    return client.submit(JobGraph.for_script("job", job_id=NEW, created_ms=1), paths[0], libraries=libraries)


def test_an_upload_is_announced_and_nothing_is_sent_if_it_is_refused(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    cluster, token = site.cluster, site.users.tokens[Role.USER].decode()
    with served(tmp_path, site=site) as found, client_of(found.url, token) as client:
        cluster.most_uploaded = 40_000
        shipped = r"it ships file-1\.zip \(30000 bytes\), file-0\.zip \(20000 bytes\)"
        with pytest.raises(
            SubmissionLimitError, match=rf"^job 'job' was not accepted: 50000 bytes; {shipped}; submit again in 10 s$"
        ):
            job_of(client, 20_000, 30_000, directory=tmp_path)
        assert (list(cluster.blobs.kept), cluster.uploads, cluster.submitted) == ([BLOB], [], [])
        cluster.most_uploaded = 50_000
        assert job_of(client, 20_000, 30_000, directory=tmp_path) == NEW
        announced, *files = cluster.uploads
        assert announced == (NEW, ALL_FILES, 50_000, "a-user", "job")
        assert [(size, owner) for _, _, size, owner, _ in files] == [(20_000, "a-user")] * 2 + [(30_000, "a-user")] * 2
        assert cluster.uploads_ended == []


def test_a_file_that_is_refused_by_itself_ends_the_upload(tmp_path: Path) -> None:
    """As one that has grown since its announcement: the endpoint answers before it has read the file."""
    site = OwnedSite(tmp_path)
    cluster, token = site.cluster, site.users.tokens[Role.USER].decode()
    with served(tmp_path, site=site) as found, client_of(found.url, token) as client:
        admit = cluster.admit_upload

        async def admit_upload(job_id: JobID, upload_id: str, *rest: Any) -> None:
            await admit(job_id, upload_id, *rest)
            if upload_id == ALL_FILES:
                cluster.most_uploaded = 25_000

        cluster.admit_upload = admit_upload  # type: ignore[method-assign]
        with pytest.raises(SubmissionLimitError, match="30000 bytes"):
            job_of(client, 20_000, 30_000, directory=tmp_path)
        assert len(cluster.blobs.kept) == 2
        assert (cluster.uploads_ended, cluster.submitted) == ([(NEW, "a-user")], [])
        assert client.overview().task_managers == 1


def test_an_endpoint_of_an_earlier_release_gets_the_files_without_an_announcement(
    endpoint: Served, client: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = HTTP_GATEWAYS[DISPATCHER]
    old = {**HTTP_GATEWAYS, DISPATCHER: replace(known, methods=known.methods - {"admit_upload", "end_upload"})}
    monkeypatch.setattr("runtime.rest.handlers.gateways.HTTP_GATEWAYS", old)
    assert job_of(client, 20_000, 30_000, directory=tmp_path) == NEW
    assert (endpoint.cluster.uploads, len(endpoint.cluster.blobs.kept)) == ([], 3)
    endpoint.cluster.blobs.failure = QuotaExceeded("the job holds as much as it may")
    with pytest.raises(QuotaExceeded):
        job_of(client, 20_000, 30_000, directory=tmp_path)


def test_blobs_are_fetched_verified_and_deleted(endpoint: Served, client: ClusterClient) -> None:
    with client.blobs() as blobs:
        key = TransientBlobKey(BLOB)
        assert blobs.get_bytes(key) == b"a blob"
        endpoint.cluster.blobs.kept[BLOB] = b"another"
        with pytest.raises(DigestMismatch):
            blobs.get_bytes(BlobKey.parse(BLOB))
        assert blobs.delete(key)
        assert not blobs.delete(key)
        with pytest.raises(BlobNotFound):
            blobs.get_bytes(key)
        endpoint.cluster.blobs.failure = QuotaExceeded("the job holds as much as it may")
        with pytest.raises(QuotaExceeded):
            blobs.put_bytes(b"x", PermanentBlobKey, ID)


# ----------------------------------------------------------------------- the endpoint


def test_a_wrong_token_is_said_at_once_and_nowhere_shown(endpoint: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with client_of(endpoint.url, "a-wrong-token") as client, pytest.raises(AuthenticationError) as refused:
        client.overview()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert "UNDERSTUDY_TOKEN" in str(refused.value)
    shown = [str(refused.value), repr(refused.value), caplog.text, repr(vars(client)), repr(client)]
    assert not any("a-wrong-token" in text for text in shown)
    assert endpoint.cluster.called == []


def test_another_endpoint_is_asked_when_one_is_gone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        served(tmp_path / "one") as one,
        served(tmp_path / "two") as two,
        client_of(f"{one.url}, {two.url}") as client,
    ):
        client.cancel(ID)
        one.stop()
        client.cancel(ID)
        assert client.status_of(ID) is two.cluster.running.status
    assert (one.cluster.cancelled, two.cluster.cancelled) == ([ID], [ID])


def test_an_endpoint_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    with served(tmp_path) as before, client_of(before.url) as client:
        assert client.overview().slots == 2
        before.stop()
        answers = list[Any]()
        waiting = threading.Thread(target=lambda: answers.append(client.overview()))
        waiting.start()
        with served(tmp_path, before.port):
            waiting.join(PATIENCE_S)
            assert [answer.slots for answer in answers] == [2]


def test_an_endpoint_that_stays_away_is_said_to(tmp_path: Path) -> None:
    with served(tmp_path) as gone:
        url = gone.url
    with client_of(url, timeout="300 ms") as client, pytest.raises(NoAnswerError, match=url):
        client.overview()


@pytest.mark.parametrize("command", ["job list", "status", f"job run {__file__}"])
def test_a_command_gives_up_at_once_if_every_endpoint_refuses_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERSTUDY_TOKEN", TOKEN.decode())
    with refusing() as one, refusing() as two:
        (tmp_path / "config.yaml").write_text(f"client.url: {one},{two}\nclient.timeout: 5 s\n")
        monkeypatch.setenv("UNDERSTUDY_CONF_DIR", str(tmp_path))
        done = CliRunner().invoke(cli, command)
    assert done.exit_code == ExitStatus.UNAVAILABLE
    assert f"no cluster answers at {one}, {two}: Connection refused" in done.stderr


def test_a_command_uses_the_endpoint_that_does_not_refuse_and_then_waits_for_its_return(tmp_path: Path) -> None:
    with refusing() as gone, served(tmp_path) as alive, command_client(f"{gone},{alive.url}") as client:
        assert client.overview().slots == 2
        alive.stop()
        answers = list[int]()
        waiting = threading.Thread(target=lambda: answers.append(client.overview().slots))
        waiting.start()
        with served(tmp_path, alive.port):
            waiting.join(PATIENCE_S)
            assert answers == [2]


def overview_until_closed(client: ClusterClient) -> None:
    with contextlib.suppress(ClientClosed):
        client.overview()


def test_a_command_says_that_the_first_answer_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.client.SILENCE_S", 0.0)
    lines, told = list[str](), threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client_of(url, timeout="7 s") as client:
            client.tell_of_silence(tell)
            waiting = threading.Thread(target=overview_until_closed, args=(client,))
            waiting.start()
            assert told.wait(PATIENCE_S)
            silent.accept()[0].close()
    waiting.join(PATIENCE_S)
    assert lines == [f"the cluster at {url} does not answer yet; trying for 7 s (client.timeout)"]


def test_closing_the_client_ends_what_waits(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        web = web_client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        future = web.begin(lambda: web.request("GET", "/v1/gateways"))
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(100)
            web.close()
            with pytest.raises(ClientClosed):
                future.result(PATIENCE_S)
        with pytest.raises(ClientClosed):
            web.request("GET", "/v1/gateways")


def test_a_closed_client_is_not_said_to_have_no_answer() -> None:
    with client_of("http://127.0.0.1:1", timeout="1 ms") as client:
        client.close()
        with pytest.raises(ClientClosed):
            client.overview()


def test_a_wait_that_is_cancelled_leaves_its_request_under_way() -> None:
    web, released = web_client("http://127.0.0.1:1"), threading.Event()
    future = web.begin(lambda: released.wait(PATIENCE_S))
    assert not future.cancel()
    released.set()
    assert future.result(PATIENCE_S)


# -------------------------------------------------------------------- whom it trusts


class Recorder:
    """A server that keeps what it is sent, and answers everything alike."""

    def __init__(self, status: bytes, body: bytes = b"", *headers: bytes) -> None:
        head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
        self._answer = b"\r\n".join(head) + b"\r\n\r\n" + body
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.received += connection.recv(65536)
                    connection.sendall(self._answer)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary Redirect", b"308 Permanent Redirect"])
def test_a_redirect_carries_the_token_nowhere(status: bytes) -> None:
    with Recorder(b"200 OK") as evil:
        where = b"Location: http://127.0.0.1:%d/v1/gateways" % evil.port
        with Recorder(status, b"", where) as endpoint, client_of(f"http://127.0.0.1:{endpoint.port}") as client:
            with pytest.raises(HttpError, match="redirect"):
                client.overview()
            assert TOKEN in endpoint.received
    assert evil.received == b""


def test_proxies_of_the_environment_are_not_used(endpoint: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder(b"502 Bad Gateway") as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        with client_of(endpoint.url) as client:
            assert client.overview().slots == 2
        assert proxy.received == b""


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (b"200 OK", b"<html>a router</html>"),
        (b"200 OK", b"{}"),
        (b"200 OK", b'{"system": "nonsense", "max-content-length": 1}'),
        (b"404 Not Found", b"<html>"),
        (b"403 Forbidden", b'{"errors": ["this name is not one of the endpoint\'s"]}'),
        (b"404 Not Found", b'{"errors": ["there is nothing of that name"]}'),
    ],
)
def test_what_is_no_web_endpoint_is_said_at_once(status: bytes, body: bytes) -> None:
    with (
        Recorder(status, body) as other,
        client_of(f"http://127.0.0.1:{other.port}") as client,
        pytest.raises(HttpError, match=str(other.port)),
    ):
        client.overview()


def test_what_a_role_does_not_allow_is_said_with_its_remedy() -> None:
    body = b'{"errors": ["user ada has the role viewer; this needs the role user; an admin grants a role"]}'
    with (
        Recorder(b"403 Forbidden", body) as other,
        client_of(f"http://127.0.0.1:{other.port}") as client,
        pytest.raises(
            HttpError, match=r"refuses it: user ada has the role viewer; this needs the role user$"
        ) as refused,
    ):
        client.overview()
    assert refused.value.remedy == "an admin grants a role"


@pytest.mark.parametrize("body", [b"\xc1", b"\x81\xa1a\x01", b"not MessagePack"])
def test_an_answer_of_another_form_is_an_error(endpoint: Served, client: ClusterClient, body: bytes) -> None:
    link = client._link
    assert isinstance(link, HttpLink)
    dispatcher = client.lookup("dispatcher", DispatcherGateway)
    with Recorder(b"200 OK", body, b"Content-Type: " + MSGPACK.encode()) as liar:
        link._web._endpoints = [WebAddress.parse(f"http://127.0.0.1:{liar.port}")]
        with pytest.raises(Exception, match=r"MessagePack|does not fit|expected") as found:
            dispatcher.request_masters().result()
        assert "Error" in type(found.value).__name__


def test_certificates_are_verified(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    trusted = authority.issue().ca
    with served(tmp_path, authority=authority) as endpoint:
        with client_of(endpoint.url) as stranger, pytest.raises(HttpError, match="not trusted") as refused:
            stranger.overview()
        assert "ca_file=" in refused.value.remedy
        with connect_a_notebook(endpoint.url, token=TOKEN.decode(), ca_file=trusted) as cluster:
            assert cluster.overview().slots == 2
        other_name = endpoint.url.replace("127.0.0.1", "localhost")
        with pytest.raises(HttpError, match="not trusted"):
            connect_a_notebook(other_name, token=TOKEN.decode(), ca_file=trusted)
        assert len(endpoint.cluster.called) == 2  # those of the one that trusts it
        plain = endpoint.url.replace("https", "http")
        with client_of(plain, timeout="100 ms") as client, pytest.raises((NoAnswerError, HttpError)):
            client.overview()


def test_https_to_an_endpoint_without_tls_is_said(endpoint: Served) -> None:
    with client_of(endpoint.url.replace("http", "https")) as client, pytest.raises(HttpError, match="TLS"):
        client.overview()


@pytest.mark.parametrize("url", ["http://spark.example.org:8081", "http://10.0.0.7:8081", "http://127.0.0.1.evil.org"])
def test_the_token_does_not_travel_readable_for_others(url: str) -> None:
    with pytest.raises(ClusterError, match="loopback") as refused:
        connect_by_http(Configuration.from_dict({}), f"https://a.example:8081,{url}", TOKEN.decode())
    assert "https://" in refused.value.remedy
    allowed = Configuration.from_dict({"rest.allow-insecure": "true"})
    connect_by_http(allowed, url, TOKEN.decode()).close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h:1",
        "https://",
        "https://h:99999",
        "https://user:secret@h:1",
        "https://h/?token=secret",
        "https://h/#x",
        "https://h/a b",
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(HttpError) as refused:
        WebAddress.parse(url)
    assert "secret@" not in str(refused.value)
    assert "user:secret" not in str(refused.value) + refused.value.remedy


def test_addresses_have_their_defaults() -> None:
    assert str(WebAddress.parse("https://h")) == "https://h:443"
    assert str(WebAddress.parse("http://[::1]/")) == "http://[::1]:80"
    assert str(WebAddress.parse("https://proxy.example/understudy/")) == "https://proxy.example:443/understudy"


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ü"])
def test_what_can_be_no_token_goes_into_no_header(endpoint: Served, token: str) -> None:
    with pytest.raises(HttpError, match="token") as refused:
        WebClient([WebAddress.parse(endpoint.url)], token)
    assert not token or token not in str(refused.value)


# --------------------------------------------------------------- where it is named


def test_the_environment_and_files_name_it(endpoint: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    file.chmod(0o600)
    nowhere = Configuration.from_dict({"cluster.runtime-dir": str(tmp_path / "runtime")})
    named = nowhere.set(ClientOptions.URL, endpoint.url).set(ClientOptions.TOKEN_FILE, file)
    with connect(named) as client:
        assert client.overview().slots == 2
    file.chmod(0o644)
    with pytest.raises(AuthenticationError, match="chmod 600"):
        connect(named)
    monkeypatch.setenv("UNDERSTUDY_TOKEN", TOKEN.decode())
    with connect(named) as client:
        assert client.overview().slots == 2
    monkeypatch.setenv("UNDERSTUDY_URL", endpoint.url)
    with connect(nowhere) as client, connect_a_notebook(settings={"cluster.id": "unused"}) as cluster:
        assert (client.address, cluster.address) == (endpoint.url, endpoint.url)
    with pytest.raises(ClusterError, match="ca-file"):
        connect(named.set(ClientOptions.CA_FILE, file))


def test_no_more_idle_connections_are_kept_than_are_of_use(endpoint: Served, client: ClusterClient) -> None:
    dispatcher = client.lookup("dispatcher", DispatcherGateway)
    for ask in [dispatcher.request_job_status(ID) for _ in range(40)]:
        ask.result()
    link = client._link
    assert isinstance(link, HttpLink)
    assert len(link._web._idle) <= http_client.IDLE_CONNECTIONS
    assert not link._web._busy
