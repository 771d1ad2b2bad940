"""Files that are made from the code are up to date."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import understudy
from tests.generated import FILES, documentation, public_members


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_that_is_made_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == FILES[path](), "run python -m tests.generated --write"


def test_the_api_reference_has_exactly_the_public_names() -> None:
    page = next(path for path in FILES if path.name == "api.md").read_text("utf-8")
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(understudy.__all__)


def test_every_public_name_and_method_is_documented() -> None:
    public = {name: getattr(understudy, name) for name in understudy.__all__}
    bare = [name for name, value in public.items() if not documentation(name, value)]
    bare += [
        f"{name}.{member}"
        for name, value in public.items()
        if isinstance(value, type)
        for member, found in public_members(value)
        if not inspect.getdoc(found)
    ]
    assert bare == []
