"""What `all` has measured as one HTML file: tables, and charts in SVG; it asks for nothing from anywhere. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tests.bench.comparisons import growths
from tests.bench.suite import left_out

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --line: #cfd6dd; --good: #2b7a4b; --bad: #b4552d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe6ec; --paper: #14191f; --line: #38424d; --good: #5fbf86; --bad: #e08a5f; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 68rem; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; min-width: 34rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; }
svg { width: 100%; height: auto; display: block; min-width: 34rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.good { fill: var(--good); } .bad { fill: var(--bad); } .axis { stroke: var(--line); } .spread { stroke: var(--ink); }
code { font-size: .9em; }
"""
WIDTH, LEFT, ROW = 900, 430, 26


def html_report(result: Mapping[str, Any]) -> str:
    """The page; *result* is what `tests.bench.suite.run_all` returns."""
    figures = {name: spread["median"] for name, spread in result["figures"].items()}
    found = [(name.removeprefix("scale/"), value, bend) for name, value, bend in growths(figures)]
    bars = [
        (f"{one['what']} / {one['beside'].partition(':')[0]}", one["ratio"]["median"], one["ratio"])
        for one in result["ratios"]
    ]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Understudy: benchmarks</title>",
        f"<style>{STYLE}</style></head><body>",
        "<h1>Understudy: benchmarks</h1>",
        f"<p>{escape(_machine(result))}</p>",
        *(f"<p>{escape(line)}</p>" for line in left_out(result)),
        "<h2>Ratios</h2>",
        "<p>Ours over theirs in what is spent, on a logarithmic axis: to the left of 1 we spend less, to the right "
        "more. The thin line is from the least to the greatest of the rounds.</p>",
        f'<div class="wide">{_bars(bars)}</div>',
        _table(
            ("what", "beside", "ratio", "least", "greatest", "why, where it is lost"),
            [
                (one["what"], one["beside"], *_three(one["ratio"]), one["why"] if one["ratio"]["median"] > 1 else "")
                for one in result["ratios"]
            ],
        ),
        *_growth(found),
        "<h2>All figures</h2>",
        _table(
            ("figure", "", "median", "least", "greatest"),
            [(name, "", *_three(spread)) for name, spread in result["figures"].items()],
        ),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _growth(found: Sequence[tuple[str, float, float]]) -> list[str]:
    if not found:
        return []
    rows = [(name, "", f"{value:.2f}", f"{bend:.0f}" if bend else "nowhere", "") for name, value, bend in found]
    return [
        "<h2>Growth</h2>",
        "<p>The exponent of each cost over four sizes: 1 is linear, 2 quadratic.</p>",
        f'<div class="wide">{_exponents([(name, value) for name, value, _ in found])}</div>',
        _table(("cost", "", "exponent", "bends from", ""), rows),
    ]


def _machine(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {text}" for name, text in result["versions"].items())
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(result['began']))}, {result['took_s'] / 60:.0f} minutes, "
        f"{result['repeats']} rounds. {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}, Python {machine['python']}, load when it "
        f"began {machine['load']}. {versions}."
    )


def _three(spread: Mapping[str, float]) -> tuple[str, str, str]:
    return number(spread["median"]), number(spread["least"]), number(spread["greatest"])


def _bars(rows: Sequence[tuple[str, float, Mapping[str, float]]]) -> str:
    """Bars from 1 to the left and right, on a logarithmic axis."""
    if not rows:
        return ""
    edge = max([2.0, *(max(spread["greatest"], 1 / spread["least"]) for _, _, spread in rows)])
    span = math.log10(edge)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 60) * (math.log10(value) + span) / (2 * span)

    shapes = []
    for index, (name, value, spread) in enumerate(rows):
        y = index * ROW
        begin, end = sorted((x(1.0), x(value)))
        shapes += [
            f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(_short(name))}</text>',
            f'<rect class="{"good" if value <= 1 else "bad"}" x="{begin:.1f}" y="{y + 6}" '
            f'width="{max(end - begin, 1):.1f}" height="14"><title>{escape(name)}: {number(value)}</title></rect>',
            f'<line class="spread" x1="{x(spread["least"]):.1f}" x2="{x(spread["greatest"]):.1f}" '
            f'y1="{y + 13}" y2="{y + 13}"/>',
            f'<text x="{max(end, x(spread["greatest"])) + 5:.1f}" y="{y + 17}">{number(value)}</text>',
        ]
    height = len(rows) * ROW
    axis = f'<line class="axis" x1="{x(1.0):.1f}" x2="{x(1.0):.1f}" y1="0" y2="{height}"/>'
    return _svg(height, "Ratios, on a logarithmic axis around 1", [axis, *shapes])


def _exponents(rows: Sequence[tuple[str, float]]) -> str:
    most = max(2.0, *(value for _, value in rows), 0.0)
    scale = (WIDTH - LEFT - 60) / most
    shapes = []
    for index, (name, value) in enumerate(rows):
        y = index * ROW
        shapes += [
            f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(_short(name))}</text>',
            f'<rect class="{"good" if value <= 1.15 else "bad"}" x="{LEFT}" y="{y + 6}" '
            f'width="{max(value, 0.01) * scale:.1f}" height="14"/>',
            f'<text x="{LEFT + max(value, 0.01) * scale + 5:.1f}" y="{y + 17}">{value:.2f}</text>',
        ]
    height = len(rows) * ROW
    marks = [
        f'<line class="axis" x1="{LEFT + mark * scale:.1f}" x2="{LEFT + mark * scale:.1f}" y1="0" y2="{height}"/>'
        for mark in (1, 2)
    ]
    return _svg(height, "Exponents of growth, with lines at linear and quadratic", [*marks, *shapes])


def _svg(height: int, title: str, shapes: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 62 else name[:61] + "…"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="n"' if index in (2, 3, 4) else "" for index in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def number(value: float) -> str:
    """Three digits, or whole thousands."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
