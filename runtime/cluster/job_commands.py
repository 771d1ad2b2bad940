"""The commands of ``understudy job``; what they do is imported when they are called."""

from __future__ import annotations

import click

from runtime.cluster.options import complete_job, configured, files_option, job_argument, json_option, target_options


@click.group()
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
    "--own-driver",
    is_flag=True,
    help="Run a script on a Spark driver of its own, apart from other jobs; as -D task.spark-driver=own.",
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
@click.option(
    "--new-query-id/--same-query-id",
    default=None,
    help="With --from: whether the queries get new ids.  [default: those that begin in another place while the job "
    "that they were taken of runs]",
)
@target_options
@click.option("--detach", is_flag=True, help="Return when the job is accepted; its id goes to standard output.")
@json_option
@click.argument("file", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def job_run(**settings: object) -> None:
    """Run a PySpark script or pipeline FILE on a cluster, with ARGS (after --) as its arguments.

    The job's progress goes to standard error, what the job prints to standard output. Ctrl-C cancels the job; a
    second one leaves it alone and returns. Of what is given with -D, restart-strategy.*, task.spark-driver and
    execution.checkpointing.* are the job's own.
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
