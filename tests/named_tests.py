"""Tests as documents name them: ``unit/test_x.py::test_y``, from this directory."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMED = re.compile(r"`((?:\w+/)+test_\w+\.py::[Tt]est\w+)`")


@cache
def tests_of(file: Path) -> frozenset[str]:
    """The names of the tests that pytest collects from a file, hypothesis' machines (``TestX = ...``) among them; none
    where there is no such file."""
    if not file.is_file():
        return frozenset()
    body = ast.parse(file.read_bytes()).body
    found = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if re.match("test_|Test[A-Z]", name))


def is_test(named: str) -> bool:
    """Whether there is a test of that name."""
    file, _, name = named.partition("::")
    return name in tests_of(HERE / file)
