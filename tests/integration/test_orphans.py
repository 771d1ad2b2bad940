"""Processes whose parents have ended before them are collected by the master or worker that they come to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from actors.process.thespian_base import become_subreaper
from runtime.cluster.leftovers import collect_orphans, ended_children
from tests.waiting import PATIENCE_S

LEAVING = "import subprocess; print(subprocess.Popen(['cat'], stdin=0, stdout=subprocess.DEVNULL).pid)"


def inherit() -> None:
    """In a process of its own: inherit a process, and see it collected when it has ended."""
    become_subreaper()
    gate, end = os.pipe()
    left = subprocess.run([sys.executable, "-c", LEAVING], stdin=gate, stdout=subprocess.PIPE, check=True)
    orphan = Path(f"/proc/{int(left.stdout)}")
    os.close(gate)
    assert ended_children() == set()
    assert orphan.exists()
    os.close(end)
    asyncio.run(collected(orphan))


async def collected(process: Path) -> None:
    """Collect until it is gone, as a zombie, too."""
    collecting = asyncio.create_task(collect_orphans(0.05))
    async with asyncio.timeout(PATIENCE_S):
        while process.exists():  # noqa: ASYNC110  # /proc tells nobody of a change
            await asyncio.sleep(0.01)
    collecting.cancel()


def test_an_orphan_that_has_ended_does_not_stay_as_a_zombie() -> None:
    program = "from tests.integration.test_orphans import inherit; inherit()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
