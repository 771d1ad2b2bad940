"""Airflow's operator: a task that runs a PySpark script or a pipeline as a job of a cluster.

Airflow parses each DAG file every few seconds, so this module imports the client of the cluster only when a task runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowException
from airflow.sdk import BaseOperator, BaseOperatorLink

from runtime.airflow.task_jobs import DEFAULT_CONN_ID, Access, TaskInstanceKey, Work
from runtime.ids import JobID

if TYPE_CHECKING:
    from airflow.sdk import Context

    from runtime.airflow.attached import AttachedJob
    from runtime.airflow.trigger import UnderstudyJobTrigger

KILL_ANSWER_S = 10.0
"""Seconds for which a killed task waits for an answer of the cluster. Airflow kills its process by force after some."""


class UnderstudyJobLink(BaseOperatorLink):
    """Link from a task to its job's page on the cluster's web page."""

    name = "Understudy job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL; empty if the cluster has no web page. Airflow stores it as an XCom of the task."""
        return str(getattr(operator, "job_page", ""))


class UnderstudySubmitOperator(BaseOperator):
    """Runs a job file on a cluster, at most one job of a task instance at a time.

    A worker that takes over a task from a dead one finds the task's job again. It waits for a job that runs, and takes
    one that has finished. A try after a job that has failed or was cancelled submits a new one. Clearing the task
    cancels the job of the cleared try if it still runs, and submits a new one. See ``docs/airflow.md``.

    Args:
        script: path of a PySpark script or pipeline file, as the worker sees it. Templated.
        args: its command line. Templated.
        conn_id: the Airflow connection of the cluster. Templated.
        name: the job's name. Default: ``DAG.TASK``. Templated.
        options: further options of the job: ``py_files``, ``packages``, ``requirements``, ``archives``, ``jars``,
            ``priority``, ``settings``, ``from_savepoint``, ``allow_non_restored_state``, ``new_query_id``; as of
            `understudy.SubmitOptions`. Templated.
        wait: wait for the job's end. If False, the task succeeds once the cluster has persisted the job.
        deferrable: wait in the triggerer, and leave the worker to other tasks. The output comes at the end.
        poll_interval: seconds between two looks of the triggerer.
        patience: time for which the cluster may not answer before the task fails. Its job keeps running, and the next
            try finds it.
        arguments: of Airflow's `BaseOperator`.

    Returns:
        the job's id, as the task's XCom.
    """

    template_fields: Sequence[str] = ("script", "args", "conn_id", "name", "options")
    template_fields_renderers: Mapping[str, str] = {"options": "json"}
    ui_color = "#e8f1fa"
    operator_extra_links = (UnderstudyJobLink(),)

    def __init__(
        self,
        *,
        script: str,
        args: Sequence[Any] = (),
        conn_id: str = DEFAULT_CONN_ID,
        name: str = "{{ task_instance.dag_id }}.{{ task_instance.task_id }}",
        options: Mapping[str, Any] | None = None,
        wait: bool = True,
        deferrable: bool = False,
        poll_interval: float = 5.0,
        patience: timedelta = timedelta(minutes=10),
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.script = script
        self.args = list(args)
        self.conn_id = conn_id
        self.name = name
        self.options = dict(options or {})
        self.wait = wait
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.patience = patience
        self.job_page = ""
        self._access: Access | None = None
        self._job: AttachedJob | None = None

    def execute(self, context: Context) -> str:
        """Submit the task's job or find it again, and wait for its end.

        Raises:
            AirflowException: the job has failed or was cancelled, was not accepted, or the cluster does not answer.
        """
        access = self._find_access()
        instance = context["ti"]
        key = TaskInstanceKey(
            access.namespace,
            instance.dag_id,
            instance.run_id,
            instance.task_id,
            -1 if instance.map_index is None else instance.map_index,
            max(instance.max_tries, 0),
        )
        work = Work(self.script, [str(arg) for arg in self.args], {"name": self.name, **self.options})
        with self._attached(access) as job:
            job_id = job.begin(key, instance.try_number, work)
            self._link(context, job)
            if self.wait and self.deferrable and not job.state().is_globally_terminal:
                self.defer(trigger=self._trigger(job_id), method_name="resume")
            if self.wait:
                job.follow(job_id)
        return str(job_id)

    def resume(self, context: Context, event: Mapping[str, Any]) -> str:
        """Continue after the trigger: show the job's output, and return its id; raises as `execute`."""
        with self._attached(self._find_access()) as job:
            job.job_id = job_id = JobID(event["job_id"])
            if event["timed_out"]:
                job.cancel()
                raise AirflowException(f"job {job_id} was cancelled: execution_timeout {self.execution_timeout}")
            if event["error"]:
                raise AirflowException(event["error"])
            self._link(context, job)
            job.follow(job_id)
        return str(job_id)

    def on_kill(self) -> None:
        """Cancel the job: Airflow stops the task. A worker that is killed by force does not get here."""
        if self._job is None or self._job.job_id is None or self._access is None:
            return
        from runtime.airflow.attached import TaskFailedError, cancel_job, open_cluster

        # A connection of its own: Airflow calls this in a signal handler, and the other one may be in use.
        try:
            with open_cluster(self._access, KILL_ANSWER_S) as cluster:
                was_there = cancel_job(cluster, self._job.job_id, is_coming=self._job.is_submitting)
        except TaskFailedError as error:
            self.log.error("job %s is not cancelled: %s", self._job.job_id, error)
            return
        if was_there:
            self.log.info("job %s is cancelled", self._job.job_id)

    def _find_access(self) -> Access:
        from runtime.airflow.hook import UnderstudyHook

        return UnderstudyHook(self.conn_id).access()

    @contextlib.contextmanager
    def _attached(self, access: Access) -> Iterator[AttachedJob]:
        """Provide the task's job on a connection, and turn its errors into Airflow's, without their traceback."""
        from runtime.airflow.attached import AttachedJob, TaskFailedError, open_cluster

        try:
            with open_cluster(access) as cluster:
                self._access = access
                self._job = AttachedJob(cluster, lambda line: self.log.info("%s", line), self.patience.total_seconds())
                yield self._job
        except TaskFailedError as error:
            raise AirflowException(str(error)) from None

    def _link(self, context: Context, job: AttachedJob) -> None:
        self.job_page = job.page()
        context["ti"].xcom_push(key=UnderstudyJobLink().xcom_key, value=self.job_page)

    def _trigger(self, job_id: JobID) -> UnderstudyJobTrigger:
        from runtime.airflow.trigger import UnderstudyJobTrigger

        until_s = None if self.execution_timeout is None else time.time() + self.execution_timeout.total_seconds()
        return UnderstudyJobTrigger(
            self.conn_id, str(job_id), self.poll_interval, self.patience.total_seconds(), until_s
        )
