"""What an endpoint remembers of leaderships, and how much of it."""

from __future__ import annotations

import pytest

from actors.errors import FencingError
from actors.rpc import fencing
from actors.rpc.fencing import Fences, Leadership


def test_what_is_remembered_is_bounded_and_the_longest_silent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "REMEMBERED", 3)
    fences = Fences()
    for component in ("dispatcher", "jobmaster-1", "jobmaster-2"):
        fences.observe(Leadership(component, 9, "s"))
    fences.check(Leadership("dispatcher", 9, "s"))  # it speaks again
    fences.observe(Leadership("jobmaster-3", 9, "s"))
    for component in ("dispatcher", "jobmaster-2", "jobmaster-3"):
        with pytest.raises(FencingError, match=f"the {component} of epoch 8 leads no more"):
            fences.check(Leadership(component, 8, "s"))
    fences.check(Leadership("jobmaster-1", 8, "s"))  # the one that was forgotten


def test_a_late_word_of_a_former_leadership_changes_nothing() -> None:
    fences = Fences()
    for epoch in (9, 7):
        fences.observe(Leadership("dispatcher", epoch, "s"))
    with pytest.raises(FencingError) as refused:
        fences.check(Leadership("dispatcher", 8, "s"))
    assert refused.value.epoch == 9
