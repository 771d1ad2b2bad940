"""Whether a file is a script or a pipeline, without running it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.job_file import JobFileError, build_pipeline, kind_of, read_job_file
from runtime.jobgraph.errors import ParameterUsageError
from runtime.jobgraph.job_graph import JobKind

OURS = b"from understudy import Pipeline\n"
NEAR = "runs as a script: its function pipeline() does not name understudy's Pipeline"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (OURS + b"def pipeline(argv) -> Pipeline:\n    raise SystemExit\n", JobKind.PIPELINE),
        (OURS + b"def pipeline(argv):\n    p = Pipeline('x')\n    return p\n", JobKind.PIPELINE),
        (OURS + b"@print\ndef pipeline(argv) -> 'Pipeline': pass\n", JobKind.PIPELINE),
        (b"import understudy as us\ndef pipeline(argv): return us.Pipeline('x')\n", JobKind.PIPELINE),
        (b"import understudy\ndef pipeline(argv) -> 'understudy.Pipeline': pass\n", JobKind.PIPELINE),
        (b"import runtime.api\ndef pipeline(argv) -> runtime.api.Pipeline: pass\n", JobKind.PIPELINE),
        (b"from runtime.api import *\ndef pipeline(argv): return Pipeline('x')\n", JobKind.PIPELINE),
        (b"def pipeline(argv):\n    from understudy import Pipeline as P\n    return P('x')\n", JobKind.PIPELINE),
        (b"try:\n    from understudy import Pipeline\nexcept ImportError: pass\ndef pipeline(a: Pipeline): pass\n",
         JobKind.PIPELINE),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n" + OURS + b"def pipeline(argv) -> Pipeline: pass\n",
         JobKind.PIPELINE),
        (b"def pipeline(df):\n    return df.dropna()\n", JobKind.SCRIPT),
        (b"from pyspark.ml import Pipeline\ndef pipeline() -> Pipeline:\n    return Pipeline(stages=[])\n",
         JobKind.SCRIPT),
        (OURS + b"from sklearn.pipeline import Pipeline\ndef pipeline(argv) -> Pipeline: pass\n", JobKind.SCRIPT),
        (OURS + b"def pipeline(argv):\n    from pyspark.ml import Pipeline\n    return Pipeline()\n", JobKind.SCRIPT),
        (OURS + b"class Steps:\n    def pipeline(self): return Pipeline('x')\n", JobKind.SCRIPT),
        (b"import os\nos.abort()\n", JobKind.SCRIPT),
        (b"pipeline = print\n", JobKind.SCRIPT),
        (b"class pipeline: pass\n", JobKind.SCRIPT),
        (b"def main():\n    def pipeline(argv): pass\n", JobKind.SCRIPT),
        (b"", JobKind.SCRIPT),
    ],
)  # fmt: skip
def test_a_pipeline_is_a_file_whose_function_names_our_class(source: bytes, kind: JobKind, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(source)
    assert kind_of(file) is kind


@pytest.mark.parametrize(
    ("source", "is_near"),
    [
        (b"def pipeline(argv):\n    return build(argv)\n", True),
        (b"from understudy import Context\nfrom mine import build\ndef pipeline(args): return build(args)\n", True),
        (b"def pipeline(df):\n    return df\n", False),
        (b"from pyspark.ml import Pipeline\ndef pipeline(): return Pipeline()\n", False),
        (OURS + b"def pipeline(argv) -> Pipeline: pass\n", False),
        (b"print(1)\n", False),
    ],
)
def test_one_line_says_why_what_may_be_meant_as_a_pipeline_is_a_script(
    source: bytes, is_near: bool, tmp_path: Path
) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(source)
    told: list[str] = []
    kind_of(file, told.append)
    assert [NEAR in line and "--kind pipeline" in line for line in told] == [True] * is_near


def test_what_the_user_says_a_file_is_it_is(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(OURS + b"def pipeline(argv):\n    raise SystemExit('it was run')\n    return Pipeline('x')\n")
    told: list[str] = []
    assert read_job_file(file, [], kind=JobKind.SCRIPT, tell=told.append).kind is JobKind.SCRIPT
    file.write_bytes(b"from understudy import Pipeline as P\nbuild = P\ndef show(ctx): pass\n"
                     b"def pipeline(argv):\n    p = build('mine')\n    p.sink('s', show)\n    return p\n")  # fmt: skip
    assert read_job_file(file, [], tell=told.append).kind is JobKind.SCRIPT
    assert len(told) == 1
    assert read_job_file(file, [], kind=JobKind.PIPELINE, tell=told.append).name == "mine"
    assert len(told) == 1, "who says what it is needs no line"
    file.write_bytes(b"print(1)\n")
    with pytest.raises(JobFileError, match=r"job\.py has no function pipeline\(\)"):
        read_job_file(file, [], kind=JobKind.PIPELINE)


@pytest.mark.parametrize("source", [b"def pipeline(\n", b"x = '\xff'\n", b"a\0b\n", b"\x80"])
def test_what_is_no_python_is_said_with_its_place(source: bytes, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(source)
    with pytest.raises(JobFileError, match=r"job\.py is not valid Python"):
        kind_of(file)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("sys.exit(3)", "ended itself with status 3 before"),
        ("sys.exit('no input')", "ended itself with no input before"),
    ],
)
def test_a_pipeline_that_ends_itself_is_an_error(body: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(OURS + f"import sys\ndef pipeline(argv) -> Pipeline:\n    {body}\n".encode())
    with pytest.raises(JobFileError, match=told) as error:
        read_job_file(file, [])
    assert str(file) in str(error.value)
    assert str(error.value).endswith("; nothing was submitted")
    assert "line 4, in pipeline" in error.value.details


def test_a_pipeline_that_ends_itself_without_an_error_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(OURS + b"import sys\ndef pipeline(argv) -> Pipeline:\n    sys.exit()\n")
    with pytest.raises(JobFileError, match=r"ended itself with status 0 before .*; nothing was submitted$"):
        read_job_file(file, ["--rows", "3"])


def test_a_pipeline_may_read_its_arguments_with_argparse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(
        OURS + b"import argparse\ndef pipeline(argv) -> Pipeline:\n    argparse.ArgumentParser().parse_args(argv)\n"
    )
    with pytest.raises(SystemExit) as ended:
        read_job_file(file, ["--help"])
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
    with pytest.raises(ParameterUsageError, match="rejects its arguments"):
        read_job_file(file, ["--unknown"])


def test_a_directory_is_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="is a directory, not a job file") as error:
        kind_of(tmp_path)
    assert error.value.remedy == "give the path of a file in it"


def test_a_pipeline_is_built_of_the_text_that_its_file_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "job.py"
    for name in ("one", "two"):
        file.write_text(f"def pipeline(args):\n    raise ValueError('{name}')\n")
        os.utime(file, (1, 1))  # so a cache of its byte code would count as that of this text
        with pytest.raises(JobFileError, match=f"ValueError: {name}"):
            build_pipeline(file, ())
    assert list(tmp_path.iterdir()) == [file]
