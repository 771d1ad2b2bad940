"""From what a notebook submits (a function, a pipeline, a file) to a job graph and its files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from conf.options import JOB_OPTIONS
from runtime.api import Pipeline
from runtime.client import ClusterClient
from runtime.errors import NotebookError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.jobgraph.functions import TYPED_IN
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, SavepointRestoreSettings
from runtime.spark.function_task import function_file, functions_file

_UNNAMED = "function"


@dataclass(frozen=True, slots=True)
class Submission:
    """Settings of a job beside its code; see `runtime.notebook.Cluster.submit`."""

    name: str | None = None
    py_files: tuple[Path, ...] = ()
    packages: tuple[Path, ...] = ()
    requirements: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    priority: int = 0
    from_savepoint: Path | None = None
    allow_non_restored_state: bool = False
    new_query_id: bool | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    job_id: JobID | None = None


def submit(
    client: ClusterClient,
    work: Callable[..., Any] | Pipeline | str | PathLike[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    submission: Submission,
) -> tuple[JobGraph, bool]:
    """Submit it; returns the graph, and whether the job has a function's return value.

    Raises:
        NotebookError: the arguments do not fit what is submitted.
        FunctionTaskError, JobFileError, JobGraphError, JobSubmissionError, SavepointError, OSError: the job cannot be
            made of it, or is not accepted.
    """
    with tempfile.TemporaryDirectory(prefix="understudy-job-") as scratch:
        graph, main, returns = _read(work, args, kwargs, submission, Path(scratch))
        graph = _configured(graph, submission)
        roles = (
            (ArtifactRole.PY_FILE, submission.py_files),
            (ArtifactRole.PACKAGE, submission.packages),
            (ArtifactRole.REQUIREMENTS, submission.requirements),
            (ArtifactRole.ARCHIVE, submission.archives),
            (ArtifactRole.JAR, submission.jars),
        )
        job_id = client.submit(graph, main, libraries=[(path, role) for role, paths in roles for path in paths])
    return replace(graph, job_id=job_id), returns  # an application gives its jobs ids of its own


def _read(
    work: Callable[..., Any] | Pipeline | str | PathLike[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    submission: Submission,
    scratch: Path,
) -> tuple[JobGraph, Path, bool]:
    now_ms = time.time_ns() // 1_000_000
    if isinstance(work, str | PathLike):
        _refuse(kwargs, "a file has a command line, and no keyword arguments")
        return (
            read_job_file(Path(work), [str(arg) for arg in args], submission.name, submission.job_id),
            Path(work),
            False,
        )
    if isinstance(work, Pipeline):
        _refuse((*args, *kwargs), "a Pipeline has its parameters already: pass no arguments with it")
        if submission.name is not None:
            raise NotebookError("a Pipeline has its name already", "give the name to Pipeline()")
        return work.to_job_graph(submission.job_id, (), now_ms), _main_of(work, scratch), False
    if not callable(work):
        raise NotebookError(
            f"a {type(work).__name__} cannot be submitted", "give a function, a Pipeline, or the path of a file"
        )
    name = getattr(work, "__name__", type(work).__name__)
    main = scratch / f"{name if name.isidentifier() else _UNNAMED}.py"
    main.write_text(function_file(work, args, kwargs), "utf-8")
    graph = JobGraph.for_script(submission.name or main.stem, job_id=submission.job_id, created_ms=now_ms)
    return graph, main, True


def _refuse(what: object, message: str) -> None:
    if what:
        raise NotebookError(message, "see help(cluster.submit)")


def _main_of(pipeline: Pipeline, scratch: Path) -> Path:
    """The file with the functions of a pipeline: made here of those that are of none, or the one that they are of."""
    functions = pipeline.functions
    typed_in = {f.__name__: f for f in functions if f.__module__ == "__main__" and "__file__" not in f.__globals__}
    if typed_in:
        main = scratch / f"{TYPED_IN}.py"
        main.write_text(functions_file(typed_in), "utf-8")
        return main
    if not functions:
        raise NotebookError(f"the pipeline {pipeline.name!r} is empty", "add a source and a sink to it")
    return Path(functions[0].__code__.co_filename)


def _configured(graph: JobGraph, submission: Submission) -> JobGraph:
    own = {option.key for option in JOB_OPTIONS}
    wrong = [key for key in submission.settings if key not in own]
    if wrong:
        raise NotebookError(f"{wrong[0]!r} is no setting of a job", f"those are {', '.join(sorted(own))}")
    return replace(
        graph,
        priority=submission.priority,
        configuration={key: str(value) for key, value in submission.settings.items()},
        savepoint=_savepoint(submission),
    )


def _savepoint(submission: Submission) -> SavepointRestoreSettings | None:
    if submission.from_savepoint is None:
        return None
    from runtime.checkpoint.savepoint import read_savepoint

    path = submission.from_savepoint.resolve()
    read_savepoint(path)  # before anything is submitted
    return SavepointRestoreSettings(str(path), submission.allow_non_restored_state, submission.new_query_id)
