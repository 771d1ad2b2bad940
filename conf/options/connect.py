"""Options of the gateway for Spark Connect clients."""

from __future__ import annotations

from conf.option import option
from conf.options.cluster import port
from conf.values import Boolean, Duration, MemorySize


class ConnectOptions:
    """The gateway for Spark Connect clients, such as notebooks (`docs/connect.md`). Each web endpoint has one."""

    ENABLED = option(
        "connect.enabled",
        Boolean(),
        "false",
        "Whether web endpoints accept Spark Connect clients. The gateway listens at the address of the web endpoint, "
        "with the same TLS, and takes the same tokens.",
    )
    PORT = option(
        "connect.port",
        port("15002"),
        "15002",
        "The port for Spark Connect clients; 0 takes a free one. Masters of one cluster on the same machine share it.",
    )
    IDLE_TIMEOUT = option(
        "connect.session.idle-timeout",
        Duration("4 h", minimum=1.0),
        "1 h",
        "Time without a call of its client after which a session is cancelled and gives its slot back. A call counts "
        "for as long as it lasts.",
    )
    MOST_RECORDED = option(
        "connect.session.most-recorded",
        MemorySize("64 mb", minimum=1),
        "64 mb",
        "Limit of the record from which a named session is rebuilt on another driver. A call that would exceed it is "
        "refused.",
    )
