"""The OpenAPI document is true: schemathesis asks a served application all that it describes, rightly and wrongly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runtime.protocol.http_gateways import MSGPACK
from runtime.rest.handlers import ROUTES
from runtime.rest.listening import listen
from runtime.rest.routing import PREFIX
from runtime.rest.server import RestServer
from tests.unit.test_rest_app import TOKEN, Site, filled
from tests.waiting import PATIENCE_S

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: the extra `test`")
CHECKS = pytest.importorskip("schemathesis.checks").CHECKS

SHOWN = {"Authorization": f"Bearer {TOKEN.decode()}"}
EXAMPLES = 4
OPERATIONS = {f"{route.method} {PREFIX}{route.path}": route for route in ROUTES}
CHOOSY = {
    *(label for label, route in OPERATIONS.items() if route.status >= 400),
    *(f"POST {PREFIX}{path}" for path in ("/jobs/{jobid}/savepoints", "/jobs/{jobid}/stop", "/savepoint-disposal")),
    *(f"POST {PREFIX}{path}" for path in ("/jobs/{jobid}/rescales", "/scripts", "/graphs")),
    f"GET {PREFIX}/taskmanagers/{{taskmanagerid}}/flamegraph",
    f"PATCH {PREFIX}/log-levels",
    f"PUT {PREFIX}/jobs/{{jobid}}/resource-requirements",
    f"POST {PREFIX}/gateways/{{gateway}}/{{method}}",
    f"DELETE {PREFIX}/blobs/{{key}}",
}
"""Those that refuse what no schema can tell: all of it, directories that are not allowed, a rescale with neither a
number nor an undo, vertices of another job, files that are no Python, samples that would take too long, loggers that
there are none of, arguments of another form, blobs of jobs."""

ALWAYS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@schemathesis.serializer(MSGPACK)
def _as_msgpack(context: Any, value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=str)
    return packed


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The application over a made-up cluster behind the real server, on a thread of its own."""
    (directory / "master.log").write_text("a line\n")
    (directory / "master.out").write_text("")
    site, ready, places = Site(directory), threading.Event(), []

    async def serve() -> None:
        listener = listen("127.0.0.1", [0], "rest.port")
        server = RestServer(site.app, listener, None, 50)
        await server.start()
        stopped = asyncio.Event()
        places.append((f"http://127.0.0.1:{listener.getsockname()[1]}", asyncio.get_running_loop(), stopped))
        ready.set()
        await stopped.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    url, loop, stopped = places[0]
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What schemathesis makes of the document."""
    with served(tmp_path_factory.mktemp("log")) as url:
        yield schemathesis.openapi.from_url(f"{url}/v1/openapi.json", headers=SHOWN)


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_every_answer_is_as_the_document_says(api: Any, label: str, mode: str) -> None:
    """Half of the requests name what there is. What a client adds to a request is not an error, as in Flink."""
    method, path = label.split()
    route = OPERATIONS[label]
    operation = api[path][method]
    checks = [
        check
        for check in CHECKS.get_all()
        if (check.__name__ in ALWAYS and not (route.status >= 500 and check.__name__ == "not_a_server_error"))
        or (mode == "POSITIVE" and check.__name__ == "positive_data_acceptance" and label not in CHOOSY)
    ]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]), known=st.booleans())
    def ask(case: Any, known: bool) -> None:
        if known:
            case.path_parameters = {name: filled("{" + name + "}") for name in case.path_parameters or ()}
        case.call_and_validate(headers=SHOWN, checks=checks)

    ask()


def test_the_document_has_these_operations(api: Any) -> None:
    """All but its own, which schemathesis leaves out."""
    assert {found.ok().label for found in api.get_all_operations()} == OPERATIONS.keys()
