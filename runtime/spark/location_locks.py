"""File locks of a driver JVM, taken for its tasks: they go when the task is released, or with the JVM.

They are the kernel's record locks, which belong to a process: two tasks of one JVM would not keep each other out, and
to close a file gives up all that the process has locked of it. So the JVM keeps a book of what is locked for whom,
which an adopter of the JVM finds again.
"""

from __future__ import annotations

import threading
from typing import Any

_BOOK = "understudy.locks"
_guard = threading.Lock()


def lock_file(jvm: Any, path: str, owner: str) -> bool:
    """Lock a file for a task, which is made if it is not there; whether it has the lock now, or had it before."""
    with _guard:
        book = _book(jvm)
        entry = book.get(path)
        if entry is not None:
            return str(entry.get(0)) == owner
        file = jvm.java.io.RandomAccessFile(path, "rw")
        lock = file.getChannel().tryLock()
        if lock is None:
            file.close()
            return False
        entry = jvm.java.util.ArrayList()
        for item in (owner, file, lock):
            entry.add(item)
        book.put(path, entry)
        return True


def unlock_files(jvm: Any, owner: str | None = None) -> None:
    """Give up what was locked for a task, or for all."""
    with _guard:
        book = _book(jvm)
        for path in [str(path) for path in book.keySet()]:
            entry = book.get(path)
            if owner is None or str(entry.get(0)) == owner:
                entry.get(1).close()
                book.remove(path)


def _book(jvm: Any) -> Any:
    properties = jvm.java.lang.System.getProperties()
    book = properties.get(_BOOK)
    if book is None:
        properties.put(_BOOK, jvm.java.util.HashMap())
        book = properties.get(_BOOK)
    return book
