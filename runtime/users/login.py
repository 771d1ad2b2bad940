"""Logging in at an OpenID Connect provider by device flow (RFC 8628), and the stored login. Pure.

`runtime.users.code_flow` is the log-in on the web page.

The cluster tells its clients which issuer to use (`LoginOffer`). The issuer's discovery document names its addresses
(`Provider`). `DeviceFlow` decides when to ask for the tokens, and what each answer means. A `Login` is what a client
stores. `runtime.cluster.logins` sends the requests and keeps the file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote_plus, urlsplit

from conf.secret import SecretStr
from conf.values import is_loopback
from runtime.users.oidc import IssuerAnswerError, looks_like_a_jwt, unverified_expiry_ms, unverified_lifetime_ms

DISCOVERY = "/.well-known/openid-configuration"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
RENEW_BEFORE_MS = 60_000
"""A stored token is renewed if it expires within this time, or within half of its lifetime if that is shorter."""
DEFAULT_INTERVAL_S = 5.0
SLOW_DOWN_S = 5.0
MOST_INTERVAL_S = 60.0
MOST_WAIT_S = 1800.0
MOST_OF_A_TEXT = 2000

DEVICE_BEGIN, DEVICE_TOKENS, DEVICE_RENEW, DEVICE_END = (
    f"/login/device/{step}" for step in ("begin", "tokens", "renew", "end")
)
"""Paths of the web endpoint, at which it asks the issuer for a command line; see `LoginOffer.through_cluster`."""

_VISIBLE = re.compile(r"[!-~]+")
_CODE = re.compile(r"[ -~]{1,64}")


class LoginError(Exception):
    """A login cannot begin, was not granted, or has ended.

    Args:
        message: the problem, on one line.
        remedy: the action that solves it, on one line.
    """

    def __init__(self, message: str, remedy: str = "repeat `understudy login`") -> None:
        super().__init__(message)
        self.remedy = remedy


def is_private_url(url: str, *, http: bool = True) -> bool:
    """Return whether others cannot read or change what travels to a URL: it is https, or on loopback.

    Args:
        url: the URL.
        http: whether ``http://`` on loopback counts.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or parts.fragment or not _VISIBLE.fullmatch(url):
        return False
    return parts.scheme == "https" or (http and parts.scheme == "http" and is_loopback(host))


@dataclass(frozen=True, slots=True)
class LoginOffer:
    """Values by which a client of a cluster logs in; all are public.

    Args:
        issuer: URL of the issuer.
        client_id: of the cluster at the issuer.
        wants_access_token: whether the cluster takes the access token; else it takes the ID token.
        scopes: to ask for.
        through_cluster: whether a command line sends its requests to the web endpoint, which sends them to the issuer
            with the secret of the client.
    """

    issuer: str
    client_id: str
    wants_access_token: bool
    scopes: tuple[str, ...]
    through_cluster: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``GET /v1/login``."""
        token = "access_token" if self.wants_access_token else "id_token"
        told = {"issuer": self.issuer, "client-id": self.client_id, "token": token, "scopes": list(self.scopes)}
        return told | ({"through-cluster": True} if self.through_cluster else {})

    @classmethod
    def from_json(cls, raw: object) -> LoginOffer:
        """Return the offer of such an answer. Raises LoginError for others, and for an issuer that is not private."""
        told = raw if isinstance(raw, Mapping) else {}
        issuer, client_id, scopes = told.get("issuer"), told.get("client-id"), told.get("scopes")
        texts = [issuer, client_id, *scopes] if isinstance(scopes, list) else [None]
        if not all(isinstance(text, str) and _VISIBLE.fullmatch(text) for text in texts):
            raise LoginError("the cluster does not say how to log in", "check the address of the cluster")
        issuer, client_id, *scopes = map(str, texts)
        if not is_private_url(issuer):
            raise LoginError(
                f"the cluster's issuer {issuer[:200]} is not https://", "have security.oidc.issuer changed"
            )
        through_cluster = told.get("through-cluster") is True
        return cls(issuer, client_id, told.get("token") == "access_token", tuple(scopes), through_cluster)


@dataclass(frozen=True, slots=True)
class Provider:
    """Addresses of an issuer, from its discovery document (OpenID Connect Discovery 1.0).

    Args:
        keys_url: of its keys.
        token_url: for tokens.
        device_url: at which a device flow begins; empty if it has none.
        revocation_url: for tokens that are not needed any more; empty if it has none.
        authorization_url: at which a user of the web page logs in; empty if it has none.
        takes_secret_in_form: whether a client shows its secret in the form of a request, and not in a header.
    """

    keys_url: str
    token_url: str
    device_url: str
    revocation_url: str
    authorization_url: str = ""
    takes_secret_in_form: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any], issuer: str) -> Provider:
        """Return the addresses in a discovery document.

        Raises:
            IssuerAnswerError: it is another issuer's, lacks an address, or has one that is not private.
        """
        if document.get("issuer") != issuer:
            raise IssuerAnswerError(f"{issuer} says that it is {ascii(document.get('issuer'))[:200]}")

        def url(key: str, *, required: bool = False) -> str:
            found = document.get(key, "")
            if found == "" and not required:
                return ""
            if not isinstance(found, str) or not is_private_url(found, http=issuer.startswith("http://")):
                raise IssuerAnswerError(f"{issuer} has no private address {key}, but {ascii(found)[:200]}")
            return found

        methods = document.get("token_endpoint_auth_methods_supported")
        in_form = isinstance(methods, list) and "client_secret_post" in methods and "client_secret_basic" not in methods
        return cls(
            url("jwks_uri", required=True),
            url("token_endpoint", required=True),
            url("device_authorization_endpoint"),
            url("revocation_endpoint"),
            url("authorization_endpoint"),
            in_form,
        )


def discovery_url(issuer: str) -> str:
    """Return the URL of the discovery document of an issuer."""
    return issuer.rstrip("/") + DISCOVERY


@dataclass(frozen=True, slots=True)
class DeviceAuthorization:
    """Answer of the issuer that begins a device flow.

    Args:
        device_code: by which the client asks for the tokens; a secret.
        user_code: which the user enters.
        url: where the user enters it.
        complete_url: the same with the code in it; empty if there is none.
        expires_in_s: seconds for which the codes are valid.
        interval_s: least seconds between two requests of the client.
    """

    device_code: str
    user_code: str
    url: str
    complete_url: str
    expires_in_s: float
    interval_s: float

    @classmethod
    def of(cls, status: int, raw: Mapping[str, Any], issuer: str) -> DeviceAuthorization:
        """Return the answer. Raises LoginError if it is an error, or not such an answer."""
        if status != 200:
            raise LoginError(
                f"{issuer} does not begin a device flow: {reason_of(status, raw)}",
                "have the cluster's security.oidc.device-client-id name a client that the issuer allows the device "
                "flow, and security.oidc.device-client-secret-file its secret if it has one; or ask an admin for a "
                "token (`understudy token add`)",
            )
        device_code, user_code = raw.get("device_code"), raw.get("user_code")
        url = raw.get("verification_uri", raw.get("verification_url"))  # the latter is Google's name for it
        complete = raw.get("verification_uri_complete", "")
        codes_are_right = isinstance(device_code, str) and _VISIBLE.fullmatch(device_code)
        # both are printed, so neither may have control characters
        if not (codes_are_right and isinstance(user_code, str) and _CODE.fullmatch(user_code)):
            raise LoginError(f"{issuer} has answered with no code to enter")
        urls = [url] if complete == "" else [url, complete]
        if not all(isinstance(text, str) and is_private_url(text) and len(text) < MOST_OF_A_TEXT for text in urls):
            raise LoginError(f"{issuer} has answered with no https:// address at which to enter the code")
        return cls(
            str(device_code),
            user_code,
            str(url),
            str(complete),
            min(_number(raw, "expires_in", MOST_WAIT_S), MOST_WAIT_S),
            min(_number(raw, "interval", DEFAULT_INTERVAL_S), MOST_INTERVAL_S),
        )


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    value = raw.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if is_number and value is not None else default


def is_passing(status: int) -> bool:
    """Return whether an answer is not a refusal, so that the request may be repeated.

    It is an error of the issuer's server, or too many requests have come (RFC 6585), perhaps of other users.
    """
    return status >= 500 or status in (408, 429)


def reason_of(status: int, raw: Mapping[str, Any]) -> str:
    """Return the error that an answer names, as one line without control characters."""
    told = [raw.get(key) for key in ("error", "error_description")]
    texts = [ascii(text)[1:-1][:200] for text in told if isinstance(text, str) and text]
    return ": ".join(texts) or f"HTTP {status}"


class DeviceFlow:
    """The second half of a device flow: asking for the tokens until the user has decided. Times are monotonic seconds.

    Args:
        authorization: the issuer's answer to the first request.
        now_s: now.
    """

    def __init__(self, authorization: DeviceAuthorization, now_s: float) -> None:
        self._ends_s = now_s + authorization.expires_in_s
        self._interval_s = authorization.interval_s

    def pause_s(self, now_s: float) -> float:
        """Return the seconds to wait before the next request.

        Raises:
            LoginError: the codes have expired.
        """
        if now_s >= self._ends_s:
            raise LoginError("the code was not entered in time, and has expired")
        return min(self._interval_s, self._ends_s - now_s)

    def on_answer(self, status: int, raw: Mapping[str, Any]) -> bool:
        """Take the answer to a request: return whether it has the tokens.

        Raises:
            LoginError: the login was denied, the codes have expired, or the issuer rejects the request.
        """
        if status == 200:
            return True
        match raw.get("error"):
            case "authorization_pending":
                return False
            case "slow_down":
                self._interval_s = min(self._interval_s + SLOW_DOWN_S, MOST_INTERVAL_S)
                return False
            case "access_denied":
                raise LoginError("the login was denied at the issuer")
            case "expired_token":
                raise LoginError("the code was not entered in time, and has expired")
        if is_passing(status):
            self.on_silence()
            return False
        raise LoginError(f"the issuer rejects it: {reason_of(status, raw)}")

    def on_silence(self) -> None:
        """Take note that a request got no answer: the next one comes later (RFC 8628, 3.5)."""
        self._interval_s = min(max(self._interval_s, 1.0) * 2, MOST_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class Login:
    """A login at an issuer for one cluster, as a client stores it. It holds secrets.

    Args:
        cluster: URLs of the cluster's web endpoints; the token goes to no others.
        issuer: URL of the issuer.
        client_id: of the cluster at the issuer.
        wants_access_token: as in `LoginOffer`.
        token_url: as in `Provider`.
        revocation_url: as in `Provider`.
        bearer: the token for the cluster.
        expires_ms: when it expires, in milliseconds since the epoch.
        refresh_token: gets another one; empty if the issuer gave none.
        through_cluster: as in `LoginOffer`; then the two URLs are empty.
        lifetime_ms: milliseconds from the issue of the token to its end; 0 if unknown.
    """

    cluster: str
    issuer: str
    client_id: str
    wants_access_token: bool
    token_url: str
    revocation_url: str
    bearer: str = ""
    expires_ms: int = 0
    refresh_token: str = ""
    through_cluster: bool = False
    lifetime_ms: int = 0

    def to_json(self) -> str:
        """Return the text to store."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Login:
        """Return the login of such a text; fields of later releases are left out. Raises ValueError for other texts."""
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("no login")
        kinds = {"wants_access_token": bool, "expires_ms": int, "through_cluster": bool, "lifetime_ms": int}
        known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
        if not all(isinstance(value, kinds.get(name, str)) for name, value in known.items()):
            raise ValueError("no login")
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"no login: {error}") from None

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token is not valid any more."""
        return now_ms >= self.expires_ms

    def needs_renewal(self, now_ms: int) -> bool:
        """Return whether the token expires soon, or has expired."""
        before_ms = min(RENEW_BEFORE_MS, self.lifetime_ms // 2) if self.lifetime_ms else RENEW_BEFORE_MS
        return now_ms >= self.expires_ms - before_ms

    def with_tokens(self, raw: Mapping[str, Any]) -> Login:
        """Return the login with the tokens of an answer of the issuer. A refresh token is kept until there is another.

        Raises:
            LoginError: the answer does not have the token that the cluster takes.
        """
        kind = "access_token" if self.wants_access_token else "id_token"
        bearer, refresh = raw.get(kind), raw.get("refresh_token")
        if not isinstance(bearer, str) or not looks_like_a_jwt(bearer.encode("utf-8", "replace")):
            raise LoginError(
                f"{self.issuer} has given no {kind} that is a signed JWT",
                "the scope openid gives an ID token (security.oidc.scopes); security.oidc.audience, if it is set, "
                "needs an access token that is a JWT",
            )
        expires_ms = unverified_expiry_ms(bearer)
        if expires_ms is None:
            raise LoginError(f"the {kind} of {self.issuer} does not say when it expires")
        if not (isinstance(refresh, str) and _VISIBLE.fullmatch(refresh)):
            refresh = self.refresh_token
        lifetime_ms = unverified_lifetime_ms(bearer)
        return replace(self, bearer=bearer, expires_ms=expires_ms, refresh_token=refresh, lifetime_ms=lifetime_ms)


def device_request(offer: LoginOffer) -> dict[str, str]:
    """Return the form that begins a device flow."""
    return {"client_id": offer.client_id, "scope": " ".join(offer.scopes)}


def device_token_request(client_id: str, device_code: str) -> dict[str, str]:
    """Return the form that asks for the tokens of a device flow."""
    return {"grant_type": DEVICE_GRANT, "device_code": device_code, "client_id": client_id}


def refresh_request(login: Login) -> dict[str, str]:
    """Return the form that renews a login."""
    return {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}


def revocation_request(login: Login) -> dict[str, str]:
    """Return the form that revokes a login's refresh token (RFC 7009)."""
    return {"token": login.refresh_token, "token_type_hint": "refresh_token", "client_id": login.client_id}


def with_secret(
    form: Mapping[str, str], secret: SecretStr | None, provider: Provider
) -> tuple[dict[str, str], dict[str, str]]:
    """Return form and headers of a request of a client, which shows its secret (OpenID Connect Core 1.0, section 9).

    Args:
        form: with the `client_id`.
        secret: of the client; None for a public client, whose form is sent as it is.
        provider: the issuer, which takes the secret in a header or in the form.
    """
    sent = dict(form)
    if secret is None:
        return sent, {}
    if provider.takes_secret_in_form:
        return {**sent, "client_secret": secret.reveal()}, {}
    # Without the client's id in the form: some issuers count that as a second way to show who asks.
    shown = f"{quote_plus(sent.pop('client_id'))}:{quote_plus(secret.reveal())}"
    return sent, {"Authorization": f"Basic {base64.b64encode(shown.encode()).decode()}"}


def on_renewal(login: Login, status: int, raw: Mapping[str, Any]) -> Login:
    """Return the renewed login. Raises LoginError if the issuer does not renew it."""
    if status != 200:
        raise LoginError(
            f"{login.issuer} does not renew the login: {reason_of(status, raw)}", "`understudy login` begins another"
        )
    return login.with_tokens(raw)


def name_of(urls: Sequence[str]) -> str:
    """Return the one text that names a cluster by its URLs, in any order."""
    return ",".join(sorted(urls))
