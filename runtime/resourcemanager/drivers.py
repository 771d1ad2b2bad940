"""Which driver a cluster has, and what its configuration says of workers."""

from __future__ import annotations

import math
import os

from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.environment.context import ComponentContext
from runtime.resourcemanager.driver import ResourceManagerDriver
from runtime.resourcemanager.process_driver import ProcessDriver
from runtime.resourcemanager.standalone_driver import StandaloneDriver
from runtime.resourcemanager.worker_allocator import AllocationLimits


def create_driver(
    owner: RpcEndpoint, receptionist: ReceptionistGateway, context: ComponentContext
) -> ResourceManagerDriver | None:
    """The driver of the configuration; None where the workers are what they are, and are never stopped."""
    configuration = context.configuration
    match configuration.get(ResourceManagerOptions.DRIVER):
        case ResourceManagerDriverType.PROCESS:
            return ProcessDriver(owner, receptionist, context.system, context.directory)
        case ResourceManagerDriverType.KUBERNETES:
            from runtime.kubernetes.client import KubernetesApi
            from runtime.kubernetes.driver import KubernetesDriver

            return KubernetesDriver(configuration, KubernetesApi(configuration))
    if configuration.get(ResourceManagerOptions.TASK_MANAGER_TIMEOUT):
        return StandaloneDriver(owner, receptionist)
    return None


def allocation_limits(configuration: Configuration) -> AllocationLimits:
    """What the configuration says of workers."""
    get = configuration.get
    slots, max_slots = get(TaskManagerOptions.NUM_TASK_SLOTS), get(ResourceManagerOptions.MAX_SLOTS)
    kind = get(ResourceManagerOptions.DRIVER)
    is_fixed = kind is ResourceManagerDriverType.STANDALONE
    if max_slots is None and kind is ResourceManagerDriverType.PROCESS:
        max_slots = slots * (os.cpu_count() or 1)
    return AllocationLimits(
        slots_per_worker=slots,
        min_slots=0 if is_fixed else get(ResourceManagerOptions.MIN_SLOTS),
        max_slots=None if is_fixed else max_slots,
        redundant_workers=0 if is_fixed else get(ResourceManagerOptions.REDUNDANT_TASK_MANAGERS),
        idle_timeout_s=get(ResourceManagerOptions.TASK_MANAGER_TIMEOUT) or math.inf,
        registration_timeout_s=get(ResourceManagerOptions.REGISTRATION_TIMEOUT),
        max_failures=get(ResourceManagerOptions.START_WORKER_MAX_FAILURE_RATE),
        retry_interval_s=get(ResourceManagerOptions.START_WORKER_RETRY_INTERVAL),
        recovery_timeout_s=get(ResourceManagerOptions.PREVIOUS_WORKER_RECOVERY_TIMEOUT),
    )
