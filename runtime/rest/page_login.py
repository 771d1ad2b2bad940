"""Log-ins at the OpenID Connect provider by the web endpoint: of the web page, and of command lines without a secret.

The page asks the endpoint, and the endpoint the issuer. So the issuer needs no CORS, and the page's
Content-Security-Policy allows no other host. The endpoint remembers nothing: the tab keeps the verifier of its log-in,
and later its tokens (`runtime.users.code_flow`). These requests show no token, so they are limited by address and in
all.

Where the issuer demands a secret for the device flow, `understudy login` asks the endpoint too. The endpoint adds
the secret to the four requests of such a log-in, and returns the issuer's answers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from conf.configuration import Configuration
from conf.secret import SecretStr
from runtime.issuer_client import ask
from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.auditing import Audited
from runtime.rest.authorization import KnownIdentities
from runtime.rest.context import read_body
from runtime.rest.errors import RestError
from runtime.rest.issuer import Issuer, IssuerThreads, client_secret_of, confidential_device_of, offer_of, tls_of
from runtime.rest.routing import JSON, PREFIX, now_ms, to_json
from runtime.users.audit import Flood
from runtime.users.code_flow import RANDOM_SIZE, CodeFlow, tokens_of
from runtime.users.identities import Principal, TokenRefusedError
from runtime.users.login import (
    DEVICE_BEGIN,
    DEVICE_END,
    DEVICE_RENEW,
    DEVICE_TOKENS,
    Login,
    LoginError,
    LoginOffer,
    Provider,
    device_request,
    device_token_request,
    discovery_url,
    is_passing,
    on_renewal,
    refresh_request,
    revocation_request,
    with_secret,
)
from runtime.users.oidc import REFRESH_S, IssuerAnswerError

LOGIN = "/login"
"""The path that says how to log in. It needs no token, and it is there only if an issuer is configured."""
BEGIN, FINISH, RENEW, END = (f"{LOGIN}/{step}" for step in ("begin", "finish", "renew", "end"))
"""The paths by which the page logs in, renews its token and logs out; as `LOGIN`, they need no token."""

DEVICE_STEPS = frozenset({DEVICE_BEGIN, DEVICE_TOKENS, DEVICE_RENEW, DEVICE_END})

MOST_BYTES = 32 * 1024
PER_ADDRESS = 60
"""Requests a minute from one address."""
PER_MINUTE = 600
"""Requests a minute in all."""
MOST_ADDRESSES = 1024
MOST_REQUESTS = 8
"""How many requests of log-ins may wait for the issuer at a time."""

_ANSWERED = (
    *("device_code", "user_code", "verification_uri", "verification_url", "verification_uri_complete"),
    *("expires_in", "interval", "id_token", "access_token", "refresh_token", "error", "error_description"),
)
"""Fields of the issuer's answers that a command line reads."""

AskIssuer = Callable[[str, Mapping[str, str] | None, Mapping[str, str]], Awaitable[tuple[int, Mapping[str, Any]]]]


class PageLogin:
    """Answers the requests of the page's log-in.

    Args:
        offer: how to log in.
        issuer: checks ID tokens.
        identities: users and their tokens.
        policy: the access rules of the endpoint.
        ask_issuer: sends a form, or a GET without one, with headers to a URL of the issuer; raises IssuerAnswerError.
        secret: of the cluster's client at the issuer; None for a public client.
        device: how command lines log in through the endpoint, and the secret of their client; None if they ask the
            issuer themselves.
        clock: returns monotonic seconds.
        now: returns milliseconds since the epoch.
    """

    def __init__(
        self,
        offer: LoginOffer,
        issuer: Issuer,
        identities: KnownIdentities,
        policy: AccessPolicy,
        ask_issuer: AskIssuer,
        secret: SecretStr | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
        device: tuple[LoginOffer, SecretStr] | None = None,
    ) -> None:
        self._device = device
        self._offer = offer
        self._issuer = issuer
        self._identities = identities
        self._policy = policy
        self._ask_issuer = ask_issuer
        self._secret = secret
        self._clock = clock
        self._now_ms = now
        self._all = Flood(PER_MINUTE)
        self._by_address: OrderedDict[str, Flood] = OrderedDict()
        self._fetching = asyncio.Lock()
        self._known: tuple[float, Provider] | None = None
        self._steps: Mapping[str, Callable[[_Form, Audited], Awaitable[dict[str, Any]]]] = {
            BEGIN: self._begin,
            FINISH: self._finish,
            RENEW: self._renew,
            END: self._end,
        }

    @classmethod
    def of(
        cls, configuration: Configuration, issuer: Issuer | None, identities: KnownIdentities, policy: AccessPolicy
    ) -> PageLogin | None:
        """Return the log-in at the configured issuer; None if there is none. Raises PreflightError."""
        offer = offer_of(configuration)
        if offer is None or issuer is None:
            return None
        tls, threads = tls_of(configuration), IssuerThreads(MOST_REQUESTS)

        async def ask_issuer(
            url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
        ) -> tuple[int, Mapping[str, Any]]:
            return await threads.run(lambda: ask(url, tls, form, headers=headers))

        secret, device = client_secret_of(configuration), confidential_device_of(configuration)
        return cls(offer, issuer, identities, policy, ask_issuer, secret, device=device)

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of a log-in."""
        steps = self._steps.keys() if self._device is None else self._steps.keys() | DEVICE_STEPS
        return method == "POST" and path.removeprefix(PREFIX) in steps

    async def answer(self, request: Request, audited: Audited) -> Response:
        """Answer a request of a log-in.

        Args:
            request: the request, still unchecked.
            audited: what the audit log will have of it.

        Raises:
            RestError: it is refused, the issuer does not answer, or there were too many.
        """
        path = request.scope["path"].removeprefix(PREFIX)
        audited.begin_route(f"POST {path}", {})
        audited.changes = path in (FINISH, END, DEVICE_END)
        if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
            raise RestError(415, f"the body must be {JSON}")
        form = _Form(await read_body(request, MOST_BYTES))
        headers = request.scope["headers"]
        of_page = path not in DEVICE_STEPS
        refusal = self._policy.check_page(headers, form["address"]) if of_page else self._policy.check_site(headers)
        if refusal is not None:
            raise RestError(refusal.status, refusal.message)
        # Only now: a page of another site must not use up the requests of its visitors' addresses.
        self._limit("" if request.client is None else request.client.host)
        try:
            told = await (self._steps[path](form, audited) if of_page else self._pass_on(path, form))
            return Response(to_json(told), media_type=JSON)
        except LoginError as error:
            raise RestError(403, f"{error}; {error.remedy}") from error
        except IssuerAnswerError as error:
            raise RestError(503, f"the issuer cannot be used at present: {error}") from error

    def _limit(self, address: str) -> None:
        flood = self._by_address.setdefault(address, Flood(PER_ADDRESS))
        self._by_address.move_to_end(address)
        if len(self._by_address) > MOST_ADDRESSES:
            self._by_address.popitem(last=False)
        at_ms = self._now_ms()
        if flood.admit(at_ms) is None or self._all.admit(at_ms) is None:
            raise RestError(429, "too many log-ins at present; try again in a minute, or paste a token")

    async def _begin(self, form: _Form, audited: Audited) -> dict[str, Any]:
        flow = CodeFlow.begin(form["address"], secrets.token_bytes(RANDOM_SIZE), self._now_ms())
        return {"url": flow.url(await self._provider(), self._offer), "verifier": flow.verifier}

    async def _finish(self, form: _Form, audited: Audited) -> dict[str, Any]:
        flow, offer = CodeFlow(form["verifier"], form["address"]), self._offer
        flow.check(form["state"], self._now_ms())
        asked = flow.token_request(offer.client_id, form.texts, offer.issuer)
        login = await self._login()
        raw = tokens_of(*await self._ask_for_tokens(login, asked), offer.issuer)
        login = login.with_tokens(raw)
        try:
            await self._issuer.check_login(raw["id_token"], flow.nonce, self._now_ms())
        except TokenRefusedError as error:
            raise LoginError(f"the ID token of {offer.issuer} is refused: {error}", "begin the log-in again") from error
        principal = await self._identities.identify_or_refuse(login.bearer.encode())
        if isinstance(principal, Refusal):
            if principal.status != 401:
                raise RestError(principal.status, principal.message)
            audited.reason = principal.detail
            raise LoginError(
                f"{offer.issuer} knows you, and the cluster does not accept you",
                "ask an admin: rest.log has the reason",
            )
        audited.principal = principal
        return self._told(login)

    async def _renew(self, form: _Form, audited: Audited) -> dict[str, Any]:
        login = await self._login(form["refresh-token"])
        return self._told(on_renewal(login, *await self._ask_for_tokens(login, refresh_request(login))))

    async def _ask_for_tokens(self, login: Login, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Send a form to the issuer. What passes is not a refusal: the client may repeat the request."""
        status, raw = await self._ask_as_client(login.token_url, form)
        if is_passing(status):
            raise IssuerAnswerError(f"{login.issuer} answers with HTTP {status}")
        return status, raw

    async def _ask_as_client(self, url: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Send a form with what shows that the cluster's client asks."""
        sent, headers = with_secret(form, self._secret, await self._provider())
        return await self._ask_issuer(url, sent, headers)

    async def _pass_on(self, step: str, form: _Form) -> dict[str, Any]:
        """Send a request of a command line to the issuer; return the status and what a client reads of the answer."""
        assert self._device is not None
        (offer, secret), provider = self._device, await self._provider()
        if step == DEVICE_BEGIN:
            url, asked = provider.device_url, device_request(offer)
        elif step == DEVICE_TOKENS:
            url, asked = provider.token_url, device_token_request(offer.client_id, form["device-code"])
        else:
            begun = Login("", offer.issuer, offer.client_id, offer.wants_access_token, "", "")
            login = replace(begun, refresh_token=form["refresh-token"])
            is_renewal = step == DEVICE_RENEW
            url = provider.token_url if is_renewal else provider.revocation_url
            asked = refresh_request(login) if is_renewal else revocation_request(login)
        if not url:
            raise LoginError(f"{offer.issuer} has no address for this step", "ask an admin for a token")
        status, raw = await self._ask_issuer(url, *with_secret(asked, secret, provider))
        return {"status": status, "answer": {name: raw[name] for name in _ANSWERED if name in raw}}

    async def _end(self, form: _Form, audited: Audited) -> dict[str, Any]:
        principal = await self._identities.identify_or_refuse(form["token"].encode("utf-8", "replace"))
        if isinstance(principal, Principal):
            audited.principal = principal
        login = await self._login(form["refresh-token"])
        if login.refresh_token and login.revocation_url:
            status, _ = await self._ask_as_client(login.revocation_url, revocation_request(login))
            if status != 200:
                raise IssuerAnswerError(f"{login.issuer} has not revoked the login: HTTP {status}")
        return {}

    def _told(self, login: Login) -> dict[str, Any]:
        """Return what the page keeps. The lifetime is relative, because clocks of browsers are wrong."""
        lifetime_ms = max(0, login.expires_ms - self._now_ms())
        return {"token": login.bearer, "refresh-token": login.refresh_token, "expires-in": lifetime_ms}

    async def _login(self, refresh_token: str = "") -> Login:
        offer, provider = self._offer, await self._provider()
        return Login(
            "",
            offer.issuer,
            offer.client_id,
            offer.wants_access_token,
            provider.token_url,
            provider.revocation_url,
            refresh_token=refresh_token,
        )

    async def _provider(self) -> Provider:
        """Return the addresses of the issuer, as it has given them at most `REFRESH_S` ago."""
        async with self._fetching:
            if self._known is None or self._clock() - self._known[0] >= REFRESH_S:
                status, document = await self._ask_issuer(discovery_url(self._offer.issuer), None, {})
                if status != 200:
                    raise IssuerAnswerError(f"{self._offer.issuer} answers with HTTP {status}")
                self._known = self._clock(), Provider.of(document, self._offer.issuer)
            return self._known[1]


class _Form:
    """The texts of a JSON object; raises RestError for another body."""

    def __init__(self, body: bytes) -> None:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise RestError(400, "the body must be a JSON object of texts")
        self.texts: dict[str, str] = found

    def __getitem__(self, name: str) -> str:
        """Return a text; raises RestError if it is not there."""
        if name not in self.texts:
            raise RestError(400, f"the body has no {name}")
        return self.texts[name]
