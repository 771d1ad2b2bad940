from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from blob.contents import KeyedLocks
from tests.waiting import PATIENCE_S


def test_readers_share_and_writers_do_not() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    together = threading.Barrier(4)

    def read(_: int) -> None:
        with locks.shared("a"):
            together.wait(PATIENCE_S)

    inside, count = 0, 0

    def write(_: int) -> None:
        nonlocal inside, count
        with locks.exclusive("a"):
            inside += 1
            assert inside == 1
            count += 1
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
        list(pool.map(write, range(200)))
    assert (count, len(locks)) == (200, 0)


def test_a_writer_waits_for_readers_and_goes_before_later_ones() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[str] = []

    def write() -> None:
        with locks.exclusive("a"):
            order.append("writer")

    def read() -> None:
        with locks.shared("a"):
            order.append("reader")

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    with locks.shared("a"):
        writer.start()
        while not locks._states["a"].writers_waiting:
            pass
        reader.start()
        with locks.exclusive("b"):
            order.append("another key")
    writer.join(PATIENCE_S)
    reader.join(PATIENCE_S)
    assert order == ["another key", "writer", "reader"]
    assert len(locks) == 0


def test_a_lock_is_let_go_by_an_exception() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    for lock in (locks.shared, locks.exclusive, locks.exclusive):
        try:
            with lock("a"):
                raise ValueError
        except ValueError:
            assert len(locks) == 0
