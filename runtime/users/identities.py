"""Users, their roles and their API tokens. Pure: the time and random bytes are arguments.

A token is ``understudy_<id>_<secret>``. The id (16 hexadecimal digits) finds the token's record, and may be shown. The
secret has 256 random bits, so the record keeps only its SHA-256, and needs no slow hash. Records are stored as JSON in
one map (`runtime.ha.user_store`): ``user:<name>`` and ``token:<id>``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, TypeVar

TOKEN_PREFIX = "understudy_"  # noqa: S105
RANDOM_SIZE = 40
"""Random bytes of a token: 8 for its id and 32 for its secret."""
MOST_USERS = 1000
MOST_TOKENS = 100
"""How many tokens a user may have, those that have expired included."""
MOST_LIFETIME_MS = 10 * 365 * 24 * 3600 * 1000

_USER = "user:"
_TOKEN = "token:"  # noqa: S105
_NAME = re.compile(r"[a-z_][a-z0-9._@-]{0,63}")
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@ -]{0,63}")
_TOKEN_ID = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = re.compile(rb"understudy_([0-9a-f]{16})_([0-9a-f]{64})")
_NO_DIGEST = "0" * 64

R = TypeVar("R", bound="User | ApiToken")


class Role(Enum):
    """Role of a user; each includes those before it.

    A release that does not know a role cannot read the users who have it: it rejects their tokens.
    """

    METRICS = "metrics"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return whether this role may do all that *other* may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class IdentityError(ValueError):
    """A user or a token cannot be made, changed or removed as requested; the message says why, on one line."""


class TokenRefusedError(Exception):
    """A token proves no identity; the message says why, on one line, and holds nothing of the token's secret."""


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Args:
        name: chosen by an admin; jobs of a later user of the same name count as theirs.
        role: what the user may do.
        created_ms: when the user was added, in milliseconds since the epoch.
    """

    name: str
    role: Role
    created_ms: int = 0

    def to_json(self) -> str:
        """Return the text to store."""
        return json.dumps({**asdict(self), "role": self.role.value}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> User:
        """Return the user of such a text. Raises ValueError for other texts."""
        raw = _fields(text)
        try:
            return cls(_checked(_NAME, raw["name"]), Role(raw["role"]), int(raw.get("created_ms", 0)))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a user: {error!r}") from None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """The record of a token; it does not hold the secret.

    Args:
        token_id: part of the token itself.
        user: name of the user whom the token identifies.
        name: for people: where the token is used.
        digest: SHA-256 of the secret, in hexadecimal digits; empty in a listing.
        created_ms: when it was issued, in milliseconds since the epoch.
        expires_ms: when it ends to be valid; None for never.
    """

    token_id: str
    user: str
    name: str
    digest: str
    created_ms: int = 0
    expires_ms: int | None = None

    def to_json(self) -> str:
        """Return the text to store."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ApiToken:
        """Return the token of such a text. Raises ValueError for other texts."""
        raw = _fields(text)
        try:
            expires = raw.get("expires_ms")
            return cls(
                _checked(_TOKEN_ID, raw["token_id"]),
                _checked(_NAME, raw["user"]),
                _checked(_TOKEN_NAME, raw["name"]),
                _checked(_DIGEST, raw["digest"]),
                int(raw.get("created_ms", 0)),
                None if expires is None else int(expires),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a token: {error!r}") from None

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token is not valid any more."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


def _fields(text: str) -> dict[str, Any]:
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    return raw


def _checked(form: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or form.fullmatch(text) is None:
        raise ValueError(f"{str(text)[:80]!r} has the wrong form")
    return text


@dataclass(frozen=True, slots=True)
class Principal:
    """Identity behind a request.

    Args:
        name: of the user; empty for a holder of one of the cluster's own secrets.
        role: of the user.
        token_id: of the token that was shown; empty for one of the cluster's own secrets.
        issuer: URL of the OpenID Connect provider that has identified the user; empty for the cluster's own users.
        expires_ms: when the issuer's token ends to be valid, in milliseconds since the epoch; None without an issuer.
    """

    name: str
    role: Role
    token_id: str = ""
    issuer: str = ""
    expires_ms: int | None = None

    @property
    def shown(self) -> str:
        """Return the identity in words, for errors and logs."""
        if self.issuer:
            return f"user {self.name} of {self.issuer}"
        return f"user {self.name}" if self.name else "the holder of the cluster's own token"


CLUSTER = Principal("", Role.ADMIN)
"""The principal of requests with the cluster's secret or the endpoint's own token, which allow everything."""


def is_user_name(text: str) -> bool:
    """Return whether *text* has the form of a user's name."""
    return _NAME.fullmatch(text) is not None


def looks_like_a_token(shown: bytes) -> bool:
    """Return whether *shown* has the form of a user's token."""
    return _SHOWN.fullmatch(shown) is not None


def make_token(user: str, name: str, created_ms: int, lifetime_ms: int | None, random: bytes) -> tuple[str, ApiToken]:
    """Make a token: return the text for its user, and the record for the cluster.

    Args:
        user: whom it identifies.
        name: where it is used.
        created_ms: now, in milliseconds since the epoch.
        lifetime_ms: how long it is valid; None for ever.
        random: `RANDOM_SIZE` bytes of a cryptographic source.

    Raises:
        IdentityError: a name has the wrong form, or the lifetime is out of bounds.
    """
    if len(random) != RANDOM_SIZE:
        raise ValueError(f"a token needs {RANDOM_SIZE} random bytes")
    if lifetime_ms is not None and not 0 < lifetime_ms <= MOST_LIFETIME_MS:
        raise IdentityError("a token is valid for more than 0 s and at most 10 years, or without an end")
    token_id, secret = random[:8].hex(), random[8:].hex()
    expires_ms = None if lifetime_ms is None else created_ms + lifetime_ms
    record = ApiToken(token_id, user, name, _digest(secret.encode()), created_ms, expires_ms)
    _check_token(record)
    return f"{TOKEN_PREFIX}{token_id}_{secret}", record


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def _check_user(user: User) -> None:
    if _NAME.fullmatch(user.name) is None:
        raise IdentityError(
            f"{user.name[:80]!r} is not a valid user name: "
            "give a lower-case letter, then at most 63 letters, digits and ._@-"
        )


def _check_token(token: ApiToken) -> None:
    _check_user(User(token.user, Role.VIEWER))
    if _TOKEN_NAME.fullmatch(token.name) is None:
        raise IdentityError(
            f"{token.name[:80]!r} is not a valid name of a token: at most 64 letters, digits, blanks and ._@-"
        )
    if _TOKEN_ID.fullmatch(token.token_id) is None or _DIGEST.fullmatch(token.digest) is None:
        raise IdentityError("a token has an id of 16 and a digest of 64 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one field of the map.

    Args:
        field: in the map.
        before: the text that it has now; None if it is absent.
        after: the text that it gets; None to remove it.
    """

    field: str
    before: str | None
    after: str | None


class Identities:
    """All users and tokens of a cluster, as the map has them. Never changes: its methods return changes of the map.

    Args:
        entries: the map.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = dict(entries)
        self._users = dict[str, User]()
        self._tokens = dict[str, ApiToken]()
        unreadable = []
        for field, text in entries.items():
            try:
                if field.startswith(_USER):
                    user = User.from_json(text)
                    self._users[_same(user.name, field.removeprefix(_USER))] = user
                elif field.startswith(_TOKEN):
                    token = ApiToken.from_json(text)
                    self._tokens[_same(token.token_id, field.removeprefix(_TOKEN))] = token
                else:
                    unreadable.append(field)
            except ValueError:
                unreadable.append(field)
        self.unreadable = tuple(unreadable)
        """Fields that this release cannot read. Their tokens are rejected."""

    @property
    def users(self) -> list[User]:
        """Return the users by name."""
        return sorted(self._users.values(), key=lambda user: user.name)

    @property
    def tokens(self) -> list[ApiToken]:
        """Return the tokens by user and age, without digests."""
        found = sorted(self._tokens.values(), key=lambda token: (token.user, token.created_ms, token.token_id))
        return [replace(token, digest="") for token in found]

    def authenticate(self, shown: bytes, now_ms: int) -> Principal:
        """Return whom a token identifies.

        The digests are compared in constant time. An id without a record is compared too, with a digest that no
        secret has.

        Raises:
            TokenRefusedError: it belongs to no user, or is not valid any more.
        """
        parts = _SHOWN.fullmatch(shown)
        if parts is None:
            raise TokenRefusedError("this is not a token of a user")
        token = self._tokens.get(parts[1].decode())
        digest = _NO_DIGEST if token is None else token.digest
        if not hmac.compare_digest(_digest(parts[2]), digest) or token is None:
            raise TokenRefusedError("this token is unknown here, or was revoked; an admin can issue another")
        return self._principal(token, now_ms)

    def _principal(self, token: ApiToken, now_ms: int) -> Principal:
        if token.has_expired(now_ms):
            raise TokenRefusedError(f"the token {token.token_id} has expired; an admin can issue another")
        user = self._users.get(token.user)
        if user is None and _USER + token.user in self._entries:
            raise TokenRefusedError(f"this release cannot read the user of the token {token.token_id}")
        if user is None:
            raise TokenRefusedError(f"the user of the token {token.token_id} was removed")
        return Principal(user.name, user.role, token.token_id)

    def confirm(self, principal: Principal, now_ms: int) -> bool:
        """Return whether the token that has identified a principal still identifies it, with the same role."""
        token = self._tokens.get(principal.token_id)
        try:
            return token is not None and self._principal(token, now_ms) == principal
        except TokenRefusedError:
            return False

    def has_user(self, name: str) -> bool:
        """Return whether there is a user of that name, also one that this release cannot read."""
        return _USER + name in self._entries

    # ------------------------------------------------------------------ changes

    def add_user(self, user: User) -> list[Change]:
        """Add a user, or change the role of the one that has this name.

        Raises:
            IdentityError: the name has the wrong form, or there are too many users.
        """
        _check_user(user)
        found = self._users.get(user.name)
        if found is None and len(self._users) >= MOST_USERS:
            raise IdentityError(f"there are {MOST_USERS} users already")
        if found is not None:
            user = replace(user, created_ms=found.created_ms)
        return self._set(_USER + user.name, user.to_json())

    def remove_user(self, name: str) -> list[Change]:
        """Remove a user after all of their tokens, so that no token is left for a later user of the same name."""
        fields = [_TOKEN + token.token_id for token in self._tokens.values() if token.user == name]
        return [
            Change(field, self._entries[field], None) for field in (*fields, _USER + name) if field in self._entries
        ]

    def add_token(self, token: ApiToken) -> list[Change]:
        """Add a token; the same token again changes nothing.

        Raises:
            IdentityError: there is no such user, the id is another token's, or the user has too many tokens.
        """
        _check_token(token)
        found = self._tokens.get(token.token_id)
        if found == token:
            return []
        if found is not None or _TOKEN + token.token_id in self._entries:
            raise IdentityError(f"there is another token {token.token_id}")
        if token.user not in self._users:
            raise IdentityError(
                f"there is no user {token.user}; `understudy user add {token.user} --role user` adds one"
            )
        if sum(each.user == token.user for each in self._tokens.values()) >= MOST_TOKENS:
            raise IdentityError(f"user {token.user} has {MOST_TOKENS} tokens; revoke some of them")
        return self._set(_TOKEN + token.token_id, token.to_json())

    def revoke_token(self, token_id: str) -> list[Change]:
        """Remove a token, if there is one."""
        field = _TOKEN + token_id
        return [Change(field, self._entries[field], None)] if field in self._entries else []

    def user_of_token(self, token_id: str) -> str:
        """Return the name of the user of a token; empty if there is no such token."""
        token = self._tokens.get(token_id)
        return "" if token is None else token.user

    def _set(self, field: str, text: str) -> list[Change]:
        before = self._entries.get(field)
        return [] if before == text else [Change(field, before, text)]


def _same(name: str, expected: str) -> str:
    if name != expected:
        raise ValueError("the entry is another's")
    return name
