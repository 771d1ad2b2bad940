"""``python -m tests.bench page FILE``: what `all` has written, as the Markdown of docs/performance.md."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.comparisons import growths
from tests.bench.html_report import number
from tests.bench.suite import left_out

TEXTS = Path(__file__).parent


def page(result: Mapping[str, Any]) -> str:
    """The page; *result* is what `tests.bench.suite.run_all` returns."""
    machine, versions = result["machine"], result["versions"]
    figures = {name: spread["median"] for name, spread in result["figures"].items()}
    benchmarks = dict.fromkeys(name.partition("/")[0] for name in figures)
    gib = machine["memory_bytes"] / 2**30
    parts = [
        (TEXTS / "page_head.md").read_text(),
        "## The machine\n",
        f"{machine['cores']} cores ({machine['processor']}), {gib:.0f} GiB, {machine['system']}, "
        f"Python {machine['python']}; "
        f"load when it began: {machine['load']}. "
        + ", ".join(f"{name} {text}" for name, text in versions.items())
        + ". "
        f"{result['repeats']} round(s) of {', '.join(benchmarks)}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime(result['began']))}, "
        f"{result['took_s'] / 60:.0f} minutes.\n",
        *(f"{line}\n" for line in left_out(result)),
        "## Ratios\n",
        _table(
            ("what", "beside", "ratio", "least - greatest"),
            [
                (one["what"], one["beside"], number(one["ratio"]["median"]), _range(one["ratio"]))
                for one in result["ratios"]
            ],
        ),
        "## Where we lose, and why\n",
        _lost(result),
        *_scale(figures),
        "## All figures\n",
        "Medians over the rounds, with the least and the greatest.\n",
        _table(
            ("figure", "median", "least - greatest"),
            [(f"`{name}`", number(spread["median"]), _range(spread)) for name, spread in result["figures"].items()],
        ),
    ]
    return "\n".join(parts)


def _lost(result: Mapping[str, Any]) -> str:
    lost = [one for one in result["ratios"] if one["ratio"]["median"] > 1.05]
    if not lost:
        return "Nowhere in this run.\n"
    rows = [(one["what"], one["beside"], number(one["ratio"]["median"]), one["why"] or "not known") for one in lost]
    return _table(("what", "beside", "ratio", "why"), rows)


def _scale(figures: Mapping[str, float]) -> list[str]:
    prefix = "scale/"
    own = {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}
    if not own:
        return []
    exponents = [
        (f"`{name}`", f"{value:.2f}", f"{bend:.0f}" if bend else "nowhere") for name, value, bend in growths(own)
    ]
    rest = [
        (f"`{name}`", number(value))
        for name, value in own.items()
        if not name.endswith(("_growth_exponent", "_bends_at"))
    ]
    return [
        (TEXTS / "page_scale.md").read_text(),
        _table(("cost", "exponent", "bends from"), exponents),
        _table(("figure", "value"), rest),
    ]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def _range(spread: Mapping[str, float]) -> str:
    return f"{number(spread['least'])} - {number(spread['greatest'])}"
