"""RPC values over `rpc.frame-size` as transient blobs: an `Offloader` and `ThreadOffloader` of `actors.rpc.offload`.

A key names the BlobServer as well as the blob, because another process may use another server, and only one server has
a transient blob. Values of the same content that travel at the same time share one blob
(`blob.offload.MessageOffload`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from blob.client import BlobClient
from blob.errors import InvalidBlobKey
from blob.key import TransientBlobKey
from blob.offload import MessageOffload, Offloaded

THREADS = 4
Location = tuple[str, int]


class BlobOffloader:
    """The large values of one RPC service, or of one client of plain threads.

    Args:
        connect: returns a client of the BlobServer at a host and port.
        own: returns the BlobServer for uploads at present; raises when there is none yet.
        lifetime_s: seconds after its upload when a value is deleted, even if it is still in use.
    """

    def __init__(
        self, connect: Callable[[Location], BlobClient], own: Callable[[], Location], lifetime_s: float = 3600.0
    ) -> None:
        self._connect = connect
        self._own = own
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="rpc-offload")
        self._writers: dict[Location, tuple[BlobClient, MessageOffload]] = {}
        self._uses: defaultdict[str, list[contextlib.ExitStack]] = defaultdict(list)
        self._closed = False

    async def put(self, data: bytes, /) -> str:
        """Upload *data* unless it is uploaded already for another receiver; raises BlobError."""
        upload = asyncio.get_running_loop().run_in_executor(self._threads, self.put_blocking, data)
        try:
            return await asyncio.shield(upload)
        except asyncio.CancelledError:
            upload.add_done_callback(self._not_wanted)  # the thread continues to its end
            raise

    def _not_wanted(self, upload: asyncio.Future[str]) -> None:
        if not upload.cancelled() and upload.exception() is None:
            self.release(upload.result())

    async def get(self, key: str, /) -> bytes:
        """Download a value that any process has put; raises BlobError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.get_blocking, key)

    def release(self, key: str, /) -> None:
        """Delete the blob unless other receivers still need it."""
        with self._lock:
            uses = self._uses.get(key)
            if not uses or self._closed:
                return
            use = uses.pop()
            if not uses:
                del self._uses[key]
            self._threads.submit(use.close)  # under the lock: `close` cannot shut the threads down before

    async def close(self) -> None:
        """Delete all remaining blobs, and close the connections."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._shut)
            self._threads.shutdown(wait=False)

    def close_blocking(self) -> None:
        """Close the offloader from a plain thread; see `close`."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._threads.shutdown()
            self._shut()

    def put_blocking(self, data: bytes, /) -> str:
        """Upload *data* from a plain thread; see `put`."""
        host, port = location = self._own()
        with self._lock:
            if location not in self._writers:
                client = self._connect(location)
                self._writers[location] = client, MessageOffload(client, 0, None, lifetime_s=self._lifetime_s)
            _, messages = self._writers[location]
        use = contextlib.ExitStack()
        message = use.enter_context(messages.delivery(data))
        assert isinstance(message, Offloaded), "with a limit of 0 everything is uploaded"
        key = f"{host}:{port}/{message.key}"
        with self._lock:
            self._uses[key].append(use)
        return key

    def get_blocking(self, key: str, /) -> bytes:
        """Download a value from a plain thread; see `get`."""
        location, _, text = key.partition("/")
        host, _, port = location.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5):
            raise InvalidBlobKey("not the key of a value that was sent apart: it names no BlobServer")
        with self._connect((host, int(port))) as client:
            return client.get_bytes(TransientBlobKey(text))

    def _shut(self) -> None:
        for client, messages in self._writers.values():
            messages.close()
            client.close()
