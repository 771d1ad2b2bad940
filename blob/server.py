"""The blob server (Flink's `BlobServer`): it keeps the blobs and serves them over a socket of its own.

Transfers run in one blocking thread per connection. It spends its time in system calls and in hashing, both outside the
interpreter's lock. The owner's event loop only starts, stops and cleans up.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import ssl
import threading
from collections.abc import Collection
from pathlib import Path

from actors.errors import FencingError
from actors.rpc.gateway import FencingToken
from blob.acceptor import Acceptor
from blob.channel import Channel
from blob.connection import Connection
from blob.contents import BlobContents
from blob.errors import BlobServerError, BlobStoreError
from blob.key import BlobKey, check_job_id
from blob.limits import StorageBudget
from blob.settings import BlobServerOptions, BlobServerStats
from blob.storage import BlobDirectory
from blob.store import BlobStore, VoidBlobStore
from conf.files import write_private

logger = logging.getLogger(__name__)


class Fence:
    """The highest leadership that has sent a command; it rejects commands of lower ones.

    A file keeps it for a restarted server, and the store keeps it for all servers that share that store. (Two servers
    that read the store at the same moment may both pass. The ages in `BlobContents.sweep` still protect recent blobs.)

    Args:
        path: the file.
        store: the store.
    """

    def __init__(self, path: Path, store: BlobStore) -> None:
        self._path = path
        self._store = store
        self._lock = threading.Lock()
        try:
            self._highest: FencingToken | None = _decode(path.read_bytes())
        except FileNotFoundError:
            self._highest = None
        except (OSError, ValueError) as error:
            raise BlobServerError(f"cannot read {path}: {error}; delete it if no earlier leader is alive") from error

    def pass_through(self, token: FencingToken) -> None:
        """Admit a command of the leadership *token*, and from now on none of an earlier leadership.

        Raises:
            FencingError: a later leadership has sent a command already, or another one of the same epoch.
            BlobStoreError: the store failed.
        """
        with self._lock:
            kept = self._store.read_mark()
            try:
                stored = None if kept is None else _decode(kept)
            except ValueError as error:
                raise BlobStoreError(f"the fence in the blob store is damaged: {error}; delete it") from error
            for known in (self._highest, stored):
                if known is not None and (token.epoch, token.session) != (known.epoch, known.session):
                    self._check(token, known)
            if token != stored:
                self._store.write_mark(_encode(token))
            if token != self._highest:
                try:
                    write_private(self._path, _encode(token))
                except OSError as error:
                    # The commands of a leader delete what fills the disk. The store's mark holds as well.
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._store.read_mark() != _encode(token):
                        raise
                    logger.warning("leadership %d is noted in the blob store alone: %s", token.epoch, error)
                self._highest = token

    @staticmethod
    def _check(token: FencingToken, known: FencingToken) -> None:
        if token.epoch <= known.epoch:
            raise FencingError(
                f"leadership {token.epoch} commands the blob server, which has heard of {known.epoch}: a leader of the "
                "past deletes nothing",
                known.epoch,
            )


def _encode(token: FencingToken) -> bytes:
    return json.dumps({"epoch": token.epoch, "session": token.session}).encode()


def _decode(data: bytes) -> FencingToken:
    values = json.loads(data)
    if not isinstance(values, dict) or not isinstance(values.get("epoch"), int):
        raise ValueError("it is not a leadership")
    return FencingToken(values["epoch"], str(values.get("session")))


class BlobServer:
    """Serves the blobs of one directory.

    Args:
        directory: directory of the blobs; created when missing, rejected when another server uses it.
        secret: the cluster secret.
        host: address on which to listen.
        port: port on which to listen; 0 for any free one.
        store: store to which permanent blobs are copied; default: none.
        options: the limits.
        tls: context for TLS; None for none.
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
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._root = directory
        self._secret = secret
        self._host = host
        self._port = port
        self._store = store or VoidBlobStore()
        self._options = options or BlobServerOptions()
        self._tls = tls
        self._contents: BlobContents | None = None
        self._fence: Fence | None = None
        self._acceptor: Acceptor | None = None
        self._cleaners: list[asyncio.Task[None]] = []

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which the server listens."""
        if self._acceptor is None:
            raise BlobServerError("the blob server is not running")
        host, port = self._acceptor.listener.getsockname()[:2]
        return host, port

    async def start(self) -> None:
        """Open the directory and start serving.

        Raises:
            BlobServerError: the directory or the port is taken or cannot be used.
        """
        await asyncio.to_thread(self._open)
        self._cleaners = [asyncio.create_task(self._clean(), name="blob-cleaner")]
        if self._options.resume_window:
            self._cleaners.append(asyncio.create_task(self._end_interrupted(), name="blob-upload-cleaner"))

    async def close(self) -> None:
        """Stop serving, and break off running requests; the blobs stay. Idempotent."""
        for cleaner in self._cleaners:
            cleaner.cancel()
        await asyncio.gather(*self._cleaners, return_exceptions=True)
        self._cleaners = []
        await asyncio.to_thread(self._shut)

    async def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete a transient blob; return False if there was none. Raises BlobRequestRefused for a permanent one."""
        return await asyncio.to_thread(self._running().delete, job_id, key)

    async def delete_job(self, job_id: str, *, from_store: bool = True, token: FencingToken | None = None) -> bool:
        """Delete every blob of a job (Flink's ``globalCleanup``; its ``localCleanup`` with *from_store* false).

        Args:
            job_id: the job.
            from_store: whether to delete in the store as well.
            token: the leadership that commands it; None when only the caller can lead.

        Returns:
            Whether the server had any.

        Raises:
            FencingError: there has been a later leadership; nothing is deleted.
            BlobStoreError: the store failed; the local blobs may be deleted already.
        """
        check_job_id(job_id)
        contents, fence = self._running(), self._fence

        def delete() -> bool:
            if token is not None and fence is not None:
                fence.pass_through(token)
            return contents.delete_job(job_id, from_store=from_store)

        return await asyncio.to_thread(delete)

    async def sweep(self, live_jobs: Collection[str], token: FencingToken) -> list[str]:
        """Delete the blobs of unknown jobs: uploaded but never submitted, or left over (Flink has no counterpart).

        A job keeps its blobs while the last use of one, or the last `use_job`, is within the orphan age. The time
        before this server's start does not count.

        Args:
            live_jobs: the jobs that the leader knows: running, being recovered, or kept after their end.
            token: the leadership.

        Returns:
            The jobs whose blobs were deleted.

        Raises:
            FencingError: there has been a later leadership; nothing is deleted.
            BlobStoreError: the store failed.
        """
        for job_id in live_jobs:
            check_job_id(job_id)
        contents, fence = self._running(), self._fence
        assert fence is not None

        def sweep() -> list[str]:
            fence.pass_through(token)
            return contents.sweep(live_jobs)

        deleted = await asyncio.to_thread(sweep)
        if deleted:
            logger.info("swept the blobs of %d unknown jobs: %s", len(deleted), ", ".join(deleted))
        return deleted

    def use_job(self, job_id: str) -> None:
        """Keep a job's blobs for another orphan age, because it is being submitted. Raises InvalidBlobKey."""
        check_job_id(job_id)
        self._running().use_job(job_id)

    def size_of(self, job_id: str | None, key: BlobKey) -> int | None:
        """Return the size of a blob in bytes; None if it is not in the server's directory (it may be in the store)."""
        return self._running().size_of(job_id, key)

    def stats(self) -> BlobServerStats:
        """Return the server's statistics."""
        contents, acceptor = self._running(), self._acceptor
        assert acceptor is not None
        connections, done = acceptor.traffic()
        return BlobServerStats(
            connections=connections,
            total_bytes=contents.total_bytes,
            owners=contents.owners,
            parked_uploads=contents.parked_uploads,
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
            self._fence = Fence(self._root / "fence", self._store)
            self._contents = BlobContents(
                directory, self._store, budget, options.transient_ttl, options.orphan_age, options.resume_window
            )
            listener = socket.create_server((self._host, self._port), backlog=options.backlog)
        except OSError as error:
            directory.close()
            self._contents = None
            taken = "the port is taken; stop what listens there, or choose another blob.server.port"
            reason = taken if error.errno == errno.EADDRINUSE else error.strerror
            raise BlobServerError(f"the blob server cannot listen on {self._host}:{self._port}: {reason}") from error
        except BaseException:
            directory.close()
            raise
        contents = self._contents

        def serve(channel: Channel, peer: str) -> Connection:
            return Connection(channel, peer, self._secret, contents, options.timeout, self._tls)

        self._acceptor = Acceptor(listener, serve, options.max_connections, options.timeout)
        logger.info("blob server on %s:%d, %d bytes in %s", *self.address, budget.total, self._root)

    def _shut(self) -> None:
        if self._contents is None or self._acceptor is None:
            return
        self._acceptor.close()
        self._contents.close()
        self._acceptor = self._contents = self._fence = None

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(self._options.cleanup_interval)
            try:
                count = await asyncio.to_thread(self._running().delete_expired)
            except OSError:
                logger.exception("cannot delete expired blobs; trying again in %g s", self._options.cleanup_interval)
            else:
                if count:
                    logger.info("deleted %d transient blobs whose time to live was over", count)

    async def _end_interrupted(self) -> None:
        """End interrupted uploads within twice their time to resume; the interval of other clean-ups is longer."""
        while True:
            await asyncio.sleep(self._options.resume_window)
            try:
                await asyncio.to_thread(self._running().end_interrupted)
            except OSError:
                logger.exception("cannot end interrupted uploads; trying again in %g s", self._options.resume_window)
