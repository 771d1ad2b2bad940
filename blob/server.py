"""The blob server (Flink's `BlobServer`): keeps the blobs, serves them over a socket of its own.

The bulk runs in one blocking thread per connection, which spends its time in system calls and in hashing, both
outside the interpreter's lock; the event loop of the owner is only used to start, stop and clean up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from blob.channel import Channel
from blob.connection import Connection, Traffic
from blob.contents import BlobContents
from blob.errors import BlobServerError
from blob.key import BlobKey, check_job_id
from blob.limits import StorageBudget
from blob.storage import BlobDirectory
from blob.store import BlobStore, VoidBlobStore

_log = logging.getLogger(__name__)
EVICTABLE_AFTER = 1.0


@dataclass(frozen=True, slots=True)
class BlobServerOptions:
    """The server's limits.

    Args:
        max_connections: connections served at once; further ones wait until one ends or has idled for a second.
        backlog: connections that may wait.
        timeout: seconds without a byte, or between two requests, after which a client is dropped.
        transient_ttl: seconds after its last use at which a transient blob is deleted.
        cleanup_interval: seconds between two looks for such.
        max_bytes: most bytes held in all; None for no limit.
        max_bytes_per_job: most bytes held of one job; None for no limit.
        disk_reserve: bytes that stay free on the disk.
    """

    max_connections: int = 50
    backlog: int = 1000
    timeout: float = 30.0
    transient_ttl: float = 3600.0
    cleanup_interval: float = 60.0
    max_bytes: int | None = None
    max_bytes_per_job: int | None = None
    disk_reserve: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BlobServerStats:
    """Figures since the start of the server, and of now: *connections* and *total_bytes* (with uploads under way)."""

    connections: int
    total_bytes: int
    puts: int
    gets: int
    deletes: int
    refusals: int
    bytes_received: int
    bytes_sent: int


class BlobServer:
    """Serves the blobs of one directory.

    Args:
        directory: where they are kept; made when missing, refused when another server has it.
        secret: the cluster secret.
        host: address to listen on.
        port: port to listen on, 0 for any free one.
        store: where permanent blobs are copied to; none by default.
        options: the limits.
    """

    def __init__(
        self,
        directory: Path,
        secret: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        store: BlobStore | None = None,
        options: BlobServerOptions | None = None,
    ) -> None:
        self._root = directory
        self._secret = secret
        self._host = host
        self._port = port
        self._store = store or VoidBlobStore()
        self._options = options or BlobServerOptions()
        self._listener: socket.socket | None = None
        self._contents: BlobContents | None = None
        self._acceptor: threading.Thread | None = None
        self._cleaner: asyncio.Task[None] | None = None
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}
        self._traffic = Traffic()
        self._closing = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on."""
        if self._listener is None:
            raise BlobServerError("the blob server is not running")
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Open the directory and begin to serve.

        Raises:
            BlobServerError: the directory or the port is taken or cannot be used.
        """
        await asyncio.to_thread(self._open)
        self._cleaner = asyncio.create_task(self._clean(), name="blob-cleaner")

    async def close(self) -> None:
        """Stop serving; requests under way are broken off. Blobs stay. May be called twice."""
        if self._cleaner is not None:
            self._cleaner.cancel()
            await asyncio.gather(self._cleaner, return_exceptions=True)
            self._cleaner = None
        await asyncio.to_thread(self._shut)

    async def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete a transient blob; False if there was none. Raises BlobRequestRefused for a permanent one."""
        return await asyncio.to_thread(self._running().delete, job_id, key)

    async def delete_job(self, job_id: str, *, from_store: bool = True) -> bool:
        """Delete every blob of a job (Flink's ``globalCleanup``; its ``localCleanup`` with *from_store* false).

        Returns:
            Whether the server had any.

        Raises:
            BlobStoreError: the store failed; the local ones are gone then.
        """
        check_job_id(job_id)
        contents = self._running()
        return await asyncio.to_thread(lambda: contents.delete_job(job_id, from_store=from_store))

    def stats(self) -> BlobServerStats:
        """The server's figures."""
        with self._changed:
            done = replace(self._traffic)
            for connection in self._connections:
                done.add(connection.traffic)
            return BlobServerStats(
                connections=len(self._connections),
                total_bytes=self._running().total_bytes,
                puts=done.puts,
                gets=done.gets,
                deletes=done.deletes,
                refusals=done.refusals,
                bytes_received=done.bytes_received,
                bytes_sent=done.bytes_sent,
            )

    def _running(self) -> BlobContents:
        if self._contents is None:
            raise BlobServerError("the blob server is not running")
        return self._contents

    def _open(self) -> None:
        if self._contents is not None:
            raise BlobServerError("the blob server is running already")
        options = self._options
        try:
            directory = BlobDirectory(self._root, exclusive=True)
        except OSError as error:
            raise BlobServerError(f"cannot use {self._root} as the blob directory: {error.strerror}") from error
        try:
            budget = StorageBudget(options.max_bytes, options.max_bytes_per_job, options.disk_reserve)
            self._contents = BlobContents(directory, self._store, budget, options.transient_ttl)
            self._listener = socket.create_server((self._host, self._port), backlog=options.backlog)
        except OSError as error:
            directory.close()
            self._contents = None
            taken = "the port is taken; stop what listens there, or choose another blob.server.port"
            reason = taken if error.errno == errno.EADDRINUSE else error.strerror
            raise BlobServerError(f"the blob server cannot listen on {self._host}:{self._port}: {reason}") from error
        self._closing = False
        self._acceptor = threading.Thread(target=self._accept_all, name="blob-acceptor", daemon=True)
        self._acceptor.start()
        _log.info("blob server on %s:%d, %d bytes in %s", *self.address, budget.total, self._root)

    def _shut(self) -> None:
        if self._contents is None or self._listener is None or self._acceptor is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        # Wakes the acceptor, which close() alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        with self._changed:
            open_connections = list(self._connections.items())
        for connection, _ in open_connections:
            connection.shutdown()
        for _, thread in open_connections:
            thread.join()
        self._listener.close()
        self._contents.directory.close()
        self._listener = self._contents = self._acceptor = None

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(self._options.cleanup_interval)
            try:
                count = await asyncio.to_thread(self._running().delete_expired)
            except OSError:
                _log.exception("cannot delete expired blobs; trying again in %g s", self._options.cleanup_interval)
            else:
                if count:
                    _log.info("deleted %d transient blobs whose time to live was over", count)

    def _accept_all(self) -> None:
        listener = self._listener
        assert listener is not None
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        while True:
            # Only when somebody waits is it worth to take an idle client's place.
            waiting.poll()
            if not self._wait_for_place():
                return
            try:
                accepted, peer = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._closing:
                    return
                _log.error("cannot accept a blob connection: %s; trying again", error)
                time.sleep(0.1)
                continue
            self._begin(accepted, f"{peer[0]}:{peer[1]}")

    def _begin(self, accepted: socket.socket, peer: str) -> None:
        try:
            channel = Channel(accepted, self._options.timeout)
            connection = Connection(channel, peer, self._secret, self._running(), self._options.timeout)
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"blob-{peer}", daemon=True)
            with self._changed:
                thread.start()
                self._connections[connection] = thread
        except (OSError, RuntimeError) as error:
            # The client left already, or the machine has no thread left; neither is a reason to stop accepting.
            _log.error("cannot serve %s: %s", peer, error)
            accepted.close()

    def _serve(self, connection: Connection) -> None:
        connection.run()
        with self._changed:
            del self._connections[connection]
            self._traffic.add(connection.traffic)
            self._changed.notify_all()

    def _wait_for_place(self) -> bool:
        with self._changed:
            while not self._closing and len(self._connections) >= self._options.max_connections:
                idle = [(since, c) for c in self._connections if (since := c.idle_since) is not None]
                since, connection = min(idle, key=lambda pair: pair[0], default=(None, None))
                if since is None or connection is None:
                    self._changed.wait(EVICTABLE_AFTER)
                elif (left := since + EVICTABLE_AFTER - time.monotonic()) > 0:
                    self._changed.wait(left)
                elif connection.evict():
                    self._changed.wait(EVICTABLE_AFTER)
            return not self._closing
