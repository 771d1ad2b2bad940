"""``job check``: whether a job fits a state, by a trial of no rows in this process; and how verdicts are shown."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conf.configuration import Configuration
from conf.options import CheckpointingOptions, EnvironmentOptions
from runtime.checkpoint.compatibility import Fit, Verdict, check_job
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.retained import describe_state, find_state
from runtime.cluster.formatting import clean
from runtime.cluster.render import print_json, print_line
from runtime.errors import ClusterError
from runtime.job_file import JobFileError, build_pipeline, kind_of, own_traceback
from runtime.jobgraph.job_graph import JobKind
from runtime.taskexecutor.spark_options import state_backend_properties


def check_job_file(configuration: Configuration, file: str, args: Sequence[str], state: str, as_json: bool) -> None:
    """`understudy job check`: exits with 1 where a query does not fit."""
    kept = describe_state(find_state(state, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR)))
    verdicts = check_job(kept, _queries_of(configuration, Path(file), args))
    print_verdicts(verdicts, as_json)
    known = {query.name for query in kept}
    names = {verdict.query for verdict in verdicts}
    if not as_json and names - known and any(verdict.losses and verdict.query in known for verdict in verdicts):
        print_line("a query that is new beside one that is gone may be a renamed one: see --allow-non-restored-state")


def print_verdicts(verdicts: Sequence[Verdict], as_json: bool) -> None:
    """Show them, query by query; exits with 1 where one does not fit."""
    if as_json:
        print_json(verdicts)
    else:
        for verdict in verdicts:
            print_line(clean(f"{verdict.query}: {verdict.fit.value}"))
            for line in (*verdict.reasons, *verdict.losses, *verdict.notes):
                print_line(clean(f"  {line}"))
    if any(verdict.fit is Fit.DOES_NOT_FIT for verdict in verdicts):
        sys.exit(1)


def _queries_of(configuration: Configuration, file: Path, args: Sequence[str]) -> list[QueryDescription]:
    """The queries of a job file, which is run on no rows; raises JobFileError where its code fails."""
    from runtime.spark.dry_run import DryRun, one_core_session
    from runtime.spark.errors import SparkError

    pipeline = build_pipeline(file, args) if kind_of(file) is JobKind.PIPELINE else None
    home = configuration.get(EnvironmentOptions.JAVA_HOME)
    conf = {
        **state_backend_properties(configuration.get(CheckpointingOptions.STATE_BACKEND)),
        **configuration.spark_properties(),
    }
    try:
        with (
            tempfile.TemporaryDirectory(prefix="understudy-check-") as scratch,
            one_core_session(conf, None if home is None else str(home), Path(scratch)) as spark,
        ):
            run = DryRun(spark, Path(scratch))
            try:
                run.run_script(file, args) if pipeline is None else run.run_pipeline(pipeline.run_local)
            except SystemExit as leaving:
                if leaving.code:
                    raise JobFileError(
                        f"{file} ended itself before it waited for a query: {leaving.code}", "mend it, and check again"
                    ) from leaving
            except Exception as error:  # the user's code may raise anything; it is shown as the user's own
                if isinstance(error, CheckpointError):
                    raise
                first = str(error).partition("\n")[0]
                raise JobFileError(
                    f"{file} failed on no rows: {type(error).__name__}: {first}",
                    "mend it, and check again",
                    own_traceback(error, file),
                ) from error
    except SparkError as error:
        raise ClusterError(str(error), "`understudy doctor` looks whether Spark can start here") from error
    if not run.queries:
        raise JobFileError(f"{file} has started no streaming query", "there is no state that it could go on from")
    return run.queries
