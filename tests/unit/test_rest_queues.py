"""GET /queues: what `understudy queue list --json` prints, and what the document of the API describes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from actors.rpc.codec import from_plain, to_plain
from runtime.client import NoAnswerError
from runtime.cluster.output import SCHEMA, print_document
from runtime.protocol.queues import LimitedUse, QueuesOverview, QueueStatus, UserInQueue, WaitingRequest
from runtime.rest.forms import QUEUES as FORM
from tests.unit.test_rest_app import Site
from tests.unit.test_rest_app import site as site  # the fixture
from tests.unit.test_rest_messages import QUEUES, fits


async def test_it_is_what_the_command_prints(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    print_document(QUEUES)
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("schema") == SCHEMA
    for path in ("/queues", "/v1/queues"):
        assert (await site.ask("GET", path)).json == printed


async def test_each_field_is_described(site: Site) -> None:
    told = (await site.ask("GET", "/queues")).json
    fits(told, FORM)
    (queue,), (request,), (limited,) = FORM["queues"], FORM["waiting"], FORM["limits"]
    described: list[tuple[Any, dict[str, Any]]] = [
        (QueuesOverview, FORM),
        (QueueStatus, queue),
        (UserInQueue, queue["users"][0]),
        (WaitingRequest, request),
        (LimitedUse, limited),
    ]
    for model, form in described:
        assert {field.name for field in fields(model)} == set(form)


async def test_without_a_leader_it_says_to_retry(site: Site) -> None:
    site.cluster.failure = NoAnswerError("no ResourceManager leads at present; retry")
    answer = await site.ask("GET", "/queues")
    assert (answer.status, answer.error) == (503, "no ResourceManager leads at present; retry")


def test_a_resource_manager_of_an_earlier_release_is_taken_to_have_a_file() -> None:
    """An older ResourceManager does not say if there is a file. The page shows its queues."""
    plain = to_plain(replace(QUEUES, has_file=False))
    assert from_plain(plain, QueuesOverview).has_file is False
    del plain["has_file"]
    assert from_plain(plain, QueuesOverview).has_file is True
