"""Airflow's trigger: waits for the end of a job in the triggerer, while the task occupies no worker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from actors.errors import AuthenticationError
from runtime.airflow.attached import TaskFailedError, cancel_job, open_cluster, readable_errors
from runtime.airflow.hook import UnderstudyHook
from runtime.airflow.task_jobs import Access, Patience
from runtime.ids import JobID
from runtime.notebook import Cluster
from runtime.protocol.errors import JobNotFoundError

ANSWER_S = 10.0
"""Seconds for which a request of a trigger waits: the triggers of a process share few threads."""


class UnderstudyJobTrigger(BaseTrigger):
    """Waits for the end of a job.

    Its event is a map: ``job_id``, ``timed_out``, and ``error``, which is empty unless the cluster gives no answer.

    Args:
        conn_id: of the Airflow connection.
        job_id: the job.
        poll_interval: seconds between two looks at its state.
        patience: seconds for which the cluster may not answer.
        until_s: time at which to stop waiting, in seconds since the epoch, so that it outlives the triggerer.
    """

    def __init__(
        self,
        conn_id: str,
        job_id: str,
        poll_interval: float = 5.0,
        patience: float = 600.0,
        until_s: float | None = None,
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.job_id = job_id
        self.poll_interval = poll_interval
        self.patience = patience
        self.until_s = until_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the class and its arguments; the token is not among them."""
        return "understudy.airflow.UnderstudyJobTrigger", {
            "conn_id": self.conn_id,
            "job_id": self.job_id,
            "poll_interval": self.poll_interval,
            "patience": self.patience,
            "until_s": self.until_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the job is over."""
        error: str | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self.until_s is None else self.until_s - time.time()):
                error = await self._await_end()
        yield TriggerEvent({"job_id": self.job_id, "timed_out": error is None, "error": error or ""})

    async def on_kill(self) -> None:
        """Cancel the job: a user has cleared the deferred task, or marked it as failed or successful."""
        access = await asyncio.to_thread(self._access)

        def cancel() -> None:
            with open_cluster(access, ANSWER_S) as cluster:
                cancel_job(cluster, JobID(self.job_id))

        await asyncio.to_thread(cancel)

    async def _await_end(self) -> str:
        """Wait for the job's end; return an empty text, or why it cannot be awaited."""
        patience = Patience(self.patience)
        cluster: Cluster | None = None
        try:
            access = await asyncio.to_thread(self._access)
            while True:
                try:
                    if cluster is None:
                        cluster = await asyncio.to_thread(open_cluster, access, ANSWER_S)
                    if await asyncio.to_thread(self._is_over, cluster):
                        return ""
                    patience.answered()
                except TaskFailedError as error:
                    if patience.is_over(time.monotonic()):
                        return str(error)
                    self.log.warning("%s; asks again", error)
                    if isinstance(error.__cause__, AuthenticationError):  # the connection may have another token now
                        access = await asyncio.to_thread(self._access)
                        former, cluster = cluster, None
                        if former is not None:
                            former.close()
                await asyncio.sleep(self.poll_interval)
        except AirflowException as error:
            return str(error)
        finally:
            if cluster is not None:
                cluster.close()

    def _access(self) -> Access:
        return UnderstudyHook(self.conn_id).access()

    def _is_over(self, cluster: Cluster) -> bool:
        with readable_errors(), contextlib.suppress(JobNotFoundError):  # the task itself says that it is gone
            return cluster.client.status_of(JobID(self.job_id)).is_globally_terminal
        return True
