"""A cluster in a notebook: connecting to it, its handle, and its actors as objects whose methods return the answers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import tempfile
import typing
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from actors.address import ActorAddress
from actors.rpc.gateway import Ask, RpcGateway, gateway_methods
from conf.configuration import Configuration
from conf.options import ClientOptions, HighAvailabilityOptions, SecurityOptions
from conf.secret import SecretStr
from runtime.api import Pipeline
from runtime.application.client import application_client
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_as_configured, connect_by_address, connect_by_http, connect_by_redis
from runtime.cluster.views import view_of_details, view_of_task_manager
from runtime.errors import NotebookError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph
from runtime.notebook.ends import JobEnds
from runtime.notebook.html import cluster_html, jobs_html
from runtime.notebook.job import AsyncJob, Job
from runtime.notebook.submission import (
    SUBMIT_OPTIONS,
    SubmitOptions,
    graph_of_work,
    job_settings,
    restore_settings,
)
from runtime.protocol.archived_execution_graph import JobResult
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, is_component
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import ClusterOverview
from runtime.protocol.resource_manager import ResourceManagerGateway

if TYPE_CHECKING:
    from runtime.notebook.gateways import (
        SynchronousDispatcherGateway,
        SynchronousMasterGateway,
        SynchronousResourceManagerGateway,
    )

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")
P = ParamSpec("P")

SHOWN_JOBS = 10

Call = Callable[[Callable[[Any], Any]], Any]
"""Calls a function with the present gateway, and again with another one if the leader changes."""


class Cluster:
    """A handle of a cluster; made by `runtime.notebook.connect`. A context manager, or call `close`.

    Args:
        client: connected to it; closed with this handle.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._ends = JobEnds(client)

    @property
    def address(self) -> str:
        """Address of the Dispatcher, or of the web endpoint, that receives the requests."""
        return self.client.address

    # --------------------------------------------------------------------- jobs

    @overload
    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]: ...

    @overload
    def submit(self, work: Pipeline | str | PathLike[str], /, *args: Any, **kwargs: Any) -> Job[JobResult]: ...

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a job, and return its handle, a future, once the cluster has accepted the job.

        Args:
            work: a function, whose return value is the job's result; a `runtime.api.Pipeline`; or the path of a PySpark
                script or pipeline file. A function's parameter ``spark`` receives the task's session; no positional
                argument is bound to it.
            args: arguments of the function, or the command line of the file.
            kwargs: keyword arguments of the function, all of them: `options` takes options of the job.

        Raises:
            FunctionTaskError: the function or its arguments cannot be pickled.
            JobFileError, JobGraphError, JobSubmissionError: the job is not valid, or not accepted.
            NotebookError: the arguments do not fit the work.
            OSError: a file cannot be read.
        """
        return self.options().submit(work, *args, **kwargs)

    def map(self, function: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[Job[T]]:
        """Submit a job for each item, and return their handles in the same order; as Dask's ``Client.map``.

        It returns handles, not results, because a job is more than a call: it can be watched and cancelled while others
        run. `gather` returns the results, and `runtime.notebook.as_completed` the jobs as they end.

        Args:
            function: called with one item of each of the iterables, until the shortest one ends.
            iterables: all their items are read, and pickled, before anything is submitted.
            kwargs: keyword arguments of the function, for every call.

        Raises:
            FunctionTaskError: the function or an item cannot be pickled; nothing was submitted.
            JobGraphError, JobSubmissionError: a job is not accepted; those before it keep running.
        """
        return self.options().map(function, *iterables, **kwargs)

    def options(self, **options: Unpack[SubmitOptions]) -> Submitter:
        """Return a `Submitter` with these options: ``cluster.options(name="x").submit(function, name="own")``.

        Args:
            options: see `SubmitOptions`.

        Raises:
            NotebookError: an option does not exist.
        """
        if unknown := sorted(options.keys() - set(SUBMIT_OPTIONS)):
            raise NotebookError(f"{unknown[0]!r} is not an option of a job", f"those are {', '.join(SUBMIT_OPTIONS)}")
        return Submitter(self.client, self._ends, options)

    def gather(self, jobs: Iterable[Job[T]], *, errors: Literal["raise", "skip"] = "raise") -> list[T]:
        """Wait for jobs, and return their results in the same order; as Dask's ``Client.gather``.

        Args:
            jobs: handles of jobs.
            errors: ``"raise"`` the first error of a job, while the others keep running; ``"skip"`` the results of jobs
                that have failed or were cancelled.

        Raises:
            ValueError: *errors* is something else.
            Exception: as `Job.result`.
        """
        if errors not in ("raise", "skip"):
            raise ValueError(f"errors={errors!r} is neither 'raise' nor 'skip'")
        return [job.result() for job in jobs if errors == "raise" or _has_result(job)]

    def job(self, job_id: str) -> Job[JobResult]:
        """Return a handle of a job that any client has submitted; raises `JobNotFoundError`."""
        wanted = JobID(job_id)
        self.client.status_of(wanted)
        return Job(self.client, wanted, ends=self._ends)

    def jobs(self) -> Jobs:
        """Return running and finished jobs, the newest first."""
        return Jobs(
            Job(self.client, details.job_id, details=details, ends=self._ends) for details in self.client.list_jobs()
        )

    # ------------------------------------------------------------------- actors

    @property
    def dispatcher(self) -> SynchronousDispatcherGateway:
        """The leading Dispatcher: every method of `DispatcherGateway`, returning the answer itself."""
        return self.actor("dispatcher", DispatcherGateway)

    @property
    def resource_manager(self) -> SynchronousResourceManagerGateway:
        """The leading ResourceManager: every method of `ResourceManagerGateway`, returning the answer itself."""
        return self.actor("resourcemanager", ResourceManagerGateway)

    @overload
    def actor(self, name: str, gateway_type: type[DispatcherGateway]) -> SynchronousDispatcherGateway: ...

    @overload
    def actor(self, name: str, gateway_type: type[ResourceManagerGateway]) -> SynchronousResourceManagerGateway: ...

    @overload
    def actor(self, name: str, gateway_type: type[MasterGateway]) -> SynchronousMasterGateway: ...

    @overload
    def actor(self, name: str, gateway_type: type[RpcGateway]) -> Any: ...

    def actor(self, name: str, gateway_type: type[RpcGateway]) -> Any:
        """Return an actor by its name in the cluster, or by its address; its methods return the answers themselves.

        Args:
            name: ``dispatcher``, or ``akka.tcp://<system>@<host>:<port>/user/<name>``.
            gateway_type: the interface with its methods.

        Raises:
            UnknownActor: there is no such actor. A name is unknown if no master lists it for 5 s. A component, such as
                ``dispatcher``, is waited for instead when it is called, since its leader may be changing. The JobMaster
                of a job (``jobmaster-<job id>``) is unknown at once if the job is over or does not exist.
            RecipientUnreachable: no process listens at that address.
            NoAnswerError: no master answers for ``client.timeout``.
            HttpError: clients cannot call this actor by HTTP.
        """
        if "://" not in name:
            if is_component(name):
                self.client.check_job(name)
            else:
                self.client.call(name, gateway_type, lambda gateway: None)  # raises now, not at the first call
            return self._following(name, gateway_type)
        address = ActorAddress.parse(name)
        self.client.lookup_address(address, gateway_type)  # raises now, not at the first call
        call = lambda question: question(self.client.lookup_address(address, gateway_type))  # noqa: E731
        return synchronous(gateway_type, f"{gateway_type.__name__} of {address}", call)

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return the gateway itself, whose methods return an `Ask`: to be awaited, or for many requests at once."""
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
        """Return counts of TaskExecutors, slots and jobs."""
        return self.client.overview()

    def close(self) -> None:
        """Close the connections; the cluster and its jobs keep running."""
        self._ends.close()
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster at {self.address}>"  # sends no request: a debugger may show it

    def _repr_html_(self) -> str:
        workers = [view_of_task_manager(view) for view in self.client.task_managers()]
        jobs = [view_of_details(details) for details in self.client.list_jobs()]
        return cluster_html(self.address, self.client.overview(), workers, jobs[:SHOWN_JOBS])


class Submitter:
    """Submits jobs with options; made by `Cluster.options`.

    Args:
        client: connected to the cluster.
        ends: notices the ends of its jobs.
        options: of each job.
    """

    def __init__(self, client: ClusterClient, ends: JobEnds, options: SubmitOptions) -> None:
        self._client = client
        self._ends = ends
        self._options = options

    def __repr__(self) -> str:
        return f"<Submitter with {self._options}>"

    @overload
    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Job[T]: ...

    @overload
    def submit(self, work: Pipeline | str | PathLike[str], /, *args: Any, **kwargs: Any) -> Job[JobResult]: ...

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a job with these options; as `Cluster.submit`. Also raises OSError, SavepointError for a savepoint."""
        with tempfile.TemporaryDirectory(prefix="understudy-job-") as scratch:
            return self._submit(*self._prepare(work, args, kwargs, Path(scratch)))

    def map(self, function: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[Job[T]]:
        """Submit a job for each item with these options; as `Cluster.map`."""
        if "job_id" in self._options:
            raise NotebookError("the jobs of a map cannot have one job_id", "leave it out, or submit each by itself")
        with tempfile.TemporaryDirectory(prefix="understudy-job-") as scratch:
            prepared = []
            for number, items in enumerate(zip(*iterables, strict=False)):
                own = Path(scratch, str(number))
                own.mkdir()
                prepared.append(self._prepare(function, items, kwargs, own))
            return [self._submit(*job) for job in prepared]

    def _prepare(
        self, work: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], scratch: Path
    ) -> tuple[JobGraph, Path, bool]:
        """Make the graph of a job and the file with its code; returns as `graph_of_work`."""
        options = self._options
        job_id = options.get("job_id")
        wanted = None if job_id is None else JobID(job_id)
        graph, main, returns = graph_of_work(work, args, kwargs, options.get("name"), wanted, scratch)
        savepoint = restore_settings(
            options.get("from_savepoint"),
            options.get("allow_non_restored_state", False),
            options.get("new_query_id"),
            is_here=self._client.sees_files,
        )
        settings = job_settings(options.get("settings") or {})
        graph = replace(graph, priority=options.get("priority", 0), configuration=settings, savepoint=savepoint)
        return graph, main, returns

    def _submit(self, graph: JobGraph, main: Path, returns: bool) -> Job[Any]:
        files = (
            (ArtifactRole.PY_FILE, self._options.get("py_files", ())),
            (ArtifactRole.PACKAGE, self._options.get("packages", ())),
            (ArtifactRole.REQUIREMENTS, self._options.get("requirements", ())),
            (ArtifactRole.ARCHIVE, self._options.get("archives", ())),
            (ArtifactRole.JAR, self._options.get("jars", ())),
        )
        libraries = [(Path(path), role) for role, paths in files for path in paths]
        accepted = self._client.submit(graph, main, libraries=libraries)
        # An application gives its jobs their ids.
        graph = replace(graph, job_id=accepted)
        return Job(self._client, accepted, graph=graph, returns=returns, ends=self._ends)


class AsyncCluster:
    """A handle of a cluster for coroutines; made by `connect_async`. An async context manager, or await `close`.

    A call occupies a thread of asyncio's default executor until the cluster has answered; waiting for jobs occupies
    none.

    Args:
        cluster: its handle for plain threads; closed with this handle.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def options(self, **options: Unpack[SubmitOptions]) -> AsyncSubmitter:
        """Return an `AsyncSubmitter` with these options; as `Cluster.options`."""
        return AsyncSubmitter(self.cluster.options(**options))

    @overload
    async def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> AsyncJob[T]: ...

    @overload
    async def submit(
        self, work: Pipeline | str | PathLike[str], /, *args: Any, **kwargs: Any
    ) -> AsyncJob[JobResult]: ...

    async def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> AsyncJob[Any]:
        """Submit a job; as `Cluster.submit`."""
        job: AsyncJob[Any] = await self.options().submit(work, *args, **kwargs)
        return job

    async def map(self, function: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[AsyncJob[T]]:
        """Submit a job for each item; as `Cluster.map`. ``asyncio.gather(*jobs)`` waits for them."""
        return await self.options().map(function, *iterables, **kwargs)

    async def job(self, job_id: str) -> AsyncJob[JobResult]:
        """Return a handle of a job that any client has submitted; raises `JobNotFoundError`."""
        return AsyncJob(await asyncio.to_thread(self.cluster.job, job_id))

    async def jobs(self) -> list[AsyncJob[JobResult]]:
        """Return running and finished jobs, the newest first."""
        return [AsyncJob(job) for job in await asyncio.to_thread(self.cluster.jobs)]

    async def overview(self) -> ClusterOverview:
        """Return counts of TaskExecutors, slots and jobs."""
        return await asyncio.to_thread(self.cluster.overview)

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return a gateway, whose answers have to be awaited; as `Cluster.lookup`. The look-up itself blocks."""
        return self.cluster.lookup(name, gateway_type)

    async def close(self) -> None:
        """Close the connections; the cluster and its jobs keep running."""
        await asyncio.to_thread(self.cluster.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncCluster at {self.cluster.address}>"


class AsyncSubmitter:
    """Submits jobs with options; made by `AsyncCluster.options`.

    Args:
        submitter: submits in plain threads.
    """

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter

    @overload
    async def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> AsyncJob[T]: ...

    @overload
    async def submit(
        self, work: Pipeline | str | PathLike[str], /, *args: Any, **kwargs: Any
    ) -> AsyncJob[JobResult]: ...

    async def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> AsyncJob[Any]:
        """Submit a job with these options; as `Cluster.submit`."""
        return AsyncJob(await asyncio.to_thread(self._submitter.submit, work, *args, **kwargs))

    async def map(self, function: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[AsyncJob[T]]:
        """Submit a job for each item with these options; as `Cluster.map`."""
        jobs = await asyncio.to_thread(self._submitter.map, function, *iterables, **kwargs)
        return [AsyncJob(job) for job in jobs]


def _has_result(job: Job[Any]) -> bool:
    try:
        return job.exception() is None
    except CancelledError:
        return False


class Jobs(Sequence[Job[JobResult]]):
    """Handles of jobs, shown as a table."""

    def __init__(self, jobs: Iterable[Job[JobResult]]) -> None:
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
    """Return a handle of a running cluster. It follows the leader when another master takes over.

    Args:
        address: address of a master, ``akka.tcp://understudy@host:6123``, or of any actor there; or of a web endpoint,
            ``https://host:8081``, or several with commas between them. A web endpoint needs the token, but neither the
            secret nor RPC ports. None: the cluster of ``client.url`` or of this machine's runtime directory, unless
            *redis* is given; in an application's main(), its own cluster.
        token: for a web endpoint. None: the environment's UNDERSTUDY_TOKEN, or ``client.token-file``.
        ca_file: authorities that may sign a web endpoint's certificate (PEM). None: those of the system.
        redis: URL of the cluster's Redis, which has the address of the leader; also ``redis+sentinel://``. The setting
            ``cluster.id`` names the cluster.
        secret_file: the cluster's secret, copied from ``security.secret-file`` there. None: as this machine's
            configuration says, ``~/.understudy/<cluster.id>/secret``.
        config: a configuration file that replaces ``$UNDERSTUDY_CONF_DIR/config.yaml``.
        settings: further options by key, as with ``-D``: ``{"cluster.id": "second"}``.

    Raises:
        ClusterNotRunning: no cluster runs there.
        SecurityError: the secret cannot be read, or is not the cluster's.
        ActorError: the cluster does not answer within ``client.timeout``.
        HaError: Redis cannot be used.
        ConfigurationError: a setting is not valid.
    """
    own = application_client()
    if own is not None and address is None and redis is None:
        return Cluster(cast(ClusterClient, own))
    configuration = Configuration.load(None if config is None else Path(config))
    configuration = configuration.overlaid(dict(settings or {}), "settings")
    configuration.report_warnings(lambda text: warnings.warn(text, stacklevel=2))
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
        client.overview()  # raises now if something is wrong, not at the first use
    except BaseException:
        client.close()
        raise
    return Cluster(client)


def _for_coroutines(connect: Callable[P, Cluster]) -> Callable[P, Coroutine[Any, Any, AsyncCluster]]:
    async def connect_async(*args: P.args, **kwargs: P.kwargs) -> AsyncCluster:
        """Return a handle of a running cluster for coroutines; arguments and errors as with `connect`."""
        return AsyncCluster(await asyncio.to_thread(connect, *args, **kwargs))

    connect_async.__signature__ = inspect.signature(connect).replace(  # type: ignore[attr-defined]
        return_annotation="AsyncCluster"
    )
    connect_async.__qualname__ = "connect_async"
    return connect_async


connect_async = _for_coroutines(connect)


def _any_path(address: str) -> str:
    """Return the address of an actor: of a master's bare address, that of its Dispatcher."""
    bare = address.rstrip("/")
    return bare if "/" in bare.removeprefix("akka.tcp://") else f"{bare}/user/{DISPATCHER}"


class SynchronousGateway:
    """Base of the classes that `synchronous` makes: each method of a gateway waits for its answer."""

    def __init__(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"<{self._description}>"


def synchronous(gateway_type: type[RpcGateway], description: str, call: Call) -> Any:
    """Return an object with the methods of a gateway; each waits for its reply and returns it.

    Tab completion, ``?`` and signatures are those of the gateway, with ``T`` instead of ``Ask[T]``.

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
