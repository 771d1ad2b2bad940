"""Figures that README and the pages quote, as in ``13 s<!-- submit/spark_submit_s -->``: those of docs/performance.md.

``python -m tests.bench.quoted`` writes the page's figures into the texts that quote others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUOTED = re.compile(r"([\d.,]*\d)( ?(?:s|ms|%)?)<!-- ([\w/.]+) -->")
_ROW = re.compile(r"^\| `([\w/.]+/[\w.]+)` \| ([\d.,]+) \|", re.MULTILINE)


def measured() -> dict[str, str]:
    """Return the median of each figure, as docs/performance.md shows it."""
    return dict(_ROW.findall((ROOT / "docs" / "performance.md").read_text("utf-8")))


def quoted_figures(text: str, figures: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return name, quoted value and measured value of each quoted figure that differs; "" for one that is unknown."""
    return [
        (name, value, figures.get(name, ""))
        for value, _, name in QUOTED.findall(text)
        if value != figures.get(name, "")
    ]


def pages() -> Iterator[Path]:
    """Yield the texts that may quote figures."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def differing() -> list[tuple[str, str, str, str]]:
    """Return page, name, quoted and measured value of all figures that differ."""
    figures = measured()
    return [(page.name, *figure) for page in pages() for figure in quoted_figures(page.read_text("utf-8"), figures)]


def main() -> int:
    """Write the measured figures; return 1 if a page quotes one that was not measured."""
    figures = measured()
    for page in pages():
        text = page.read_text("utf-8")
        new = QUOTED.sub(lambda found: f"{figures.get(found[3], found[1])}{found[2]}<!-- {found[3]} -->", text)
        if new != text:
            page.write_text(new, "utf-8")
    return 1 if differing() else 0


if __name__ == "__main__":
    sys.exit(main())
