"""The example notebook, executed as Jupyter does, and a cluster that is found by its address and by its Redis."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from pyspark.errors import AnalysisException

from actors.errors import AuthenticationError
from conf.configuration import Configuration
from conf.options import HighAvailabilityOptions
from runtime.errors import ClusterNotRunning
from runtime.notebook import JobFailedError, as_completed, connect, connect_async, wait
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.master import MasterGateway
from tests.cluster_harness import ROOT, Cluster
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

EXAMPLE = ROOT / "examples" / "notebook.ipynb"


class _Watched(NotebookClient):
    """Notes which processes the kernel has beside it."""

    beside: set[str]

    async def async_execute_cell(self, *arguments: Any, **keywords: Any) -> Any:
        answer = await super().async_execute_cell(*arguments, **keywords)
        children = psutil.Process(self.km.provisioner.pid).children(recursive=True)
        self.beside |= {child.name() for child in children}
        return answer


@pytest.fixture
def configured(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster is the one of this process, and of those that it starts."""
    (tmp_path / "config.yaml").write_text(f"cluster.runtime-dir: {cluster.directory}\n")
    monkeypatch.setenv("UNDERSTUDY_CONF_DIR", str(tmp_path))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return cluster


def test_the_example_runs(configured: Cluster) -> None:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    client = _Watched(notebook, timeout=PATIENCE_S, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    client.beside = set()
    client.execute()
    assert client.beside == set()  # no actor system, no Spark, nothing

    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = {index: _shown(cell.outputs) for index, cell in enumerate(cells)}
    assert "akka.tcp://understudy@" in shown[0]["text/html"]
    assert shown[1]["text/plain"] == "{'id': 871, 'steps': 178}"
    assert "FINISHED" in shown[1]["text/html"]  # the bars, drawn anew in one output
    assert sum("text/html" in output.get("data", {}) for output in cells[1].outputs) == 1
    assert "looked at 999 numbers" in shown[2]["text/plain"]
    assert "data:image/svg+xml;base64," in shown[3]["text/html"]
    assert shown[4]["stdout"].split() == ["total", "328350", "SUCCEEDED"]
    assert "hello, world: 5" in shown[6]["stdout"]
    assert shown[7]["text/plain"] == "[3, 4]"
    failed = shown[8]["stderr"]
    assert "ZeroDivisionError: division by zero" in failed
    assert "remedy:" in failed
    assert "runtime/notebook" not in failed  # not our traceback
    assert "free_slots=" in shown[9]["text/plain"] or "ResourceOverview" in shown[9]["text/plain"]
    assert "greeting" in shown[10]["text/html"]


def _shown(outputs: list[Any]) -> dict[str, str]:
    """The last of each kind of a cell's outputs, streams by their names."""
    found: dict[str, str] = {}
    for output in outputs:
        if output.output_type == "stream":
            found[output.name] = found.get(output.name, "") + output.text
        else:
            found |= dict(output.get("data", {}))
    return found


def test_a_cluster_is_found_by_address_and_by_redis(configured: Cluster, tmp_path: Path) -> None:
    secret = configured.directory / "secret"
    running = Configuration.read(configured.directory / "configuration.json")
    url = running.get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    with connect() as local:
        address = local.address.removesuffix("/user/dispatcher")
    found = {
        "address": connect(address, secret_file=secret),
        "redis": connect(redis=url.reveal(), secret_file=secret),
    }
    for cluster in found.values():
        with cluster:
            assert cluster.overview().task_managers == 1
            assert cluster.dispatcher.request_masters() == [f"{address}/system/receptionist"]
            master = cluster.actor(f"{address}/user/master", MasterGateway)
            assert master.request_status().cluster_id == "default"
            assert cluster.lookup("dispatcher", DispatcherGateway).request_masters().result()
    with pytest.raises(ClusterNotRunning, match="no leader of the cluster 'other'"):
        connect(
            redis=url.reveal(), secret_file=secret, settings={"cluster.id": "other", "high-availability.lease": "0.2s"}
        )
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    with pytest.raises(AuthenticationError):
        connect(address, secret_file=wrong)


@pytest.mark.parametrize("transport", ["rpc", "http"])
def test_a_job_is_waited_for_cancelled_and_found_again(
    configured: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    if transport == "http":
        rest = RestClient.of(configured)
        monkeypatch.setenv("UNDERSTUDY_URL", rest.url)
        monkeypatch.setenv("UNDERSTUDY_TOKEN", rest.token)
    gate = tmp_path / "gate"

    def wait(spark: Any) -> None:
        import time

        gate.touch()
        while True:
            time.sleep(0.05)

    with connect() as cluster:
        job = cluster.submit(wait)
        with pytest.raises(TimeoutError, match="it keeps running"):
            job.result(timeout=0.1)
        assert (job.done(), job.cancelled()) == (False, False)
        again = cluster.job(job.id)
        assert again.cancel().value == "CANCELED"
        assert job.cancel().value == "CANCELED"
        with pytest.raises(CancelledError, match="is CANCELED") as caught:
            job.result()
        assert isinstance(caught.value, JobFailedError)
        assert job.cancelled()
        assert "data:image/svg+xml" in again._repr_html_()
        assert job.checkpoints()._repr_html_() == "no checkpoints"


class DayError(Exception):
    """An error of a user's own, which takes other arguments than a text."""

    def __init__(self, day: int) -> None:
        super().__init__(day)
        self.day = day


def test_jobs_are_futures(configured: Cluster) -> None:
    def count(spark: Any, rows: int, name: str = "") -> tuple[int, str]:
        return spark.range(rows).count(), name

    def fail(day: int) -> None:
        raise DayError(day)

    def missing(spark: Any) -> None:
        spark.table("no_such_table")

    with connect() as cluster:
        jobs = cluster.options(name="counting").map(count, [3, 4, 5], name="own")
        assert {job.name for job in as_completed(jobs)} == {"counting"}
        assert cluster.gather(jobs) == [(3, "own"), (4, "own"), (5, "own")]
        assert wait(jobs).not_done == set()

        failed = cluster.submit(fail, 7)
        with pytest.raises(DayError) as caught:
            failed.result()
        assert caught.value.day == 7
        assert isinstance(caught.value.__cause__, JobFailedError)
        assert "raise DayError(day)" in caught.value.__cause__.details
        assert cluster.gather([failed, *jobs], errors="skip") == cluster.gather(jobs)
        with pytest.raises(JobFailedError, match="DayError: 7"):
            cluster.job(failed.id).result()  # somebody else's handle: nothing is unpickled
        error = cluster.submit(missing).exception()
        assert type(error) is AnalysisException
        assert error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"

        async def wait_for_all() -> list[tuple[int, str]]:
            return await asyncio.gather(*cluster.map(count, [6, 7]))

        assert asyncio.run(wait_for_all()) == [(6, ""), (7, "")]

    async def by_coroutines() -> None:
        async with await connect_async() as cluster:
            job = await cluster.submit(count, 8)
            assert await job == (8, "")
            assert await job.done()
            failing = await cluster.options(name="failing").submit(fail, 9)
            assert isinstance(await failing.exception(), DayError)
            assert "DayError: 9" in await failing.logs("stderr")

    asyncio.run(by_coroutines())
