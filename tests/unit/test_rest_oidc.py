"""The web endpoint with an OpenID Connect provider: whom its tokens identify, and how often its keys are fetched."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from runtime.errors import PreflightError
from runtime.ha.errors import HaUnreachableError
from runtime.rest import issuer
from runtime.rest.access import AccessPolicy, Refusal, Shown
from runtime.rest.authorization import NOT_ACCEPTED, KnownIdentities
from runtime.rest.handlers import events
from runtime.rest.issuer import Issuer, client_secret_of, confidential_device_of, offer_of, rules_of
from runtime.rest.page_login import PageLogin
from runtime.users.audit import REFUSALS_PER_MINUTE, AuditLog
from runtime.users.identities import CLUSTER, RANDOM_SIZE, Identities, Principal, Role, User, make_token
from runtime.users.oidc import FETCH_EVERY_S, MOST_AGE_S, REFRESH_S, IssuerAnswerError, VerificationKey, keys_of
from tests.fakes.oidc_provider import Provider, SigningKey
from tests.unit.test_rest_app import TOKEN, Answer, MadeUpCluster, Site
from tests.unit.test_rest_messages import ID
from tests.unit.test_rest_roles import applied, form
from tests.waiting import PATIENCE_S

URL = "https://id.example.org"
KEY = SigningKey("first")
NEXT = SigningKey("second", "ES256")
SETTINGS = {
    "security.oidc.issuer": URL,
    "security.oidc.client-id": "understudy",
    "security.oidc.roles.viewer": "staff",
    "security.oidc.roles.user": "data-engineers",
    "security.oidc.roles.admin": "platform",
}


class IssuedSite(Site):
    """A site with an issuer, whose keys are fetched from memory."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.provider = Provider(URL, KEY)
        self.fetches = 0
        self.began = asyncio.Event()
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.entries: dict[str, str] = {}
        self.store_failure: Exception | None = None
        self.clock = 0.0
        self.later_ms = 0
        configuration = Configuration.from_dict({**SETTINGS, **(settings or {})})
        rules, offer = rules_of(configuration), offer_of(configuration)
        assert rules is not None
        assert offer is not None
        self.issuer = Issuer(rules, self._fetch, lambda: self.clock)
        self.identities = KnownIdentities(self._read, lambda: self.clock, self.now_ms, self.issuer)
        self.audit_file = directory / "audit.jsonl"

        def page_login(policy: AccessPolicy) -> PageLogin:
            secret, clock = client_secret_of(configuration), lambda: self.clock
            device = confidential_device_of(configuration)
            return PageLogin(
                offer, self.issuer, self.identities, policy, self._ask_issuer, secret, clock, self.now_ms, device
            )

        audit = AuditLog(self.audit_file)
        super().__init__(directory, identities=self.identities, audit=audit, offer=offer, page_login=page_login)

    async def _ask_issuer(
        self, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        return self.provider.answer(url.removeprefix(URL), dict(form or {}), headers.get("Authorization", ""))

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.later_ms

    async def _fetch(self) -> Sequence[VerificationKey]:
        self.fetches += 1
        self.began.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return keys_of({"keys": self.provider.published})

    async def _read(self) -> Identities:
        if self.store_failure is not None:
            raise self.store_failure
        return Identities(self.entries)

    async def get(self, token: str, path: str = "/v1/whoami") -> Answer:
        return await self.ask("GET", path, token=token.encode())

    def add(self, name: str, role: Role) -> bytes:
        """Add a user of the cluster's own; return a token of theirs."""
        applied(self.entries, Identities(self.entries).add_user(User(name, role)))
        text, token = make_token(name, "laptop", 0, None, b"7" * RANDOM_SIZE)
        applied(self.entries, Identities(self.entries).add_token(token))
        return text.encode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> IssuedSite:
    return IssuedSite(tmp_path)


async def test_a_token_of_the_issuer_identifies_its_user(site: IssuedSite) -> None:
    answer = await site.get(site.provider.token(jti="0a1b2c3d4e"))
    said = json.loads(answer.body)
    assert answer.status == 200
    assert 3_000_000 < said.pop("expires") - site.now_ms() < 3_700_000
    assert said == {"user": "ada", "role": "user", "token": "oidc:0a1b2c3d4e", "issuer": URL}
    own = json.loads((await site.ask("GET", "/v1/whoami")).body)
    assert own == {"user": "", "role": "admin", "token": "", "issuer": "", "expires": None}


async def test_its_role_allows_what_the_table_says(site: IssuedSite) -> None:
    staff = site.provider.token(groups=["staff"])
    assert (await site.get(staff, "/v1/jobs")).status == 200
    body, media = form(("script", "a.py", b"1"))
    refused = await site.ask("POST", "/v1/scripts", body, media, token=staff.encode())
    assert refused.status == 403
    assert f"user ada of {URL} has the role viewer" in refused.body.decode()
    assert f"groups at {URL} grant roles" in refused.body.decode()
    assert not site.cluster.submitted


async def test_jobs_belong_to_the_user_and_the_audit_log_names_them(site: IssuedSite) -> None:
    body, media = form(("script", "a.py", b"1"))
    token = site.provider.token(jti="0a1b2c3d4e").encode()
    assert (await site.ask("POST", "/v1/scripts", body, media, token=token)).status == 202
    assert [graph.owner for graph, *_ in site.cluster.submitted] == ["ada"]
    refused = await site.ask("PATCH", f"/v1/jobs/{ID}", token=token)
    assert refused.status == 403
    assert [(line["user"], line["role"], line["token"], line["outcome"]) for line in site.lines] == [
        ("ada", "user", "oidc:0a1b2c3d4e", "done"),
        ("ada", "user", "oidc:0a1b2c3d4e", "refused"),
    ]


async def test_strangers_are_not_told_why_and_the_logs_are(site: IssuedSite, caplog: pytest.LogCaptureFixture) -> None:
    for token, reason in (
        (site.provider.token(iss="https://evil.example"), "its issuer is"),
        (site.provider.token(aud="other"), "it is for 'other'"),
        (site.provider.token(exp=1), "has expired"),
        (site.provider.token(groups=["left"]), "is in no group"),
        (SigningKey("first").sign(site.provider.claims()), "signature is wrong"),
    ):
        answer = await site.ask("DELETE", "/v1/cluster", token=token.encode())
        assert (answer.status, json.loads(answer.body)) == (401, {"errors": [NOT_ACCEPTED]})
        assert reason in caplog.text
        assert reason in site.lines[-1]["reason"]
        assert site.lines[-1]["user"] == ""
        assert token not in caplog.text + site.audit_file.read_text()


async def test_strangers_do_not_fill_the_endpoints_log(site: IssuedSite, caplog: pytest.LogCaptureFixture) -> None:
    site.identities._now_ms = lambda: 60_000  # type: ignore[method-assign]
    for _ in range(REFUSALS_PER_MINUTE * 3):
        assert (await site.get(site.provider.token(aud="other"))).status == 401
    assert caplog.text.count("a token of the issuer is refused") == REFUSALS_PER_MINUTE


async def test_a_token_in_the_name_of_a_user_of_the_cluster_is_refused(
    site: IssuedSite, caplog: pytest.LogCaptureFixture
) -> None:
    """Their jobs are not mixed up: the name is the local user's as long as there is one."""
    token = site.provider.token(groups=["platform"])
    principal = await site.identities.identify(token.encode())
    assert isinstance(principal, Principal)
    assert await site.identities.confirm(principal)
    own = site.add("ada", Role.VIEWER)
    site.clock += 2
    assert (await site.get(token)).status == 401
    assert "ada is the name of a user of the cluster itself" in caplog.text
    assert not await site.identities.confirm(principal)
    said = json.loads((await site.ask("GET", "/v1/whoami", token=own)).body)
    assert (said["user"], said["role"], said["issuer"]) == ("ada", "viewer", "")
    site.entries["user:ada"] = "of a later release"
    site.clock += 2
    assert (await site.get(token)).status == 401


async def test_without_the_store_of_users_nobody_is_identified(site: IssuedSite) -> None:
    site.store_failure = HaUnreachableError("Redis is gone", "gone")
    assert (await site.get(site.provider.token())).status == 503
    assert (await site.ask("GET", "/v1/whoami")).status == 200, "the endpoint's own token"


async def test_a_stream_of_events_ends_with_its_token(site: IssuedSite) -> None:
    principal = await site.identities.identify(site.provider.token().encode())
    assert isinstance(principal, Principal)
    rest = replace(site.app._rest, configuration=Configuration.from_dict({"web.refresh-interval": "1 ms"}))
    stream = events.stream(rest, principal)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(stream)
        site.later_ms = 3_700_000
        further = [await anext(stream, None) for _ in range(2)]
    assert further[-1] is None


# ------------------------------------------------------------------------ keys


async def test_keys_are_fetched_once_for_many_tokens(site: IssuedSite) -> None:
    tokens = [site.provider.token(jti=f"jti-{number:05}") for number in range(20)]
    answers = await asyncio.gather(*(site.get(token) for token in tokens))
    assert {answer.status for answer in answers} == {200}
    assert site.fetches == 1


async def test_unknown_keys_have_the_issuer_asked_at_a_bounded_rate(site: IssuedSite) -> None:
    good = site.provider.token()
    assert (await site.get(good)).status == 200
    for number in range(300):
        stranger = site.provider.key.sign(site.provider.claims(), kid=f"kid-{number}")
        assert (await site.get(stranger)).status == 401
        assert (await site.get(good)).status == 200
        site.clock += 1
    assert site.fetches == 300 / FETCH_EVERY_S


async def test_a_new_key_is_accepted_and_a_withdrawn_one_is_not(site: IssuedSite) -> None:
    old = site.provider.token()
    assert (await site.get(old)).status == 200
    site.provider.rotate(NEXT)
    site.clock += FETCH_EVERY_S
    assert (await site.get(site.provider.token())).status == 200, "an unknown key has the keys fetched"
    assert (await site.get(old)).status == 401


async def test_a_withdrawn_key_ends_to_count_although_no_other_is_shown(site: IssuedSite) -> None:
    old = site.provider.token()
    assert (await site.get(old)).status == 200
    site.provider.rotate(NEXT)
    site.clock = REFRESH_S - 1
    assert (await site.get(old)).status == 200
    site.clock = REFRESH_S
    assert (await site.get(old)).status == 401


async def test_keys_are_kept_while_the_issuer_is_away(site: IssuedSite, caplog: pytest.LogCaptureFixture) -> None:
    token = site.provider.token()
    assert (await site.get(token)).status == 200
    site.failure = IssuerAnswerError("id.example.org does not answer")
    site.clock = MOST_AGE_S - 1
    assert (await site.get(token)).status == 200
    assert f"the keys of {URL} could not be fetched: id.example.org does not answer" in caplog.text
    site.clock = MOST_AGE_S
    gone = await site.get(token)
    assert (gone.status, "retry" in gone.body.decode()) == (503, True)
    site.failure, site.clock = None, MOST_AGE_S + FETCH_EVERY_S
    assert (await site.get(token)).status == 200


async def test_an_unexpected_error_of_a_fetch_is_logged(site: IssuedSite, caplog: pytest.LogCaptureFixture) -> None:
    site.failure = RuntimeError("a defect")
    assert (await site.get(site.provider.token())).status == 503
    assert "RuntimeError: a defect" in caplog.text


async def test_newer_keys_are_not_waited_for_without_end(site: IssuedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.provider.token()
    assert (await site.get(token)).status == 200
    monkeypatch.setattr(issuer, "PATIENCE_S", 0.001)
    site.gate, site.clock = asyncio.Event(), REFRESH_S
    site.provider.rotate(NEXT)
    async with asyncio.timeout(PATIENCE_S):
        assert (await site.get(token)).status == 200, "by the keys that are known"
        assert (site.fetches, site.gate.is_set()) == (2, False)
        site.gate.set()
        assert (await site.get(site.provider.token())).status == 200
    assert (await site.get(token)).status == 401


async def test_an_issuer_that_hangs_delays_nobody_whose_key_is_known(site: IssuedSite) -> None:
    token = site.provider.token()
    assert (await site.get(token)).status == 200
    site.gate, site.clock = asyncio.Event(), FETCH_EVERY_S
    site.began.clear()
    stranger = asyncio.ensure_future(site.get(site.provider.key.sign(site.provider.claims(), kid="unknown")))
    async with asyncio.timeout(PATIENCE_S):
        await site.began.wait()
        assert (await site.get(token)).status == 200
    assert not stranger.done()
    site.gate.set()
    assert (await stranger).status == 401


# ------------------------------------------------------------------------ who is asked for what


async def test_only_public_values_are_told_without_a_token(site: IssuedSite, tmp_path: Path) -> None:
    for path in ("/login", "/v1/login"):
        answer = await site.ask("GET", path, token=b"")
        assert answer.status == 200
        assert json.loads(answer.body) == {
            "issuer": URL,
            "client-id": "understudy",
            "token": "id_token",
            "scopes": ["openid", "profile", "email"],
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
    for method, path in (("POST", "/v1/login"), ("GET", "/v1/login/"), ("GET", "/v1/whoami"), ("GET", "/v1/config")):
        assert (await site.ask(method, path, token=b"")).status == 401
    plain = Site(tmp_path)
    assert (await plain.ask("GET", "/v1/login", token=b"")).status == 401


def test_a_jwt_is_nothing_without_an_issuer() -> None:
    token = Provider(URL, KEY).token().encode()
    shown = [(b"host", b"localhost"), (b"authorization", b"Bearer " + token)]
    without, having = (AccessPolicy(TOKEN, [], "http", 100, has_issuer=has) for has in (False, True))
    assert isinstance(without.check("GET", "/", shown), Refusal)
    assert having.check("GET", "/", shown) == Shown(token)
    assert AccessPolicy(token, [], "http", 100, has_issuer=True).check("GET", "/", shown) == CLUSTER
    assert isinstance(having.check("GET", "/", [*shown, shown[1]]), Refusal), "two tokens"


async def test_a_jwt_is_nothing_to_an_endpoint_without_an_issuer(tmp_path: Path) -> None:
    plain = Site(tmp_path)
    assert isinstance(plain.cluster, MadeUpCluster)
    answer = await plain.ask("GET", "/v1/jobs", token=Provider(URL, KEY).token().encode())
    assert answer.status == 401


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"security.oidc.issuer": "http://id.example.org"}, "neither an https:// URL nor on loopback"),
        ({"security.oidc.issuer": "https://id.example.org?x=1"}, "neither an https:// URL"),
        ({"security.oidc.issuer": "https://me:secret@id.example.org"}, "neither an https:// URL"),
        ({"security.oidc.client-id": None}, "security.oidc.client-id is not"),
        (
            {f"security.oidc.roles.{role}": "" for role in ("viewer", "user", "admin")},
            "would have a role",
        ),
        ({"rest.authentication.enabled": "false"}, "so no user could log in"),
    ],
)
def test_options_that_are_not_safe_or_not_complete_are_refused_at_the_start(
    settings: dict[str, str | None], match: str
) -> None:
    merged = {key: value for key, value in {**SETTINGS, **settings}.items() if value is not None}
    with pytest.raises(PreflightError, match=match) as refusal:
        rules_of(Configuration.from_dict(merged))
    assert refusal.value.remedy
    assert "secret" not in str(refusal.value)


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PreflightError, match="PyJWT is not installed") as refusal:
        rules_of(Configuration.from_dict(SETTINGS))
    assert "understudy-spark[oidc]" in refusal.value.remedy


def test_the_options_make_the_rules() -> None:
    assert rules_of(Configuration.from_dict({})) is None
    assert offer_of(Configuration.from_dict({})) is None
    twice = {"security.oidc.roles.metrics": "platform; scrapers", "security.oidc.roles.operator": "staff"}
    rules = rules_of(Configuration.from_dict({**SETTINGS, **twice}))
    assert rules is not None
    assert (rules.audience, rules.default_role) == ("understudy", None)
    assert rules.roles == {
        "scrapers": Role.METRICS,
        "staff": Role.OPERATOR,
        "data-engineers": Role.USER,
        "platform": Role.ADMIN,
    }
    other = {
        "security.oidc.audience": "api",
        "security.oidc.default-role": "viewer",
        "security.oidc.scopes": "openid; groups",
    }
    configuration = Configuration.from_dict({**SETTINGS, **other})
    rules, offer = rules_of(configuration), offer_of(configuration)
    assert rules is not None
    assert offer is not None
    assert (rules.audience, rules.default_role) == ("api", Role.VIEWER)
    assert (offer.wants_access_token, offer.scopes) == (True, ("openid", "groups"))
    local = rules_of(Configuration.from_dict({**SETTINGS, "security.oidc.issuer": "http://127.0.0.1:9000"}))
    assert local is not None
