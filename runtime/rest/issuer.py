"""The OpenID Connect provider of a web endpoint: identifies users by its tokens, with keys that are fetched and kept.

`runtime.users.oidc` decides; this module fetches, off the event loop, and reads the options.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from actors.errors import AuthenticationError
from actors.rpc.security import load_secret
from conf.configuration import Configuration
from conf.option import ConfigOption
from conf.options import DefaultRole, OidcOptions, RestOptions
from conf.secret import SecretStr
from runtime.errors import PreflightError
from runtime.issuer_client import fetch, trusted
from runtime.users.identities import Principal, Role
from runtime.users.login import LoginOffer, Provider, discovery_url, is_private_url
from runtime.users.oidc import (
    IssuerAnswerError,
    KeyRing,
    OidcRules,
    UnknownKeyError,
    VerificationKey,
    check_login,
    identify,
    keys_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 2.0
"""Seconds that a request waits for newer keys than those that it could use."""
FETCH_TIMEOUT_S = 25.0
"""Seconds for the discovery document and the keys, including the resolution of names."""

REQUESTS_FOR_KEYS = 2
"""How many fetches of keys may wait for the issuer; a fetch that was given up may still be one."""

_ROLES: Mapping[Role, ConfigOption[tuple[str, ...]]] = {
    Role.METRICS: OidcOptions.METRICS,
    Role.VIEWER: OidcOptions.VIEWER,
    Role.USER: OidcOptions.USER,
    Role.OPERATOR: OidcOptions.OPERATOR,
    Role.ADMIN: OidcOptions.ADMIN,
}


def rules_of(configuration: Configuration) -> OidcRules | None:
    """Return the rules for tokens of the configured issuer; None if none is configured.

    Raises:
        PreflightError: the options cannot be used, or the extra `oidc` is not installed.
    """
    get = configuration.get
    issuer, client_id = get(OidcOptions.ISSUER), get(OidcOptions.CLIENT_ID)
    if issuer is None:
        return None
    if not is_private_url(issuer) or "?" in issuer:
        raise PreflightError(
            f"{OidcOptions.ISSUER.key} is neither an https:// URL nor on loopback",
            "others could answer instead of the issuer; give its https:// URL, without a query",
        )
    if client_id is None:
        raise PreflightError(
            f"{OidcOptions.ISSUER.key} is set and {OidcOptions.CLIENT_ID.key} is not",
            f"set {OidcOptions.CLIENT_ID.key} to the id of the cluster's client at the issuer",
        )
    roles = dict[str, Role]()
    for role, option in _ROLES.items():  # from the lowest: a group in two lists has the higher role
        for group in get(option):
            roles[group] = role
    default = None if get(OidcOptions.DEFAULT_ROLE) is DefaultRole.NONE else Role.VIEWER
    if not roles and default is None:
        raise PreflightError(
            f"{OidcOptions.ISSUER.key} is set, and none of its users would have a role",
            f"name groups in {OidcOptions.USER.key} and its neighbours, or set {OidcOptions.DEFAULT_ROLE.key}",
        )
    if not get(RestOptions.TOKEN_ENABLED):
        raise PreflightError(
            f"{OidcOptions.ISSUER.key} is set and {RestOptions.TOKEN_ENABLED.key} is false, so no user could log in",
            f"remove one of these settings; {RestOptions.TOKEN_ENABLED.key}: false makes every client an admin",
        )
    if importlib.util.find_spec("jwt") is None:
        raise PreflightError(
            f"{OidcOptions.ISSUER.key} is set, and PyJWT is not installed", "pip install 'understudy-spark[oidc]'"
        )
    audience = get(OidcOptions.AUDIENCE) or client_id
    return OidcRules(
        issuer,
        client_id,
        audience,
        get(OidcOptions.USER_CLAIM),
        get(OidcOptions.GROUPS_CLAIM),
        roles,
        default,
        get(OidcOptions.DEVICE_CLIENT_ID) or "",
    )


def offer_of(configuration: Configuration) -> LoginOffer | None:
    """Return the values by which the web page logs in; None if no issuer is configured. Raises as `rules_of`."""
    rules = rules_of(configuration)
    if rules is None:
        return None
    wants_access_token = rules.audience != rules.client_id
    return LoginOffer(rules.issuer, rules.client_id, wants_access_token, configuration.get(OidcOptions.SCOPES))


def device_offer_of(configuration: Configuration) -> LoginOffer | None:
    """Return the values by which command lines log in; None if no issuer is configured. Raises as `rules_of`."""
    offer, get = offer_of(configuration), configuration.get
    if offer is None:
        return None
    return replace(
        offer,
        client_id=get(OidcOptions.DEVICE_CLIENT_ID) or offer.client_id,
        through_cluster=get(OidcOptions.DEVICE_CLIENT_SECRET_FILE) is not None,
    )


def client_secret_of(
    configuration: Configuration, option: ConfigOption[Path | None] = OidcOptions.CLIENT_SECRET_FILE
) -> SecretStr | None:
    """Return the secret of a client of the cluster at the issuer; None for a public client. Raises PreflightError."""
    file, key = configuration.get(option), option.key
    if file is None:
        return None
    try:
        return SecretStr(load_secret(file, key).decode("ascii"))
    except (AuthenticationError, UnicodeDecodeError) as error:
        problem = str(error) if isinstance(error, AuthenticationError) else f"{file} has other characters than ASCII"
        raise PreflightError(
            f"{key}: {problem}", "it must have the client's secret as the issuer shows it, and mode 0600"
        ) from None


def confidential_device_of(configuration: Configuration) -> tuple[LoginOffer, SecretStr] | None:
    """Return how command lines log in through the web endpoint, with the secret that it adds; None if they do not.

    Raises as `rules_of` and `client_secret_of`.
    """
    offer, secret = (
        device_offer_of(configuration),
        client_secret_of(configuration, OidcOptions.DEVICE_CLIENT_SECRET_FILE),
    )
    return None if offer is None or secret is None else (offer, secret)


def tls_of(configuration: Configuration) -> ssl.SSLContext:
    """Return the TLS settings for requests to the issuer. Raises PreflightError if the file of authorities is wrong."""
    try:
        return trusted(configuration.get(OidcOptions.CA_FILE))
    except IssuerAnswerError as error:
        raise PreflightError(str(error), "it must be a PEM file with certificates") from error


class IssuerThreads:
    """Threads for requests to the issuer, apart from asyncio's, which other work of the web endpoint needs.

    An issuer that accepts connections and does not answer keeps a thread for many seconds.

    Args:
        most: how many requests may wait for the issuer at a time; a further one fails at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = threading.BoundedSemaphore(most)
        self._executor = ThreadPoolExecutor(most, thread_name_prefix="issuer")

    async def run(self, request: Callable[[], T]) -> T:
        """Return the result of a blocking request.

        Raises:
            IssuerAnswerError: too many requests wait, or there is no answer within `FETCH_TIMEOUT_S`.
        """
        if not self._free.acquire(blocking=False):
            raise IssuerAnswerError(f"{self._most} requests wait for the issuer's answer already; try again")
        future: Future[T] = self._executor.submit(request)
        future.add_done_callback(lambda _: self._free.release())  # only its thread's end frees it, not a time-out
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise IssuerAnswerError(f"no answer within {FETCH_TIMEOUT_S:g} s") from None


class Issuer:
    """Identifies users by tokens of an issuer.

    Args:
        rules: of the cluster.
        fetch_keys: fetches the issuer's keys; raises IssuerAnswerError.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        rules: OidcRules,
        fetch_keys: Callable[[], Awaitable[Sequence[VerificationKey]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._fetch_keys = fetch_keys
        self._clock = clock
        self._ring = KeyRing()
        self._fetching: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, configuration: Configuration) -> Issuer | None:
        """Return the configured issuer; None if there is none. Raises PreflightError."""
        rules = rules_of(configuration)
        if rules is None:
            return None
        tls = tls_of(configuration)

        def blocking() -> Sequence[VerificationKey]:
            provider = Provider.of(fetch(discovery_url(rules.issuer), tls), rules.issuer)
            return keys_of(fetch(provider.keys_url, tls))

        threads = IssuerThreads(REQUESTS_FOR_KEYS)
        return cls(rules, lambda: threads.run(blocking))

    async def identify(self, token: bytes, now_ms: int) -> Principal:
        """Return whom a token identifies.

        Args:
            token: as shown.
            now_ms: now, in milliseconds since the epoch.

        Raises:
            TokenRefusedError: it belongs to no user; the message is for the log.
            IssuerAnswerError: the issuer's keys are not known at present.
        """
        return await self._with_keys(lambda keys: identify(token, keys, self._rules, now_ms))

    async def check_login(self, id_token: str, nonce: str, now_ms: int) -> None:
        """Check that an ID token is the answer to the log-in that has the nonce. Raises as `identify`."""
        await self._with_keys(lambda keys: check_login(id_token, nonce, keys, self._rules, now_ms))

    async def _with_keys(self, check: Callable[[Sequence[VerificationKey]], T]) -> T:
        """Return the result of a check with the present keys; with newer ones, if it needs one that is unknown."""
        await self._refresh()
        try:
            return check(self._keys())
        except UnknownKeyError:
            await self._refresh(unknown=True)
            return check(self._keys())

    def _keys(self) -> Sequence[VerificationKey]:
        keys = self._ring.keys(self._clock())
        if not keys:
            raise IssuerAnswerError(f"the keys of {self._rules.issuer} are not known")
        return keys

    async def _refresh(self, *, unknown: bool = False) -> None:
        """Fetch the keys if it is time for it. Wait for a fetch of another request only if its keys are needed."""
        began = self._ring.begin(self._clock(), unknown=unknown)
        if began:
            self._fetching = asyncio.ensure_future(self._fetch())
        fetching = self._fetching
        is_needed = unknown or not self._ring.keys(self._clock())
        if fetching is not None and (began or is_needed):
            await asyncio.wait((fetching,), timeout=None if is_needed else PATIENCE_S)  # it continues for others

    async def _fetch(self) -> None:
        try:
            self._ring.put(await self._fetch_keys(), self._clock())
        except IssuerAnswerError as error:
            logger.warning("the keys of %s could not be fetched: %s", self._rules.issuer, error)
        except Exception:  # no request waits for this error, so it is logged here
            logger.exception("the keys of %s could not be fetched", self._rules.issuer)
