"""Failure detection: heartbeats to the nodes that matter to this one, judged by the phi accrual detector.

Akka's ``RemoteWatcher``. What is monitored: nodes of other systems on which something is watched or supervised, and, by
a root node, the hosts of its own system. A process that ends is seen sooner, by its connection or its pidfd; heartbeats
are for those that stop, hang, or are cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from actors.errors import ActorError
from actors.remote.failure_detector import PhiAccrualFailureDetector
from actors.remote.gateway import NodeId, PulseGateway
from actors.remote.pulse import PATH
from actors.rpc.service import RpcService

logger = logging.getLogger(__name__)


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


@dataclass(slots=True, eq=False)
class _Monitored:
    node: NodeId
    gateway: PulseGateway
    detector: PhiAccrualFailureDetector
    waiting: bool = False
    beats: int = 0


class Heartbeats:
    """Asks for the pulse of other nodes.

    Args:
        service: the RPC service of this process.
        config: see there.
        on_silent: called once, with the node and the reason, when it is held for dead.
    """

    def __init__(self, service: RpcService, config: HeartbeatConfig, on_silent: Callable[[NodeId, str], None]) -> None:
        self._service = service
        self._config = config
        self._on_silent = on_silent
        self._monitored: dict[int, _Monitored] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = 0.0
        self._beats: set[asyncio.Task[None]] = set()

    def watch(self, node: NodeId) -> None:
        """Monitor a node; idempotent."""
        if node.uid in self._monitored or not node.pulse_port:
            return
        config = self._config
        address = node.address
        pulse = type(address)(address.system, address.host, node.pulse_port, PATH)
        timeout_s = max(2 * config.interval_s, config.acceptable_pause_s)
        self._monitored[node.uid] = _Monitored(
            node,
            self._service.gateway(pulse, PulseGateway, timeout_s=timeout_s),
            PhiAccrualFailureDetector(
                threshold=config.threshold,
                acceptable_pause_s=config.acceptable_pause_s,
                first_interval_s=config.interval_s,
            ),
        )
        if self._timer is None:
            self._last_tick = self._service.loop.time()
            self._tick()

    def unwatch(self, uid: int) -> None:
        """Monitor a node no more; idempotent."""
        self._monitored.pop(uid, None)

    def _tick(self) -> None:
        loop = self._service.loop
        now = loop.time()
        if not self._monitored:
            self._timer = None
            return
        self._timer = loop.call_later(self._config.interval_s, self._tick)
        # When this loop itself stood still, the replies that came meanwhile have not been seen: nobody is to blame.
        stalled = now - self._last_tick > self._config.interval_s + max(self._config.acceptable_pause_s, 1.0) / 2
        self._last_tick = now
        for monitored in list(self._monitored.values()):
            if stalled:
                monitored.detector.heartbeat(now)
            elif not monitored.detector.is_available(now):
                del self._monitored[monitored.node.uid]
                phi = monitored.detector.phi(now)
                self._on_silent(monitored.node, f"it has not answered heartbeats (phi {phi:.1f})")
                continue
            if not monitored.waiting:
                monitored.waiting = True
                task = loop.create_task(self._beat(monitored))
                self._beats.add(task)
                task.add_done_callback(self._beats.discard)

    async def _beat(self, monitored: _Monitored) -> None:
        try:
            uid = await monitored.gateway.beat()
        except ActorError as error:
            logger.debug("no heartbeat of %s: %s", monitored.node, error)
            return
        finally:
            monitored.waiting = False
        if self._monitored.get(monitored.node.uid) is not monitored:
            return
        if uid == monitored.node.uid:
            monitored.beats += 1
            monitored.detector.heartbeat(self._service.loop.time())
        else:
            del self._monitored[monitored.node.uid]
            self._on_silent(monitored.node, "another incarnation has its address")

    def close(self) -> None:
        """Stop monitoring."""
        self._monitored.clear()
        for task in self._beats:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
