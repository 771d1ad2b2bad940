"""The log of a file sink: the places of its files, and the order in which it is changed in a remote file system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.metadata_log import chain, compacted, exchange_steps, last_entry, opens, restart_chain
from runtime.checkpoint.sink_log import moved, orphans, place_of, relocated, sink_of, uri_at

URL = "ftp://host:21/out dir"


def entry(*places: str) -> bytes:
    return "\n".join(["v1", *(f'{{"path":"{uri_at(place)}"}}' for place in places)]).encode()


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("ftp://host:21/out%20dir/part-0.parquet", f"{URL}/part-0.parquet"),
        ("s3a://bucket/out/k=a%253Fb/%C3%BCber%23%3F", "s3a://bucket/out/k=a%3Fb/über#?"),
        ("file:///out%20dir/a", "/out dir/a"),
    ],
)
def test_a_place_is_a_uri_without_escapes(uri: str, place: str) -> None:
    assert place_of(uri) == place
    assert place_of(uri_at(place)) == place


def test_a_sink_is_the_directory_that_hadoop_makes_of_its_url() -> None:
    assert sink_of("ftp://host:21//out//dir/") == "ftp://host:21/out/dir"
    assert sink_of("/out") == "/out"


@pytest.mark.parametrize(("old", "new"), [("/out", URL), (URL, "/out"), (URL, "s3a://bucket/out")])
def test_files_that_were_moved_to_another_file_system_are_named_there(old: str, new: str) -> None:
    content = entry(f"{old}/a", f"{old}/k=1/b", f"{old}er/c")
    assert moved(f"{old}er/c", old, new) == f"{old}er/c"
    known = {f"{new}/k=1/b"}
    changed = relocated(content, old, new, known.__contains__).decode().splitlines()
    assert [line for line in changed if f'"path":"{uri_at(new)}/k=1/b"' in line.replace(" ", "")] == [changed[2]]
    assert changed[1].encode() in content
    assert changed[3].encode() in content


def test_only_files_of_a_remote_sink_are_its_orphans() -> None:
    abandoned = [entry(f"{URL}/a", f"{URL}/b", f"{URL}er/c", "/out dir/d", f"{URL}/../e", "ftp://other:21/out dir/f")]
    assert orphans(abandoned, [entry(f"{URL}/a")], URL) == {f"{URL}/b"}


def log_at(last: int, cleaned: int, interval: int) -> set[str]:
    """The names of a log after a batch; Spark has deleted what its newest compacted file holds, up to *cleaned*."""
    names = {f"{n}.compact" if (n + 1) % interval == 0 else f"{n}" for n in range(last + 1)}
    newest = (last + 1) // interval * interval - 1
    kept = {f"{newest}.compact", f"{newest - interval}.compact"}
    return {name for name in names if last_entry([name]) > min(newest, cleaned) or name in kept}


@given(st.integers(0, 45), st.integers(0, 45), st.integers(-1, 45), st.integers(-1, 45), st.sampled_from([3, 10]))
def test_readers_find_a_whole_log_after_each_step_of_an_exchange(
    last: int, back: int, cleaned: int, cleaned_before: int, interval: int
) -> None:
    goal = max(0, last - back)
    live = log_at(last, cleaned, interval)
    wanted = set(restart_chain(log_at(goal, cleaned_before, interval), goal))
    additions, removals = exchange_steps(live, wanted, {str(goal)} & wanted & live)
    names, seen = set(live), [last]
    for name in additions:
        names.add(name)
        seen.append(last_entry(names))
        chain(names, last_entry(names))
        assert opens(names)
    for name in removals:
        names.remove(name)
        if name in wanted:
            names.add(name)  # with its other content
            continue
        seen.append(last_entry(names))
        chain(names, last_entry(names))
        newest = sorted(compacted(names))[-2:]
        # Between the removals of two compacted files the interval may be unknown, where Spark had deleted others.
        assert opens(names) or newest[1] - newest[0] > interval
    assert names == wanted
    assert seen == sorted(seen, reverse=True), "it goes back only"
    assert seen[-1] == goal


def test_a_sink_that_has_lost_its_log_gets_it_from_its_oldest_file_on() -> None:
    wanted = ["19.compact", "9.compact", "21", "20"]
    assert exchange_steps([], wanted) == (["9.compact", "19.compact", "20", "21"], [])
    assert exchange_steps(["0", ".1.x.tmp"], []) == ([], ["0", ".1.x.tmp"])
