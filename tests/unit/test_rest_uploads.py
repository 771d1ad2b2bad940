"""Uploads of users by HTTP: the web endpoint has each file checked by the limits of its user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
from starlette.requests import ClientDisconnect

from runtime.protocol.errors import SubmissionLimitError
from runtime.protocol.http_gateways import MSGPACK, error_type
from runtime.queues.admission import ALL_FILES
from runtime.users.identities import Role
from tests.unit.test_rest_app import BLOB
from tests.unit.test_rest_gateways import FILE
from tests.unit.test_rest_roles import NEW, OTHERS, OwnedSite


async def test_a_file_is_checked_by_the_length_in_its_head_and_then_not_read(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    site.cluster.most_uploaded = 10
    read = []

    def body() -> Iterator[bytes]:
        read.append("piece")
        yield b"x" * 11

    token = site.users.tokens[Role.USER]
    answer = await site.ask("POST", f"/blobs?job={NEW}", body(), FILE, (b"content-length", b"11"), token=token)
    assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (429, "10", "close")
    assert answer.json["type"] == error_type(SubmissionLimitError(""))
    assert (read, list(site.cluster.blobs.kept), site.cluster.uploads) == ([], [BLOB], [])


async def test_a_file_that_declares_no_length_is_checked_before_it_is_put(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    site.cluster.most_uploaded = 10
    token = site.users.tokens[Role.USER]
    answer = await site.ask("POST", f"/blobs?job={NEW}", [b"x" * 6, b"x" * 5], FILE, token=token)
    assert (answer.status, list(site.cluster.blobs.kept)) == (429, [BLOB])
    assert (await site.ask("POST", f"/blobs?job={NEW}", [b"x" * 6, b"x" * 4], FILE, token=token)).status == 201
    assert len(site.cluster.blobs.kept) == 2


async def test_a_file_is_counted_before_and_after_it_is_put_for_the_user_of_the_token(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    token, length = site.users.tokens[Role.USER], (b"content-length", b"3")
    assert (await site.ask("POST", f"/blobs?job={NEW}", [b"abc"], FILE, length, token=token)).status == 201
    before, after = site.cluster.uploads
    assert before == after == (NEW, before[1], 3, "a-user", "")
    assert before[1] != ALL_FILES
    site.begin()
    assert (await site.ask("POST", f"/blobs?job={NEW}", [b"abc"], FILE, length)).status == 201
    assert site.cluster.uploads == [], "a client with one of the cluster's secrets has no user"


async def test_a_file_whose_upload_was_ended_meanwhile_is_deleted_if_it_is_over_the_limit(tmp_path: Path) -> None:
    """The second check finds nothing counted any more, so that the file counts anew."""
    site = OwnedSite(tmp_path)
    put = site.cluster.blobs.put_file

    def put_file(*arguments: Any) -> Any:
        site.cluster.most_uploaded = 2
        return put(*arguments)

    site.cluster.blobs.put_file = put_file  # type: ignore[method-assign]
    token, length = site.users.tokens[Role.USER], (b"content-length", b"3")
    answer = await site.ask("POST", f"/blobs?job={NEW}", [b"abc"], FILE, length, token=token)
    assert (answer.status, site.cluster.uploads_ended) == (429, [(NEW, "a-user")])


async def test_a_body_that_breaks_off_does_not_count(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)

    def body() -> Iterator[bytes]:
        yield b"a"
        raise ClientDisconnect

    token, length = site.users.tokens[Role.USER], (b"content-length", b"3")
    await site.ask("POST", f"/blobs?job={NEW}", body(), FILE, length, token=token)
    assert [size for _, _, size, _, _ in site.cluster.uploads] == [3, 0]


async def test_a_client_announces_all_files_in_its_own_name_alone(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    arguments = [NEW, "a file of another", 7, "an-admin", "report"]
    kind, token = (b"content-type", MSGPACK.encode()), site.users.tokens[Role.USER]
    body = [msgpack.packb(arguments)]
    assert (await site.ask("POST", "/gateways/dispatcher/admit_upload", body, kind, token=token)).status == 200
    assert site.cluster.uploads == [(NEW, ALL_FILES, 7, "a-user", "report")]
    body = [msgpack.packb([NEW, "an-admin"])]
    assert (await site.ask("POST", "/gateways/dispatcher/end_upload", body, kind, token=token)).status == 200
    assert site.cluster.uploads_ended == [(NEW, "a-user")]
    for method, others in (("admit_upload", [OTHERS, "", 7, "", ""]), ("end_upload", [OTHERS, "somebody"])):
        body = [msgpack.packb(others)]
        answer = await site.ask("POST", f"/gateways/dispatcher/{method}", body, kind, token=token)
        assert answer.status == 403, method
