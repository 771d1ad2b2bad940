"""Brings the logs of attempts, when these end, to where they outlive the TaskExecutor; and serves its own logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from actors.errors import ActorError
from actors.rpc.endpoint import RpcEndpoint
from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobError, BlobServerError
from runtime.gateways.diagnostics import ComponentLog, LogInfo
from runtime.gateways.errors import NoSuchLogError
from runtime.ids import ResourceID
from runtime.job_logs import KeptLog, LogChunk, read_chunk
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.taskexecutor.attempts import AttemptDirectories, keep_log, upload_log

PATIENCE_S = 15.0
"""How long an attempt's end waits at most for its logs to be put: a BlobServer that is replaced is back by then."""

RETRY_S = 0.5
OWN_MAX_SIZE = 256 * 1024
"""Most bytes that are kept, with an attempt, of each log of the TaskExecutor's own."""


class AttemptLogKeeper:
    """Puts the logs of one attempt.

    With its own go the lines that the TaskExecutor and its Spark driver logged meanwhile (those of other tasks among
    them, if there were any). What cannot be put is reported, and keeps the end from nobody.

    Args:
        endpoint: the TaskExecutor.
        deployment: of the attempt.
        put: puts what the attempt wrote; blocks, and raises BlobError or OSError.
        put_own: puts what the TaskExecutor logged meanwhile, likewise.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        deployment: TaskDeploymentDescriptor,
        put: Callable[[], list[KeptLog]],
        put_own: Callable[[], list[KeptLog]],
    ) -> None:
        self._endpoint = endpoint
        self._deployment = deployment
        self._put = put
        self._put_own = put_own
        self._early: asyncio.Task[list[KeptLog] | None] | None = None

    def begin(self) -> None:
        """The attempt's work is done well: what the TaskExecutor logged is put while its process comes to its end."""
        self._early = self._endpoint.spawn(self._try_early(), "putting logs")

    async def keep(self, well: bool) -> tuple[KeptLog, ...]:
        """The attempt has ended, *well* or with something more to be read of it: put what is not put yet."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                own = await self._early if well and self._early is not None else None
                while True:
                    try:
                        return tuple(await self._endpoint.run_blocking(self._put_rest, own))
                    except (BlobConnectionError, BlobServerError) as error:
                        self._endpoint.log.info("logs wait to be put: %s", error)
                    await asyncio.sleep(RETRY_S)
        except (ActorError, BlobError, OSError, TimeoutError) as error:
            self._endpoint.log.warning(
                "the logs of %s of job %s stay in this TaskExecutor alone: %s: %s",
                self._deployment.task_name,
                self._deployment.job_id,
                type(error).__name__,
                error,
            )
            return ()

    def _put_rest(self, own: list[KeptLog] | None) -> list[KeptLog]:
        return self._put() + (self._put_own() if own is None else own)

    async def _try_early(self) -> list[KeptLog] | None:
        try:
            return await self._endpoint.run_blocking(self._put_own)
        except (ActorError, BlobError, OSError) as error:
            self._endpoint.log.info("logs are put later: %s", error)
            return None


class LogKeeper:
    """The logs that leave a TaskExecutor.

    Args:
        endpoint: the TaskExecutor.
        attempts: has the files of its attempts.
        own: the logs of its own by name. They are all that is ever served: never what the Spark driver's JVM prints
            (its ``.out``), for Spark's workers print tokens there.
        client: gives the client of the BlobServer.
        max_size: most bytes that are kept of an attempt's log (``job.logs.max-size``).
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        attempts: AttemptDirectories,
        own: Mapping[str, Path],
        client: Callable[[], BlobClient],
        max_size: int,
    ) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._own = own
        self._client = client
        self._max_size = max_size

    def keeper_of(self, deployment: TaskDeploymentDescriptor) -> AttemptLogKeeper:
        """What puts the logs of an attempt that begins now."""
        starts = {name: path.stat().st_size if path.exists() else 0 for name, path in self._own.items()}

        def put() -> list[KeptLog]:
            job_id, client = deployment.job_id, self._client()
            return self._attempts.keep_logs(job_id, deployment.attempt_id, client, self._max_size)

        def put_own() -> list[KeptLog]:
            job_id, client, own = deployment.job_id, self._client(), self._own.items()
            return [keep_log(name, path, job_id, client, OWN_MAX_SIZE, starts[name]) for name, path in own]

        return AttemptLogKeeper(self._endpoint, deployment, put, put_own)

    def infos(self) -> list[LogInfo]:
        """The TaskExecutor's own logs."""
        found = ((name, path.stat()) for name, path in self._own.items() if path.exists())
        return [LogInfo(name, status.st_size, status.st_mtime_ns // 1_000_000) for name, status in found]

    def upload(self, name: str, client: BlobClient) -> ComponentLog:
        """Put one of the TaskExecutor's own logs as a TRANSIENT blob; raises NoSuchLogError, BlobError."""
        path = self._path_of(name)
        return upload_log(ResourceID(self._endpoint.name), name, path, client, self._max_size)

    def read(self, name: str, offset: int) -> LogChunk:
        """A piece of one of them; raises NoSuchLogError for another name, or a negative offset."""
        path = self._path_of(name)
        if offset < 0:
            raise NoSuchLogError(f"a log has no byte {offset}")
        return read_chunk(path, offset)

    def _path_of(self, name: str) -> Path:
        path = self._own.get(name)
        if path is None or not path.exists():
            raise NoSuchLogError(f"{name[:40]!r} is no log of a TaskExecutor: {' and '.join(self._own)} are")
        return path
