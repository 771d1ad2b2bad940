"""Shared parts of all commands: options, completion, examples, exit statuses, errors in one line, and Ctrl-C.

A command is one function: click's decorators declare it, its body does it. Its module is loaded for every ``--help``
and every completion, so bodies import what is slow to load (the client, the actors, Spark) themselves.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from conf.configuration import Configuration
from conf.options import ClientOptions, all_options
from runtime.cluster.output import is_fancy, print_error, print_line, say
from runtime.errors import ClusterError
from runtime.ids import JobID

if TYPE_CHECKING:
    from runtime.client import ClusterClient

PROGRAM = "understudy"
COMPLETION_TIMEOUT_S = 2.0
"""How long completion waits for the cluster."""

EXAMPLE_ID = "0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f"

Command = Callable[..., None]
T = TypeVar("T")


class ExitStatus(IntEnum):
    """Exit status of a command; `docs/command-line.md` has the same table."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130


def examples(*lines: str) -> str:
    """Return the epilog with which the help of a command shows examples; a test parses each of them."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


# -------------------------------------------------------------------- options


def configured(command: Command) -> Command:
    """Add ``-D`` and ``--config``, and pass the resulting configuration as ``configuration``."""

    @click.option(
        "-D",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_option,
        help="Set a configuration option; repeatable.",
    )
    @click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        help="Configuration file.  [default: config.yaml in $UNDERSTUDY_CONF_DIR]",
    )
    @functools.wraps(command)
    def wrapper(overrides: tuple[str, ...], config_file: Path | None, **settings: Any) -> None:
        configuration = Configuration.load(config_file, overrides)
        for warning in configuration.warnings:
            click.echo(f"warning: {warning}", err=True)
        command(configuration=configuration, **settings)

    return wrapper


def role_options(command: Command) -> Command:
    """Add ``--role`` and ``--hosts``: for one host's part of a cluster on several hosts, or for all of them."""
    role = click.option(
        "--role",
        type=click.Choice(["master", "task-executor"]),
        help="This host's part of a cluster on several hosts (docs/hosts.md).",
    )
    hosts = click.option(
        "--hosts",
        is_flag=True,
        help="On every host that `masters` and `workers` in the configuration directory name, over ssh.",
    )
    return role(hosts(command))


def masters_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option ``--masters``."""
    return click.option("--masters", type=click.IntRange(1, 16), default=1, show_default=True, help=help_text)


def files_option(flag: str, name: str, help_text: str) -> Callable[[Command], Command]:
    """Return a repeatable option that names files of a job."""
    return click.option(flag, name, multiple=True, type=click.Path(exists=True, dir_okay=False), help=help_text)


def pass_job_file(command: Command) -> Command:
    """Add the arguments FILE and ARGS."""
    arguments = click.argument("args", nargs=-1, type=click.UNPROCESSED)
    return click.argument("file", type=click.Path(path_type=Path))(arguments(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids of the cluster's jobs; none where it does not answer at once."""
    from runtime.cluster.discovery import connect

    try:
        configuration = Configuration.load(ctx.params.get("config_file"), ctx.params.get("overrides") or ())
        with connect(configuration.set(ClientOptions.TIMEOUT, COMPLETION_TIMEOUT_S)) as client:
            jobs = client.list_jobs()
    except Exception:  # a shell that completes has no place to show an error
        return []
    return [
        CompletionItem(job.job_id, help=f"{job.name}, {job.status.value}")
        for job in jobs
        if job.job_id.startswith(incomplete)
    ]


def job_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Return the argument JOB_ID, a `JobID`, or None where it may be left out."""

    def parsed(ctx: click.Context, param: click.Parameter, value: str | None) -> JobID | None:
        return None if value is None else job_id_of(value)

    return click.argument("job_id", required=required, callback=parsed, shell_complete=complete_job)


def job_id_of(text: str) -> JobID:
    """Return the id of a job. Raises `ClusterError`."""
    try:
        return JobID(text)
    except ValueError as error:
        raise ClusterError(str(error), "`python -m runtime.cluster job list` shows the ids of jobs") from error


def complete_option(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the keys of ``-D``, each with an equals sign."""
    return [
        CompletionItem(f"{option.key}=", help=option.description.partition(". ")[0])
        for option in all_options()
        if option.key.startswith(incomplete)
    ]


def completion_script(cli: click.Command, shell: str) -> str:
    """Return the script with which a shell completes; it calls ``understudy`` with ``_UNDERSTUDY_COMPLETE`` set."""
    found = get_completion_class(shell)
    assert found is not None
    text: str = found.source_template % found(cli, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source_vars()
    return text


# ------------------------------------------------------------ errors, waiting


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print an expected error as one line with its remedy and exit with 1, or with 2 for a job's wrong arguments."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has closed the pipe: there is nobody to print an error for
    except Exception as error:
        from actors.errors import ActorError
        from blob.errors import BlobError
        from runtime.ha.errors import HaError
        from runtime.jobgraph.errors import JobGraphError, ParameterUsageError
        from runtime.protocol.errors import GatewayError
        from runtime.spark.errors import SparkError

        if not isinstance(
            error, ActorError | BlobError | GatewayError | HaError | JobGraphError | SparkError | OSError
        ):
            raise
        print_error(error, str(getattr(error, "remedy", "")))
        sys.exit(ExitStatus.WRONG_USAGE if isinstance(error, ParameterUsageError) else ExitStatus.FAILED)


@contextmanager
def connected(configuration: Configuration) -> Iterator[ClusterClient]:
    """Provide a client of the running cluster, with `readable_errors`."""
    from runtime.cluster.discovery import connect

    with readable_errors(), connect(configuration) as client:
        yield client


@contextmanager
def waiting(what: str, left: str, stream: TextIO | None = None) -> Iterator[None]:
    """Wait for the cluster: a terminal shows *what* with a sign of life, a pipe nothing.

    Args:
        what: what the command waits for; empty where it prints its steps.
        left: printed after Ctrl-C, which exits with 130: what goes on, and how to follow it.
        stream: replaces standard error.
    """
    out = stream or sys.stderr
    try:
        with _sign_of_life(what, out):
            yield
    except KeyboardInterrupt:
        print_line(f"interrupted: {left}", out)
        sys.exit(ExitStatus.INTERRUPTED)


@contextmanager
def interrupt_kept() -> Iterator[Callable[[], None]]:
    """Keep the first Ctrl-C until the function that this yields is called; a second one interrupts at once.

    For a submission: interrupted in the middle of it, a command could not tell whether there is a job to cancel.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # the caller ignores Ctrl-C, or sees to it
        yield lambda: None
        return
    kept = threading.Event()

    def keep(number: int, frame: FrameType | None) -> None:
        if kept.is_set():
            raise KeyboardInterrupt
        kept.set()

    def release() -> None:
        signal.signal(signal.SIGINT, before)
        if kept.is_set():
            kept.clear()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, keep)
    try:
        yield release
    finally:
        signal.signal(signal.SIGINT, before)


def await_or_cancel(name: str, wait: Callable[[], T], cancel: Callable[[], None]) -> tuple[T, bool]:
    """Wait for an end; return what *wait* returns, and whether Ctrl-C has cancelled it.

    The first Ctrl-C cancels, the second leaves the rest to the cluster and exits.
    """
    try:
        return wait(), False
    except KeyboardInterrupt:
        say(f"cancelling {name}; Ctrl-C again leaves it to the cluster")
    with waiting("", f"{name} is left to the cluster"):
        cancel()
        return wait(), True


def status_of_end(state: str, interrupted: bool) -> ExitStatus:
    """Return the exit status of a command that has waited for the end of a job or an application."""
    if state in ("FINISHED", "SUCCEEDED"):
        return ExitStatus.DONE
    return ExitStatus.INTERRUPTED if interrupted and state == "CANCELED" else ExitStatus.FAILED


def _sign_of_life(what: str, stream: TextIO) -> AbstractContextManager[object]:
    if not what or not is_fancy(stream):
        return nullcontext()
    from rich.console import Console
    from rich.text import Text

    return Console(file=stream).status(Text(what))
