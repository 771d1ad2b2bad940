"""The command is `understudy`, in every text that a user reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runtime.cluster.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "blob", "conf", "runtime", "understudy")
OTHER_NAME = re.compile(r"-m\s+runtime\.cluster(?![.\w])")
SAID_ONCE = "docs/command-line.md"
_GROUPS = [name for name, command in cli.commands.items() if isinstance(command, click.Group)]
_SINGLE = "|".join(name for name in cli.commands if name not in _GROUPS)
A_COMMAND = re.compile(rf"`(?:(?:{_SINGLE})|(?:{'|'.join(_GROUPS)}) [^`]+)(?: [^`]*)?`")


def texts() -> Iterator[Path]:
    """What is read by users and by those who read the code, but for what is generated and what has been released."""
    for folder, pattern in (*((package, "**/*.py") for package in PACKAGES), ("examples", "**/*.py")):
        yield from (ROOT / folder).glob(pattern)
    yield from (ROOT / "docs").glob("**/*.md")
    yield from (ROOT / name for name in ("Makefile", "Containerfile", "CONTRIBUTING.md", "DESIGN.md"))


def test_the_other_way_to_start_it_is_said_once() -> None:
    said = {str(path.relative_to(ROOT)): len(OTHER_NAME.findall(path.read_text())) for path in texts()}
    assert {path: times for path, times in said.items() if times} == {SAID_ONCE: 1}


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of a module that are no docstrings, each with its line; fields of an f-string are left out."""
    nodes = list(ast.walk(tree))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in nodes if isinstance(node, ast.JoinedStr)
    }
    for node in nodes:
        if id(node) in statements | parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            shown = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(shown)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_message_that_names_a_command_says_of_which_program(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in (ROOT / package).glob("**/*.py")
        for line, text in messages(ast.parse(path.read_text()))
        if A_COMMAND.search(text) and "`understudy " not in text
    ]
    assert found == []


def test_what_the_searches_are_for_is_found() -> None:
    assert OTHER_NAME.search("python3 -m runtime.cluster stop")
    assert not OTHER_NAME.search("python -m runtime.cluster.container probe")
    module = ast.parse('"""`stop` here."""\nraise Error(f"`job info {x}` shows it")\nsay("`stopped` is not a command")')
    assert [text for _, text in messages(module) if A_COMMAND.search(text)] == ["`job info X` shows it"]
