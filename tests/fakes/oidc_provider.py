"""An OpenID Connect provider on loopback, with real keys: discovery, keys, both log-ins, renewal, revocation."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

CLIENT_ID = "understudy"
GROUPS = ["data-engineers", "staff"]
DISCOVERY = "/.well-known/openid-configuration"


class SigningKey:
    """A private key of the issuer, and its public part as a JSON Web Key.

    Args:
        key_id: its `kid`.
        algorithm: with which it signs.
        bits: size of an RSA key.
    """

    def __init__(self, key_id: str, algorithm: str = "RS256", bits: int = 2048) -> None:
        self.key_id, self.algorithm = key_id, algorithm
        self.private: Any
        if algorithm.startswith(("RS", "PS")):
            self.private = rsa.generate_private_key(65537, bits)
            raw = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
            raw = OKPAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
            self.private = ec.generate_private_key(curve)
            raw = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        raw.pop("key_ops", None)
        self.public: dict[str, Any] = {**raw, "kid": key_id, "use": "sig", "alg": algorithm}

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """Return a token with these claims."""
        return jwt.encode(dict(claims), self.private, self.algorithm, {"kid": self.key_id, **header})


class Provider:
    """The issuer's state, and its next answers.

    Args:
        issuer: its URL.
        key: with which it signs.
    """

    def __init__(self, issuer: str, key: SigningKey) -> None:
        self.issuer, self.key = issuer, key
        self.published = [key.public]
        self.user: dict[str, Any] = {"preferred_username": "ada", "groups": GROUPS}
        self.lifetime_s = 3600.0
        self.asked: list[str] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []
        """Answers to the next requests for tokens, before those of a user who has entered the code."""
        self.interval: float = 0
        self.document: dict[str, Any] = {
            "issuer": issuer,
            "jwks_uri": f"{issuer}/keys",
            "token_endpoint": f"{issuer}/token",
            "device_authorization_endpoint": f"{issuer}/device",
            "authorization_endpoint": f"{issuer}/authorize",
            "revocation_endpoint": f"{issuer}/revoke",
        }
        self.device_code = ""
        self.redirect_uris: list[str] | None = None
        """Registered addresses of the client; None for any."""
        self.denial: dict[str, str] = {}
        """Parameters of an error with which the browser is sent back, instead of a code."""
        self.codes: dict[str, dict[str, str]] = {}
        """The query that each unused code was given for."""
        self.client_secret = ""
        """Secret of a confidential client, as the issuer demands it; empty for a public client."""
        self.device_client = ""
        """Id of a public client that may use the device flow, and nothing else; then the other one may not."""
        self.checks_pkce = True
        self.id_claims: dict[str, Any] = {}
        """Further claims of ID tokens; None as the value leaves one out."""
        self.refresh_tokens: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.away = False
        self.override: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
        """Answers a request in another way, and returns whether it has."""

    def claims(self, **others: Any) -> dict[str, Any]:
        """Return the claims of a token for the present user."""
        now = time.time()
        standard = {
            "iss": self.issuer,
            "sub": "7f3c",
            "aud": CLIENT_ID,
            "exp": now + self.lifetime_s,
            "iat": now,
            "jti": secrets.token_hex(8),
        }
        return {key: value for key, value in {**standard, **self.user, **others}.items() if value is not None}

    def token(self, **others: Any) -> str:
        """Return a token for the present user; None as the value leaves a claim out."""
        return self.key.sign(self.claims(**others))

    def rotate(self, key: SigningKey) -> None:
        """Sign with another key from now on, and publish no other."""
        self.key, self.published = key, [key.public]

    def answer(self, path: str, form: dict[str, str], authorization: str = "") -> tuple[int, dict[str, Any]]:
        """Return the answer to a request; *authorization* is its header of that name."""
        self.asked.append(path)
        if self.away:
            return 503, {}
        if path == "/token":
            self.forms.append(form)
        client = self._client_of(form, authorization)
        if path in ("/device", "/token", "/revoke") and client not in (CLIENT_ID, self.device_client or CLIENT_ID):
            return 401, {"error": "invalid_client"}
        if path == "/device" and client != (self.device_client or CLIENT_ID):
            return 400, {"error": "unauthorized_client"}
        match path:
            case "/.well-known/openid-configuration":
                return 200, self.document
            case "/keys":
                return 200, {"keys": self.published}
            case "/device":
                self.device_code = secrets.token_urlsafe(16)
                return 200, {
                    "device_code": self.device_code,
                    "user_code": "WDJB-MJHT",
                    "verification_uri": f"{self.issuer}/enter",
                    "verification_uri_complete": f"{self.issuer}/enter?code=WDJB-MJHT",
                    "expires_in": 600,
                    "interval": self.interval,
                }
            case "/token":
                return self._tokens(form, str(client))
            case "/revoke":
                self.refresh_tokens = [token for token in self.refresh_tokens if token != form["token"]]
                return 200, {}
        return 404, {}

    def authorize(self, query: Mapping[str, str]) -> str | None:
        """Return where the browser of a user who has logged in is sent; None if the address is not registered."""
        address = query.get("redirect_uri", "")
        if query.get("client_id") != CLIENT_ID or query.get("response_type") != "code":
            return None
        if self.redirect_uris is not None and address not in self.redirect_uris:
            return None
        back = dict(self.denial)
        if not back:
            back["code"] = secrets.token_urlsafe(16)
            self.codes[back["code"]] = dict(query)
        return f"{address}?{urlencode({**back, 'state': query.get('state', '')})}"

    def _client_of(self, form: Mapping[str, str], authorization: str) -> str | None:
        """Return the client that asks, if it shows its secret in one way only, and in the one that is published."""
        is_public = not self.client_secret or form.get("client_id") == self.device_client
        if is_public:
            return None if authorization else form.get("client_id")
        methods = self.document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if authorization:
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            name, _, secret = (unquote_plus(part) for part in pair.partition(":"))
            is_the_one = "client_secret_basic" in methods and "client_id" not in form and "client_secret" not in form
        else:
            name, secret = form.get("client_id", ""), form.get("client_secret", "")
            is_the_one = "client_secret_post" in methods
        return name if is_the_one and secret == self.client_secret else None

    def _of_code(self, form: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the claims that a code adds to the ID token; None if it is not valid."""
        begun = self.codes.pop(form.get("code", ""), None)  # works once
        if begun is None or begun["redirect_uri"] != form.get("redirect_uri"):
            return None
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        has_challenge = self.checks_pkce and begun.get("code_challenge_method") == "S256"
        if has_challenge and challenge.rstrip(b"=").decode() != begun.get("code_challenge"):
            return None
        return {"nonce": begun.get("nonce"), **self.id_claims}

    def _tokens(self, form: dict[str, str], client: str) -> tuple[int, dict[str, Any]]:
        if self.answers:
            return self.answers.pop(0)
        claims: dict[str, Any] = {"aud": client}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return 400, {"error": "invalid_grant", "error_description": "Token is not active"}
            self.refresh_tokens.remove(form["refresh_token"])  # works once
        elif form["grant_type"] == "authorization_code":
            found = self._of_code(form)
            if found is None:
                return 400, {"error": "invalid_grant", "error_description": "Code not valid"}
            claims |= found
        elif not self.device_code or form["device_code"] != self.device_code:
            return 400, {"error": "expired_token"}
        self.device_code = ""
        self.refresh_tokens.append(secrets.token_urlsafe(16))
        return 200, {
            "access_token": self.token(aud="understudy-api", azp=client),
            "id_token": self.token(**claims),
            "refresh_token": self.refresh_tokens[-1],
            "expires_in": self.lifetime_s,
            "token_type": "Bearer",
        }


class _Handler(BaseHTTPRequestHandler):
    provider: Provider
    timeout = 60

    def do_GET(self) -> None:
        if self.provider.override(self):
            return
        path, _, query = self.path.partition("?")
        if path == "/authorize":
            self._redirect(self.provider.authorize({name: values[0] for name, values in parse_qs(query).items()}))
            return
        self._send(*self.provider.answer(self.path, {}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        self._send(*self.provider.answer(self.path, form, self.headers.get("authorization", "")))

    def _redirect(self, target: str | None) -> None:
        if target is None:
            self._send(400, {"error": "invalid_redirect_uri"})
            return
        self.send_response(302)
        self.send_header("location", target)
        self.send_header("content-length", "0")
        self.end_headers()

    def _send(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def running_provider(key: SigningKey | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    """Provide a provider that answers on a free port of loopback."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    provider = Provider(f"{scheme}://127.0.0.1:{server.server_address[1]}", key or SigningKey("first"))
    handler.provider = provider
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
