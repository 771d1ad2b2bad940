"""Settings of an actor system over processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.rpc.tls import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """How the actors of a node behave. All nodes of a system have the same.

    Args:
        ask_timeout_s: default time allowed for an ask, in seconds.
        throughput: how many messages an actor handles before others have their turn
            (Akka's ``throughput``, which is 5; a turn of the event loop costs more than Akka's).
        stash_capacity: how many messages an actor may put aside.
        pending_capacity: how many messages wait for an actor whose process is not known yet; more are dead letters.
    """

    ask_timeout_s: float = 10.0
    throughput: int = 50
    stash_capacity: int = 10_000
    pending_capacity: int = 10_000


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """How failures are detected.

    Args:
        interval_s: seconds between heartbeats.
        threshold: phi above which a node is held for dead; 10 is wrong once in 10^10 judgements (Akka's default).
        acceptable_pause_s: silence that is not held against a node at all, in seconds.
    """

    interval_s: float = 1.0
    threshold: float = 10.0
    acceptable_pause_s: float = 10.0


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
