"""Functions of the standard library that make other steps in other versions of Python.

Simulated programs get these. `tests.simulation.disk` counts their looks at files as those of the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

FILE = __file__


def rmtree(
    path: Any,
    ignore_errors: bool = False,
    onerror: Callable[..., object] | None = None,
    *,
    onexc: Callable[..., object] | None = None,
) -> None:
    """`shutil.rmtree` as Python 3.11 and 3.12 have it: depth first, and an entry that vanishes meanwhile is an error.

    Python 3.13 removes the files of a directory before its subdirectories, begins with the last of these, and ignores
    what vanishes. A program must not rely on that.
    """

    def failed(step: Callable[..., object], name: str, error: OSError) -> None:
        if ignore_errors:
            return
        if onexc is not None:
            onexc(step, name, error)
        elif onerror is not None:
            onerror(step, name, (type(error), error, error.__traceback__))
        else:
            raise error

    def remove(name: str, shown: str, above: int | None) -> None:
        step: Callable[..., object] = os.lstat
        try:
            before = os.lstat(name, dir_fd=above)
            step = os.open
            directory = os.open(name, os.O_RDONLY, dir_fd=above)
        except OSError as error:
            failed(step, shown, error)
            return
        try:
            if os.path.samestat(before, os.fstat(directory)):
                empty(directory, shown)
            else:
                failed(os.path.islink, shown, OSError("Cannot call rmtree on a symbolic link"))
        finally:
            os.close(directory)
        try:
            os.rmdir(name, dir_fd=above)
        except OSError as error:
            failed(os.rmdir, shown, error)

    def empty(directory: int, shown: str) -> None:
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            whole = f"{shown}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                remove(entry.name, whole, directory)
                continue
            try:
                os.unlink(entry.name, dir_fd=directory)
            except OSError as error:
                failed(os.unlink, whole, error)

    remove(os.fspath(path), os.fspath(path), None)
