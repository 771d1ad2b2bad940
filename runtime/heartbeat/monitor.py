"""The book-keeping of heartbeats (Flink's `HeartbeatMonitor`), pure; times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass

DISABLED = -1
"""As the threshold of unreachable reports: they are ignored, only silence counts."""


@dataclass(frozen=True, slots=True)
class LostTarget:
    """A target that is taken for lost, why (in words), and for how many seconds nothing had been heard of it."""

    target: str
    reason: str
    silent_for_s: float


@dataclass(slots=True)
class _Target:
    last_heard: float
    unreachable: int = 0
    unreachable_at: float = 0.0


class HeartbeatMonitor:
    """Watches targets until they fall silent or cannot be reached; each loss is told once.

    Args:
        interval: seconds between two heartbeat requests (``heartbeat.interval``); the asynchronous manager sends them.
        timeout: seconds of silence after which a target is lost (``heartbeat.timeout``).
        rpc_failure_threshold: so many undeliverable messages in a row mean that it is lost at once
            (``heartbeat.rpc-failure-threshold``, Flink's default 2); `DISABLED` to wait for the time-out.

    Raises:
        ValueError: the time-out is not longer than the interval, or a value is out of range.
    """

    def __init__(self, interval: float, timeout: float, rpc_failure_threshold: int = 2) -> None:
        if interval <= 0 or timeout <= interval:
            raise ValueError(
                f"heartbeat.timeout ({timeout:g} s) must be longer than heartbeat.interval ({interval:g} s), which "
                "must be more than 0"
            )
        if rpc_failure_threshold != DISABLED and rpc_failure_threshold < 1:
            raise ValueError(
                f"heartbeat.rpc-failure-threshold is {rpc_failure_threshold}; use 1 or more, or -1 for never"
            )
        self._timeout = timeout
        self._threshold = rpc_failure_threshold
        self._targets: dict[str, _Target] = {}

    def targets(self) -> tuple[str, ...]:
        """Those that are watched."""
        return tuple(self._targets)

    def monitor(self, now: float, target: str) -> None:
        """Begin to watch *target*, as if just heard. Watching one anew forgets its past."""
        self._targets[target] = _Target(now)

    def unmonitor(self, target: str) -> None:
        """Watch it no more. Unknown targets are ignored."""
        self._targets.pop(target, None)

    def receive(self, now: float, target: str) -> bool:
        """A heartbeat, or any other sign of life, came; returns whether the target is watched."""
        entry = self._targets.get(target)
        if entry is None:
            return False
        entry.last_heard = max(entry.last_heard, now)
        entry.unreachable = 0
        return True

    def report_unreachable(self, now: float, target: str) -> bool:
        """A message could not be delivered; returns whether that was one too many: `expired` then names the target."""
        entry = self._targets.get(target)
        if entry is None or self._threshold == DISABLED:
            return False
        entry.unreachable += 1
        entry.unreachable_at = now
        return entry.unreachable >= self._threshold

    def expired(self, now: float) -> list[LostTarget]:
        """Those that were silent for the time-out or could not be reached; they are watched no more."""
        return [loss for target in list(self._targets) for loss in self.expired_one(now, target)]

    def expired_one(self, now: float, target: str) -> list[LostTarget]:
        """As `expired`, of one target: of a thousand that go at once not each makes all the others looked at."""
        entry = self._targets.get(target)
        if entry is None:
            return []
        silent_for_s = max(now - entry.last_heard, 0.0)
        if self._is_unreachable(entry):
            reason = f"unreachable {entry.unreachable} times in a row"
        elif silent_for_s >= self._timeout:
            reason = f"no heartbeat for {silent_for_s:.1f} s (heartbeat.timeout is {self._timeout:g} s)"
        else:
            return []
        del self._targets[target]
        return [LostTarget(target, reason, silent_for_s)]

    def suspended_for(self, now: float, seconds: float) -> None:
        """Leave out the last *seconds*, in which the watcher itself stood still (stopped, swapped out): it was deaf."""
        for entry in self._targets.values():
            entry.last_heard = max(entry.last_heard, min(entry.last_heard + seconds, now))

    def next_deadline(self) -> float | None:
        """When `expired` could next find someone, in monotonic seconds; None without targets."""
        return min(
            (
                entry.unreachable_at if self._is_unreachable(entry) else entry.last_heard + self._timeout
                for entry in self._targets.values()
            ),
            default=None,
        )

    def _is_unreachable(self, entry: _Target) -> bool:
        return self._threshold != DISABLED and entry.unreachable >= self._threshold
