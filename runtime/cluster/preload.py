"""What a master has ready for the processes that are forked from it: they neither import nor compile it again.

A JobMaster is a process for each job, and would spend 0.15 s of computing on that before it does anything.
"""

from __future__ import annotations

import gc
import importlib

from actors.receptionist import ReceptionistGateway
from actors.rpc.codec import prepare
from blob.gateway import BlobServerGateway
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.metrics.metric import MetricQueryServiceGateway
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.descriptor import AttemptInformation, JobInformation
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway

COMPONENTS = (
    "runtime.dispatcher.endpoint",
    "runtime.jobmaster.endpoint",
    "runtime.cluster.blob_server",
    "runtime.resourcemanager.endpoint",
)
GATEWAYS = (
    BlobServerGateway,
    DispatcherGateway,
    JobMasterGateway,
    MasterGateway,
    MetricQueryServiceGateway,
    ReceptionistGateway,
    ResourceManagerGateway,
    TaskExecutorGateway,
)
VALUES = (ArchivedExecutionGraph, AttemptInformation, ExecutionGraphSnapshot, JobGraph, JobInformation)


def preload() -> None:
    """Import the components and compile their messages; to be called before the actor system's admin is forked."""
    for module in COMPONENTS:
        importlib.import_module(module)
    prepare(*GATEWAYS, *VALUES)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page it looks at
