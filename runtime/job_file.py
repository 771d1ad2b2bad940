"""Makes a JobGraph from a job file, in the client's process.

A file is a pipeline if its top-level function ``pipeline`` names understudy's `Pipeline`: in its annotations, a
decorator or its body. Such a file is imported here, in the user's own process, and the function is called with the
arguments. Every other file is a script, which does not run here, whatever its functions are called.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.util
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runtime.api import Pipeline
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.jobgraph.errors import ParameterUsageError
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind
from runtime.jobgraph.working_directory import WorkingDirectory, imports_beside
from runtime.librarycache.errors import DirectoryNotPackedError

ENTRY = "pipeline"

_API = ("understudy", "runtime.api", "understudy.runtime.api")
"""Modules from which a job file imports `Pipeline`."""

_CLASS = Pipeline.__name__
_HELP = frozenset({"--help", "-h", "--version"})
_parsing = threading.Lock()
"""Serialises calls of `ast.parse`, which in Python 3.11 sometimes fails in two threads at once (SystemError)."""


class JobFileError(ClusterError):
    """The job file cannot be used; `details` holds the user's own traceback, or is empty."""

    def __init__(self, message: str, remedy: str, details: str = "") -> None:
        super().__init__(message, remedy)
        self.details = details


def read_job_file(
    path: Path,
    argv: Sequence[str],
    name: str | None = None,
    job_id: JobID | None = None,
    *,
    kind: JobKind | None = None,
    tell: Callable[[str], object] = warnings.warn,
) -> JobGraph:
    """Return the job that a file describes.

    Args:
        path: the job file.
        argv: arguments for the job.
        name: the job's name. Default: the pipeline's own, or the file's.
        job_id: its id. Default: a new one.
        kind: script or pipeline. Default: the result of `kind_of`.
        tell: see `kind_of`.

    Raises:
        JobFileError: the file does not exist, is not valid Python, cannot be imported, or ended itself.
        JobGraphError: the pipeline that it builds is not valid, or does not know the arguments.
        SystemExit: the arguments ask for help, which the file has printed.
    """
    found = kind_of(path, tell if kind is None else lambda _: None)  # with any kind: finds a wrong path or syntax
    now_ms = time.time_ns() // 1_000_000
    if (kind or found) is JobKind.SCRIPT:
        return JobGraph.for_script(name or path.stem, job_id=job_id, argv=tuple(argv), created_ms=now_ms)
    pipeline = build_pipeline(path, argv)
    if name is not None:
        pipeline.name = name
    return pipeline.to_job_graph(job_id, tuple(argv), now_ms)


def pack_py_files(paths: Sequence[Path], scratch: Path, max_bytes: int) -> list[Path]:
    """Replace directories among a job's py-files by zip files, written to the new directory *scratch*.

    The zip file of a package holds the package; that of another directory holds its modules.

    Raises:
        JobFileError: a directory is too large, or has a native extension, which cannot be imported from a zip file.
        OSError: it cannot be read.
    """
    packed = []
    for number, path in enumerate(paths):
        if not path.is_dir():
            packed.append(path)
            continue
        native = next(path.rglob("*.so"), None)
        if native is not None:
            raise JobFileError(
                f"--py-files {path} has a native extension, {native.relative_to(path)}, which Python cannot import "
                "from the zip file that is made of it",
                "bring it as a wheel with --package, or as a packed environment with --py-archive",
            )
        name = path.resolve().name
        target = scratch / str(number) / f"{name}.zip"
        target.parent.mkdir(mode=0o700, parents=True)
        _pack(path, target, max_bytes, name if (path / "__init__.py").is_file() else "")
        packed.append(target)
    return packed


def ship_directory(
    directory: Path, file: Path, scratch: Path, max_bytes: int, caller: WorkingDirectory | None = None
) -> tuple[WorkingDirectory, tuple[Path, ArtifactRole]]:
    """Pack a directory for a job to run in a copy of it.

    Args:
        directory: the directory to pack.
        file: the job's file.
        scratch: directory for the zip file.
        max_bytes: largest total size of its files, in bytes.
        caller: the directory in which the job runs instead, on machines that see it. Default: the copy everywhere.

    Raises:
        JobFileError: it is too large, or a symbolic link leads out of it.
        OSError: it cannot be read.
    """
    target = scratch / "working-directory.zip"
    _pack(directory, target, max_bytes)
    own, root = file.resolve(), directory.resolve()
    shipped = str(own.relative_to(root)) if own.is_relative_to(root) else ""
    place = caller or WorkingDirectory(None, None, str(file), imports_beside(file))
    return replace(place, shipped_file=shipped), (target, ArtifactRole.WORKING_DIRECTORY)


def _pack(directory: Path, target: Path, max_bytes: int, prefix: str = "") -> None:
    from runtime.librarycache.packing import pack_directory  # imported here, since few jobs need it

    try:
        pack_directory(directory, target, max_bytes, prefix)
    except DirectoryNotPackedError as error:
        raise JobFileError(str(error), error.remedy) from error


def kind_of(path: Path, tell: Callable[[str], object] = lambda _: None) -> JobKind:
    """Return whether a file is a script or a pipeline, without running it.

    Args:
        path: the job file.
        tell: called with one line if the file counts as a script but may have been meant as a pipeline.

    Raises:
        JobFileError: the file does not exist, or is not valid Python.
    """
    try:
        source = path.read_bytes()
        with _parsing:
            tree = ast.parse(source, str(path))
    except FileNotFoundError as error:
        raise JobFileError(f"there is no job file {path}", "give the path of a PySpark script or pipeline") from error
    except IsADirectoryError as error:
        raise JobFileError(f"{path} is a directory, not a job file", "give the path of a file in it") from error
    except OSError as error:
        raise JobFileError(f"the job file {path} cannot be read: {error.strerror}", "check its permissions") from error
    except (SyntaxError, ValueError) as error:
        details = "".join(traceback.format_exception_only(error))
        raise JobFileError(
            f"the job file {path} is not valid Python", "correct it, and give the command again", details
        ) from error
    statements = list(_top_level(tree.body))
    functions = [item for item in statements if isinstance(item, ast.FunctionDef) and item.name == ENTRY]
    if not functions:
        return JobKind.SCRIPT
    function = functions[-1]
    names = _imported(statements)
    if _names_ours(function, names | _imported(ast.walk(function))):
        return JobKind.PIPELINE
    if any(name.startswith(_API) for name in names.values()) or [item.arg for item in function.args.args] == ["argv"]:
        tell(
            f"{path} runs as a script: its function {ENTRY}() does not name understudy's {_CLASS}; to run it as a "
            f"pipeline, annotate it with `-> {_CLASS}` (from understudy import {_CLASS}), or give --kind pipeline"
        )
    return JobKind.SCRIPT


def _top_level(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported, without the bodies of functions and classes."""
    for statement in statements:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _top_level(ast.iter_child_nodes(statement))


def _imported(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the bindings of the imports among the nodes: full names by the file's names; the last one counts."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                root = item.name.partition(".")[0]
                found[item.asname or root] = item.name if item.asname else root
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for item in node.names:
                if item.name != "*":
                    found[item.asname or item.name] = f"{module}.{item.name}"
                elif module in _API:
                    found[_CLASS] = f"{module}.{_CLASS}"
    return found


def _names_ours(function: ast.AST, names: dict[str, str]) -> bool:
    """Return whether understudy's `Pipeline` occurs in a function, as a name or in an annotation that is a string."""
    for node in ast.walk(function):
        written = node
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(_CLASS):
            try:
                with _parsing:
                    written = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError):
                continue
        if _full_name(written, names) in [f"{module}.{_CLASS}" for module in _API]:
            return True
    return False


def _full_name(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, names)}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def build_pipeline(
    path: Path, argv: Sequence[str], content: bytes | None = None, beside: Path | None = None
) -> Pipeline:
    """Import a file in this process and return its pipeline; raises the same as `read_job_file`.

    Args:
        path: the job file, as the user named it.
        argv: arguments for the job.
        content: the code that runs. Default: what the file holds.
        beside: the directory of the modules beside it. Default: the file's.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise JobFileError(f"the job file {path} is not a Python module", "give it a name that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    place = str(path.resolve().parent if beside is None else beside)
    sys.path.insert(0, place)
    try:
        text = path.read_bytes() if content is None else content  # a loader may take a former text's byte code for it
        module.__dict__["__builtins__"] = builtins  # Python's own: those of this module have another import function
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- as an import
        entry = getattr(module, ENTRY, None)
        if entry is None:
            raise JobFileError(
                f"the job file {path} has no function {ENTRY}()",
                "define one that returns a Pipeline, or run the file with --kind script",
            )
        pipeline = entry(list(argv))
    except (ParameterUsageError, JobFileError):
        raise  # errors of the command line, not of the file
    except SystemExit as leaving:
        if not leaving.code and not _HELP.isdisjoint(argv):
            raise  # it has printed what the user has asked for
        if leaving.code and _is_of_argparse(leaving):
            raise ParameterUsageError(f"{path} rejects its arguments; nothing was submitted") from leaving
        with_what = f"status {leaving.code or 0}" if isinstance(leaving.code, int | None) else f"{leaving.code}"
        raise JobFileError(
            f"the job file {path} ended itself with {with_what} before it returned a pipeline; nothing was submitted",
            "return an understudy.Pipeline, or run the file with --kind script",
            own_traceback(leaving, path),
        ) from leaving
    except Exception as error:  # the user's code may raise anything; the error shows the user's own traceback
        raise JobFileError(
            f"the job file {path} cannot be imported, or its {ENTRY}() failed: {type(error).__name__}: {error}",
            "correct it, and give the command again; nothing was submitted",
            own_traceback(error, path),
        ) from error
    finally:
        sys.path.remove(place)
    if not isinstance(pipeline, Pipeline):
        raise JobFileError(
            f"{ENTRY}() of {path} returned {type(pipeline).__name__}", "return an understudy.Pipeline from it"
        )
    return pipeline


def _is_of_argparse(leaving: SystemExit) -> bool:
    """Return whether `argparse` has raised it, after it printed the usage."""
    names = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(leaving.__traceback__)]
    return names[-1:] == [argparse.__name__]


def own_traceback(error: BaseException, path: Path) -> str:
    """Return the traceback from the user's first frame on."""
    frames = traceback.TracebackException.from_exception(error)
    own = [index for index, frame in enumerate(frames.stack) if frame.filename == str(path)]
    if own:
        frames.stack = traceback.StackSummary.from_list(frames.stack[own[0] :])
    return "".join(frames.format())
