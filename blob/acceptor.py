"""Accepts the connections of a blob server: it serves a limited number at a time, and the others wait.

Unauthenticated connections do not count in that number; when there are too many of them, the oldest is closed.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from blob.channel import Channel
from blob.connection import Connection, Traffic

logger = logging.getLogger(__name__)
EVICTABLE_AFTER = 1.0
UNAUTHENTICATED = 128
"""Most connections in their handshake at once."""


class Acceptor:
    """Serves every connection in a thread of its own.

    Args:
        listener: the listening socket; closed with the acceptor.
        serve: returns a connection for a channel and the name of its peer.
        maximum: authenticated connections served at once; further ones wait until one ends or has idled for a second.
        timeout: seconds without a byte after which the server drops a client.
    """

    def __init__(
        self, listener: socket.socket, serve: Callable[[Channel, str], Connection], maximum: int, timeout: float
    ) -> None:
        self.listener = listener
        self._connect = serve
        self._maximum = maximum
        self._timeout = timeout
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}
        self._unauthenticated: dict[Connection, None] = {}  # in the order in which they came
        self._served: set[Connection] = set()
        self._traffic = Traffic()
        self._closing = False
        self._thread = threading.Thread(target=self._accept_all, name="blob-acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Break off all connections, and wait for the end of their threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        # Wakes the thread, which close() alone would not.
        self.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        with self._changed:
            open_connections = list(self._connections.items())
        for connection, _ in open_connections:
            connection.shutdown()
        for _, thread in open_connections:
            thread.join()
        self.listener.close()

    def traffic(self) -> tuple[int, Traffic]:
        """Return the number of served connections, and the traffic of all connections since the start."""
        with self._changed:
            done = replace(self._traffic)
            for connection in self._connections:
                done.add(connection.traffic)
            return len(self._served), done

    def _accept_all(self) -> None:
        waiting = select.poll()
        waiting.register(self.listener, select.POLLIN)
        while True:
            # Only a waiting client is a reason to close another connection.
            waiting.poll()
            if not self._make_way():
                return
            try:
                accepted, peer = self.listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._closing:
                    return
                logger.error("cannot accept a blob connection: %s; trying again", error)
                time.sleep(0.1)
                continue
            self._begin(accepted, f"{peer[0]}:{peer[1]}")

    def _begin(self, accepted: socket.socket, peer: str) -> None:
        try:
            connection = self._connect(Channel(accepted, self._timeout), peer)
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"blob-{peer}", daemon=True)
            with self._changed:
                thread.start()
                self._connections[connection] = thread
                self._unauthenticated[connection] = None
        except (OSError, RuntimeError) as error:
            # The client left already, or the machine has no thread left; keep accepting in both cases.
            logger.error("cannot serve %s: %s", peer, error)
            accepted.close()

    def _serve(self, connection: Connection) -> None:
        connection.run(lambda: self._admit(connection))
        with self._changed:
            del self._connections[connection]
            self._unauthenticated.pop(connection, None)
            self._served.discard(connection)
            self._traffic.add(connection.traffic)
            self._changed.notify_all()

    def _make_way(self) -> bool:
        """Wait until one more connection may begin its handshake; return False when the acceptor closes."""
        with self._changed:
            while not self._closing and len(self._unauthenticated) >= UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                oldest.shutdown()
                self._changed.wait(EVICTABLE_AFTER)
            return not self._closing

    def _admit(self, connection: Connection) -> bool:
        """Wait until an authenticated connection may be served; return False when the acceptor closes."""
        with self._changed:
            self._unauthenticated.pop(connection, None)
            self._changed.notify_all()
            while not self._closing and len(self._served) >= self._maximum:
                idle = [(since, c) for c in self._served if (since := c.idle_since) is not None]
                since, idlest = min(idle, key=lambda pair: pair[0], default=(None, None))
                if since is None or idlest is None:
                    self._changed.wait(EVICTABLE_AFTER)
                elif (left := since + EVICTABLE_AFTER - time.monotonic()) > 0:
                    self._changed.wait(left)
                elif idlest.evict():
                    self._changed.wait(EVICTABLE_AFTER)
            self._served.add(connection)
            return not self._closing
