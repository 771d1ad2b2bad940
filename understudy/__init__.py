"""The public API of Understudy, under one name.

    from understudy import connect, Pipeline, EmbeddedCluster, Actor, ActorSystem, Props

It contains all public names of `actors`, too. Each name is imported at its first use, so `import understudy` is cheap.
The other packages are also available below this one (`understudy.runtime.client`). There they do not conflict with a
user's own modules `actors`, `blob`, `conf` or `runtime`; see `understudy.imports`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from understudy.imports import NAMES, install

install()

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from actors import *  # noqa: F403
    from actors.errors import FencingError as FencingError
    from actors.receptionist import LeaderChanged as LeaderChanged
    from actors.rpc.codec import wire_error as wire_error
    from actors.rpc.endpoint import FencedRpcEndpoint as FencedRpcEndpoint
    from actors.rpc.endpoint import RpcEndpoint as RpcEndpoint
    from actors.rpc.gateway import FencedRpcGateway as FencedRpcGateway
    from actors.rpc.gateway import FencingToken as FencingToken
    from actors.rpc.gateway import RpcGateway as RpcGateway
    from actors.rpc.gateway import rpc as rpc
    from actors.rpc.gateway import rpc_sync as rpc_sync
    from actors.rpc.gateway import rpc_tell as rpc_tell
    from actors.rpc.security import load_or_create_secret as load_or_create_secret
    from actors.rpc.service import RpcConfig as RpcConfig
    from actors.rpc.service import RpcService as RpcService
    from actors.service_system import start_actor_system as start_actor_system
    from actors.testkit import DeterministicSystem as DeterministicSystem
    from actors.testkit import TestProbe as TestProbe
    from runtime.api import Context as Context
    from runtime.api import Parameter as Parameter
    from runtime.api import Pipeline as Pipeline
    from runtime.api import RestartStrategyConfig as RestartStrategyConfig
    from runtime.api import Stream as Stream
    from runtime.api import VertexFunction as VertexFunction
    from runtime.api import parse_parameters as parse_parameters
    from runtime.checkpoint.source_edit import name_sources as name_sources
    from runtime.checkpoint.source_edit import set_offsets as set_offsets
    from runtime.client import ClusterClient as ClusterClient
    from runtime.embedded import ClusterAccess as ClusterAccess
    from runtime.embedded import EmbeddedCluster as EmbeddedCluster
    from runtime.embedded import EmbeddedClusterError as EmbeddedClusterError
    from runtime.job_file import read_job_file as read_job_file
    from runtime.notebook import AsyncCluster as AsyncCluster
    from runtime.notebook import AsyncJob as AsyncJob
    from runtime.notebook import AsyncSubmitter as AsyncSubmitter
    from runtime.notebook import Cluster as Cluster
    from runtime.notebook import DoneAndNotDone as DoneAndNotDone
    from runtime.notebook import Job as Job
    from runtime.notebook import JobCancelledError as JobCancelledError
    from runtime.notebook import JobFailedError as JobFailedError
    from runtime.notebook import NotebookError as NotebookError
    from runtime.notebook import SavepointFailedError as SavepointFailedError
    from runtime.notebook import SubmitOptions as SubmitOptions
    from runtime.notebook import Submitter as Submitter
    from runtime.notebook import as_completed as as_completed
    from runtime.notebook import connect as connect
    from runtime.notebook import connect_async as connect_async
    from runtime.notebook import wait as wait
    from runtime.protocol.archived_execution_graph import JobResult as JobResult
    from runtime.protocol.dispatcher import DispatcherGateway as DispatcherGateway
    from runtime.protocol.events import JobReachedTerminalState as JobReachedTerminalState
    from runtime.protocol.events import TaskExecutorLost as TaskExecutorLost
    from runtime.protocol.execution_state import JobStatus as JobStatus
    from runtime.spark.rescale import rescale_savepoint as rescale_savepoint
    from runtime.spark.state_convert import convert_savepoint as convert_savepoint
    from runtime.spark.state_edit import edit_savepoint as edit_savepoint
    from runtime.spark.state_evolution import FormerState as FormerState
    from runtime.spark.state_evolution import evolve_savepoint as evolve_savepoint
    from runtime.spark.state_reader import read_state as read_state

_HOMES = {
    "actors": (
        "Actor",
        "ActorAddress",
        "ActorContext",
        "ActorError",
        "ActorIdentity",
        "ActorInitializationError",
        "ActorKilled",
        "ActorNotFound",
        "ActorProcessDied",
        "ActorRef",
        "ActorSelection",
        "ActorSystem",
        "ActorSystemBase",
        "ActorSystemClient",
        "ActorSystemError",
        "AddRoutee",
        "AdjustPoolSize",
        "AllForOneStrategy",
        "Ask",
        "AskTimeout",
        "AuthenticationError",
        "Backoff",
        "BoundedMailbox",
        "Broadcast",
        "BroadcastAll",
        "ConsistentHash",
        "ControlAwareMailbox",
        "ControlMessage",
        "DeadLetter",
        "DeathPactError",
        "Directive",
        "Failure",
        "GetRoutees",
        "Group",
        "Identify",
        "InvalidActorName",
        "Kill",
        "MailboxFull",
        "NotInfluenceReceiveTimeout",
        "OneForOneStrategy",
        "Overflow",
        "PoisonPill",
        "Pool",
        "PriorityMailbox",
        "Props",
        "Quarantined",
        "Random",
        "ReceiveTimeout",
        "RecipientTerminated",
        "RecipientUnreachable",
        "RemoteError",
        "RemoveRoutee",
        "RoundRobin",
        "Routees",
        "ScatterGatherFirstCompleted",
        "SerializationError",
        "SmallestMailbox",
        "StashOverflow",
        "Subscribe",
        "Subscribed",
        "SupervisorStrategy",
        "SystemConfig",
        "Terminated",
        "UnboundedMailbox",
        "UnhandledMessage",
        "UnhandledMessageError",
        "Unsubscribe",
        "message",
        "stopping_strategy",
    ),
    "actors.errors": ("FencingError",),
    "actors.receptionist": ("LeaderChanged",),
    "actors.rpc.codec": ("wire_error",),
    "actors.rpc.endpoint": ("FencedRpcEndpoint", "RpcEndpoint"),
    "actors.rpc.gateway": ("FencedRpcGateway", "FencingToken", "RpcGateway", "rpc", "rpc_sync", "rpc_tell"),
    "actors.rpc.security": ("load_or_create_secret",),
    "actors.rpc.service": ("RpcConfig", "RpcService"),
    "actors.service_system": ("start_actor_system",),
    "actors.testkit": ("DeterministicSystem", "TestProbe"),
    "runtime.api": (
        "Context",
        "Parameter",
        "Pipeline",
        "RestartStrategyConfig",
        "Stream",
        "VertexFunction",
        "parse_parameters",
    ),
    "runtime.checkpoint.source_edit": ("name_sources", "set_offsets"),
    "runtime.client": ("ClusterClient",),
    "runtime.embedded": ("ClusterAccess", "EmbeddedCluster", "EmbeddedClusterError"),
    "runtime.job_file": ("read_job_file",),
    "runtime.notebook": (
        "AsyncCluster",
        "AsyncJob",
        "AsyncSubmitter",
        "Cluster",
        "DoneAndNotDone",
        "Job",
        "JobCancelledError",
        "JobFailedError",
        "NotebookError",
        "SavepointFailedError",
        "SubmitOptions",
        "Submitter",
        "as_completed",
        "connect",
        "connect_async",
        "wait",
    ),
    "runtime.protocol.archived_execution_graph": ("JobResult",),
    "runtime.protocol.dispatcher": ("DispatcherGateway",),
    "runtime.protocol.events": ("JobReachedTerminalState", "TaskExecutorLost"),
    "runtime.protocol.execution_state": ("JobStatus",),
    "runtime.spark.rescale": ("rescale_savepoint",),
    "runtime.spark.state_convert": ("convert_savepoint",),
    "runtime.spark.state_edit": ("edit_savepoint",),
    "runtime.spark.state_evolution": ("FormerState", "evolve_savepoint"),
    "runtime.spark.state_reader": ("read_state",),
}
"""Modules of the public names."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # made from constants, so it imports nothing


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return importlib.import_module(f"understudy.{name}")
    if name in _HOME_OF:
        value = globals()[name] = getattr(importlib.import_module(f"understudy.{_HOME_OF[name]}"), name)
        return value
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES, *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Load the notebook extension; ``%load_ext understudy`` calls this."""
    importlib.import_module("understudy.runtime.notebook").load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unload the notebook extension; ``%unload_ext understudy`` calls this."""
    importlib.import_module("understudy.runtime.notebook").unload_ipython_extension(shell)
