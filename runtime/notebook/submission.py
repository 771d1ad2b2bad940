"""Makes a job graph, and a file with the code, of the work that a notebook submits: a function, a pipeline, a file."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from conf.options import JOB_OPTIONS
from conf.registry import deprecation, is_job_setting, report_once
from runtime.api import Pipeline
from runtime.errors import NotebookError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.jobgraph.functions import TYPED_IN
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.spark.function_task import function_file, functions_file

_UNNAMED = "function"


class SubmitOptions(TypedDict, total=False):
    """Options of a job, as keyword arguments of `Cluster.options`.

    ``name``: of the job; by default the function's, the pipeline's or the file's. ``py_files``: modules and
    archives that its code imports. ``packages``: wheels and source distributions to install for it.
    ``requirements``: requirements files to install for it. ``archives``: packed virtual environments, or archives
    of modules. ``jars``: for its Spark session. ``priority`` (0): slots go first to jobs of a higher priority.
    ``from_savepoint``: directory or URL of the savepoint that its streaming queries start from; by HTTP, a directory of
    the cluster's machine. ``allow_non_restored_state`` (False): start although no query takes some of that state.
    ``new_query_id`` (None): whether its queries get new ids; None: only those that start in another place while the
    job of the savepoint runs. ``settings``: its own ``restart-strategy.*`` and ``execution.checkpointing.*``.
    ``job_id``: 32 hexadecimal digits; submitting twice with the same id has the effect of submitting once.
    """

    name: str | None
    py_files: Iterable[str | Path]
    packages: Iterable[str | Path]
    requirements: Iterable[str | Path]
    archives: Iterable[str | Path]
    jars: Iterable[str | Path]
    priority: int
    from_savepoint: str | Path | None
    allow_non_restored_state: bool
    new_query_id: bool | None
    settings: Mapping[str, str] | None
    job_id: str | None


SUBMIT_OPTIONS = tuple(SubmitOptions.__annotations__)
"""Names of the options of a job."""


def graph_of_work(
    work: Callable[..., Any] | Pipeline | str | PathLike[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str | None,
    job_id: JobID | None,
    scratch: Path,
) -> tuple[JobGraph, Path, bool]:
    """Make the graph of a job.

    Args:
        work: a function, a pipeline, or the path of a file.
        args: arguments of the function, or the command line of the file.
        kwargs: keyword arguments of the function.
        name: of the job; None: the name of the work.
        job_id: None for a new one.
        scratch: a directory for files that are made of functions.

    Returns:
        the graph, the file with its code, and whether the job has a function's return value.

    Raises:
        NotebookError: the arguments do not fit the work.
        FunctionTaskError, JobFileError, JobGraphError, OSError: no job can be made of the work.
    """
    now_ms = time.time_ns() // 1_000_000
    if isinstance(work, str | PathLike):
        _refuse(kwargs, "a file has a command line, and no keyword arguments", kwargs)
        return (
            read_job_file(Path(work), [str(arg) for arg in args], name, job_id),
            Path(work),
            False,
        )
    if isinstance(work, Pipeline):
        _refuse((*args, *kwargs), "a Pipeline has its parameters already: pass no arguments with it", kwargs)
        if name is not None:
            raise NotebookError("a Pipeline has its name already", "give the name to Pipeline()")
        return work.to_job_graph(job_id, (), now_ms), _main_of(work, scratch), False
    if not callable(work):
        raise NotebookError(
            f"a {type(work).__name__} cannot be submitted", "give a function, a Pipeline, or the path of a file"
        )
    _refuse_options(work, kwargs)
    own_name = getattr(work, "__name__", type(work).__name__)
    main = scratch / f"{own_name if own_name.isidentifier() else _UNNAMED}.py"
    main.write_text(function_file(work, args, kwargs), "utf-8")
    graph = JobGraph.for_script(name or main.stem, job_id=job_id, created_ms=now_ms)
    return replace(graph, is_function=True), main, True


def _refuse(what: object, message: str, kwargs: Mapping[str, Any]) -> None:
    if what:
        raise NotebookError(message, _by_options(kwargs))


def _refuse_options(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Reject options of a job among the keyword arguments of a function that does not take them."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a builtin: the call itself reports arguments that do not fit
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    strays = [name for name in kwargs if name in SUBMIT_OPTIONS and name not in parameters]
    if strays:
        name = getattr(function, "__name__", type(function).__name__)
        raise NotebookError(f"{name}() takes no argument {strays[0]!r}", _by_options(strays))


def _by_options(names: Iterable[str]) -> str:
    own = [name for name in names if name in SUBMIT_OPTIONS]
    if not own:
        return "see help(cluster.submit)"
    return f"options of the job are given by cluster.options({', '.join(f'{name}=...' for name in own)}).submit(...)"


def _main_of(pipeline: Pipeline, scratch: Path) -> Path:
    """Return the file with a pipeline's functions: their own, or one made here of functions without a file."""
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
    """Return the settings as a job has them; raises `NotebookError` if one is not a setting of a job."""
    wrong = [key for key in settings if not is_job_setting(key)]
    if wrong:
        own = ", ".join(sorted(option.key for option in JOB_OPTIONS))
        raise NotebookError(f"{wrong[0]!r} is not a setting of a job", f"those are Spark's own and {own}")
    report_once(
        (warning for key in settings if (warning := deprecation(key, "settings of the job"))),
        lambda text: warnings.warn(text, stacklevel=2),
    )
    return {key: str(value) for key, value in settings.items()}


def restore_settings(
    savepoint: str | Path | None,
    allow_non_restored_state: bool,
    new_query_id: bool | None,
    *,
    is_here: bool = True,
) -> SavepointRestoreSettings | None:
    """Return the savepoint that a job starts from.

    Raises `SavepointError` if it cannot be read; a savepoint that *is_here* does not hold for is read by the cluster.
    """
    if savepoint is None:
        return None
    if not is_here:
        return SavepointRestoreSettings(str(savepoint), allow_non_restored_state, new_query_id)
    from runtime.checkpoint.remote_savepoint import read_at
    from runtime.protocol.places import absolute_place

    place = absolute_place(savepoint)
    read_at(place)  # raises before anything is submitted
    return SavepointRestoreSettings(place, allow_non_restored_state, new_query_id)
