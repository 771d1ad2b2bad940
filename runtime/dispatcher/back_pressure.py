"""The Dispatcher's method on back pressure (Flink's ``requestOperatorBackPressureStats``)."""

from __future__ import annotations

from abc import abstractmethod

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from runtime.gateways.errors import JobVertexNotFoundError
from runtime.ids import JobID, JobVertexID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph
from runtime.jobmaster.streaming_query import OperatorBackPressureStats


class DispatcherBackPressure(RpcEndpoint):
    """A part of the Dispatcher."""

    @abstractmethod
    async def _job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """A job as it stands; raises `JobNotFoundError`."""

    @rpc
    async def request_operator_back_pressure_stats(
        self, job_id: JobID, vertex_id: JobVertexID
    ) -> OperatorBackPressureStats | None:
        tasks = {task.key: task for task in (await self._job(job_id)).tasks}
        if vertex_id not in tasks:
            raise JobVertexNotFoundError(f"job {job_id} has no task {vertex_id}: its tasks are {', '.join(tasks)}")
        return tasks[vertex_id].attempts[-1].back_pressure
