"""Failure detection: heartbeats to monitored nodes, evaluated by the phi accrual detector.

`Heartbeats` asks for the heartbeats (Akka's ``RemoteWatcher``). A node monitors nodes of other systems on which it
watches or supervises an actor. A root node also monitors the hosts of its own system. The end of a process shows
sooner, by its connection or its pidfd. Heartbeats detect processes that are suspended, hang, or are cut off.

`Pulse` answers, in a thread of its own. While an actor computes for minutes, the event loop of its process stands
still. That process is alive and must not be declared dead (Akka answers heartbeats on another dispatcher than the
actors'). A suspended, swapped-out or lost process stops the thread too, and the failure detector detects it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actors.errors import ActorError
from actors.process.loops import LoopThread
from actors.remote.gateway import NodeId, PulseGateway
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcConfig, RpcService
from actors.rpc.tls import TlsConfig
from actors.system_config import HeartbeatConfig

logger = logging.getLogger(__name__)

PATH = "/system/pulse"
CLOSE_DEADLINE_S = 5.0


class PhiAccrualFailureDetector:
    """Evaluates the heartbeats of one node (Hayashibara et al. 2004, Akka's ``PhiAccrualFailureDetector``). Pure.

    It does not decide between alive and dead, but computes a degree of suspicion, phi. Phi says how improbable the
    present silence is, given the regularity of earlier heartbeats. A threshold of 1 means one wrong decision in ten, a
    threshold of 8 one in 10^8. All times are monotonic seconds.

    Args:
        threshold: phi from which on the node counts as dead; a lower one detects sooner, with more wrong decisions.
        max_samples: number of intervals between heartbeats to remember.
        min_std_deviation_s: least standard deviation to assume, so that the first late heartbeat after exactly regular
            ones raises no alarm.
        acceptable_pause_s: seconds of additional silence that raise no suspicion: a garbage collection, a lost packet.
        first_interval_s: interval to expect before the first one was seen; the standard deviation is a quarter of it.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        threshold: float = 8.0,
        max_samples: int = 200,
        min_std_deviation_s: float = 0.1,
        acceptable_pause_s: float = 3.0,
        first_interval_s: float = 1.0,
    ) -> None:
        for name, value in (
            ("threshold", threshold),
            ("max_samples", max_samples),
            ("min_std_deviation_s", min_std_deviation_s),
            ("first_interval_s", first_interval_s),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0, not {value!r}")
        if not 0 <= acceptable_pause_s < math.inf:
            raise ValueError(f"acceptable_pause_s must not be negative: {acceptable_pause_s!r}")
        self._threshold = threshold
        self._min_std_deviation_s = min_std_deviation_s
        self._acceptable_pause_s = acceptable_pause_s
        spread = first_interval_s / 4
        self._intervals = deque((first_interval_s - spread, first_interval_s + spread), max_samples)
        self._last: float | None = None
        self._mean = 0.0
        self._std_deviation = 0.0
        self._learn()

    def heartbeat(self, now: float) -> None:
        """Record a heartbeat at *now*.

        The interval is not remembered if the node counted as dead before: it would make the detector slow for a long
        time.
        """
        if self._last is not None and self.is_available(now):
            self._intervals.append(max(now - self._last, 0.0))
            self._learn()
        self._last = now

    def phi(self, now: float) -> float:
        """Return the suspicion at *now*: 0 before the first heartbeat, then growing with the silence without bound."""
        if self._last is None:
            return 0.0
        # Akka's logistic approximation of the normal distribution's tail, 1 / (1 + e^x). Compute its logarithm
        # directly, because e^x overflows for long silences, and the tail itself rounds to 0.
        y = (now - self._last - self._mean - self._acceptable_pause_s) / self._std_deviation
        x = y * (1.5976 + 0.070566 * y * y)
        return (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) / math.log(10)

    def is_available(self, now: float) -> bool:
        """Return whether phi is below the threshold."""
        return self.phi(now) < self._threshold

    def _learn(self) -> None:
        self._mean = math.fsum(self._intervals) / len(self._intervals)
        variance = math.fsum((interval - self._mean) ** 2 for interval in self._intervals) / len(self._intervals)
        self._std_deviation = max(math.sqrt(variance), self._min_std_deviation_s)


@dataclass(slots=True, eq=False)
class _Monitored:
    node: NodeId
    gateway: PulseGateway
    detector: PhiAccrualFailureDetector
    waiting: bool = False
    beats: int = 0


class Heartbeats:
    """Asks other nodes for heartbeats.

    Args:
        service: the RPC service of this process.
        config: see `HeartbeatConfig`.
        on_silent: called once, with the node and the reason, when the node counts as dead.
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
        """Stop monitoring a node; idempotent."""
        self._monitored.pop(uid, None)

    def _tick(self) -> None:
        loop = self._service.loop
        now = loop.time()
        if not self._monitored:
            self._timer = None
            return
        self._timer = loop.call_later(self._config.interval_s, self._tick)
        # When this loop itself stood still, it has not read the replies that came during that time.
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


class PulseEndpoint(RpcEndpoint, PulseGateway):
    """Answers heartbeats.

    Args:
        service: the service at the port of the heartbeats.
        uid: uid of the node that it answers for.
    """

    parent_path = None

    def __init__(self, service: RpcService, uid: int) -> None:
        super().__init__(service, "pulse")
        self._uid = uid

    @rpc_sync
    def beat(self) -> int:
        return self._uid


class Pulse:
    """Answers heartbeats until `close`, in a thread of its own.

    Args:
        secret: the cluster secret.
        system: name of the actor system.
        host: address to listen on.
        uid: uid of the node that it answers for.
        tls: certificates for TLS, as for the node's own port.

    Raises:
        ActorSystemError: no port can be opened.
    """

    def __init__(self, secret: bytes, system: str, host: str, uid: int, tls: TlsConfig | None = None) -> None:
        self._thread = LoopThread("actors-pulse")
        self._service = RpcService(self._thread.loop, secret, RpcConfig(system=system, bind_host=host, tls=tls))
        try:
            self._thread.run(self._start(uid))
        except BaseException:
            self._thread.close()
            raise
        self.port = self._service.port

    async def _start(self, uid: int) -> None:
        await self._service.listen()
        await self._service.start_server(PulseEndpoint(self._service, uid))

    def close(self) -> None:
        """Stop answering and end the thread; idempotent."""
        if not self._thread.loop.is_closed():
            with contextlib.suppress(TimeoutError):
                self._thread.run(self._service.close(), CLOSE_DEADLINE_S)
            self._thread.close()
