"""How every command runs: errors in one line, exit statuses, what Ctrl-C leaves, a sign of life on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from typing import TextIO

from actors.errors import ActorError
from blob.errors import BlobError
from runtime.cluster.render import is_fancy, print_error, print_line
from runtime.errors import ClusterError
from runtime.ha.errors import HaError
from runtime.ids import JobID
from runtime.jobgraph.errors import JobGraphError, ParameterUsageError
from runtime.protocol.errors import GatewayError
from runtime.spark.errors import SparkError


def job_id_of(text: str) -> JobID:
    """The id of a job; raises ClusterError."""
    try:
        return JobID(text)
    except ValueError as error:
        raise ClusterError(str(error), "`python -m runtime.cluster job list` shows the ids of jobs") from error


class ExitStatus(IntEnum):
    """What a command's exit status says; `docs/command-line.md` has the same table."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn every expected error into one line with its remedy; the status is 1, or 2 for a job's wrong arguments."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read has had enough: nobody is to be told
    except (ActorError, BlobError, GatewayError, HaError, JobGraphError, SparkError, OSError) as error:
        print_error(error, str(getattr(error, "remedy", "")))
        sys.exit(ExitStatus.WRONG_USAGE if isinstance(error, ParameterUsageError) else ExitStatus.FAILED)


@contextmanager
def waiting(what: str, left: str, stream: TextIO | None = None) -> Iterator[None]:
    """Wait for the cluster within this: a terminal shows *what* with a sign of life, a pipe nothing.

    Args:
        what: what is waited for; empty where the command shows its steps itself.
        left: what is so after Ctrl-C, and how it goes on; it is told, and the exit status is 130.
        stream: in place of standard error.
    """
    out = stream or sys.stderr
    try:
        with _sign_of_life(what, out):
            yield
    except KeyboardInterrupt:
        print_line(f"interrupted: {left}", out)
        sys.exit(ExitStatus.INTERRUPTED)


def _sign_of_life(what: str, stream: TextIO) -> AbstractContextManager[object]:
    if not what or not is_fancy(stream):
        return nullcontext()
    from rich.console import Console
    from rich.text import Text

    return Console(file=stream).status(Text(what))
