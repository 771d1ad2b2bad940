"""The table of roles: which role each action needs. Pure; the only place that decides it.

`ROUTES` has a rule for every route of the REST API, and `CALLS` one for every method of a component that clients call
by HTTP. `may` applies a rule. The web endpoint (`runtime.rest.authorization`) only looks up rule and owner. `COMMANDS`
and `PAGE` name the row that decides each command and each action of the web page, for docs/roles.md.

A rule names the lowest role that may do it with everything, and optionally a lower one that may do it with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.users.identities import Principal, Role


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of one action.

    Args:
        lowest: the lowest role that may do it with the objects of all users.
        own: the lowest role that may do it with an object of its own; None if owning it allows nothing.
    """

    lowest: Role
    own: Role | None = None


SCRAPE = Rule(Role.METRICS)
"""Reading all metrics at once, which a monitoring system does. It is all that the role `metrics` may do."""
ANYONE = Rule(Role.VIEWER)
"""Reading the state of cluster and jobs."""
SUBMIT = Rule(Role.USER)
OPERATE = Rule(Role.OPERATOR)
ADMINISTER = Rule(Role.ADMIN)
OWN = Rule(Role.OPERATOR, own=Role.USER)
"""Changing a job, and reading what it has printed or brought along."""
OWN_IDENTITY = Rule(Role.ADMIN, own=Role.VIEWER)
"""Listing and revoking tokens."""

HANDED_OUT = SUBMIT
"""Fetching a blob that was made for one reader, such as a log. Its key has 128 random bits, and a caller gets it only
by a call whose rule allows to read the content. So the key itself is the permission."""

_JOB = "/jobs/{jobid}"
_VERTEX = _JOB + "/vertices/{vertexid}"
_SUBTASK = _VERTEX + "/subtasks/{subtaskindex}"
_CHECKPOINT = _JOB + "/checkpoints/details/{checkpointid}"
_APPLICATION = "/applications/{applicationid}"
_WORKER = "/taskmanagers/{taskmanagerid}"

_READ = (
    "/openapi.json",
    "/events",
    "/config",
    "/overview",
    "/whoami",
    "/processes",
    "/queues",
    "/figures",
    "/datasets",
    "/feature-level",
    "/actors",
    "/log-levels",
    "/jars",
    "/gateways",
    "/jobmanager/metrics",
    "/jobmanager/config",
    "/jobmanager/environment",
    "/taskmanagers",
    "/taskmanagers/metrics",
    _WORKER,
    _WORKER + "/metrics",
    "/jobs",
    "/jobs/overview",
    "/jobs/metrics",
    _JOB,
    _JOB + "/metrics",
    _JOB + "/queries",
    _JOB + "/spark",
    _JOB + "/plan",
    _JOB + "/config",
    _JOB + "/status",
    _JOB + "/exceptions",
    _JOB + "/execution-result",
    _JOB + "/accumulators",
    _JOB + "/jobmanager/config",
    _JOB + "/jobmanager/environment",
    _JOB + "/jobmanager/log-url",
    _JOB + "/taskmanagers/{taskmanagerid}/log-url",
    _JOB + "/logs",
    _JOB + "/checkpoints",
    _JOB + "/checkpoints/config",
    _JOB + "/checkpoints/{triggerid}",
    _JOB + "/savepoints/{triggerid}",
    _CHECKPOINT,
    _CHECKPOINT + "/subtasks/{vertexid}",
    _JOB + "/rescaling/{triggerid}",
    _JOB + "/rescales/config",
    _JOB + "/rescales/decisions",
    _JOB + "/rescales/history",
    _JOB + "/rescales/overview",
    _JOB + "/rescales/summary",
    _JOB + "/rescales/details/{rescaleuuid}",
    _JOB + "/rescales/{triggerid}",
    _JOB + "/resource-requirements",
    _VERTEX,
    _VERTEX + "/metrics",
    _VERTEX + "/subtasks/metrics",
    _SUBTASK + "/metrics",
    _VERTEX + "/jm-operator-metrics",
    _VERTEX + "/subtasktimes",
    _VERTEX + "/taskmanagers",
    _VERTEX + "/accumulators",
    _VERTEX + "/subtasks/accumulators",
    _VERTEX + "/backpressure",
    _VERTEX + "/watermarks",
    _SUBTASK,
    _SUBTASK + "/attempts/{attempt}",
    _SUBTASK + "/attempts/{attempt}/accumulators",
    "/applications/overview",
    _APPLICATION,
    _APPLICATION + "/exceptions",
    _APPLICATION + "/jobmanager/config",
)

_LOGS_OF_ALL = (
    "/jobmanager/thread-dump",
    "/jobmanager/logs",
    "/jobmanager/logs/{filename}",
    "/jobmanager/log",
    "/jobmanager/stdout",
    "/jobmanager/profiler",
    "/jobmanager/profiler/{filename}",
    _WORKER + "/logs",
    _WORKER + "/logs/{filename}",
    _WORKER + "/log",
    _WORKER + "/stdout",
    _WORKER + "/thread-dump",
    _WORKER + "/flamegraph",
    _WORKER + "/profiler",
    _WORKER + "/profiler/{filename}",
    "/savepoint-disposal/{triggerid}",
)
"""Paths of logs and stacks that hold what the jobs of all users have printed, or run."""

ROUTES: Mapping[str, Rule] = {
    **{f"GET {path}": ANYONE for path in _READ},
    **{f"GET {path}": OPERATE for path in _LOGS_OF_ALL},
    f"GET {_JOB}/logs/{{attemptid}}/{{log}}": OWN,
    f"GET {_VERTEX}/flamegraph": OWN,
    "GET /metrics/prometheus": SCRAPE,
    "GET /blobs/{key}": OWN,
    f"GET {_JOB}/yarn-cancel": OWN,
    f"GET {_JOB}/yarn-stop": OWN,
    f"PATCH {_JOB}": OWN,
    f"PATCH {_JOB}/rescaling": OWN,
    f"POST {_JOB}/savepoints": OWN,
    f"POST {_JOB}/stop": OWN,
    f"POST {_JOB}/checkpoints": OWN,
    f"POST {_JOB}/rollback": OWN,
    f"POST {_JOB}/rescales": OWN,
    f"PUT {_JOB}/resource-requirements": OWN,
    f"POST {_APPLICATION}/cancel": OWN,
    "POST /jobs": SUBMIT,
    "POST /jars/upload": SUBMIT,
    "POST /scripts": SUBMIT,
    "POST /graphs": SUBMIT,
    "POST /blobs": SUBMIT,
    "POST /gateways/{gateway}/{method}": ANYONE,  # the method has a rule of its own
    "DELETE /blobs/{key}": SUBMIT,  # only blobs that were made for one reader; see HANDED_OUT
    "POST /savepoint-disposal": OPERATE,
    "POST /jobmanager/profiler": OPERATE,
    f"POST {_WORKER}/profiler": OPERATE,
    "PATCH /log-levels": OPERATE,
    "GET /audit": ADMINISTER,  # who did what, from which address
    "DELETE /cluster": ADMINISTER,
}
"""Rules of the REST API, by method and path without ``/v1``."""

CALLS: Mapping[str, Rule] = {
    **{
        f"dispatcher/{method}": ANYONE
        for method in (
            "list_jobs",
            "request_multiple_job_details",
            "request_job",
            "request_job_status",
            "request_job_result",
            "request_operator_back_pressure_stats",
            "request_checkpoint_statistics",
            "get_triggered_savepoint_status",
            "request_rescale_status",
            "get_blob_server",
            "request_cluster_overview",
            "request_task_managers",
            "request_masters",
        )
    },
    **{
        f"dispatcher/{method}": OWN
        for method in (
            "cancel_job",
            "report_job_client_heartbeat",
            "detach_job",
            "trigger_checkpoint",
            "trigger_savepoint",
            "stop_with_savepoint",
            "roll_back",
            "trigger_rescale",
            "request_job_logs",
        )
    },
    "dispatcher/submit_job": SUBMIT,
    "dispatcher/admit_upload": SUBMIT,
    "dispatcher/end_upload": SUBMIT,
    "dispatcher/dispose_savepoint": OPERATE,
    "dispatcher/finalize_feature_level": ADMINISTER,
    "dispatcher/shut_down_cluster": ADMINISTER,
    "dispatcher/add_user": ADMINISTER,
    "dispatcher/remove_user": ADMINISTER,
    "dispatcher/list_users": ADMINISTER,
    "dispatcher/add_token": ADMINISTER,  # else a stolen token could make others that outlive it
    "dispatcher/revoke_token": OWN_IDENTITY,
    "dispatcher/list_tokens": OWN_IDENTITY,
    "resourcemanager/request_resource_overview": ANYONE,
    "resourcemanager/request_task_manager_info": ANYONE,
    "resourcemanager/request_task_managers": ANYONE,
    "resourcemanager/request_queues": ANYONE,
    "master/request_status": ANYONE,
    "master/shut_down_cluster": ADMINISTER,
    "taskexecutor/read_task_log": OWN,
    "taskexecutor/request_task_pool": ANYONE,
    "taskexecutor/request_log_list": OPERATE,
    "taskexecutor/request_file_upload": OPERATE,
    "taskexecutor/read_log": OPERATE,
    "taskexecutor/request_thread_dump": OPERATE,
    "taskexecutor/request_profile": OPERATE,
    "diagnostics/request_actors": ANYONE,
    "diagnostics/request_log_levels": ANYONE,
    "diagnostics/set_log_level": OPERATE,
}
"""Rules of the methods of components, by component and method. A call that `OWN` rules has the job's id first;
one that `OWN_IDENTITY` rules has the user's name or the token's id."""


SPARK_CONNECT = SUBMIT
"""Rule of Spark Connect sessions (`runtime.rest.connect`). A session is a job of the token's user, and no token reaches
the session of another user."""

SPARK_HISTORY = OPERATE
"""Rule of Spark's own pages (`runtime.rest.spark_history`). They show plans, SQL and settings of the jobs of all users,
so they need the role that logs of all users need."""

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("start", "start-master", "doctor", "demo", "completion", "history", "history-server"),
            *("login", "logout", "cluster upgrade", "queue check", "job check", "job explain"),
            *(f"savepoint {each}" for each in ("list", "info", "verify", "dispose", "rescale", "check", "copy")),
            *(f"savepoint {each}" for each in ("convert", "edit", "name-sources", "set-offsets", "state")),
        ),
        "",
    ),
    "status": "dispatcher/request_cluster_overview",
    "stop": "dispatcher/shut_down_cluster",
    "log-level": "diagnostics/request_log_levels",
    "log-level LEVEL": "diagnostics/set_log_level",
    "whoami": "GET /whoami",
    "cluster finalize": "dispatcher/finalize_feature_level",
    "job run": "dispatcher/submit_job",
    "job list": "dispatcher/list_jobs",
    "job info": "dispatcher/request_job",
    "job exceptions": "dispatcher/request_job",
    "job logs": "dispatcher/request_job_logs",
    "job cancel": "dispatcher/cancel_job",
    "job checkpoint": "dispatcher/trigger_checkpoint",
    "job savepoint": "dispatcher/trigger_savepoint",
    "job stop": "dispatcher/stop_with_savepoint",
    "job rollback": "dispatcher/roll_back",
    "job rescale": "dispatcher/trigger_rescale",
    "job autoscale": "dispatcher/trigger_rescale",
    "job upgrade": "dispatcher/stop_with_savepoint",
    "queue list": "resourcemanager/request_queues",
    "user add": "dispatcher/add_user",
    "user list": "dispatcher/list_users",
    "user remove": "dispatcher/remove_user",
    "token add": "dispatcher/add_token",
    "token list": "dispatcher/list_tokens",
    "token revoke": "dispatcher/revoke_token",
}
"""The row that decides a command with a user's token, by its words; empty if it needs no role, because it only works
on files, or as a user of the cluster's machine. On that machine the other commands use the cluster's secret, and so
are an admin's."""

PAGE: Mapping[str, str] = {
    "Cancel": f"PATCH {_JOB}",
    "Checkpoint": f"POST {_JOB}/checkpoints",
    "Savepoint": f"POST {_JOB}/savepoints",
    "Stop with a savepoint": f"POST {_JOB}/stop",
    "Rescale": f"POST {_JOB}/rescales",
    "Roll back": f"POST {_JOB}/rollback",
    "Submit a script": "POST /scripts",
    "Set log levels": "PATCH /log-levels",
    "Logs of a job": f"GET {_JOB}/logs/{{attemptid}}/{{log}}",
    "Logs, stacks and profiles of processes": f"GET {_WORKER}/logs/{{filename}}",
    "Audit log": "GET /audit",
    "All other pages": "GET /overview",
}
"""The row that decides an action of the web page, which shows the same buttons to all roles."""


def may(principal: Principal, rule: Rule, owner: str | None = None) -> bool:
    """Return whether a principal may do something.

    Args:
        principal: the identity.
        rule: of the action.
        owner: name of the user who owns the object; None if it has none, or none is known.
    """
    if principal.role.includes(rule.lowest):
        return True
    return depends_on_owner(principal, rule) and bool(principal.name) and owner == principal.name


def depends_on_owner(principal: Principal, rule: Rule) -> bool:
    """Return whether `may` needs the owner: the role alone neither allows nor forbids the action."""
    own = rule.own
    return not principal.role.includes(rule.lowest) and own is not None and principal.role.includes(own)


def refusal(principal: Principal, rule: Rule, what: str, owner: str | None = None) -> str:
    """Return why a principal may not do something, on one line: who, which role is needed, and who grants it."""
    needed = f"the role {rule.lowest.value}"
    if rule.own is not None:
        needed = f"the role {rule.own.value} for one's own, and {needed} for others'"
    whose = f" on what belongs to {owner}" if owner else ""
    remedy = f"an admin grants a role with `understudy user add {principal.name or 'NAME'} --role ROLE`"
    if principal.issuer:
        remedy = f"groups at {principal.issuer} grant roles (security.oidc.roles.*)"
    return f"{principal.shown} has the role {principal.role.value}; {what}{whose} needs {needed}; {remedy}"
