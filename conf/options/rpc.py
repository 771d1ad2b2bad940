"""Options of RPC and of the heartbeats between the components."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration, Integer, MemorySize


class RpcOptions:
    """Messages between actors, from whichever process."""

    FRAME_SIZE = option(
        "rpc.frame-size",
        MemorySize("10 mb", minimum=64 << 10, maximum=1 << 30),
        "10 mb",
        "The largest message. A larger one is refused; large payloads travel through the blob service instead (see "
        "`blob.offload.minsize`).",
        fallback_keys=("pekko.framesize", "akka.framesize"),
    )
    ASK_TIMEOUT = option(
        "rpc.ask-timeout",
        Duration("10 s", minimum=0.001),
        "10 s",
        "How long an ask waits for its answer. When it ends, the outcome is unknown, not failed.",
        fallback_keys=("pekko.ask.timeout", "akka.ask.timeout"),
    )
    CONNECT_TIMEOUT = option(
        "rpc.connect-timeout",
        Duration("5 s", minimum=0.001),
        "5 s",
        "How long a connection may take to open, its mutual authentication included.",
        fallback_keys=("pekko.tcp.timeout", "akka.tcp.timeout"),
    )


class HeartbeatOptions:
    """How the ResourceManager, the JobMasters and the TaskExecutors notice each other's death on another machine. (On
    the same machine the end of a process is seen at once.)"""

    INTERVAL = option(
        "heartbeat.interval",
        Duration("1 s", minimum=0.01),
        "1 s",
        "The time between two heartbeats (Flink's default is 10 s).",
    )
    TIMEOUT = option(
        "heartbeat.timeout",
        Duration("10 s", minimum=0.02),
        "10 s",
        "A peer that was not heard of for this long is taken for dead (Flink's default is 50 s). Longer than "
        "`heartbeat.interval`.",
    )
    RPC_FAILURE_THRESHOLD = option(
        "heartbeat.rpc-failure-threshold",
        Integer(-1, 1000, example="2"),
        "2",
        "A peer to which this many heartbeats in a row could not be delivered is taken for dead without waiting for "
        "`heartbeat.timeout`; -1 turns this off.",
    )
