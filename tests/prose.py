"""The prose linter: ``python -m tests.prose`` reads pages, docstrings, comments, help texts, errors and log lines.

It reports words and constructions of `tests/prose.txt` and sentences of more than 25 words. A page or package that was
written before the linter has an allowance in `tests/prose_allowed.json`: so many findings and no more. ``--write`` sets
the allowances to what is found; a commit that raises one has to say why. ``--show PLACE`` prints its findings.

    python -m tests.prose                        # what `make check` runs
    python -m tests.prose --show docs/blob.md    # what is left to rewrite there
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = Path(__file__).with_name("prose.txt")
ALLOWED = Path(__file__).with_name("prose_allowed.json")
MAX_WORDS = 25
PACKAGES = ("actors", "blob", "conf", "runtime", "understudy", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "DESIGN.md")
GENERATED = tuple(f"docs/{page}.md" for page in ("api", "configuration", "json", "performance", "reliability"))
"""Pages whose text comes from docstrings and figures, which are read where they are written."""

_FENCED = r"^ *```.*?^ *```[^\S\n]*$"
_INDENTED = r"(?<=\n)[^\S\n]*\n(?: {4,}[^\n]*\n|[^\S\n]*\n)*? {4,}[^\n]*(?=\n\s*\n|\n {0,3}\S|\s*\Z)"
"""Lines behind an empty one; arguments in a docstring follow their heading without one."""
_CODE = re.compile(rf"{_FENCED}|{_INDENTED}|<!--.*?-->|</?[a-z][^>\n]*>", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"``[^`]+``|`[^`\n]+(?:\n[^`\n]+)?`|\"[^\"\n]{3,}\"")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(
    r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9`\x00])|\n\s*\n|[^\S\n]*\n(?=\s*(?:[-*|#>]|\d+\.) )|: *\n| \| |;\s"
    r"|\n(?= +[\w*, ]+: )"  # an entry of Args, Attributes or Raises
)
_COMMENT = re.compile(r"(?:^|\s\s)\s*# (?!noqa|type:|pragma)(.+)$")
_WORD = re.compile(r"[\w\x00][\w'.,/-]*")


@dataclass(frozen=True)
class Rule:
    """One line of `prose.txt`."""

    pattern: re.Pattern[str]
    advice: str
    docstring: bool = False


@dataclass(frozen=True)
class Finding:
    """A place to rewrite.

    Attributes:
        file: path below the root of the project.
        line: counted from 1.
        text: the words that were found.
        advice: what to write instead.
    """

    file: str
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}: {self.advice}"


@dataclass(frozen=True)
class Passage:
    """Prose and where it begins; *docstring* says that it is a whole docstring."""

    line: int
    text: str
    docstring: bool = False


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of `prose.txt`. Raises ValueError for a line without advice."""
    found = []
    for line in RULES.read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern, arrow, advice = line.rpartition(" -> ")
        if not arrow:
            raise ValueError(f"{RULES.name}: no advice in {line!r}")
        docstring = pattern.startswith("docstring:")
        flags = re.MULTILINE if docstring else re.IGNORECASE | re.MULTILINE
        found.append(Rule(re.compile(pattern.removeprefix("docstring:"), flags), advice, docstring))
    return tuple(found)


@cache
def _any_rule() -> re.Pattern[str]:
    """All rules for running text in one expression: most passages have none, and are done with it."""
    return re.compile(
        "|".join(f"(?:{rule.pattern.pattern})" for rule in rules() if not rule.docstring), re.IGNORECASE | re.MULTILINE
    )


def check(file: str, passage: Passage) -> Iterator[Finding]:
    """Find what to rewrite in one passage."""
    text = _LINK.sub(lambda link: _blank(link, link[1]), _SPAN.sub(_blank, passage.text))

    def finding(at: int, words: str, advice: str) -> Finding:
        return Finding(file, passage.line + text.count("\n", 0, at), " ".join(words.split()), advice)

    flat = text.replace("\n", " ")  # a phrase may go over the end of a line
    if _any_rule().search(flat):
        for rule in rules():
            if not rule.docstring:
                yield from (finding(match.start(), match[0], rule.advice) for match in rule.pattern.finditer(flat))
    if passage.docstring:
        for rule in rules():
            if rule.docstring and (match := rule.pattern.match(text)):
                yield finding(0, match[0], rule.advice)
    begin = 0
    for end in [*(match.start() for match in _END.finditer(text)), len(text)]:
        count = len(_WORD.findall(text, begin, end))
        if count > MAX_WORDS:
            at = begin + len(text[begin:end]) - len(text[begin:end].lstrip(" \n;|:"))
            yield finding(at, text[at : at + 40], f"a sentence of {count} words; write at most {MAX_WORDS}")
        begin = end


def _blank(match: re.Match[str], shown: str = "\0") -> str:
    """Replace code by one word, and keep its line breaks."""
    return shown.replace("\n", " ") + "\n" * match[0].count("\n")


def passages_of_page(text: str) -> Iterator[Passage]:
    """Yield the prose of a page in Markdown: everything but code."""
    yield Passage(1, _CODE.sub(_lines_of, text))


def passages_of_module(text: str) -> Iterator[Passage]:
    """Yield the docstrings, comments and texts of a Python module."""
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for number, statement in enumerate(body):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    value = statement.value
                    if isinstance(value.value, str):
                        docstrings.add(id(value))
                        first = number == 0 and not isinstance(node, ast.If | ast.With | ast.Try | ast.For)
                        yield Passage(
                            value.lineno, _CODE.sub(_lines_of, inspect.cleandoc(value.value)), docstring=first
                        )
        elif isinstance(node, ast.JoinedStr):
            docstrings.update(id(part) for part in node.values)
            shown = "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
            if " " in shown:
                yield Passage(node.lineno, shown)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and node.value.count(" ") > 2
        ):
            yield Passage(node.lineno, node.value)
    yield from _comments(text)


def _lines_of(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _comments(text: str) -> Iterator[Passage]:
    """Yield comments; those on lines that follow each other are one."""
    begin, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        match = _COMMENT.search(line) if "# " in line else None
        if parts and (match is None or number != begin + len(parts)):
            yield Passage(begin, "\n".join(parts))
            parts = []
        if match is not None:
            begin = begin if parts else number
            parts.append(match[1])
    if parts:
        yield Passage(begin, "\n".join(parts))


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the pages and modules whose prose is read."""
    yield from (root / page for page in PAGES)
    yield from sorted(path for path in (root / "docs").rglob("*.md") if str(path.relative_to(root)) not in GENERATED)
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def findings_of(path: Path, root: Path = ROOT) -> list[Finding]:
    """Return what to rewrite in one file."""
    text = path.read_text("utf-8")
    passages = passages_of_page(text) if path.suffix == ".md" else passages_of_module(text)
    return [finding for passage in passages for finding in check(str(path.relative_to(root)), passage)]


def place_of(file: str) -> str:
    """Return what an allowance is for: a page, or a top-level package, so that a module may move in it."""
    return file if file.endswith(".md") else file.partition("/")[0]


def judge(found: Sequence[Finding], allowed: dict[str, int]) -> dict[str, list[Finding]]:
    """Return the findings of each place that has more than its allowance."""
    by_place = defaultdict[str, list[Finding]](list)
    for finding in found:
        by_place[place_of(finding.file)].append(finding)
    return {place: some for place, some in by_place.items() if len(some) > allowed.get(place, 0)}


def main() -> int:
    """Return the exit status: 1 when a place has more findings than its allowance."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Find prose that is hard to read.")
    parser.add_argument("--show", metavar="PLACE", help="print all findings of a page or package")
    parser.add_argument("--write", action="store_true", help="set the allowances to what is found")
    arguments = parser.parse_args()
    found = [finding for path in files() for finding in findings_of(path)]
    allowed: dict[str, int] = json.loads(ALLOWED.read_text("utf-8"))
    if arguments.show:
        shown = [finding for finding in found if finding.file.startswith(arguments.show)]
        sys.stdout.writelines(f"{finding}\n" for finding in shown)
        return 0
    if arguments.write:
        counts = defaultdict[str, int](int)
        for finding in found:
            counts[place_of(finding.file)] += 1
        ALLOWED.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n", "utf-8")
        return 0
    over = judge(found, allowed)
    for place, some in over.items():
        sys.stderr.writelines(f"{finding}\n" for finding in some)
        sys.stderr.write(f"{place}: {len(some)} findings, {allowed.get(place, 0)} allowed (tests/prose_allowed.json)\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
