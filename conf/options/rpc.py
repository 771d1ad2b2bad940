"""Options of RPC and of the heartbeats between the components."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration, Integer, MemorySize


class RpcOptions:
    """Messages between actors of all processes."""

    FRAME_SIZE = option(
        "rpc.frame-size",
        MemorySize("10 mb", minimum=64 << 10, maximum=1 << 30),
        "10 mb",
        "Largest message; larger ones are rejected. Large payloads travel through the blob service instead (see "
        "`blob.offload.minsize`).",
        fallback_keys=("pekko.framesize", "akka.framesize"),
    )
    ASK_TIMEOUT = option(
        "rpc.ask-timeout",
        Duration("10 s", minimum=0.001),
        "10 s",
        "Time for which an ask waits for its reply. After a timeout the outcome is unknown, not failed.",
        fallback_keys=("pekko.ask.timeout", "akka.ask.timeout"),
    )
    CONNECT_TIMEOUT = option(
        "rpc.connect-timeout",
        Duration("5 s", minimum=0.001),
        "5 s",
        "Timeout for opening a connection, including the mutual authentication.",
        fallback_keys=("pekko.tcp.timeout", "akka.tcp.timeout"),
    )


class HeartbeatOptions:
    """Detection of failures between ResourceManager, JobMasters and TaskExecutors on different machines.

    (On the same machine the end of a process is noticed at once.)
    """

    INTERVAL = option(
        "heartbeat.interval",
        Duration("1 s", minimum=0.01),
        "1 s",
        "Time between two heartbeats (Flink's default is 10 s).",
    )
    TIMEOUT = option(
        "heartbeat.timeout",
        Duration("10 s", minimum=0.02),
        "10 s",
        "Time without a heartbeat after which a peer counts as dead (Flink's default is 50 s). Must be longer than "
        "`heartbeat.interval`.",
    )
    RPC_FAILURE_THRESHOLD = option(
        "heartbeat.rpc-failure-threshold",
        Integer(-1, 1000, example="2"),
        "2",
        "Number of successive undeliverable heartbeats after which a peer counts as dead before `heartbeat.timeout`; "
        "-1 turns this off.",
    )
