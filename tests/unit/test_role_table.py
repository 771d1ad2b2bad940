"""The table of roles: it has a rule for each route and call, and no other; a rule allows exactly what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest

import runtime.rest
from runtime.cluster.cli import cli
from runtime.protocol.http_gateways import HTTP_GATEWAYS
from runtime.rest.handlers import ROUTES as SERVED
from runtime.rest.handlers import events
from runtime.users.identities import CLUSTER, Principal, Role
from runtime.users.roles import ANYONE, CALLS, COMMANDS, OWN, PAGE, ROUTES, Rule, depends_on_owner, may, refusal

RULES = [Rule(lowest, own) for lowest, own in product(Role, (None, *Role))]
RANK = {role: number for number, role in enumerate(("metrics", "viewer", "user", "operator", "admin"))}


def test_each_route_has_a_rule_and_each_rule_a_route() -> None:
    served = {f"{route.method} {route.path}" for route in (*SERVED, *events.ROUTES)}
    assert len(served) > 100
    assert served | {"GET /openapi.json"} == set(ROUTES)


def test_each_call_has_a_rule_and_each_rule_a_call() -> None:
    calls = {f"{name}/{method}" for name, gateway in HTTP_GATEWAYS.items() for method in gateway.methods}
    assert len(calls) > 30
    assert calls == set(CALLS)


def commands(command: click.Command = cli, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of all commands that a help shows."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, (*words, name))
    elif not command.hidden:
        yield " ".join(words)


def test_each_command_names_the_row_that_decides_it() -> None:
    given = [re.sub(r" [A-Z]+$", "", name) for name in COMMANDS]
    assert set(given) == set(commands())
    assert {row for row in COMMANDS.values() if row} <= set(ROUTES | CALLS)
    # A call that needs more than to look is some command's, or only a program's.
    of_programs = {"dispatcher/report_job_client_heartbeat", "dispatcher/detach_job", "dispatcher/dispose_savepoint"}
    of_programs |= {"master/shut_down_cluster"}  # with those of the Dispatcher
    of_programs |= {"dispatcher/admit_upload", "dispatcher/end_upload"}  # part of a submission
    of_programs |= {name for name in CALLS if name.startswith("taskexecutor/")}
    assert {name for name, rule in CALLS.items() if rule != ANYONE} - of_programs <= set(COMMANDS.values())


def test_each_action_of_the_page_names_the_row_that_decides_it() -> None:
    """All requests of the page but its log-in and the reading of JSON go through `request`."""
    files = (Path(runtime.rest.__file__).parent / "static" / "ui").rglob("*.js")
    found = set()
    for text in (file.read_text() for file in files):
        for path, options in re.findall(r"\brequest\(\s*[`\"]([^`\"]*)[`\"],\s*\{\s*(.{0,40})", text, re.DOTALL):
            if method := re.match(r'method: "(\w+)"', options):
                found.add(f"{method[1]} /{path.partition('?')[0].replace('${at(job.jid)}', '{jobid}')}")
        assert len(re.findall(r'method: "(?!GET)', text)) <= 2
    triggered = "POST /jobs/{jobid}/${path}"  # of checkpoints, savepoints, stops and rescales
    assert triggered in found
    changing = {row for row in PAGE.values() if not row.startswith("GET ")}
    assert found - {triggered} <= changing
    assert {row for row in changing - found if not row.startswith("POST /jobs/{jobid}/")} == set()
    assert set(PAGE.values()) <= set(ROUTES)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("role", Role)
def test_a_rule_allows_what_it_says(rule: Rule, role: Role) -> None:
    """The same decision, made of the ranks of the names."""
    principal = Principal("ada", role)
    by_role = RANK[role.value] >= RANK[rule.lowest.value]
    as_owner = rule.own is not None and RANK[role.value] >= RANK[rule.own.value]
    assert may(principal, rule, "ada") == (by_role or as_owner)
    for other in ("bob", "", None, "Ada"):
        assert may(principal, rule, other) == by_role
    assert depends_on_owner(principal, rule) == (as_owner and not by_role)


def test_nobody_owns_what_has_no_owner() -> None:
    """A job that was submitted with the cluster's own token has the owner '', which is nobody's name."""
    assert not may(Principal("", Role.USER), OWN, "")
    assert may(CLUSTER, OWN, "")


def test_the_role_metrics_may_do_nothing_but_read_them() -> None:
    prometheus = Principal("prometheus", Role.METRICS)
    for owner in ("prometheus", "ada", "", None):
        allowed = {name for name, rule in (ROUTES | CALLS).items() if may(prometheus, rule, owner)}
        assert allowed == {"GET /metrics/prometheus"}


def test_a_viewer_changes_nothing() -> None:
    """Spelled out beside the table, so that a slip in the table is seen."""
    viewer = Principal("eve", Role.VIEWER)
    allowed = {name for name, rule in (ROUTES | CALLS).items() if may(viewer, rule, "ada")}
    assert {name for name in allowed if not name.startswith(("GET ", "dispatcher/", "resourcemanager/"))} == {
        "POST /gateways/{gateway}/{method}",
        "master/request_status",
        "taskexecutor/request_task_pool",
        "diagnostics/request_actors",
        "diagnostics/request_log_levels",
    }
    changing = ("cancel", "stop", "submit", "dispose", "roll_back", "shut_down", "detach", "heartbeat", "trigger_")
    changing += ("finalize", "add_", "remove", "revoke", "set_", "upload", "PATCH", "DELETE")
    assert [name for name in allowed if any(word in name for word in changing)] == []
    assert [name for name in allowed if "log" in name and "log-url" not in name and "log_levels" not in name] == [
        name for name in allowed if name in ("GET /log-levels", "GET /jobs/{jobid}/logs")
    ]


def test_only_an_admin_ends_the_cluster_raises_its_level_and_manages_users() -> None:
    ending = ("DELETE /cluster", "dispatcher/shut_down_cluster", "master/shut_down_cluster")
    managing = ("add_user", "remove_user", "list_users", "add_token")
    for name in (*ending, "dispatcher/finalize_feature_level", *(f"dispatcher/{method}" for method in managing)):
        rule = (ROUTES | CALLS)[name]
        assert [role for role in Role if may(Principal("ada", role), rule, "ada")] == [Role.ADMIN]


def test_a_refusal_says_who_lacks_which_role_and_who_grants_it() -> None:
    said = refusal(Principal("ada", Role.USER), OWN, "cancelling this job", "bob")
    assert said == (
        "user ada has the role user; cancelling this job on what belongs to bob needs the role user for one's own, and "
        "the role operator for others'; an admin grants a role with `understudy user add ada --role ROLE`"
    )
    assert "needs the role viewer;" in refusal(Principal("ada", Role.USER), ANYONE, "this")
