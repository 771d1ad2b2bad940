"""Gateways that clients call by HTTP: their names in paths, and the methods that clients may call.

The web endpoint serves exactly these (`runtime.rest.handlers.gateways`), and `runtime.http_client` calls them. The
lists are explicit: clients cannot call a new method of a gateway until it is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from actors.own_modules import wire_name
from actors.process.diagnostics import DiagnosticsGateway
from actors.rpc.codec import decode_error, error_name
from actors.rpc.gateway import RpcGateway
from blob import errors as blob_errors
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway

MSGPACK = "application/vnd.msgpack"
"""Media type of a call's arguments and of its result."""
OCTETS = "application/octet-stream"
"""Media type of a blob."""
MOST_OF_A_CALL = 8 * 1024 * 1024
"""Largest number of bytes of a call's arguments. Files of jobs travel as blobs."""

MASTER = "master"
TASK_EXECUTOR = "taskexecutor"
DIAGNOSTICS = "diagnostics"


@dataclass(frozen=True, slots=True)
class HttpGateway:
    """A gateway that clients call by HTTP.

    Args:
        gateway_type: declares the methods; its type hints determine how arguments and results travel.
        methods: those that clients may call.
    """

    gateway_type: type[RpcGateway]
    methods: frozenset[str]


HTTP_GATEWAYS: Mapping[str, HttpGateway] = {
    DISPATCHER: HttpGateway(
        DispatcherGateway,
        frozenset(
            {
                "submit_job",
                "admit_upload",
                "end_upload",
                "list_jobs",
                "request_multiple_job_details",
                "request_job",
                "request_operator_back_pressure_stats",
                "request_job_status",
                "request_job_result",
                "cancel_job",
                "report_job_client_heartbeat",
                "detach_job",
                "trigger_checkpoint",
                "trigger_savepoint",
                "stop_with_savepoint",
                "roll_back",
                "trigger_rescale",
                "request_rescale_status",
                "get_triggered_savepoint_status",
                "dispose_savepoint",
                "request_checkpoint_statistics",
                "request_job_logs",
                "get_blob_server",
                "request_cluster_overview",
                "request_task_managers",
                "request_masters",
                "add_user",
                "remove_user",
                "list_users",
                "add_token",
                "revoke_token",
                "list_tokens",
                "finalize_feature_level",
                "shut_down_cluster",
            }
        ),
    ),
    RESOURCE_MANAGER: HttpGateway(
        ResourceManagerGateway,
        frozenset(
            {"request_resource_overview", "request_task_manager_info", "request_task_managers", "request_queues"}
        ),
    ),
    MASTER: HttpGateway(MasterGateway, frozenset({"request_status", "shut_down_cluster"})),
    TASK_EXECUTOR: HttpGateway(
        TaskExecutorGateway,
        frozenset(
            {
                "read_task_log",
                "request_log_list",
                "request_file_upload",
                "read_log",
                "request_thread_dump",
                "request_profile",
                "request_task_pool",
            }
        ),
    ),
    DIAGNOSTICS: HttpGateway(DiagnosticsGateway, frozenset({"request_log_levels", "set_log_level", "request_actors"})),
}
"""Gateways by their names in paths. Calls to the first two go to the leader. The others are named by their addresses;
a master may be the one whose web endpoint serves the call."""

_BLOB_ERRORS: Mapping[str, type[blob_errors.BlobError]] = {
    f"{wire_name(blob_errors.__name__)}.{error.__name__}": error
    for error in vars(blob_errors).values()
    if isinstance(error, type) and issubclass(error, blob_errors.BlobError)
}
"""Errors of the blob service by the names under which they travel by HTTP; none of them travels by RPC."""


def error_type(error: Exception) -> str | None:
    """Return the name from which `error_of` rebuilds an error of this type; None where it cannot."""
    name = f"{wire_name(type(error).__module__)}.{type(error).__name__}"
    return name if name in _BLOB_ERRORS else error_name(error)


def error_of(kind: str, message: str) -> Exception:
    """Return the error that the other end raised: of the same type where it is known, or else a `RemoteError`."""
    return _BLOB_ERRORS[kind](message) if kind in _BLOB_ERRORS else decode_error(kind, message, "")
