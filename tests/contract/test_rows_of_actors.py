"""The list of the actor contract's rows is complete and up to date."""

from __future__ import annotations

from tests.contract.actor_rows import LISTING, all_rows, render


def test_listing() -> None:
    assert LISTING.read_text() == render(), "python -m tests.contract.actor_rows --write"


def test_each_promise_is_made_once() -> None:
    promises = [row.promise for row in all_rows()]
    assert sorted(set(promises)) == sorted(promises)
