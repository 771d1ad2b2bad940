"""PySpark's own doctests of `pyspark.sql` with Connect pass through the gateway wherever they pass directly.

The long form compares with a Spark Connect server as Spark starts it, which knows nothing of this project. The short
form is in `test_connect.py`: it compares with the Connect server of a driver of the same cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster_harness import started
from tests.connect_doctests import MODULES, VARYING, differences, run_in_child
from tests.fakes.sshd import unused_port
from tests.standalone_spark import connect_endpoint, spark_environment

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef"
TIMEOUT_S = 3600.0

FLOORS = {
    "pyspark.sql.connect.column": 0.9,
    "pyspark.sql.connect.dataframe": 0.9,
    "pyspark.sql.connect.functions.builtin": 0.9,
}
"""Least share of a module's examples that pass; others have to pass by half."""


class Servers(NamedTuple):
    """URLs, with their tokens."""

    bare: str
    door: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Spark's own server, and a cluster with a gateway and one driver."""
    directory, port = tmp_path_factory.mktemp("d"), unused_port()
    (directory / "bare").mkdir()
    with connect_endpoint(directory / "bare", spark_environment(directory / "bare"), TOKEN) as (url, _):
        for made in started(directory / "c", "connect.enabled=true", f"connect.port={port}"):
            made.run("user", "add", "ada", "--role=user")
            token = made.json("token", "add", "ada")["token"]
            yield Servers(f"{url}/;token={TOKEN}", f"sc://localhost:{port}/;token={token}")


@pytest.mark.parametrize("module", MODULES)
def test_the_same_doctests_pass_directly_and_through_the_gateway(servers: Servers, tmp_path: Path, module: str) -> None:
    """A difference counts if a second run of both has one in the same docstring: some examples need a quick machine."""
    found: list[str] = []
    for attempt in ("first", "second"):
        directly = run_in_child(module, servers.bare, tmp_path / attempt / "directly", TIMEOUT_S)
        through = run_in_child(module, servers.door, tmp_path / attempt / "through", TIMEOUT_S)
        assert through.passed >= FLOORS.get(module, 0.5) * len(through.examples) > 0
        former, found = {line.split(": ")[0] for line in found}, differences(directly, through, VARYING)
        if attempt == "second":
            found = [line for line in found if line.split(": ")[0] in former]
        if not found:
            return
    assert found == []
