"""Options of the blob service."""

from __future__ import annotations

from conf.option import option
from conf.options.cluster import PORT
from conf.values import Duration, Integer, MemorySize


class BlobOptions:
    """The service through which code, job graphs, large messages and logs travel."""

    SERVER_PORT = option(
        "blob.server.port",
        PORT,
        "0",
        "The port on which the BlobServer listens; 0 takes a free one.",
    )
    MAX_CONNECTIONS = option(
        "blob.fetch.num-concurrent",
        Integer(1, 10000, example="50"),
        "50",
        "How many connections the BlobServer serves at once; more wait.",
        fallback_keys=("blob.service.max-connections",),
    )
    FETCH_RETRIES = option(
        "blob.fetch.retries",
        Integer(0, 100, example="5"),
        "5",
        "How often a failed download is tried again.",
    )
    SOCKET_TIMEOUT = option(
        "blob.client.socket.timeout",
        Duration("5 min", minimum=0.001),
        "5 min",
        "How long a transfer may stand still before it is given up.",
    )
    OFFLOAD_MINSIZE = option(
        "blob.offload.minsize",
        MemorySize("1 mb", minimum=1),
        "1 mb",
        "The parts of a deployment that are larger than this travel as a blob, uploaded once and fetched by every "
        "receiver. Not larger than `rpc.frame-size`.",
    )
    CLEANUP_INTERVAL = option(
        "blob.service.cleanup.interval",
        Duration("1 h", minimum=0.001),
        "1 h",
        "The time between two clean-ups of blobs that have outlived their use.",
    )
    CLEANUP_TTL = option(
        "blob.service.cleanup.ttl",
        Duration("1 h"),
        "1 h",
        "How long a transient blob, or a permanent one whose job is gone, stays after it was last used.",
    )
    DISK_RESERVE = option(
        "blob.disk-reserve",
        MemorySize("512 mb"),
        "512 mb",
        "Uploads are refused when they would leave less than this free on the disk.",
    )
