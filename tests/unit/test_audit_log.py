"""The audit log: what a line holds, its file, its rotation, and what a flood of refused requests does to it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.users.audit import (
    MOST_TEXT,
    AuditEntry,
    AuditFilter,
    AuditLog,
    AuditPage,
    AuditPlaceError,
    Flood,
    Floods,
    outcome_of,
    read_audit,
)

ENTRY = AuditEntry(1, "ada", "user", "1" * 16, "PATCH /jobs/{jobid}", "a" * 32, "127.0.0.1:5", "done", 202)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_appended_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    AuditLog(path).write(ENTRY)
    AuditLog(path).write(replace(ENTRY, user="bob"))
    assert [line["user"] for line in lines(path)] == ["ada", "bob"]
    assert lines(path)[0] == {
        "at_ms": 1,
        "user": "ada",
        "role": "user",
        "token": "1" * 16,
        "action": "PATCH /jobs/{jobid}",
        "target": "a" * 32,
        "source": "127.0.0.1:5",
        "outcome": "done",
        "status": 202,
        "reason": "",
        "suppressed": 0,
    }
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_text_makes_a_second_line_or_a_long_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    AuditLog(path).write(replace(ENTRY, target='x\n{"user": "root"}\r\u2028' + "y" * 10_000))
    assert path.read_bytes().count(b"\n") == 1
    (line,) = lines(path)
    assert str(line["target"]).startswith("x\n{")
    assert len(json.dumps(line["target"])) - 2 == MOST_TEXT


@pytest.mark.parametrize("character", ["y", "\x01", "ä", "😀", "\udcff", '"'])
def test_a_text_is_cut_by_the_bytes_of_its_escaped_form(character: str) -> None:
    line = replace(ENTRY, target=character * 10_000).to_json()
    cut = json.loads(line)["target"]
    each = len(json.dumps(character)) - 2
    assert cut == character * (MOST_TEXT // each)


def test_the_file_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    size = len(ENTRY.to_json()) + 1
    log = AuditLog(path, most_bytes=3 * size, most_files=3)
    for number in range(1, 10):
        log.write(replace(ENTRY, at_ms=number))
        assert path.stat().st_size <= 3 * size
    log.write(replace(ENTRY, at_ms=0))
    found = {file.name: [line["at_ms"] for line in lines(file)] for file in tmp_path.iterdir()}
    assert found == {"audit.jsonl": [0], "audit.jsonl.1": [7, 8, 9], "audit.jsonl.2": [4, 5, 6]}
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", most_bytes=10, most_files=2)
    log.write(ENTRY)
    log.write(ENTRY)
    assert sorted(len(lines(file)) for file in tmp_path.iterdir()) == [1, 1]


def test_writers_at_the_same_time_lose_no_line_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    logs = [AuditLog(path, most_bytes=5000, most_files=100) for _ in range(4)]

    def work(number: int) -> None:
        for at in range(100):
            logs[number].write(replace(ENTRY, at_ms=number * 1000 + at))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [line["at_ms"] for file in tmp_path.iterdir() for line in lines(file)]
    assert sorted(map(str, found)) == sorted(str(number * 1000 + at) for number in range(4) for at in range(100))
    assert len(list(tmp_path.iterdir())) > 5


def test_a_line_that_a_killed_process_has_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(ENTRY)
    with path.open("ab") as file:
        file.write(b'{"at_ms": 2, "us')
    log.write(replace(ENTRY, user="bob"))
    page = read_audit(path, AuditFilter(), 10)
    assert ([entry.user for entry in page.entries], page.damaged) == (["bob", "ada"], 1)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "audit.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        AuditLog(tmp_path / "audit.jsonl").write(ENTRY)
    assert target.read_text() == ""


def test_a_flood_is_counted_and_does_not_fill_the_log() -> None:
    flood = Flood(per_minute=3)
    assert [flood.admit(at) for at in (0, 1, 2, 3, 59_999)] == [0, 0, 0, None, None]
    assert [flood.admit(60_000), flood.admit(60_001)] == [2, 0]


def test_the_refusals_of_a_user_are_counted_apart_and_few_users_are_kept() -> None:
    floods = Floods(per_minute=1, most=2)
    assert [floods.admit(user, 0) for user in (None, "ada", "bob", None, "ada")] == [0, 0, 0, None, None]
    assert floods.admit("ada", 60_000) == 1
    assert [floods.admit("cem", 60_000), floods.admit("bob", 60_000)] == [0, 0]
    assert floods.admit("ada", 60_000) == 0, "two others came since"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "done"),
        (202, "done"),
        (308, "done"),
        (401, "refused"),
        (403, "refused"),
        (404, "rejected"),
        (409, "rejected"),
        (413, "rejected"),
        (500, "failed"),
        (503, "failed"),
        (0, "failed"),
    ],
)
def test_the_outcome_is_that_of_the_answer(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome


ALL = AuditFilter()


def written(path: Path, count: int, per_file: int = 1_000, **changes: object) -> None:
    size = max(len(replace(ENTRY, at_ms=number, **changes).to_json()) for number in range(count)) + 1  # type: ignore[arg-type]
    log = AuditLog(path, most_bytes=per_file * size)
    for number in range(count):
        log.write(replace(ENTRY, at_ms=number, **changes))  # type: ignore[arg-type]


def all_pages(path: Path, chosen: AuditFilter, most: int, most_bytes: int = 1 << 23) -> list[AuditPage]:
    pages = [read_audit(path, chosen, most, "", most_bytes)]
    while pages[-1].next:
        pages.append(read_audit(path, chosen, most, pages[-1].next, most_bytes))
    return pages


def times(pages: list[AuditPage]) -> list[int]:
    return [entry.at_ms for page in pages for entry in page.entries]


def test_a_line_is_read_as_it_was_written() -> None:
    entry = replace(ENTRY, reason="ää", suppressed=3)
    assert AuditEntry.parse(entry.to_json().encode()) == entry
    assert AuditEntry.parse(b'{"at_ms": 3, "new": 1, "status": "x"}') == AuditEntry(3, "", "", "", "", "", "", "", 0)


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_pages_are_read_backwards_over_all_files(tmp_path: Path, most: int) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 20, per_file=6)
    assert len(list(tmp_path.iterdir())) == 4
    pages = all_pages(path, ALL, most)
    assert times(pages) == list(range(19, -1, -1))
    assert all(len(page.entries) <= most for page in pages)
    assert len(pages) <= -(-20 // most) + 1


def test_lines_longer_than_a_piece_and_pages_that_end_anywhere_are_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 400, target="x" * MOST_TEXT, reason="y" * MOST_TEXT)
    assert path.stat().st_size > 4 * 64 * 1024
    assert times(all_pages(path, ALL, 1_000)) == list(range(399, -1, -1))
    assert times(all_pages(path, ALL, 37)) == list(range(399, -1, -1))


def test_a_page_looks_through_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 100)
    AuditLog(path).write(replace(ENTRY, at_ms=500, user="bob"))
    with path.open("ab") as file:
        file.write(path.read_bytes()[:-1].split(b"\n")[0].replace(b"ada", b"eve") + b"\n")
    pages = all_pages(path, AuditFilter(user="bob"), 10, most_bytes=1_000)
    assert times(pages) == [500]
    assert len(pages) > 10
    assert pages[5].entries == ()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (AuditFilter(user="bob"), [3]),
        (AuditFilter(job="a" * 32), [4, 1]),
        (AuditFilter(job="a"), []),
        (AuditFilter(since_ms=3), [4, 3]),
        (AuditFilter(until_ms=2), [2, 1]),
        (AuditFilter(since_ms=2, until_ms=3), [3, 2]),
        (AuditFilter(user="ada", job="b" * 32), [2]),
    ],
)
def test_lines_are_chosen_by_user_job_and_time(tmp_path: Path, chosen: AuditFilter, expected: list[int]) -> None:
    path = tmp_path / "audit.jsonl"
    for at, user, target in ((1, "ada", "a" * 32), (2, "ada", "x " + "b" * 32), (3, "bob", ""), (4, "ada", "a" * 32)):
        AuditLog(path).write(replace(ENTRY, at_ms=at, user=user, target=target))
    assert times([read_audit(path, chosen, 10)]) == expected


def test_the_next_page_follows_a_file_that_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 6)
    first = read_audit(path, ALL, 2)
    path.rename(tmp_path / "audit.jsonl.1")
    AuditLog(path).write(replace(ENTRY, at_ms=99))
    second = read_audit(path, ALL, 10, first.next)
    assert times([first, second]) == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("after", ["x", "1-2", "-", "9" * 400 + "-1", "1-x"])
def test_a_place_that_is_not_there_is_refused(tmp_path: Path, after: str) -> None:
    written(tmp_path / "audit.jsonl", 1)
    with pytest.raises(AuditPlaceError):
        read_audit(tmp_path / "audit.jsonl", ALL, 1, after)


def test_damaged_lines_are_counted_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, 2)
    with path.open("ab") as file:
        file.write(b"{\n\n[]\n" + b"z" * 3_000_000 + b"\n" + replace(ENTRY, at_ms=7).to_json().encode() + b'\n{"at')
    page = read_audit(path, ALL, 10)
    assert [entry.at_ms for entry in page.entries] == [7, 1, 0]
    assert page.damaged >= 4


def test_a_log_that_is_not_there_is_empty_and_a_link_is_not_followed(tmp_path: Path) -> None:
    assert read_audit(tmp_path / "audit.jsonl", ALL, 10) == AuditPage((), "", 0)
    written(tmp_path / "other", 1)
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"audit\.jsonl"):
        read_audit(tmp_path / "audit.jsonl", ALL, 10)
