"""Requests to an OpenID Connect provider: bounded in bytes and time, by TLS, without redirects and proxies."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from actors.errors import why_unreachable
from runtime.users.login import is_private_url
from runtime.users.oidc import IssuerAnswerError

DEADLINE_S = 10.0
"""Seconds after which a request has failed, however slowly its answer arrives."""
MOST_OF_AN_ANSWER = 256 * 1024


class IssuerUnreachableError(IssuerAnswerError):
    """The issuer gives no answer."""


def trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS settings for an issuer: verified against a file of authorities, or those of the system.

    Raises:
        IssuerAnswerError: the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise IssuerAnswerError(f"security.oidc.ca-file: {ca_file} cannot be used: {error}") from error


def ask(
    url: str,
    tls: ssl.SSLContext,
    form: Mapping[str, str] | None = None,
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    deadline_s: float = DEADLINE_S,
) -> tuple[int, Mapping[str, Any]]:
    """Send a request and return status and JSON object of its answer; an answer without one counts as empty.

    Args:
        url: to send it to; https, or http on loopback.
        tls: settings for https.
        form: sent by POST; None for a GET.
        headers: further ones.
        deadline_s: seconds for the whole answer.

    Raises:
        IssuerUnreachableError: there is no whole answer in time.
        IssuerAnswerError: the URL is not private, its certificate is not trusted, or the answer is too long or a
            redirect.
    """
    if not is_private_url(url):
        raise IssuerAnswerError(f"{url[:200]!r} is neither https:// nor on loopback")
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = _connect(parts, tls, deadline_s)
    except (OSError, UnicodeError) as error:
        raise IssuerUnreachableError(f"{parts.netloc} cannot be reached: {why_unreachable(error)}") from error
    # The socket's own time-out begins again with each byte, so a slow answer needs another end.
    is_late = threading.Event()
    watchdog = threading.Timer(deadline_s, _cut, (connection.sock, is_late))
    watchdog.daemon = True
    watchdog.start()
    try:
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        sent = {"Accept": "application/json", **headers}
        if form is None:
            connection.request("GET", target, headers=sent)
        else:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request("POST", target, urlencode(form), sent)
        response = connection.getresponse()
        data = response.read(MOST_OF_AN_ANSWER + 1)
        is_whole = not response.length
        status = response.status
    except ssl.SSLCertVerificationError as error:
        raise IssuerAnswerError(
            f"the certificate of {parts.netloc} is not trusted: {error.verify_message} (security.oidc.ca-file)"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise IssuerUnreachableError(f"{parts.netloc} does not answer: {cause}") from error
    finally:
        watchdog.cancel()
        connection.close()
    if is_late.is_set():  # an end of the connection may look like the end of an answer
        raise IssuerUnreachableError(f"{parts.netloc} did not answer within {deadline_s:g} s")
    if len(data) > MOST_OF_AN_ANSWER:
        raise IssuerAnswerError(f"the answer of {parts.netloc} has more than {MOST_OF_AN_ANSWER} bytes")
    if not is_whole:
        raise IssuerUnreachableError(f"the answer of {parts.netloc} broke off")
    if 300 <= status < 400:
        raise IssuerAnswerError(f"{parts.netloc} answers {parts.path} with a redirect, which is not followed")
    return status, _json(data)


def fetch(url: str, tls: ssl.SSLContext) -> Mapping[str, Any]:
    """Return the JSON object at a URL. Raises as `ask`, also for every status but 200."""
    status, document = ask(url, tls)
    if status != 200:
        raise IssuerUnreachableError(f"{url} answers with HTTP {status}")
    return document


def _connect(parts: SplitResult, tls: ssl.SSLContext, deadline_s: float) -> http.client.HTTPConnection:
    """Return a connection whose TLS handshake has not begun, so that the watchdog may end that too."""
    host = parts.hostname
    assert host is not None
    is_secured = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_secured else http.client.HTTPConnection
    connection = kind(host, parts.port)
    sock = socket.create_connection((host, connection.port), deadline_s)
    try:
        connection.sock = (
            tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False) if is_secured else sock
        )
    except BaseException:
        sock.close()
        raise
    return connection


def _cut(sock: socket.socket, is_late: threading.Event) -> None:
    is_late.set()
    with contextlib.suppress(OSError):  # it has ended by itself
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS is not for two threads


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
