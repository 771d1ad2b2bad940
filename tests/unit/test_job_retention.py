"""Which finished jobs are kept: never too many, too large or too old, and never others than the newest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.dispatcher.archive import Retention
from runtime.ids import JobID


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


def test_the_oldest_end_goes_first_whatever_the_order_of_arrival() -> None:
    retention = Retention(2, 1000, 10.0)
    for number, end_ms in ((1, 300), (2, 100), (3, 200)):
        retention.add(job(number), end_ms, 1)
    assert retention.drop_surplus(300) == [job(2)]
    assert retention.drop_surplus(300) == []


def test_the_last_one_stays_whatever_its_size_and_takes_the_room_of_the_others() -> None:
    retention = Retention(10, 100, 10.0)
    retention.add(job(1), 1, 60)
    assert retention.drop_surplus(5) == []
    retention.add(job(2), 2, 500)
    assert retention.drop_surplus(5) == [job(1)]
    assert retention.size == 500
    retention.add(job(3), 3, 1)
    assert retention.drop_surplus(5) == [job(2)]


def test_a_job_that_is_added_again_counts_once() -> None:
    retention = Retention(10, 100, 10.0)
    retention.add(job(1), 1, 60)
    retention.add(job(1), 1, 70)
    assert retention.size == 70
    assert retention.drop_surplus(10_001) == []
    assert retention.drop_surplus(10_002) == [job(1)]


@given(
    ends=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30),
    capacity=st.integers(0, 20),
    max_bytes=st.integers(0, 300),
    expiration_s=st.floats(0.0, 1.0),
    now_ms=st.integers(0, 2000),
)
def test_what_is_kept_is_within_the_bounds_and_as_much_as_fits(
    ends: list[tuple[int, int]], capacity: int, max_bytes: int, expiration_s: float, now_ms: int
) -> None:
    retention = Retention(capacity, max_bytes, expiration_s)
    for number, (end_ms, size) in enumerate(ends):
        retention.add(job(number), end_ms, size)
    dropped = retention.drop_surplus(now_ms)
    in_order = [job(number) for number in sorted(range(len(ends)), key=lambda number: ends[number][0])]
    assert dropped == in_order[: len(dropped)]
    kept = [int(job_id, 16) for job_id in in_order[len(dropped) :]]
    sizes = [ends[number][1] for number in kept]
    assert len(kept) <= capacity
    assert sum(sizes) <= max_bytes or len(kept) == 1
    assert all(now_ms - ends[number][0] <= expiration_s * 1000 for number in kept)
    assert retention.size == sum(sizes)
    if dropped:
        end_ms, size = ends[int(dropped[-1], 16)]
        fits = len(kept) < capacity and (sum(sizes) + size <= max_bytes or not kept)
        assert not (fits and now_ms - end_ms <= expiration_s * 1000), "the last one dropped could have stayed"
