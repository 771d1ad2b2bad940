"""An actor's process dies with its parent, also with one that ends before the process has asked the kernel for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

PROGRAM = """\
import os, select, sys
from pathlib import Path
from types import SimpleNamespace
from actors.process.thespian_base import _tie_to_parent

own = SimpleNamespace(args=(None, "own", "parent", "admin"), prepared_by=os.getpid())
parent = os.pidfd_open(os.getpid())
if os.fork():
    os._exit(0)
select.select([parent], [], [])  # until it has ended, and the kernel has given its child another parent
_tie_to_parent(own)
Path(sys.argv[1]).write_text("the actor runs")
"""


def test_an_actor_ends_whose_parent_ended_just_after_the_fork(tmp_path: Path) -> None:
    """Ours: an actor's process ends where its parent ended just after the fork."""
    ran = tmp_path / "ran"
    # The output ends when the last process of the two has ended.
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(ran)], capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not ran.exists()
