"""Heartbeats between components: one side asks, the other listens (Flink's `HeartbeatManagerSenderImpl` and `…Impl`).

The asking side notices a dead process by its failed requests: a refused connection counts towards
``heartbeat.rpc-failure-threshold``. It notices a silent process by the time-out. The listening side counts each request
as a heartbeat. The pure `HeartbeatMonitor` decides which targets are alive; `HeartbeatManager` has the clock and sends.

A watcher that was suspended (SIGSTOP, a swapped-out process) received nothing during that time. It notices this by a
late timer, and does not count that time, so that its targets still have their full time-out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.errors import ActorError, RecipientUnreachable, UnknownActor
from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from conf.options import HeartbeatOptions

DISABLED = -1
"""Value of the threshold of unreachable reports with which they are ignored, and only the time-out counts."""

REPEAT_S = 0.1
LOOKS = 10
"""Number of checks of a `Silence` within its time-out. A listener that was suspended counts one interval at most."""

OnTimeout = Callable[[str, str], None]
Request = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class LostTarget:
    """A target that is declared lost, the reason as text, and the seconds since its last heartbeat."""

    target: str
    reason: str
    silent_for_s: float


@dataclass(slots=True)
class _Target:
    last_heard: float
    unreachable: int = 0


class HeartbeatMonitor:
    """Watches targets until they are silent or unreachable; returns each loss once (Flink's `HeartbeatMonitor`).

    Pure; times are monotonic seconds.

    Args:
        interval: seconds between two heartbeat requests (``heartbeat.interval``); the asynchronous manager sends them.
        timeout: seconds of silence after which a target is lost (``heartbeat.timeout``).
        rpc_failure_threshold: number of undeliverable messages in a row after which a target is lost at once
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
        """Return the watched targets."""
        return tuple(self._targets)

    def monitor(self, now: float, target: str) -> None:
        """Start watching *target*, as if its heartbeat had just come; a repeated call forgets its past."""
        self._targets[target] = _Target(now)

    def unmonitor(self, target: str) -> None:
        """Stop watching *target*. Unknown targets are ignored."""
        self._targets.pop(target, None)

    def receive(self, now: float, target: str) -> bool:
        """Record a heartbeat, or any other message of *target*; return whether it is watched."""
        entry = self._targets.get(target)
        if entry is None:
            return False
        entry.last_heard = max(entry.last_heard, now)
        entry.unreachable = 0
        return True

    def report_unreachable(self, target: str) -> bool:
        """Record an undeliverable message; return whether the threshold is reached and `expired` returns the target."""
        entry = self._targets.get(target)
        if entry is None or self._threshold == DISABLED:
            return False
        entry.unreachable += 1
        return entry.unreachable >= self._threshold

    def expired(self, now: float) -> list[LostTarget]:
        """Return the targets that were silent for the time-out or unreachable, and stop watching them."""
        return [loss for target in list(self._targets) for loss in self.expired_one(now, target)]

    def expired_one(self, now: float, target: str) -> list[LostTarget]:
        """Return `expired` of one target, so that each of many simultaneous losses does not check all targets."""
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
        """Do not count the last *seconds*, in which the watcher was suspended (stopped, swapped out)."""
        for entry in self._targets.values():
            entry.last_heard = max(entry.last_heard, min(entry.last_heard + seconds, now))

    def _is_unreachable(self, entry: _Target) -> bool:
        return self._threshold != DISABLED and entry.unreachable >= self._threshold


class HeartbeatManager:
    """Heartbeats of one endpoint with any number of targets, all on the endpoint's main thread.

    Args:
        endpoint: the endpoint whose timers are used.
        configuration: has ``heartbeat.interval``, ``heartbeat.timeout`` and ``heartbeat.rpc-failure-threshold``; see
            `HeartbeatMonitor`.
        on_timeout: called once with the target's id and the reason when it is lost; the target is forgotten.
        on_payload: called with the target's id and its answer.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        configuration: Configuration,
        *,
        on_timeout: OnTimeout,
        on_payload: Callable[[str, Any], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        get = configuration.get
        self._interval_s = get(HeartbeatOptions.INTERVAL)
        self._monitor = HeartbeatMonitor(
            self._interval_s, get(HeartbeatOptions.TIMEOUT), get(HeartbeatOptions.RPC_FAILURE_THRESHOLD)
        )
        self._requests: dict[str, Request] = {}
        self._asking: set[str] = set()
        self._on_timeout = on_timeout
        self._on_payload = on_payload
        self._clock = clock
        self._next_tick = math.inf
        self._started = self._stopped = False

    def start(self) -> None:
        """Start sending and checking, as long as there are targets."""
        self._started = True
        self._tick_later()

    def stop(self) -> None:
        """Forget all targets and stop sending."""
        self._stopped = True
        for target in list(self._monitor.targets()):
            self.unmonitor(target)

    def monitor(self, target: str, request: Request | None = None) -> None:
        """Watch *target*. With *request*, call that at each interval; else only listen for the target's requests."""
        self._monitor.monitor(self._clock(), target)
        if request is None:
            self._requests.pop(target, None)
        else:
            self._requests[target] = request
        if self._next_tick == math.inf:
            self._tick_later()

    def unmonitor(self, target: str) -> None:
        """Stop watching *target*."""
        self._monitor.unmonitor(target)
        self._requests.pop(target, None)

    def received(self, target: str) -> None:
        """Record a heartbeat of *target*."""
        self._monitor.receive(self._clock(), target)

    def ask_now(self, target: str) -> None:
        """Send a heartbeat request to *target* at once, if it is watched. Call this when it cannot be reached."""
        request = self._requests.get(target)
        if request is not None:
            self._ask_again(target, request)

    def _tick(self) -> None:
        if self._stopped:
            return
        for target, request in list(self._requests.items()):
            if target not in self._asking:
                self._asking.add(target)
                self._endpoint.spawn(self._ask(target, request), f"heartbeat of {target}")
        self._give_up(self._monitor.expired(self._now()))
        self._tick_later()

    def _tick_later(self) -> None:
        self._next_tick = math.inf
        if self._started and self._monitor.targets():
            self._next_tick = self._clock() + self._interval_s
            self._endpoint.schedule_run_async(self._interval_s, self._tick)

    def _now(self) -> float:
        """Return the time for a check, after telling the monitor how long this process was suspended."""
        now = self._clock()
        if now > self._next_tick:
            self._monitor.suspended_for(now, now - self._next_tick)
            self._next_tick = now
        return now

    async def _ask(self, target: str, request: Request) -> None:
        try:
            payload = await request()
        except (RecipientUnreachable, UnknownActor):
            now = self._now()
            self._monitor.report_unreachable(target)
            self._give_up(self._monitor.expired_one(now, target))
            # Ask again soon, not an interval later, since only the connection may have failed.
            self._endpoint.schedule_run_async(min(REPEAT_S, self._interval_s), lambda: self._ask_again(target, request))
        except ActorError as error:
            # It answers, but with an error (it starts, or changes leadership): the time-out decides.
            self._endpoint.log.debug("heartbeat request to %s: %s", target, error)
        else:
            if self._requests.get(target) is request:
                self._monitor.receive(self._clock(), target)
                if self._on_payload is not None:
                    self._on_payload(target, payload)
        finally:
            self._asking.discard(target)

    def _ask_again(self, target: str, request: Request) -> None:
        if not self._stopped and self._requests.get(target) is request and target not in self._asking:
            self._asking.add(target)
            self._endpoint.spawn(self._ask(target, request), f"heartbeat of {target}")

    def _give_up(self, losses: Sequence[LostTarget]) -> None:
        for lost in losses:
            self.unmonitor(lost.target)
            self._on_timeout(lost.target, lost.reason)


class Silence:
    """Time since a listener's last heartbeat, counting only time in which its process ran."""

    def __init__(self) -> None:
        self._silent_s = 0.0
        self._was_heard = False

    def heard(self) -> None:
        """Record a heartbeat."""
        self._silent_s = 0.0
        self._was_heard = True

    async def lasts(self, timeout_s: float) -> None:
        """Wait until no heartbeat has come for *timeout_s* seconds."""
        step_s = timeout_s / LOOKS
        while self._silent_s < timeout_s:
            self._was_heard = False
            await asyncio.sleep(step_s)
            if not self._was_heard:
                self._silent_s += step_s  # not the time it really took: the process was suspended for the rest
