"""Parts of the simulator: its checkers find what they are for, plans are values, and shrinking finds the least."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runtime.ids import AllocationID, JobID, ResourceID, SlotID, SlotRequestID
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.slot_pool import SlotPool
from runtime.protocol.descriptor import SlotOffer
from runtime.taskexecutor.slot_table import Allocation
from tests.simulation import mutants
from tests.simulation.__main__ import how_to_replay
from tests.simulation.checks import Leaders, Once, Register
from tests.simulation.cluster_checks import has_accepted
from tests.simulation.faults import COMMON_KINDS, Fault, FaultPlan, add_kinds
from tests.simulation.kept import KEPT, RARE
from tests.simulation.mutants import ROOT as SOURCES
from tests.simulation.mutants import Trial, find_all, in_turns, summary, trials_of
from tests.simulation.planted import Planted, catalogue, controls
from tests.simulation.shrink import as_pytest_function, least
from tests.simulation.warm import Ran, Run, Warm
from tests.simulation.with_fault import plant
from tests.simulation.workloads import WORKLOADS
from tests.simulation.world import Failure, Outcome


class Found(Exception):
    """A checker has found something."""


def fail(check: str, text: str) -> None:
    raise Found(check)


def written(*versions: tuple[int, int]) -> Register:
    register = Register("it", fail)
    for now, version in enumerate(versions, 10):
        register.acknowledged(register.begin(version, version, now), now)
    return register


def test_an_acknowledged_write_has_to_be_found() -> None:
    register = written((1, 1), (1, 2))
    register.read(20, 21, (1, 2), (1, 2))
    with pytest.raises(Found, match="acknowledged writes stay"):
        register.read(22, 23, (1, 1), (1, 1))


def test_a_read_that_began_before_the_write_may_miss_it() -> None:
    written((1, 1), (1, 2)).read(11, 30, (1, 1), (1, 1))


def test_what_was_read_does_not_come_back_after_a_later_read() -> None:
    register = written((1, 1))
    register.unknown(register.begin((2, 1), (2, 1), 12))
    register.read(20, 21, (2, 1), (2, 1))
    with pytest.raises(Found, match="acknowledged writes stay"):
        register.read(22, 23, (1, 1), (1, 1))


def test_nothing_is_there_only_after_a_removal() -> None:
    register = written((1, 1))
    with pytest.raises(Found, match="acknowledged writes stay"):
        register.read(20, 21, None, None)
    register.begin((1, 2), None, 22)
    register.read(23, 24, None, None)


def test_a_refused_write_is_never_found() -> None:
    register = written((1, 1))
    write = register.begin((1, 2), (1, 2), 12)
    register.refused(write, 13)
    with pytest.raises(Found, match="no refused write"):
        register.read(20, 21, (1, 2), (1, 2))


def test_a_write_that_may_have_happened_before_it_was_refused_may_be_found() -> None:
    register = written((1, 1))
    write = register.begin((1, 2), (1, 2), 12)
    register.unknown(write)
    register.refused(write, 13)
    register.read(20, 21, (1, 2), (1, 2))


def test_what_was_never_written_is_not_read() -> None:
    with pytest.raises(Found, match="only what was written"):
        written((1, 1)).read(20, 21, (9, 9), (9, 9))


def test_what_the_store_may_lose_need_not_be_found() -> None:
    register = written((1, 1), (1, 2), (1, 3))
    register.lost(12, 15)
    register.read(20, 21, (1, 2), (1, 2))
    register.lost(0, 22)
    register.read(23, 24, None, None)


def test_two_leaders_are_found() -> None:
    leaders = Leaders(fail)
    leaders.granted("a", 1, "s")
    leaders.holding([("a", 1)])
    with pytest.raises(Found, match="one leader at a time"):
        leaders.holding([("a", 1), ("b", 2)])
    with pytest.raises(Found, match="one leader for each epoch"):
        leaders.granted("b", 1, "t")


def test_a_session_of_two_terms_is_found() -> None:
    leaders = Leaders(fail)
    leaders.granted("a", 1, "s")
    leaders.granted("a", 2, "t")
    with pytest.raises(Found, match="each term has a session"):
        leaders.granted("a", 3, "s")


def test_a_refused_leader_that_asks_again_is_found() -> None:
    leaders = Leaders(fail)
    leaders.renews("s")
    leaders.refused("s")
    leaders.renews("t")
    assert leaders.was_refused("s")
    assert not leaders.was_refused("t")
    with pytest.raises(Found, match="a refused leader asks no more"):
        leaders.renews("s")


def test_a_number_whose_reply_comes_after_a_loss_may_be_handed_out_again() -> None:
    numbers = Once("numbers", fail)
    numbers.lost(8, 12)
    numbers.handed_out(1, 11, 13)  # written before the loss
    numbers.handed_out(1, 14, 15)
    with pytest.raises(Found, match="each number once"):
        numbers.handed_out(1, 16, 17)


def test_a_number_that_is_handed_out_twice_is_found() -> None:
    numbers = Once("numbers", fail)
    numbers.handed_out(1, 9, 10)
    numbers.handed_out(2, 10, 11)
    numbers.lost(11, 11)
    numbers.handed_out(2, 12, 12)
    with pytest.raises(Found, match="each number once"):
        numbers.handed_out(1, 13, 13)


def plan_of(weights: dict[str, float]) -> FaultPlan:
    hosts = ["one", "two", "three"]
    return FaultPlan(
        hosts=hosts, processes=["p"], weights=weights, rate=5.0, until_s=30.0, longest_s=9.0, jumps=hosts, disks=["d"]
    )


def test_a_plan_is_the_same_for_a_seed_and_can_be_printed_and_read() -> None:
    plan = plan_of(dict.fromkeys(COMMON_KINDS, 1.0))
    drawn = plan.draw(random.Random(3))
    assert drawn == plan.draw(random.Random(3))
    assert drawn != plan.draw(random.Random(4))
    assert eval(repr(drawn), {"Fault": Fault}) == drawn
    assert all(0 < fault.at_s < 30 for fault in drawn)


@pytest.mark.parametrize("kind", sorted(COMMON_KINDS))
def test_each_kind_of_fault_can_be_drawn(kind: str) -> None:
    assert {fault.kind for fault in plan_of({kind: 1.0}).draw(random.Random(1))} == {kind}


def test_the_least_faults_that_fail_are_found() -> None:
    faults = [Fault(float(number), "kill", (str(number),)) for number in range(40)]
    asked = 0

    def still_fails(plan: object) -> bool:
        nonlocal asked
        asked += 1
        assert isinstance(plan, list)
        return faults[3] in plan and faults[29] in plan

    assert least(faults, still_fails) == [faults[3], faults[29]]
    assert asked < 120
    assert least(faults, lambda plan: True) == []


def test_a_failing_seed_is_printed_as_a_test() -> None:
    outcome = Outcome("ha", 7, "", 2, 1.0, 1.0, 1.0, Failure("it holds", "it does not", 1.0))
    text = as_pytest_function(outcome, [Fault(1.5, "kill", ("master",))])
    compile(text, "a test", "exec")
    assert "def test_ha_seed_7()" in text
    assert "Fault(1.5, 'kill', ('master',))" in text
    assert "plan).failure" in text
    short = as_pytest_function(outcome, [], 6.0)
    compile(short, "a test", "exec")
    assert "plan, faults_s=6.0).failure" in short


def test_each_planted_fault_can_be_planted() -> None:
    planted = [one.mutant for one in [*controls(), *catalogue()]]
    assert len({mutant.name for mutant in planted}) == len(planted) >= 60
    for mutant in planted:
        mutant.text(SOURCES)


def test_each_kept_plan_belongs_to_a_planted_fault_of_its_workload() -> None:
    workloads = {planted.name: planted.workload for planted in catalogue()}
    for kept in (*KEPT, *RARE):
        assert workloads[kept.planted] == kept.workload
    assert len({kept.planted for kept in (*KEPT, *RARE)}) == len((*KEPT, *RARE))


def test_a_known_seed_belongs_to_a_planted_fault() -> None:
    names = {planted.name for planted in catalogue()}
    planned = {kept.planted for kept in (*KEPT, *RARE)}
    for name, (workload, seed) in mutants.known_seeds().items():
        assert name in names - planned
        assert workload in WORKLOADS
        assert seed >= 0


def test_seeds_that_have_found_faults_are_recorded_and_those_that_no_more_do_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "SEEDS", tmp_path / "seeds.json")
    (tmp_path / "seeds.json").write_text('{"lost": ["ha", 1], "not-tried": ["ha", 2]}')
    found = [replace(tried("by-a-seed"), workload="blobs", seed=7), tried("by-a-plan"), tried("lost", found=False)]
    mutants.record([*found, replace(tried(controls()[0].name), workload="ha", seed=3)])
    assert mutants.known_seeds() == {"by-a-seed": ("blobs", 7), "not-tried": ("ha", 2)}


def test_a_known_seed_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = next(one for one in catalogue() if one.name not in {kept.planted for kept in (*KEPT, *RARE)})
    monkeypatch.setattr(mutants, "known_seeds", lambda: {planted.name: ("blobs", 7)})
    runs: list[Run] = []

    def run(_planted: Planted, run: Run) -> Ran:
        runs.append(run)
        return Ran("a check", found=True, cpu_s=1.0)

    warm = SimpleNamespace(workloads=list(WORKLOADS), measured_s=0.0, run=run)
    found = mutants.trial(cast(Warm, warm), planted, 10.0)
    assert runs == [Run("blobs", 7)]
    assert (found.workload, found.seed, found.check) == ("blobs", 7, "blobs: a check (with a known seed)")


def test_a_fault_in_what_is_imported_already_is_refused() -> None:
    (planted,) = [one for one in catalogue() if one.name == "names-in-a-directory-not-synced"]
    finders = list(sys.meta_path)
    with pytest.raises(ImportError, match=r"conf\.files was imported before names-in-a-directory-not-synced could be"):
        plant(planted)
    assert sys.meta_path == finders


def test_two_faults_have_two_names() -> None:
    with pytest.raises(ValueError, match="another fault has the name 'kill'"):
        add_kinds({"kill": lambda world: None})


def tried(name: str, *, found: bool = True, cpu_s: float = 3.0) -> Trial:
    return Trial(name, "file.py", "guard", found, "a check" if found else "", 2, cpu_s)


def test_the_workloads_take_turns_with_their_faults() -> None:
    turns = in_turns([*controls(), *catalogue()])
    assert len(turns) == len(controls()) + len(catalogue())
    assert [planted.name for planted in turns[:6]] == [planted.name for planted in controls()]
    assert len({planted.workload for planted in turns[6:12]}) == 6


def test_an_interrupted_run_of_faults_continues_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, *_ = in_turns(catalogue())
    asked: list[tuple[str, float]] = []

    def try_one(planted: Planted, limit_s: float) -> Trial:
        asked.append((planted.name, limit_s))
        return tried(planted.name, found=planted is not second, cpu_s=limit_s)

    target = tmp_path / "out.json"
    assert trials_of(target) == []
    assert find_all([first, second], 1.0, target, trials_of(target), 10.0, try_one)["mutants_found"] == 1
    assert asked == [(first.name, 10.0), (second.name, 10.0)]

    figures = find_all([first, second, third], 1.0, target, trials_of(target), 10.0, try_one)
    assert asked[2:] == [(third.name, 10.0)], "with the same CPU for each, only what was left"
    assert figures == json.loads(target.read_text())
    assert (figures["mutants_planted"], figures["mutants_found"]) == (3, 2)
    assert figures["mutants_not_found"] == [second.name]

    find_all([first, second, third], 1.0, target, trials_of(target), 20.0, try_one)
    assert asked[3:] == [(second.name, 20.0)], "with more, also what was not found"
    find_all([first, second, third], -1.0, target, (), 20.0, try_one)
    assert len(asked) == 4, "the time is over"
    assert f"{second.name}: NOT FOUND, after 2 seeds (10 s of CPU)\n" in capsys.readouterr().out


def test_a_control_that_finds_something_is_a_false_alarm_and_no_fault() -> None:
    figures = summary([tried("fence-not-compared"), tried(controls()[0].name), tried(controls()[1].name, found=False)])
    counts = {name: value for name, value in figures.items() if name != "trials"}
    assert counts == {
        "mutants_planted": 1,
        "mutants_found": 1,
        "mutants_not_found": [],
        "mutants_false_alarms": 1,
    }


def test_a_failing_seed_ends_the_output_with_the_command_that_runs_it_again() -> None:
    outcome = Outcome("ha", 7, "", 1, 1.0, 0.0, 0.0, Failure("two leaders", "text", 1.0))
    assert how_to_replay(outcome, 6.0) == (
        "FAILED: ha seed 7: two leaders\n    python -W ignore -m tests.simulation run --workload ha --seed 7 --short 6"
    )


def test_a_job_that_gets_a_second_slot_for_its_request_has_accepted_the_first_only() -> None:
    allocation, job = AllocationID.random(), JobID.random()
    first, second = (SlotID(ResourceID(f"taskmanager-{number}"), 0) for number in (1, 2))
    pool = SlotPool(10.0, 10.0, lambda: allocation)
    pool.request_slot(SlotRequestID.random(), "task", 0.0)
    offers = [pool.offer_slot(SlotOffer(allocation, slot), "", 0.0)[0] for slot in (first, second)]
    master = cast(JobMaster, SimpleNamespace(_pool=pool))
    assert offers == [has_accepted(master, Allocation(allocation, job, slot)) for slot in (first, second)]
    assert offers == [True, False]
