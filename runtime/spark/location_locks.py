"""File locks of a driver JVM, taken for its tasks: they go when the task is released, or with the JVM.

They are the kernel's record locks, which belong to a process: two tasks of one JVM would not keep each other out, and
to close a file gives up all that the process has locked of it. So the JVM keeps a book of what is locked for whom,
which an adopter of the JVM finds again.
"""

from __future__ import annotations

import threading
from typing import Any

from .handles import JvmHandles

_BOOK = "understudy.locks"
_guard = threading.Lock()


def lock_file(handles: JvmHandles, path: str, owner: str) -> bool:
    """Lock a file for a task, which is made if it is not there; whether it has the lock now, or had it before."""
    with _guard:
        book = _book(handles)
        entry = book.get(path)
        if entry is not None:
            return str(entry.get(0)) == owner
        file = handles.jvm.java.io.RandomAccessFile(path, "rw")
        lock = file.getChannel().tryLock()
        if lock is None:
            file.close()
            return False
        entry = handles.jvm.java.util.ArrayList()
        for item in (owner, file, lock):
            entry.add(item)
        book.put(path, entry)
        return True


def unlock_files(handles: JvmHandles, owner: str | None = None) -> None:
    """Give up what was locked for a task, or for all."""
    with _guard:
        book = _book(handles)
        for path in [str(path) for path in book.keySet()]:
            entry = book.get(path)
            if owner is None or str(entry.get(0)) == owner:
                entry.get(1).close()
                book.remove(path)


def _book(handles: JvmHandles) -> Any:
    book = handles.properties.get(_BOOK)
    if book is None:
        handles.properties.put(_BOOK, handles.jvm.java.util.HashMap())
        book = handles.properties.get(_BOOK)
    return book
