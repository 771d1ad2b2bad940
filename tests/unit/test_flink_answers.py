"""The answers have what those of Flink 2.3 have; `flink_2_3.json` was recorded from a session cluster of it.

``answers`` has the form of each answer by its path: objects by their keys (``*`` for any key, ``?`` behind those that
are not always there), lists by the form of their items, else the JSON type. ``metrics`` has the ids of metrics: of the
JobManager, of a TaskManager, of a streaming job and of its first task; ``*.`` stands for the name of an operator.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.ids import TriggerID
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.rescales import VertexResourceRequirements
from tests.unit.test_rest_app import UNKNOWN, Site, filled, requirements_body
from tests.unit.test_rest_messages import ID, READ, WRITE, graph

FLINK: dict[str, Any] = json.loads(Path(__file__).with_name("flink_2_3.json").read_text())
KINDS = {"string": str, "number": (int, float), "boolean": bool}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "master.log").write_text("a line\n")
    (tmp_path / "master.out").write_text("")
    return Site(tmp_path)


def lacking(value: Any, form: Any, where: str = "$") -> list[str]:
    """What an answer lacks of a form, or has of another type."""
    if form == "null":
        return []
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return [] if value is None else [where]
        if "*" in form:
            return [place for key, part in value.items() for place in lacking(part, form["*"], f"{where}.{key}")]
        missing = [f"{where}.{key}" for key in form if not key.endswith("?") and key not in value]
        parts = {key.removesuffix("?"): part for key, part in form.items()}
        found = (lacking(value[key], part, f"{where}.{key}") for key, part in parts.items() if key in value)
        return [*missing, *(place for places in found for place in places)]
    if isinstance(form, list):
        if not isinstance(value, list):
            return [where]
        return [place for item in value for part in form for place in lacking(item, part, f"{where}[]")]
    if value is None:
        return []
    if form == "number" and value == "NaN":
        return []
    fits = isinstance(value, KINDS[form]) and isinstance(value, bool) == (form == "boolean")
    return [] if fits else [f"{where} is {value!r}"]


@pytest.mark.parametrize("path", FLINK["answers"])
async def test_an_answer_has_what_flinks_has(site: Site, path: str) -> None:
    answer = await site.ask("GET", filled(path))
    assert answer.status == 200, answer.body
    assert lacking(answer.json, FLINK["answers"][path]) == []


def test_what_an_answer_lacks_is_seen() -> None:
    form = {"a": "number", "b": [{"c": "string"}], "d": {"*": "boolean"}, "e?": "string"}
    assert lacking({"a": 1, "b": [{"c": "x"}], "d": {"any": True}}, form) == []
    assert lacking({"a": True, "b": [{}], "d": {"any": 1}, "e": 1}, form) == [
        "$.a is True",
        "$.b[].c",
        "$.d.any is 1",
        "$.e is 1",
    ]


def test_a_job_that_streams_is_told_as_such() -> None:
    assert graph().details().streams
    assert not graph(tasks=graph().tasks[1:]).details().streams


async def test_lists_say_which_jobs_stream(site: Site) -> None:
    (line, _) = (await site.ask("GET", "/jobs/overview")).json["jobs"]
    assert (line["jobType"], line["schedulerType"]) == ("STREAMING", "Default")
    (line,) = (await site.ask("GET", f"/applications/{ID}")).json["jobs"]
    assert (line["jobType"], line["schedulerType"]) == ("STREAMING", "Default")


async def test_an_attempt_is_named_by_its_id(site: Site) -> None:
    told = (await site.ask("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/0/attempts/1/accumulators")).json
    assert told["id"] == site.cluster.running.tasks[0].attempts[1].attempt_id
    assert "subtask-accumulators" not in told, "Flink 2.3 has no such field"


async def test_a_savepoint_is_told_by_its_uri(site: Site) -> None:
    wanted = TriggerID("c" * 32)
    site.cluster.operations[wanted] = OperationStatus(wanted, OperationState.COMPLETED, path="/data/s p/savepoint-1")
    told = (await site.ask("GET", f"/jobs/{ID}/savepoints/{wanted}")).json
    assert told["operation"] == {"location": "file:/data/s%20p/savepoint-1"}
    told = (await site.ask("GET", f"/jobs/{ID}/checkpoints")).json
    assert told["latest"]["savepoint"]["external_path"] == "file:/data/3"
    assert told["latest"]["restored"]["external_path"] == "file:/data/savepoint-0"


async def test_why_a_checkpoint_failed_is_told_where_flinks_client_looks(site: Site) -> None:
    wanted = TriggerID("c" * 32)
    site.cluster.operations[wanted] = OperationStatus(wanted, OperationState.FAILED, error="no room on the disk")
    told = (await site.ask("GET", f"/jobs/{ID}/checkpoints/{wanted}")).json
    assert "no room on the disk" in told["operation"]["failureCause"]["stack-trace"]
    told = (await site.ask("GET", f"/jobs/{ID}/savepoints/{wanted}")).json
    assert "no room on the disk" in told["operation"]["failure-cause"]["stack-trace"]


async def test_logs_say_when_they_were_written_to(site: Site) -> None:
    told = (await site.ask("GET", "/taskmanagers/tm-0/logs")).json
    assert told == {"logs": [{"name": "taskexecutor", "size": 5, "mtime": 4000}]}


REFUSED = [
    ("GET", f"/jobs/{ID}/vertices/{READ}/flamegraph?type=bogus", 400, "type must be one of full, on_cpu, off_cpu"),
    ("PATCH", f"/jobs/{UNKNOWN}?mode=cancel", 404, "Job could not be found"),
    (
        "PATCH",
        f"/jobs/{'2' * 32}?mode=cancel",
        409,
        "Job cancellation failed because the job has already reached another terminal state (FINISHED)",
    ),
    ("PATCH", f"/jobs/{ID}?mode=stop", 308, 'The termination mode "stop" has been removed'),
    ("GET", f"/jobs/{ID}/yarn-stop", 308, 'The termination mode "stop" has been removed'),
    ("GET", f"/jobs/{UNKNOWN}", 404, f"Job {UNKNOWN} not found"),
    ("POST", f"/jobs/{UNKNOWN}/savepoints", 404, f"Could not find Flink job ({UNKNOWN})"),
    ("POST", f"/jobs/{UNKNOWN}/stop", 404, f"Could not find Flink job ({UNKNOWN})"),
    ("POST", f"/jobs/{UNKNOWN}/checkpoints", 404, f"Could not find Flink job ({UNKNOWN})"),
    ("GET", f"/jobs/{ID}/rescales/config", 404, f"AdaptiveScheduler is not enabled for this job ({ID})"),
    ("GET", f"/jobs/{ID}/rescales/details/{'f' * 32}", 404, f"the job remembers no rescale {'f' * 32}"),
    ("GET", f"/jobs/{UNKNOWN}/rescales/history", 404, f"Job {UNKNOWN} not found"),
    ("GET", f"/jobs/{UNKNOWN}/resource-requirements", 404, f"Could not find Flink job ({UNKNOWN})"),
    ("GET", f"/jobs/{'2' * 32}/resource-requirements", 409, "is over"),
    ("PUT", f"/jobs/{ID}/resource-requirements", 400, "the body is not JSON"),
    ("GET", f"/jobs/{UNKNOWN}/rescales/config", 404, f"Job {UNKNOWN} not found"),
    ("PATCH", f"/jobs/{ID}/rescaling?parallelism=2", 503, "Rescaling"),
    ("GET", f"/jobs/{ID}/rescaling/{'a' * 32}", 503, "Rescaling"),
    *(
        (method, f"/{who}/profiler{file}", 404, "/taskmanagers/TM/flamegraph")
        for who in ("jobmanager", "taskmanagers/tm-0")
        for method, file in (("GET", ""), ("POST", ""), ("GET", "/x.html"))
    ),
]


async def test_the_rescales_of_a_job_are_where_flink_has_them(site: Site) -> None:
    told = (await site.ask("GET", f"/v1/jobs/{ID}/rescales/history")).json
    assert [one["rescaleUuid"][:1] for one in told] == ["c", "b", "a"]
    assert (await site.ask("GET", f"/jobs/{ID}/rescales/details/{'b' * 32}")).json == told[1]
    assert (await site.ask("GET", f"/jobs/{ID}/rescales/overview")).json["latest"]["failed"] == told[1]
    assert (await site.ask("GET", f"/jobs/{ID}/rescales/summary")).json["rescalesCounts"]["completed"] == 1


async def test_new_requirements_begin_a_rescale(site: Site) -> None:
    """As Flink's page does it: it puts what it has got, with another upper bound."""
    path = f"/v1/jobs/{ID}/resource-requirements"
    told = (await site.ask("GET", path)).json
    one = {"parallelism": {"lowerBound": 1, "upperBound": 1}}
    assert told == {READ: {"parallelism": {"lowerBound": 1, "upperBound": 4}}, WRITE: one}
    answer = await site.ask("PUT", path, [json.dumps(told).encode()])
    assert (answer.status, answer.json, site.cluster.rescaled) == (200, {}, [])
    told[READ]["parallelism"]["upperBound"] = 6
    answer = await site.ask("PUT", path, [json.dumps(told).encode()])
    assert (answer.status, answer.json) == (200, {})
    assert [(job, *rest) for job, _, *rest in site.cluster.rescaled] == [(ID, 6, "", "")], "all with state"
    site.cluster.requirements = [site.cluster.requirements[0], VertexResourceRequirements(WRITE, 1, 3, ("", "x"))]
    assert (await site.ask("PUT", path, [requirements_body(5, **{WRITE: (-1, -1)})])).status == 200
    assert site.cluster.rescaled[-1][2:] == (5, "clicks", ""), "the other vertex has state, too"
    assert (await site.ask("PUT", path, [requirements_body(7, **{WRITE: (2, 7)})])).status == 200
    assert site.cluster.rescaled[-1][2:] == (7, "", "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "must be an object of JSON"),
        (b'{"a": 4}', "Malformed request: the requirements of job vertex [a]"),
        (b'{"a": {"parallelism": {"lowerBound": true, "upperBound": 1}}}', "Malformed request"),
        (b'{"a": {"parallelism": [1, 2]}}', "Malformed request"),
        (b"{}", f"The request is incomplete, missing job vertex [{READ}] resource requirements. The request is"),
        (requirements_body(4, **{"c" * 32: (1, 1)}), f"Job vertex [{'c' * 32}] was not found in the JobGraph."),
        (
            requirements_body(0),
            f"Both, the requested lower bound [1] and upper bound [0] for job vertex [{READ}] must be greater than "
            "zero.",
        ),
        (
            requirements_body(4, **{READ: (5, 4)}),
            f"The requested lower bound [5] for job vertex [{READ}] is higher than the upper bound [4].",
        ),
        (requirements_body(1 << 31), f"{1 << 31} for the job vertex {READ} exceeds its maximum parallelism"),
        (
            requirements_body(4, **{WRITE: (1, 2)}),
            f"Job vertex [{WRITE}] keeps the bounds 1 and 1: it has no streaming query.",
        ),
    ],
)
async def test_requirements_that_no_rescale_meets_are_refused(site: Site, body: bytes, said: str) -> None:
    answer = await site.ask("PUT", f"/jobs/{ID}/resource-requirements", [body])
    assert (answer.status, said in answer.error, site.cluster.rescaled) == (400, True, []), answer.body


@pytest.mark.parametrize(
    ("others", "said"),
    [((1, 8), "One request changes one vertex"), ((1, 3), ""), ((1, 2), "has the queries one without a name, x with")],
)
async def test_one_request_is_one_rescale(site: Site, others: tuple[int, int], said: str) -> None:
    site.cluster.requirements = [site.cluster.requirements[0], VertexResourceRequirements(WRITE, 1, 3, ("", "x"))]
    upper = 4 if others == (1, 2) else 5
    answer = await site.ask("PUT", f"/jobs/{ID}/resource-requirements", [requirements_body(upper, **{WRITE: others})])
    assert (answer.status, said in answer.body.decode()) == (400 if said else 200, True), answer.body


@pytest.mark.parametrize(("method", "target", "status", "said"), REFUSED)
async def test_what_flink_refuses_is_refused_with_its_status_and_words(
    site: Site, method: str, target: str, status: int, said: str
) -> None:
    answer = await site.ask(method, target)
    assert (answer.status, said in answer.error) == (status, True), answer.body


async def test_a_job_that_is_canceled_already_may_be_cancelled_again(site: Site) -> None:
    site.cluster.finished = graph(JobStatus.CANCELED, job_id=site.cluster.finished.job_id)
    assert (await site.ask("PATCH", f"/jobs/{site.cluster.finished.job_id}?mode=cancel")).status == 202


async def test_logs_are_where_the_page_shows_them(site: Site) -> None:
    told = (await site.ask("GET", f"/jobs/{ID}/jobmanager/log-url")).json
    assert told == {"url": "http://localhost:8081/#/masters/logs"}
    told = (await site.ask("GET", f"/jobs/{ID}/taskmanagers/tm-0/log-url")).json
    assert told == {"url": "http://localhost:8081/#/taskmanagers/tm-0/logs"}
