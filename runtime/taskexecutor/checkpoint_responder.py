"""How a task's part of a checkpoint is told to its JobMaster (Flink's `CheckpointResponder`)."""

from __future__ import annotations

import asyncio
import logging
import time

from actors.errors import ActorError
from runtime.checkpoint.messages import AcknowledgeCheckpoint, CheckpointOutcome, DeclineCheckpoint
from runtime.gateways.errors import GatewayError
from runtime.ids import JobID
from runtime.taskexecutor.job_connections import JobConnections

RETRY_S = 0.5

log = logging.getLogger(__name__)


class CheckpointResponder:
    """Tells whoever leads the job, again and again until it is answered.

    Args:
        connections: to the JobMasters.
        job_id: the job.
    """

    def __init__(self, connections: JobConnections, job_id: JobID) -> None:
        self._connections = connections
        self._job_id = job_id

    async def acknowledge(
        self, ack: AcknowledgeCheckpoint, timeout_s: float, *, until_decided: bool = False
    ) -> CheckpointOutcome:
        """Say that the task's part is done; returns what has become of the checkpoint.

        Args:
            ack: what was done.
            timeout_s: for how long to try; a checkpoint that nobody has answered for by then is taken for aborted.
            until_decided: whether to ask again for as long as the checkpoint is PENDING. Its JobMaster gives it up
                in time, or its successor does; *timeout_s* then counts from the last answer.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            connection = self._connections.find(self._job_id)
            if connection is None:
                return CheckpointOutcome.ABORTED  # the job is over, or its slots were taken
            try:
                outcome = await connection.gateway.acknowledge_checkpoint(ack)
            except (ActorError, GatewayError) as error:
                log.info("checkpoint %d of job %s waits for the JobMaster: %s", ack.checkpoint_id, self._job_id, error)
            else:
                if outcome is not CheckpointOutcome.PENDING or not until_decided:
                    return outcome
                deadline = time.monotonic() + timeout_s
            await asyncio.sleep(RETRY_S)
        return CheckpointOutcome.ABORTED

    async def decline(self, decline: DeclineCheckpoint) -> None:
        """Say that it cannot be done. A JobMaster that is not reached gives the checkpoint up by itself."""
        connection = self._connections.find(self._job_id)
        if connection is None:
            return
        try:
            await connection.gateway.decline_checkpoint(decline)
        except (ActorError, GatewayError) as error:
            log.info("that checkpoint %d was declined is not known: %s", decline.checkpoint_id, error)
