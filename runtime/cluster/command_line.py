"""The command line: ``understudy``, ``python -m understudy`` and ``python -m runtime.cluster``."""

from __future__ import annotations

import sys

import click

from conf.errors import ConfigurationError
from runtime.cluster.examples import show_examples
from runtime.cluster.job_commands import job
from runtime.cluster.options import (
    SHELLS,
    completion_script,
    configured,
    host_option,
    json_option,
    role_options,
)
from runtime.cluster.savepoint_commands import savepoint
from runtime.errors import ClusterError

INTERRUPTED = 130


class _Commands(click.Group):
    """All commands. One that is interrupted by Ctrl-C has the exit status 130, whatever it was about."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="understudy-spark", prog_name="understudy")
def cli() -> None:
    """Understudy: an actor runtime that gives PySpark what Flink's control plane gives Flink.

    \b
    Examples:
      understudy start                                    a session cluster on this machine
      understudy job run examples/flight_delays.py -- --out /tmp/delays
      understudy job list
      understudy stop

    Exit status: 0 done; 1 the job failed, or an error; 2 wrong usage; 130 interrupted by Ctrl-C.
    """


@cli.command()
@configured
@click.option(
    "--masters",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="How many masters: one leads, the others take over when it is lost.",
)
@role_options
@host_option
@json_option
def start(**settings: object) -> None:
    """Start a session cluster in the background, and say where everything is."""
    from runtime.cluster import commands

    commands.start(**settings)  # type: ignore[arg-type]


@cli.command()
@configured
@json_option
def master(**settings: object) -> None:
    """Start one more master for the running cluster; or for one whose masters were all killed: its tasks run on."""
    from runtime.cluster import commands

    commands.master(**settings)  # type: ignore[arg-type]


@cli.command()
@configured
@role_options
@json_option
def stop(**settings: object) -> None:
    """Stop the cluster, and clean up after whatever part of it was killed."""
    from runtime.cluster import commands

    commands.stop(**settings)  # type: ignore[arg-type]


@cli.command()
@configured
@json_option
def status(**settings: object) -> None:
    """Show the cluster's processes, TaskExecutors and slots."""
    from runtime.cluster import commands

    commands.status(**settings)  # type: ignore[arg-type]


@cli.command()
@configured
@click.option("--start-spark", is_flag=True, help="Start a Spark driver too, and end it: some seconds.")
@json_option
def doctor(**settings: object) -> None:
    """Look whether this machine has what a cluster needs, and say how to mend what is not well.

    Looks at Python, the runtime directory, disk, files, ports, Java, Redis, Spark, memory, the clock and permissions;
    where the cluster runs, it is asked. Exit status: 0 all is well; 1 something is not.
    """
    from runtime.cluster.doctor import doctor as run

    run(**settings)  # type: ignore[arg-type]


@cli.command()
@configured
@click.option("--out", type=click.Path(file_okay=False), help="Directory for the result.  [default: a new one]")
def demo(**settings: object) -> None:
    """Start a cluster, run the NYC flights pipeline on it, show its tables, and stop the cluster."""
    from runtime.cluster import commands

    commands.demo(**settings)  # type: ignore[arg-type]


@cli.command(name="log-level")
@configured
@click.option("--in", "process", metavar="PROCESS", help="Change the logger in this process only.")
@json_option
@click.argument("target", required=False)
@click.argument("level", required=False)
def log_level(**settings: object) -> None:
    """Show the log levels of the cluster's processes, or change one while they run.

    TARGET is a process, as `status` names it, or the name of a logger; LEVEL is DEBUG, INFO, WARNING, ERROR, CRITICAL,
    or INHERITED for that of the package above. A level holds until the process ends; one that is started anew has
    env.log.level.

    \b
    Examples:
      understudy log-level                                 all of them
      understudy log-level dispatcher DEBUG                all that one process logs
      understudy log-level runtime.checkpoint DEBUG        one package, in every process
      understudy log-level runtime.checkpoint INHERITED --in taskmanager-0
    """
    from runtime.cluster import diagnosis_commands

    diagnosis_commands.log_level(**settings)  # type: ignore[arg-type]


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what a shell has to read to complete the commands, options and job ids of `understudy`."""
    click.echo(completion_script(cli, shell))


cli.add_command(job)
cli.add_command(savepoint)
show_examples(cli)


def main() -> None:
    """Entry point of the console script; expected errors are one line with the remedy, never a traceback."""
    try:
        cli(prog_name="understudy")
    except (ClusterError, ConfigurationError) as error:
        from runtime.cluster.render import print_error

        details = getattr(error, "details", "")
        if details:
            click.echo(details.rstrip(), err=True)
        print_error(error, str(error.remedy))
        sys.exit(1)
