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
        bind_host: address to listen on; loopback by default.
        port: TCP port; 0 takes a free one.
        socket_dir: directory of the Unix sockets of this machine's processes, which are then reached by these alone;
            None for TCP only.
        shares_host: whether processes without a socket in that directory may listen at the same address, as those of
            another actor system do; they are reached by TCP.
        frame_size: largest message in bytes.
        ask_timeout_s: default time allowed for an ask, in seconds.
        connect_timeout_s: time allowed for making a connection, in seconds.
        handlers_in_flight: coroutine handlers that may run at once for one connection; at that number it is not read
            from. Futures that plain handlers return do not count: what they wait for may come over this connection.
        outbox_size: bytes that may wait to be sent to one peer; beyond, asks fail at once and tells are dropped (a
            plain thread is made to wait instead, at `actors.rpc.blocking.HIGH_WATER`).
        unauthenticated: connections that may be in their handshake at once; the oldest gives way to a newer one.
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

    def unix_socket(self, port: int) -> Path | None:
        """The Unix socket of the process of this machine that listens on *port*; None without a socket directory."""
        return None if self.socket_dir is None else self.socket_dir / f"rpc-{port}"

    def local_socket(self, host: str, port: int, system: str | None = None) -> Path | None:
        """The Unix socket to reach ``host:port`` by; None where that is to be reached by TCP.

        Where the port's process has ended, another user may have bound the port: so it is never both, but for processes
        of another actor system than this one, which has its sockets elsewhere.

        Args:
            host, port: of the process.
            system: the name of its actor system; default: this one's.
        """
        path = self.unix_socket(port)
        if path is None or not (host == self.bind_host or {host, self.bind_host} <= _LOOPBACK):
            return None
        is_elsewhere = self.shares_host or system not in (None, self.system)
        return None if is_elsewhere and not path.exists() else path
