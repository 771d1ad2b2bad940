"""The `Link` of a client that uses only the cluster's web endpoints: it needs no cluster secret and no RPC port.

Calls travel as requests ``POST /v1/gateways/<component>/<method>``, encoded as MessagePack by the type hints of the
gateways, as in RPC. Errors keep their types. Files and large values travel as blobs, through ``/v1/blobs``.

The client sends the token only to the addresses that the user has named. It follows no redirects, and ignores the
environment's proxies.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import msgpack

from actors.address import ActorAddress
from actors.errors import (
    ActorError,
    AddressError,
    AskTimeout,
    AuthenticationError,
    ClientClosed,
    FrameTooLarge,
    RecipientUnreachable,
    WireError,
    why_unreachable,
)
from actors.rpc.codec import MethodSpec, proxy_type
from actors.rpc.gateway import Ask, RpcGateway
from blob.errors import (
    BlobConnectionError,
    BlobProtocolError,
    BlobRequestRefused,
    BlobTooLarge,
    DigestMismatch,
)
from blob.gateway import BlobAddress
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from runtime.client import NoAnswerError
from runtime.protocol.http_gateways import HTTP_GATEWAYS, MASTER, MOST_OF_A_CALL, MSGPACK, OCTETS, error_of
from runtime.protocol.master import MasterGateway

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)
K = TypeVar("K", bound=BlobKey)

CONNECT_S = 10.0
REPLY_S = 75.0
"""Seconds to wait for an endpoint's answer: longer than the endpoint itself waits for any component."""
MOST_OF_AN_ANSWER = 256 * 1024 * 1024
MOST_OF_AN_ERROR = 64 * 1024
CALLS_AT_ONCE = 32
IDLE_CONNECTIONS = 8
IDLE_S = 30.0
"""Seconds after which an idle connection is not used again; endpoints close one after 60."""
CHUNK = 1024 * 1024
INLINE_LIMIT = MOST_OF_A_CALL - 64 * 1024
"""Largest number of bytes of a job graph, which travels in a call."""

WHERE_IT_IS = (
    "pass token=, set UNDERSTUDY_TOKEN or client.token-file, or log in with `understudy login` if the cluster has an "
    "issuer; `understudy token add` issues a token, and the cluster's own is in the file rest-token of its runtime "
    "directory (rest.authentication.token-file)"
)
_TOKEN = re.compile(r"[!-~]+")
_BUSY = (502, 503, 504)


class HttpError(ActorError):
    """A web endpoint cannot be used, or has rejected a request; repeating the request is of no use.

    Args:
        message: the problem, on one line.
        remedy: the action that solves it, on one line; may be empty.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class WebAddress:
    """Address of a web endpoint: scheme, host, port, and the path below which it serves (behind a proxy)."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @classmethod
    def parse(cls, text: str) -> WebAddress:
        """Parse a URL. Raises `HttpError` if it cannot be that of a web endpoint."""
        # The text before an @ may hold a password, so it is not shown.
        shown = repr(re.sub(r"//[^/]*@", "//", text)[:200])
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise HttpError(f"{shown} is not an address of a web endpoint: {error}", _FORM) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise HttpError(f"{shown} is not an address of a web endpoint", _FORM)
        if "@" in parts.netloc:
            raise HttpError(f"{shown} was given with a user or password", f"leave it out; {WHERE_IT_IS}")
        if re.search(r"[^!-~]", parts.path):
            raise HttpError(
                f"{shown} is not an address of a web endpoint: its path has blanks or letters to escape", _FORM
            )
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, parts.hostname, default if port is None else port, parts.path.rstrip("/"))


_FORM = "write it as https://HOST:8081, several with commas between them"


class WebClient:
    """Sends requests to the first of a cluster's web endpoints that answers.

    Args:
        endpoints: addresses of the endpoints.
        token: sent with every request, or a function that returns it and renews it in time; None if the endpoints
            require none. The function gets the token that an endpoint has refused, else an empty text. If it then
            returns another one, the request is repeated once.
        tls: for ``https``. Default: the authorities that the system trusts.
        connect_s: seconds that a connection may take.
    """

    def __init__(
        self,
        endpoints: Sequence[WebAddress],
        token: str | Callable[[str], str] | None,
        tls: ssl.SSLContext | None = None,
        connect_s: float = CONNECT_S,
    ) -> None:
        if isinstance(token, str):
            _check_token(token)
        self._endpoints = list(endpoints)
        self._token = token
        self._connect_s = connect_s
        is_secured = any(endpoint.scheme == "https" for endpoint in self._endpoints)
        self._tls = tls or (ssl.create_default_context() if is_secured else None)
        self._room = threading.BoundedSemaphore(CALLS_AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[tuple[WebAddress, float, http.client.HTTPConnection]] = []
        self._busy = set[http.client.HTTPConnection]()
        self._closed = False
        _clients.add(self)

    @property
    def endpoint(self) -> WebAddress:
        """Return the endpoint to which requests are sent now."""
        return self._endpoints[0]

    @property
    def endpoints(self) -> tuple[WebAddress, ...]:
        """Return all endpoints; requests are sent to the first one."""
        return tuple(self._endpoints)

    def turn_to_the_next(self) -> None:
        """Send requests to the next endpoint from now on, since the present one does not answer."""
        with self._lock:
            self._endpoints = [*self._endpoints[1:], self._endpoints[0]]

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Run *work*, which sends requests, on a separate thread."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a cancelled wait leaves the request under way

        def run() -> None:
            with self._room:
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        # A daemon thread, so that a program that ends does not wait for pending answers.
        threading.Thread(target=run, name="understudy-http", daemon=True).start()
        return future

    def request(
        self,
        method: str,
        target: str,
        body: bytes | io.BufferedReader | None = None,
        *,
        media: str = "",
        length: int | None = None,
    ) -> bytes:
        """Send one request and return the body of its answer.

        Args:
            method: the HTTP method.
            target: path and query, without the endpoint's own path.
            body: the request's body; a file is sent from its beginning.
            media: media type of the body.
            length: bytes of a body that is a file.

        Raises:
            RecipientUnreachable, AskTimeout: the endpoint, or the cluster behind it, does not answer at present.
            AuthenticationError: it requires a token, or another one.
            HttpError: it rejects the request.
            ActorError, BlobError, GatewayError: errors of the cluster.
        """
        endpoint = self.endpoint
        headers = {"Content-Type": media} if media else {}
        if length is not None:
            headers["Content-Length"] = str(length)
        token = self._shown()
        is_repeated = False
        while True:
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            connection, is_new = self._take(endpoint)
            is_usable = False
            try:
                answer, refusal = _exchange(endpoint, connection, method, endpoint.path + target, body, headers)
                is_usable = refusal is None
            except TimeoutError as error:
                raise AskTimeout(f"{endpoint} did not answer within {REPLY_S:g} s; the outcome is unknown") from error
            except (OSError, http.client.HTTPException) as error:
                # An idle connection may have been closed just now. Every request may be repeated, so repeat this one.
                if self._closed:
                    raise ClientClosed from error
                if is_new:
                    raise _unreachable(endpoint, error) from error
                continue
            finally:
                self._give_back(endpoint, connection, is_usable=is_usable)
            if refusal is None:
                return answer
            if token is None or is_repeated or not isinstance(refusal, AuthenticationError):
                raise refusal
            is_repeated, former = True, token
            token = self._shown(refused=former)
            if token == former:
                raise refusal

    def _shown(self, refused: str = "") -> str | None:
        """Return the token to show; None if the endpoints require none."""
        if self._token is None:
            return None
        token = self._token if isinstance(self._token, str) else self._token(refused)
        _check_token(token)
        return token

    def request_from_any(self, method: str, target: str, body: bytes | None = None, *, media: str = "") -> bytes:
        """Send one request, which may be repeated, to one endpoint after another until one can be reached.

        For arguments and errors see `request`.

        Raises:
            RecipientUnreachable: none can be reached.
        """
        first = self.endpoint
        while True:
            try:
                return self.request(method, target, body, media=media)
            except ClientClosed:
                raise
            except RecipientUnreachable:
                self.turn_to_the_next()
                if self.endpoint == first:
                    raise

    def _take(self, endpoint: WebAddress) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._closed:
                raise ClientClosed
            while self._idle:
                where, since, connection = self._idle.pop()
                if where == endpoint and time.monotonic() - since < IDLE_S and _is_quiet(connection.sock):
                    self._busy.add(connection)
                    return connection, False
                connection.close()
            connection = self._connection(endpoint)
            self._busy.add(connection)
        try:
            connection.connect()
        except BaseException as error:
            self._give_back(endpoint, connection, is_usable=False)
            if isinstance(error, ssl.SSLCertVerificationError):
                raise HttpError(
                    f"the certificate of {endpoint} is not trusted: {error.verify_message}",
                    "give the authority's PEM file as ca_file= or client.ca-file, and the name that is certified",
                ) from error
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise HttpError(f"{endpoint} does not speak TLS: {error.reason or error}", "is it http://?") from error
            if isinstance(error, OSError | UnicodeError):  # UnicodeError: of a name that is not a host's
                raise _unreachable(endpoint, error) from error
            raise
        connection.sock.settimeout(REPLY_S)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, True

    def _connection(self, endpoint: WebAddress) -> http.client.HTTPConnection:
        if endpoint.scheme == "http":
            return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=self._connect_s, blocksize=CHUNK)
        return http.client.HTTPSConnection(
            endpoint.host, endpoint.port, timeout=self._connect_s, context=self._tls, blocksize=CHUNK
        )

    def _give_back(self, endpoint: WebAddress, connection: http.client.HTTPConnection, *, is_usable: bool) -> None:
        """Keep a connection for the next request, or close it.

        Call it once for each `_take`, since another thread may take the connection at once.
        """
        with self._lock:
            self._busy.discard(connection)
            if is_usable and connection.sock is not None and not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append((endpoint, time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close all connections; requests under way end in `ClientClosed`. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for _, _, connection in idle:
            connection.close()
        for connection in busy:
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it has ended by itself
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def after_fork(self) -> None:
        """Forget the connections in a forked child, which leaves them to the parent."""
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CALLS_AT_ONCE)
        self._idle, self._busy = [], set()


def _check_token(token: str) -> None:
    if not _TOKEN.fullmatch(token):
        raise HttpError("the token is empty, or has blanks or other characters that none has", WHERE_IT_IS)


_clients: weakref.WeakSet[WebClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _is_quiet(sock: socket.socket | None) -> bool:
    """Return whether an idle connection is usable: it is readable if the peer has closed it or sent unexpected data."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _exchange(
    endpoint: WebAddress,
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | io.BufferedReader | None,
    headers: dict[str, str],
) -> tuple[bytes, Exception | None]:
    """Send a request and read its answer; return the body, and the error if the answer stands for one."""
    if isinstance(body, io.BufferedReader):
        body.seek(0)
    # An endpoint that rejects a long body answers and closes the connection while this end still sends.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, target, body, headers)
    response = connection.getresponse()
    if response.status >= 300:
        return b"", _error_of(endpoint, response, response.read(MOST_OF_AN_ERROR))
    data = response.read(MOST_OF_AN_ANSWER + 1)
    if len(data) > MOST_OF_AN_ANSWER:
        return b"", WireError(f"the answer has more than {MOST_OF_AN_ANSWER} bytes")
    if response.length:
        raise http.client.IncompleteRead(data, response.length)
    return data, None


def _unreachable(endpoint: WebAddress, error: Exception) -> RecipientUnreachable:
    return RecipientUnreachable(f"{endpoint} cannot be reached: {why_unreachable(error) or type(error).__name__}")


def _is_refused(cause: BaseException) -> bool:
    """Return whether no endpoint is where a connection was tried, as far as its failure shows."""
    return isinstance(cause, ConnectionRefusedError) or (
        isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
    )


def _error_of(endpoint: WebAddress, response: http.client.HTTPResponse, data: bytes) -> Exception:
    """Return the error that an answer stands for: the cluster's own error if the answer names its type."""
    status = response.status
    if 300 <= status < 400 and response.getheader("Location"):
        return HttpError(
            f"{endpoint} answers with a redirect (HTTP {status}), and the token is shown to no other address",
            "give the address of the web endpoint itself",
        )
    try:
        told: Any = json.loads(data)
        messages = told["errors"]
        message = "; ".join(map(str, messages))
        kind, exact = told.get("type"), told.get("message", message)
    except (ValueError, LookupError, TypeError, AttributeError):  # not one of ours: a proxy, another program
        return (RecipientUnreachable if status in _BUSY else HttpError)(f"{endpoint} answers with HTTP {status}")
    if isinstance(kind, str):
        return error_of(kind, str(exact))
    if status == 401:
        cause = "" if message.startswith("show a token") else f": {message}"
        return AuthenticationError(f"{endpoint} needs a valid token{cause}; {WHERE_IT_IS}")
    if status == 403:
        problem, _, remedy = message.rpartition("; ")
        return HttpError(f"{endpoint} refuses it: {problem or remedy}", remedy if problem else "")
    if status in _BUSY:
        return RecipientUnreachable(f"{endpoint}: {message}")
    if status == 413:
        return FrameTooLarge(message)
    return HttpError(f"{endpoint} refuses it (HTTP {status}): {message}")


class _Door:
    """The RPC service behind the gateways to one component: sends each of their calls as a request.

    Args:
        web: sends requests.
        name: of the component in paths.
        address: its actor's address; None where the name is sufficient.
    """

    def __init__(self, web: WebClient, name: str, address: ActorAddress | None) -> None:
        self._web = web
        self._name = name
        self._query = "" if address is None else "?" + urlencode({"address": str(address)})

    def ask(
        self, address: ActorAddress, spec: MethodSpec, arguments: list[Any], _token: object, timeout_s: float
    ) -> Any:
        """Send an ask (used by the generated gateways)."""
        return Ask(self._web.begin(partial(self._call, spec, arguments)), None, timeout_s)

    def tell(self, address: ActorAddress, name: str, arguments: list[Any], _token: object) -> None:
        """Reject a tell: clients only make asks."""
        raise _not_by_http(f"{self._name}.{name}()")

    def _call(self, spec: MethodSpec, arguments: list[Any]) -> Any:
        if spec.name not in HTTP_GATEWAYS[self._name].methods:
            raise _not_by_http(f"{self._name}.{spec.name}()")
        data: bytes = msgpack.packb(arguments, use_bin_type=True)
        if len(data) > MOST_OF_A_CALL:
            raise FrameTooLarge(f"the arguments of {spec.name}() have {len(data)} bytes, more than {MOST_OF_A_CALL}")
        answer = self._web.request("POST", f"/v1/gateways/{self._name}/{spec.name}{self._query}", data, media=MSGPACK)
        try:
            value = msgpack.unpackb(answer, raw=False, strict_map_key=False)
        except Exception as error:  # msgpack raises several unrelated types on malformed input
            raise WireError(f"the answer to {spec.name}() is not MessagePack: {type(error).__name__}") from error
        return spec.decode_result(value)


def _not_by_http(what: str) -> HttpError:
    return HttpError(
        f"{what} cannot be called by HTTP",
        "connect by akka.tcp://HOST:PORT with the cluster's secret (docs/notebooks.md)",
    )


class HttpBlobs:
    """The calls of a `BlobClient` that clients need, through the web endpoint, which calls the BlobServer.

    Args:
        web: sends requests.
        most: largest number of bytes of a request; larger files are rejected here, with the remedy.
    """

    def __init__(self, web: WebClient, most: int) -> None:
        self._web = web
        self._most = most

    def put_file(self, path: Path, key_type: type[K], job_id: str | None = None, /) -> K:
        """Upload a file as a blob of a job. Raises OSError where it cannot be read, and BlobError."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return self._put(file, size, lambda: hashlib.file_digest(file, "sha256").digest(), key_type, job_id)

    def put_bytes(self, data: bytes, key_type: type[K], job_id: str | None = None, /) -> K:
        """Upload *data* as a blob of a job; raises BlobError."""
        return self._put(data, len(data), lambda: hashlib.sha256(data).digest(), key_type, job_id)

    def _put(
        self,
        body: bytes | io.BufferedReader,
        size: int,
        digest: Callable[[], bytes],
        key_type: type[K],
        job_id: str | None,
    ) -> K:
        what = "a value" if isinstance(body, bytes) else str(body.name)
        if not issubclass(key_type, PermanentBlobKey) or job_id is None:
            raise BlobRequestRefused("by HTTP only files of a job are uploaded")
        if size > self._most:
            raise BlobTooLarge(
                f"{what} has {size} bytes, more than the {self._most} that the web endpoint takes: raise "
                "rest.server.max-content-length there"
            )
        sent = digest()
        with _as_blob_errors():
            answer = self._web.request("POST", f"/v1/blobs?job={job_id}", body, media=OCTETS, length=size)
        try:
            key = key_type(json.loads(answer)["key"])
        except (ValueError, LookupError, TypeError) as error:
            raise BlobProtocolError(f"{self._web.endpoint} has not said under which key it keeps {what}") from error
        if key.digest != sent:
            raise DigestMismatch(f"the cluster has stored another content than {what} has")
        return key

    def get_bytes(self, key: BlobKey, job_id: str | None = None, /) -> bytes:
        """Return a blob's content, verified by its key; raises BlobError."""
        owner = "" if job_id is None else f"?job={job_id}"
        with _as_blob_errors():
            data = self._web.request("GET", f"/v1/blobs/{key}{owner}")
        if hashlib.sha256(data).digest() != key.digest:
            raise DigestMismatch(f"the content that arrived for {key} does not match its digest")
        return data

    def delete(self, key: TransientBlobKey, job_id: str | None = None, /) -> bool:
        """Delete a transient blob; False if there was none."""
        with _as_blob_errors():
            answer = self._web.request("DELETE", f"/v1/blobs/{key}")
        return bool(json.loads(answer).get("deleted"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


@contextlib.contextmanager
def _as_blob_errors() -> Any:
    """Translate errors of the transport into those of a `BlobClient`."""
    try:
        yield
    except (RecipientUnreachable, AskTimeout) as error:
        raise BlobConnectionError(str(error)) from error
    except FrameTooLarge as error:
        raise BlobTooLarge(str(error)) from error


class HttpLink:
    """The `runtime.client.Link` of a plain thread over HTTP.

    Args:
        web: sends requests.
        gives_up: whether to give up if every endpoint refuses the connection, or has an unknown name, before one has
            answered. Default: they are tried again, because an endpoint that is being replaced refuses connections.
    """

    def __init__(self, web: WebClient, *, gives_up: bool = False) -> None:
        self._web = web
        self._about: Mapping[str, Any] | None = None
        self._gives_up = gives_up
        self._endpoints = web.endpoints
        self._refused = set[WebAddress]()

    @property
    def address(self) -> str:
        """Return the URL of the endpoint to which requests are sent now."""
        return str(self._web.endpoint)

    @property
    def sees_files(self) -> bool:
        return False

    @property
    def system(self) -> ActorAddress:
        return ActorAddress.parse(str(self._ask_about()["system"]))

    def _ask_about(self) -> Mapping[str, Any]:
        """Return the endpoint's description of itself, requested once from each endpoint."""
        if self._about is None:
            answer = self._web.request("GET", "/v1/gateways")
            try:
                about = json.loads(answer)
                ActorAddress.parse(about["system"])
                int(about["max-content-length"])
            except (ValueError, LookupError, TypeError, AddressError) as error:
                raise HttpError(
                    f"{self._web.endpoint} is not the web endpoint of an Understudy cluster that clients can use",
                    "check the address; an older cluster serves no clients by HTTP",
                ) from error
            self._about = about
        return self._about

    def described(self, name: str) -> str:
        return f"the cluster at {self._web.endpoint}"

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return a gateway to the component *name*; raises `HttpError` if clients cannot call it by HTTP."""
        known = HTTP_GATEWAYS.get(name)
        if known is None or not issubclass(known.gateway_type, gateway_type):
            raise _not_by_http(f"{gateway_type.__name__} of /user/{name}")
        return self._gateway(name, None, self.system.with_path(f"/user/{name}"), gateway_type)

    def lookup_address(self, address: ActorAddress | str, gateway_type: type[G]) -> G:
        """Return a gateway to a component of the cluster by its address; raises `HttpError` for any other actor."""
        return self.gateway(ActorAddress.parse(address) if isinstance(address, str) else address, gateway_type)

    async def leader(self, name: str, gateway_type: type[G], deadline: float) -> G:
        return self.lookup(name, gateway_type)

    async def lost(self, name: str, error: Exception) -> None:
        """Use the next endpoint.

        Raises *error* if it means a wrong token, or that the client was closed, and `NoAnswerError` if the link gives
        up.
        """
        if isinstance(error, AuthenticationError | ClientClosed):
            raise error
        self._about = None
        cause = error.__cause__ or error
        if _is_refused(cause):
            self._refused.add(self._web.endpoint)
        else:
            self._refused.clear()
        if self._gives_up and self._refused.issuperset(self._endpoints):
            raise NoAnswerError(
                f"no cluster answers at {', '.join(map(str, self._endpoints))}: {why_unreachable(cause)}; "
                "check client.url or UNDERSTUDY_URL, and whether the cluster runs"
            ) from error
        self._web.turn_to_the_next()

    def answered(self) -> None:
        self._gives_up = False

    def master(self) -> MasterGateway:
        return self.lookup(MASTER, MasterGateway)

    def gateway(self, address: ActorAddress, gateway_type: type[G], timeout_s: float | None = None) -> G:
        name = next((name for name, known in HTTP_GATEWAYS.items() if known.gateway_type is gateway_type), None)
        if name is None:
            raise _not_by_http(f"{gateway_type.__name__} of {address}")
        return self._gateway(name, address, address, gateway_type)

    def _gateway(self, name: str, named: ActorAddress | None, address: ActorAddress, gateway_type: type[G]) -> G:
        return cast("G", proxy_type(gateway_type)(_Door(self._web, name, named), address, None, REPLY_S + CONNECT_S))

    def blobs(self, address: BlobAddress) -> HttpBlobs:
        return HttpBlobs(self._web, int(self._ask_about()["max-content-length"]))

    async def reply(self, ask: Ask[T], timeout_s: float | None = None) -> T:
        return ask.result()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def blocking(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        """Close all connections."""
        self._web.close()
