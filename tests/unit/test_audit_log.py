"""The audit log: what a line holds, its file, its rotation, and what a flood of refused requests does to it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.users.audit import MOST_TEXT, AuditEntry, AuditLog, Flood, outcome_of

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
    assert len(str(line["target"])) == MOST_TEXT


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
