"""The commands ``understudy user`` and ``understudy token``.

They work by RPC, where the cluster's secret makes an admin of everyone, and by HTTP with an admin's token. A token is
made here, so that it travels to nobody: the cluster gets the digest of its secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from conf.configuration import Configuration
from conf.values import Duration
from runtime.cluster.command_line import configured, connected, examples, json_option
from runtime.cluster.output import format_moment, print_answer, print_document, print_line, print_table, say
from runtime.errors import ClusterError
from runtime.users.identities import Role

if TYPE_CHECKING:
    from actors.rpc.gateway import Ask
    from runtime.protocol.dispatcher import DispatcherGateway

T = TypeVar("T")

DEFAULT_LIFETIME = "90d"
FOR_EVER = "never"
_EXAMPLE_ID = "9f86d081884c7d65"


def _ask(configuration: Configuration, question: Callable[[DispatcherGateway], Ask[T]]) -> T:
    from runtime.protocol.dispatcher import DispatcherGateway
    from runtime.protocol.leader import DISPATCHER

    with connected(configuration) as client:
        return client.call(DISPATCHER, DispatcherGateway, lambda dispatcher: question(dispatcher).result())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _lifetime(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == FOR_EVER:
        return None
    try:
        return int(Duration("90 d", minimum=0.001).parse(value) * 1000)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a time such as 12h or 90d, nor {FOR_EVER}") from None


@click.group()
def user() -> None:
    """Add, list and remove the users of a cluster, who use it over HTTP with tokens of their own."""


@user.command(
    name="add",
    epilog=examples("understudy user add ada --role user", "understudy user add ada --role operator"),
)
@configured
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="metrics: reads metrics, for Prometheus. viewer: sees jobs. user: runs jobs and changes their own. "
    "operator: changes all jobs. admin: everything.",
)
@json_option
@click.argument("name")
def user_add(configuration: Configuration, name: str, role: str, as_json: bool) -> None:
    """Add the user NAME, or give the user of that name another role. Tokens take the new role at once."""
    from runtime.cluster.documents import ChangedIdentity
    from runtime.users.identities import User

    changed = _ask(configuration, lambda dispatcher: dispatcher.add_user(User(name, Role(role))))
    print_answer(ChangedIdentity(name, changed), f"user {name} has the role {role}", as_json)


@user.command(name="list", epilog=examples("understudy user list"))
@configured
@json_option
def user_list(configuration: Configuration, as_json: bool) -> None:
    """List the users with their roles."""
    from runtime.cluster.documents import UserLine

    users = _ask(configuration, lambda dispatcher: dispatcher.list_users())
    if as_json:
        print_document([UserLine.of(each) for each in users])
    elif users:
        rows = [(each.name, each.role.value, format_moment(each.created_ms)) for each in users]
        print_table(("NAME", "ROLE", "ADDED"), rows)
    else:
        print_line("no users")


@user.command(name="remove", epilog=examples("understudy user remove ada"))
@configured
@json_option
@click.argument("name")
def user_remove(configuration: Configuration, name: str, as_json: bool) -> None:
    """Remove the user NAME and all of their tokens. Their jobs stay as they are."""
    from runtime.cluster.documents import ChangedIdentity

    if not _ask(configuration, lambda dispatcher: dispatcher.remove_user(name)):
        raise ClusterError(f"there is no user {name!r}", "`understudy user list` shows the users")
    print_answer(ChangedIdentity(name, True), f"user {name} was removed", as_json)


@click.group()
def token() -> None:
    """Issue, list and revoke the API tokens of users."""


@token.command(
    name="add",
    epilog=examples(
        "understudy token add ada --name laptop",
        "understudy token add ada --name ci --expires 12h --json",
        "(umask 077; understudy token add ada --name laptop > token-of-ada)",
    ),
)
@configured
@click.option("--name", "label", metavar="TEXT", default="token", show_default=True, help="Where it is used.")
@click.option(
    "--expires",
    "lifetime_ms",
    metavar="TIME",
    callback=_lifetime,
    default=DEFAULT_LIFETIME,
    show_default=True,
    help="How long it is valid, such as 12h or 90d, or never.",
)
@json_option
@click.argument("user_name", metavar="USER")
def token_add(configuration: Configuration, user_name: str, label: str, lifetime_ms: int | None, as_json: bool) -> None:
    """Issue a token for USER and print it to standard output. It is shown only now: nothing keeps it."""
    import secrets

    from runtime.cluster.documents import IssuedToken
    from runtime.users.identities import RANDOM_SIZE, IdentityError, make_token

    try:
        text, record = make_token(user_name, label, _now_ms(), lifetime_ms, secrets.token_bytes(RANDOM_SIZE))
    except IdentityError as error:
        raise ClusterError(str(error), "`understudy token add --help` shows examples") from None
    _ask(configuration, lambda dispatcher: dispatcher.add_token(record))
    until = "without an end" if record.expires_ms is None else f"until {format_moment(record.expires_ms)}"
    say(f"token {record.token_id} of user {user_name} is valid {until}; it is not shown again")
    print_answer(IssuedToken(record.token_id, user_name, text, record.expires_ms), text, as_json)


@token.command(name="list", epilog=examples("understudy token list", "understudy token list --user ada"))
@configured
@click.option("--user", "user_name", metavar="NAME", default="", help="Only tokens of this user.")
@json_option
def token_list(configuration: Configuration, user_name: str, as_json: bool) -> None:
    """List tokens by their ids, without their secrets. Without --user, only an admin may list them."""
    from runtime.cluster.documents import TokenLine

    found = _ask(configuration, lambda dispatcher: dispatcher.list_tokens(user_name))
    now_ms = _now_ms()
    if as_json:
        print_document([TokenLine.of(each, now_ms) for each in found])
    elif found:
        rows = [
            (
                each.token_id,
                each.user,
                each.name,
                format_moment(each.created_ms),
                "never" if each.expires_ms is None else format_moment(each.expires_ms),
                "expired" if each.has_expired(now_ms) else "valid",
            )
            for each in found
        ]
        print_table(("ID", "USER", "NAME", "ISSUED", "EXPIRES", "STATE"), rows)
    else:
        print_line("no tokens")


@token.command(name="revoke", epilog=examples(f"understudy token revoke {_EXAMPLE_ID}"))
@configured
@json_option
@click.argument("token_id", metavar="ID")
def token_revoke(configuration: Configuration, token_id: str, as_json: bool) -> None:
    """Revoke the token with this ID. Web endpoints refuse it within a second."""
    from runtime.cluster.documents import ChangedIdentity

    if not _ask(configuration, lambda dispatcher: dispatcher.revoke_token(token_id)):
        raise ClusterError(f"there is no token {token_id[:40]!r}", "`understudy token list` shows the ids of tokens")
    print_answer(ChangedIdentity(token_id, True), f"token {token_id} was revoked", as_json)
