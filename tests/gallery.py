"""The notebooks of `examples/notebooks`, with their outputs.

``python -m tests.gallery --write`` executes them on the cluster that is configured, and stores the outputs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.waiting import PATIENCE_S

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def executed(path: Path, directory: str) -> Any:
    """Return the notebook as it is after its cells have run in a kernel whose directory is *directory*."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": directory}}
    NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times
    notebook.metadata.pop("language_info", None)
    return notebook


def stable_outputs(notebook: Any) -> list[list[str]]:
    """Return what each cell shows as text, without the ids of jobs."""
    shown = [
        [str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in cell.get("outputs", ())]
        for cell in notebook.cells
    ]
    return [[re.sub(r"[0-9a-f]{32}", "ID", text) for text in texts] for texts in shown]


def main() -> None:
    """Execute all notebooks, and store them with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="store the outputs")
    options = parser.parse_args()
    for path in NOTEBOOKS:
        notebook = executed(path, "/tmp")  # a directory whose name may stand in an output
        if options.write:
            nbformat.write(notebook, path)
        print(path.name, sum(map(len, stable_outputs(notebook))), "outputs")  # noqa: T201


if __name__ == "__main__":
    main()
