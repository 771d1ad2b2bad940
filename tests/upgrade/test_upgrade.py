"""A cluster of the previous release becomes one of this release, and no job notices more than what was killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import release
from tests.seeds import printed_seed
from tests.upgrade.orders import KILLED, LARGE, Result, Round, random_rounds, run, run_to_next

has_previous = pytest.mark.skipif(
    release.latest_release() is None, reason="the commit of the previous release is not in this clone"
)
ROUNDS = 10
"""Upgrades of the long form, there and back."""


@pytest.mark.slow  # integration/test_hand_over upgrades such a cluster
def test_no_query_restarts_where_both_releases_hand_tasks_over(tmp_path: Path) -> None:
    """The command is killed while it exchanges the first TaskExecutor, and a Dispatcher before."""
    result = run_to_next(tmp_path, [Round(kills={2: "dispatcher", 3: "upgrade command"})], seed=7)
    assert result.problems == []
    assert result.killed == ["dispatcher", "upgrade command"]
    assert [(done.restarts, done.failures) for done in result.done] == [(0, 0)]
    assert result.batch_gaps == 0
    assert result.finished > 1


@has_previous
def test_a_cluster_of_the_previous_release_is_upgraded_while_it_works(tmp_path: Path) -> None:
    """A Dispatcher is killed at the second step, and the command while it drains the first TaskExecutor."""
    result = run(tmp_path, [Round(kills={2: "dispatcher", 3: "upgrade command"})], seed=7)
    assert result.problems == []
    assert result.killed == ["dispatcher", "upgrade command"]
    assert result.failures == (), "queries moved, and that is not a failure"
    assert result.finished > 1


@has_previous
@pytest.mark.slow
@pytest.mark.parametrize("carry_out", [run, run_to_next])
def test_and_in_any_order_there_and_back(tmp_path: Path, carry_out: Callable[..., Result]) -> None:
    seed = printed_seed()
    rounds = random_rounds(random.Random(seed), ROUNDS, LARGE)
    result = carry_out(tmp_path, rounds, seed, LARGE)
    assert result.problems == []
    assert result.killed


def test_random_rounds_follow_from_their_seed_and_go_there_and_back() -> None:
    rounds = random_rounds(random.Random(1), 4)
    assert rounds == random_rounds(random.Random(1), 4) != random_rounds(random.Random(2), 4)
    assert [each.is_back for each in rounds] == [False, True, False, True]
    assert {len(each.kills) for each in rounds} == {2}
    assert {kind for each in rounds for kind in each.kills.values()} <= set(KILLED)
