from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blob.cache import Entry, Residents
from blob.key import TransientBlobKey

JOB = "a" * 32
ENTRIES: list[Entry] = [
    (job, TransientBlobKey.create(bytes([number]) * 32, bytes(16))) for number, job in enumerate([None, None, JOB, JOB])
]
A, B, C, D = ENTRIES


def filled(maximum: int | None) -> Residents:
    residents = Residents(maximum)
    for entry in ENTRIES:
        residents.add(entry, 10)
    return residents


def test_the_least_recently_used_goes_first() -> None:
    residents = filled(25)
    residents.use(A)
    assert residents.surplus() == [B, C]
    assert residents.surplus(10) == [B, C, D]
    assert filled(None).surplus(1000) == []


def test_what_is_referenced_stays() -> None:
    residents = filled(0)
    residents.pin(A)
    residents.pin(A)
    residents.register_job(JOB)
    assert residents.surplus() == [B]
    residents.unpin(A)
    assert residents.surplus() == [B]
    residents.unpin(A)
    assert residents.release_job(JOB)
    residents.hold(JOB)
    assert residents.surplus() == [A, B]
    residents.forget_job(JOB)
    assert (residents.surplus(), residents.total) == ([A, B], 20)


def test_what_was_found_is_to_be_verified() -> None:
    residents = Residents(None)
    residents.found(A, 10)
    assert not residents.is_verified(A)
    residents.verified(A)
    assert residents.is_verified(A)
    residents.found(A, 10)
    assert residents.is_verified(A)
    assert not residents.is_verified(B)


def test_the_last_of_a_jobs_users_releases_it() -> None:
    residents = Residents(None)
    residents.register_job(JOB)
    residents.register_job(JOB)
    assert [residents.release_job(JOB) for _ in range(3)] == [False, True, True]


ACTIONS = st.sampled_from(["add", "use", "remove", "pin", "unpin", "evict"])


@given(st.lists(st.tuples(ACTIONS, st.sampled_from(ENTRIES), st.integers(0, 30))), st.integers(0, 60))
def test_the_total_is_true_and_only_unpinned_copies_go(actions: list[tuple[str, Entry, int]], maximum: int) -> None:
    residents = Residents(maximum)
    sizes: dict[Entry, int] = {}
    pins = dict.fromkeys(ENTRIES, 0)
    for action, entry, size in actions:
        match action:
            case "add":
                residents.add(entry, size)
                sizes[entry] = size
            case "use":
                residents.use(entry)
            case "remove":
                residents.remove(entry)
                sizes.pop(entry, None)
            case "pin":
                residents.pin(entry)
                pins[entry] += 1
            case "unpin" if pins[entry]:
                residents.unpin(entry)
                pins[entry] -= 1
            case "evict":
                for gone in residents.surplus():
                    assert not pins[gone]
                    residents.remove(gone)
                    del sizes[gone]
                assert residents.total <= maximum or all(pins[entry] for entry, size in sizes.items() if size)
        assert residents.total == sum(sizes.values())
