"""Shared parts of all commands: options, completion, examples, exit statuses, errors in one line, and Ctrl-C.

A command is one function: click's decorators declare it, its body runs it. Its module is loaded for every ``--help``
and every completion. So bodies themselves import the modules that are slow to load (the client, the actors, Spark).
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from conf.configuration import Configuration
from conf.options import ClientOptions, all_options
from runtime.cluster.job_listing import LATEST, find_job, full_id
from runtime.cluster.output import discard_output, is_fancy, print_error, print_line, say_anyway
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.ids import JobID
from runtime.protocol.places import is_url

if TYPE_CHECKING:
    from runtime.client import ClusterClient
    from runtime.jobgraph.job_graph import JobKind

PROGRAM = "understudy"
COMPLETION_TIMEOUT_S = 2.0
"""Longest time in seconds that completion waits for the cluster."""
EMPTY_PATH = "the path is empty; a shell variable in it may not be set"

EXAMPLE_ID = "0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f"

Command = Callable[..., None]
T = TypeVar("T")


class ExitStatus(IntEnum):
    """Exit status of a command; `docs/command-line.md` has the same table.

    Statuses that scripts often use are left to them: ours are those of sysexits.h, and the shell's for signals.
    """

    DONE = 0
    FAILED = 1
    WRONG_ARGUMENTS = 2
    WRONG_USAGE = 64
    UNAVAILABLE = 69
    CANCELED = 79
    HUNG_UP = 129
    INTERRUPTED = 130
    NO_READER = 141
    TERMINATED = 143


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
        configuration.report_warnings(lambda warning: click.echo(f"warning: {warning}", err=True))
        command(configuration=configuration, **settings)

    return wrapper


def role_options(command: Command) -> Command:
    """Add ``--role`` and ``--hosts``: for one host's part of a cluster on several hosts, or for all of them."""
    role = click.option(
        "--role",
        type=click.Choice(["master", "task-executor"]),
        help="Only this host's part of a cluster on several hosts (docs/hosts.md).",
    )
    hosts = click.option(
        "--hosts",
        is_flag=True,
        help="All hosts that `masters` and `workers` in the configuration directory name, over ssh.",
    )
    return role(hosts(command))


def masters_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option ``--masters``."""
    return click.option("--masters", type=click.IntRange(1, 16), default=1, show_default=True, help=help_text)


def files_option(flag: str, name: str, help_text: str) -> Callable[[Command], Command]:
    """Return a repeatable option that names files of a job."""
    return click.option(flag, name, multiple=True, type=click.Path(exists=True, dir_okay=False), help=help_text)


def py_files_option(command: Command) -> Command:
    """Add ``--py-files``: files and directories, by commas or by repeating it."""

    def split(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[Path, ...]:
        paths = [Path(part) for text in value for part in ([text] if Path(text).exists() else text.split(",")) if part]
        for path in paths:
            if not path.exists():
                raise click.BadParameter(f"there is no file or directory {str(path)!r}", ctx, param)
        return tuple(paths)

    return click.option(
        "--py-files",
        "py_files",
        multiple=True,
        callback=split,
        metavar="FILE,DIR,...",
        help="Python modules, archives, packages and directories of modules for the job's path; repeatable.",
    )(command)


def environment_option(command: Command) -> Command:
    """Add ``--env``, and pass the variables as ``environment``."""

    def parse(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in value:
            name, is_given, given = text.partition("=")
            if not name.isidentifier() or not name.isascii():
                raise click.BadParameter(f"{name!r} is not a valid name of an environment variable", ctx, param)
            if is_given:
                found[name] = given
            elif name in os.environ:
                found[name] = os.environ[name]
            else:
                click.echo(f"warning: {name} is not set here, so --env {name} has no effect", err=True)
        return found

    return click.option(
        "--env",
        "environment",
        multiple=True,
        callback=parse,
        metavar="KEY[=VALUE]",
        help="Environment variable of the job's processes; without VALUE, the one of this shell; repeatable.",
    )(command)


JOB_FILE_SETTINGS = {"allow_interspersed_args": False}
"""Context settings of a command with `pass_job_file`: options after FILE are the job's, as with ``spark-submit``."""


class _JobFile(click.Path):
    """The path of a job file; an empty one would be that of the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(EMPTY_PATH, param, ctx)
        return super().convert(value, param, ctx)


def pass_job_file(command: Command) -> Command:
    """Add the arguments FILE and ARGS; a ``--`` between them is dropped once."""
    return _with_job_file(command, is_required=True)


def pass_optional_job_file(command: Command) -> Command:
    """Add FILE and ARGS as `pass_job_file`; FILE may be missing, and is None then."""
    return _with_job_file(command, is_required=False)


def _with_job_file(command: Command, *, is_required: bool) -> Command:

    def without_dashes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        return value[1:] if value[:1] == ("--",) else value

    arguments = click.argument("args", nargs=-1, type=click.UNPROCESSED, callback=without_dashes)
    return click.argument("file", type=_JobFile(path_type=Path), required=is_required)(arguments(command))


def kind_option(command: Command) -> Command:
    """Add ``--kind``, a `JobKind` or None."""

    def parsed(ctx: click.Context, param: click.Parameter, value: str | None) -> JobKind | None:
        from runtime.jobgraph.job_graph import JobKind

        return None if value is None else JobKind(value)

    return click.option(
        "--kind",
        type=click.Choice(["pipeline", "script"]),
        callback=parsed,
        help="What FILE is.  [default: a pipeline if its function pipeline() names understudy's Pipeline]",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class _Directory(click.Path):
    """A directory whose path is not empty: an empty one would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(EMPTY_PATH, param, ctx)
        return super().convert(value, param, ctx)


class _LocalDirectory(_Directory):
    """A local directory; of savepoints in remote file systems, a copy."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and is_url(value):
            self.fail(f"{value} is a URL, and this has to be a local directory: use `understudy savepoint copy`")
        return super().convert(value, param, ctx)


class _Place(_Directory):
    """A local directory, or a URL of one in a remote file system; both are texts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and is_url(value) else super().convert(value, param, ctx)


local_directory = _LocalDirectory(file_okay=False, path_type=Path)
place = _Place(file_okay=False, path_type=str)


class _SavedState(click.types.StringParamType):
    """A savepoint or a retained checkpoint: a directory, a URL, or a checkpoint's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(EMPTY_PATH, param, ctx)
        return super().convert(value, param, ctx)


saved_state = _SavedState()


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids and names of the cluster's jobs; none where it does not answer at once."""
    from runtime.cluster.discovery import connect

    try:
        configuration = Configuration.load(ctx.params.get("config_file"), ctx.params.get("overrides") or ())
        with connect(configuration.set(ClientOptions.TIMEOUT, COMPLETION_TIMEOUT_S)) as client:
            jobs = client.list_jobs()
    except Exception:  # a shell that completes has no place to show an error
        return []
    ids = [
        CompletionItem(job.job_id, help=f"{job.name}, {job.status.value}")
        for job in jobs
        if job.job_id.startswith(incomplete)
    ]
    if not incomplete:
        return ids
    names = dict.fromkeys((LATEST, *(job.name for job in jobs)))  # the shell would take a name with a space for two
    return ids + [CompletionItem(name) for name in names if name.startswith(incomplete) and len(name.split()) == 1]


def job_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Return the argument JOB_ID: a text that names a job, as `connected_to_job` takes it, or None."""
    metavar = "JOB_ID" if required else "[JOB_ID]"
    return click.argument("reference", metavar=metavar, required=required, shell_complete=complete_job)


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine: only a machine's own addresses can be bound."""
    for family, kind, protocol, _, address in _resolved(host):
        with socket.socket(family, kind, protocol) as probe, suppress(OSError):
            probe.bind(address)
            return True
    return False


def _resolved(host: str) -> list[Any]:
    try:
        return socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # UnicodeError: of a name that is not a host's
        return []


def job_id_of(text: str) -> JobID:
    """Return the id of a job that will be submitted. Raises `ClusterError`."""
    try:
        return JobID(text)
    except ValueError as error:
        raise ClusterError(str(error), "leave it out for a random id") from error


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
    """Print an expected error as one line with its remedy, and exit with the status of `status_of_error`."""
    try:
        yield
    except Exception as error:
        from actors.errors import ActorError
        from blob.errors import BlobError
        from runtime.ha.errors import HaError
        from runtime.jobgraph.errors import JobGraphError
        from runtime.protocol.errors import GatewayError
        from runtime.spark.errors import SparkError

        if not isinstance(
            error, ActorError | BlobError | GatewayError | HaError | JobGraphError | SparkError | OSError
        ):
            raise
        print_error(error, str(getattr(error, "remedy", "")))
        sys.exit(status_of_error(error))


def status_of_error(error: Exception) -> ExitStatus:
    """Return the exit status for an error that a command ends with."""
    from runtime.client import ClusterStoppedError, NoAnswerError
    from runtime.jobgraph.errors import ParameterUsageError

    if isinstance(error, ParameterUsageError):
        return ExitStatus.WRONG_ARGUMENTS
    if isinstance(error, ClusterNotRunning | ClusterStoppedError | NoAnswerError):
        return ExitStatus.UNAVAILABLE
    return ExitStatus.FAILED


@contextmanager
def connected(configuration: Configuration) -> Iterator[ClusterClient]:
    """Provide a client of the running cluster, with `readable_errors`."""
    from runtime.cluster.discovery import connect

    with readable_errors(), connect(configuration) as client:
        yield client


@contextmanager
def connected_to_job(configuration: Configuration, text: str) -> Iterator[tuple[ClusterClient, JobID]]:
    """Provide a client of the running cluster, and the id of the job that *text* names there.

    Raises:
        ClusterError: as `find_job`.
    """
    from runtime.checkpoint import errors as _errors  # noqa: F401  # so that errors of the cluster have these types

    with connected(configuration) as client:
        yield client, full_id(text) or find_job(client.list_jobs(), text)


@contextmanager
def waiting(what: str, left: str, stream: TextIO | None = None) -> Iterator[None]:
    """Wait for the cluster: a terminal shows *what* with a spinner, a pipe nothing.

    Args:
        what: what the command waits for; empty if it prints its steps.
        left: printed after Ctrl-C, which exits with 130 (other signals as in shells). It says what continues, and how
            to see its outcome.
        stream: replaces standard error.
    """
    out = stream or sys.stderr
    try:
        with _sign_of_life(what, out):
            yield
    except KeyboardInterrupt as interrupt:
        print_line(f"interrupted: {left}", out)
        sys.exit(status_of_interrupt(interrupt))


class Interrupted(KeyboardInterrupt):
    """A signal that ends a command: Ctrl-C, SIGTERM, the loss of its terminal or of the reader of its output.

    Args:
        number: number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def status_of_interrupt(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal ends, as shells show it: 128 plus the signal's number."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


class Interrupts:
    """The signals that end a command which has a job to cancel: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

    Within this context each raises `Interrupted` on the main thread. Until the first `release`, and while it is `held`,
    the first signal is kept instead, and a second one interrupts at once. Signals that the caller ignores (`nohup`) or
    handles are not changed. After a SIGHUP, output to the terminal is dropped.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._is_released = False
        self._depth = 0
        self._kept: int | None = None
        self._terminals: list[TextIO] = []

    def __enter__(self) -> Self:
        self._terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def release(self) -> None:
        """Keep signals no longer, and raise the one that was kept.

        Before that, the job is being submitted. If a command were interrupted then, it could not tell whether there is
        a job to cancel.
        """
        self._is_released = True
        self._raise_kept()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a signal until the end of this context, around a write that must be either done or not done."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self._raise_kept()

    def _raise_kept(self) -> None:
        if self._is_released and not self._depth and self._kept is not None:
            number, self._kept = self._kept, None
            raise Interrupted(number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            for stream in self._terminals:
                discard_output(stream)
        if (self._depth or not self._is_released) and self._kept is None:
            self._kept = number
            return
        self._kept = None
        raise Interrupted(number)


def await_or_cancel(
    name: str, wait: Callable[[], T], cancel: Callable[[], None], leave: Callable[[], None] = lambda: None
) -> tuple[T, KeyboardInterrupt | None]:
    """Wait for an end; return what *wait* returns, and the interrupt that has cancelled it.

    The first interrupt cancels. The second calls *leave*, which leaves the rest to the cluster, and exits.
    """
    try:
        return wait(), None
    except KeyboardInterrupt as interrupt:
        first = interrupt
    try:
        say_anyway(f"{_reason_of(first)}cancelling {name}; Ctrl-C again leaves it to the cluster")
        cancel()
        return wait(), first
    except KeyboardInterrupt as second:
        say_anyway(f"interrupted: {name} is left to the cluster")
        leave()
        sys.exit(status_of_interrupt(second))


_REASONS: dict[int, str] = {
    signal.SIGPIPE: "nothing reads the output any more: ",
    signal.SIGTERM: "got SIGTERM: ",
    signal.SIGHUP: "got SIGHUP: ",
}


def _reason_of(interrupt: KeyboardInterrupt) -> str:
    """Return the beginning of a message about an interrupt; empty for Ctrl-C."""
    return _REASONS.get(interrupt.number, "") if isinstance(interrupt, Interrupted) else ""


def status_of_end(state: str, interrupt: KeyboardInterrupt | None, exit_status: int | None = None) -> int:
    """Return the exit status of a command that has waited for the end of a job or an application.

    Args:
        state: the state in which it has ended.
        interrupt: the signal that made this command cancel it, if any.
        exit_status: the status with which its script ended itself, if any.
    """
    if state in ("FINISHED", "SUCCEEDED"):
        return ExitStatus.DONE
    if state == "CANCELED":
        return ExitStatus.CANCELED if interrupt is None else status_of_interrupt(interrupt)
    return exit_status or ExitStatus.FAILED


def _sign_of_life(what: str, stream: TextIO) -> AbstractContextManager[object]:
    if not what or not is_fancy(stream):
        return nullcontext()
    from rich.console import Console
    from rich.text import Text

    return Console(file=stream).status(Text(what))
