from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.address import ActorAddress
from actors.errors import ActorError, AddressError

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
HOSTS = st.one_of(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,15}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str).filter(lambda text: "." not in text),
)
PATHS = st.lists(st.from_regex(r"[A-Za-z0-9_.~$-]{1,8}", fullmatch=True), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(system=NAMES, host=HOSTS, port=st.integers(1, 65535), path=PATHS)
def test_text_form_is_parsed_back_to_the_same_address(system: str, host: str, port: int, path: str) -> None:
    address = ActorAddress(system, host, port, path)
    assert ActorAddress.parse(str(address)) == address


def test_parts_of_an_address() -> None:
    address = ActorAddress.parse("akka.tcp://flights@master-1.example:6123/user/dispatcher")
    assert (address.system, address.host, address.port) == ("flights", "master-1.example", 6123)
    assert (address.path, address.name) == ("/user/dispatcher", "dispatcher")
    assert address.with_path("/user/a/b") == ActorAddress("flights", "master-1.example", 6123, "/user/a/b")
    assert address.with_path("/user/a/b").name == "b"


def test_ipv6_is_bracketed_in_the_text_only() -> None:
    address = ActorAddress.parse("akka.tcp://s@[::1]:1/user/a")
    assert address.host == "::1"
    assert str(address) == "akka.tcp://s@[::1]:1/user/a"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("10.0.0.1", False), ("h", False)],
)
def test_is_loopback(host: str, loopback: bool) -> None:
    assert ActorAddress("s", host, 1, "/user/a").is_loopback is loopback


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dispatcher",
        "akka://s@h:1/user/a",
        "akka.tcp://s@h/user/a",
        "akka.tcp://s@h:0/user/a",
        "akka.tcp://s@h:65536/user/a",
        "akka.tcp://s@h:-1/user/a",
        "akka.tcp://s@h:1",
        "akka.tcp://s@h:1/",
        "akka.tcp://s@h:1/user/",
        "akka.tcp://s@h:1//a",
        "akka.tcp://s@h:1/user/a b",
        "akka.tcp://s@h:1/user/a\n",
        "akka.tcp://s@::1:1/user/a",
        "akka.tcp://@h:1/user/a",
        "akka.tcp://s@:1/user/a",
        " akka.tcp://s@h:1/user/a",
    ],
)
def test_bad_address_is_refused_with_the_form_in_the_message(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        ActorAddress.parse(text)
    assert isinstance(caught.value, ActorError)
    assert isinstance(caught.value, ValueError)
    assert repr(text) in str(caught.value)
    assert "akka.tcp://<system>@<host>:<port>" in str(caught.value)
