"""``python -m tests.fuzz decoder|handshake|serializer|blob|live|client --seconds 600``: the long form of the fuzz.

Prints one line of JSON: what was run, how often, at what memory, and whether anything was found. The status is 0 when
nothing was, 1 when something was (the input is kept), 2 when the fuzzer is not installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.client import run_client
from tests.fuzz.live import run_live

ROOT = Path(__file__).resolve().parents[2]
GUIDED = ("decoder", "handshake", "serializer", "blob")
RSS_LIMIT_MB = 512
INPUT_TIMEOUT_S = 60
INPUT_SIZE = 4096
GRACE_S = 600
_STATISTIC = re.compile(r"stat::(\w+):\s+(\d+)")
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


def has_fuzzer() -> bool:
    """Whether atheris can be imported; in a process of its own, for it does not like to be imported late."""
    probe = subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True, check=False)
    return probe.returncode == 0


def run_guided(target: str, seconds: int, artifacts: Path) -> dict[str, Any]:
    """Fuzz one target for *seconds* seconds.

    Args:
        artifacts: where an input that was found is kept.

    Returns:
        ``target``, ``executions``, ``executions_per_s``, ``peak_rss_mb``, ``coverage``, ``found`` (the end of the
        fuzzer's output, or "").
    """
    module = __import__(f"tests.fuzz.{target}", fromlist=["seeds"])
    with tempfile.TemporaryDirectory(prefix="us-fuzz-") as directory:
        for number, seed in enumerate(module.seeds()):
            (Path(directory) / f"seed-{number}").write_bytes(seed)
        fuzzer = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.fuzz.guided",
                target,
                f"-max_total_time={seconds}",
                f"-rss_limit_mb={RSS_LIMIT_MB}",
                f"-timeout={INPUT_TIMEOUT_S}",
                f"-max_len={INPUT_SIZE}",
                "-print_final_stats=1",
                f"-artifact_prefix={artifacts}/{target}-",
                directory,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + GRACE_S,
            check=False,
        )
    output = fuzzer.stdout + fuzzer.stderr
    statistics = dict(_STATISTIC.findall(output))
    coverage = _COVERAGE.findall(output)
    return {
        "target": target,
        "seconds": seconds,
        "executions": int(statistics.get("number_of_executed_units", 0)),
        "executions_per_s": int(statistics.get("average_exec_per_sec", 0)),
        "peak_rss_mb": int(statistics.get("peak_rss_mb", 0)),
        "coverage": int(coverage[-1][0]) if coverage else 0,
        "found": "" if fuzzer.returncode == 0 else output[-4000:],
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*GUIDED, "live", "client"])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1, help="of the mutations of `live` and `client`")
    parser.add_argument("--artifacts", type=Path, default=Path.cwd(), help="where an input that was found is kept")
    arguments = parser.parse_args()
    if arguments.target == "live":
        result = run_live(arguments.seconds, arguments.seed)
    elif arguments.target == "client":
        halves = [run_client(kind, arguments.seconds / 2, arguments.seed) for kind in ("loop", "threads")]
        result = {"target": "client", "runs": halves, "found": "".join(half["found"] for half in halves)}
    elif not has_fuzzer():
        print("atheris is not installed: pip install 'understudy-spark[fuzz]'", file=sys.stderr)
        return 2
    else:
        result = run_guided(arguments.target, arguments.seconds, arguments.artifacts)
    print(json.dumps(result))
    return 1 if result["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
