"""Failure detection: heartbeats to the nodes that matter to this one, judged by the phi accrual detector.

`Heartbeats` asks (Akka's ``RemoteWatcher``). What is monitored: nodes of other systems on which something is watched or
supervised, and, by a root node, the hosts of its own system. A process that ends is seen sooner, by its connection or
its pidfd; heartbeats are for those that stop, hang, or are cut off.

`Pulse` answers, in a thread of its own. An actor may compute for minutes, and the event loop of its process stands
still meanwhile. The process is alive all the same, and is not to be declared dead (Akka answers heartbeats on another
dispatcher than the actors'). What stops the thread too is what a failure detector is meant to see: a stopped,
swapped-out or lost process.
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
    """Judges one node by its heartbeats (Hayashibara et al. 2004, Akka's ``PhiAccrualFailureDetector``). Pure.

    Not "alive" or "dead", but a degree of suspicion, phi: how improbable the present silence is, by how regularly
    heartbeats have come so far. phi = 1 means a mistake in one judgement of ten, phi = 8 one in 10^8. All times are
    monotonic seconds.

    Args:
        threshold: phi from which on it is held for dead. Lower means sooner, and more mistakes.
        max_samples: how many intervals between heartbeats are remembered.
        min_std_deviation_s: least standard deviation that is assumed, so that clockwork heartbeats do not make the
            first late one look like death.
        acceptable_pause_s: silence beyond the usual that is not held against it: a garbage collection, a lost packet.
        first_interval_s: the interval that is expected before any has been seen, with a quarter of it for a standard
            deviation.

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
        """A heartbeat has come.

        One that ends a silence which was taken for death is not remembered as an interval: it would make the detector
        patient for a long time to come.
        """
        if self._last is not None and self.is_available(now):
            self._intervals.append(max(now - self._last, 0.0))
            self._learn()
        self._last = now

    def phi(self, now: float) -> float:
        """The suspicion at *now*: 0 before the first heartbeat, and growing with the silence, without bound."""
        if self._last is None:
            return 0.0
        # Akka's logistic approximation of the normal distribution's tail, 1 / (1 + e^x). Its logarithm is computed
        # directly, since e^x overflows for long silences, and the tail itself is lost in rounding.
        y = (now - self._last - self._mean - self._acceptable_pause_s) / self._std_deviation
        x = y * (1.5976 + 0.070566 * y * y)
        return (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) / math.log(10)

    def is_available(self, now: float) -> bool:
        """Whether phi is below the threshold."""
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


class PulseEndpoint(RpcEndpoint, PulseGateway):
    """Answers heartbeats.

    Args:
        service: the service at the port that the heartbeats come to.
        uid: uid of the node whose pulse this is.
    """

    parent_path = None

    def __init__(self, service: RpcService, uid: int) -> None:
        super().__init__(service, "pulse")
        self._uid = uid

    @rpc_sync
    def beat(self) -> int:
        return self._uid


class Pulse:
    """Answers heartbeats until `close`.

    Args:
        secret: the cluster secret.
        system: name of the actor system.
        host: address to listen on.
        uid: uid of the node whose pulse this is.
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
