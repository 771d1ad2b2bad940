"""What keeps docs/security.md true: the tests that it names, the ports and secrets that it has to name."""

from __future__ import annotations

import re
from pathlib import Path

from conf.options import all_options
from tests.named_tests import NAMED, is_test

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
_SECURITY = re.compile(
    r"port$|secret|ssl|token|authentication|allowed-hosts|allow-insecure|bind|rpc\.address|rest\.address"
)


def rows() -> list[str]:
    """The rows of the page's tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    rules = [number for number, line in enumerate(lines) if set(line) <= set("|- ")]
    heads = {number - 1 for number in rules}
    return [line for number, line in enumerate(lines) if number not in heads and number not in rules]


def test_every_test_that_is_named_exists() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 40
    assert [name for name in sorted(named) if not is_test(name)] == []
    assert not is_test("unit/test_security_page.py::test_that_is_none")
    assert not is_test("unit/test_that_is_none.py::test_every_test_that_is_named_exists")


def test_every_claim_has_its_test() -> None:
    assert len(rows()) > 40
    assert [row for row in rows() if not NAMED.search(row.rstrip("| ").rpartition("|")[2])] == []


def test_every_option_of_a_port_or_a_secret_is_on_the_page() -> None:
    wanted = [option.key for option in all_options() if option.value_type.secret or _SECURITY.search(option.key)]
    assert len(wanted) > 20
    assert [key for key in wanted if f"`{key}`" not in PAGE] == []
