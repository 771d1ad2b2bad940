"""Settings of an RPC service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.rpc.tls import TlsConfig

_LOOPBACK = {"127.0.0.1", "localhost"}


@dataclass(frozen=True, slots=True)
class RpcConfig:
    """Settings of an RPC service.

    Args:
        system: name of the actor system, the part before ``@`` in addresses.
        bind_host: address on which to listen; default: loopback.
        port: TCP port; 0 takes a free one.
        socket_dir: directory of the Unix sockets of this machine's processes, which are then the only way to reach
            them; None for TCP only.
        shares_host: whether processes without a socket in that directory may listen at the same address, such as those
            of another actor system; they are reached by TCP.
        frame_size: largest message in bytes.
        ask_timeout_s: default timeout of an ask, in seconds.
        connect_timeout_s: timeout for opening a connection, in seconds.
        handlers_in_flight: most coroutine handlers that run at once for one connection; at that number the process
            stops reading it. Futures that plain handlers return do not count: they may need input from this connection.
        outbox_size: most bytes that wait to be sent to one peer; beyond it asks fail at once and tells are dropped. (A
            plain thread waits instead, at `actors.rpc.blocking.HIGH_WATER`.)
        unauthenticated: most connections in their handshake at once; a further one closes the oldest.
        caller: name of the user in whose name a client calls; the processes that it calls may record it.
        tls: certificates for TLS on all TCP connections, before the handshake of the protocol; None for plain ones.
    """

    system: str = "understudy"
    bind_host: str = "127.0.0.1"
    port: int = 0
    socket_dir: Path | None = None
    shares_host: bool = False
    frame_size: int = 10 * 1024 * 1024
    ask_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    handlers_in_flight: int = 1000
    outbox_size: int = 64 * 1024 * 1024
    unauthenticated: int = 128
    tls: TlsConfig | None = None
    caller: str = ""

    def unix_socket(self, port: int) -> Path | None:
        """Return the Unix socket of this machine's process that listens on *port*; None without a socket directory."""
        return None if self.socket_dir is None else self.socket_dir / f"rpc-{port}"

    def local_socket(self, host: str, port: int, system: str | None = None) -> Path | None:
        """Return the Unix socket by which to reach ``host:port``; None for TCP.

        When the port's process has ended, another user may have bound the port. So this never falls back to TCP, except
        for processes of another actor system, which may have its sockets in another directory.

        Args:
            host, port: host and port of the process.
            system: name of its actor system; default: this one's.
        """
        path = self.unix_socket(port)
        if path is None or not (host == self.bind_host or {host, self.bind_host} <= _LOOPBACK):
            return None
        is_elsewhere = self.shares_host or system not in (None, self.system)
        return None if is_elsewhere and not path.exists() else path
