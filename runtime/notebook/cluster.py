"""A cluster in a notebook: how it is found, its handle, and its actors as objects whose methods return the answers."""

from __future__ import annotations

import functools
import inspect
import tempfile
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from actors.address import ActorAddress
from actors.rpc.gateway import Ask, RpcGateway, gateway_methods
from conf.configuration import Configuration
from conf.options import ClientOptions, HighAvailabilityOptions, SecurityOptions
from conf.secret import SecretStr
from runtime.api import Pipeline
from runtime.application.client import application_client
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect as connect_as_configured
from runtime.cluster.discovery import connect_by_address, connect_by_http, connect_by_redis
from runtime.cluster.views import view_of_details, view_of_task_manager
from runtime.ids import JobID
from runtime.jobgraph.job_graph import ArtifactRole
from runtime.notebook.html import cluster_html, jobs_html
from runtime.notebook.job import Job
from runtime.notebook.submission import graph_of_work, job_settings, restore_settings
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER
from runtime.protocol.messages import ClusterOverview
from runtime.protocol.resource_manager import ResourceManagerGateway

G = TypeVar("G", bound=RpcGateway)

SHOWN_JOBS = 10

Call = Callable[[Callable[[Any], Any]], Any]
"""Calls a function with the present gateway, and again with another one while the leader changes."""


class Cluster:
    """A handle of a cluster; made by `runtime.notebook.connect`. A context manager, or call `close`.

    Args:
        client: speaks to it; closed with this.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client

    @property
    def address(self) -> str:
        """Address of the Dispatcher, or of the web endpoint, that is spoken to."""
        return self.client.address

    # --------------------------------------------------------------------- jobs

    def submit(
        self,
        work: Callable[..., Any] | Pipeline | str | PathLike[str],
        *args: Any,
        name: str | None = None,
        py_files: Iterable[str | Path] = (),
        packages: Iterable[str | Path] = (),
        requirements: Iterable[str | Path] = (),
        archives: Iterable[str | Path] = (),
        jars: Iterable[str | Path] = (),
        priority: int = 0,
        from_savepoint: str | Path | None = None,
        allow_non_restored_state: bool = False,
        new_query_id: bool | None = None,
        settings: Mapping[str, str] | None = None,
        job_id: str | None = None,
        **kwargs: Any,
    ) -> Job:
        """Submit a job; returns when the cluster has it.

        Args:
            work: a function, whose return value is the job's result; a `runtime.api.Pipeline`; or the path of a PySpark
                script or pipeline file. A function's parameter ``spark`` is given the task's session.
            args: arguments of the function, or the command line of the file.
            name: of the job; by default the function's, the pipeline's or the file's.
            py_files: modules and archives that its code imports.
            packages: wheels and source distributions to install for it.
            requirements: requirements files to install for it.
            archives: packed virtual environments, or archives of modules.
            jars: for its Spark session.
            priority: slots go to jobs of a higher one first.
            from_savepoint: directory of the savepoint that its streaming queries begin from; by HTTP, one of the
                cluster's machine.
            allow_non_restored_state: begin although some of that state is nobody's.
            new_query_id: whether its queries get new ids; None: those that begin in another place while the job that
                they are of runs.
            settings: its own ``restart-strategy.*`` and ``execution.checkpointing.*``.
            job_id: 32 hexadecimal digits; submitting twice with one id is submitting once.
            kwargs: keyword arguments of the function.

        Raises:
            FunctionTaskError: the function or its arguments cannot be pickled.
            JobFileError, JobGraphError, JobSubmissionError: the job is not valid, or not accepted.
            NotebookError: the arguments do not fit what is submitted.
            OSError, SavepointError: a file, or the savepoint, cannot be read.
        """
        files = (
            (ArtifactRole.PY_FILE, py_files),
            (ArtifactRole.PACKAGE, packages),
            (ArtifactRole.REQUIREMENTS, requirements),
            (ArtifactRole.ARCHIVE, archives),
            (ArtifactRole.JAR, jars),
        )
        wanted = None if job_id is None else JobID(job_id)
        with tempfile.TemporaryDirectory(prefix="understudy-job-") as scratch:
            graph, main, returns = graph_of_work(work, args, kwargs, name, wanted, Path(scratch))
            graph = replace(
                graph,
                priority=priority,
                configuration=job_settings(settings or {}),
                savepoint=restore_settings(
                    from_savepoint, allow_non_restored_state, new_query_id, is_here=self.client.sees_files
                ),
            )
            libraries = [(Path(path), role) for role, paths in files for path in paths]
            accepted = self.client.submit(graph, main, libraries=libraries)
        # An application gives its jobs ids of its own.
        return Job(self.client, accepted, graph=replace(graph, job_id=accepted), returns=returns)

    def job(self, job_id: str) -> Job:
        """A handle of a job that was submitted before, by whomever; raises `JobNotFoundError`."""
        wanted = JobID(job_id)
        self.client.status_of(wanted)
        return Job(self.client, wanted)

    def jobs(self) -> Jobs:
        """Running and finished jobs, the newest first."""
        return Jobs(Job(self.client, details.job_id, details=details) for details in self.client.list_jobs())

    # ------------------------------------------------------------------- actors

    @property
    def dispatcher(self) -> Any:
        """The Dispatcher that leads: every method of `DispatcherGateway`, returning the answer itself."""
        return self._following("dispatcher", DispatcherGateway)

    @property
    def resource_manager(self) -> Any:
        """The ResourceManager that leads: every method of `ResourceManagerGateway`, returning the answer itself."""
        return self._following("resourcemanager", ResourceManagerGateway)

    def actor(self, name: str, gateway_type: type[RpcGateway]) -> Any:
        """An actor by its name in the cluster, or by its address; its methods return the answers themselves.

        Args:
            name: ``dispatcher``, or ``akka.tcp://<system>@<host>:<port>/user/<name>``.
            gateway_type: the interface that it is called by.

        Raises:
            UnknownActor, RecipientUnreachable: there is no such actor, or nobody listens there.
        """
        if "://" not in name:
            return self._following(name, gateway_type)
        address = ActorAddress.parse(name)
        self.client.lookup_address(address, gateway_type)  # says now that there is none
        call = lambda question: question(self.client.lookup_address(address, gateway_type))  # noqa: E731
        return synchronous(gateway_type, f"{gateway_type.__name__} of {address}", call)

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """The gateway itself, whose asks return an `Ask`: to be awaited, or for many asks at once."""
        if "://" in name:
            return self.client.lookup_address(name, gateway_type)
        return self.client.lookup(name, gateway_type)

    def _following(self, name: str, gateway_type: type[RpcGateway]) -> Any:
        call = lambda question: self.client.call(name, gateway_type, question)  # noqa: E731
        return synchronous(
            gateway_type, f"{gateway_type.__name__} of {self.client.system.with_path(f'/user/{name}')}", call
        )

    # -------------------------------------------------------------------- shown

    def overview(self) -> ClusterOverview:
        """Counts of TaskExecutors, slots and jobs."""
        return self.client.overview()

    def close(self) -> None:
        """Close the connections; the cluster and its jobs go on."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster at {self.address}>"  # asks nobody: a debugger may show it

    def _repr_html_(self) -> str:
        workers = [view_of_task_manager(view) for view in self.client.task_managers()]
        jobs = [view_of_details(details) for details in self.client.list_jobs()]
        return cluster_html(self.address, self.client.overview(), workers, jobs[:SHOWN_JOBS])


class Jobs(Sequence[Job]):
    """Handles of jobs, shown as a table."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = tuple(jobs)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._jobs)) or "no jobs"

    def _repr_html_(self) -> str:
        return jobs_html([view_of_details(job.details) for job in self._jobs if job.details is not None])


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    ca_file: str | Path | None = None,
    redis: str | None = None,
    secret_file: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Cluster:
    """Return a handle of a running cluster. It follows the leader, whichever master that is.

    Args:
        address: where a master is, ``akka.tcp://understudy@host:6123`` or the address of any actor there; or a web
            endpoint, ``https://host:8081``, several with commas between them, which needs the token and neither the
            secret nor RPC ports. None: the cluster of ``client.url`` or of this machine's runtime directory, unless
            *redis* is given; in an application's main() its own.
        token: for a web endpoint. None: the environment's UNDERSTUDY_TOKEN, or ``client.token-file``.
        ca_file: the authorities that a web endpoint's certificate may be signed by (PEM). None: those of the system.
        redis: URL of the cluster's Redis, which knows who leads; ``redis+sentinel://`` too. The cluster is the one of
            the setting ``cluster.id``.
        secret_file: the cluster's secret, copied from ``security.secret-file`` there. None: as this machine's
            configuration says, ``~/.understudy/<cluster.id>/secret``.
        config: a configuration file in place of ``$UNDERSTUDY_CONF_DIR/config.yaml``.
        settings: further options by key, as ``-D`` gives them: ``{"cluster.id": "second"}``.

    Raises:
        ClusterNotRunning: no cluster runs there.
        SecurityError: the secret cannot be read, or is not the cluster's.
        ActorError: it does not answer within ``client.timeout``.
        HaError: Redis cannot be used.
        ConfigurationError: a setting is wrong.
    """
    own = application_client()
    if own is not None and address is None and redis is None:
        return Cluster(cast(ClusterClient, own))
    configuration = Configuration.load(None if config is None else Path(config))
    configuration = configuration.overlaid(dict(settings or {}), "settings")
    if secret_file is not None:
        configuration = configuration.set(SecurityOptions.SECRET_FILE, Path(secret_file).expanduser())
    if ca_file is not None:
        configuration = configuration.set(ClientOptions.CA_FILE, Path(ca_file).expanduser())
    if redis is not None:
        configuration = configuration.set(HighAvailabilityOptions.REDIS_URL, SecretStr(redis))
        client = connect_by_redis(configuration)
    elif address is not None and address.startswith(("http://", "https://")):
        client = connect_by_http(configuration, address, token)
    elif address is not None:
        client = connect_by_address(configuration, (_any_path(address),))
    else:
        client = connect_as_configured(configuration)
    try:
        client.overview()  # says now what is wrong, not at the first use
    except BaseException:
        client.close()
        raise
    return Cluster(client)


def _any_path(address: str) -> str:
    """Complete an address: of a master alone, the address of its Dispatcher."""
    bare = address.rstrip("/")
    return bare if "/" in bare.removeprefix("akka.tcp://") else f"{bare}/user/{DISPATCHER}"


class SynchronousGateway:
    """Base of the classes that `synchronous` makes: the methods of a gateway, each of which waits for its answer."""

    def __init__(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"<{self._description}>"


def synchronous(gateway_type: type[RpcGateway], description: str, call: Call) -> Any:
    """Return an object with the methods of a gateway; each waits for its reply and returns that.

    Tab completion, ``?`` and signatures are those of the gateway; an ``Ask[T]`` has become ``T``.

    Args:
        gateway_type: declares the methods.
        description: for its repr.
        call: see `Call`.
    """
    methods: dict[str, Any] = {
        name: _waiting(method, name, call) for name, method in gateway_methods(gateway_type).items()
    }
    kind = type(
        f"Synchronous{gateway_type.__name__}", (SynchronousGateway,), {**methods, "__doc__": gateway_type.__doc__}
    )
    return kind(description)


def _waiting(method: Callable[..., Any], name: str, call: Call) -> Callable[..., Any]:
    @functools.wraps(method)
    def wait(_self: Any, *args: Any, **kwargs: Any) -> Any:
        def ask(gateway: Any) -> Any:
            answer = getattr(gateway, name)(*args, **kwargs)
            return answer.result() if isinstance(answer, Ask) else answer

        return call(ask)

    signature, hints = inspect.signature(method), typing.get_type_hints(method)
    answer = hints.get("return")
    if typing.get_origin(answer) is Ask:
        (answer,) = typing.get_args(answer)
    parameters = [
        item.replace(annotation=hints.get(item.name, item.annotation)) for item in signature.parameters.values()
    ]
    wait.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=answer
    )
    return wait
