"""A task process dies with its zygote, also with one that is killed at the moment of the fork."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

PROGRAM = """\
import os, select, signal, socket, sys
from pathlib import Path
from runtime.spark.task import zygote

fork, parent = os.fork, os.pidfd_open(os.getpid())

def fork_and_be_killed():
    pid = fork()
    if pid:
        os.kill(os.getpid(), signal.SIGKILL)
    select.select([parent], [], [])  # returns when the zygote has ended; its files are closed before that
    return pid

os.fork = fork_and_be_killed
zygote.decode = lambda *_: Path(sys.argv[1]).write_text("the task runs")
owner, own = socket.socketpair()
serving = zygote._Zygote(own)
serving._descriptors = [owner.dup().detach()]
serving._handle({"op": "fork", "id": 1, "spec": b""})
"""


def test_a_task_dies_with_a_zygote_that_is_killed_at_the_fork(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    # The output ends when the last process of the two has ended.
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(ran)], capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
    assert not ran.exists()
