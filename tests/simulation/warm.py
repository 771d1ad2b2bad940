"""A process that has loaded the simulator once, and forks a child for each run, with a fault planted or without.

Loading the product takes more CPU than many runs. So a fault is planted in the functions that are loaded: those whose
code the fault changes get the changed code (`swap`). A fault in the body of a module or class cannot be planted like
this; `Warm.run` starts a new interpreter for it.

A run without a fault can tell which places of faults it reaches (`Warm.reached`): the statement that each fault
changes notes itself (`with_probes`). A run that does not reach the place of a fault is the same with it.
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.model import Mutant
from tests.simulation.faults import Fault
from tests.simulation.kept import ROOT
from tests.simulation.planted import Planted

STUCK_S = 300
"""Seconds of CPU after which a run counts as stuck."""
PROBE = "__place_of_a_fault__"


class CannotSwap(Exception):
    """A fault is not in the code of functions alone."""


@dataclass(frozen=True)
class Run:
    """A run of a workload.

    Args:
        workload: its name.
        seed: of everything.
        plan: the faults; by default those that the seed gives.
        faults_s: virtual seconds in which faults happen; by default the workload's.
    """

    workload: str
    seed: int
    plan: tuple[Fault, ...] | None = None
    faults_s: float | None = None


@dataclass(frozen=True)
class Ran:
    """The outcome of a run.

    Args:
        check: which failed, or why there is no verdict; empty if nothing was found.
        found: whether a check failed.
        cpu_s: seconds of CPU.
    """

    check: str
    found: bool
    cpu_s: float


# ------------------------------------------------------------------ code in place of code


def changed_functions(before: types.CodeType, after: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Return the functions whose code differs in two versions of a module, without those inside others.

    Raises:
        CannotSwap: the body of the module or of a class differs.
    """
    if _shape(before) != _shape(after):
        raise CannotSwap(f"the body of {before.co_qualname} differs")
    for old, new in zip(_inner(before), _inner(after), strict=True):
        if not old.co_flags & inspect.CO_OPTIMIZED:  # a class
            yield from changed_functions(old, new)
        elif _all_of(old) != _all_of(new):
            yield old, new


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]


def _shape(code: types.CodeType) -> tuple[object, ...]:
    """Return a code's content without lines and without the codes in it."""
    constants = [(type(one), repr(one)) for one in code.co_consts if not isinstance(one, types.CodeType)]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants


def _all_of(code: types.CodeType) -> tuple[object, ...]:
    return _shape(code), [_all_of(one) for one in _inner(code)]


def _place(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def loaded_functions(root: Path) -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """Return all functions of modules below *root*, by file, name and line of their code."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename.startswith(f"{root}/"):
            found.setdefault(_place(thing.__code__), []).append(thing)
    return found


# ------------------------------------------------------------------ the places of faults


def first_changed_line(mutant: Mutant, text: str) -> int:
    """Return the number of the first line of a file that a fault changes."""
    pairs = enumerate(zip(mutant.old, mutant.new, strict=False))
    equal = next((n for n, (old, new) in pairs if old != new), min(len(mutant.old), len(mutant.new)))
    return text.count("\n", 0, text.index(mutant.old) + equal) + 1


def with_probes(tree: ast.Module, lines: dict[str, int]) -> set[str]:
    """Add a call to the functions of a module before the statement at each line; it notes the name of the line.

    Returns:
        The names whose lines are in no function.
    """
    outside = set()
    for name, line in lines.items():
        body, index, is_inside = _statement(tree, line)
        if not is_inside:
            outside.add(name)
            continue
        probe = ast.Expr(ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(name)], []))
        probe.lineno = probe.end_lineno = body[index].lineno
        probe.col_offset = probe.end_col_offset = 0
        body.insert(index, ast.fix_missing_locations(probe))
    return outside


def _statement(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int, bool]:
    """Return where the innermost statement at a line is: in which list, at which index, and whether in a function."""
    body, index, is_inside = tree.body, 0, False
    block: ast.AST = tree
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    while True:
        parts = [block, *getattr(block, "handlers", []), *getattr(block, "cases", [])]
        bodies = [getattr(part, field, []) for part in parts for field in ("body", "orelse", "finalbody")]
        for inner in bodies:
            at = next((n for n, one in enumerate(inner) if one.lineno <= line <= (one.end_lineno or line)), None)
            if at is not None:
                is_inside = is_inside or isinstance(block, functions)
                body, index, block = inner, at, inner[at]
                break
        else:
            return body, index, is_inside and not isinstance(block, (*functions, ast.ClassDef))


# ------------------------------------------------------------------ the process


class Warm:
    """The simulator, loaded, with the functions of the product.

    Args:
        planted: all faults that may be planted.

    Attributes:
        workloads: the names of all workloads.
        measured_s: seconds of CPU that runs without a fault have taken, for `reached`.
    """

    def __init__(self, planted: Sequence[Planted]) -> None:
        from tests.simulation import workloads

        self.workloads = list(workloads.WORKLOADS)
        self.measured_s = 0.0
        self._planted = planted
        self._functions = loaded_functions(ROOT)
        self._reached: dict[Run, set[str]] = {}
        gc.collect()
        gc.freeze()

    def run(self, planted: Planted, run: Run) -> Ran:
        """Run with a fault planted."""

        def work() -> dict[str, Any]:
            try:
                self.swap(
                    planted.mutant.file,
                    compile(planted.mutant.text(ROOT), _path(planted.mutant), "exec", dont_inherit=True),
                )
            except CannotSwap as why:
                return {"cannot": str(why)}
            return asdict(_simulate(run))

        try:
            told = in_a_child(work)
        except ChildFailed as why:
            return Ran(str(why), False, STUCK_S)
        if "cannot" in told:
            return _run_anew(planted, run)
        return Ran(**told)

    def reached(self, run: Run) -> set[str]:
        """Return the names of the faults whose places a run reaches when none is planted."""

        def work() -> dict[str, Any]:
            names = self._add_probes()
            setattr(builtins, PROBE, names.add)
            ran = _simulate(run)
            return {"names": sorted(names), "cpu_s": ran.cpu_s}

        if run not in self._reached:
            told = in_a_child(work)
            self._reached[run] = set(told["names"])
            self.measured_s += told["cpu_s"]
        return self._reached[run]

    def swap(self, file: str, after: types.CodeType) -> None:
        """Give the functions of a loaded module the code that they have in another version of it.

        Raises:
            CannotSwap: that is not enough to make it that version.
        """
        before = compile((ROOT / file).read_text(), str(ROOT / file), "exec", dont_inherit=True)
        for old, new in changed_functions(before, after):
            if not self._swap(old, new):
                raise CannotSwap(f"{old.co_qualname} is not loaded")

    def _swap(self, old: types.CodeType, new: types.CodeType) -> bool:
        """Swap the code of a function, and of those that it has made; return whether it is loaded."""
        functions = self._functions.get(_place(old), [])
        for function in functions:
            if old.co_freevars != new.co_freevars:
                raise CannotSwap(f"{old.co_qualname} uses other variables of its outer function")
            function.__code__ = new
        successors = {one.co_qualname: one for one in _inner(new)}
        for inner in _inner(old):
            if inner.co_qualname in successors:
                self._swap(inner, successors[inner.co_qualname])
        return bool(functions)

    def _add_probes(self) -> set[str]:
        """Add probes to all modules; return the names of the faults that have none."""
        outside = set()
        files: dict[str, list[Mutant]] = {}
        for one in self._planted:
            files.setdefault(one.mutant.file, []).append(one.mutant)
        for file, mutants in files.items():
            text = (ROOT / file).read_text()
            tree = ast.parse(text)
            outside |= with_probes(tree, {mutant.name: first_changed_line(mutant, text) for mutant in mutants})
            try:
                self.swap(file, compile(tree, str(ROOT / file), "exec", dont_inherit=True))
            except CannotSwap:
                outside |= {mutant.name for mutant in mutants}
        return outside


def _path(mutant: Mutant) -> str:
    return str(ROOT / mutant.file)


def _simulate(run: Run) -> Ran:
    from tests.simulation import world
    from tests.simulation.workloads import WORKLOADS

    outcome = world.run(WORKLOADS[run.workload], run.seed, run.plan, faults_s=run.faults_s)
    check = "" if outcome.failure is None else outcome.failure.check
    return Ran(check, outcome.failure is not None, outcome.cpu_s)


class ChildFailed(Exception):
    """A child has ended without a result."""


def in_a_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Fork, work in the child and return what it returns.

    Raises:
        ChildFailed: the child ends without a result, or has spent `STUCK_S` seconds of CPU.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (STUCK_S, STUCK_S))
            warnings.simplefilter("ignore")
            with os.fdopen(writer, "w") as file:
                file.write(json.dumps(work()))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        result: dict[str, Any] = json.loads(text)
        return result
    raise ChildFailed("the run does not end" if code == -signal.SIGXCPU else f"the run ends with the code {code}")


def _run_anew(planted: Planted, run: Run) -> Ran:
    """Run in a new interpreter."""
    command = [
        *(sys.executable, "-W", "ignore", "-m", "tests.simulation.with_fault", planted.name, "replay"),
        *("--workload", run.workload, "--seed", str(run.seed)),
        *(() if run.faults_s is None else ("--short", str(run.faults_s))),
        *(() if run.plan is None else ("--faults", repr(list(run.plan)))),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    head, _, rest = (done.stdout.splitlines() or [""])[0].partition(": ")
    if done.returncode == 1 and head == f"{run.workload} seed {run.seed}":
        return Ran(rest.partition(", at ")[0], True, cpu_s)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return Ran("" if done.returncode == 0 else f"the process ends: {last[:200]}", False, cpu_s)
