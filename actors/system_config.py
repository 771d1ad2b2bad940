"""Settings of an actor system over processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.core.settings import CoreSettings
from actors.remote.watcher import HeartbeatConfig
from actors.rpc.tls import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig(CoreSettings):
    """How an actor system works; see also `CoreSettings`.

    Args:
        shared_hosts: how many processes share the actors that are placed with `Props.shared`.
        heartbeat_interval_s: seconds between heartbeats to processes whose end matters.
        heartbeat_threshold: phi above which a silent process is held for dead (Akka's ``threshold`` of remote death
            watch, which is 10).
        heartbeat_acceptable_pause_s: silence that is not held against a process at all, in seconds.
        frame_size: largest message between processes, in bytes.
        log_file: where host processes log to; None for the standard error stream.
        log_level: from which level on.
        tls: certificates for TLS between processes that talk by TCP, the same authority's in all systems that talk to
            each other; None for plain connections.
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
