from __future__ import annotations

import fnmatch
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ActorNotFound, AddressError
from actors.ref import Origin
from actors.selection import SelectionMessage, SelectionPath, Step, is_pattern, matches, parse_selection, step
from actors.serialization import Serializer
from actors.testkit import DeterministicSystem, TestProbe

SERIALIZER = Serializer(lambda text: None)  # type: ignore[arg-type,return-value]
HERE = Origin("sys", "host", 1234)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/user/a/b", SelectionPath(None, True, ("user", "a", "b"))),
        ("/user/a/*/b?c", SelectionPath(None, True, ("user", "a", "*", "b?c"))),
        ("/", SelectionPath(None, True, ())),
        ("//user//a/", SelectionPath(None, True, ("user", "a"))),
        ("../b", SelectionPath(None, False, ("..", "b"))),
        ("child", SelectionPath(None, False, ("child",))),
        (".", SelectionPath(None, False, ())),
        ("./x/./y", SelectionPath(None, False, ("x", "y"))),
        ("$a/x-1_2.3~", SelectionPath(None, False, ("$a", "x-1_2.3~"))),
        ("akka.tcp://sys@host:1234/user/a", SelectionPath(HERE, True, ("user", "a"))),
        ("akka.tcp://sys@host:1234/user/*", SelectionPath(HERE, True, ("user", "*"))),
        ("akka.tcp://sys@host:1234/user/a#99", SelectionPath(HERE, True, ("user", "a"))),
        ("akka.tcp://sys@host:1234", SelectionPath(HERE, True, ())),
        ("akka.tcp://sys@[::1]:1234/user/a", SelectionPath(Origin("sys", "::1", 1234), True, ("user", "a"))),
    ],
)
def test_forms(text: str, expected: SelectionPath) -> None:
    assert parse_selection(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/user/a b",
        "/user/a#7",
        "/user/ä",
        "/user/[ab]",
        "a\n",
        "akka.tcp://sys@host:0/user",
        "akka.tcp://sys@host:65536/user",
        "akka.tcp://sys@host/user",
        "akka.tcp://sys@host:1/us er",
        "http://host:1/user",
    ],
)
def test_what_is_no_selection(text: str) -> None:
    with pytest.raises(AddressError, match="selects no actor"):
        parse_selection(text)


@pytest.mark.parametrize(
    ("text", "anchor", "left"),
    [
        ("/user/a/b", "/user/a/b", ()),
        ("/user/a/*/b", "/user/a", ("*", "b")),
        ("/*", "/", ("*",)),
        ("/", "/", ()),
        ("x/y", "/user/me/x/y", ()),
        (".", "/user/me", ()),
        ("../b", "/user/b", ()),
        ("../../../..", "/", ()),
        ("../x?/../y", "/user", ("x?", "..", "y")),
        ("/user/a/../b/?", "/user/b", ("?",)),
        ("*", "/user/me", ("*",)),
    ],
)
def test_anchors(text: str, anchor: str, left: tuple[str, ...]) -> None:
    assert parse_selection(text).anchored("/user/me") == (anchor, left)


# ---------------------------------------------------------------------------------------------- wildcards


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "", True),
        ("*", "abc", True),
        ("?", "", False),
        ("?", "a", True),
        ("?", "ab", False),
        ("a*c", "ac", True),
        ("a*c", "abbbc", True),
        ("a*c", "abbbd", False),
        ("a?c", "abc", True),
        ("*b*", "abc", True),
        ("**", "abc", True),
        ("a.c", "abc", False),
        ("a.c", "a.c", True),
        ("$*", "$a", True),
        ("abc", "abcd", False),
        ("", "", True),
    ],
)
def test_wildcards(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
def test_wildcards_are_those_of_file_names(pattern: str, name: str) -> None:
    assert matches(pattern, name) is (re.match(fnmatch.translate(pattern), name) is not None)
    assert is_pattern(pattern) is bool(set(pattern) & {"*", "?"})


def test_hostile_wildcards_take_no_time() -> None:
    begin = time.thread_time()
    assert not matches("*a" * 200 + "b", "a" * 2000)
    assert time.thread_time() - begin < 5, "of the processor's time, whatever else it does"


# ---------------------------------------------------------------------------------------------- steps


CHILDREN = ["ann", "bob", "bea"]


@pytest.mark.parametrize(
    ("elements", "fan_out", "expected"),
    [
        (("ann",), False, Step(False, ("ann",), "m", False)),
        (("ann", "x"), False, Step(False, ("ann",), SelectionMessage("m", ("x",)), False)),
        (("b*",), False, Step(False, ("bob", "bea"), "m", False)),
        (("b*", "x"), False, Step(False, ("bob", "bea"), SelectionMessage("m", ("x",), True), False)),
        (("a*", "x"), False, Step(False, ("ann",), SelectionMessage("m", ("x",), False), False)),
        (("..",), False, Step(True, (), "m", False)),
        (("..", "x"), True, Step(True, (), SelectionMessage("m", ("x",), True), False)),
        (("cid",), False, Step(False, (), "m", True)),
        (("c*",), False, Step(False, (), "m", True)),
        (("cid",), True, Step(False, (), "m", False)),
        (("c*",), True, Step(False, (), "m", False)),
    ],
)
def test_steps(elements: tuple[str, ...], fan_out: bool, expected: Step) -> None:
    assert step(SelectionMessage("m", elements, fan_out), CHILDREN) == expected


def tree(paths: list[str]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {"/": []}
    for path in paths:
        at = "/"
        for name in path.strip("/").split("/"):
            if name not in children[at]:
                children[at].append(name)
            at = at.rstrip("/") + "/" + name
            children.setdefault(at, [])
    return children


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map("/".join), min_size=1, max_size=8),
    st.lists(st.sampled_from(["a", "b", "ab", "*", "?", "a*"]), min_size=1, max_size=4),
)
def test_walking_finds_what_matches_element_by_element(paths: list[str], elements: list[str]) -> None:
    children = tree(paths)
    reached: list[str] = []

    def walk(at: str, message: Any) -> None:
        if not isinstance(message, SelectionMessage):
            reached.append(at)
            return
        way = step(message, children[at])
        for name in way.children:
            walk(at.rstrip("/") + "/" + name, way.rest)

    anchor, left = parse_selection("/" + "/".join(elements)).anchored("/")
    if anchor in children:
        walk(anchor, SelectionMessage("m", left) if left else "m")
    names = [path.strip("/").split("/") for path in children if path != "/"]
    expected = [
        "/" + "/".join(each)
        for each in names
        if len(each) == len(elements) and all(fnmatch.fnmatchcase(a, b) for a, b in zip(each, elements, strict=True))
    ]
    assert sorted(reached) == sorted(expected)


def test_selection_messages_travel() -> None:
    selection = SelectionMessage({"a": 1}, ("b", "*"), True)
    assert SERIALIZER.loads(SERIALIZER.dumps(selection)) == selection


# ---------------------------------------------------------------------------------------------- in a system


def test_a_selection_tells_whoever_is_there() -> None:
    with DeterministicSystem() as system:
        probe = TestProbe(system)
        selection = system.actor_selection(probe.ref.path)
        selection.tell("x")
        probe.expect_msg("x")
        assert selection.resolve_one(1.0).result() == probe.ref
        assert selection == system.actor_selection(probe.ref.path)
        assert selection != system.actor_selection("/user/*")
        assert len({selection, system.actor_selection(probe.ref.path)}) == 1
        assert str(system.actor_selection("/user/x/*/y")).endswith("/user/x/*/y")


@pytest.mark.parametrize("path", ["/user/nobody", "/user/nobody/*", "/user/no*", "/nowhere"])
def test_a_selection_that_matches_nobody(path: str) -> None:
    with DeterministicSystem() as system, pytest.raises(ActorNotFound, match="no actor matches"):
        system.actor_selection(path).resolve_one(1.0).result()
