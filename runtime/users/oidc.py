"""Users whom an OpenID Connect provider, the issuer, identifies: from claims, keys and time to an identity. Pure.

A token is a JWT (RFC 7519), signed by one of the keys that the issuer publishes (RFC 7517). This module decides who it
identifies (`identify`), which keys count (`keys_of`), and when they are fetched (`KeyRing`); `runtime.rest.issuer`
fetches them. The reason of a refusal is for the log: it may quote the token's unverified claims, but not the token.

PyJWT checks signatures and is imported only for that, because it is in the extra `oidc`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.users.identities import Principal, Role, TokenRefusedError, is_user_name

LEEWAY_MS = 30_000
"""Difference between the clocks of issuer and cluster that is tolerated."""
MOST_OF_A_TOKEN = 16 * 1024
MOST_KEYS = 64
LEAST_RSA_BITS = 2048

REFRESH_S = 600.0
"""Seconds after which keys are fetched again, so that a key that the issuer has withdrawn ends to count."""
FETCH_EVERY_S = 30.0
"""Least time between two fetches, whatever tokens arrive, and whether or not the issuer answers."""
MOST_AGE_S = 24 * 3600.0
"""Seconds for which keys count while the issuer does not answer."""

ISSUED = "oidc:"
"""Begin of `Principal.token_id` for tokens of an issuer; no id of the cluster's own tokens begins so."""

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS = frozenset((*_RSA, *_CURVES.values(), "EdDSA"))
"""The accepted algorithms, all asymmetric: neither `none`, nor HS256, for which a public key would be the secret."""
_TYPES = ("jwt", "at+jwt", "application/at+jwt", "application/jwt")
"""Accepted types of tokens. Logout tokens (`logout+jwt`) and others of the issuer are rejected."""

_MOST_S = 1e11
_JWT = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_TOKEN_ID = re.compile(r"[A-Za-z0-9._:-]{8,64}")


class UnknownKeyError(TokenRefusedError):
    """A token names a key that is not among the known ones; the issuer may have published it since."""


class IssuerAnswerError(Exception):
    """An answer of the issuer cannot be used; the message says why, on one line."""


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Rules by which a token of an issuer identifies a user.

    Args:
        issuer: value of `iss`.
        client_id: of the cluster at the issuer; value of `azp`, if a token has one.
        audience: value of `aud`, or one of its values.
        user_claim: claim with the user's name.
        groups_claim: claim with the user's groups; points lead into objects.
        roles: role of each group.
        default_role: role of a user who is in none of these groups; None to refuse them.
        device_client_id: a second client of the cluster, by which command lines log in; empty if there is none.
    """

    issuer: str
    client_id: str
    audience: str
    user_claim: str
    groups_claim: str
    roles: Mapping[str, Role]
    default_role: Role | None = None
    device_client_id: str = ""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key of the issuer.

    Args:
        key_id: its `kid`; empty if it has none.
        algorithms: with which it may be used.
        key: of the library `cryptography`.
    """

    key_id: str
    algorithms: frozenset[str]
    key: Any


def looks_like_a_jwt(shown: bytes) -> bool:
    """Return whether *shown* has the form of a signed JWT."""
    return len(shown) <= MOST_OF_A_TOKEN and _JWT.fullmatch(shown) is not None


def identify(token: bytes, keys: Sequence[VerificationKey], rules: OidcRules, now_ms: int) -> Principal:
    """Return whom a token identifies.

    Args:
        token: as shown.
        keys: of the issuer.
        rules: of the cluster.
        now_ms: now, in milliseconds since the epoch.

    Raises:
        UnknownKeyError: it names a key that is not among *keys*.
        TokenRefusedError: it is not valid. The message is for the log, not for the sender.
    """
    if not looks_like_a_jwt(token):
        raise TokenRefusedError("this is not a signed JWT")
    claims = _verified(token, _object(token.partition(b".")[0], "header"), keys)
    _check_source(claims, rules)
    expires_ms = _check_times(claims, now_ms)
    name = _name(claims, rules)
    role = _role(claims, rules, name)
    return Principal(name, role, _token_id(claims, token), rules.issuer, expires_ms + LEEWAY_MS)


def check_login(id_token: str, nonce: str, keys: Sequence[VerificationKey], rules: OidcRules, now_ms: int) -> None:
    """Check that an ID token is the answer to a log-in: signed, for this client, valid now, and with its nonce.

    Args:
        id_token: as the issuer gave it.
        nonce: of the log-in.
        keys: of the issuer.
        rules: of the cluster.
        now_ms: now, in milliseconds since the epoch.

    Raises:
        UnknownKeyError: it names a key that is not among *keys*.
        TokenRefusedError: it is not.
    """
    token = id_token.encode("utf-8", "replace")
    if not looks_like_a_jwt(token):
        raise TokenRefusedError("this is not a signed JWT")
    claims = _verified(token, _object(token.partition(b".")[0], "header"), keys)
    _check_source(claims, replace(rules, audience=rules.client_id, device_client_id=""))
    _check_times(claims, now_ms)
    shown = claims.get("nonce")
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode("utf-8", "replace"), nonce.encode()):
        raise TokenRefusedError("its nonce is that of another log-in")


def unverified_expiry_ms(token: str) -> int | None:
    """Return when a JWT says that it expires, in milliseconds since the epoch; None if it does not, or is none.

    Only the holder of a token may use this, to renew it in time.
    """
    try:
        return _moment_ms(_object(token.encode().split(b".")[1], "payload"), "exp")
    except (TokenRefusedError, IndexError):
        return None


def unverified_lifetime_ms(token: str) -> int:
    """Return the milliseconds from the issue of a JWT to its end, by its own claims; 0 if it does not say so.

    Only the holder of a token may use this, as `unverified_expiry_ms`.
    """
    expires_ms = unverified_expiry_ms(token)
    try:
        issued_ms = _moment_ms(_object(token.encode().split(b".")[1], "payload"), "iat")
    except (TokenRefusedError, IndexError):
        return 0
    return 0 if expires_ms is None or issued_ms is None else max(0, expires_ms - issued_ms)


def _verified(token: bytes, header: Mapping[str, Any], keys: Sequence[VerificationKey]) -> Mapping[str, Any]:
    """Return the claims of a token after its signature was checked."""
    from jwt.api_jws import PyJWS
    from jwt.exceptions import PyJWTError

    algorithm, key_id = header.get("alg"), header.get("kid", "")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefusedError(f"its algorithm {_shown(algorithm)} is not accepted")
    if not isinstance(key_id, str):
        raise TokenRefusedError("its kid is not text")
    if str(header.get("typ", "jwt")).lower() not in _TYPES:
        raise TokenRefusedError(f"its type {_shown(header.get('typ'))} is not accepted")
    if "crit" in header or "b64" in header:
        raise TokenRefusedError("its header demands extensions (crit, b64)")
    named = [key for key in keys if key.key_id == key_id] if key_id else list(keys)
    if key_id and not named:
        raise UnknownKeyError(f"the issuer has no key {_shown(key_id)}")
    fitting = [key for key in named if algorithm in key.algorithms]
    if len(fitting) != 1:
        raise TokenRefusedError(f"{len(fitting)} keys fit kid {_shown(key_id)} and {algorithm}, instead of one")
    try:
        payload = PyJWS().decode(token, fitting[0].key, algorithms=[algorithm])
    except PyJWTError as error:
        raise TokenRefusedError(f"its signature is wrong: {error}") from None
    return _parsed(payload, "payload")


def _check_source(claims: Mapping[str, Any], rules: OidcRules) -> None:
    if claims.get("iss") != rules.issuer:
        raise TokenRefusedError(f"its issuer is {_shown(claims.get('iss'))}, not {rules.issuer}")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    clients = [rules.client_id, *([rules.device_client_id] if rules.device_client_id else [])]
    accepted = clients if rules.audience == rules.client_id else [rules.audience]
    if not any(name in audiences for name in accepted):
        wanted = " or ".join(accepted)
        raise TokenRefusedError(f"it is for {_shown(audience)}, not for {wanted} (security.oidc.audience)")
    if claims.get("azp", rules.client_id) not in clients:
        raise TokenRefusedError(f"it was issued to {_shown(claims['azp'])}, not to {' or '.join(clients)}")


def _check_times(claims: Mapping[str, Any], now_ms: int) -> int:
    """Check that a token is valid now; return when it expires."""
    expires_ms = _moment_ms(claims, "exp")
    if expires_ms is None:
        raise TokenRefusedError("it does not expire (exp)")
    if now_ms >= expires_ms + LEEWAY_MS:
        raise TokenRefusedError(f"it has expired {(now_ms - expires_ms) // 1000} s ago")
    begins_ms = _moment_ms(claims, "nbf")
    if begins_ms is not None and now_ms < begins_ms - LEEWAY_MS:
        raise TokenRefusedError(f"it is valid only in {(begins_ms - now_ms) // 1000} s (nbf)")
    return expires_ms


def _moment_ms(claims: Mapping[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_S:  # NaN is not less
        raise TokenRefusedError(f"its {claim} is not a time")
    return int(value * 1000)


def _name(claims: Mapping[str, Any], rules: OidcRules) -> str:
    name = claims.get(rules.user_claim)
    if not isinstance(name, str) or not is_user_name(name):
        raise TokenRefusedError(
            f"its {rules.user_claim} {_shown(name)} is not a valid user name (security.oidc.user-claim)"
        )
    if rules.user_claim == "email" and claims.get("email_verified", True) is not True:
        raise TokenRefusedError(f"the issuer has not verified the address {name}")
    return name


def _role(claims: Mapping[str, Any], rules: OidcRules, name: str) -> Role:
    roles = [rules.roles[group] for group in _groups(claims, rules.groups_claim) if group in rules.roles]
    if rules.default_role is not None:
        roles.append(rules.default_role)
    best: Role | None = None
    for role in roles:
        best = role if best is None or role.includes(best) else best
    if best is None:
        raise TokenRefusedError(f"{name} is in no group that has a role (security.oidc.roles.*)")
    return best


def _groups(claims: Mapping[str, Any], claim: str) -> list[str]:
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return [found]
    return [group for group in found if isinstance(group, str)] if isinstance(found, list) else []


def _token_id(claims: Mapping[str, Any], token: bytes) -> str:
    """Return an id by which the audit log names a token: its `jti`, by which the issuer's own log names it, if any."""
    shown = claims.get("jti")
    if not isinstance(shown, str) or not _TOKEN_ID.fullmatch(shown):
        shown = hashlib.sha256(token).hexdigest()[:16]
    return ISSUED + shown


def _object(part: bytes, what: str) -> Mapping[str, Any]:
    try:
        return _parsed(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)), what)
    except binascii.Error:
        raise TokenRefusedError(f"its {what} is not base64") from None


def _parsed(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenRefusedError(f"its {what} is not JSON") from None
    if not isinstance(found, dict):
        raise TokenRefusedError(f"its {what} is not an object")
    return found


def _shown(value: object) -> str:
    """Return a text for the log of an unverified value: escaped and cut."""
    return ascii(value)[:80]


# ------------------------------------------------------------------------ keys


def keys_of(document: Mapping[str, Any]) -> tuple[VerificationKey, ...]:
    """Return the keys of a JSON Web Key Set that may verify tokens.

    Keys for encryption, symmetric, private and short keys, and keys of unknown kinds do not count.

    Raises:
        IssuerAnswerError: it is no such set, or no key of it counts.
    """
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise IssuerAnswerError(f"the issuer's keys are not a list of at most {MOST_KEYS}")
    found = tuple(key for raw in listed if isinstance(raw, dict) and (key := _key(raw)) is not None)
    if not found:
        raise IssuerAnswerError("the issuer has published no key that verifies signatures of an accepted algorithm")
    return found


def _key(raw: Mapping[str, Any]) -> VerificationKey | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    key_id, named, uses = raw.get("kid", ""), raw.get("alg"), raw.get("key_ops", ["verify"])
    algorithms = frozenset(_algorithms(raw.get("kty"), raw.get("crv")))
    if named is not None:
        algorithms &= {str(named)}
    if not algorithms or not isinstance(key_id, str) or "d" in raw or raw.get("use", "sig") != "sig":
        return None
    if not isinstance(uses, list) or "verify" not in uses:
        return None
    try:
        key = PyJWK({**raw, "alg": min(algorithms)}).key
    except (
        PyJWTError,
        ValueError,
        TypeError,
        KeyError,
    ):  # the library's own checks of a malformed key are not complete
        return None
    if raw.get("kty") == "RSA" and key.key_size < LEAST_RSA_BITS:
        return None
    return VerificationKey(key_id, algorithms, key)


def _algorithms(kind: object, curve: object) -> tuple[str, ...]:
    """Return the algorithms of a kind of keys; none for symmetric and unknown ones."""
    match kind, curve:
        case "RSA", _:
            return _RSA
        case "EC", str() if curve in _CURVES:
            return (_CURVES[curve],)
        case "OKP", "Ed25519":
            return ("EdDSA",)
        case _:
            return ()


class KeyRing:
    """The issuer's keys, and when to fetch them. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._keys: tuple[VerificationKey, ...] = ()
        self._fetched_s: float | None = None
        self._began_s: float | None = None

    def keys(self, now_s: float) -> tuple[VerificationKey, ...]:
        """Return the keys; none if they are older than `MOST_AGE_S`."""
        return self._keys if self._fetched_s is not None and now_s - self._fetched_s < MOST_AGE_S else ()

    def begin(self, now_s: float, *, unknown: bool = False) -> bool:
        """Return whether to fetch the keys now. A fetch counts from here, so no other begins for `FETCH_EVERY_S`.

        Args:
            now_s: now.
            unknown: whether a token names a key that is not known.
        """
        if self._began_s is not None and now_s - self._began_s < FETCH_EVERY_S:
            return False
        if not unknown and self._fetched_s is not None and now_s - self._fetched_s < REFRESH_S:
            return False
        self._began_s = now_s
        return True

    def put(self, keys: Sequence[VerificationKey], now_s: float) -> None:
        """Replace the keys by those of a fetch that has ended. After one that failed, the keys stay."""
        self._keys, self._fetched_s = tuple(keys), now_s
