"""`JvmDriver`: what the drivers of a cluster and of other programs have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.driver.api import ActiveQueries, SparkEndpoint, StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.connection import Connection
from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.spec import ConnectEndpoint


class JvmDriver:
    """The part of a `SparkDriver` that is the same for each driver JVM on this host.

    Args:
        jvm: its process, and the Py4J calls.
    """

    has_streaming = True

    def __init__(self, jvm: Connection[DriverGateway]) -> None:
        self.info = jvm.info
        self._jvm = jvm
        self._gateway = jvm.gateway

    @property
    def loss(self) -> str:
        return self._jvm.loss

    @property
    def alive(self) -> bool:
        return self._jvm.alive

    async def wait_dead(self, timeout: float | None = None) -> bool:
        return await self._jvm.wait_dead(timeout)

    async def ping(self) -> bool:
        return await self._jvm.call(self._gateway.ping)

    async def jvm_figures(self) -> dict[str, int] | None:
        return await self._jvm.call(self._gateway.jvm_figures)

    async def cores(self) -> int | None:
        return await self._jvm.call(self._gateway.cores)

    async def close(self) -> None:
        await self._jvm.close()

    async def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        return await self._jvm.call(self._gateway.start_settings, settings)

    async def ended_jobs(self, endpoint: ConnectEndpoint, most: int) -> list[EndedSparkJob]:
        return await self._jvm.call(self._gateway.ended_jobs, endpoint, most)

    async def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        return await self._jvm.call(self._gateway.streaming_queries, endpoint)

    async def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        return await self._jvm.call(self._gateway.active_queries, endpoint)

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        # on the loop's threads: this may take long
        return await asyncio.to_thread(self._gateway.stop_at_boundary, queries, drain, timeout_s)

    async def lock_file(self, path: Path, owner: str) -> bool:
        return await self._jvm.call(self._gateway.lock_file, str(path), owner)

    async def unlock_files(self, owner: str) -> None:
        await self._jvm.call(self._gateway.unlock_files, owner)
