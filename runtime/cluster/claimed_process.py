"""A process that there is once on a machine, as the child of whichever master has its claim."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runtime.cluster.supervisor import Child, Running, terminate
from runtime.environment.claims import Claim
from runtime.environment.descriptor import ProcessRecord

STOP_S = 20.0

log = logging.getLogger(__name__)


def claimed_process(name: str, role: str, command: Sequence[str], output: Path, claim: Claim) -> Child:
    """The process of a claim that is held: found running where a killed master has left it, else started.

    Args:
        name: of the child.
        role: what it is, for listings.
        command: starts it.
        output: where it writes.
        claim: names it for the next master.
    """

    async def start() -> Running:
        living = claim.living()
        if living is not None:
            log.info("%s runs as process %d already", name, living[0].pid)
            return Running(living[0].pid)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(os.open(output, flags, 0o600), "ab") as file:  # noqa: ASYNC230, PTH123
            process = subprocess.Popen(  # noqa: ASYNC220  # a fork of some milliseconds, from the main thread
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        claim.note(ProcessRecord.of(name, process.pid))
        return Running(process.pid, "", process)

    async def stop(running: Running) -> None:
        await terminate(running.pid, STOP_S)

    return Child(name, role, start, stop)
