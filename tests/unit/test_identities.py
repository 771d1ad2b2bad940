"""Users and tokens: what identifies whom until when, and what a change makes of the map."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.users.identities import (
    MOST_LIFETIME_MS,
    MOST_TOKENS,
    MOST_USERS,
    RANDOM_SIZE,
    ApiToken,
    Change,
    Identities,
    IdentityError,
    Principal,
    Role,
    TokenRefusedError,
    User,
    looks_like_a_token,
    make_token,
)

RANDOM = bytes(range(RANDOM_SIZE))
ADA = User("ada", Role.USER, 1000)


def applied(entries: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    after = dict(entries)
    for change in changes:
        assert after.get(change.field) == change.before
        assert change.before != change.after
        if change.after is None:
            del after[change.field]
        else:
            after[change.field] = change.after
    return after


def with_ada(*, lifetime_ms: int | None = 500) -> tuple[dict[str, str], str, ApiToken]:
    entries = applied({}, Identities({}).add_user(ADA))
    text, token = make_token("ada", "laptop", 2000, lifetime_ms, RANDOM)
    return applied(entries, Identities(entries).add_token(token)), text, token


def test_each_role_includes_those_below_it_and_no_other() -> None:
    roles = [Role.METRICS, Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN]
    assert list(Role) == roles
    for high, role in enumerate(roles):
        assert [role.includes(other) for other in roles] == [low <= high for low in range(5)]


def test_a_token_identifies_its_user_until_it_expires() -> None:
    entries, text, token = with_ada()
    known = Identities(entries)
    assert looks_like_a_token(text.encode())
    for now in (0, 2000, 2499):
        assert known.authenticate(text.encode(), now) == Principal("ada", Role.USER, token.token_id)
    for now in (2500, 10**15):
        with pytest.raises(TokenRefusedError, match="has expired"):
            known.authenticate(text.encode(), now)
    entries, text, _ = with_ada(lifetime_ms=None)
    assert Identities(entries).authenticate(text.encode(), 10**15).name == "ada"


def test_the_role_is_that_of_the_user_now() -> None:
    entries, text, _ = with_ada()
    entries = applied(entries, Identities(entries).add_user(replace(ADA, role=Role.ADMIN, created_ms=7)))
    assert Identities(entries).authenticate(text.encode(), 2000).role is Role.ADMIN
    assert Identities(entries).users == [replace(ADA, role=Role.ADMIN)], "the user is as old as before"


@pytest.mark.parametrize(
    "shown",
    [
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text.replace(text[11:27], "f" * 16),
        lambda text: text.upper(),
        lambda text: text + "\n",
        lambda text: "",
        lambda text: text[11:],
        lambda text: f"understudy_{text[11:27]}_" + "0" * 64,
    ],
)
def test_what_is_not_the_token_identifies_nobody(shown: object) -> None:
    entries, text, _ = with_ada()
    assert callable(shown)
    with pytest.raises(TokenRefusedError):
        Identities(entries).authenticate(shown(text).encode(), 2000)


def test_no_digest_of_a_record_is_a_secret() -> None:
    """A reader of the store gets no token from it, not by showing the digest either."""
    entries, text, token = with_ada()
    secret = text.rpartition("_")[2]
    assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert not any(secret in stored for stored in entries.values())
    assert secret not in repr(token)
    with pytest.raises(TokenRefusedError):
        Identities(entries).authenticate(f"understudy_{token.token_id}_{token.digest}".encode(), 2000)


def test_digests_are_compared_in_constant_time_also_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, text, token = with_ada()
    compared = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    Identities(entries).authenticate(text.encode(), 2000)
    with pytest.raises(TokenRefusedError):
        Identities({}).authenticate(text.encode(), 2000)
    assert [call.args for call in compared.call_args_list] == [(token.digest, token.digest), (token.digest, "0" * 64)]


def test_a_revoked_token_identifies_nobody() -> None:
    entries, text, token = with_ada()
    changes = Identities(entries).revoke_token(token.token_id)
    after = Identities(applied(entries, changes))
    with pytest.raises(TokenRefusedError, match="revoked"):
        after.authenticate(text.encode(), 2000)
    assert (after.tokens, after.revoke_token(token.token_id)) == ([], [])


def test_a_removed_user_leaves_no_token_to_a_successor_of_the_name() -> None:
    entries, text, token = with_ada()
    changes = Identities(entries).remove_user("ada")
    assert [change.field for change in changes] == [f"token:{token.token_id}", "user:ada"], "the tokens first"
    for cut_off in (1, 2):  # a write after the first may fail, and the call is repeated
        left = applied(entries, changes[:cut_off])
        with pytest.raises(TokenRefusedError):
            Identities(left).authenticate(text.encode(), 2000)
        left = applied(left, Identities(left).remove_user("ada"))
        assert left == {}
        again = applied(left, Identities(left).add_user(ADA))
        with pytest.raises(TokenRefusedError):
            Identities(again).authenticate(text.encode(), 2000)


def test_a_token_of_a_user_who_is_gone_identifies_nobody() -> None:
    entries, text, _ = with_ada()
    del entries["user:ada"]
    with pytest.raises(TokenRefusedError, match="was removed"):
        Identities(entries).authenticate(text.encode(), 2000)


def test_the_same_change_again_changes_nothing() -> None:
    entries, _, token = with_ada()
    known = Identities(entries)
    assert known.add_token(token) == []
    assert known.add_user(replace(ADA, created_ms=9)) == []
    assert known.remove_user("bob") == []
    with pytest.raises(IdentityError, match="another token"):
        known.add_token(replace(token, name="other"))


def test_a_listing_shows_no_digest() -> None:
    entries, _, token = with_ada()
    assert Identities(entries).tokens == [replace(token, digest="")]
    assert (Identities(entries).user_of_token(token.token_id), Identities(entries).user_of_token("x")) == ("ada", "")


def test_a_token_needs_a_user() -> None:
    _, token = make_token("bob", "laptop", 0, None, RANDOM)
    with pytest.raises(IdentityError, match="no user bob; `understudy user add bob --role user` adds one"):
        Identities({}).add_token(token)


@pytest.mark.parametrize("name", ["", "Ada", "a b", "../x", "a" * 65, "-a", "ada\n", "user:x", "ä"])
def test_what_is_no_name_of_a_user_is_refused(name: str) -> None:
    with pytest.raises(IdentityError):
        Identities({}).add_user(User(name, Role.USER))
    with pytest.raises(IdentityError):
        make_token(name, "laptop", 0, None, RANDOM)


@pytest.mark.parametrize("name", ["", " a", "a\n", "a" * 65, "a\x1b[31m"])
def test_what_is_no_name_of_a_token_is_refused(name: str) -> None:
    with pytest.raises(IdentityError):
        make_token("ada", name, 0, None, RANDOM)


@pytest.mark.parametrize("lifetime_ms", [0, -1, MOST_LIFETIME_MS + 1])
def test_a_lifetime_has_bounds(lifetime_ms: int) -> None:
    with pytest.raises(IdentityError):
        make_token("ada", "laptop", 0, lifetime_ms, RANDOM)


def test_a_token_has_all_its_random_bytes() -> None:
    with pytest.raises(ValueError, match="random bytes"):
        make_token("ada", "laptop", 0, None, RANDOM[:-1])


def test_there_is_an_end_to_users_and_tokens() -> None:
    users = {f"user:u{number}": User(f"u{number}", Role.USER).to_json() for number in range(MOST_USERS)}
    with pytest.raises(IdentityError, match="already"):
        Identities(users).add_user(ADA)
    assert len(Identities(users).add_user(User("u1", Role.ADMIN))) == 1
    entries, _, token = with_ada()
    for number in range(MOST_TOKENS - 1):
        other = replace(token, token_id=f"{number:016x}")
        entries[f"token:{other.token_id}"] = other.to_json()
    with pytest.raises(IdentityError, match="revoke some"):
        Identities(entries).add_token(replace(token, token_id="f" * 16))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"name": "ada", "role": "god"}',
        '{"name": "bob", "role": "admin"}',
        '{"name": 1, "role": 2}',
    ],
)
def test_an_entry_that_cannot_be_read_identifies_nobody_and_harms_no_other(text: str) -> None:
    entries, shown, token = with_ada()
    broken = Identities({**entries, "user:eve": text, "token:0": text, "other": text})
    assert sorted(broken.unreadable) == ["other", "token:0", "user:eve"]
    assert broken.authenticate(shown.encode(), 2000).name == "ada"
    taken = replace(token, token_id="e" * 16).to_json()
    assert Identities({"token:0000000000000000": taken}).unreadable == ("token:0000000000000000",)


def test_a_user_with_a_role_of_a_later_release_identifies_nobody_and_is_kept() -> None:
    """After a downgrade, a release meets a role that it does not know."""
    entries, _, _ = with_ada()
    text, token = make_token("eve", "scraper", 2000, None, bytes(reversed(RANDOM)))
    entries |= {"user:eve": '{"name": "eve", "role": "of a later release"}', f"token:{token.token_id}": token.to_json()}
    known = Identities(entries)
    assert known.unreadable == ("user:eve",)
    assert [user.name for user in known.users] == ["ada"]
    with pytest.raises(TokenRefusedError, match="this release cannot read the user of the token"):
        known.authenticate(text.encode(), 2000)
    assert not known.confirm(Principal("eve", Role.ADMIN, token.token_id), 2000)
    after = applied(entries, known.add_user(User("bob", Role.USER)))
    after = applied(after, Identities(after).remove_user("ada"))
    assert {field: after[field] for field in ("user:eve", f"token:{token.token_id}")} == {
        "user:eve": entries["user:eve"],
        f"token:{token.token_id}": token.to_json(),
    }
    assert applied(after, Identities(after).remove_user("eve")).keys() == {"user:bob"}
    again = applied(after, Identities(after).add_user(User("eve", Role.VIEWER)))
    assert Identities(again).authenticate(text.encode(), 2000).role is Role.VIEWER


def test_a_field_of_a_later_release_is_ignored() -> None:
    _, _, token = with_ada()
    later = json.dumps({**json.loads(token.to_json()), "groups": ["a"]})
    assert ApiToken.from_json(later) == token
    assert User.from_json(json.dumps({**json.loads(ADA.to_json()), "email": "x"})) == ADA


@given(st.binary(min_size=RANDOM_SIZE, max_size=RANDOM_SIZE), st.binary(min_size=RANDOM_SIZE, max_size=RANDOM_SIZE))
def test_a_token_identifies_only_by_its_own_random_bytes(mine: bytes, other: bytes) -> None:
    entries = applied({}, Identities({}).add_user(ADA))
    text, token = make_token("ada", "laptop", 0, None, mine)
    entries = applied(entries, Identities(entries).add_token(token))
    shown, _ = make_token("ada", "laptop", 0, None, other)
    if mine == other:
        assert Identities(entries).authenticate(shown.encode(), 0).name == "ada"
    else:
        with pytest.raises(TokenRefusedError):
            Identities(entries).authenticate(shown.encode(), 0)
    assert Identities(entries).authenticate(text.encode(), 0).name == "ada"
