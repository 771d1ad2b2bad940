"""From what a notebook submits (a function, a pipeline, a file) to a job graph and the file with its code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from conf.options import JOB_OPTIONS
from conf.registry import is_job_setting
from runtime.api import Pipeline
from runtime.errors import NotebookError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.jobgraph.functions import TYPED_IN
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.spark.function_task import function_file, functions_file

_UNNAMED = "function"


def graph_of_work(
    work: Callable[..., Any] | Pipeline | str | PathLike[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str | None,
    job_id: JobID | None,
    scratch: Path,
) -> tuple[JobGraph, Path, bool]:
    """Make the graph of what is submitted; returns it, its code's file, and whether it has a function's return value.

    Args:
        work: a function, a pipeline, or the path of a file.
        args: arguments of the function, or the command line of the file.
        kwargs: keyword arguments of the function.
        name: of the job; None for its own.
        job_id: None for a new one.
        scratch: a directory for files that are made of functions.

    Raises:
        NotebookError: the arguments do not fit what is submitted.
        FunctionTaskError, JobFileError, JobGraphError, OSError: no job can be made of it.
    """
    now_ms = time.time_ns() // 1_000_000
    if isinstance(work, str | PathLike):
        _refuse(kwargs, "a file has a command line, and no keyword arguments")
        return (
            read_job_file(Path(work), [str(arg) for arg in args], name, job_id),
            Path(work),
            False,
        )
    if isinstance(work, Pipeline):
        _refuse((*args, *kwargs), "a Pipeline has its parameters already: pass no arguments with it")
        if name is not None:
            raise NotebookError("a Pipeline has its name already", "give the name to Pipeline()")
        return work.to_job_graph(job_id, (), now_ms), _main_of(work, scratch), False
    if not callable(work):
        raise NotebookError(
            f"a {type(work).__name__} cannot be submitted", "give a function, a Pipeline, or the path of a file"
        )
    own_name = getattr(work, "__name__", type(work).__name__)
    main = scratch / f"{own_name if own_name.isidentifier() else _UNNAMED}.py"
    main.write_text(function_file(work, args, kwargs), "utf-8")
    graph = JobGraph.for_script(name or main.stem, job_id=job_id, created_ms=now_ms)
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


def job_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as a job has them; raises `NotebookError` where one is none of a job."""
    wrong = [key for key in settings if not is_job_setting(key)]
    if wrong:
        own = ", ".join(sorted(option.key for option in JOB_OPTIONS))
        raise NotebookError(f"{wrong[0]!r} is no setting of a job", f"those are Spark's own and {own}")
    return {key: str(value) for key, value in settings.items()}


def restore_settings(
    savepoint: str | Path | None, allow_non_restored_state: bool, new_query_id: bool | None
) -> SavepointRestoreSettings | None:
    """Return the savepoint that a job begins from; raises `SavepointError` where it cannot be read."""
    if savepoint is None:
        return None
    from runtime.checkpoint.savepoint import read_savepoint

    path = Path(savepoint).resolve()
    read_savepoint(path)  # before anything is submitted
    return SavepointRestoreSettings(str(path), allow_non_restored_state, new_query_id)
