"""For mkdocs: the examples, to which pages lead, are a part of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Take in the examples."""
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.is_file() and path.suffix != ".pyc":
            name = str(path.relative_to(ROOT))
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead to them: in the checkout they stand beside the pages' directory, in the site in it."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({up}../examples/", f"]({up}examples/")
