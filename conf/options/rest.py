"""Options of the REST API and the web endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import HOST_NAME, ClusterOptions, port
from conf.values import Boolean, Duration, FilePath, Integer, MemorySize, Text, TextList

if TYPE_CHECKING:
    from conf.configuration import Configuration


def _token_file(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.RUNTIME_DIR) / "rest-token"


class RestOptions:
    """The web endpoint, which offers Flink's REST API (`docs/rest.md`). Each master has one."""

    ENABLED = option("rest.enabled", Boolean(), "true", "Whether masters have a web endpoint.")
    ADDRESS = option(
        "rest.address",
        HOST_NAME,
        "127.0.0.1",
        "The name or address at which clients reach the web endpoint. It also listens there unless "
        "`rest.bind-address` is set. Only this machine can reach the default.",
    )
    BIND_ADDRESS = option(
        "rest.bind-address",
        HOST_NAME,
        None,
        "The address on which the web endpoint listens, if that is not `rest.address`; `0.0.0.0` means all addresses. "
        "An address other than loopback requires the token and TLS.",
    )
    PORT = option(
        "rest.port",
        port("8081"),
        "8081",
        "The port of the web endpoint; 0 takes a free one. A further master on the same machine takes a free port when "
        "this one is in use.",
    )
    BIND_PORT = option(
        "rest.bind-port",
        Text("8081-8090", r"[0-9]{1,5}(-[0-9]{1,5})?", "a port or a range of ports"),
        None,
        "A port or a range of ports, of which the web endpoint takes the first free one instead of `rest.port`.",
    )
    TOKEN_ENABLED = option(
        "rest.authentication.enabled",
        Boolean(),
        "true",
        "Whether every request needs the token, as `Authorization: Bearer TOKEN`. Without it every user of the machine "
        "can run code as the cluster's user.",
    )
    TOKEN_FILE = computed_option(
        "rest.authentication.token-file",
        FilePath("/etc/understudy/rest-token"),
        _token_file,
        "<cluster.runtime-dir>/rest-token",
        "The file with the token of the REST API, created at the first start with mode 0600. Users who can read it can "
        "run jobs.",
    )
    ALLOWED_HOSTS = option(
        "rest.allowed-hosts",
        TextList("spark.example.org; 10.0.0.7"),
        "",
        "Additional names that requests to the web endpoint may have in the header `Host`, besides `rest.address`, "
        "`rest.bind-address` and those of loopback; with any port.",
    )
    ALLOW_INSECURE = option(
        "rest.allow-insecure",
        Boolean(),
        "false",
        "Whether the web endpoint may listen, without the token or without TLS, on an address that other machines can "
        "reach. Everyone who can reach it can then run code as the cluster's user.",
    )
    MAX_CONTENT_LENGTH = option(
        "rest.server.max-content-length",
        MemorySize("100 mb", minimum=1 << 16),
        "100 mb",
        "Largest request; larger ones are rejected.",
    )
    MAX_CONNECTIONS = option(
        "rest.server.max-connections",
        Integer(1, 65536, example="256"),
        "256",
        "Number of connections with a valid token that the web endpoint serves at once; further ones get status 503. "
        "Connections without a valid token are limited separately: beyond 256 the oldest are closed.",
    )
    REFRESH_INTERVAL = option(
        "web.refresh-interval",
        Duration("3 s", minimum=0.001),
        "1 s",
        "Time between two refreshes of a web page, and greatest age of the jobs' state in the REST API (Flink's "
        "default is 3 s). Answers always include changes that were made before through the same endpoint.",
    )
    SSL_ENABLED = option(
        "security.ssl.rest.enabled", Boolean(), "false", "Whether the web endpoint speaks HTTPS (TLS 1.2 or later)."
    )
    SSL_CERTIFICATE = option(
        "security.ssl.rest.certificate",
        FilePath("/etc/understudy/rest.crt"),
        None,
        "The PEM file with the certificate of the web endpoint, and any intermediate certificates.",
    )
    SSL_KEY = option(
        "security.ssl.rest.key",
        FilePath("/etc/understudy/rest.key"),
        None,
        "The PEM file with the private key of `security.ssl.rest.certificate`: without a password, of mode 0600.",
    )
