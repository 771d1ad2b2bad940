from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.api import Parameter, Pipeline, parse_parameters
from runtime.jobgraph.errors import InvalidParameterError, ParameterUsageError
from runtime.jobgraph.validation import check_parameters

DECLARED = (
    Parameter("out", help="where the tables are written"),
    Parameter("rows", int, 1000),
    Parameter("share", float, 0.5),
    Parameter("verbose", bool, default=False),
    Parameter("mode", str, "append", choices=("append", "overwrite")),
    Parameter("limit", int, None),
)


def test_values_have_their_types_and_what_is_not_given_its_default() -> None:
    argv = ["--rows=7", "--out", "/tmp/x", "--verbose", "--share", "1"]
    assert parse_parameters(argv, *DECLARED) == {
        "out": "/tmp/x",
        "rows": 7,
        "share": 1.0,
        "verbose": True,
        "mode": "append",
        "limit": None,
    }
    assert parse_parameters(["--out=a=b", "--no-verbose"], *DECLARED)["out"] == "a=b"
    assert parse_parameters(["--out", "-1", "--rows", "-1", "--verbose=yes"], *DECLARED)["rows"] == -1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "parameter --out is missing: write --out STR"),
        (["--out"], "parameter --out has no value: write --out STR"),
        (["--out", "x", "--rows", "many"], "parameter --rows is 'many': it must be a whole number"),
        (["--out", "x", "--share", "nan"], "parameter --share is 'nan': it must be a number"),
        (["--out", "x", "--verbose=maybe"], "parameter --verbose is 'maybe': it must be true or false"),
        (["--out", "x", "--mode", "ignore"], "parameter --mode is 'ignore': it must be one of append, overwrite"),
        (["--out", "x", "--row", "1"], "unknown parameter --row: did you mean --rows?"),
        (["--out", "x", "--no-rows"], "unknown parameter --no-rows: did you mean --rows?"),
        (["--out", "x", "--no-verbose=1"], "unknown parameter --no-verbose: did you mean --verbose?"),
        (["--out", "x", "--out", "y"], "parameter --out is given twice: leave one out"),
        (["x"], "unexpected argument 'x': this pipeline takes --out STR, --rows INT"),
        (["--"], "unexpected argument '--'"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_parameter(argv: list[str], message: str) -> None:
    with pytest.raises(ParameterUsageError) as caught:
        parse_parameters(argv, *DECLARED)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Parameter("no spaces"), "not a parameter name"),
        (lambda: Parameter("help"), "not a parameter name"),
        (lambda: Parameter("x", list), "--x has the type"),
        (lambda: Parameter("x", int, "1"), "default '1' of parameter --x is a str, not int"),
        (lambda: Parameter("x", int, default=True), "is a bool, not int"),
        (lambda: Parameter("x", str, "c", choices=("a", "b")), "is not one of its choices"),
        (lambda: Parameter("x", str, choices=("a", 1)), "choice 1 of parameter --x"),
        (lambda: parse_parameters([], Parameter("x"), Parameter("x", int)), "--x is declared twice"),
    ],
)
def test_bad_declarations_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        declare()


def test_help_lists_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_parameters(["--help"], *DECLARED)
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Parameters:"
    assert lines[1].split() == ["--out", "STR", "where", "the", "tables", "are", "written", "(required)"]
    assert lines[5].split() == ["--mode", "append|overwrite", "(default:", "append)"]


def test_a_pipeline_without_parameters_says_so() -> None:
    with pytest.raises(ParameterUsageError, match="takes no parameters"):
        parse_parameters(["--x", "1"])


WORDS = ["--out", "--rows", "--rows=3", "--verbose", "--no-verbose", "--share=2", "--", "-1", "x"]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=8).filter(lambda word: word not in ("-h", "--help"))))
def test_any_command_line_gives_values_that_travel_or_one_line(argv: list[str]) -> None:
    try:
        values = parse_parameters(argv, *DECLARED)
    except ParameterUsageError:
        return
    check_parameters(values)
    assert values.keys() == {item.name for item in DECLARED}


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_what_is_written_is_what_is_read(rows: int, share: float, verbose: bool) -> None:
    argv = ["--out", "x", f"--rows={rows}", "--share", repr(share), f"--verbose={verbose}"]
    values = parse_parameters(argv, *DECLARED)
    assert (values["rows"], values["share"], values["verbose"]) == (rows, share, verbose)
    assert Pipeline("job", values).parameters == values
