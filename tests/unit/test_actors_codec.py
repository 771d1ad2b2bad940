from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actors.errors
from actors.errors import ActorError, ActorSystemError, AskTimeout, FencingError, RemoteError, UnknownActor, WireError
from actors.rpc import codec
from actors.rpc.codec import decode_error, encode_error, from_plain, method_specs, to_plain, wire_error
from actors.rpc.gateway import Ask, RpcGateway


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class HexId(str):
    __slots__ = ()

    def __new__(cls, text: str) -> HexId:
        if not re.fullmatch("[0-9a-f]{8}", text):
            raise ValueError(f"{text!r} is not a HexId")
        return super().__new__(cls, text)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Circle:
    centre: Point
    radius: float


@dataclass(frozen=True, slots=True)
class Square:
    corner: Point
    side: float


@dataclass(frozen=True, slots=True)
class Everything:
    id: HexId
    colour: Colour
    level: Level
    points: list[Point]
    fixed: tuple[int, str]
    rest: tuple[Point, ...]
    by_name: dict[str, Point]
    by_id: dict[HexId, int]
    shape: Circle | Square
    maybe: Point | None
    raw: bytes
    extra: dict[str, Any]


POINTS = st.builds(Point, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
IDS = st.from_regex("[0-9a-f]{8}", fullmatch=True).map(HexId)
SIZES = st.floats(allow_nan=False)
EVERYTHING = st.builds(
    Everything,
    id=IDS,
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    points=st.lists(POINTS, max_size=3),
    fixed=st.tuples(st.integers(0, 9), st.text(max_size=5)),
    rest=st.lists(POINTS, max_size=3).map(tuple),
    by_name=st.dictionaries(st.text(max_size=5), POINTS, max_size=3),
    by_id=st.dictionaries(IDS, st.integers(0, 9), max_size=3),
    shape=st.builds(Circle, POINTS, SIZES) | st.builds(Square, POINTS, SIZES),
    maybe=st.none() | POINTS,
    raw=st.binary(max_size=10),
    extra=st.dictionaries(
        st.text(max_size=5), st.none() | st.integers(0, 9) | st.lists(st.text(max_size=3)), max_size=3
    ),
)


class SampleGateway(RpcGateway):
    def everything(self, value: Everything) -> Ask[Everything]: ...

    def number(self, value: int) -> Ask[int]: ...

    def real(self, value: float) -> Ask[float]: ...

    def text(self, value: str) -> Ask[str]: ...

    def raw(self, value: bytes) -> Ask[bytes]: ...

    def flag(self, value: bool) -> Ask[bool]: ...

    def hex_id(self, value: HexId) -> Ask[HexId]: ...

    def colour(self, value: Colour) -> Ask[Colour]: ...

    def point(self, value: Point) -> Ask[Point]: ...

    def maybe(self, value: Point | None) -> Ask[Point | None]: ...

    def shape(self, value: Circle | Square) -> Ask[Circle | Square]: ...

    def numbers(self, value: list[int]) -> Ask[list[int]]: ...

    def anything(self, value: Any) -> Ask[Any]: ...

    def nothing(self) -> Ask[None]: ...

    def defaults(self, a: int, b: str = "b", c: Point | None = None) -> Ask[str]: ...

    def note(self, text: str) -> None: ...


SPECS = method_specs(SampleGateway)


def over_the_wire(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


def there(method: str, value: Any) -> Any:
    """The argument as the handler gets it."""
    spec = SPECS[method]
    (received,) = spec.decode_arguments(over_the_wire(spec.encode_arguments((value,), {})))
    return received


def back(method: str, value: Any) -> Any:
    """The result as the asker gets it."""
    spec = SPECS[method]
    return spec.decode_result(over_the_wire(value if spec.encode_result is None else spec.encode_result(value)))


@given(value=EVERYTHING)
def test_a_dataclass_of_everything_round_trips_both_ways(value: Everything) -> None:
    for received in (there("everything", value), back("everything", value)):
        assert received == value
        assert type(received.id) is HexId
        assert all(type(key) is HexId for key in received.by_id)
        assert type(received.fixed) is tuple
        assert type(received.rest) is tuple
        assert type(received.shape) is type(value.shape)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("number", -(2**63)),
        ("real", 1.5),
        ("real", float("inf")),
        ("text", "grüße \U0001f600"),
        ("raw", b"\x00\xff"),
        ("flag", True),
        ("hex_id", HexId("0123abcd")),
        ("colour", Colour.BLUE),
        ("point", Point(1, 2.0)),
        ("maybe", None),
        ("maybe", Point(1)),
        ("shape", Circle(Point(1), 2.0)),
        ("shape", Square(Point(1), 2.0)),
        ("numbers", []),
        ("numbers", [1, 2]),
        ("anything", {"a": [1, None, "x", b"y"]}),
    ],
)
def test_values_round_trip_with_their_types(method: str, value: Any) -> None:
    for received in (there(method, value), back(method, value)):
        assert received == value
        assert type(received) is type(value)


def test_an_integer_is_taken_for_a_float() -> None:
    assert there("real", 3) == 3.0
    assert type(there("real", 3)) is float


def test_a_result_of_none() -> None:
    assert back("nothing", None) is None
    assert SPECS["nothing"].decode_arguments([]) == []


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("number", "3"),
        ("number", 3.0),
        ("number", True),
        ("number", None),
        ("number", [3]),
        ("real", "1.5"),
        ("real", False),
        ("real", None),
        ("text", 3),
        ("text", b"3"),
        ("text", None),
        ("text", ["a"]),
        ("raw", "text"),
        ("raw", 3),
        ("flag", 1),
        ("flag", "true"),
        ("flag", None),
        ("hex_id", 12345678),
        ("hex_id", b"0123abcd"),
        ("hex_id", "not hex!"),
        ("colour", "green"),
        ("colour", ["red"]),
        ("point", None),
        ("point", "x"),
        ("point", [1, 2]),
        ("point", {}),
        ("point", {"x": "1"}),
        ("point", {"y": 1.0}),
        ("maybe", 0),
        ("maybe", {"x": None}),
        ("shape", {}),
        ("shape", {"radius": 1.0}),
        ("shape", 3),
        ("numbers", [1, "2"]),
        ("numbers", 3),
    ],
)
def test_a_wrong_type_on_the_wire_is_refused_in_arguments_and_results(method: str, wrong: Any) -> None:
    with pytest.raises(WireError):
        SPECS[method].decode_arguments([wrong])
    with pytest.raises(WireError):
        SPECS[method].decode_result(wrong)


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    children: tuple[Tree, ...] = ()
    others: list[Tree] = field(default_factory=list)


def test_recursive_types() -> None:
    tree = Tree("a", (Tree("b", (Tree("c"),)), Tree("d")), [Tree("e")])
    assert from_plain(over_the_wire(to_plain(tree)), Tree) == tree
    assert from_plain([], tuple[()]) == ()


@pytest.mark.parametrize("hint", [list[str], tuple[str, ...], tuple[str, str, str], list[Any]])
@pytest.mark.parametrize("value", ["ab", b"ab", {"a": "b"}, 3, None])
def test_only_an_array_is_a_list(value: Any, hint: Any) -> None:
    with pytest.raises(WireError):
        from_plain(value, hint)


@given(numbers=st.lists(st.integers(0, 9)))
def test_arrays_become_what_the_hint_says(numbers: list[int]) -> None:
    assert from_plain(numbers, list[int]) == numbers
    assert from_plain(numbers, tuple[int, ...]) == tuple(numbers)
    assert from_plain(numbers, list[Any]) == numbers
    assert from_plain([numbers, numbers], list[tuple[int, ...]]) == [tuple(numbers)] * 2


def test_a_refusal_says_what_did_not_fit() -> None:
    with pytest.raises(WireError, match="ValueError: 'nope' is not a HexId"):
        SPECS["hex_id"].decode_arguments(["nope"])


@pytest.mark.parametrize("values", [None, 3, "abc", {}, [], [1, "b", None, 4], {"a": 1}])
def test_a_wrong_number_of_arguments_is_refused(values: Any) -> None:
    with pytest.raises(WireError, match=r"defaults\(\) takes 3 arguments"):
        SPECS["defaults"].decode_arguments(values)


def test_defaults_are_filled_in_by_the_caller_up_to_its_last_argument() -> None:
    encode = SPECS["defaults"].encode_arguments
    assert encode((1,), {}) == [1]
    assert encode((1, "x"), {}) == [1, "x"]
    assert encode((), {"a": 1, "b": "x"}) == [1, "x"]
    assert encode((), {"c": Point(2), "a": 1}) == [1, "b", {"x": 2, "y": 0.0}]


def test_the_receiver_fills_in_the_defaults_behind_the_last_argument() -> None:
    assert SPECS["defaults"].decode_arguments([1]) == [1, "b", None]
    assert SPECS["defaults"].decode_arguments([1, "x"]) == [1, "x", None]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, "b", None, 4), {}), ((1,), {"d": 1}), ((1,), {"a": 1})])
def test_a_wrong_call_is_a_type_error_as_for_a_local_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SPECS["defaults"].encode_arguments(args, kwargs)


# ------------------------------------------------------------------ method tables


def test_asks_and_tells_are_told_apart() -> None:
    assert SPECS["number"].is_ask
    assert SPECS["nothing"].is_ask
    assert not SPECS["note"].is_ask


def test_inherited_methods_belong_to_the_table() -> None:
    class Wider(SampleGateway):
        def more(self) -> Ask[int]: ...

        def _helper(self) -> int:
            return 1

    assert set(method_specs(Wider)) == {*SPECS, "more"}


def test_an_argument_without_a_hint_is_refused() -> None:
    class NoHint(RpcGateway):
        def call(self, a: int, b) -> Ask[int]: ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match=r"NoHint\.call needs type hints for b"):
        method_specs(NoHint)


def test_a_result_without_a_hint_is_refused() -> None:
    class NoResult(RpcGateway):
        def call(self, a: int): ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match=r"NoResult\.call needs type hints for its result"):
        method_specs(NoResult)


def test_a_result_that_is_no_ask_is_refused() -> None:
    class PlainResult(RpcGateway):
        def call(self) -> int: ...

    with pytest.raises(TypeError, match=r"PlainResult\.call must return Ask"):
        method_specs(PlainResult)


def test_arguments_that_have_no_fixed_place_are_refused() -> None:
    class KeywordOnly(RpcGateway):
        def call(self, *, a: int) -> Ask[int]: ...

    class AnyNumber(RpcGateway):
        def call(self, *a: int) -> Ask[int]: ...

    for gateway in (KeywordOnly, AnyNumber):
        with pytest.raises(TypeError, match=rf"{gateway.__name__}\.call.*a\b.*position"):
            method_specs(gateway)


# ------------------------------------------------------------------ errors


class UnknownHere(Exception):
    pass


class KnownHere(Exception):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error_type",
    sorted(
        (
            kind
            for kind in vars(actors.errors).values()
            if isinstance(kind, type) and issubclass(kind, ActorError) and kind is not RemoteError
        ),
        key=lambda kind: kind.__name__,
    ),
)
def test_every_error_of_this_package_round_trips_as_itself(error_type: type[ActorError]) -> None:
    error = decode_error(*over_the_wire(encode_error(error_type("why"))))
    assert type(error) is error_type
    assert str(error) == "why"


@pytest.mark.parametrize("error", [ValueError("v"), TypeError("t"), LookupError("l"), TimeoutError("o")])
def test_common_builtin_errors_round_trip(error: Exception) -> None:
    rebuilt = decode_error(*over_the_wire(encode_error(error)))
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)


def test_a_key_error_is_not_quoted_once_more_on_each_way() -> None:
    assert decode_error(*encode_error(KeyError("k"))).args == ("k",)


def test_an_unknown_error_becomes_a_remote_error_with_the_remote_traceback() -> None:
    error = decode_error(*over_the_wire(encode_error(raised(UnknownHere("why")))))
    assert isinstance(error, RemoteError)
    assert error.type_name == f"{__name__}.UnknownHere"
    assert error.message == "why"
    assert str(error) == f"{__name__}.UnknownHere: why"
    assert "raise error" in error.remote_traceback
    assert __file__ in error.remote_traceback


def test_a_remote_error_passed_on_keeps_its_origin() -> None:
    first = decode_error(*encode_error(raised(UnknownHere("why"))))
    second = decode_error(*encode_error(raised(first)))
    assert isinstance(second, RemoteError)
    assert isinstance(first, RemoteError)
    assert (second.type_name, second.message) == (first.type_name, first.message)
    assert second.remote_traceback == first.remote_traceback


def test_a_registered_error_round_trips_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_known_errors", dict(codec._known_errors))
    wire_error(KnownHere)
    assert type(decode_error(*encode_error(KnownHere("why")))) is KnownHere


@pytest.mark.parametrize("fields", [(None, None, None), (1, 2, 3), (["a"], {}, b""), ("builtins.SystemExit", "1", "")])
def test_whatever_an_error_frame_holds_an_exception_comes_out(fields: tuple[Any, Any, Any]) -> None:
    assert isinstance(decode_error(*fields), RemoteError)


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("a\udcffb"), UnknownHere("a\udcffb"), KeyError("\ud800"), BrokenText()])
def test_an_error_with_a_text_that_cannot_travel_travels_all_the_same(error: Exception) -> None:
    rebuilt = decode_error(*over_the_wire(encode_error(raised(error))))
    assert isinstance(rebuilt, Exception)


def test_an_error_with_an_enormous_text_is_cut() -> None:
    fields = encode_error(raised(UnknownHere("x" * 50_000_000)))
    assert sum(map(len, fields)) < 200_000
    rebuilt = decode_error(*fields)
    assert isinstance(rebuilt, RemoteError)
    assert rebuilt.message.startswith("xxx")


def test_subclasses_tell_what_they_are() -> None:
    assert issubclass(AskTimeout, TimeoutError)
    assert issubclass(UnknownActor, LookupError)
    assert issubclass(FencingError, ActorError)
    assert not issubclass(ActorSystemError, WireError)
