"""A real blob server for the blob tests, driven from synchronous test code, and a peer that speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from actors.rpc.security import authenticate_client_socket
from blob.client import BlobClient
from blob.protocol import RESPONSE_SIZE, SERVICE, Response
from blob.server import BlobServer, BlobServerOptions
from blob.store import BlobStore

T = TypeVar("T")
SECRET = b"the secret of this test cluster"
JOB = "0123456789abcdef" * 2
OTHER_JOB = "f" * 32
OPTIONS = BlobServerOptions(disk_reserve=0)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for *condition*, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition did not come about"
        time.sleep(0.005)


class Served:
    """A running server on an event loop of its own; a context manager."""

    def __init__(
        self, directory: Path, store: BlobStore | None = None, options: BlobServerOptions = OPTIONS, port: int = 0
    ) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = BlobServer(directory, SECRET, store=store, options=options, port=port)
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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def client(self, **options: Any) -> BlobClient:
        return BlobClient(self.server.address, SECRET, **{"retries": 1, "timeout": 10.0, **options})

    def files(self) -> list[str]:
        """Everything below the directory that is visible or half-written, as relative names."""
        return sorted(
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if path.is_file() and path.name != "lock"
        )


class RawPeer:
    """An authenticated connection for frames that no client would send."""

    def __init__(self, address: tuple[str, int], secret: bytes = SECRET) -> None:
        self.sock = socket.create_connection(address, timeout=10)
        authenticate_client_socket(self.sock, secret, SERVICE)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return data

    def response(self) -> tuple[Response, str]:
        response, detail_size = Response.decode(self.receive(RESPONSE_SIZE))
        return response, self.receive(detail_size).decode()


def is_closed(sock: socket.socket) -> bool:
    """Whether what the server has to say ends with the end of the connection; raises TimeoutError otherwise."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True
