"""Logging in on the web page: authorization code with PKCE (RFC 7636), checked without a memory of it. Pure.

1. The endpoint makes a `CodeFlow` of random bytes. The page keeps its `verifier` for the tab, and goes to `url`.
2. The issuer sends the browser back to the page, with a code and the `state`.
3. The page shows the endpoint all three. `check` finds out whether the state belongs to the verifier, and
   `token_request` is the form for the tokens. Their ID token must have the `nonce`.

State, nonce and challenge are derived from the verifier. So every master can check a return, whichever master began the
log-in, and the tab has one secret to keep. `runtime.rest.page_login` sends the requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from runtime.users.login import LoginError, LoginOffer, Provider, reason_of

RANDOM_SIZE = 32
MOST_AGE_MS = 600_000
"""Time from the begin of a log-in to its end: that of a user who looks for a password."""
CLOCKS_MS = 30_000
"""Difference between the clocks of two masters that is tolerated."""
MOST_OF_A_CODE = 4096

_AGAIN = "begin the log-in again"
_VERIFIER = re.compile(r"([0-9a-f]{1,12})-[A-Za-z0-9_-]{43}")
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class CodeFlow:
    """One log-in.

    Args:
        verifier: PKCE's `code_verifier`, with the time of the begin; a secret.
        address: of the page, to which the issuer sends the browser back (`redirect_uri`).
    """

    verifier: str
    address: str

    @classmethod
    def begin(cls, address: str, random: bytes, now_ms: int) -> CodeFlow:
        """Return a new log-in.

        Args:
            address: of the page.
            random: `RANDOM_SIZE` random bytes.
            now_ms: now, in milliseconds since the epoch.
        """
        return cls(f"{now_ms:x}-{_text(random)}", address)

    @property
    def challenge(self) -> str:
        """Return PKCE's `code_challenge`, by the method S256."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())

    @property
    def state(self) -> str:
        """Return the text that comes back with the code, and shows that this tab has begun the log-in."""
        return self._derived(b"state")

    @property
    def nonce(self) -> str:
        """Return the text that the ID token must have, which shows that it is of this log-in."""
        return self._derived(b"nonce")

    def _derived(self, purpose: bytes) -> str:
        return _text(hmac.digest(self.verifier.encode(), purpose, "sha256"))

    def url(self, provider: Provider, offer: LoginOffer) -> str:
        """Return the address at the issuer where the user logs in.

        Raises:
            LoginError: the issuer has none.
        """
        if not provider.authorization_url:
            raise LoginError(
                f"{offer.issuer} has no log-in for web pages", "paste a token, or use `understudy login` in a terminal"
            )
        query = {
            "response_type": "code",
            "client_id": offer.client_id,
            "redirect_uri": self.address,
            "scope": " ".join(offer.scopes),
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in provider.authorization_url else "?"
        return f"{provider.authorization_url}{joint}{urlencode(query)}"

    def check(self, state: str, now_ms: int) -> None:
        """Check that a return belongs to this log-in, and is in time.

        Args:
            state: that came back with the code.
            now_ms: now, in milliseconds since the epoch.

        Raises:
            LoginError: it does not.
        """
        begun = _VERIFIER.fullmatch(self.verifier)
        if begun is None or not hmac.compare_digest(state.encode("utf-8", "replace"), self.state.encode()):
            raise LoginError("this log-in was not started in this tab", _AGAIN)
        if not -CLOCKS_MS <= now_ms - int(begun[1], 16) <= MOST_AGE_MS + CLOCKS_MS:
            raise LoginError(f"the log-in took longer than {MOST_AGE_MS // 60_000} minutes", _AGAIN)

    def token_request(self, client_id: str, returned: Mapping[str, str], issuer: str) -> dict[str, str]:
        """Return the form that gets the tokens.

        Args:
            client_id: of the cluster at the issuer.
            returned: parameters that came back: `code`, or `error` and `error_description`.
            issuer: its URL.

        Raises:
            LoginError: the issuer has refused the log-in, or there is no code.
        """
        code = returned.get("code", "")
        if returned.get("error"):
            raise LoginError(f"{issuer} refuses the log-in: {reason_of(400, returned)}", _AGAIN)
        if len(code) > MOST_OF_A_CODE or not _VISIBLE.fullmatch(code):
            raise LoginError(f"{issuer} has sent the browser back without a code", _AGAIN)
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.address,
            "client_id": client_id,
            "code_verifier": self.verifier,
        }


def tokens_of(status: int, raw: Mapping[str, Any], issuer: str) -> Mapping[str, Any]:
    """Return the tokens of the issuer's answer to a `CodeFlow.token_request`; raises LoginError if it has none."""
    if status != 200:
        is_client = status == 401 or raw.get("error") in ("invalid_client", "unauthorized_client")
        remedy = "have security.oidc.client-id and security.oidc.client-secret-file checked" if is_client else _AGAIN
        raise LoginError(f"{issuer} rejects the code: {reason_of(status, raw)}", remedy)
    if not isinstance(raw.get("id_token"), str):
        raise LoginError(f"{issuer} has given no ID token", "have openid added to security.oidc.scopes")
    return raw


def _text(data: bytes) -> str:
    """Return bytes as base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
