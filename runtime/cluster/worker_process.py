"""Starts the process of a worker; see `runtime.cluster.worker`."""

from __future__ import annotations

import os
import subprocess
import sys

from runtime.environment.context import ComponentContext


def start_worker(context: ComponentContext, index: int, name: str) -> subprocess.Popen[bytes]:
    """A fork of some milliseconds, from the main thread. Raises OSError.

    Args:
        context: of the components of this machine.
        index: which worker of this machine, from 0.
        name: of its TaskExecutor, and of its logs.
    """
    path = context.directory.log / f"{name}.out"
    command = [sys.executable, "-m", "runtime.cluster.worker", *map(str, context.arguments().values())]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:  # noqa: PTH123
        return subprocess.Popen(
            [*command, str(index), name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
