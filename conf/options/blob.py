"""Options of the blob service."""

from __future__ import annotations

from urllib.parse import urlsplit

from conf.option import option
from conf.options.cluster import PORT
from conf.secret import SecretStr
from conf.values import Duration, Integer, MemorySize, SecretUrl


class _StoreUrl(SecretUrl):
    """A URL of whatever scheme; which ones there are is known only where fsspec is."""

    expected = "a URL with its scheme, such as s3:// or ftp://"

    def __init__(self, example: str) -> None:
        self.example = example

    def parse(self, text: str) -> SecretStr:
        scheme = urlsplit(text).scheme
        if not scheme:
            raise ValueError("no URL")
        return SecretUrl((scheme,), self.example).parse(text)


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
    SERVER_SOCKET_TIMEOUT = option(
        "blob.server.socket.timeout",
        Duration("30 s", minimum=0.001),
        "30 s",
        "How long a client of the BlobServer may send or take no byte, or keep a connection without asking for "
        "anything, before it is dropped.",
    )
    SERVER_MAX_SIZE = option(
        "blob.server.max-size",
        MemorySize("100 g", minimum=1),
        None,
        "The most that the BlobServer holds in all; uploads beyond are refused. Without a value the disk is the limit.",
    )
    JOB_MAX_SIZE = option(
        "blob.job.max-size",
        MemorySize("10 g", minimum=1),
        None,
        "The most that the BlobServer holds of one job; uploads beyond are refused. The blobs of no job count as one.",
    )
    STORE_URL = option(
        "blob.store.url",
        _StoreUrl("s3://bucket/understudy"),
        None,
        "Where permanent blobs are kept beside the BlobServer, so that they outlive it: a directory of any file system "
        "that fsspec knows (`ftp://`, `hdfs://`, `s3://`, ...; its plug-in has to be installed on every machine). "
        "Without a value: `high-availability.storageDir`, below the cluster's id.",
    )
    CACHE_MAX_SIZE = option(
        "blob.cache.max-size",
        MemorySize("10 g", minimum=1),
        None,
        "The most that a TaskExecutor keeps of copies of blobs: beyond, those that no job uses go, the least recently "
        "used first. Without a value they stay until their job ends.",
    )
    FETCH_RETRIES = option(
        "blob.fetch.retries",
        Integer(0, 100, example="5"),
        "5",
        "How often a transfer whose connection broke is tried again; it goes on where it broke.",
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
