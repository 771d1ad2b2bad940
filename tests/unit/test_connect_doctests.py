"""The comparison of PySpark's doctests at two servers notices each kind of difference."""

from __future__ import annotations

import sys
import types

import pytest

from tests import connect_doctests
from tests.connect_doctests import Key, Outcome, differences
from tests.standalone_spark import SPARK_HOME

ONE: Key = ("pyspark.sql.column.Column.alias", 0, "df.show()\n")
OTHER: Key = ("pyspark.sql.column.Column.alias", 1, "df.count()\n")


def test_equal_runs_have_no_difference() -> None:
    assert differences(Outcome({ONE: True, OTHER: False}), Outcome({OTHER: False, ONE: True})) == []


@pytest.mark.parametrize(
    ("directly", "through", "line"),
    [
        (True, False, "passes directly, fails through the door: what came"),
        (False, True, "fails directly, passes through the door: what came"),
        (True, None, "passes directly, is not run through the door: "),
        (None, False, "is not run directly, fails through the door: what came"),
    ],
)
def test_each_example_with_another_outcome_is_named(directly: bool | None, through: bool | None, line: str) -> None:
    one, other = [
        Outcome(
            {OTHER: True} | ({} if passed is None else {ONE: passed}), {ONE: "what came"} if passed is False else {}
        )
        for passed in (directly, through)
    ]
    assert differences(one, other) == [f"pyspark.sql.column.Column.alias: 'df.show()' {line}"]
    assert differences(one, other, varying={ONE[0]: "a reason"}) == []


def test_an_outcome_is_read_as_it_was_written() -> None:
    outcome = Outcome({ONE: True, OTHER: False}, {OTHER: "3"})
    assert Outcome.load(outcome.dump()) == outcome
    assert outcome.passed == 1


def test_each_example_is_recorded_by_the_runner_in_place_of_doctests_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module like PySpark's, with an example that passes, one that gives another value, and one that raises."""
    module = types.ModuleType("planted")
    source = (
        "def three():\n"
        '    """\n'
        "    >>> number\n    3\n"
        "    >>> number\n    4\n"
        "    >>> 1 / 0\n    3\n"
        '    """\n'
        "def _test():\n"
        "    import doctest, planted\n"
        "    doctest.testmod(planted, globs={'number': 3})\n"
    )
    exec(compile(source, "planted.py", "exec"), module.__dict__)  # a module without a file
    monkeypatch.setitem(sys.modules, "planted", module)
    outcome = connect_doctests.record("planted")
    assert list(outcome.examples.items()) == [
        (("planted.three", 0, "number\n"), True),
        (("planted.three", 1, "number\n"), False),
        (("planted.three", 2, "1 / 0\n"), False),
    ]
    assert [*outcome.got.values()] == ["3\n", "ZeroDivisionError: division by zero"]
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(connect_doctests.ENDLESS, "planted.three", "a reason")
    assert connect_doctests.record("planted").examples == {}


def test_each_module_with_connect_doctests_is_run_or_left_out() -> None:
    known = {
        ".".join(["pyspark", *path.relative_to(SPARK_HOME).with_suffix("").parts])
        for path in (SPARK_HOME / "sql" / "connect").rglob("*.py")
        if "\ndef _test() -> None:" in path.read_text()
    }
    assert known == {*connect_doctests.MODULES} - connect_doctests.WITHOUT_CONNECT_TEST | {*connect_doctests.LEFT_OUT}
