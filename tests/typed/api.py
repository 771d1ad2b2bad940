"""The types of the public API as a user's type checker sees them; nothing here is run."""

from __future__ import annotations

import asyncio
from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

from runtime.ids import JobID
from runtime.protocol.messages import ClusterOverview, ResourceOverview
from understudy import (
    AsyncCluster,
    AsyncJob,
    Cluster,
    Context,
    DispatcherGateway,
    EmbeddedCluster,
    Job,
    JobResult,
    JobStatus,
    Pipeline,
    as_completed,
    connect,
    connect_async,
    wait,
)


def count(spark: SparkSession, rows: int) -> int:
    return spark.range(rows).count()


def numbers(context: Context) -> DataFrame:
    assert_type(context.spark, SparkSession)
    return context.spark.range(3)


def a_job_has_the_type_of_its_functions_result(cluster: Cluster, pipeline: Pipeline) -> None:
    job = cluster.submit(count, 3)
    assert_type(job, Job[int])
    assert_type(job.result(timeout=1.5), int)
    assert_type(job.exception(), Exception | None)
    assert_type(cluster.options(name="x", priority=1).submit(count, 3), Job[int])
    assert_type(cluster.map(count, range(3)), list[Job[int]])
    assert_type(cluster.gather(cluster.map(count, range(3))), list[int])
    assert_type(cluster.submit(lambda: "text").result(), str)
    assert_type(cluster.submit(pipeline), Job[JobResult])
    assert_type(cluster.submit("job.py", "--day", 3).result(), JobResult)
    assert_type(cluster.job("0" * 32), Job[JobResult])
    assert_type([done.result() for done in as_completed([job])], list[int])
    assert_type(wait([job]).done.pop().done(), bool)
    cluster.options(nmae="x")  # type: ignore[call-arg]
    cluster.options(priority="high")  # type: ignore[arg-type]


def a_gateway_returns_the_answers(cluster: Cluster, job_id: JobID) -> None:
    assert_type(cluster.dispatcher.request_job_status(job_id), JobStatus)
    assert_type(cluster.resource_manager.request_resource_overview(), ResourceOverview)
    assert_type(cluster.actor("dispatcher", DispatcherGateway).request_cluster_overview(), ClusterOverview)
    cluster.dispatcher.request_job_status(3)  # type: ignore[arg-type]
    cluster.dispatcher.no_such_method()  # type: ignore[attr-defined]


async def in_coroutines() -> None:
    cluster = await connect_async()
    assert_type(cluster, AsyncCluster)
    job = await cluster.submit(count, 3)
    assert_type(job, AsyncJob[int])
    assert_type(await job, int)
    assert_type(await job.result(), int)
    assert_type(await job.status(), JobStatus)
    assert_type(await job.cancel(), JobStatus)
    assert_type(await connect().submit(count, 3), int)
    jobs = await cluster.map(count, range(3))
    assert_type(await asyncio.gather(*jobs), list[int])


def beside_a_spark_of_ones_own(spark: SparkSession) -> None:
    with EmbeddedCluster(spark) as cluster:
        assert_type(cluster.cluster, Cluster)
        assert_type(cluster.job, Job[JobResult])
        assert_type(cluster.access().actor("dispatcher", DispatcherGateway).request_cluster_overview(), ClusterOverview)
    EmbeddedCluster("no session")  # type: ignore[arg-type]
