"""The model of the leader latch describes the code that there is: its scripts, times, methods and planted faults."""

from __future__ import annotations

import inspect
import math
import re

import pytest

from runtime.ha import scripts
from runtime.ha.latch import LatchState, LatchTiming
from runtime.ha.scripts import Script
from runtime.leadership import LeaderEndpoint
from tests.model.spin import BEYOND, CHECKS, FAULTS, MODEL, parse

SOURCE = MODEL.read_text()
TICK_S = 0.1

MODELLED = {
    "acquire": ("acquire", "db81d242ff078513289a6cb457c13a32aef014d4"),
    "renew": ("renew", "bfe138359e7eaf28506b2929a60766b624af7667"),
    "release": ("release", "bc5c274d7578412082bf905bb771adba24878b10"),
    "fenced hset": ("fenced_write", "4b6276f31d2cd10b1f79c0af19238dfe200f1faf"),
}
"""Inline of the model and digest of each script that it models. Has the script changed? Then change the model first."""

COMPARED_ONLY = {"confirm", "fenced del", "fenced hdel"}
"""Scripts that write something else after the same comparison."""

READS = {"leaders"}


def constant(name: str) -> int:
    found = re.search(rf"^ *#define {name} (\d+)", SOURCE, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_every_script_is_modelled_or_left_out_by_name() -> None:
    found = {script.name: script for script in vars(scripts).values() if isinstance(script, Script)}
    assert set(found) == set(MODELLED) | COMPARED_ONLY | READS
    for name, (inline, digest) in MODELLED.items():
        assert f"\ninline {inline}(" in SOURCE
        assert found[name].sha == digest, f"the script {name!r} has changed: does latch.pml still describe it?"
    comparison = scripts._IF_NOT_LEADER
    assert all(
        found[name].source.startswith(comparison) for name in COMPARED_ONLY | {"renew", "release", "fenced hset"}
    )


def test_its_times_are_those_of_a_lease_in_ticks() -> None:
    timing = LatchTiming(constant("LEASE") * TICK_S)
    assert round(timing.renew_every / TICK_S, 6) == constant("RENEW_EVERY")
    assert round(timing.retry_every / TICK_S, 6) == constant("RETRY_EVERY")
    assert round(timing.call_timeout / TICK_S, 6) == constant("CALL_TIMEOUT")
    assert math.ceil(timing.margin / TICK_S) == constant("MARGIN")


@pytest.mark.parametrize("owner", [LatchState, LatchTiming, LeaderEndpoint])
def test_methods_and_fields_that_it_names_exist(owner: type) -> None:
    named = set(re.findall(rf"\b{owner.__name__}\.(\w+)", SOURCE))
    fields = re.findall(r"self\.(\w+)", inspect.getsource(owner))
    assert named
    assert named <= set(dir(owner)) | set(fields)


def test_every_planted_fault_is_one_of_the_model_and_is_looked_for() -> None:
    for kind, faults in (("FAULT", FAULTS), ("BEYOND", BEYOND)):
        named = {fault.defines[0].partition("=")[0] for fault in faults}
        assert len(named) == len(faults)
        marked = set(re.findall(rf"{kind} ([A-Z_]+):", SOURCE))
        assert marked == named
    assert {fault.check for fault in FAULTS} == set(CHECKS)


COMPLETE = "State-vector 100 byte, depth reached 9, errors: 0\n    2000 states, stored\n    5 states, matched\n"


def test_the_output_of_a_verifier_is_read() -> None:
    result = parse(COMPLETE)
    assert (result.errors, result.states, result.complete, result.violated) == (0, 2000, True, "")
    fair = parse(COMPLETE.replace("stored", "stored (66 visited)"))
    assert (fair.states, fair.complete) == (2000, True)
    found = parse("pan:1: acceptance cycle (at depth 9)\nWarning: Search not completed\nerrors: 1\n 7 states, stored\n")
    assert (found.errors, found.complete, found.violated) == (1, False, "acceptance cycle (at depth 9)")


@pytest.mark.parametrize(
    "sign",
    [
        "error: max search depth too small",
        "pan: out of memory",
        "pan: reached -DMEMLIM bound",
        "Warning: Search not completed",
    ],
)
def test_a_search_that_ended_early_is_not_complete(sign: str) -> None:
    assert not parse(f"{sign}\n{COMPLETE}").complete


def test_a_verifier_without_a_result_is_an_error() -> None:
    with pytest.raises(ValueError, match="no result: killed"):
        parse("killed")
