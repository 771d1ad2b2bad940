"""Decides which job belongs to an Airflow task instance, and how a connection reaches a cluster. Pure.

A worker may be killed at any time, also between a submission and the moment at which it could store the job's id. So a
job's id is not stored but derived from the task instance, and a repeated submission has no effect. Three rules follow:

1. The jobs of a task instance are numbered from 0. Job n + 1 is submitted only after job n was seen FAILED or CANCELED.
2. A try takes the job with the highest number that the cluster knows, if it runs or has FINISHED.
3. A cleared task starts a round, with ids of its own, and first cancels unfinished jobs of earlier rounds.

The number of the try is not part of the id. Airflow gives the next try to another worker when it has lost contact with
the first one, which may still run. Both then submit the same id, so two jobs of a task instance never run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conf.values import is_loopback
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.execution_state import JobStatus

DEFAULT_CONN_ID = "understudy_default"

MOST_OF_A_LINE = 16 * 1024
"""Most bytes of a job's output that are one line of a task's log."""
MOST_OF_A_CAUSE = 1000


@dataclass(frozen=True, slots=True)
class TaskInstanceKey:
    """A task instance of Airflow, in one round.

    Args:
        namespace: tells several Airflows apart that use one cluster; from the connection.
        dag_id: of the DAG.
        run_id: of the DAG run.
        task_id: of the task.
        map_index: of a mapped task; else -1.
        round: Airflow's ``max_tries`` of the task instance. It stays the same from try to try, and clearing the task
            raises it.
    """

    namespace: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    round: int = 0

    def job_id(self, number: int) -> JobID:
        """Return the id of the job with this *number*, from 0."""
        parts = (self.namespace, self.dag_id, self.run_id, self.task_id, self.map_index, self.round, number)
        return JobID.from_name("airflow", *map(str, parts))


@dataclass(frozen=True)
class Work:
    """A submission of a task.

    Args:
        script: path of a PySpark script or pipeline file, on the worker's machine.
        args: its command line.
        options: `runtime.notebook.SubmitOptions` without ``job_id``.
    """

    script: str
    args: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """Instruction for a try.

    Args:
        job_id: the job to wait for.
        submits: whether to submit it first. The cluster may know it already: then that has no effect.
        cancels: unfinished jobs of earlier rounds, to cancel before.
        former: state of the job that this one replaces; None if it replaces none.
    """

    job_id: JobID
    submits: bool
    cancels: tuple[JobID, ...] = ()
    former: JobStatus | None = None


def first_step(key: TaskInstanceKey, try_number: int, states: Mapping[JobID, JobStatus]) -> Step:
    """Decide what a try does first.

    Args:
        key: the task instance.
        try_number: of the try, from 1. A task instance has at most this many jobs in a round. So a try that begins a
            second time reports the failure of its own job.
        states: of the jobs that the cluster knows.
    """
    cancels = tuple(_left(key, try_number, states))
    known = [number for number in range(try_number) if key.job_id(number) in states]
    if not known:
        return Step(key.job_id(0), True, cancels)
    status = states[key.job_id(known[-1])]
    if status in (JobStatus.FAILED, JobStatus.CANCELED) and known[-1] + 1 < try_number:
        return Step(key.job_id(known[-1] + 1), True, cancels, status)
    return Step(key.job_id(known[-1]), False, cancels)


def _left(key: TaskInstanceKey, try_number: int, states: Mapping[JobID, JobStatus]) -> Iterator[JobID]:
    unfinished = {job_id for job_id, status in states.items() if not status.is_globally_terminal}
    for earlier in range(key.round if unfinished else 0):
        former = TaskInstanceKey(key.namespace, key.dag_id, key.run_id, key.task_id, key.map_index, earlier)
        yield from (job_id for number in range(try_number) if (job_id := former.job_id(number)) in unfinished)


class Patience:
    """Decides for how long a cluster may give no answer before a task fails; its job keeps running.

    Args:
        limit_s: seconds from the first of several requests without an answer.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def answered(self) -> None:
        """Note an answer."""
        self._since = None

    def is_over(self, now_s: float) -> bool:
        """Note a request without an answer, and return whether to give up."""
        if self._since is None:
            self._since = now_s
        return now_s - self._since >= self._limit_s


class OutputLines:
    """Makes lines for a log of the pieces of output that the attempts of a job write."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int, str], bytes] = {}

    def add(self, task: str, attempt: int, name: str, data: bytes) -> Iterator[str]:
        """Yield the lines that a piece completes.

        Args:
            task: name of the task.
            attempt: number of the attempt, from 0.
            name: ``stdout`` or ``stderr``.
            data: the piece.
        """
        source = (task, attempt, name)
        *lines, rest = (self._begun.pop(source, b"") + data).split(b"\n")
        for line in lines:
            yield from _shown(source, line)
        while len(rest) > MOST_OF_A_LINE:
            yield from _shown(source, rest[:MOST_OF_A_LINE])
            rest = rest[MOST_OF_A_LINE:]
        if rest:
            self._begun[source] = rest

    def finish(self) -> Iterator[str]:
        """Yield the lines that have no end."""
        begun, self._begun = self._begun, {}
        for source, rest in begun.items():
            yield from _shown(source, rest)


def _shown(source: tuple[str, int, str], line: bytes) -> Iterator[str]:
    task, attempt, name = source
    title = f"[{task}{f' attempt {attempt + 1}' if attempt else ''}{' stderr' if name == 'stderr' else ''}] "
    for start in range(0, max(len(line), 1), MOST_OF_A_LINE):
        yield title + line[start : start + MOST_OF_A_LINE].decode(errors="replace").rstrip("\r")


def one_line(text: str) -> str:
    """Return the first line of a text that has something in it, shortened if it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MOST_OF_A_CAUSE else f"{line[:MOST_OF_A_CAUSE]}..."


class ConnectionFieldsError(ClusterError):
    """The fields of an Airflow connection name no cluster."""


_EXTRA = ("ca_file", "config", "namespace", "secret_file", "settings")


@dataclass(frozen=True, slots=True)
class Access:
    """Arguments of `runtime.notebook.connect`, from the fields of an Airflow connection.

    Args:
        address: of web endpoints or of a master; None: the worker's own configuration names the cluster.
        token: for web endpoints; never shown.
        ca_file: authorities that may sign a web endpoint's certificate.
        secret_file: the cluster's secret, for the address of a master.
        config: a configuration file.
        settings: further options by key.
        namespace: as in `TaskInstanceKey`.
    """

    address: str | None
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    secret_file: str | None = None
    config: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)
    namespace: str = ""

    @classmethod
    def of(
        cls,
        conn_id: str,
        schema: str | None,
        host: str | None,
        port: int | None,
        password: str | None,
        extra: Mapping[str, Any],
    ) -> Access:
        """Read the fields of a connection.

        Args:
            conn_id: its id, for errors.
            schema: ``http`` or ``https``. Default: ``http`` for loopback, else ``https``.
            host: a name or IP address, or a whole address: URLs of web endpoints with commas between them, or
                ``akka.tcp://understudy@HOST:PORT``. Default: the worker's own configuration names the cluster.
            port: of the web endpoint. Default: 8081.
            password: the token.
            extra: ``ca_file``, ``secret_file``, ``config``, ``settings`` (a map of options) and ``namespace``.

        Raises:
            ConnectionFieldsError: they contradict each other, or a name in *extra* is unknown.
        """
        if unknown := sorted(extra.keys() - set(_EXTRA)):
            raise ConnectionFieldsError(
                f"connection {conn_id!r} has {unknown[0]!r} in its extra", f"those known are {', '.join(_EXTRA)}"
            )
        settings = extra.get("settings") or {}
        if not isinstance(settings, Mapping):
            raise ConnectionFieldsError(
                f"connection {conn_id!r} has 'settings' that are not a map",
                'write {"settings": {"client.timeout": "60 s"}}',
            )
        address = host or None
        if host and "://" in host:
            if schema or port:
                raise ConnectionFieldsError(
                    f"connection {conn_id!r} has a whole address as its host, and a schema or port as well",
                    "leave schema and port empty, or write only the name of the host",
                )
        elif host:
            bracketed = f"[{host}]" if ":" in host else host
            address = f"{schema or ('http' if is_loopback(host) else 'https')}://{bracketed}:{port or 8081}"
        texts = {name: str(extra[name]) for name in _EXTRA if name != "settings" and extra.get(name)}
        return cls(address, password or None, settings=dict(settings), **texts)
