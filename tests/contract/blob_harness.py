"""A real blob server for the blob tests, driven from synchronous test code, and a peer that speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from actors.rpc.security import TARGET_SIZE
from actors.rpc.wire import TAG_SIZE, Tags
from blob.client import BlobClient
from blob.errors import BlobProtocolError
from blob.key import DIGEST_SIZE
from blob.protocol import (
    INLINE_CONTENT,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    SERVICE,
    Operation,
    Request,
    Response,
    Status,
)
from blob.server import BlobServer
from blob.settings import BlobServerOptions
from blob.store import BlobStore
from tests.handshakes import authenticate_client_socket
from tests.waiting import PATIENCE_S

T = TypeVar("T")
SECRET = b"the secret of this test cluster"
JOB = "0123456789abcdef" * 2
OTHER_JOB = "f" * 32
OPTIONS = BlobServerOptions(disk_reserve=0, resume_window=0.0)


def digest_of(data: bytes) -> bytes:
    """The digest that a key has."""
    return hashlib.sha256(data).digest()


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait for *condition*, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition did not come about"
        time.sleep(0.005)


class Served:
    """A running server on an event loop of its own; a context manager."""

    def __init__(
        self,
        directory: Path,
        store: BlobStore | None = None,
        options: BlobServerOptions = OPTIONS,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = BlobServer(directory, SECRET, store=store, options=options, port=port, tls=tls)
        try:
            self.do(self.server.start())
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.do(self.server.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def client(self, **options: Any) -> BlobClient:
        return BlobClient(self.server.address, SECRET, **{"retries": 1, "timeout": PATIENCE_S, **options})

    def files(self) -> list[str]:
        """Everything below the directory that is visible or half-written, as relative names."""
        return sorted(
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if path.is_file() and path.name not in ("lock", "fence")
        )


class _Tagger:
    """Puts the tags into a client's stream of requests, contents and digests, wherever it is cut."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._message = b""
        self._due = REQUEST_SIZE
        self._content = 0
        self._length = 0

    def feed(self, data: bytes) -> bytes:
        tagged = b""
        while data:
            piece = data[: self._content or self._due - len(self._message)]
            data = data[len(piece) :]
            tagged += piece
            if self._content:
                self._content -= len(piece)
            else:
                self._message += piece
            if len(self._message) == self._due:
                tagged += self._tags.next(self._message)
                self._after(self._message)
        return tagged

    def _after(self, message: bytes) -> None:
        self._message, self._due = b"", REQUEST_SIZE
        if len(message) == REQUEST_SIZE:
            with contextlib.suppress(BlobProtocolError):
                request = Request.decode(message)
                if request.operation is Operation.PUT:
                    self._due, self._content, self._length = DIGEST_SIZE, request.length, request.length

    def answered(self, response: Response) -> None:
        """The server has said how much of a content it has already, or that it wants none of a large one."""
        if response.status is Status.CONTINUE:
            self._content = self._length - response.length
        elif self._length > INLINE_CONTENT:
            self._message, self._due, self._content = b"", REQUEST_SIZE, 0


class RawPeer:
    """An authenticated connection for frames that no client would send."""

    def __init__(self, address: tuple[str, int], secret: bytes = SECRET, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(address, timeout=PATIENCE_S)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock)
        sends, self._receives = authenticate_client_socket(self.sock, secret, SERVICE).tags()
        self._tagger = _Tagger(sends) if tls is None else None

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data if self._tagger is None else self._tagger.feed(data))

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return data

    def response(self) -> tuple[Response, str]:
        response, detail_size = Response.decode(self._message(RESPONSE_SIZE))
        detail = self._message(detail_size) if detail_size else b""
        if self._tagger is not None:
            self._tagger.answered(response)
        return response, detail.decode()

    def _message(self, size: int) -> bytes:
        message = self.receive(size)
        assert self._tagger is None or self._receives.fits(message, self.receive(TAG_SIZE))
        return message


def is_closed(sock: socket.socket) -> bool:
    """Whether what the server has to say ends with the end of the connection; raises TimeoutError otherwise."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


class CuttingProxy:
    """Passes connections on to a server and cuts each of the first *cuts* after so many bytes, down or upstream.

    A connection that is passed on is refused; until `close`, the clients and servers of this process take it.
    """

    def __init__(self, target: tuple[str, int], cuts: int, after: int, *, upstream: bool = False) -> None:
        self._target = target
        self._cuts = cuts
        self._after = after
        self._upstream = upstream
        self.connections = 0
        self.bytes_to_client = 0
        self.bytes_to_server = 0
        self._accepted = mock.patch("actors.rpc.security._target", return_value=bytes(TARGET_SIZE))
        self._accepted.start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            cut = self._after if self.connections <= self._cuts else None
            threading.Thread(target=self._serve, args=(client, cut), daemon=True).start()
            del client

    def _serve(self, client: socket.socket, cut: int | None) -> None:
        # Closed at the end, not only shut down: a peer that neither reads nor resets would hold the client up.
        with client, socket.create_connection(self._target) as server:
            threads = [
                threading.Thread(target=self._pass_on, args=(client, server, False, cut if self._upstream else None)),
                threading.Thread(target=self._pass_on, args=(server, client, True, None if self._upstream else cut)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket, down: bool, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while (limit is None or passed < limit) and (data := source.recv(65536)):
                sink.sendall(data)
                passed += len(data)
                if down:
                    self.bytes_to_client += len(data)
                else:
                    self.bytes_to_server += len(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._accepted.stop()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
