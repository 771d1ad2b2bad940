"""Ends an embedded cluster when its program has ended in any way.

    python -m runtime.embedded.guard RUNTIME_DIR PROGRAM_PID PROGRAM_START FD keep|remove

The guard waits until the program closes its end of a pipe: the program stops the cluster, or has ended. It also watches
the program's process, since a child of the program may hold the pipe open. Then it stops all that runs of the cluster.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path

from conf.configuration import Configuration
from conf.options import ClusterOptions
from runtime.cluster.session import stop_cluster
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.spark.process import open_process, start_time


def main() -> int:
    """Return the exit status: 1 if the cluster's directory was to be removed and still exists, else 0."""
    root, pid, started, pipe = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _await_end(pid, started, pipe)
    directory = ClusterDirectory(root)
    configuration = Configuration.from_dict({"cluster.runtime-dir": str(root)})
    if directory.configuration_file.exists():
        configuration = Configuration.read(directory.configuration_file).set(ClusterOptions.RUNTIME_DIR, root)
    status = 0
    try:
        stop_cluster(configuration, _say)
    except (ClusterError, OSError) as error:
        _say(f"{error}")  # the cluster does not run any more, or cannot be stopped
    if sys.argv[5] == "remove":
        shutil.rmtree(root, ignore_errors=True)
        status = int(root.exists())
    return status


def _await_end(pid: int, started: int, pipe: int) -> None:
    watched = [pipe]
    with contextlib.suppress(ProcessLookupError):
        process = open_process(pid)
        if start_time(pid) != started:
            return
        watched.append(process)
        while not any(_is_over(item, pipe) for item in select.select(watched, [], [])[0]):
            pass


def _is_over(item: int, pipe: int) -> bool:
    return item != pipe or not os.read(pipe, 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
