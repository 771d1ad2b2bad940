"""Files that are made from the code are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generated import FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_that_is_made_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == FILES[path](), "run python -m tests.generated --write"
