"""Settings of an actor system with several processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.rpc.tls import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Settings of the actors of a node, the same for all nodes of a system.

    Args:
        ask_timeout_s: default timeout of an ask, in seconds.
        throughput: number of messages that an actor handles before other actors run (Akka's ``throughput``; its default
            is 5, but a turn of the event loop costs more than one of Akka's).
        stash_capacity: number of messages that an actor may stash.
        pending_capacity: number of messages that may wait for an actor whose process is not known yet; further ones
            become dead letters.
    """

    ask_timeout_s: float = 10.0
    throughput: int = 50
    stash_capacity: int = 10_000
    pending_capacity: int = 10_000


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """Settings of the failure detection.

    Args:
        interval_s: seconds between heartbeats.
        threshold: phi above which a node counts as dead; 10 is wrong once in 10^10 decisions (Akka's default).
        acceptable_pause_s: seconds of silence that raise no suspicion.
    """

    interval_s: float = 1.0
    threshold: float = 10.0
    acceptable_pause_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig(CoreSettings):
    """Settings of an actor system; see also `CoreSettings`.

    Args:
        shared_hosts: number of processes for the actors that are placed with `Props.shared`.
        heartbeat_interval_s: seconds between heartbeats to processes that a node watches.
        heartbeat_threshold: phi above which a silent process counts as dead (Akka's ``threshold`` of remote death
            watch, which is 10).
        heartbeat_acceptable_pause_s: seconds of silence that raise no suspicion.
        frame_size: largest message between processes, in bytes.
        log_file: file to which host processes log; None for the standard error stream.
        log_level: lowest level that they log.
        tls: certificates for TLS between processes that talk by TCP. The certificates of all systems that talk to each
            other have the same authority. None for plain connections.
    """

    shared_hosts: int = 1
    heartbeat_interval_s: float = 1.0
    heartbeat_threshold: float = 10.0
    heartbeat_acceptable_pause_s: float = 10.0
    frame_size: int = 10 * 1024 * 1024
    log_file: Path | None = None
    log_level: str = "WARNING"
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        for name in ("ask_timeout_s", "shared_hosts", "heartbeat_interval_s", "heartbeat_threshold", "frame_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} has to be positive, not {getattr(self, name)}")

    @property
    def heartbeat(self) -> HeartbeatConfig:
        """The settings of the failure detection."""
        return HeartbeatConfig(self.heartbeat_interval_s, self.heartbeat_threshold, self.heartbeat_acceptable_pause_s)
