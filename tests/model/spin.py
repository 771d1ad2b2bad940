"""Run SPIN on `latch.pml`: the checks that must hold, and the faults that they must find.

SPIN writes a verifier in C for a model, and the C compiler makes a program of it. That program visits all states. A
search that stopped early, for lack of memory or depth, is not complete and counts as failed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODEL = Path(__file__).with_name("latch.pml")
TIMEOUT_S = 900.0
"""For one search. Only a search without an end reaches it."""

_MEMORY_MB = 2000
_MAX_DEPTH = 5_000_000
# Breadth first: a counterexample is as short as can be, and no depth limits the search. It cannot look for cycles.
_SAFETY = ("-DBFS", "-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={_MEMORY_MB}")
_LIVENESS = ("-DNOREDUCE", f"-DMEMLIM={_MEMORY_MB}", "-DNFAIR=3")
_COMPILES = ("gcc", "-x", "c", "-fsyntax-only", "-")
_TRACED = ("TRACE", "EPOCHS", "WRITES", "NO_FAILOVER", "LEASE=10", "PER_TICK=1", "HORIZON=200", "SESSIONS=100")
_STEPS = 20_000
_STEP_NAMES = frozenset(
    ("tick", "send", "execute", "hear", "give_up", "leave_behind", "late", "write", "abandon", "step_down", "state")
)
_TRUNCATED = ("search not completed", "depth too small", "out of memory", "memlim", "aborting")


@dataclass(frozen=True, slots=True)
class Check:
    """One search through the model.

    Attributes:
        name: short, unique.
        shows: properties that the search checks, in words.
        defines: macros that choose the part of the model, as ``NAME`` or ``NAME=VALUE``.
        least_states: a complete search visits at least so many.
        fewer: macros for a part of the same states, which takes a second or two.
        fewer_states: a complete search of that part visits at least so many.
    """

    name: str
    shows: str
    defines: tuple[str, ...]
    least_states: int
    fewer: tuple[str, ...]
    fewer_states: int

    @property
    def live(self) -> bool:
        """Whether the search looks for endless cycles rather than for forbidden states."""
        return "LIVE" in self.defines


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to plant into the model.

    Attributes:
        defines: the macro that plants it, and others that choose the property that is to find it.
        check: name of the check that must find it.
        finds: text of the violated property in the output of the verifier.
    """

    defines: tuple[str, ...]
    check: str
    finds: str


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a search.

    Attributes:
        errors: number of violations; a search ends at the first.
        states: number of different states that were visited.
        complete: whether all states were visited.
        violated: the verifier's line about the violation; empty without one.
        trail: steps to the violation, one a line; empty without one.
        seconds: for the search, without the making of the verifier.
        output: all that the verifier printed.
    """

    errors: int
    states: int
    complete: bool
    violated: str
    trail: str
    seconds: float
    output: str


@cache
def missing() -> str:
    """Return what is not installed, with the remedy; empty where SPIN can run."""
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if not absent and subprocess.run(_COMPILES, input=b"#include <stdlib.h>\n", check=False).returncode:
        absent = ["the headers of C"]
    return f"{' and '.join(absent)} not installed: apt-get install spin gcc libc6-dev" if absent else ""


def run(check: Check, faults: Iterable[str] = (), *, fewer: bool = False) -> Result:
    """Search the model with planted faults; without any, all properties must hold.

    Args:
        check: what to search for.
        faults: macros that plant them.
        fewer: whether to search a part of the states only.

    Raises:
        subprocess.CalledProcessError: SPIN or the compiler rejects the model.
        subprocess.TimeoutExpired: the search took longer than `TIMEOUT_S`.
    """
    defines = [f"-D{name}" for name in (*(check.fewer if fewer else check.defines), *faults)]
    with tempfile.TemporaryDirectory(prefix="understudy-spin-") as directory:
        shutil.copy(MODEL, directory)
        _command(directory, "spin", "-a", *defines, MODEL.name)
        # A fault is found after few states: there the compiler costs more than the search.
        optimise = "-O1" if faults else "-O2"
        _command(directory, "gcc", optimise, "-w", *(_LIVENESS if check.live else _SAFETY), "-o", "pan", "pan.c")
        options = ["-a", "-f", f"-m{_MAX_DEPTH}", "-w22"] if check.live else ["-w22"]
        began = time.monotonic()
        output = _command(directory, "./pan", *options)
        seconds = time.monotonic() - began
        trails = list(Path(directory).glob("*.trail"))
        trail = _command(directory, "spin", "-k", trails[0].name, "-p", *defines, MODEL.name) if trails else ""
    return parse(output, seconds, trail)


def parse(output: str, seconds: float = 0.0, trail: str = "") -> Result:
    """Return what the output of a verifier says. Pure.

    Raises:
        ValueError: it has no number of errors or states.
    """
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
    if errors is None or states is None:
        raise ValueError(f"the verifier printed no result: {output[-2000:]}")
    violated = re.search(r"^pan:\d+: (.+)$", output, re.MULTILINE)
    count = int(errors[1])
    truncated = any(sign in output.lower() for sign in _TRUNCATED)
    return Result(
        count, int(states[1]), not count and not truncated, violated[1] if violated else "", trail, seconds, output
    )


def trace(seed: int, faults: Iterable[str] = ()) -> list[list[str]]:
    """Return the steps of one random run without a failover, as words: the step, its arguments, what came of it.

    A lease is 10 ticks there, so that the margin is one as in `LatchTiming`.

    Raises:
        subprocess.CalledProcessError: SPIN rejects the model.
    """
    with tempfile.TemporaryDirectory(prefix="understudy-spin-") as directory:
        shutil.copy(MODEL, directory)
        defines = [f"-D{name}" for name in (*_TRACED, *faults)]
        output = _command(directory, "spin", "-T", f"-n{seed}", f"-u{_STEPS}", *defines, MODEL.name)
    words = [line.split() for line in output.splitlines()]
    return [line for line in words if line and line[0] in _STEP_NAMES]


def states_explored() -> int:
    """Return the number of states that all checks visit.

    Raises:
        RuntimeError: SPIN is missing, a property is violated, or a search was not complete.
    """
    if reason := missing():
        raise RuntimeError(reason)
    results = {name: run(check) for name, check in CHECKS.items()}
    failed = [f"{name}: {result.violated or 'not complete'}" for name, result in results.items() if not result.complete]
    if failed:
        raise RuntimeError("; ".join(failed))
    return sum(result.states for result in results.values())


def _command(directory: str, *arguments: str) -> str:
    done = subprocess.run(
        arguments, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=arguments[0] != "./pan"
    )
    return done.stdout + done.stderr


CHECKS = {
    check.name: check
    for check in (
        Check(
            "leases",
            "never two leaders by their own belief, with or without a failover; without one, Redis agrees with them",
            ("DRIFT", "LEASE=3", "SESSIONS=3", "GRANTS=3"),
            1_000_000,
            ("DRIFT", "LEASE=3", "SESSIONS=2", "GRANTS=2"),
            150_000,
        ),
        Check(
            "set back",
            "the same without a failover, while the server's clock is set back any number of times",
            ("DRIFT", "SET_BACK", "NO_FAILOVER", "LEASE=3", "SESSIONS=3", "GRANTS=3"),
            100_000,
            ("DRIFT", "SET_BACK", "NO_FAILOVER", "LEASE=3", "SESSIONS=2", "GRANTS=2"),
            10_000,
        ),
        Check(
            "epochs",
            "an epoch is above all that were granted before, by whichever server",
            ("EPOCHS", "NO_STRAGGLERS", "LEASE=3", "SESSIONS=3", "HORIZON=7"),
            1_000_000,
            ("EPOCHS", "NO_STRAGGLERS", "LEASE=3", "SESSIONS=2", "HORIZON=4"),
            50_000,
        ),
        Check(
            "writes",
            "a server's data have no fenced write of a former leader after one of a higher epoch",
            ("WRITES", "NO_STRAGGLERS", "LEASE=2", "SESSIONS=3", "GRANTS=3"),
            500_000,
            ("WRITES", "NO_STRAGGLERS", "LEASE=2", "SESSIONS=2", "GRANTS=2"),
            50_000,
        ),
        Check(
            "calls",
            "no two leaders call; a receiver accepts no call of a former leader after one of a higher epoch",
            ("CALLS", "NO_STRAGGLERS", "LEASE=2", "SESSIONS=3", "GRANTS=3"),
            1_000_000,
            ("CALLS", "NO_STRAGGLERS", "LEASE=2", "SESSIONS=2", "GRANTS=2"),
            100_000,
        ),
        Check(
            "heals",
            "after the last fault some contender leads for ever, and receivers accept it",
            ("LIVE", "LEASE=6", "SESSIONS=12", "FAULTS=2"),
            500_000,
            ("LIVE", "LEASE=4", "SESSIONS=8", "FAULTS=1"),
            15_000,
        ),
        Check(
            "ties",
            "the same where both servers grant one epoch",
            ("LIVE", "TIED_EPOCHS", "LEASE=6", "SESSIONS=12", "FAULTS=2"),
            500_000,
            ("LIVE", "TIED_EPOCHS", "LEASE=4", "SESSIONS=8", "FAULTS=1"),
            30_000,
        ),
    )
}
"""All of them hold; together they are what the model shows."""

_TWO_LEADERS = "assertion violated  !((((("
_TWO_CALLERS = "assertion violated  !((((c[(1-me)]"
FAULTS = (
    Fault(("NO_MARGIN", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("LEASE_FROM_REPLY", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("RENEW_ANY", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("RELEASE_ANY", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("FULL_LEASE_AGAIN", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("NO_PAUSE", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("RENEW_UNTIMED", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("SHORTENED", "BELIEFS_ONLY"), "set back", _TWO_LEADERS),
    Fault(("EPOCH_NOT_RAISED",), "epochs", "assertion violated (epoch>highest)"),
    Fault(("EPOCH_WITHOUT_CLOCK",), "epochs", "assertion violated (epoch>highest)"),
    Fault(("WRITE_UNFENCED",), "writes", "assertion violated (act.epoch>=redis"),
    Fault(("WRITE_IN_TWO_STEPS",), "writes", "assertion violated (act.epoch>=redis"),
    Fault(("CALL_UNFENCED",), "calls", "assertion violated (act.epoch>=acted)"),
    Fault(("CALL_WITHOUT_GATE",), "calls", _TWO_CALLERS),
    Fault(("LATCH_WITHOUT_EXPIRY",), "heals", "acceptance cycle"),
    Fault(("SET_BACK_KEPT",), "heals", "acceptance cycle"),
    Fault(("REFUSAL_IGNORED",), "heals", "acceptance cycle"),
    Fault(("TIE_KEPT",), "ties", "acceptance cycle"),
)
"""Positive controls: the named check finds each, so it would find the like in the protocol."""

BEYOND = (
    Fault(("OLD_MASTER_WRITES", "BELIEFS_ONLY"), "leases", _TWO_LEADERS),
    Fault(("BEHIND=99",), "epochs", "assertion violated (epoch>highest)"),
    Fault(("ACROSS_FAILOVER", "DRIFT"), "writes", "assertion violated (act.epoch>=written)"),
)
"""Conditions that the product assumes: without each of them the named check fails."""
