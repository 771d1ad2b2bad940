"""The function of an edit: loads it from a file, calls it, and checks what it returns.

A problem is an error that names the part, and the line of the user's file. Nothing here reads or writes state.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.edit import StatePart, is_void, named_schema, schema_problem, session_field
from runtime.checkpoint.errors import SavepointError
from runtime.spark.connect_session import CONNECT_MODE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Edit = Callable[..., "DataFrame"]
"""Returns what shall be the state of a part; the same DataFrame leaves the part as it is.

Its arguments are the DataFrame of the state and a `StatePart`. With the schemas of another savepoint it may have a
third one, which reads the other parts (`runtime.spark.state_evolution.FormerState`).
"""

_NAME = "edit"


def load_function(path: Path) -> Edit:
    """Return the function ``edit`` of a user's file, which is run for it; for a process that does nothing else.

    Raises:
        SavepointError: the file cannot be read, fails, or has no such function.
    """
    import pyspark.cloudpickle

    remedy = f"it has to define `def {_NAME}(state, part)`, which returns a DataFrame"
    name = f"understudy_{_NAME}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise SavepointError(f"{path} is not a Python file", remedy)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    os.environ[CONNECT_MODE] = "1"  # or functions that the file makes at once do not fit the DataFrames
    module.__dict__["__builtins__"] = builtins  # Python's own: those of this module have another import function
    try:
        text = path.read_bytes()  # a loader may take the byte code of a former text for it
    except OSError as error:
        raise SavepointError(f"{path} cannot be read: {error.strerror}", remedy) from error
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- as an import
    except (Exception, SystemExit) as error:  # else `sys.exit()` would end the command with 0, without a result
        raise SavepointError(f"{path} fails{_place(error, path)}: {type(error).__name__}: {error}", remedy) from error
    register: Any = pyspark.cloudpickle.register_pickle_by_value
    register(module)  # Spark's Python workers cannot import the file
    function = getattr(module, _NAME, None)
    if not callable(function):
        raise SavepointError(f"{path} has no function {_NAME}", remedy)
    found: Edit = function
    return found


def _place(error: BaseException, path: Path) -> str:
    """Return the last line of a user's file in the traceback of an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""


def call_function(function: Edit, state: DataFrame, part: StatePart, former: object = None) -> DataFrame:
    """Call the user's function with a part of the state.

    Args:
        function: the function.
        state: the part's rows.
        part: the part.
        former: a third argument for it, if it takes three; None for none.

    Raises:
        SavepointError: it fails, or returns no DataFrame.
    """
    from pyspark.sql import DataFrame

    file = Path(getattr(getattr(function, "__code__", None), "co_filename", ""))
    try:
        result = (
            function(state, part, former) if former is not None and _takes_three(function) else function(state, part)
        )
    except (Exception, SystemExit) as error:
        first = str(error).partition("\n")[0]
        raise SavepointError(
            f"{part}: the function fails{_place(error, file)}: {type(error).__name__}: {first}", "mend the function"
        ) from error
    if not isinstance(result, DataFrame):
        raise SavepointError(
            f"{part}: the function returned {type(result).__name__}, and not a DataFrame",
            "return the DataFrame of the new state, or the given one to change nothing",
        )
    return result


def _takes_three(function: Edit) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def result_problem(part: StatePart, result: DataFrame) -> str:
    """Return why a DataFrame cannot be the state of a part; empty if it can."""
    from pyspark.errors import PySparkException

    try:
        found = {field["name"]: field["type"] for field in result.schema.jsonValue()["fields"]}
    except PySparkException as error:
        return str(error).partition("\n")[0]
    for name, wanted in (("key", part.key_type), ("value", part.value_type)):
        if name not in found:
            if name == "value" and all(is_void(field) for field in wanted["fields"]):
                continue
            return f"it has no column {name}"
        if problem := schema_problem(wanted, found[name], name):
            return problem
    return ""


def wrong_sessions(rows: DataFrame, part: StatePart) -> str:
    """Return what is wrong with the times of session windows; empty if nothing is.

    Spark merges sessions of a key that overlap or meet when it gets rows, and finds none of them in its state before.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    position = session_field(part.family)
    assert position is not None  # `parts_of` has refused it
    *group, _ = (field["name"] for field in named_schema(part.family.key)["fields"])
    window = sf.col("value").getField(named_schema(part.family.value)["fields"][position]["name"])
    names = [f"group_{number}" for number in range(len(group))]
    times = rows.select(
        *(sf.col("key").getField(name).alias(alias) for name, alias in zip(group, names, strict=True)),
        window.getField("start").alias("start"),
        window.getField("end").alias("end"),
    )
    if empty := times.where("end IS NULL OR end <= start").count():
        return f"{empty} sessions end before they start"
    following = sf.lead("start").over(Window.partitionBy(*names).orderBy("start"))
    met = times.withColumn("following", following).where("following <= end").count()
    return f"{met} sessions overlap or meet the next one of their key" if met else ""
