"""``python -m tests.bench all``: every benchmark in one run on one machine, some times over, and what comes of it.

Each benchmark runs in a process of its own, and all of them before any of them a second time, so that what else the
machine does in a while hits all alike; within a benchmark, ours and what it is set beside alternate as well. A ratio is
taken within one such round. What is told of each figure is its median, and its least and greatest value. Scale runs in
the first round only: it is told in processor seconds, and is a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.bench.comparisons import COMPARISONS, PEERS

FORMAT = 1
TIMEOUT_S = 3600.0
ONCE = frozenset({"scale"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One benchmark in one round: its figures, or the end of what it said when it failed."""

    benchmark: str
    figures: dict[str, float]
    error: str = ""


def run_all(
    names: Sequence[str], repeats: int, options: Sequence[str], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run benchmarks and say what came of it, as plain data.

    Args:
        names: of the benchmarks.
        repeats: how often all of them run.
        options: passed to each.
        keep: called after each benchmark with what has come of the run until then, so that a run that is stopped
            loses nothing.
    """
    began, around = time.time(), surroundings()
    due = [(number, name) for number in range(repeats) for name in names if not (number and name in ONCE)]
    rounds: list[list[Outcome]] = [[] for _ in range(repeats)]
    result: dict[str, Any] = {}
    for done, (number, name) in enumerate(due, start=1):
        rounds[number].append(_one(name, options))
        result = {
            **summary(rounds[: number + 1]),
            "not_run": [f"{name} of round {number + 1}" for number, name in due[done:]],
            "began": int(began),
            "took_s": round(time.time() - began),
            **around,
        }
        keep(result)
    return result


def _one(name: str, options: Sequence[str]) -> Outcome:
    print(f"== {name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="us-bench-all-") as scratch:
        result, log = Path(scratch) / "figures.json", Path(scratch) / "log"
        command = [sys.executable, "-m", "tests.bench", name, "--json", str(result), *options]
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    command, stdout=output, stderr=output, timeout=TIMEOUT_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                status = -1
        if status == 0:
            return Outcome(name, json.loads(result.read_text())["figures"])
        said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        print(f"{name} failed with status {status}: {said[-1]}", file=sys.stderr)
        return Outcome(name, {}, f"status {status}: {said[-1]}")


def summary(rounds: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    """Medians and spreads of figures and ratios, and what failed. Pure."""
    by_round = [
        {f"{outcome.benchmark}/{name}": value for outcome in outcomes for name, value in outcome.figures.items()}
        for outcomes in rounds
    ]
    names = list(dict.fromkeys(name for figures in by_round for name in figures))
    ratios = []
    for comparison in COMPARISONS:
        found = [ratio for figures in by_round if (ratio := comparison.ratio(figures)) is not None]
        if found:
            ratios.append(
                {
                    "what": comparison.what,
                    "beside": comparison.beside,
                    "ratio": _spread(found),
                    "why": comparison.why,
                }
            )
    return {
        "format": FORMAT,
        "repeats": len(rounds),
        "ratios": ratios,
        "figures": {name: _spread([figures[name] for figures in by_round if name in figures]) for name in names},
        "failed": [
            {"benchmark": outcome.benchmark, "error": outcome.error}
            for outcomes in rounds
            for outcome in outcomes
            if outcome.error
        ],
    }


def left_out(result: Mapping[str, Any]) -> list[str]:
    """Say what is not in the result of a run, a line for each reason. Pure."""
    lines = [f"{one['benchmark']} failed in one round: {one['error']}" for one in result["failed"]]
    if result["not_run"]:
        lines.append(f"Not run, since it was stopped before: {', '.join(result['not_run'])}.")
    if result["not_installed"]:
        lines.append(f"Not installed, and left out: {', '.join(result['not_installed'])}.")
    return lines


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def surroundings() -> dict[str, Any]:
    """The machine, and the versions of what was measured; peers that are not installed by name."""
    found = {name: _version(name) for name in ("understudy-spark", "redis", *PEERS)}
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        },
        "versions": {name: text for name, text in found.items() if text},
        "not_installed": [title for name, title in PEERS.items() if not found[name]],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
