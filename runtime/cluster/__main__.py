"""The command line: ``python -m runtime.cluster`` and ``understudy``."""

from __future__ import annotations

import sys

import click

from conf.errors import ConfigurationError
from runtime.cluster.completion import SHELLS, complete_job, completion_script
from runtime.cluster.examples import show_examples
from runtime.cluster.options import (
    configured,
    files_option,
    host_option,
    job_argument,
    json_option,
    role_options,
    target_options,
)
from runtime.cluster.savepoint_commands import savepoint
from runtime.environment.errors import ClusterError

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


@cli.group()
def job() -> None:
    """Explain, run, list, look at and cancel jobs."""


@job.command(name="run")
@configured
@click.option("--name", help="Name of the job.  [default: the pipeline's own, or the file's]")
@click.option("--job-id", help="32 hexadecimal digits; submitting twice with one id is submitting once.")
@files_option("--py-files", "py_files", "Python module or archive for the job's path; repeatable.")
@files_option("--package", "packages", "Wheel or source distribution to install for the job; repeatable.")
@files_option("--requirements", "requirements", "Requirements file to install for the job; repeatable.")
@files_option(
    "--py-archive", "archives", "Packed virtual environment, or archive of modules, to unpack for the job; repeatable."
)
@files_option("--jar", "jars", "Jar for the session of a pipeline; repeatable.")
@click.option(
    "--priority",
    type=click.IntRange(-1000, 1000),
    default=0,
    help="Slots go to jobs of a higher one first; 0 unless given.",
)
@click.option(
    "--from",
    "savepoint",
    help="Begin from this savepoint or retained checkpoint (a directory, or JOB_ID/chk-N): each streaming query from "
    "the state that it holds under the query's name.",
)
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="With --from: begin although a query has another name than those that it holds.",
)
@target_options
@click.option("--detach", is_flag=True, help="Return when the job is accepted; its id goes to standard output.")
@json_option
@click.argument("file", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def job_run(**settings: object) -> None:
    """Run a PySpark script or pipeline FILE on a cluster, with ARGS (after --) as its arguments.

    The job's progress goes to standard error, what the job prints to standard output. Ctrl-C cancels the job; a
    second one leaves it alone and returns. Of what is given with -D, restart-strategy.* and execution.checkpointing.*
    are the job's own.
    """
    from runtime.cluster import commands

    commands.job_run(**settings)  # type: ignore[arg-type]


@job.command(name="explain")
@configured
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "dot", "svg"]),
    default="text",
    show_default=True,
    help="As text, in graphviz's language, or as a picture.",
)
@json_option
@click.argument("file", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def job_explain(configuration: object, **settings: object) -> None:
    """Show the tasks, vertices and edges of a pipeline FILE with ARGS (after --), without running it.

    No cluster is needed, nor any of its options.
    """
    from runtime.cluster import commands

    commands.job_explain(**settings)  # type: ignore[arg-type]


@job.command(name="check")
@configured
@click.option(
    "--from", "state", required=True, help="The savepoint or retained checkpoint: a directory, or JOB_ID/chk-N."
)
@json_option
@click.argument("file", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def job_check(configuration: object, file: str, args: tuple[str, ...], state: str, as_json: bool) -> None:
    """Say whether the job FILE with ARGS (after --) could go on from a state, query by query, without running it.

    The file's code is run here, up to where it waits for a query, on a Spark of one core. Its queries read no rows and
    write none; what else its code does, it does. No cluster is needed.

    Exit status: 0 all queries fit, if with loss; 1 one does not.
    """
    from runtime.cluster.check_command import check_job_file

    check_job_file(configuration, file, args, state, as_json)  # type: ignore[arg-type]


@job.command(name="list")
@configured
@json_option
def job_list(**settings: object) -> None:
    """List running and finished jobs, the newest first."""
    from runtime.cluster import commands

    commands.job_list(**settings)  # type: ignore[arg-type]


@job.command(name="info")
@configured
@json_option
@job_argument
def job_info(**settings: object) -> None:
    """Show a job: its vertices, attempts, and why it failed."""
    from runtime.cluster import commands

    commands.job_info(**settings)  # type: ignore[arg-type]


@job.command(name="checkpoint")
@configured
@json_option
@job_argument
def job_checkpoint(**settings: object) -> None:
    """Take a checkpoint of a job's streaming queries now; its directory goes to standard output."""
    from runtime.cluster import checkpoint_commands

    checkpoint_commands.job_checkpoint(**settings)  # type: ignore[arg-type]


@job.command(name="savepoint")
@configured
@json_option
@job_argument
@click.argument("directory", required=False, type=click.Path(file_okay=False))
def job_savepoint(**settings: object) -> None:
    """Make a savepoint of a job's streaming queries in DIRECTORY; its own directory goes to standard output.

    DIRECTORY is execution.checkpointing.savepoint-dir unless it is given.
    """
    from runtime.cluster import checkpoint_commands

    checkpoint_commands.job_savepoint(**settings)  # type: ignore[arg-type]


@job.command(name="rollback")
@configured
@click.option(
    "--to", "target", required=True, help="A checkpoint that is kept (chk-N), or the directory of a savepoint."
)
@click.option(
    "--new-query-id",
    is_flag=True,
    help="Give the queries new ids, so that sinks that remember batches by query and number take them again.",
)
@json_option
@job_argument
def job_rollback(**settings: object) -> None:
    """Restart a job from where its queries stood in one of its own checkpoints or savepoints.

    What they have written to file sinks since then is taken back. Where that is not possible the job goes on as it is.
    """
    from runtime.cluster import checkpoint_commands

    checkpoint_commands.job_rollback(**settings)  # type: ignore[arg-type]


@job.command(name="stop")
@configured
@click.option(
    "--savepoint",
    "directory",
    type=click.Path(file_okay=False),
    help="The directory for the savepoint.  [default: execution.checkpointing.savepoint-dir]",
)
@click.option("--drain", is_flag=True, help="Let the queries work off first what their sources have.")
@json_option
@job_argument
def job_stop(**settings: object) -> None:
    """Stop a job's streaming queries between two batches, make a savepoint, and let the job finish.

    A query that commits no batch within task.cancellation.timeout is stopped by force, which is told; it does that
    batch again when it is restored. Where the savepoint fails the job goes on.
    """
    from runtime.cluster import checkpoint_commands

    checkpoint_commands.job_stop(**settings)  # type: ignore[arg-type]


@job.command(name="cancel")
@configured
@click.option("--wait/--no-wait", default=True, help="Return when nothing of the job runs any more.")
@json_option
@job_argument
def job_cancel(**settings: object) -> None:
    """Cancel a job."""
    from runtime.cluster import commands

    commands.job_cancel(**settings)  # type: ignore[arg-type]


@job.command(name="logs")
@configured
@json_option
@click.option("-f", "--follow", is_flag=True, help="Follow them while the job runs; its end gives the exit status.")
@click.option(
    "--task-executors",
    is_flag=True,
    help="Show the logs of the TaskExecutors that it ran on, and of their Spark drivers, instead.",
)
@job_argument
def job_logs(**settings: object) -> None:
    """Print what a job's tasks wrote: their standard output, and their standard error to standard error."""
    from runtime.cluster import commands

    commands.job_logs(**settings)  # type: ignore[arg-type]


@job.command(name="exceptions")
@configured
@json_option
@click.argument("job_id", required=False, shell_complete=complete_job)
def job_exceptions(**settings: object) -> None:
    """Print why a job failed: your own traceback of each failure, the last first.

    Without JOB_ID it is the job that failed last.
    """
    from runtime.cluster import diagnosis_commands

    diagnosis_commands.job_exceptions(**settings)  # type: ignore[arg-type]


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what a shell has to read to complete the commands, options and job ids of `understudy`."""
    click.echo(completion_script(cli, shell))


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


if __name__ == "__main__":
    main()
