"""Functions from a prompt or notebook as the code of a job: both the client's and the task's side.

The client pickles a function by value into the job's main file; only the task process unpickles it. The function's
result travels back in the file `FUNCTION_RESULT` of the attempt, its exception in `FUNCTION_ERROR`.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.job_logs import FUNCTION_ERROR, FUNCTION_ERROR_MAX_SIZE, FUNCTION_RESULT, FUNCTION_RESULT_MAX_SIZE
from runtime.spark.errors import FunctionTaskError

SPARK_PARAMETER = "spark"
"""A parameter of this name receives the task's session; a caller overrides it only by a keyword argument."""

_FUNCTION = '''\
# Made by runtime.notebook: runs the function {name} as a job.
from understudy.runtime.spark.function_task import run_function

run_function("""\\
{pickled}""")
'''

_FUNCTIONS = '''\
# Made by runtime.notebook: the functions of a pipeline.
from understudy.runtime.spark.function_task import load_functions

globals().update(load_functions("""\\
{pickled}"""))
'''


def function_file(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the text of a script that calls a function; raises `FunctionTaskError` where it cannot be pickled."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return _FUNCTION.format(name=ascii(name), pickled=_pickled((function, args, dict(kwargs)), f"the function {name}"))


def functions_file(functions: Mapping[str, Callable[..., Any]]) -> str:
    """Return the text of a module with these functions; raises `FunctionTaskError` where they cannot be pickled."""
    return _FUNCTIONS.format(pickled=_pickled(dict(functions), "the pipeline"))


def run_function(pickled: str) -> None:
    """Call the function, and write its result to `FUNCTION_RESULT` or its error to `FUNCTION_ERROR`.

    Runs in a task process.

    Raises:
        FunctionTaskError: it cannot be unpickled here, or its result cannot be pickled.
    """
    directory = Path.cwd()  # the function may change it
    function, args, kwargs = _unpickled(pickled)
    args, kwargs = _with_spark(function, args, kwargs)
    try:
        returned = function(*args, **kwargs)
    except Exception as error:
        _keep_error(directory / FUNCTION_ERROR, error)
        raise
    name = getattr(function, "__qualname__", type(function).__name__)
    if (type(returned).__module__ or "").startswith("pyspark.sql"):
        raise FunctionTaskError(
            f"{name} returned a Spark {type(returned).__name__}, which lives in the cluster: return its toPandas() or "
            "collect(), or write it and return where it is"
        )
    data = _dumps(returned, f"what {name} returned")
    if len(data) > FUNCTION_RESULT_MAX_SIZE:
        raise FunctionTaskError(
            f"what {name} returned has {len(data):,} bytes, and may have {FUNCTION_RESULT_MAX_SIZE:,}: write it, and "
            "return where it is"
        )
    _write(directory / FUNCTION_RESULT, data)


def load_functions(pickled: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of `functions_file`, in a task process; raises `FunctionTaskError`."""
    functions: dict[str, Callable[..., Any]] = _unpickled(pickled)
    return functions


def load_result(data: bytes) -> Any:
    """Return the function's result, in the client, which trusts a job's output as it trusts its own function."""
    return pickle.loads(data)  # noqa: S301  # of the caller's own function, over an authenticated connection


def load_error(data: bytes) -> Exception | None:
    """Return the function's exception, in the client; None where it cannot be unpickled. Trusted like its result."""
    try:
        error = pickle.loads(data)  # noqa: S301
    except Exception:  # its module is missing, or its constructor takes other arguments than the exception holds
        return None
    return error if isinstance(error, Exception) else None


def _keep_error(target: Path, error: Exception) -> None:
    """Write a copy of an exception for the client, if it can be pickled; its text and traceback travel in any case."""
    with contextlib.suppress(Exception):  # its pickling may raise anything
        data = _dumps(_public(error), "the exception")
        if len(data) <= FUNCTION_ERROR_MAX_SIZE and load_error(data) is not None:
            _write(target, data)


def _public(error: Any) -> Exception:
    """Return the error; for an error of PySpark, which may need a JVM, the public exception that users catch."""
    if type(error).__module__.startswith("pyspark.errors.exceptions."):
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == "pyspark.errors.exceptions.base")
        condition = error.getCondition()
        error = public(str(error).removeprefix(f"[{condition}] "), condition)
    own: Exception = error
    return own


def _write(target: Path, data: bytes) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)


def _with_spark(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the session to the arguments of a function that has `SPARK_PARAMETER`, unless the caller has given it.

    Positional arguments are bound to the other parameters.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, which takes no session
        return args, kwargs
    if SPARK_PARAMETER not in parameters or SPARK_PARAMETER in kwargs:
        return args, kwargs
    kind = parameters[SPARK_PARAMETER].kind
    if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return args, kwargs
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    place = list(parameters).index(SPARK_PARAMETER)
    if kind is inspect.Parameter.KEYWORD_ONLY or place > len(args):
        return args, {**kwargs, SPARK_PARAMETER: session}
    return (*args[:place], session, *args[place:]), kwargs


def _pickled(value: Any, what: str) -> str:
    data = pickle.dumps((sys.version_info[:2], _dumps(value, what)))
    return "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 100)) + "\n"


def _dumps(value: Any, what: str) -> bytes:
    import pyspark.cloudpickle

    try:
        data: bytes = pyspark.cloudpickle.dumps(value)  # type: ignore[no-untyped-call, unused-ignore]
    except Exception as error:  # the values' own pickling may raise anything
        raise FunctionTaskError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}; a Spark session, an open file or a lock "
            "cannot travel: make it inside the function"
        ) from error
    return data


def _unpickled(pickled: str) -> Any:
    version, data = pickle.loads(base64.b64decode(pickled))  # noqa: S301  # the job's own code, in its own process
    if version != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, pair)) for pair in (version, sys.version_info[:2]))
        raise FunctionTaskError(
            f"the function was pickled by Python {theirs} and the cluster runs Python {ours}: run both with the same, "
            "or submit a file"
        )
    try:
        return pickle.loads(data)  # noqa: S301
    except ImportError as error:
        raise FunctionTaskError(
            f"the function needs a module that the job does not have: {error}; give it with py_files=, packages= or "
            "requirements="
        ) from error
