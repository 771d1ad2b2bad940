"""Logging in by device flow: what the cluster offers, what the issuer answers, and what a client stores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.users.login import (
    DEVICE_GRANT,
    RENEW_BEFORE_MS,
    DeviceAuthorization,
    DeviceFlow,
    Login,
    LoginError,
    LoginOffer,
    Provider,
    device_request,
    device_token_request,
    discovery_url,
    is_private_url,
    name_of,
    on_renewal,
    refresh_request,
    revocation_request,
)
from runtime.users.oidc import IssuerAnswerError
from tests.fakes.oidc_provider import SigningKey

ISSUER = "https://id.example.org/realms/data"
OFFER = LoginOffer(ISSUER, "understudy", False, ("openid", "profile"))
DOCUMENT = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/certs",
    "token_endpoint": f"{ISSUER}/token",
    "device_authorization_endpoint": f"{ISSUER}/device",
    "revocation_endpoint": f"{ISSUER}/revoke",
}
BEGUN = {
    "device_code": "GmRh-secret",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://id.example.org/device",
    "expires_in": 300,
    "interval": 5,
}
LOGIN = Login("https://c:8081", ISSUER, "understudy", False, f"{ISSUER}/token", f"{ISSUER}/revoke")
KEY = SigningKey("k", "ES256")


def test_the_offer_comes_back_and_says_nothing_secret() -> None:
    for offer in (OFFER, replace(OFFER, wants_access_token=True)):
        assert LoginOffer.from_json(json.loads(json.dumps(offer.to_json()))) == offer
    assert OFFER.to_json() == {
        "issuer": ISSUER,
        "client-id": "understudy",
        "token": "id_token",
        "scopes": ["openid", "profile"],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://id.example.org"},
        {"issuer": 5},
        {"issuer": "https://id.example.org/\x1b[31m"},
        {"client-id": ""},
        {"client-id": "a b"},
        {"scopes": None},
        {"scopes": ["openid\n"]},
        {"scopes": [1]},
    ],
)
def test_an_offer_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LoginError):
        LoginOffer.from_json({**OFFER.to_json(), **change})
    for raw in (None, [], "x", {}):
        with pytest.raises(LoginError):
            LoginOffer.from_json(raw)


def test_what_others_could_read_is_not_private() -> None:
    private = ("https://a", "https://a:8443/p?q=1", "http://127.0.0.1:9000", "http://localhost/x", "http://[::1]:9000/")
    assert all(map(is_private_url, private))
    open_ones = ("http://a", "http://localhost.evil.example", "http://127.0.0.1.evil.example/", "http://10.0.0.7")
    odd = ("ftp://localhost", "https://", "https://me:secret@a", "https://a#b", "https://a b", "//a", "", "https://[a")
    assert not any(map(is_private_url, (*open_ones, *odd, "https://a:99999", "http://localhost@evil.example")))
    assert not is_private_url("http://127.0.0.1", http=False)


def test_the_addresses_of_an_issuer_are_its_own_and_private() -> None:
    assert Provider.of(DOCUMENT, ISSUER) == Provider(
        f"{ISSUER}/certs", f"{ISSUER}/token", f"{ISSUER}/device", f"{ISSUER}/revoke"
    )
    least = {key: DOCUMENT[key] for key in ("issuer", "jwks_uri", "token_endpoint")}
    assert Provider.of(least, ISSUER).device_url == ""
    for key, value in (
        ("issuer", ISSUER + "/"),
        ("issuer", "https://evil.example"),
        ("issuer", None),
        ("jwks_uri", None),
        ("jwks_uri", ""),
        ("jwks_uri", "http://id.example.org/certs"),
        ("jwks_uri", "http://127.0.0.1/certs"),  # an issuer elsewhere does not lead to this machine
        ("token_endpoint", "file:///etc/passwd"),
        ("token_endpoint", 5),
        ("device_authorization_endpoint", "http://id.example.org/device"),
        ("revocation_endpoint", ["https://a"]),
    ):
        with pytest.raises(IssuerAnswerError):
            Provider.of({**DOCUMENT, key: value}, ISSUER)
    assert discovery_url("https://a/") == discovery_url("https://a") == "https://a/.well-known/openid-configuration"


def test_an_issuer_on_loopback_has_addresses_on_loopback() -> None:
    local = {key: value.replace("https://id.example.org", "http://127.0.0.1:9") for key, value in DOCUMENT.items()}
    assert Provider.of(local, local["issuer"]).keys_url == "http://127.0.0.1:9/realms/data/certs"


def begun(**others: Any) -> DeviceAuthorization:
    raw = {key: value for key, value in {**BEGUN, **others}.items() if value is not None}
    return DeviceAuthorization.of(200, raw, ISSUER)


def test_a_flow_begins_with_a_code_and_an_address() -> None:
    found = begun(verification_uri_complete="https://id.example.org/device?c=1")
    assert (found.user_code, found.url) == ("WDJB-MJHT", "https://id.example.org/device")
    assert found.complete_url == "https://id.example.org/device?c=1"
    assert (found.expires_in_s, found.interval_s) == (300, 5)
    assert begun(verification_uri=None, verification_url=found.url).url == found.url, "Google's name for it"
    bare = begun(expires_in=None, interval=None)
    assert (bare.expires_in_s, bare.interval_s, bare.complete_url) == (1800, 5, "")
    assert begun(expires_in=1e8, interval=1e8) == replace(bare, expires_in_s=1800, interval_s=60)


@pytest.mark.parametrize(
    "change",
    [
        {"device_code": None},
        {"device_code": "a b"},
        {"user_code": "\x1b]0;owned\x07"},
        {"user_code": "A" * 65},
        {"user_code": 7},
        {"verification_uri": None},
        {"verification_uri": "http://id.example.org"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": "https://id.example.org/\x1b[2J"},
        {"verification_uri_complete": "https://a/\n"},
        {"verification_uri_complete": 7},
    ],
)
def test_nothing_is_printed_that_could_trick_a_terminal_or_its_user(change: dict[str, Any]) -> None:
    with pytest.raises(LoginError):
        begun(**change)


def test_an_issuer_without_a_device_flow_says_why() -> None:
    with pytest.raises(LoginError, match="unauthorized_client: not allowed"):
        DeviceAuthorization.of(400, {"error": "unauthorized_client", "error_description": "not allowed"}, ISSUER)
    with pytest.raises(LoginError, match="HTTP 500"):
        DeviceAuthorization.of(500, {}, ISSUER)


def test_the_client_asks_at_the_interval_and_more_slowly_when_told_to() -> None:
    flow = DeviceFlow(begun(), 100.0)
    assert flow.pause_s(100.0) == 5
    assert not flow.on_answer(400, {"error": "authorization_pending"})
    assert flow.pause_s(105.0) == 5
    assert not flow.on_answer(400, {"error": "slow_down"})
    assert flow.pause_s(110.0) == 10
    assert not flow.on_answer(400, {"error": "slow_down"})
    assert flow.pause_s(120.0) == 15, "each slow_down lasts"
    assert flow.on_answer(200, {"id_token": "..."})


def test_the_client_asks_more_slowly_without_an_answer() -> None:
    flow = DeviceFlow(begun(), 0.0)
    flow.on_silence()
    assert flow.pause_s(0.0) == 10
    assert not flow.on_answer(503, {})
    assert flow.pause_s(0.0) == 20
    assert not flow.on_answer(429, {})
    assert flow.pause_s(0.0) == 40
    for _ in range(9):
        flow.on_silence()
    assert flow.pause_s(0.0) == 60


def test_the_client_does_not_ask_after_the_end() -> None:
    flow = DeviceFlow(begun(), 0.0)
    assert flow.pause_s(298.0) == 2
    with pytest.raises(LoginError, match="expired"):
        flow.pause_s(300.0)


@pytest.mark.parametrize(
    ("error", "match"),
    [("access_denied", "was denied"), ("expired_token", "has expired"), ("invalid_client", "rejects it: inv")],
)
def test_an_error_ends_the_login(error: str, match: str) -> None:
    with pytest.raises(LoginError, match=match):
        DeviceFlow(begun(), 0.0).on_answer(400, {"error": error})


def test_an_error_of_the_issuer_is_one_printable_line() -> None:
    with pytest.raises(LoginError) as refusal:
        DeviceFlow(begun(), 0.0).on_answer(400, {"error": "x\x1b[2J\n" * 500, "error_description": ["?"]})
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


def test_the_forms_are_those_of_the_standards() -> None:
    assert device_request(OFFER) == {"client_id": "understudy", "scope": "openid profile"}
    assert device_token_request("understudy", "GmRh") == {
        "grant_type": DEVICE_GRANT,
        "device_code": "GmRh",
        "client_id": "understudy",
    }
    login = replace(LOGIN, refresh_token="r")
    assert refresh_request(login) == {"grant_type": "refresh_token", "refresh_token": "r", "client_id": "understudy"}
    assert revocation_request(login)["token"] == "r"


def tokens(**others: Any) -> dict[str, Any]:
    found = {
        "id_token": KEY.sign({"exp": 2000, "kind": "id"}),
        "access_token": KEY.sign({"exp": 1000, "kind": "access"}),
        "refresh_token": "refresh",
    }
    return {key: value for key, value in {**found, **others}.items() if value is not None}


def test_the_token_is_the_one_that_the_cluster_takes() -> None:
    given = tokens()
    as_id = LOGIN.with_tokens(given)
    assert (as_id.bearer, as_id.expires_ms, as_id.refresh_token) == (given["id_token"], 2_000_000, "refresh")
    as_access = replace(LOGIN, wants_access_token=True).with_tokens(given)
    assert (as_access.bearer, as_access.expires_ms) == (given["access_token"], 1_000_000)
    for change in ({"id_token": None}, {"id_token": "opaque"}, {"id_token": 5}, {"id_token": KEY.sign({})}):
        with pytest.raises(LoginError):
            LOGIN.with_tokens(tokens(**change))


def test_a_refresh_token_is_kept_until_there_is_another() -> None:
    login = LOGIN.with_tokens(tokens())
    assert login.with_tokens(tokens(refresh_token=None)).refresh_token == "refresh"
    assert login.with_tokens(tokens(refresh_token="next")).refresh_token == "next"
    assert login.with_tokens(tokens(refresh_token="a\r\nb")).refresh_token == "refresh"
    assert LOGIN.with_tokens(tokens(refresh_token=None)).refresh_token == ""


def test_a_token_is_renewed_before_it_expires() -> None:
    login = replace(LOGIN, expires_ms=1_000_000)
    assert not login.needs_renewal(1_000_000 - RENEW_BEFORE_MS - 1)
    assert login.needs_renewal(1_000_000 - RENEW_BEFORE_MS)
    short = replace(login, lifetime_ms=60_000)
    assert not short.needs_renewal(969_999)
    assert short.needs_renewal(970_000)
    assert not replace(login, lifetime_ms=3_600_000).needs_renewal(939_999)
    assert replace(login, lifetime_ms=3_600_000).needs_renewal(940_000)
    assert not login.has_expired(999_999)
    assert login.has_expired(1_000_000)
    assert on_renewal(login, 200, tokens()).expires_ms == 2_000_000
    with pytest.raises(LoginError, match="invalid_grant"):
        on_renewal(login, 400, {"error": "invalid_grant"})


def test_a_stored_login_comes_back_also_from_a_later_release() -> None:
    login = LOGIN.with_tokens(tokens())
    assert Login.from_json(login.to_json()) == login
    assert Login.from_json(json.dumps({**json.loads(login.to_json()), "later": 1})) == login
    for text in (
        "",
        "[]",
        "{}",
        "7",
        '{"cluster": 5}',
        login.to_json().replace('"expires_ms": 2000000', '"expires_ms": "x"'),
    ):
        with pytest.raises(ValueError, match=r"no login|Expecting value"):
            Login.from_json(text)


def test_a_cluster_has_one_name_whatever_the_order_of_its_addresses() -> None:
    assert name_of(["https://b", "https://a"]) == name_of(["https://a", "https://b"]) == "https://a,https://b"
