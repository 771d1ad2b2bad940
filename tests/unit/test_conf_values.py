from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.values import (
    Arguments,
    Boolean,
    Choice,
    Duration,
    FilePath,
    Integer,
    MemorySize,
    Number,
    Secret,
    SecretUrl,
    Text,
    TextList,
    ValueType,
)


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 min", 300.0),
        ("300 ms", 0.3),
        ("3 s", 3.0),
        ("3s", 3.0),
        ("1.5 s", 1.5),
        ("1 H", 3600.0),
        ("7 d", 604800.0),
        ("250 us", 0.00025),
        ("0", 0.0),
        ("2 minutes", 120.0),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert Duration().parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["10", "", "s", "-1 s", "1 fortnight", "1 s 2 ms", "1e3 s", "nan s", "٣ s", "9" * 400 + " s"]
)
def test_duration_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Duration().parse(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10 mb", 10 << 20),
        ("1g", 1 << 30),
        ("64 KiB", 64 << 10),
        ("10485760b", 10 << 20),
        ("512", 512),
        ("1.5 kb", 1536),
        ("2 TB", 2 << 40),
    ],
)
def test_memory_size(text: str, size: int) -> None:
    assert MemorySize().parse(text) == size


@pytest.mark.parametrize("text", ["", "mb", "-1 mb", "1 xb", "1,5 mb", "9999999 tb"])
def test_memory_size_refused(text: str) -> None:
    with pytest.raises(ValueError):
        MemorySize().parse(text)


def test_bounds_are_refused_and_said() -> None:
    bounded = MemorySize("1 mb", minimum=1 << 10, maximum=1 << 30)
    assert bounded.expected == "a size with its unit (b, kb, mb, gb or tb), at least 1 kb, at most 1 gb"
    for text in ("1023", "2 gb"):
        with pytest.raises(ValueError):
            bounded.parse(text)
    assert Duration(minimum=0.5).expected.endswith("at least 500 ms")
    with pytest.raises(ValueError):
        Duration(minimum=0.5).parse("499 ms")


@given(st.integers(min_value=0, max_value=10**13).map(lambda micros: micros / 1e6))
def test_duration_is_read_back(seconds: float) -> None:
    duration = Duration()
    assert duration.parse(duration.render(seconds)) == pytest.approx(seconds, abs=1e-6)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_memory_size_is_read_back(size: int) -> None:
    memory = MemorySize()
    assert memory.parse(memory.render(size)) == size


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"))))
def test_arguments_are_read_back(arguments: list[str]) -> None:
    form = Arguments("-a -b")
    assert form.parse(form.render(tuple(arguments))) == tuple(arguments)


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (Integer(-1, 10), "-1", -1),
        (Number(0, 1, "0.1"), "0.25", 0.25),
        (Boolean(), "TRUE", True),
        (Boolean(), "false", False),
        (Choice(Colour), "Dark-Blue", Colour.DARK_BLUE),
        (Text("a", r"[a-z]+"), "abc", "abc"),
        (TextList("a;b"), "a; b;;c", ("a", "b", "c")),
        (Arguments("-a"), "-Da='x y' -b", ("-Da=x y", "-b")),
        (FilePath("/x"), "/a/b", Path("/a/b")),
    ],
)
def test_forms(form: ValueType[Any], text: str, value: object) -> None:
    assert form.parse(text) == value
    assert form.parse(form.render(value)) == value


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Integer(0, 10), "11"),
        (Integer(0, 10), "1.0"),
        (Integer(0, 10), "1_0"),
        (Number(0, 1, "0.1"), "nan"),
        (Number(0, 1, "0.1"), "2"),
        (Boolean(), "yes"),
        (Choice(Colour), "green"),
        (Text("a", r"[a-z]+"), "ABC"),
        (Arguments("-a"), "-Da='x"),
        (FilePath("/x"), "a\0b"),
        (FilePath("/x"), "~no-such-user-here/x"),
        (SecretUrl(("redis",), "redis://h"), "http://h"),
        (SecretUrl(("redis",), "redis://h"), "redis://"),
        (SecretUrl(("redis",), "redis://h"), "redis://h h"),
    ],
)
def test_forms_refused(form: ValueType[Any], text: str) -> None:
    with pytest.raises(ValueError):
        form.parse(text)


def test_lists_are_for_lists_only() -> None:
    assert TextList("a;b").parse_items(["a", "b"]) == ("a", "b")
    assert Arguments("-a").parse_items(["-Dx=a b"]) == ("-Dx=a b",)
    with pytest.raises(ValueError):
        TextList("a;b").parse_items(["a;b"])
    with pytest.raises(ValueError):
        Boolean().parse_items(["true"])


def test_paths_mean_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert FilePath("/x").parse("a/b") == tmp_path / "a" / "b"
    assert FilePath("/x").parse("~/a") == Path("/home/someone/a")


def test_secrets_are_not_shown() -> None:
    secret = Secret().parse("hunter2")
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r}" + Secret().shown(secret)
    url = SecretUrl(("redis", "unix"), "redis://h").parse("redis://me:hunter2@host:6379/0?password=hunter2")
    assert str(url) == "redis://******@host:6379/0?******"
    assert (
        str(SecretUrl(("unix",), "unix:///s").parse("unix:///run/redis.sock?db=1")) == "unix:///run/redis.sock?******"
    )
    options = Arguments("-v").parse(
        "--index-url https://me:hunter2@host/simple -Djavax.net.ssl.trustStorePassword=hunter2 'a b'"
    )
    assert Arguments("-v").shown(options) == (
        "--index-url https://******@host/simple -Djavax.net.ssl.trustStorePassword=****** 'a b'"
    )
    assert "hunter2" in Arguments("-v").render(options)
    assert Secret().parse("a") == Secret().parse("a")
    assert len({Secret().parse("a"), Secret().parse("a")}) == 1
