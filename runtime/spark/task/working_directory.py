"""Resolves relative paths in a job's calls to Spark against the job's own directory.

The Spark driver is one process for many jobs, so its current directory cannot be that of each job. So this module makes
relative paths absolute in the task process, before Spark gets them. It does so for paths of readers and writers, of the
RDD API, of models, and of files that an SQL statement reads. It does not change locations of tables, which in any Spark
are relative to the database's directory. Other paths in the text of SQL statements do not change either.

Spark resolves relative paths in its default file system. If that is not the local one, they are not changed either
(`JobPlace.resolves_paths`).
"""

from __future__ import annotations

import functools
import glob
import inspect
import json
import os.path
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaMember
from pyspark import RDD, SparkContext
from pyspark.sql import readwriter, session
from pyspark.sql.connect import readwriter as connect_readwriter
from pyspark.sql.connect import session as connect_session
from pyspark.sql.connect.streaming import readwriter as connect_streaming
from pyspark.sql.streaming import readwriter as streaming

from conf.files import write_private
from runtime.spark.spec import ENVIRONMENT_FILE, TaskSpec
from runtime.spark.task.imports import Surroundings, carry
from runtime.spark.task.streaming import record_calls, settings_of

FILE_FORMATS = frozenset(
    {"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile", "image", "libsvm", "delta", "hudi"}
)
"""Sources whose ``path`` names a file or directory; that of other sources may be a table's name, or anything else."""

_FILES_IN_SQL = re.compile(rf"\b({'|'.join(FILE_FORMATS)})\.`([^`]+)`", re.IGNORECASE)
_PATH_OPTIONS = frozenset({"checkpointlocation", "sourcearchivedir"})
_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_CONTEXT_PATHS = {
    "textFile": "name",
    "wholeTextFiles": "path",
    "binaryFiles": "path",
    "binaryRecords": "path",
    "sequenceFile": "path",
    "newAPIHadoopFile": "path",
    "hadoopFile": "path",
    "pickleFile": "name",
    "setCheckpointDir": "dirName",
    "addFile": "path",
    "addArchive": "path",
}
_RDD_PATHS = (
    "saveAsTextFile",
    "saveAsPickleFile",
    "saveAsSequenceFile",
    "saveAsHadoopFile",
    "saveAsNewAPIHadoopFile",
)
_MODEL_CALLS = frozenset({"save", "load", "handleOverwrite", "loadLabeledPoints", "loadLDAModel", "loadVectors"})


def carry_surroundings(spec: TaskSpec, import_path: Sequence[str] = ()) -> None:
    """Make Spark's Python workers on this machine work for the task in its directory.

    Args:
        spec: the task.
        import_path: further directories for their imports.
    """
    job, place = spec.descriptor.job, spec.place
    is_remote = bool(spec.shipping_dir) or (spec.connect is not None and bool(spec.connect.remote))
    surroundings = Surroundings(
        (*(() if place is None else place.worker_path), *import_path),
        "" if is_remote else spec.directory,
        _written(spec) if job.environment and spec.connect is not None else "",  # Spark passes them to a script's own
        place is not None and place.resolves_paths,
    )
    if any(surroundings):
        carry(surroundings)


def _written(spec: TaskSpec) -> str:
    """Write the job's variables to a file for its workers, and return its path."""
    file = Path(spec.work_dir, ENVIRONMENT_FILE)
    write_private(file, json.dumps(spec.descriptor.job.environment).encode(), durable=False)
    return str(file)


def resolve_paths_of(spec: TaskSpec) -> None:
    """Resolve the paths of a task that has a directory other than its attempt's, in this process only."""
    if spec.place is not None and spec.place.resolves_paths:
        resolve_paths(spec.place.directory)


def resolve_paths(directory: str) -> None:
    """Resolve the paths that this process gives to Spark, classic or Connect."""
    _Resolver(directory).install()


class _Resolver:
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def install(self) -> None:
        for method, parameter in _CONTEXT_PATHS.items():
            self._wrap(SparkContext, method, parameter, self._comma_separated)
        for method in _RDD_PATHS:
            self._wrap(RDD, method, "path", self.path)
        for module in (readwriter, connect_readwriter):
            self._install_batch(module)
        for module in (streaming, connect_streaming):
            self._install_streaming(module)
        for kind in (session.SparkSession, connect_session.SparkSession):
            self._wrap(kind, "sql", "sqlQuery", self._files_in_sql)
        self._install_models()

    def _install_batch(self, module: Any) -> None:
        reader, writer = module.DataFrameReader, module.DataFrameWriter
        for kind in (reader, writer):
            self._record(kind)
        for method, parameter in {"json": "path", "text": "paths", "csv": "path", "xml": "path", "orc": "path"}.items():
            self._wrap(reader, method, parameter, self.paths)
            self._wrap(writer, method, "path", self.path)
        self._wrap(reader, "parquet", "paths", self.paths)
        self._wrap(writer, "parquet", "path", self.path)
        self._wrap(reader, "load", "path", self.paths, given="format")
        self._wrap(writer, "save", "path", self.path, given="format")

    def _install_streaming(self, module: Any) -> None:
        reader, writer = module.DataStreamReader, module.DataStreamWriter
        for kind in (reader, writer):
            self._record(kind)
        for method in ("json", "text", "csv", "xml", "orc", "parquet"):
            self._wrap(reader, method, "path", self.path)
        self._wrap(reader, "load", "path", self.path, given="format")
        self._wrap(writer, "start", "path", self.path, given="format")
        for method in ("start", "toTable"):
            self._default_location_before(writer, method)

    def _install_models(self) -> None:
        """Resolve paths that `pyspark.ml` and `pyspark.mllib` pass to the JVM themselves; neither is imported yet."""
        call: Any = JavaMember.__call__
        resolve = self.path

        def resolved(member: Any, *arguments: Any) -> Any:
            if member.name in _MODEL_CALLS and sys._getframe(1).f_globals.get("__name__", "").startswith("pyspark.ml"):
                arguments = tuple(resolve(each) if isinstance(each, str) else each for each in arguments)
            return call(member, *arguments)

        patched: Any = JavaMember
        patched.__call__ = resolved

    # --- paths

    def path(self, path: Any) -> Any:
        """Make a relative local path absolute; return other values unchanged."""
        if not isinstance(path, str) or not path or path.startswith("/") or _SCHEME.match(path):
            return path
        return os.path.join(self._directory, path.removeprefix("./"))  # noqa: PTH118 -- keeps a slash at the end

    def paths(self, given: Any) -> Any:
        """Make one path, or each of several, absolute."""
        return type(given)(self.paths(each) for each in given) if isinstance(given, list | tuple) else self.path(given)

    def _files_in_sql(self, text: Any) -> Any:
        """Make paths of existing files that an SQL statement reads absolute, such as ``csv.`data/rows.csv` ``."""

        def resolved(found: re.Match[str]) -> str:
            path = self.path(found[2])
            is_there = path != found[2] and any(glob.iglob(path))  # noqa: PTH207 -- Path.glob takes no absolute pattern
            return f"{found[1]}.`{path}`" if is_there else found[0]

        return _FILES_IN_SQL.sub(resolved, text) if isinstance(text, str) else text

    def _comma_separated(self, given: Any) -> Any:
        """Make each path of Hadoop's list absolute: commas separate, except within braces."""
        if not isinstance(given, str):
            return given
        return ",".join(map(self.path, re.split(r",(?![^{}]*\})", given)))

    # --- hooks

    def _record(self, kind: Any) -> None:
        """Record format and path, which may come in any order, and resolve other options that are paths at once."""
        option, options = kind.option, kind.options
        record_calls(kind, "format", lambda source: {"format": source.lower()})

        @functools.wraps(option)
        def own_option(self_: Any, key: str, value: Any) -> Any:
            return option(self_, key, self._option(self_, key, value))

        @functools.wraps(options)
        def own_options(self_: Any, **given: Any) -> Any:
            return options(self_, **{key: self._option(self_, key, value) for key, value in given.items()})

        kind.option, kind.options = own_option, own_options

    def _option(self, owner: Any, key: str, value: Any) -> Any:
        if key.lower() == "path" and isinstance(value, str):
            settings_of(owner)["path"] = value
        return self.path(value) if key.lower() in _PATH_OPTIONS else value

    def _wrap(
        self, kind: Any, method: str, parameter: str, resolve: Callable[[Any], Any], given: str | None = None
    ) -> None:
        """Patch a method so that it resolves an argument.

        Args:
            kind: the class.
            method: its method.
            parameter: the argument.
            resolve: resolves it.
            given: argument that names the source, if the path is a file's for some sources only.
        """
        original = getattr(kind, method, None)
        if original is None:
            return  # another release of PySpark
        signature = inspect.signature(original)

        @functools.wraps(original)
        def resolved(*arguments: Any, **keywords: Any) -> Any:
            try:
                bound = signature.bind(*arguments, **keywords)
            except TypeError:
                return original(*arguments, **keywords)  # raises the better error
            self._resolve_arguments(bound.arguments, parameter, resolve, given)
            return original(*bound.args, **bound.kwargs)

        setattr(kind, method, resolved)

    def _resolve_arguments(
        self, arguments: dict[str, Any], parameter: str, resolve: Callable[[Any], Any], given: str | None
    ) -> None:
        owner, options = next(iter(arguments.values())), arguments.get("options", {})
        has_path = given is None or self._is_of_files(owner, arguments.get(given))
        if has_path and arguments.get(parameter) is not None:
            arguments[parameter] = resolve(arguments[parameter])
        elif has_path and given is not None and "path" in settings_of(owner):
            owner.option("path", resolve(settings_of(owner)["path"]))
        for name, value in options.items():
            if name.lower() in _PATH_OPTIONS or (name.lower() == "path" and has_path):
                options[name] = self.path(value)

    @staticmethod
    def _is_of_files(owner: Any, given: Any) -> bool:
        return str(given or settings_of(owner).get("format") or "parquet").lower() in FILE_FORMATS

    def _default_location_before(self, writer: Any, method: str) -> None:
        """Resolve the session's default checkpointLocation before a query starts, since Spark reads it then."""
        original = getattr(writer, method)

        @functools.wraps(original)
        def start(self_: Any, *arguments: Any, **keywords: Any) -> Any:
            conf = (getattr(self_, "_spark", None) or self_._session).conf
            location = conf.get(_DEFAULT_LOCATION, None)
            if location is not None and self.path(location) != location:
                conf.set(_DEFAULT_LOCATION, self.path(location))
            return original(self_, *arguments, **keywords)

        setattr(writer, method, start)
