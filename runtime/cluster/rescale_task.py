"""The task that rescales another job: ``understudy job rescale`` in a slot of the cluster.

The Dispatcher submits the script that calls `main` (`runtime.dispatcher.rescale_job`). It runs in a task process, and
uses the Spark of its TaskExecutor. It reaches the cluster like a command on that machine, with the secret from the
runtime directory. The web endpoint has checked the user's role before, and this process runs no code of a user.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import ClusterOptions
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_locally
from runtime.cluster.documents import RescaledJob
from runtime.cluster.output import clean, print_line
from runtime.cluster.rescaling import JobRescaler
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.errors import ClusterError
from runtime.ha.errors import HaError
from runtime.ids import JobID, TriggerID
from runtime.protocol.errors import GatewayError
from runtime.spark.errors import EXIT_FAILED, ScriptExitError, SparkError
from runtime.spark.rescale import rescale_in_task


def main() -> None:
    """Rescale the job that the script's arguments name.

    Raises:
        ScriptExitError: it cannot be rescaled; the message is the failure of this job.
    """
    given = _arguments(sys.argv[1:])
    try:
        with _connect() as client:
            done = rescale(client, given)
    except (ClusterError, SparkError, GatewayError, ActorError, ConfigurationError, HaError, OSError) as error:
        remedy = getattr(error, "remedy", "")
        text = clean(f"{error}; {remedy}" if remedy else str(error))
        raise ScriptExitError(text, EXIT_FAILED, text) from None
    print_line(clean(f"job {done.job_id} has {done.partitions} partitions: its tasks restart from {done.savepoint}"))


def rescale(client: ClusterClient, given: argparse.Namespace) -> RescaledJob:
    """Rescale a job, or undo its last rescale; raises as `JobRescaler.rescale`."""
    rescaler = JobRescaler(
        client,
        None,
        DEFAULT_COMPACT_INTERVAL,
        step=_say_step,
        note=lambda line: print_line(clean(line)),
        run=rescale_in_task,
        trigger_id=given.trigger_id,
    )
    if given.undo:
        return rescaler.undo(given.job_id, given.savepoint)
    queries = () if given.query is None else (given.query,)
    return rescaler.rescale(given.job_id, given.partitions, *queries, directory=given.savepoint)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rescale", allow_abbrev=False)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--partitions", type=int)
    wanted.add_argument("--undo", action="store_true")
    parser.add_argument("--query")
    parser.add_argument("--savepoint", type=Path)
    parser.add_argument("--trigger-id", type=TriggerID, required=True)
    parser.add_argument("job_id", type=JobID)
    return parser.parse_args(words)


def _connect() -> ClusterClient:
    """Return a client of the cluster that the TaskExecutor of this process belongs to; raises as `connect_locally`."""
    root = os.environ.get(CLUSTER_DIR_VARIABLE)
    if root is None:
        raise ClusterError(
            "this TaskExecutor has no runtime directory", "run `understudy job rescale` without --detach"
        )
    directory = ClusterDirectory(Path(root))
    configuration = Configuration.read(directory.configuration_file)
    return connect_locally(configuration.set(ClusterOptions.RUNTIME_DIR, directory.root))


@contextlib.contextmanager
def _say_step(what: str, _left: str) -> Iterator[None]:
    print_line(clean(what))
    yield
