"""Options of the blob service."""

from __future__ import annotations

from urllib.parse import urlsplit

from conf.option import option
from conf.options.cluster import port
from conf.secret import SecretStr
from conf.values import Duration, Integer, MemorySize, SecretUrl


class _StoreUrl(SecretUrl):
    """A URL of any scheme; only fsspec knows the supported schemes."""

    expected = "a URL with its scheme, such as s3:// or ftp://"

    def __init__(self, example: str) -> None:
        self.example = example

    def parse(self, text: str) -> SecretStr:
        scheme = urlsplit(text).scheme
        if not scheme:
            raise ValueError("no URL")
        return SecretUrl((scheme,), self.example).parse(text)


class BlobOptions:
    """The blob service transfers code, job graphs, large messages and logs."""

    SERVER_PORT = option(
        "blob.server.port",
        port("6124"),
        "0",
        "The port on which the BlobServer listens; 0 takes a free one.",
    )
    MAX_CONNECTIONS = option(
        "blob.fetch.num-concurrent",
        Integer(1, 10000, example="50"),
        "50",
        "Number of connections that the BlobServer serves at once; further ones wait.",
        fallback_keys=("blob.service.max-connections",),
    )
    SERVER_SOCKET_TIMEOUT = option(
        "blob.server.socket.timeout",
        Duration("30 s", minimum=0.001),
        "30 s",
        "Time after which the BlobServer drops a client that sends or takes no byte, or sends no request.",
    )
    SERVER_MAX_SIZE = option(
        "blob.server.max-size",
        MemorySize("100 g", minimum=1),
        None,
        "Most bytes that the BlobServer holds in total; it rejects further uploads. Unset: only the disk limits it.",
    )
    JOB_MAX_SIZE = option(
        "blob.job.max-size",
        MemorySize("10 g", minimum=1),
        None,
        "Most bytes that the BlobServer holds of one job; it rejects further uploads. All blobs without a job count as "
        "one job.",
    )
    STORE_URL = option(
        "blob.store.url",
        _StoreUrl("s3://bucket/understudy"),
        None,
        "URL of the store that keeps permanent blobs beyond the life of the BlobServer. It is a directory of any file "
        "system that fsspec knows (`ftp://`, `hdfs://`, `s3://`, ...); its plug-in must be installed on every machine. "
        "Unset: `high-availability.storageDir`, below the cluster's id.",
    )
    CACHE_MAX_SIZE = option(
        "blob.cache.max-size",
        MemorySize("10 g", minimum=1),
        None,
        "Most bytes of blob copies that a TaskExecutor keeps. Beyond it the TaskExecutor deletes copies that no job "
        "uses, the least recently used first. Unset: copies stay until their job ends.",
    )
    FETCH_RETRIES = option(
        "blob.fetch.retries",
        Integer(0, 100, example="5"),
        "5",
        "Number of retries of a transfer whose connection broke; each resumes where it broke.",
    )
    SOCKET_TIMEOUT = option(
        "blob.client.socket.timeout",
        Duration("5 min", minimum=0.001),
        "5 min",
        "Time after which a client gives up a transfer that stands still.",
    )
    OFFLOAD_MINSIZE = option(
        "blob.offload.minsize",
        MemorySize("1 mb", minimum=1),
        "1 mb",
        "Larger parts of a deployment travel as a blob, uploaded once and fetched by every receiver. At most "
        "`rpc.frame-size`.",
    )
    CLEANUP_INTERVAL = option(
        "blob.service.cleanup.interval",
        Duration("1 h", minimum=0.001),
        "1 h",
        "Time between two clean-ups of expired blobs.",
    )
    CLEANUP_TTL = option(
        "blob.service.cleanup.ttl",
        Duration("1 h"),
        "1 h",
        "Time after its last use when the BlobServer deletes a transient blob, or a permanent blob of an unknown job.",
    )
    DISK_RESERVE = option(
        "blob.disk-reserve",
        MemorySize("512 mb"),
        "512 mb",
        "The BlobServer rejects uploads that would leave less than this free on the disk.",
    )
