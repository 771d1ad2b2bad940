"""File locks of a driver JVM, taken for its tasks: they go when the task is released, or with the JVM.

They are the kernel's record locks, which belong to a process: two tasks of one JVM would not keep each other out, and
to close a file gives up all that the process has locked of it. So the JVM keeps a book of what is locked for whom,
which an adopter of the JVM finds again.
"""

from __future__ import annotations

import threading
from typing import Any

from runtime.spark.handles import LOCKS_KEY, JvmHandles

_LOCKED = 3
"""Items of an entry of what is locked: owner, file and lock. The last one comes when it is locked."""
_guard = threading.Lock()


def lock_file(handles: JvmHandles, path: str, owner: str) -> bool:
    """Lock a file for a task, which is made if it is not there; whether it has the lock now, or had it before."""
    with _guard:
        book = _book(handles)
        entry = book.get(path)
        if entry is not None and entry.size() == _LOCKED:
            return str(entry.get(0)) == owner
        if entry is not None:  # whoever was about to lock it has lost the connection: it may be locked, or not
            entry.get(1).close()
        file = handles.jvm.java.io.RandomAccessFile(path, "rw")
        entry = handles.jvm.java.util.ArrayList()
        entry.add(owner)
        entry.add(file)
        book.put(path, entry)  # before it is locked: one that nobody knows of would be locked until the JVM ends
        lock = file.getChannel().tryLock()
        if lock is None:
            file.close()
            book.remove(path)
            return False
        entry.add(lock)
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
    book = handles.properties.get(LOCKS_KEY)
    if book is None:
        handles.properties.put(LOCKS_KEY, handles.jvm.java.util.HashMap())
        book = handles.properties.get(LOCKS_KEY)
    return book
