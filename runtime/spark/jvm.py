"""The JVM of a driver as a process: its directories, its start, and the address that it tells."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from .errors import DriverStartError
from .info import SHIPPED
from .launch import DriverOptions
from .process import die_with

_POLL = 0.01
"""Seconds between two looks for the file in which the JVM tells its port."""


def prepare(options: DriverOptions) -> None:
    """Make the directories; remove what a killed predecessor left there."""
    options.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    options.log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(options.work_dir / SHIPPED, ignore_errors=True)
    for name in ("local", "tmp"):
        shutil.rmtree(options.work_dir / name, ignore_errors=True)
        (options.work_dir / name).mkdir(mode=0o700)


def spawn(arguments: list[str], env: dict[str, str], options: DriverOptions) -> subprocess.Popen[bytes]:
    """Start the JVM, in a session of its own. Raises `DriverStartError`."""
    parent = os.getpid()
    # The JVM ends when its standard input does; it holds the writing end itself, so that this never happens.
    reading, writing = os.pipe()
    output = os.open(options.output_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            arguments,
            env=env,
            cwd=options.work_dir,
            stdin=reading,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
            preexec_fn=(lambda: die_with(parent)) if options.die_with_parent else None,
        )
    except OSError as error:
        raise DriverStartError(f"{arguments[0]} could not be started: {error}") from error
    finally:
        for descriptor in (reading, writing, output):
            os.close(descriptor)


async def await_connection(child: subprocess.Popen[bytes], path: Path, options: DriverOptions) -> tuple[int, str]:
    """Wait for the file in which the JVM tells its gateway's port and secret."""
    deadline = time.monotonic() + options.start_timeout
    while not path.exists():
        if child.poll() is not None:
            raise DriverStartError(
                f"the Spark driver's JVM ended at once (status {child.returncode}): {_last_lines(options.output_file)}"
            )
        if time.monotonic() > deadline:
            raise DriverStartError(
                f"the Spark driver's JVM did not answer within {options.start_timeout:.0f} s; see {options.log_file}"
            )
        await asyncio.sleep(_POLL)
    data = path.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _last_lines(path: Path, lines: int = 3) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        text = ""
    return " | ".join(text.strip().splitlines()[-lines:]) or f"{path} is empty"
