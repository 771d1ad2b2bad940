"""Tokens of an OpenID Connect provider: who they identify, every way to forge one, and when keys are fetched."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from runtime.users.identities import Principal, Role, TokenRefusedError, looks_like_a_token
from runtime.users.oidc import (
    ALGORITHMS,
    FETCH_EVERY_S,
    LEEWAY_MS,
    MOST_AGE_S,
    MOST_KEYS,
    MOST_OF_A_TOKEN,
    REFRESH_S,
    IssuerAnswerError,
    KeyRing,
    OidcRules,
    UnknownKeyError,
    check_login,
    identify,
    keys_of,
    looks_like_a_jwt,
    unverified_expiry_ms,
    unverified_lifetime_ms,
)
from tests.fakes.oidc_provider import SigningKey

ISSUER = "https://id.example.org/realms/data"
NOW_S = 1_800_000_000
KEY = SigningKey("first")
OTHER = SigningKey("second")
KEYS = keys_of({"keys": [KEY.public, OTHER.public]})
RULES = OidcRules(
    ISSUER,
    "understudy",
    "understudy",
    "preferred_username",
    "groups",
    {"staff": Role.VIEWER, "engineers": Role.USER, "on-call": Role.OPERATOR, "platform": Role.ADMIN},
)
CLAIMS: Mapping[str, Any] = {
    "iss": ISSUER,
    "sub": "7f3c",
    "aud": "understudy",
    "exp": NOW_S + 300,
    "iat": NOW_S,
    "jti": "0a1b2c3d4e5f",
    "preferred_username": "ada",
    "groups": ["engineers"],
}


def who(token: str | bytes, rules: OidcRules = RULES, now_s: float = NOW_S, keys: Any = KEYS) -> Principal:
    return identify(token.encode() if isinstance(token, str) else token, keys, rules, int(now_s * 1000))


def signed(key: SigningKey = KEY, **others: Any) -> str:
    claims = {**CLAIMS, **others}
    return key.sign({name: value for name, value in claims.items() if value is not None})


def refused(token: str | bytes, match: str, rules: OidcRules = RULES, now_s: float = NOW_S) -> None:
    with pytest.raises(TokenRefusedError, match=match):
        who(token, rules, now_s)


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def test_a_token_identifies_its_user_with_the_role_of_their_group() -> None:
    expected = Principal("ada", Role.USER, "oidc:0a1b2c3d4e5f", ISSUER, (NOW_S + 300) * 1000 + LEEWAY_MS)
    assert who(signed()) == expected
    assert expected.shown == f"user ada of {ISSUER}"


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_accepted_algorithm_verifies_with_its_own_kind_of_key(algorithm: str) -> None:
    key = SigningKey("k", algorithm)
    assert who(signed(key), keys=keys_of({"keys": [key.public]})).name == "ada"
    without = {name: value for name, value in key.public.items() if name != "alg"}
    assert who(signed(key), keys=keys_of({"keys": [without]})).name == "ada"


# ------------------------------------------------------------------------ forgeries


def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", "nOnE"):
        body = part({"alg": algorithm, "typ": "JWT", "kid": "first"}) + b"." + part(dict(CLAIMS)) + b"."
        refused(body, "algorithm")
    refused(jwt.encode(dict(CLAIMS), None, "none", {"kid": "first"}), "algorithm")
    head, body_part, _ = signed().split(".")
    refused(f"{head}.{body_part}.", "signature is wrong")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(algorithm: str) -> None:
    """The public key is known to everyone, in each of these forms."""
    public = KEY.private.public_key()
    forms = [
        public.public_bytes(encoding, form)
        for encoding, form in (
            (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
            (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
            (serialization.Encoding.PEM, serialization.PublicFormat.PKCS1),
        )
    ]
    forms.append(base64.urlsafe_b64decode(KEY.public["n"] + "=="))
    forms.append(json.dumps(KEY.public).encode())
    for secret in (*forms, b""):
        body = part({"alg": algorithm, "typ": "JWT", "kid": "first"}) + b"." + part(dict(CLAIMS))
        digest = hmac.new(secret, body, getattr(hashlib, f"sha{algorithm[2:]}")).digest()
        refused(body + b"." + base64.urlsafe_b64encode(digest).rstrip(b"="), "algorithm 'HS")


def test_a_token_of_another_key_is_refused() -> None:
    stranger = SigningKey("first")
    refused(signed(stranger), "signature is wrong")
    with pytest.raises(UnknownKeyError):
        who(signed(SigningKey("unknown")))
    refused(jwt.encode(dict(CLAIMS), KEY.private, "RS256", {"kid": "second"}), "signature is wrong")
    refused(jwt.encode(dict(CLAIMS), KEY.private, "RS256"), "2 keys fit")
    assert who(jwt.encode(dict(CLAIMS), KEY.private, "RS256"), keys=KEYS[:1]).name == "ada", "the only key needs no kid"


def test_a_key_verifies_only_the_algorithm_that_the_issuer_gave_it() -> None:
    refused(jwt.encode(dict(CLAIMS), KEY.private, "PS256", {"kid": "first"}), "0 keys fit")
    refused(jwt.encode(dict(CLAIMS), KEY.private, "RS512", {"kid": "first"}), "0 keys fit")


def test_a_changed_token_is_refused() -> None:
    head, _, signature = signed().split(".")
    refused(f"{head}.{part({**CLAIMS, 'groups': ['platform']}).decode()}.{signature}", "signature is wrong")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_token_with_any_other_bit_is_refused(place: int, flip: int) -> None:
    token = bytearray(_TOKEN)
    place %= len(token)
    token[place] ^= flip
    try:
        found = who(bytes(token))
    except TokenRefusedError:
        return
    # Only unused bits of the last character of a base64 text may differ.
    assert base64.urlsafe_b64decode(bytes(token).split(b".")[2] + b"==") == base64.urlsafe_b64decode(
        _TOKEN.split(b".")[2] + b"=="
    )
    assert found.name == "ada"


_TOKEN = signed().encode()


def test_a_token_of_another_issuer_is_refused_although_its_key_is_known() -> None:
    for issuer in ("https://evil.example", ISSUER + "/", ISSUER.upper(), None, 5, [ISSUER]):
        refused(KEY.sign({**CLAIMS, "iss": issuer}) if isinstance(issuer, str) else unsafe(iss=issuer), "its issuer is")


def unsafe(**others: Any) -> str:
    """Sign claims that PyJWT would not write."""
    head = part({"alg": "RS256", "kid": "first"})
    body = head + b"." + part({**CLAIMS, **others})
    signature = jwt.get_algorithm_by_name("RS256").sign(body, KEY.private)
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_a_token_for_another_audience_is_refused() -> None:
    for audience in ("other", ["other"], [], None, "", {"understudy": 1}, "understudy-2", ["under", "study"]):
        refused(unsafe(aud=audience), "not for understudy")
    assert who(signed(aud=["other", "understudy"])).name == "ada"
    assert who(signed(aud="api"), replace(RULES, audience="api")).name == "ada"
    refused(signed(), "not for api", replace(RULES, audience="api"))


def test_a_token_that_was_issued_to_another_client_is_refused() -> None:
    assert who(signed(azp="understudy")).name == "ada"
    for client in ("grafana", "", ["understudy"], None):
        refused(unsafe(azp=client), "was issued to")


def test_a_token_of_the_clusters_second_client_counts_except_as_a_login_of_the_page() -> None:
    rules = replace(RULES, device_client_id="understudy-cli")
    for claims in ({"aud": "understudy-cli"}, {"aud": ["understudy-cli"], "azp": "understudy-cli"}, {}):
        assert who(signed(**claims), rules).name == "ada"
    refused(signed(aud="understudy-cli"), "not for understudy ", RULES)
    refused(signed(aud="grafana"), "not for understudy or understudy-cli ", rules)
    refused(signed(azp="grafana"), "not to understudy or understudy-cli", rules)
    api = replace(rules, audience="api")
    assert who(signed(aud="api", azp="understudy-cli"), api).name == "ada"
    refused(signed(aud="understudy-cli"), "not for api ", api)
    for claims in ({"aud": "understudy-cli"}, {"azp": "understudy-cli"}):
        with pytest.raises(TokenRefusedError, match="'understudy-cli', not"):
            check_login(signed(nonce="n", **claims), "n", KEYS, rules, NOW_S * 1000)
    check_login(signed(nonce="n"), "n", KEYS, rules, NOW_S * 1000)


def test_a_token_is_valid_between_its_times_with_a_small_leeway() -> None:
    leeway_s = LEEWAY_MS / 1000
    token = signed(nbf=NOW_S)
    for now_s in (NOW_S - leeway_s, NOW_S, NOW_S + 300, NOW_S + 300 + leeway_s - 0.001):
        assert who(token, now_s=now_s).name == "ada"
    refused(token, "has expired", now_s=NOW_S + 300 + leeway_s)
    refused(token, "is valid only in", now_s=NOW_S - leeway_s - 0.001)
    refused(token, "has expired", now_s=NOW_S + 1e7)


def test_a_token_that_never_expires_is_refused() -> None:
    refused(signed(exp=None), "does not expire")
    for value in ("9999999999", True, float("nan"), float("inf"), -1, 10**400, 1e300, [NOW_S], {}):
        refused(unsafe(exp=value), "exp is not a time")
        refused(unsafe(nbf=value), "nbf is not a time")


def test_another_kind_of_token_of_the_issuer_is_refused() -> None:
    for kind in ("logout+jwt", "dpop+jwt", "JOSE", "", "secevent+jwt", 7):
        token = part({"alg": "RS256", "kid": "first", "typ": kind}) + b"." + part(dict(CLAIMS))
        signature = jwt.get_algorithm_by_name("RS256").sign(token, KEY.private)
        refused(token + b"." + base64.urlsafe_b64encode(signature).rstrip(b"="), "its type")
    for kind in ("JWT", "jwt", "at+jwt", "application/at+jwt"):
        assert who(KEY.sign(CLAIMS, typ=kind)).name == "ada"


@pytest.mark.parametrize("header", [{"crit": ["b64"], "b64": True}, {"crit": []}, {"b64": False}])
def test_a_token_that_demands_extensions_is_refused(header: dict[str, Any]) -> None:
    token = part({"alg": "RS256", "kid": "first", **header}) + b"." + part(dict(CLAIMS))
    signature = jwt.get_algorithm_by_name("RS256").sign(token, KEY.private)
    refused(token + b"." + base64.urlsafe_b64encode(signature).rstrip(b"="), "extensions")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Ada",
        "../ada",
        "ada\n",
        "ada b",
        "ada;role=admin",
        "a" * 65,
        "1ada",
        "\u0430da",
        "-ada",
        "ada\x00",
        7,
        None,
        ["ada"],
    ],
)
def test_a_name_that_is_no_users_is_refused(name: Any) -> None:
    refused(unsafe(preferred_username=name), "is not a valid user name")


def test_an_address_counts_only_if_the_issuer_has_verified_it() -> None:
    rules = replace(RULES, user_claim="email")
    assert who(signed(email="ada@example.org"), rules).name == "ada@example.org"
    assert who(signed(email="ada@example.org", email_verified=True), rules).name == "ada@example.org"
    for verified in (False, "true", "false", 1, 0):
        refused(unsafe(email="ada@example.org", email_verified=verified), "has not verified", rules)


def test_the_highest_role_of_the_groups_counts() -> None:
    for groups, role in (
        (["staff"], Role.VIEWER),
        (["staff", "on-call", "engineers"], Role.OPERATOR),
        (["platform", "staff"], Role.ADMIN),
        (["unknown", "engineers", 5, None, ["platform"]], Role.USER),
        ("engineers", Role.USER),
    ):
        assert who(unsafe(groups=groups)).role is role


@pytest.mark.parametrize(
    "groups", [None, [], ["left"], "", {"platform": True}, 5, [["platform"]], ["Platform", "platform "]]
)
def test_a_user_in_no_group_that_has_a_role_is_refused_or_a_viewer(groups: Any) -> None:
    refused(unsafe(groups=groups), "ada is in no group")
    assert who(unsafe(groups=groups), replace(RULES, default_role=Role.VIEWER)).role is Role.VIEWER


def test_a_group_that_has_lost_its_role_gives_none() -> None:
    token = signed(groups=["engineers"])
    assert who(token).role is Role.USER
    refused(token, "is in no group", replace(RULES, roles={"staff": Role.VIEWER}))


def test_groups_may_be_inside_of_another_claim() -> None:
    rules = replace(RULES, groups_claim="realm_access.roles")
    assert who(signed(realm_access={"roles": ["on-call"]}), rules).role is Role.OPERATOR
    assert (
        who(signed(**{"realm_access.roles": ["staff"]}, realm_access={"roles": ["platform"]}), rules).role
        is Role.VIEWER
    )
    refused(signed(realm_access=["on-call"]), "is in no group", rules)


def test_the_audit_log_gets_an_id_of_the_token() -> None:
    assert who(signed(jti="onrtro:3f2a9c")).token_id == "oidc:onrtro:3f2a9c"
    for jti in (None, 7, "short", 'long"line\n' * 20, "x" * 65):
        token = unsafe(jti=jti)
        assert who(token).token_id == "oidc:" + hashlib.sha256(token.encode()).hexdigest()[:16]


def test_a_reason_is_one_short_line_whatever_the_token_says() -> None:
    evil = "x\nERROR forged\x1b[31m" * 50
    for token in (unsafe(iss=evil), unsafe(aud=evil), unsafe(preferred_username=evil), unsafe(azp=evil)):
        with pytest.raises(TokenRefusedError) as refusal:
            who(token)
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 250
    with pytest.raises(TokenRefusedError) as refusal:
        who(part({"alg": evil}) + b"." + part({}) + b".")
    assert str(refusal.value).isprintable()


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(shown: bytes) -> None:
    for token in (shown, b".".join([base64.urlsafe_b64encode(shown).rstrip(b"=")] * 3), shown + b".e30.AA"):
        with pytest.raises(TokenRefusedError):
            who(token)


def test_the_forms_of_tokens_do_not_overlap() -> None:
    own = b"understudy_" + b"0" * 16 + b"_" + b"0" * 64
    assert looks_like_a_token(own)
    assert not looks_like_a_jwt(own)
    assert looks_like_a_jwt(_TOKEN)
    assert not looks_like_a_token(_TOKEN)
    assert not looks_like_a_jwt(b"a." + b"b" * MOST_OF_A_TOKEN + b".c")
    assert not looks_like_a_jwt(b"a.b")
    assert not looks_like_a_jwt(_TOKEN + b"\n")


def test_a_client_sees_when_its_token_expires() -> None:
    assert unverified_expiry_ms(signed()) == (NOW_S + 300) * 1000
    assert unverified_expiry_ms(signed(exp=None)) is None
    for text in ("opaque", "a.b.c", "..", unsafe(exp="soon")):
        assert unverified_expiry_ms(text) is None
        assert unverified_lifetime_ms(text) == 0
    assert unverified_lifetime_ms(signed(iat=NOW_S + 240)) == 60_000
    for claims in ({"iat": None}, {"iat": "soon"}, {"exp": None}, {"iat": NOW_S + 400}):
        assert unverified_lifetime_ms(unsafe(**claims)) == 0


# ------------------------------------------------------------------------ keys


def test_only_public_keys_that_verify_signatures_count() -> None:
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.private))
    unusable: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "kid": "oct", "alg": "HS256"},
        {**private, "kid": "private"},
        {**KEY.public, "use": "enc"},
        {**KEY.public, "key_ops": ["encrypt"]},
        {**KEY.public, "alg": "HS256"},
        {**KEY.public, "alg": "none"},
        {**KEY.public, "alg": "ES256"},
        {**KEY.public, "kid": 7},
        {**KEY.public, "n": "!"},
        SigningKey("short", bits=1024).public,
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "RSA"},
        {},
        "key",
        None,
    ]
    assert keys_of({"keys": [*unusable, OTHER.public]}) == (KEYS[1],)
    with pytest.raises(IssuerAnswerError, match="no key"):
        keys_of({"keys": unusable})


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {}}, {"keys": [KEY.public] * (MOST_KEYS + 1)}])
def test_what_is_no_set_of_keys_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(IssuerAnswerError):
        keys_of(document)


def test_two_keys_of_one_name_verify_nothing() -> None:
    twins = keys_of({"keys": [KEY.public, SigningKey("first").public]})
    with pytest.raises(TokenRefusedError, match="2 keys fit"):
        who(signed(), keys=twins)


def test_keys_are_fetched_at_first_and_then_now_and_again() -> None:
    ring = KeyRing()
    assert ring.keys(0) == ()
    assert ring.begin(0)
    ring.put(KEYS, 1)
    assert ring.keys(1) == KEYS
    assert not ring.begin(1 + REFRESH_S - 0.1)
    assert ring.begin(1 + REFRESH_S)


def test_unknown_keys_do_not_have_the_issuer_asked_without_end() -> None:
    ring = KeyRing()
    began = 0
    for tenth in range(36_000):  # an hour
        if ring.begin(tenth / 10, unknown=True):
            began += 1
            ring.put(KEYS, tenth / 10)
    assert began == 3600 / FETCH_EVERY_S


def test_an_issuer_that_is_away_is_asked_no_more_often() -> None:
    ring = KeyRing()
    assert [second for second in range(100) if ring.begin(second)] == [0, 30, 60, 90]


def test_keys_outlive_an_issuer_that_is_away_for_a_day() -> None:
    ring = KeyRing()
    assert ring.begin(0)
    ring.put(KEYS, 0)
    assert ring.begin(REFRESH_S)  # nothing is put: it has failed
    assert ring.keys(MOST_AGE_S - 1) == KEYS
    assert ring.keys(MOST_AGE_S) == ()


def test_a_key_that_the_issuer_has_withdrawn_ends_to_count() -> None:
    ring = KeyRing()
    ring.put(KEYS, 0)
    assert who(signed(), keys=ring.keys(1)).name == "ada"
    ring.put(KEYS[1:], REFRESH_S)
    with pytest.raises(UnknownKeyError):
        who(signed(), keys=ring.keys(REFRESH_S))
