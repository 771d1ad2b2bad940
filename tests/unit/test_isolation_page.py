"""What keeps docs/isolation.md true: the tests that it names, and a case or a test for every row of its table."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.test_shared_driver import BULLIES
from tests.named_tests import NAMED, is_test

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "isolation.md").read_text()


def test_the_page_names_tests_that_there_are() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) >= 5
    assert [name for name in named if not is_test(name)] == []


def test_every_row_names_a_case_or_a_test_and_every_case_has_a_row() -> None:
    table = PAGE.partition("## One user at a time")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = [set(re.findall(r"`([^`]+)`", line.rstrip(" |").rpartition("|")[2])) for line in rows]
    assert all(named)
    assert {name for name in set().union(*named) if not is_test(name)} == set(BULLIES)
