"""Metrics over HTTP: Flink's forms, aggregation, Prometheus's text; and processes that do not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import AskTimeout, RecipientUnreachable
from runtime.ids import ResourceID
from runtime.metrics.metric import (
    MetricDump,
    MetricKind,
    MetricQueryServiceGateway,
    MetricScope,
    ScopeCategory,
    ScopeDump,
    TaskManagerMetricAddress,
    Value,
    gauges,
)
from runtime.metrics.prometheus import MEDIA, exposition
from runtime.metrics.store import MetricStore, operator_prefix
from runtime.rest.backend import ClusterBackend
from runtime.rest.handlers import metrics as messages
from tests.unit.metric_values import METRICS
from tests.unit.test_rest_app import TOKEN, UNKNOWN, Site
from tests.unit.test_rest_messages import ID, READ, WRITE

SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def values_of(body: list[dict[str, str]]) -> dict[str, str]:
    return {row["id"]: row["value"] for row in body}


async def test_ids_are_listed_and_values_are_texts(site: Site) -> None:
    listed = (await site.ask("GET", "/v1/jobmanager/metrics")).json
    assert all(set(row) == {"id"} for row in listed)
    ids = [row["id"] for row in listed]
    assert {"numRunningJobs", "dispatcher.Status.Process.CPU.Time", "dispatcher.jobSubmissionTime_p99"} <= set(ids)
    told = (await site.ask("GET", f"/jobmanager/metrics?get={','.join(ids)}")).json
    assert [row["id"] for row in told] == ids
    assert all(set(row) == {"id", "value"} and isinstance(row["value"], str) for row in told)
    found = values_of(told)
    assert (found["numRunningJobs"], found["dispatcher.numSubmittedJobsPerSecond"]) == ("1", "0.25")
    assert (found["dispatcher.jobSubmissionTime_max"], found["dispatcher.jobSubmissionTime_median"]) == (
        "100.0",
        "50.0",
    )


async def test_ids_that_there_are_none_of_are_left_out(site: Site) -> None:
    assert (await site.ask("GET", "/jobmanager/metrics?get=nothing,numRunningJobs,numRunningJobs,,")).json == [
        {"id": "numRunningJobs", "value": "1"}
    ]


async def test_a_jobs_and_a_tasks_metrics(site: Site) -> None:
    told = values_of((await site.ask("GET", f"/jobs/{ID}/metrics?get=numRestarts,lastCheckpointExternalPath")).json)
    assert told == {"numRestarts": str(site.cluster.running.restarts), "lastCheckpointExternalPath": "n/a"}
    assert (await site.ask("GET", f"/jobs/{'2' * 32}/metrics")).json == []  # it is over
    task = (await site.ask("GET", f"/jobs/{ID}/vertices/{READ}/metrics")).json
    assert {"id": "0.attempt"} in task
    assert all(row["id"].startswith("0.") and "," not in row["id"] for row in task)
    operator = site.cluster.running.vertices[0].name
    assert any(row["id"].startswith(f"0.{operator_prefix(operator)}Spark.") for row in task)
    subtask = (await site.ask("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/0/metrics?get=attempt")).json
    assert values_of(subtask) == {"attempt": str(site.cluster.running.tasks[0].attempts[-1].number)}
    over_subtasks = (await site.ask("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/metrics?get=attempt&agg=max")).json
    assert over_subtasks == [{"id": "attempt", "max": float(values_of(subtask)["attempt"])}]
    none = (await site.ask("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/metrics?get=attempt&subtasks=1")).json
    assert none == []
    assert (await site.ask("GET", f"/jobs/{ID}/vertices/{WRITE}/jm-operator-metrics")).json == []


async def test_task_executors_are_aggregated_as_in_flink(site: Site) -> None:
    listed = (await site.ask("GET", "/taskmanagers/metrics")).json
    assert listed == [{"id": "taskSlotsTotal"}, {"id": "numRunningTasks"}]
    (row,) = (await site.ask("GET", "/taskmanagers/metrics?get=taskSlotsTotal,nothing")).json
    assert row == {
        "id": "taskSlotsTotal",
        "min": 2.0,
        "max": 4.0,
        "avg": 3.0,
        "sum": 6.0,
        "skew": pytest.approx(100 / 3),
    }
    some = await site.ask("GET", "/taskmanagers/metrics?get=taskSlotsTotal&agg=SUM,min&taskmanagers=tm-1,tm-9")
    assert some.json == [{"id": "taskSlotsTotal", "sum": 4.0, "min": 4.0}]
    one = (await site.ask("GET", "/taskmanagers/tm-0/metrics?get=numRunningTasks")).json
    assert one == [{"id": "numRunningTasks", "value": "1"}]
    jobs = (await site.ask("GET", f"/jobs/metrics?get=numRestarts,lastCheckpointExternalPath&agg=max&jobs={ID}")).json
    assert jobs == [{"id": "numRestarts", "max": float(site.cluster.running.restarts)}]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/taskmanagers/metrics?get=x&agg=median", 400),
        ("/jobs/metrics?agg=,x", 400),
        ("/taskmanagers/tm-9/metrics", 404),
        (f"/jobs/{UNKNOWN}/metrics", 404),
        (f"/jobs/{ID}/vertices/{'9' * 32}/metrics", 404),
        (f"/jobs/{ID}/vertices/{READ}/subtasks/1/metrics", 404),
    ],
)
async def test_what_there_is_not_is_told_in_flinks_form(site: Site, target: str, status: int) -> None:
    answer = await site.ask("GET", target)
    assert answer.status == status
    assert answer.error


async def test_those_who_ask_within_a_moment_share_one_question(tmp_path: Path) -> None:
    site = Site(tmp_path, max_age_s=10.0)
    for target in ("/jobmanager/metrics", "/taskmanagers/metrics", "/metrics/prometheus", "/v1/metrics/prometheus"):
        assert (await site.ask("GET", target)).status == 200
    assert site.cluster.asked == 1


async def test_prometheus_shows_the_token_as_everybody(site: Site) -> None:
    assert (await site.ask("GET", "/metrics/prometheus", token=b"")).status == 401
    answer = await site.ask("GET", "/metrics/prometheus", token=TOKEN)
    assert answer.headers["content-type"] == MEDIA
    names = set()
    for line in answer.body.decode().splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# TYPE \w+ (counter|gauge|summary)", line)
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            float(match[3])
            names.add(match[1])
    assert {"flink_jobmanager_numRunningJobs", "flink_jobmanager_job_numRestarts"} <= names
    assert {"flink_taskmanager_taskSlotsTotal", "flink_taskmanager_job_task_attempt"} <= names


def test_the_text_for_prometheus() -> None:
    told = exposition(MetricStore(METRICS).scopes).splitlines()
    assert told[:6] == [
        "# TYPE flink_jobmanager_numRunningJobs gauge",
        "flink_jobmanager_numRunningJobs 1",
        "# TYPE flink_jobmanager_taskSlotsTotal gauge",
        "flink_jobmanager_taskSlotsTotal 2",
        "# TYPE flink_jobmanager_Status_Process_CPU_Time gauge",
        'flink_jobmanager_Status_Process_CPU_Time{component="dispatcher"} 1500000000',
    ]
    assert "# TYPE flink_jobmanager_numSubmittedJobs counter" in told
    assert 'flink_jobmanager_jobSubmissionTime{component="dispatcher",quantile="0.99"} 99.0' in told
    assert 'flink_jobmanager_jobSubmissionTime_count{component="dispatcher"} 100' in told
    at = told.index("# TYPE flink_taskmanager_taskSlotsTotal gauge")
    assert told[at + 1 : at + 3] == [
        'flink_taskmanager_taskSlotsTotal{tm_id="tm-0"} 2',
        'flink_taskmanager_taskSlotsTotal{tm_id="tm-1"} 4',
    ]


def test_nothing_that_a_job_is_called_breaks_the_text() -> None:
    hostile = 'a"b\\c\nflink_up 1 {,} é'
    scope = MetricScope(ScopeCategory.JOB, job_id="1" * 32, job_name=hostile)
    numbers = gauges({"a.b-c": 1, "nan": float("nan"), "inf": float("inf"), "ninf": float("-inf"), "path": "/x"})
    counter = (MetricDump("a_b.c", MetricKind.COUNTER, 1),)
    told = exposition(MetricStore([ScopeDump(scope, (*numbers, *counter))]).scopes).splitlines()
    escaped = r'job_name="a\"b\\c\nflink_up 1 {,} é"'
    assert told == [  # of two that get one name, none is told
        "# TYPE flink_jobmanager_job_nan gauge",
        f'flink_jobmanager_job_nan{{job_id="{"1" * 32}",{escaped}}} NaN',
        "# TYPE flink_jobmanager_job_inf gauge",
        f'flink_jobmanager_job_inf{{job_id="{"1" * 32}",{escaped}}} +Inf',
        "# TYPE flink_jobmanager_job_ninf gauge",
        f'flink_jobmanager_job_ninf{{job_id="{"1" * 32}",{escaped}}} -Inf',
    ]


def test_a_sample_that_is_told_twice_is_exposed_once() -> None:
    scope = MetricScope(ScopeCategory.OPERATOR, task_id="t", operator_name="same")
    dumps = [ScopeDump(scope, gauges({"Spark.batchId": n})) for n in (1, 2)]
    store = MetricStore(dumps)
    assert store.tasks[("", "t")] == {"same.Spark.batchId": 2}
    assert exposition(store.scopes).count("Spark_batchId{") == 1
    one_name = MetricStore([ScopeDump(scope, gauges({"a.b": 1, "a-b": 2}))])
    assert exposition(one_name.scopes) == "", "it would be the figure of one of two"


def test_an_operators_name_separates_nothing() -> None:
    scope = MetricScope(ScopeCategory.OPERATOR, job_id="j", task_id="t", operator_name="read: a,b.c")
    assert MetricStore([ScopeDump(scope, gauges({"x": 1}))]).tasks[("j", "t")] == {"read__a_b_c-1a8b4730.x": 1}


def test_operators_whose_names_look_alike_have_ids_of_their_own() -> None:
    names = ["a_b", "a.b", "a b", "a:b", "a,b", operator_prefix("a.b").rstrip("."), "é.", "é ", "\ud800.", "_", "."]

    def told(names: Sequence[str]) -> dict[str, Value]:
        scopes = {
            name: MetricScope(ScopeCategory.OPERATOR, job_id="j", task_id="t", operator_name=name) for name in names
        }
        dumps = [ScopeDump(scope, gauges({"x": name})) for name, scope in scopes.items()]
        return MetricStore(dumps).tasks[("j", "t")]

    together = told(names)
    assert sorted(map(str, together.values())) == sorted(names), "each has its figure"
    assert together["a_b.x"] == "a_b", "an ordinary name is the prefix itself"
    assert all(not set(id_.removesuffix(".x")) & set(" .:,") for id_ in together)
    for name in names:
        ((id_, _),) = told([name]).items()
        assert together[id_] == name, "the id does not depend on which other operators there are"


@given(st.text("a_.- ,:0", min_size=1), st.text("a_.- ,:0", min_size=1))
def test_two_names_of_operators_never_have_one_prefix(one: str, other: str) -> None:
    assert (operator_prefix(one) == operator_prefix(other)) == (one == other)


@pytest.mark.parametrize(
    ("values", "skew"), [([5.0], 0.0), ([3.0, 3.0], 0.0), ([0.0, 0.0], 0.0), ([0.0, 4.0], 100.0), ([1.0, 3.0], 50.0)]
)
def test_skew_is_a_share_of_the_mean(values: list[float], skew: float) -> None:
    assert messages.AGGREGATIONS["skew"](values) == pytest.approx(skew)


class Told(ClusterBackend):
    """A cluster of processes that answer, do not answer, or are gone."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    async def ask(self, question: Callable[[Any], Awaitable[Any]], timeout_s: float | None = None) -> Any:
        async def control_plane() -> list[str]:
            return [address for address in self.answers if not address.startswith("tm")]

        async def workers() -> list[TaskManagerMetricAddress]:
            return [TaskManagerMetricAddress(ResourceID(one), one) for one in self.answers if one.startswith("tm")]

        dispatcher = SimpleNamespace(
            request_metric_query_service_addresses=control_plane,
            request_task_manager_metric_query_service_addresses=workers,
        )
        return await question(dispatcher)

    def _metric_query_service(self, address: str) -> MetricQueryServiceGateway:
        async def query_metrics() -> Any:
            await asyncio.sleep(0)
            answer = self.answers[address]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return cast("MetricQueryServiceGateway", SimpleNamespace(query_metrics=query_metrics))

    def _own_metrics(self) -> list[ScopeDump]:
        return [ScopeDump(MetricScope(ScopeCategory.JOB_MANAGER, component="rest"), gauges({"x": 1}))]


async def test_who_does_not_answer_takes_nothing_from_the_others() -> None:
    scope = MetricScope(ScopeCategory.TASK_MANAGER, task_manager="tm-1")
    cluster = Told(
        {
            "dispatcher": [ScopeDump(MetricScope(ScopeCategory.JOB_MANAGER), gauges({"numRunningJobs": 3}))],
            "jobmaster": AskTimeout("no answer"),
            "tm-0": RecipientUnreachable("it is gone"),
            "tm-1": [ScopeDump(scope, gauges({"taskSlotsTotal": 2}))],
        }
    )
    store = await cluster.metrics()
    assert store.job_manager == {"rest.x": 1, "numRunningJobs": 3}
    assert store.task_managers == {"tm-1": {"taskSlotsTotal": 2}}
