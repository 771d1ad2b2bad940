"""A process that there is once on a machine, as the child of whichever master has its claim."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

from runtime.cluster.supervisor import Child, Running, terminate
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext
from runtime.environment.descriptor import ProcessRecord

STOP_S = 20.0

log = logging.getLogger(__name__)


def start_process(
    context: ComponentContext, name: str, module: str, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    """A fork of some milliseconds, from the main thread. Raises OSError.

    Args:
        context: the surroundings of the components, which the process is given first.
        name: of the file in the log directory that it writes to.
        module: what it runs.
        arguments: after the context's.
    """
    path = context.directory.log / f"{name}.out"
    command = [sys.executable, "-m", module, *map(str, context.arguments().values()), *arguments]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:  # noqa: PTH123
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def claimed_process(
    context: ComponentContext,
    name: str,
    role: str,
    module: str,
    arguments: Sequence[str],
    claim: Claim,
    *,
    is_kept: bool = True,
) -> Child:
    """The process of a claim that is held: found running where a killed master has left it, else started.

    Args:
        context: the surroundings of the components, which it is given first.
        name: of the child, and of the file in the log directory that it writes to.
        role: what it is, for listings.
        module: what it runs.
        arguments: after the context's.
        claim: names it for the next master.
        is_kept: whether it is started again when it has ended.
    """

    async def start() -> Running:
        living = claim.living()
        if living is not None:
            log.info("%s runs as process %d already", name, living[0].pid)
            return Running(living[0].pid)
        process = start_process(context, name, module, arguments)
        claim.note(ProcessRecord.of(name, process.pid))
        return Running(process.pid, "", process)

    async def stop(running: Running) -> None:
        await terminate(running.pid, STOP_S)

    return Child(name, role, start, stop, is_kept=is_kept)
