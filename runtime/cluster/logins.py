"""Stored logins: a private file for each cluster, and its token, renewed before it expires.

Several processes of a user may use one login. Renewing often makes the former refresh token invalid, so one process
renews at a time, and the others read what it has stored. They wait for it only if their token is of no use any more. If
the issuer does not answer, they have waited as long as the first, and do not ask again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.errors import ActorError, AuthenticationError, RecipientUnreachable
from actors.rpc.security import load_secret
from conf.configuration import Configuration
from conf.files import make_private, write_private
from conf.options import ClientOptions, OidcOptions
from runtime.errors import ClusterError
from runtime.http_client import WebAddress, WebClient
from runtime.issuer_client import IssuerUnreachableError, ask, trusted
from runtime.users.login import (
    DEVICE_BEGIN,
    DEVICE_END,
    DEVICE_RENEW,
    DEVICE_TOKENS,
    Login,
    LoginError,
    LoginOffer,
    device_request,
    device_token_request,
    is_passing,
    name_of,
    on_renewal,
    refresh_request,
    revocation_request,
)
from runtime.users.oidc import IssuerAnswerError

logger = logging.getLogger(__name__)

Answer = tuple[int, Mapping[str, Any]]

RETRY_MS = 30_000
"""Time between two attempts to renew a token that is still valid, or that the cluster refuses."""


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class LoginFile:
    """The login of one cluster.

    Args:
        directory: of logins.
        endpoints: the cluster's web endpoints; a login is found again only for the same ones.
    """

    def __init__(self, directory: Path, endpoints: Sequence[WebAddress]) -> None:
        self.cluster = name_of([str(endpoint) for endpoint in endpoints])
        self.path = directory / f"{hashlib.sha256(self.cluster.encode()).hexdigest()[:32]}.json"

    def read(self) -> Login | None:
        """Return the login; None if there is none for this cluster.

        Raises:
            AuthenticationError: others may read the file, or it cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            login = Login.from_json(load_secret(self.path, ClientOptions.LOGIN_DIR.key).decode())
        except ValueError as error:
            raise AuthenticationError(
                f"the login in {self.path} cannot be read: {error}; `understudy login` replaces it"
            ) from None
        return login if login.cluster == self.cluster else None

    def write(self, login: Login) -> None:
        """Store a login with mode 0600. Raises ClusterError."""
        try:
            make_private(self.path.parent)
            write_private(self.path, login.to_json().encode())
        except OSError as error:
            raise _not_stored(self.path, error) from error

    def remove(self) -> None:
        """Remove the login, if there is one."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock by which one process changes the login at a time. Raises ClusterError."""
        with self._opened_lock() as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    @contextmanager
    def renewing(self, *, waits: bool) -> Iterator[Renewal | None]:
        """Hold the lock for a renewal.

        Args:
            waits: whether to wait while another process holds it. Otherwise None is returned then.

        Raises:
            ClusterError: it cannot be had.
        """
        with self._opened_lock() as descriptor:
            mark = _mark(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                renewal = None
            else:
                renewal = Renewal(descriptor, has_failed=_mark(descriptor) != mark)
            yield renewal

    @contextmanager
    def _opened_lock(self) -> Iterator[int]:
        try:
            make_private(self.path.parent)
            descriptor = os.open(
                self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise _not_stored(self.path, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Renewal:
    """The right to renew a login, which one process has at a time.

    Args:
        descriptor: of the open lock file.
        has_failed: whether a renewal by another process has failed while this one waited for the right.
    """

    descriptor: int
    has_failed: bool

    def fail(self) -> None:
        """Tell those that wait for the right that the issuer has not answered."""
        with suppress(OSError):  # as on a full disk: they ask for themselves
            os.pwrite(self.descriptor, secrets.token_hex(_MARK_SIZE // 2).encode(), 0)


_MARK_SIZE = 32


def _mark(descriptor: int) -> bytes:
    """Return the content of a lock file, which is another one after each renewal that has failed."""
    return os.pread(descriptor, _MARK_SIZE, 0)


def _not_stored(path: Path, error: OSError) -> ClusterError:
    return ClusterError(
        f"the login cannot be stored in {path}: {error.strerror}", "set client.login-dir to a directory of your own"
    )


class IssuerLine:
    """Requests of a client that logs in: to the issuer, or to the cluster where only that knows the client's secret.

    Args:
        ca_file: authorities of the issuer; None for those of the system.
        open_web: returns what sends requests to the cluster's web endpoints, without a token.

    All methods return the issuer's status and answer, and raise `IssuerAnswerError` as `runtime.issuer_client.ask`.
    """

    def __init__(self, ca_file: Path | None, open_web: Callable[[], WebClient]) -> None:
        self._ca_file = ca_file
        self._open_web = open_web

    def begin(self, offer: LoginOffer, device_url: str) -> Answer:
        """Begin a device flow."""
        if offer.through_cluster:
            return self._through_cluster(DEVICE_BEGIN, {})
        return self._ask(device_url, device_request(offer))

    def tokens(self, login: Login, device_code: str) -> Answer:
        """Ask for the tokens of a device flow."""
        if login.through_cluster:
            return self._through_cluster(DEVICE_TOKENS, {"device-code": device_code})
        return self._ask(login.token_url, device_token_request(login.client_id, device_code))

    def renew(self, login: Login) -> Answer:
        """Renew a login."""
        if login.through_cluster:
            return self._through_cluster(DEVICE_RENEW, {"refresh-token": login.refresh_token})
        return self._ask(login.token_url, refresh_request(login))

    def revoke(self, login: Login) -> Answer:
        """Revoke a login."""
        if login.through_cluster:
            return self._through_cluster(DEVICE_END, {"refresh-token": login.refresh_token})
        return self._ask(login.revocation_url, revocation_request(login))

    def _ask(self, url: str, form: Mapping[str, str]) -> Answer:
        return ask(url, trusted(self._ca_file), form)

    def _through_cluster(self, path: str, form: Mapping[str, str]) -> Answer:
        web, body = self._open_web(), json.dumps(form).encode()
        try:
            told = json.loads(web.request_from_any("POST", f"/v1{path}", body, media="application/json"))
            return int(told["status"]), dict(told["answer"])
        except (ActorError, ValueError, LookupError, TypeError) as error:
            raise IssuerUnreachableError(f"{web.endpoint} has no answer of the issuer: {error}") from error
        finally:
            web.close()


class StoredToken:
    """Returns the token of a stored login, and renews it before it expires. Several threads may call it at once.

    Args:
        file: of the login.
        line: to the issuer.
        clock_ms: returns the time in milliseconds since the epoch.
    """

    def __init__(self, file: LoginFile, line: IssuerLine, clock_ms: Callable[[], int] = now_ms) -> None:
        self._file = file
        self._line = line
        self._clock_ms = clock_ms
        self._login: Login | None = None
        self._unstored: tuple[Login, Login] | None = None
        """The stored login, and the one that has replaced it at the issuer and could not be stored."""
        self._retry_ms = 0

    def __call__(self, refused: str = "") -> str:
        """Return a token.

        Args:
            refused: a token that the cluster has refused, although it is valid by this machine's clock. That clock may
                be wrong, or the issuer may have withdrawn the key. It is returned again if there is no other.

        Raises:
            AuthenticationError: there is no login any more, or the issuer does not renew it.
            RecipientUnreachable: the token has expired, and the issuer does not answer.
            ClusterError: the token has expired, and the login cannot be locked.
        """
        now, login = self._clock_ms(), self._login
        if login is None or login.bearer == refused or (login.needs_renewal(now) and self._may_renew(login, now)):
            login = self._login = self._current(now, refused)
        return login.bearer

    def _may_renew(self, login: Login, now: int) -> bool:
        return now >= self._retry_ms or login.has_expired(now)

    def _current(self, now: int, refused: str) -> Login:
        def serves(login: Login) -> bool:
            return not login.needs_renewal(now) and login.bearer != refused

        login = self._read()
        if serves(login) or not self._may_renew(login, now):
            return login
        is_useless = login.has_expired(now) or login.bearer == refused
        try:
            with self._file.renewing(waits=is_useless) as renewal:
                login = self._read()  # another process may have renewed it
                if serves(login):
                    return login
                if renewal is None:  # another process is at it
                    self._retry_ms = now + RETRY_MS
                elif login.refresh_token:
                    return self._renewed(renewal, login, now, refused)
        except ClusterError:
            if login.has_expired(now):
                raise
            self._retry_ms = now + RETRY_MS
        if login.has_expired(now):
            raise AuthenticationError(f"the login at {login.cluster} has expired; `understudy login` begins another")
        return login

    def _read(self) -> Login:
        login = self._file.read()
        if login is None:
            raise AuthenticationError(f"there is no login at {self._file.cluster}; `understudy login` begins one")
        if self._unstored is not None and self._unstored[0] == login:
            return self._unstored[1]
        return login

    def _renewed(self, renewal: Renewal, login: Login, now: int, refused: str) -> Login:
        try:
            if renewal.has_failed:
                raise IssuerUnreachableError(f"{login.issuer} has just given another process no answer")
            status, answer = self._line.renew(login)
            if is_passing(status):
                raise IssuerAnswerError(f"{login.issuer} answers with HTTP {status}")
            renewed = on_renewal(login, status, answer)
        except (LoginError, IssuerAnswerError) as error:
            if not isinstance(error, LoginError) and not renewal.has_failed:
                renewal.fail()
            if not login.has_expired(now):
                self._retry_ms = now + RETRY_MS
                return login
            if isinstance(error, LoginError):
                raise AuthenticationError(f"{error}; {error.remedy}") from error
            raise RecipientUnreachable(f"the login at {login.cluster} cannot be renewed: {error}") from error
        if refused:
            self._retry_ms = now + RETRY_MS  # if the next token is refused too, the issuer is not asked each time
        stored = self._file.read()
        try:
            self._file.write(renewed)
        except ClusterError as error:  # the former refresh token may be used up, so the next one must not be lost
            logger.warning("%s; this process renews its login, and others have to log in again", error)
            self._unstored = None if stored is None else (stored, renewed)
        else:
            self._unstored = None
        return renewed


def login_file(configuration: Configuration, endpoints: Sequence[WebAddress]) -> LoginFile:
    """Return the file of the login for a cluster."""
    return LoginFile(configuration.get(ClientOptions.LOGIN_DIR), endpoints)


def stored_token(
    configuration: Configuration, endpoints: Sequence[WebAddress], open_web: Callable[[], WebClient]
) -> StoredToken | None:
    """Return the token of the login for a cluster; None if there is no login. Raises AuthenticationError.

    Args:
        configuration: of the client.
        endpoints: the cluster's web endpoints.
        open_web: as in `IssuerLine`.
    """
    file = login_file(configuration, endpoints)
    if file.read() is None:
        return None
    return StoredToken(file, IssuerLine(configuration.get(OidcOptions.CA_FILE), open_web))
