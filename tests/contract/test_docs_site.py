"""The documentation site: every page is in it, and a link that leads nowhere fails its making."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_site_has_every_page(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        place = name.parent if name.name in ("index", "README") else name
        assert (tmp_path / "site" / place / "index.html").exists(), page
        assert f'href="{place}/"' in (tmp_path / "site" / "index.html").read_text() or str(place) == ".", page
    assert (tmp_path / "site" / "examples" / "embedded.py").exists()


def test_a_link_that_leads_nowhere_fails_it(tmp_path: Path) -> None:
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "logs.md").open("a") as page:
        page.write("\nsee [another page](nowhere.md)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
