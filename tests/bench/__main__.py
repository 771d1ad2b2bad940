"""The benchmarks: ``python -m tests.bench NAME --json FILE`` (``-`` for standard output).

Each prints a table for people, on standard error, and writes one JSON object whose ``figures`` maps names to numbers.
``all`` runs them all beside their floors and peers, ``page`` makes docs/performance.md of that, and ``guard`` says
whether something has become much dearer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.bench import guard, suite
from tests.bench.html_report import html_report
from tests.bench.page import page

BENCHMARKS = {
    "blob": "tests.bench.blob",
    "checkpoint": "tests.bench.checkpoint",
    "connect": "tests.bench.connect",
    "failover": "tests.bench.failover",
    "first_contact": "tests.bench.first_contact",
    "insight": "tests.bench.insight",
    "rest": "tests.bench.rest",
    "rpc": "tests.bench.rpc",
    "scale": "tests.bench.scale",
    "simulation": "tests.bench.simulation",
    "state": "tests.bench.state",
    "submit": "tests.bench.submit",
    "upgrade": "tests.bench.upgrade",
}


APART = frozenset({"connect", "first_contact", "insight", "simulation", "state", "upgrade"})
"""Those that `all` runs only if they are named: they take long, and have no floor or peer beside them."""


def main() -> int:
    """Run what the command line says."""
    # As an interrupt: what was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in BENCHMARKS:
        one = commands.add_parser(name, help=f"the benchmark of tests/bench/{name}")
        one.add_argument("--json", metavar="FILE", help="write the figures there; - for standard output")
        one.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
        if name == "checkpoint":
            one.add_argument("--kills", type=int, default=6, help="how often the cluster is killed (default 6)")
        if name == "connect":
            one.add_argument("--kills", type=int, default=2, help="how many drivers and masters are killed (default 2)")
        if name == "first_contact":
            one.add_argument("--examples", metavar="FILE", help="an earlier result of `python -m tests.spark_examples`")
        if name == "simulation":
            one.add_argument("--minutes", type=float, default=60.0, help="minutes of planted faults (default 60)")
            one.add_argument("--trials", metavar="FILE", help="planted faults of an earlier run, which is continued")
        if name == "state":
            one.add_argument(
                "--kills", type=int, default=3, help="kills within rescales (default 3; the long form: 50)"
            )
            one.add_argument("--cutovers", type=int, default=3, help="upgrades (default 3; the long form: 100)")
            one.add_argument("--keys", type=int, default=200_000, help="keys of the large state (default 200000)")
        if name == "upgrade":
            more = "upgrades, there and back in turn: --rounds by another name"
            one.add_argument("--orders", dest="rounds", type=int, default=argparse.SUPPRESS, help=more)
        if name == "scale":
            one.add_argument("--size", type=float, default=1.0, help="a part of the whole (default 1)")
    everything = commands.add_parser("all", help="all of them, beside their floors and peers")
    everything.add_argument("--json", metavar="FILE", help="write the figures there; - for standard output")
    everything.add_argument("--html", metavar="FILE", help="write a page with charts there")
    everything.add_argument("--repeats", type=int, default=3, help="how often all of them run (default 3)")
    everything.add_argument("--rounds", type=int, default=5, help="measured rounds within each (default 5)")
    everything.add_argument("--only", nargs="+", choices=sorted(BENCHMARKS), help="these of them")
    pages = commands.add_parser("page", help="docs/performance.md, from what `all --json FILE` wrote")
    pages.add_argument("file", metavar="FILE")
    guarding = commands.add_parser("guard", help="whether what was measured keeps within tests/bench/bounds.json")
    guarding.add_argument("--counts-only", action="store_true", help="leave out the ratios of times")
    arguments = parser.parse_args()
    if arguments.name == "all":
        return _all(arguments)
    if arguments.name == "page":
        print(page(json.loads(Path(arguments.file).read_text())), end="")
        return 0
    if arguments.name == "guard":
        return guard.main(counts_only=arguments.counts_only)
    return _one(arguments)


def _one(arguments: argparse.Namespace) -> int:
    module = importlib.import_module(BENCHMARKS[arguments.name])
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in ("kills", "size", "examples", "minutes", "trials", "cutovers", "keys")
    }
    figures, rows = module.run(arguments.rounds, **options)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}", file=sys.stderr)
    found = {"benchmark": arguments.name, "figures": figures, "rounds": arguments.rounds}
    _write(arguments.json, found | suite.surroundings())
    return 0


def _all(arguments: argparse.Namespace) -> int:
    names = arguments.only or [name for name in BENCHMARKS if name not in APART]

    def keep(so_far: dict[str, Any]) -> None:
        if arguments.json != "-":
            _write(arguments.json, so_far)
        if arguments.html:
            Path(arguments.html).write_text(html_report(so_far))

    result = suite.run_all(names, arguments.repeats, ("--rounds", str(arguments.rounds)), keep)
    if arguments.json == "-":
        _write(arguments.json, result)
    for one in result["ratios"]:
        print(f"{one['ratio']['median']:8.3g}  {one['what']} / {one['beside']}", file=sys.stderr)
    return 1 if result["failed"] else 0


def _write(file: str | None, result: dict[str, Any]) -> None:
    if file == "-":
        print(json.dumps(result, indent=2))
    elif file:
        Path(file).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
