"""The command line ``understudy``."""

from __future__ import annotations

import copy
import sys

import click

from conf.errors import ConfigurationError
from runtime.cluster import checkpoint_commands, job_version_commands  # noqa: F401  # commands of `job`
from runtime.cluster.cluster_commands import cluster, demo, doctor, log_level, start, start_master, status, stop
from runtime.cluster.command_line import (
    PROGRAM,
    ExitStatus,
    completion_script,
    examples,
    status_of_error,
    status_of_interrupt,
)
from runtime.cluster.history_commands import history, history_server
from runtime.cluster.job_commands import job
from runtime.cluster.login_commands import login, logout, whoami
from runtime.cluster.output import OutputError, discard_output, prepare_streams, print_error, say
from runtime.cluster.queue_commands import queue
from runtime.cluster.savepoint_commands import savepoint
from runtime.cluster.user_commands import token, user
from runtime.errors import ClusterError

SHELLS = ("bash", "zsh", "fish")

click.UsageError.exit_code = ExitStatus.WRONG_USAGE  # click's own is 2, which scripts often use


class _Commands(click.Group):
    """All commands. Ctrl-C ends each with exit status 130, another signal with 128 plus its number."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the user has entered."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            say("interrupted")
            sys.exit(status_of_interrupt(interrupt))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="understudy-spark", prog_name=PROGRAM)
def cli() -> None:
    """Understudy: an actor runtime that gives PySpark what Flink's control plane gives Flink.

    \b
    Examples:
      understudy start                                    a session cluster on this machine
      understudy job run examples/flight_delays.py --out /tmp/delays
      understudy job list
      understudy stop

    \b
    Exit status: 0 done; 1 an error, or the job failed; a script's own, if it ended itself with one;
    64 wrong usage; 69 no cluster answers; 79 another user cancelled the job; 130 Ctrl-C; 143 SIGTERM.
    """


@cli.command(
    epilog=examples(
        'eval "$(understudy completion bash)"      # in ~/.bashrc',
        "understudy completion fish > ~/.config/fish/completions/understudy.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete the commands, options and job ids of `understudy`."""
    click.echo(completion_script(cli, shell))


for _command in (
    start,
    start_master,
    stop,
    status,
    cluster,
    doctor,
    demo,
    log_level,
    job,
    savepoint,
    queue,
    user,
    token,
    history,
    login,
    logout,
    whoami,
    history_server,
):
    cli.add_command(_command)

_former_name = copy.copy(start_master)
_former_name.hidden = True
cli.add_command(_former_name, "master")  # its only name in the first releases: old scripts may use it


def main() -> None:
    """Run the command line; print an expected error as one line with its remedy, never a traceback.

    If nobody reads the output any more, end with the status that shells show for SIGPIPE, and print nothing.
    """
    prepare_streams()
    try:
        try:
            _main()
        finally:
            sys.stdout.flush()  # what a job file has printed
    except OutputError as error:
        discard_output({1: sys.stdout, 2: sys.stderr}[error.file])
        if error.has_no_reader:
            sys.exit(ExitStatus.NO_READER)
        try:
            print_error(error)
        except OutputError:
            discard_output(sys.stderr)
        sys.exit(ExitStatus.FAILED)


def _main() -> None:
    try:
        cli(prog_name=PROGRAM)
    except OutputError:
        raise
    except (ClusterError, ConfigurationError) as error:
        if details := getattr(error, "details", ""):
            say(details.rstrip())
        print_error(error, str(error.remedy))
        sys.exit(status_of_error(error))
