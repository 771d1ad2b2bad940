"""A process that there is once on a machine, as the child of whichever master has its claim."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from runtime.cluster.supervisor import Child, Running, terminate
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext
from runtime.environment.descriptor import ProcessRecord

STOP_S = 20.0
GATE_VARIABLE = "UNDERSTUDY_GATE"
"""Number of the descriptor on which a started process is let go; in its environment until `await_gate`."""

logger = logging.getLogger(__name__)


def start_process(
    context: ComponentContext,
    name: str,
    module: str,
    arguments: Sequence[str],
    note: Callable[[int], None] = lambda pid: None,
) -> subprocess.Popen[bytes]:
    """Start a process that begins once it is noted; a fork of some milliseconds, from the main thread. Raises OSError.

    If this process is killed before the note is written, the started one ends without having done anything: the next
    master could not find it.

    Args:
        context: the surroundings of the components, which the process is given first.
        name: of the file in the log directory that it writes to.
        module: what it runs.
        arguments: after the context's.
        note: writes down the process by its number.
    """
    path = context.directory.log / f"{name}.out"
    command = [sys.executable, "-P", "-m", module, *map(str, context.arguments().values()), *arguments]
    waiting, letting_go = os.pipe()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:  # noqa: PTH123
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(waiting,),
                env={**os.environ, GATE_VARIABLE: str(waiting)},
            )
        note(process.pid)
        os.write(letting_go, b"\n")
    finally:
        os.close(waiting)
        os.close(letting_go)
    return process


def await_gate() -> None:
    """Wait until whoever started this process has noted it; ends this process if he died before."""
    gate = os.environ.pop(GATE_VARIABLE, None)
    if gate is not None:
        noted = os.read(int(gate), 1)
        os.close(int(gate))
        if not noted:
            sys.exit(1)


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
            logger.info("%s runs as process %d already", name, living[0].pid)
            return Running(living[0].pid)
        process = start_process(context, name, module, arguments, lambda pid: claim.note(ProcessRecord.of(name, pid)))
        return Running(process.pid, "", process)

    async def stop(running: Running) -> None:
        await terminate(running.pid, STOP_S)

    return Child(name, role, start, stop, is_kept=is_kept)
