"""Find the least faults with which a seed still fails (delta debugging), and print them as a test to keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.faults import Fault
from tests.simulation.patches import real_monotonic
from tests.simulation.world import Outcome, Workload, run


def least(items: Sequence[Fault], still_fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return a part of *items* that still fails, and of which no single item can be left out (ddmin)."""
    left = list(items)
    if still_fails([]):
        return []
    parts = 2
    while len(left) >= 2:
        size = max(1, len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        for number in range(len(chunks)):
            rest = [fault for other, chunk in enumerate(chunks) if other != number for fault in chunk]
            if still_fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(left))
    return left


def shrink(
    workload: type[Workload], outcome: Outcome, limit_s: float = 120.0, *, faults_s: float | None = None
) -> list[Fault]:
    """Return the least faults with which the same check of the same seed fails, as far as found within *limit_s*.

    Args:
        workload: what failed.
        outcome: how it failed.
        limit_s: real seconds.
        faults_s: virtual seconds of faults in that run; by default the workload's.
    """
    assert outcome.failure is not None
    check, until = outcome.failure.check, real_monotonic() + limit_s

    def still_fails(plan: Sequence[Fault]) -> bool:
        if real_monotonic() > until:
            return False
        failure = run(workload, outcome.seed, plan, faults_s=faults_s).failure
        return failure is not None and failure.check == check

    return least(outcome.plan, still_fails)


def as_pytest_function(outcome: Outcome, plan: Sequence[Fault], faults_s: float | None = None) -> str:
    """Return a test that runs these faults and demands that nothing fails."""
    assert outcome.failure is not None
    lines = "".join(f"        {fault!r},\n" for fault in plan)
    short = "" if faults_s is None else f", faults_s={faults_s!r}"
    return (
        "@alone\n"
        f"def test_{outcome.workload}_seed_{outcome.seed}() -> None:\n"
        f"    # {outcome.failure.check}\n"
        f"    plan = [\n{lines}    ]\n"
        f"    assert run(WORKLOADS[{outcome.workload!r}], {outcome.seed}, plan{short}).failure is None\n"
    )
