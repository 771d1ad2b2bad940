"""What docs/actors says of names, fields and defaults is so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from actors import Actor
from actors.actor_system import ActorSystem
from actors.messages import Failure
from actors.rpc import codec
from actors.supervision import Backoff

DOCS = Path(__file__).parents[2] / "docs" / "actors"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def test_the_names_that_an_actor_has() -> None:
    text = page("lifecycle")
    names = {name for name in [*vars(Actor), *Actor.__annotations__] if not name.startswith("_")}
    assert {name for name in names if not re.search(rf"`{name}\b", text)} == set()


def test_the_names_that_cannot_be_assigned() -> None:
    (said,) = re.findall(r"(.*) cannot be assigned", page("lifecycle"))
    fixed = {name for name, value in vars(Actor).items() if isinstance(value, property)}
    assert set(re.findall(r"`(\w+)`", said)) == fixed
    with pytest.raises(AttributeError):
        object.__new__(Actor).log = []  # type: ignore[misc, assignment]


def test_the_arguments_of_backoff() -> None:
    (said,) = re.findall(r"Backoff\(([^)]*)\)", page("supervision"))
    fields = [
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"
        for field in dataclasses.fields(Backoff)
    ]
    assert said == ", ".join(fields)


def test_the_fields_of_failure() -> None:
    fields: Any = dataclasses.fields(Failure)
    assert [field.name for field in fields] == ["error"]
    assert "`error` is the only field of `Failure`" in page("tell-ask")


def test_where_wire_error_comes_from() -> None:
    for name in ("tell-ask", "rpc-gateways"):
        assert re.search(r"actors\.rpc\.codec", page(name))
    assert codec.wire_error
    known = re.findall(
        r"`(\w+Error)`", page("rpc-gateways").partition("These exceptions arrive as")[2].split("Others")[0]
    )
    built_in = {kind.__name__ for kind in codec._known_errors.values() if kind.__module__ == "builtins"}
    assert set(known) == built_in | {"ActorError"}


def test_whether_terminate_waits() -> None:
    assert "and wait until" in (ActorSystem.terminate.__doc__ or "")
    assert "Both wait until" in page("lifecycle")
