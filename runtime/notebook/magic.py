"""``%%understudy``, which runs the code of a cell as a job. Loaded by ``%load_ext runtime.notebook``."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import click
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from actors.errors import ActorError
from blob.errors import BlobError
from conf.errors import ConfigurationError
from runtime.cluster.output import print_error
from runtime.errors import ClusterError, JobFailedError
from runtime.ha.errors import HaError
from runtime.jobgraph.errors import JobGraphError
from runtime.notebook.cluster import Cluster, connect
from runtime.protocol.errors import GatewayError
from runtime.spark.errors import SparkError, TaskError

MAGIC = "understudy"
CLUSTER = "cluster"
SHOWN = (
    ActorError,
    BlobError,
    ClusterError,
    ConfigurationError,
    GatewayError,
    HaError,
    JobGraphError,
    SparkError,
    TaskError,
)
"""Errors without a traceback of ours: they are shown as one line with the remedy, below the user's own traceback."""


def install(shell: InteractiveShell) -> None:
    """Add the magic to a shell, and show errors in one line."""

    def understudy(line: str, cell: str | None = None) -> Any:
        return run_magic(shell, line, cell)

    understudy.__doc__ = run_magic.__doc__
    shell.register_magic_function(understudy, "line_cell", MAGIC)  # type: ignore[no-untyped-call, arg-type, unused-ignore]
    shell.set_custom_exc((Exception,), _show_error)  # type: ignore[no-untyped-call, unused-ignore]


def uninstall(shell: InteractiveShell) -> None:
    """Remove the magic, and show errors as IPython does."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(MAGIC, None)
    shell.set_custom_exc((), None)  # type: ignore[no-untyped-call, unused-ignore]


def run_magic(shell: InteractiveShell, line: str, cell: str | None) -> Any:
    """Run a cell as a job: ``%%understudy [--name NAME] [--cluster VARIABLE] [--into VARIABLE] [--detach] [-- ARGS]``

    The cell is a PySpark script, or has a function ``pipeline(argv)``. The notebook shows its progress, then its
    output. The cluster is in the variable ``cluster``, which is set to the one of this machine if it does not exist.
    ``--into`` names a variable for the job's handle; ``--detach`` does not wait for the job's end. Names that the cell
    defines exist in the job, not in the notebook.

    ``%understudy`` alone shows the cluster.
    """
    try:
        options = _command.make_context(MAGIC, shlex.split(line)).params
    except click.exceptions.Exit:
        return None  # --help
    except (click.UsageError, ValueError) as error:
        raise UsageError(f"%%understudy: {error}") from None
    cluster = _cluster(shell, options["cluster"])
    if cell is None:
        return cluster
    with tempfile.TemporaryDirectory(prefix="understudy-cell-") as scratch:
        main = Path(scratch) / "cell.py"
        main.write_text(cell, "utf-8")
        job = cluster.options(name=options["name"]).submit(main, *options["args"])
    if options["into"]:
        shell.user_ns[options["into"]] = job
    if options["detach"]:
        return None if options["into"] else job
    job.progress()
    sys.stdout.write(job.logs("stdout"))
    job.result()
    return None


@click.command()
@click.option("--name")
@click.option("--cluster", default=CLUSTER)
@click.option("--into", default="")
@click.option("--detach", is_flag=True)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def _command(**_options: object) -> None:
    """Declare the options of the magic; only parsed."""


def _cluster(shell: InteractiveShell, variable: str) -> Cluster:
    found = shell.user_ns.get(variable)
    if isinstance(found, Cluster):
        return found
    if found is not None or variable != CLUSTER:
        raise UsageError(
            f"%%understudy: the variable {variable} is not a cluster; assign one: {variable} = connect(...)"
        )
    cluster = connect()
    shell.user_ns[variable] = cluster
    return cluster


def _show_error(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> list[str]:
    shown: Any = error
    if isinstance(error.__cause__, JobFailedError) and error.__cause__.function_error is error:
        shown = error.__cause__  # raised by a function: its own traceback is the job's
    if not isinstance(shown, SHOWN):
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=True)
        return []
    details = str(getattr(shown, "details", "")).rstrip()
    if details:
        sys.stderr.write(details + "\n")
    print_error(shown)
    return [f"{kind.__name__}: {error}"]
