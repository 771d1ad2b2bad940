"""References to vertex functions, by module and name: code is never sent as a pickle."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.jobgraph.errors import InvalidFunctionError

TYPED_IN = "typed_in"
"""Stands for the module of a function that is in no file."""


def function_reference(function: Callable[..., Any], vertex_name: str, inputs: int) -> str:
    """Return ``module:name`` of a vertex's function, after checking that a task process can find and call it.

    For a function of the main file, which runs as ``__main__``, this is the file's own module name. For one that was
    typed into a prompt or notebook it is `TYPED_IN`: `runtime.notebook` makes a file of that name.

    Raises:
        InvalidFunctionError: it is a lambda, nested, a method, an object, a coroutine, or does not take
            *inputs* arguments after the context.
    """
    where = f"the function of vertex {vertex_name!r}"
    remedy = "use a function defined with 'def' at the top level of the job file or of a py-file"
    if not inspect.isfunction(function):
        raise InvalidFunctionError(
            f"{where} is a {type(function).__name__}, which a task cannot find by name: {remedy}"
        )
    if function.__name__ == "<lambda>":
        raise InvalidFunctionError(f"{where} is a lambda, which has no name to be found by: {remedy}")
    if "." in function.__qualname__:
        raise InvalidFunctionError(f"{where} is {function.__qualname__}, which is nested: {remedy}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidFunctionError(f"{where} is a coroutine or generator; it must be a plain function")
    try:
        inspect.signature(function).bind(*range(1 + inputs))
    except TypeError as error:
        raise InvalidFunctionError(
            f"{where} is {function.__name__}{inspect.signature(function)}, which does not take the context and "
            f"{inputs} input(s): {error}"
        ) from error
    module = sys.modules.get(function.__module__)
    if module is not None and getattr(module, function.__qualname__, None) is not function:
        raise InvalidFunctionError(
            f"{where} is not what {function.__module__}.{function.__qualname__} stands for: "
            f"{remedy}, under a name of its own"
        )
    return f"{_module_name(function)}:{function.__qualname__}"


def _module_name(function: Callable[..., Any]) -> str:
    if function.__module__ != "__main__":
        return str(function.__module__)
    file = function.__globals__.get("__file__")
    return Path(file).stem if file else TYPED_IN
