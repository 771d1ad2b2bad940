"""Options of the REST API and the web endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import HOST_NAME, PORT, ClusterOptions
from conf.values import Boolean, Duration, FilePath, Integer, MemorySize, Text, TextList

if TYPE_CHECKING:
    from conf.configuration import Configuration


def _token_file(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.RUNTIME_DIR) / "rest-token"


class RestOptions:
    """The web endpoint, which speaks Flink's REST API (`docs/rest.md`). Each master has one."""

    ENABLED = option("rest.enabled", Boolean(), "true", "Whether there is a web endpoint at all.")
    ADDRESS = option(
        "rest.address",
        HOST_NAME,
        "127.0.0.1",
        "The name or address at which clients reach the web endpoint; unless `rest.bind-address` is set, it listens "
        "there. Only this machine can reach the default.",
    )
    BIND_ADDRESS = option(
        "rest.bind-address",
        HOST_NAME,
        None,
        "The address on which the web endpoint listens, where that is not `rest.address`; `0.0.0.0` is every one. "
        "Other than loopback it needs the token and TLS.",
    )
    PORT = option(
        "rest.port",
        PORT,
        "8081",
        "The port of the web endpoint; 0 takes a free one. A further master of the same machine takes a free one when "
        "this is in use.",
    )
    BIND_PORT = option(
        "rest.bind-port",
        Text("8081-8090", r"[0-9]{1,5}(-[0-9]{1,5})?", "a port or a range of ports"),
        None,
        "A port or a range of them, of which the web endpoint takes the first that is free, in place of `rest.port`.",
    )
    TOKEN_ENABLED = option(
        "rest.authentication.enabled",
        Boolean(),
        "true",
        "Whether every request has to show the token, as `Authorization: Bearer TOKEN`. Without it every user of the "
        "machine may run code as the cluster's user.",
    )
    TOKEN_FILE = computed_option(
        "rest.authentication.token-file",
        FilePath("/etc/understudy/rest-token"),
        _token_file,
        "<cluster.runtime-dir>/rest-token",
        "The file that holds the token of the REST API; made at the first start, with mode 0600. Whoever reads it may "
        "run jobs.",
    )
    ALLOWED_HOSTS = option(
        "rest.allowed-hosts",
        TextList("spark.example.org; 10.0.0.7"),
        "",
        "More names by which the web endpoint may be asked (the header `Host`), beside `rest.address`, "
        "`rest.bind-address` and those of loopback; any port.",
    )
    ALLOW_INSECURE = option(
        "rest.allow-insecure",
        Boolean(),
        "false",
        "Whether the web endpoint may listen on an address that other machines reach without the token or without TLS. "
        "Whoever reaches it then runs code as the user of the cluster.",
    )
    MAX_CONTENT_LENGTH = option(
        "rest.server.max-content-length",
        MemorySize("100 mb", minimum=1 << 16),
        "100 mb",
        "The most bytes that one request may send; larger ones are refused.",
    )
    MAX_CONNECTIONS = option(
        "rest.server.max-connections",
        Integer(1, 65536, example="256"),
        "256",
        "How many connections that have shown the token the web endpoint serves at once; more are refused with status "
        "503. Connections that have not shown it are bounded apart: of more than 256 the oldest are closed.",
    )
    REFRESH_INTERVAL = option(
        "web.refresh-interval",
        Duration("3 s", minimum=0.001),
        "1 s",
        "How often a web page asks anew, and how old the state of the jobs may be that the REST API tells (Flink's "
        "default is 3 s). What is asked after a change that was made through the same endpoint is never older than "
        "that change.",
    )
    SSL_ENABLED = option(
        "security.ssl.rest.enabled", Boolean(), "false", "Whether the web endpoint speaks HTTPS (TLS 1.2 or later)."
    )
    SSL_CERTIFICATE = option(
        "security.ssl.rest.certificate",
        FilePath("/etc/understudy/rest.crt"),
        None,
        "The PEM file with the certificate of the web endpoint, and those between it and its authority.",
    )
    SSL_KEY = option(
        "security.ssl.rest.key",
        FilePath("/etc/understudy/rest.key"),
        None,
        "The PEM file with the private key of `security.ssl.rest.certificate`: without a password, of mode 0600.",
    )
