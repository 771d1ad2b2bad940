"""What the Dispatcher asks all TaskExecutors."""

from __future__ import annotations

import asyncio
import logging

from actors.errors import ActorError
from actors.rpc.endpoint import RpcEndpoint
from blob.gateway import BlobAddress
from runtime.gateways.messages import TaskLog
from runtime.gateways.resource_manager import ResourceManagerGateway
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ids import JobID
from runtime.leaders import LeaderFollower

LOGS_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


async def logs_at_task_executors(
    owner: RpcEndpoint,
    resource_manager: LeaderFollower[ResourceManagerGateway],
    job_id: JobID,
    blob_server: BlobAddress,
) -> list[TaskLog]:
    """What they have of a job, put to that BlobServer; one that does not answer has lost nothing that is kept."""
    try:
        async with asyncio.timeout(LOGS_TIMEOUT_S):
            workers = await (await resource_manager.get()).request_task_managers()
            gateways = [owner.gateway(view.registration.address, TaskExecutorGateway) for view in workers]
            answers = await asyncio.gather(
                *(gateway.request_task_logs(job_id, blob_server) for gateway in gateways), return_exceptions=True
            )
    except (ActorError, TimeoutError) as error:
        log.warning("the TaskExecutors were not asked for logs of job %s: %s", job_id, error)
        return []
    found = []
    for view, answer in zip(workers, answers, strict=True):
        if isinstance(answer, BaseException):
            log.warning("%s does not give its logs: %s", view.registration.resource_id, answer)
        else:
            found += answer
    return found
