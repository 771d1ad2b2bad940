"""Whether a file is a script or a pipeline, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.job_file import JobFileError, kind_of
from runtime.jobgraph.job_graph import JobKind


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (b"def pipeline(argv):\n    raise SystemExit\n", JobKind.PIPELINE),
        (b"@print\ndef pipeline(argv): pass\n", JobKind.PIPELINE),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\ndef pipeline(argv): pass\n", JobKind.PIPELINE),
        (b"import os\nos.abort()\n", JobKind.SCRIPT),
        (b"pipeline = print\n", JobKind.SCRIPT),
        (b"class pipeline: pass\n", JobKind.SCRIPT),
        (b"def main():\n    def pipeline(argv): pass\n", JobKind.SCRIPT),
        (b"", JobKind.SCRIPT),
    ],
)
def test_the_kind_is_told_by_what_the_file_defines(source: bytes, kind: JobKind, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(source)
    assert kind_of(file) is kind


@pytest.mark.parametrize("source", [b"def pipeline(\n", b"x = '\xff'\n", b"a\0b\n", b"\x80"])
def test_what_is_no_python_is_said_with_its_place(source: bytes, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(source)
    with pytest.raises(JobFileError, match=r"job\.py is not valid Python"):
        kind_of(file)
