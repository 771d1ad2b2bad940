"""What `BoundedHttpProtocol` uses of uvicorn, which promises none of it: setup.cfg allows versions that were tried."""

from __future__ import annotations

import asyncio
import configparser
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

EXTENDED = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "on_message_begin": [],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_message_complete": [],
    "pause_writing": [],
    "resume_writing": [],
    "send_400_response": ["msg"],
    "_unsupported_upgrade_warning": [],
    "shutdown": [],
}
"""Methods that are overridden, or called by the server, with their parameters."""


async def nothing(scope: object, receive: object, send: object) -> None:
    """An application that answers nothing."""


@pytest.mark.parametrize(("name", "parameters"), EXTENDED.items())
def test_a_method_that_is_extended_has_these_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == ["self", *parameters]


async def test_a_protocol_has_these_attributes() -> None:
    config = Config(nothing, lifespan="off", ws="none", log_config=None, timeout_keep_alive=7)
    config.load()
    state = ServerState()
    protocol = HttpToolsProtocol(config, state, {})
    assert (protocol.config, protocol.timeout_keep_alive, protocol.transport, protocol.cycle) == (config, 7, None, None)
    assert protocol.loop is asyncio.get_running_loop()
    assert (state.connections, state.tasks) == (set(), set())
    protocol.on_message_begin()
    assert (protocol.url, protocol.headers) == (b"", [])


@pytest.mark.parametrize("name", ["response_started", "response_complete", "keep_alive"])
def test_the_cycle_of_a_request_has_these_attributes(name: str) -> None:
    assert f"self.{name} = " in inspect.getsource(RequestResponseCycle.__init__)


def test_newer_versions_than_this_was_tried_with_are_not_allowed() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    bounds = re.search(r"^uvicorn>=0\.(\d+),<0\.(\d+)$", setup["options"]["install_requires"], re.MULTILINE)
    assert bounds is not None
    assert int(bounds[1]) <= int(version("uvicorn").split(".")[1]) < int(bounds[2])
