"""The benchmarks: ``python -m tests.bench NAME --json FILE`` (``-`` for standard output).

Each prints a table for people, on standard error, and writes one JSON object whose ``figures`` maps names to numbers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

BENCHMARKS = {
    "blob": "tests.bench.blob",
    "checkpoint": "tests.bench.checkpoint",
    "failover": "tests.bench.failover",
    "rest": "tests.bench.rest",
    "rpc": "tests.bench.rpc",
    "scale": "tests.bench.scale",
    "submit": "tests.bench.submit",
}


def main() -> int:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS))
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - for standard output")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument(
        "--kills", type=int, default=6, help="of checkpoint: how often the cluster is killed (default 6)"
    )
    parser.add_argument("--size", type=float, default=1.0, help="of scale: a part of the whole (default 1)")
    arguments = parser.parse_args()
    module = importlib.import_module(BENCHMARKS[arguments.name])
    options = {"checkpoint": {"kills": arguments.kills}, "scale": {"size": arguments.size}}
    figures, rows = module.run(arguments.rounds, **options.get(arguments.name, {}))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}", file=sys.stderr)
    result = {
        "benchmark": arguments.name,
        "figures": figures,
        "rounds": arguments.rounds,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("understudy-spark", "pyspark", "thespian", "redis")},
    }
    if arguments.json == "-":
        print(json.dumps(result, indent=2))
    elif arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
