from __future__ import annotations

import builtins
import contextlib
import dataclasses
import datetime as dt
import enum
import subprocess
import sys
import threading
import tracemalloc
import types
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NewType, Protocol, TypeVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import serialization
from actors.address import ActorAddress
from actors.errors import ActorNotFound, AddressError, RemoteError, SerializationError
from actors.ref import ActorRef, Origin
from actors.serialization import ERROR, MAX_DEPTH, MESSAGE, Serializer, import_object, import_path, message, name_of

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")
UserId = NewType("UserId", int)


def resolve(text: str) -> ActorRef:
    address, _, uid = text.partition("#")
    parsed = ActorAddress.parse(address)
    return ActorRef(None, Origin(parsed.system, parsed.host, parsed.port), parsed.path, int(uid or 0))


SERIALIZER = Serializer(resolve)
REF = resolve("akka.tcp://s@host:1/user/a#7")


def through(value: Any) -> Any:
    return SERIALIZER.loads(SERIALIZER.dumps(value))


def forged(name: str, *fields: Any) -> bytes:
    """A message with other fields than its class would have let it have."""
    inner = SERIALIZER.dumps([name, *fields])
    data: bytes = msgpack.packb(msgpack.ExtType(MESSAGE, inner))
    return data


@message
class Greet:
    """A greeting."""

    who: str
    times: int = 1


@message
class Loud(Greet):
    volume: float = 1.0


@message
class Empty:
    pass


@message
@dataclasses.dataclass(frozen=True, kw_only=True)
class ByName:
    first: int
    second: int = 2


@message
class Checked:
    value: int
    double: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")
        object.__setattr__(self, "double", 2 * self.value)


@message
class Box(Generic[T]):
    content: T


@message
class Colour(enum.Enum):
    RED = 1
    BLUE = (0, 0, 255)


@message
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@message
class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Unregistered(enum.Enum):
    A = 1


class HasName(Protocol):
    name: str


@message
class Everything:
    text: str
    number: int
    real: float
    yes: bool
    raw: bytes
    array: bytearray
    items: list[int]
    pair: tuple[int, str]
    many: tuple[int, ...]
    table: dict[str, int]
    group: set[int]
    maybe: str | None
    either: int | Greet
    literal: Literal["a", 1]
    annotated: Annotated[int, "positive"]
    user: UserId
    colour: Colour
    greeting: Greet
    ref: ActorRef
    path: PurePosixPath
    when: dt.datetime
    sequence: Sequence[int]
    mapping: Mapping[str, int]
    error: ActorNotFound
    nothing: None
    call: Callable[[], int] | None
    named: HasName | None
    anything: Any
    later: Decimal


GOOD: dict[str, Any] = {
    "text": "x",
    "number": 1,
    "real": 1.5,
    "yes": True,
    "raw": b"x",
    "array": b"x",
    "items": [1],
    "pair": (1, "x"),
    "many": (1, 2, 3),
    "table": {"a": 1},
    "group": {1},
    "maybe": None,
    "either": Greet("x"),
    "literal": "a",
    "annotated": 1,
    "user": 5,
    "colour": Colour.RED,
    "greeting": Loud("x"),
    "ref": REF,
    "path": Path("/x"),
    "when": dt.datetime(2020, 1, 1),
    "sequence": [1],
    "mapping": {"a": 1},
    "error": ActorNotFound("x"),
    "nothing": None,
    "call": None,
    "named": None,
    "anything": 1,
    "later": "not checked",
}
BAD: list[tuple[str, Any]] = [
    ("text", 1),
    ("text", None),
    ("number", "1"),
    ("number", 1.0),
    ("real", "1"),
    ("yes", 1),
    ("raw", "x"),
    ("array", "x"),
    ("items", (1,)),
    ("items", None),
    ("pair", (1,)),
    ("pair", (1, 2)),
    ("pair", [1, "x"]),
    ("many", [1]),
    ("table", [1]),
    ("group", [1]),
    ("maybe", 1),
    ("either", "x"),
    ("literal", "b"),
    ("literal", True),
    ("annotated", "x"),
    ("user", "x"),
    ("colour", Level.LOW),
    ("colour", "RED"),
    ("greeting", Empty()),
    ("ref", "akka.tcp://s@host:1/user/a"),
    ("path", "/x"),
    ("when", "2020-01-01"),
    ("sequence", 1),
    ("mapping", [1]),
    ("error", ValueError("x")),
    ("nothing", 0),
]


# ---------------------------------------------------------------------------------------------- what travels


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.dates()
    | st.timedeltas()
    | st.sampled_from([*Colour, *Level, Right.READ, Right.READ | Right.WRITE, Right(0)])
    | st.builds(Greet, st.text(), st.integers())
    | st.builds(Path, st.sampled_from(["/a/b", "rel", ".", "/caf\udce9"]))
    | st.just(REF),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.builds(Box, inner)
    ),
    max_leaves=20,
)


@given(plain)
def test_whatever_is_sent_arrives_as_it_was(value: Any) -> None:
    arrived = through(value)
    assert arrived == value
    assert type(arrived) is type(value)


@given(st.sets(st.integers() | st.text()), st.frozensets(st.tuples(st.integers(), st.text())))
def test_sets(mutable: set[Any], frozen: frozenset[Any]) -> None:
    assert through({"a": mutable, "b": frozen}) == {"a": mutable, "b": frozen}
    assert type(through(frozen)) is frozenset


def test_message_classes() -> None:
    for value in (
        Greet("x"),
        Greet("x", 3),
        Loud("x", 1, 2.5),
        Empty(),
        ByName(first=1),
        Box((Greet("x"), [Box(1)])),
        Box({(1, 2): Greet("x")}),
    ):
        assert through(value) == value
        assert type(through(value)) is type(value)


def test_fields_that_are_computed_are_computed_again() -> None:
    assert through(Checked(4)).double == 8


def test_the_decorator_makes_a_frozen_dataclass_with_slots() -> None:
    greet = Greet("x")
    assert not hasattr(greet, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        greet.who = "y"  # type: ignore[misc]
    assert Greet.__doc__ == "A greeting."


def test_a_dataclass_is_taken_as_it_is_but_must_be_frozen() -> None:
    @dataclasses.dataclass(frozen=True, order=True)
    class Ordered:
        number: int

    assert message(Ordered) is Ordered
    assert through(Ordered(1)) < Ordered(2)

    @dataclasses.dataclass
    class Changing:
        number: int

    with pytest.raises(TypeError, match="frozen=True"):
        message(Changing)
    with pytest.raises(TypeError, match="wire_error"):
        message(type("Mine", (Exception,), {}))


def test_a_subclass_of_a_message_is_no_message_by_itself() -> None:
    class Derived(Greet):
        pass

    with pytest.raises(SerializationError, match=r"Derived cannot be sent .*@actors\.message"):
        SERIALIZER.dumps(Derived("x"))


def test_a_class_that_is_defined_again_takes_the_name() -> None:
    def define(default: int) -> Any:
        @message
        class Cell:
            number: int = default

        return Cell

    first, second = define(1), define(2)
    assert type(through(first(5))) is second
    assert through(second()) == second(2)


def test_a_class_of_main_has_its_name() -> None:
    code = """
import sys
from actors.serialization import Serializer, message
@message
class X:
    number: int
serializer = Serializer(lambda text: None)
data = serializer.dumps(X(3))
assert b"__main__:X" in data
assert serializer.loads(data) == X(3)
sys.stdout.write(data.hex())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with pytest.raises(SerializationError, match="'__main__:X' is not known here: move the class"):
        SERIALIZER.loads(bytes.fromhex(done.stdout))


def test_bytearray_and_memoryview_arrive_as_bytes() -> None:
    assert through([bytearray(b"a"), memoryview(b"b")]) == [b"a", b"b"]


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**1000, -(2**1000), 127, -128])
def test_large_numbers(number: int) -> None:
    assert through(number) == number


def test_times_keep_their_offset() -> None:
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    when = dt.datetime(2024, 2, 29, 12, 0, 0, 1, zone)
    assert through(when) == when
    assert through(when).utcoffset() == zone.utcoffset(None)


def test_refs_are_bound_by_the_receiver() -> None:
    seen: list[str] = []

    def bind(text: str) -> ActorRef:
        seen.append(text)
        return REF

    assert Serializer(bind).loads(SERIALIZER.dumps(Box(REF))).content is REF
    assert seen == [str(REF)]


class PlainError(Exception):
    """Nobody has registered it."""

    def __init__(self, path: str, retries: int) -> None:
        super().__init__(f"{path} failed {retries} times")
        self.path = path
        self.retries = retries


class DiskError(OSError):
    pass


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    path: str


class SlottedError(Exception):
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class LockedError(LookupError):
    """Has what cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Constructed(Exception):
    """Its constructor must not be run by what a peer sends."""

    calls = 0

    def __init__(self, *args: Any) -> None:
        type(self).calls += 1
        super().__init__(*args)


BUILT_IN = sorted(
    (kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)),
    key=lambda kind: kind.__name__,
)
ARGUMENTS: dict[type[BaseException], tuple[Any, ...]] = {
    BaseExceptionGroup: ("two", [ValueError("a"), KeyboardInterrupt("b")]),
    ExceptionGroup: ("two", [ValueError("a"), KeyError("b")]),
    UnicodeDecodeError: ("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError: ("ascii", "\xff", 0, 1, "ordinal not in range"),
    UnicodeTranslateError: ("\xff", 0, 1, "no"),
}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_built_in_error_arrives_as_itself(kind: type[BaseException]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("why",)))
    arrived = through(Box(error)).content
    assert (type(arrived), str(arrived), repr(arrived)) == (kind, str(error), repr(error))


def test_attributes_of_errors_travel() -> None:
    missing = through(FileNotFoundError(2, "No such file", "/a"))
    assert (missing.errno, missing.filename, str(missing)) == (2, "/a", "[Errno 2] No such file: '/a'")
    disk = through(DiskError(28, "No space left", "/b"))
    assert (type(disk), disk.errno, disk.filename) == (DiskError, 28, "/b")
    assert through(SystemExit(3)).code == 3
    assert through(ImportError("no", name="a.b")).name == "a.b"
    plain = through(PlainError("/c", 3))
    assert (type(plain), str(plain), plain.path, plain.retries) == (PlainError, "/c failed 3 times", "/c", 3)
    frozen = through(FrozenError("/d"))
    assert (type(frozen), frozen.path) == (FrozenError, "/d")


def test_a_rebuilt_error_has_the_traceback_as_a_note() -> None:
    try:
        raise PlainError("/c", 3)
    except PlainError as error:
        arrived = through(error)
    assert any("raise PlainError" in note for note in arrived.__notes__)


@pytest.mark.parametrize("error", [SlottedError("/a"), LockedError("a"), KeyError(object())])
def test_errors_with_more_than_plain_arguments_do_not_arrive_incomplete(error: Exception) -> None:
    arrived = through(error)
    assert type(arrived) in (RemoteError, KeyError)
    assert "Error" in repr(arrived)


def test_an_error_that_cannot_be_rebuilt_keeps_its_kinds() -> None:
    class Strange(LookupError):
        pass

    strange = through(Strange("what"))
    assert isinstance(strange, RemoteError)
    assert strange.type_name.endswith("Strange")
    assert strange.message == "what"
    kinds = ["LookupError", "Exception", "BaseException"]
    assert strange.kinds == (name_of(Strange), *(f"builtins:{kind}" for kind in kinds))
    again = through(strange)
    assert (again.type_name, again.message, again.kinds) == (strange.type_name, "what", strange.kinds)


def test_known_errors_arrive_as_themselves() -> None:
    known = through(Box(ActorNotFound("nobody"))).content
    assert (type(known), str(known)) == (ActorNotFound, "nobody")


def forged_error(*fields: Any) -> bytes:
    data: bytes = msgpack.packb(msgpack.ExtType(ERROR, msgpack.packb(fields)))
    return data


def kinds_of(name: str) -> list[str]:
    return [name, "builtins:Exception", "builtins:BaseException"]


@pytest.mark.parametrize("name", ["antigravity:Error", "this:x", "xdrlib:Error"])
def test_no_module_is_imported_because_an_error_names_it(name: str) -> None:
    module = name.partition(":")[0]
    assert module not in sys.modules
    error = SERIALIZER.loads(forged_error(kinds_of(name), "m", "", ["m"], None))
    assert isinstance(error, RemoteError)
    assert module not in sys.modules


def test_a_lazy_module_loads_nothing_for_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy_for_a_test")
    asked: list[str] = []
    lazy.__getattr__ = asked.append  # type: ignore[method-assign, assignment]
    monkeypatch.setitem(sys.modules, "lazy_for_a_test", lazy)
    error = SERIALIZER.loads(forged_error(kinds_of("lazy_for_a_test:Error"), "m", "", ["m"], None))
    assert isinstance(error, RemoteError)
    assert asked == []


@pytest.mark.parametrize(
    "name",
    ["subprocess:Popen", "builtins:eval", "os:system", "os:error", "builtins:", ":", "x", "os.path:genericpath.os"],
)
def test_nothing_but_errors_is_made_of_an_errors_name(name: str) -> None:
    assert type(SERIALIZER.loads(forged_error(kinds_of(name), "m", "", ["m"], None))) is RemoteError


def test_no_constructor_runs_because_a_peer_sends_an_error() -> None:
    error = Constructed("a", 1)
    data = SERIALIZER.dumps(error)
    assert Constructed.calls == 1
    arrived = SERIALIZER.loads(data)
    assert (type(arrived), arrived.args, Constructed.calls) == (Constructed, ("a", 1), 1)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ("builtins:ValueError", "m", ""),
        ([], "m", ""),
        ([1], "m", ""),
        (["builtins:ValueError"], 1, ""),
        (["builtins:ValueError"], "m", None),
        (["builtins:ValueError"], "m", "", "m", None),
        (["builtins:ValueError"], "m", "", [], [1]),
        (["builtins:ValueError"], "m", "", [], {1: 2}),
    ],
)
def test_malformed_errors_are_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(SerializationError):
        SERIALIZER.loads(forged_error(*fields))


@pytest.mark.parametrize(
    ("name", "args", "state"),
    [
        ("builtins:UnicodeDecodeError", [1], None),
        ("builtins:ExceptionGroup", ["m", []], None),
        ("builtins:ValueError", [], {"__class__": 1}),
        ("builtins:ValueError", [], {"__traceback__": 1}),
        ("builtins:ValueError", [], {"with_traceback": 1}),
        ("builtins:SyntaxError", ["m", 5], None),
    ],
)
def test_arguments_that_do_not_fit_an_error_make_a_remote_error(name: str, args: Any, state: Any) -> None:
    arrived = SERIALIZER.loads(forged_error(kinds_of(name), "m", "", args, state))
    assert (type(arrived), arrived.args) in [(RemoteError, (f"{name.replace(':', '.')}: m",)), (ValueError, ("m",))]
    assert callable(arrived.with_traceback)


def test_an_error_with_an_enormous_argument_is_cut() -> None:
    for error in (PlainError("x" * 10_000_000, 1), ValueError(["x" * 10_000_000])):
        data = SERIALIZER.dumps(error)
        assert len(data) < 500_000
        assert isinstance(SERIALIZER.loads(data), Exception)


def test_a_file_name_that_is_no_text_does_not_hide_the_error() -> None:
    assert type(through(IsADirectoryError(21, "Is a directory", "a\udcffb"))) is IsADirectoryError


# ---------------------------------------------------------------------------------------------- what does not


class Plain:
    pass


Pair = namedtuple("Pair", "a b")  # the untyped one is the harder case


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            Plain(),
            r"a value of type tests\.unit\.test_actor_serialization:Plain .*: declare the class with @actors\.message",
        ),
        (object(), "a value of type object"),
        (Unregistered.A, r"Unregistered .*: register the enum with @actors\.message"),
        (lambda: 1, "import path"),
        (Plain, r"the class tests.*:Plain .*import path"),
        (threading.Lock(), "lock"),
        (Pair(1, 2), r"convert it with tuple\(\.\.\.\) first"),
        (defaultdict(int), r"convert it with dict\(\.\.\.\) first"),
        (OrderedDict(), r"convert it with dict\(\.\.\.\) first"),
        (type("Text", (str,), {})("x"), r"convert it with str\(\.\.\.\) first"),
        (type("Number", (int,), {})(1), r"convert it with int\(\.\.\.\) first"),
        ("caf\udce9", "surrogates"),
        (1j, "complex"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: Box((1, value))])
def test_what_cannot_be_sent_is_named_with_a_remedy(wrap: Callable[[Any], Any], value: Any, said: str) -> None:
    with pytest.raises(SerializationError, match=said):
        SERIALIZER.dumps(wrap(value))
    assert through(Greet("the serializer is none the worse")) == Greet("the serializer is none the worse")


def test_a_list_that_holds_itself() -> None:
    items: list[Any] = []
    items.append(items)
    with pytest.raises(SerializationError):
        SERIALIZER.dumps(items)
    box = Box(items)
    items[0] = box
    with pytest.raises(SerializationError, match=f"{MAX_DEPTH} deep"):
        SERIALIZER.dumps(box)


def test_depth() -> None:
    nested: Any = "core"
    for _ in range(MAX_DEPTH):
        nested = (nested,)
    assert through(nested) == nested
    with pytest.raises(SerializationError, match=f"{MAX_DEPTH} deep at most"):
        SERIALIZER.dumps((nested,))
    data = SERIALIZER.dumps(nested)
    outer = msgpack.packb(msgpack.ExtType(serialization.TUPLE, msgpack.packb([msgpack.unpackb(data)])))
    with pytest.raises(SerializationError, match=f"more than {MAX_DEPTH} deep"):
        SERIALIZER.loads(outer)


def test_a_serializer_is_shared_by_threads() -> None:
    failures: list[Any] = []

    def work(number: int) -> None:
        for turn in range(300):
            value = Box((number, [Greet(str(turn)), Box((turn,))]))
            if through(value) != value:
                failures.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.such.module:Thing", r"import the module no\.such\.module in this process"),
        ("os:system", "import the module os in this process"),
        ("actors.no_such:Thing", r"import the module actors\.no_such"),
        (f"{__name__}:Plain", "not known here"),
        ("", "not known here"),
        ("x" * 10_000, "not known here"),
    ],
)
def test_unknown_names_are_refused_and_never_imported(name: str, said: str) -> None:
    before = set(sys.modules)
    with pytest.raises(SerializationError, match=said) as caught:
        SERIALIZER.loads(forged(name, 1))
    assert len(str(caught.value)) < 600
    assert {module for module in set(sys.modules) - before if not module.startswith("actors.")} == set()


def test_messages_of_our_own_are_known_without_an_import() -> None:
    code = """
from actors.serialization import Serializer
import sys
assert "actors.routing" not in sys.modules
print(Serializer(None).loads(bytes.fromhex(sys.argv[1])))
"""
    from actors.routing import Pool, RoundRobin

    data = SERIALIZER.dumps(Pool(2, RoundRobin()))
    done = subprocess.run([sys.executable, "-c", code, data.hex()], capture_output=True, text=True, check=True)
    assert "Pool(size=2" in done.stdout


@pytest.mark.parametrize("fields", [(), ("x",), ("x", 1, 2), ("x", 1, None, 3)])
def test_the_number_of_fields_is_checked(fields: tuple[Any, ...]) -> None:
    with pytest.raises(SerializationError, match=rf"Greet has 2 fields, but {len(fields)} came"):
        SERIALIZER.loads(forged(name_of(Greet), *(fields if len(fields) != 2 else (*fields, 0))))


def test_a_message_of_all_kinds_of_fields() -> None:
    assert SERIALIZER.loads(forged(name_of(Everything), *GOOD.values())).text == "x"
    names = [field.name for field in dataclasses.fields(Everything)]
    assert list(GOOD) == names


@pytest.mark.parametrize(("field", "value"), BAD)
def test_the_kinds_of_fields_are_checked(field: str, value: Any) -> None:
    with pytest.raises(SerializationError, match=rf"Everything\.{field} cannot be of type {type(value).__name__}"):
        SERIALIZER.loads(forged(name_of(Everything), *{**GOOD, field: value}.values()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("real", 1), ("number", True), ("maybe", "x"), ("either", 1), ("literal", 1), ("error", RemoteError("t", "m"))],
)
def test_kinds_that_pass_too(field: str, value: Any) -> None:
    SERIALIZER.loads(forged(name_of(Everything), *{**GOOD, field: value}.values()))


def test_fields_are_checked_where_they_are_inherited_too() -> None:
    with pytest.raises(SerializationError, match=r"Loud\.who"):
        SERIALIZER.loads(forged(name_of(Loud), 1, 2, 3.0))


def test_a_hint_that_cannot_be_evaluated_leaves_the_others_checked() -> None:
    class Local:
        pass

    @message
    class Half:
        number: int
        local: Local  # a class of a function cannot be found by its name

    with pytest.raises(SerializationError, match=r"Half\.number"):
        SERIALIZER.loads(forged(name_of(Half), "x", 1))
    assert SERIALIZER.loads(forged(name_of(Half), 1, "unchecked")).number == 1


def test_a_constructor_that_refuses() -> None:
    with pytest.raises(SerializationError, match="ValueError: negative"):
        SERIALIZER.loads(forged(name_of(Checked), -1))


@pytest.mark.parametrize("member", ["GREEN", "name", "__class__", "_member_map_", 1, None])
def test_unknown_members(member: Any) -> None:
    data = msgpack.packb(msgpack.ExtType(serialization.ENUM, msgpack.packb([name_of(Colour), member])))
    with pytest.raises(SerializationError, match="no member"):
        SERIALIZER.loads(data)


def test_a_ref_that_cannot_be_resolved() -> None:
    with pytest.raises(SerializationError, match="AddressError"):
        SERIALIZER.loads(msgpack.packb(msgpack.ExtType(serialization.REF, b"nonsense")))

    def refuse(text: str) -> ActorRef:
        raise AddressError(text)

    with pytest.raises(SerializationError):
        Serializer(refuse).loads(SERIALIZER.dumps(REF))


HOSTILE = [
    b"",
    b"\xc1",
    b"\x01\x02",
    b"\x91",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xa1\xff",
    b"\x81\x90\x01",
    b"\x91" * 5000,
    msgpack.packb(msgpack.ExtType(99, b"")),
    b"\xc7\x03\xff123",
    b"\xd6\xff\xff\xff\xff\xff",
    *(msgpack.packb(msgpack.ExtType(code, data)) for code in range(1, 13) for data in (b"", b"\xff", b"\x90", b"\x01")),
    msgpack.packb(msgpack.ExtType(serialization.ERROR, msgpack.packb([1, 2, 3]))),
    msgpack.packb(msgpack.ExtType(serialization.TIMEDELTA, msgpack.packb([2**62, 0, 0]))),
    msgpack.packb(msgpack.ExtType(serialization.SET, msgpack.packb([[]]))),
    msgpack.packb(msgpack.ExtType(serialization.DATETIME, b"2020-13-01")),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_bytes(data: bytes) -> None:
    read_or_refuse(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data)


@given(plain, st.data())
def test_damaged_messages_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    sound = bytearray(SERIALIZER.dumps(value))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(sound) - 1))
        sound[position] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(sound))


def read_or_refuse(data: bytes) -> None:
    """No other error than the one that says so."""
    with contextlib.suppress(SerializationError):
        SERIALIZER.loads(data)


def test_announced_lengths_take_no_memory() -> None:
    """Lists in lists, each of which announces a million elements that never come."""
    count = 1_000_000
    data = (b"\xdd" + count.to_bytes(4, "big")) * 1000 + b"\x00" * count
    inside = msgpack.packb(msgpack.ExtType(serialization.TUPLE, data))
    tracemalloc.start()
    try:
        for refused in (data, inside):
            with pytest.raises(SerializationError):
                SERIALIZER.loads(refused)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000  # it would be 90 MB, and gigabytes with former releases of msgpack


# ---------------------------------------------------------------------------------------------- import paths


def at_module_level() -> None:
    pass


def test_import_paths() -> None:
    assert import_path(at_module_level) == f"{__name__}:at_module_level"
    assert import_path(ValueError) == "builtins:ValueError"
    assert import_path(lambda: 1) is None
    assert import_path(Greet("x").__eq__) is None
    assert import_object(f"{__name__}:at_module_level") is at_module_level
    assert import_object("collections:OrderedDict.fromkeys") == OrderedDict.fromkeys


@pytest.mark.parametrize("path", ["no_such_module:x", "os:no_such", "os", "", ":", "os:", "a b:c", ".x:y"])
def test_import_paths_that_lead_nowhere(path: str) -> None:
    with pytest.raises(SerializationError, match="cannot be imported here"):
        import_object(path)


def test_mypy_understands_messages(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    source = """
from actors.serialization import message
import enum
@message
class Greet:
    who: str
    times: int = 1
@message
class Colour(enum.Enum):
    RED = 1
fine: Greet = Greet("x", times=2)
also: Colour = Colour.RED
Greet(1)
fine.who = "y"
"""
    uses = tmp_path / "uses_messages.py"
    uses.write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent", str(uses)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    lines = [
        line for line in done.stdout.splitlines() if "uses_messages.py:" in line
    ]  # mypy may remember another folder
    assert [line.split(":")[1] for line in lines] == ["13", "14"], done.stdout + done.stderr
