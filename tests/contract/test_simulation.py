"""Seeds of the simulator: nothing fails, one seed has one trace, planted faults are found; plans that once failed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.faults import Fault
from tests.simulation.kept import KEPT, RARE, Kept
from tests.simulation.mutants import try_each
from tests.simulation.planted import catalogue
from tests.simulation.workloads import WORKLOADS
from tests.simulation.world import run

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""Coroutines of killed processes are never awaited."""

ROOT = Path(__file__).parents[2]
FIFTY = {"ha": 25, "cluster": 8, "streaming": 3, "supervision": 5, "blobs": 6, "upgrade": 3}
"""How many seeds of each workload run twice in the long form; 50 together."""
SOME = dict.fromkeys(FIFTY, 1)
"""The same in each run of the tests."""
SHORT_S = 6.0
"""Virtual seconds of faults in each of them."""


def long_form(*values: object) -> Any:
    """Parameters of a case that is a long form."""
    return pytest.param(*values, marks=pytest.mark.slow)


def traces(hash_seed: int, workload: str, seeds: int) -> subprocess.Popen[str]:
    """Run short seeds in a process of its own, whose sets of strings have another order."""
    return subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-m", "tests.simulation", "run", "--traces", "--no-shrink"),
            *("--workload", workload, "--seeds", str(seeds), "--short", str(SHORT_S)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_fifty_seeds_of_all_workloads_run_twice() -> None:
    assert sum(FIFTY.values()) == 50
    assert set(FIFTY) == set(SOME) == set(WORKLOADS)


@pytest.mark.parametrize(("workload", "seeds"), [*SOME.items(), *starmap(long_form, FIFTY.items())])
def test_a_seed_has_one_trace_and_nothing_fails(workload: str, seeds: int) -> None:
    running = [traces(hash_seed, workload, seeds) for hash_seed in (1, 2)]
    texts = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], texts[0][-3000:]
    assert len(texts[0].splitlines()) == seeds
    assert texts[0] == texts[1]


@pytest.mark.parametrize(  # what is rare was not a defect of the product
    "kept", [*KEPT, *map(long_form, RARE)], ids=lambda kept: kept.planted
)
def test_a_kept_plan_fails_only_without_the_mend(kept: Kept) -> None:
    mended, unmended = kept.start(is_mended=True), kept.start(is_mended=False)
    texts = [process.communicate()[0] for process in (mended, unmended)]
    assert mended.returncode == 0, f"{kept.defect}\n{texts[0][-3000:]}"
    again = f"this plan does not meet the situation any more; find another one (tests/simulation/kept)\n{texts[1]}"
    assert unmended.returncode == 1, again
    assert f"{kept.workload} seed {kept.seed}: {kept.check}, at" in texts[1], again


@pytest.mark.parametrize("name", ["session-used-again", long_form("refused-renewal-ignored")])
def test_a_planted_fault_is_found(name: str) -> None:
    (trial,) = try_each([planted for planted in catalogue() if planted.name == name])
    assert trial.found


def test_nothing_of_a_run_outlives_it() -> None:
    gc.collect()
    before = {id(thing): thing for thing in gc.get_objects() if type(thing) is types.CoroutineType}  # of other tests
    run(WORKLOADS["cluster"], 0, faults_s=6.0)
    here = [thing for thing in gc.get_objects() if type(thing) is types.CoroutineType and id(thing) not in before]
    assert [thing.__qualname__ for thing in here if thing.__qualname__.startswith("TaskExecutor")] == []


def test_another_plan_has_another_trace() -> None:
    first = run(WORKLOADS["ha"], 3, [], faults_s=2.0)
    again = run(WORKLOADS["ha"], 3, [], faults_s=2.0)
    other = run(WORKLOADS["ha"], 3, [Fault(1.0, "kill", ("contender1",))], faults_s=2.0)
    assert first.trace == again.trace != other.trace
