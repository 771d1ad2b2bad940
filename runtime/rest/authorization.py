"""Authorization of requests: who a token identifies, and whether that user may do what the request asks for.

This module only finds rule and owner; `runtime.users.roles` decides. Routes are checked by the application before their
handlers run (`Authorization.route`). Calls of gateways are checked once their arguments are decoded (`call`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from blob.errors import InvalidBlobKey
from blob.key import BlobKey, TransientBlobKey
from runtime.checkpoint.manifest import Savepoint
from runtime.ha.errors import HaError
from runtime.job_logs import logs_owner
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.rest.access import Refusal
from runtime.rest.auditing import audited_of
from runtime.rest.errors import RestError
from runtime.rest.snapshots import Snapshots
from runtime.users.audit import Flood
from runtime.users.identities import Identities, Principal, TokenRefusedError, looks_like_a_token
from runtime.users.oidc import IssuerAnswerError
from runtime.users.roles import CALLS, HANDED_OUT, OWN, ROUTES, Rule, depends_on_owner, may, refusal

if TYPE_CHECKING:
    from runtime.rest.context import Rest
    from runtime.rest.issuer import Issuer

logger = logging.getLogger(__name__)

MAX_AGE_S = 1.0
"""Seconds for which a change of users or tokens may not be seen by an endpoint."""
MIN_AGE_S = 0.1
"""Seconds after which an unknown token is looked for anew: it may have been issued since the last look."""

NOT_ACCEPTED = "this token of the issuer is not accepted; `understudy login` gets another, and rest.log says why"

_NO_STORE = "users cannot be identified at present, since their store does not answer; retry"

PRINCIPAL = "principal"
"""The key of a request's scope under which the application puts the `Principal`."""


class KnownIdentities:
    """Users and tokens of the cluster, from a recent look into the store.

    Args:
        read: reads the store; raises an exception if it does not answer.
        clock: returns monotonic seconds.
        now_ms: returns milliseconds since the epoch.
        issuer: identifies users by JWTs; None if no OpenID Connect provider is configured.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Identities]],
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        issuer: Issuer | None = None,
    ) -> None:
        self._read = read
        self._now_ms = now_ms
        self._issuer = issuer
        self._flood = Flood()
        self._recent = Snapshots(MAX_AGE_S, clock)
        self._new = Snapshots(MIN_AGE_S, clock)

    async def identify(self, shown: bytes) -> Principal | Refusal:
        """Return the user of a token, or why it is refused.

        Raises:
            HaError: the store does not answer, so the user is not known.
        """
        if self._issuer is not None and not looks_like_a_token(shown):
            return await self._identify_by(self._issuer, shown)
        try:
            return (await self.recent()).authenticate(shown, self._now_ms())
        except TokenRefusedError:
            pass
        try:
            found: Identities = await self._new.get("users", self._read)
            return found.authenticate(shown, self._now_ms())
        except TokenRefusedError as error:
            return Refusal(401, str(error))

    async def _identify_by(self, issuer: Issuer, shown: bytes) -> Principal | Refusal:
        """Identify by a token of the issuer. Only the logs say why it is refused, since anyone may show anything."""
        try:
            principal = await issuer.identify(shown, self._now_ms())
            if (await self.recent()).has_user(principal.name):
                raise TokenRefusedError(f"{principal.name} is the name of a user of the cluster itself")
        except TokenRefusedError as error:
            suppressed = self._flood.admit(self._now_ms())
            if suppressed is not None:
                logger.warning("a token of the issuer is refused: %s (%d more before it)", error, suppressed)
            return Refusal(401, NOT_ACCEPTED, str(error))
        except IssuerAnswerError as error:
            return Refusal(503, "tokens of the issuer cannot be checked at present; retry", str(error))
        return principal

    async def identify_or_refuse(self, shown: bytes) -> Principal | Refusal:
        """Return the same as `identify`, or a refusal of status 503 if the store does not answer."""
        try:
            return await self.identify(shown)
        except HaError as error:  # without the store nobody can be identified
            logger.warning("users cannot be identified: %s", error)
            return Refusal(503, _NO_STORE)

    async def confirm(self, principal: Principal) -> bool:
        """Return whether a principal is still who it was at the beginning of a long answer; False without the store."""
        return await self.confirm_or_refuse(principal) is None

    async def confirm_or_refuse(self, principal: Principal) -> Refusal | None:
        """Return None if a principal is still who it was at the head of its request; else the refusal of the rest.

        The status is 401, or 503 if the store does not answer.
        """
        if not principal.token_id:
            return None  # one of the cluster's own secrets
        try:
            known = await self.recent()
        except HaError as error:
            logger.warning("users cannot be identified: %s", error)
            return Refusal(503, _NO_STORE)
        if principal.expires_ms is not None:  # of the issuer
            holds = self._now_ms() < principal.expires_ms and not known.has_user(principal.name)
        else:
            holds = known.confirm(principal, self._now_ms())
        return None if holds else Refusal(401, "the token is not valid any more; log in again, or use another one")

    async def recent(self) -> Identities:
        """Return users and tokens as they were at most `MAX_AGE_S` ago. Raises as `identify`."""
        found: Identities = await self._recent.get("users", self._read)
        return found

    def forget(self) -> None:
        """Drop what is known, after a change through this endpoint."""
        self._recent.forget()
        self._new.forget()


async def nobody() -> Identities:
    """Return no users at all."""
    return Identities({})


def principal_of(request: Request) -> Principal:
    """Return the identity behind a request."""
    found: Principal = request.scope[PRINCIPAL]
    return found


def rule_of_route(method: str, path: str) -> Rule:
    """Return the rule of a route. Raises LookupError if the table has none, so that no such route is ever served."""
    rule = ROUTES.get(f"{method} {path}")
    if rule is None:
        raise LookupError(f"{method} {path} has no rule in runtime.users.roles")
    return rule


async def check_route(rest: Rest, request: Request, rule: Rule, summary: str) -> None:
    """Check whether the principal of a request may use a route.

    Args:
        rest: the context of the handlers.
        request: the request, with the parameters of its path.
        rule: of the route.
        summary: of the route, for the refusal.

    Raises:
        RestError: of status 403 if not, and 404 if that depends on the owner of a job that does not exist.
    """
    shown = request.path_params.get("jobid") or request.path_params.get("applicationid")
    if shown is None and "key" in request.path_params:
        shown = request.query_params.get("job")
        rule = HANDED_OUT if isinstance(_key_of(request), TransientBlobKey) else rule
    what = f"this request ({summary.partition(';')[0]})"
    await _demand(rest, principal_of(request), rule, what, _owner_of_job, shown)


def _key_of(request: Request) -> BlobKey | None:
    try:
        return BlobKey.parse(request.path_params["key"])
    except InvalidBlobKey:
        return None  # the handler refuses it


def check_role(request: Request, name: str, method: str) -> None:
    """Check whether the role of a principal allows a call of a method at all, at least with an object of its own.

    Raises:
        RestError: of status 403 if not.
    """
    principal, action = principal_of(request), f"{name}/{method}"
    rule = CALLS[action]
    if not may(principal, rule) and not depends_on_owner(principal, rule):
        raise RestError(403, refusal(principal, rule, f"the call {action}"))


async def check_call(rest: Rest, request: Request, name: str, method: str, arguments: Sequence[Any]) -> None:
    """Check whether the principal of a request may call a method of a component.

    Args:
        rest: the context of the handlers.
        request: the request.
        name: of the component.
        method: of the component.
        arguments: decoded; the first one names the object that is owned, if the rule depends on that.

    Raises:
        RestError: as `check_route`.
    """
    action = f"{name}/{method}"
    owner_of = _OWNERS.get(action, _owner_of_job)
    shown = str(arguments[0]) if arguments else None
    await _demand(rest, principal_of(request), CALLS[action], f"the call {action}", owner_of, shown)


async def check_job_id(rest: Rest, request: Request, job_id: str) -> None:
    """Check that the id of a job to be submitted is new, or that of a job that the principal may change.

    Raises:
        RestError: of status 403 if not.
    """
    principal = principal_of(request)
    if depends_on_owner(principal, OWN):
        owner = await _owner_of_job(rest, job_id)
        if owner is not None and not may(principal, OWN, owner):
            raise RestError(403, refusal(principal, OWN, f"using the id of job {job_id}", owner))


def check_savepoint(request: Request, savepoint: Savepoint) -> None:
    """Check that the principal of a request may start a job from a savepoint, which holds the data of its own job.

    Raises:
        RestError: of status 403 if not.
    """
    principal, owner = principal_of(request), savepoint.job.owner
    if not may(principal, OWN, owner):
        raise RestError(403, refusal(principal, OWN, f"starting from the savepoint {savepoint.path}", owner))


async def owned(rest: Rest, request: Request, graph: JobGraph) -> JobGraph:
    """Return a job graph with the user of a request as its owner, whatever owner it names.

    Raises:
        RestError: of status 403: its id is that of a job that the user may not change.
    """
    audited_of(request).target = graph.job_id
    await check_job_id(rest, request, graph.job_id)
    return replace(graph, owner=principal_of(request).name)


async def _demand(
    rest: Rest,
    principal: Principal,
    rule: Rule,
    what: str,
    owner_of: Callable[[Rest, str], Awaitable[str | None]],
    shown: str | None,
) -> None:
    owner = None
    if shown is not None and depends_on_owner(principal, rule):
        owner = await owner_of(rest, shown)
        if owner is None:
            raise RestError(404, f"there is no {shown[:80]!r}, or you may not know of it")
    if not may(principal, rule, owner):
        raise RestError(403, refusal(principal, rule, what, owner))


async def _owner_of_job(rest: Rest, shown: str) -> str | None:
    """Return the name of a job's owner, empty if it has none; None if there is no such job.

    A job that is not in a recent list may be new, so the cluster is asked. The owner of a job never changes.
    """
    jobs: tuple[JobDetails, ...] = await rest.snapshots.get("jobs", rest.backend.jobs)
    owner = _owner_in(jobs, shown)
    return _owner_in(await rest.backend.jobs(), shown) if owner is None else owner


def _owner_in(jobs: Sequence[JobDetails], shown: str) -> str | None:
    return next((job.owner for job in jobs if shown in (job.job_id, logs_owner(job.job_id))), None)


async def _owner_of_token(rest: Rest, token_id: str) -> str | None:
    return (await rest.identities.recent()).user_of_token(token_id) or None


async def _named(rest: Rest, user: str) -> str | None:
    return user


_OWNERS: Mapping[str, Callable[[Rest, str], Awaitable[str | None]]] = {
    "dispatcher/list_tokens": _named,
    "dispatcher/revoke_token": _owner_of_token,
}
"""How the owner of the first argument is found, for calls whose first argument is not a job."""
