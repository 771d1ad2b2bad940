"""Every Python block of the actors' documentation is a script that prints what the text block behind it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

DOCUMENTS = Path(__file__).parents[2] / "docs" / "actors"
TIMEOUT_S = PATIENCE_S

COMPLAINTS = re.compile("never retrieved|never awaited|Exception ignored|was destroyed|ResourceWarning|CRITICAL")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[object]:
    """A parameter for each example: the document, the script, what it has to print."""
    found: list[object] = []
    for document in sorted(DOCUMENTS.glob("*.md")):
        blocks = _BLOCK.findall(document.read_text())
        for number, (language, script) in enumerate(blocks):
            if language == "python":
                follower = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
                printed = follower[1] if follower[0] == "text" else None
                found.append(pytest.param(script, printed, id=f"{document.stem}-{number // 2 + 1}"))
    return found


@pytest.mark.parametrize(("script", "printed"), examples())
def test_example(script: str, printed: str | None, tmp_path: Path) -> None:
    """An example runs as a user would run it, prints what the page says, and leaves no complaint and no process."""
    assert printed is not None, "a text block with what the example prints has to follow it"
    file = tmp_path / "example.py"
    file.write_text(script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    environment["HOME"] = environment["TMPDIR"] = str(tmp_path)
    environment["EXAMPLE_OF"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    assert not COMPLAINTS.search(done.stderr), done.stderr
    assert processes_with(str(tmp_path)) == []


def test_every_page_is_listed() -> None:
    """The first page leads to every other one, and every page has an example."""
    pages = {document.name for document in DOCUMENTS.glob("*.md")}
    first = (DOCUMENTS / "README.md").read_text()
    assert set(re.findall(r"^\| \[[^]]+\]\(([a-z-]+\.md)\)", first, re.MULTILINE)) == pages - {"README.md"}
    for page in pages:
        text = (DOCUMENTS / page).read_text()
        assert "```python\n" in text, f"{page} has no example"
        for link in re.findall(r"\]\(([a-z-]+\.md)\)", text):
            assert link in pages, f"{page} leads to {link}, which is not there"


def processes_with(mark: str) -> list[int]:
    """The processes that have inherited the example's environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"EXAMPLE_OF={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue  # somebody else's, or it has ended meanwhile
    return found
