"""`job explain`, in process: it needs no cluster."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime.cluster.cli import cli
from tests.job_files import PIPELINE, TRIVIAL, write_job
from tests.json_output import parsed

TALKATIVE = """\
from runtime.api import Parameter, Pipeline, parse_parameters

print("imported")

def work(ctx):
    raise AssertionError("explained, not run")

def pipeline(argv):
    p = Pipeline("talkative", parse_parameters(argv, Parameter("rows", int, 3)))
    p.sink("work", work, retries=-1 if p.parameters["rows"] < 0 else 1)
    return p
"""


def explain(*words: str) -> Result:
    return CliRunner().invoke(cli, ["job", "explain", *words])


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write_job(tmp_path, TALKATIVE, "talkative_job.py"))


def test_what_the_file_prints_is_no_part_of_what_is_explained(file: str) -> None:
    done = explain("--json", file, "--", "--rows", "7")
    assert done.exit_code == 0, done.output
    assert done.stderr == "imported\n"
    plan = parsed(("job", "explain"), done.stdout)
    assert plan["parameters"] == {"rows": 7}
    assert [(vertex["name"], vertex["retries"]) for vertex in plan["vertices"]] == [("work", 1)]
    root = ElementTree.fromstring(explain("--format", "svg", file).stdout)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert explain("--format", "dot", file).stdout.startswith('digraph "talkative" {\n')
    assert explain(file).stdout.startswith("pipeline talkative: 1 vertex in 1 task\n  rows = 3\n")


def test_mistakes_are_one_line(file: str, tmp_path: Path) -> None:
    wrong = explain(file, "--", "--row", "7")
    assert wrong.exit_code == 2
    assert wrong.stderr == "imported\nerror: unknown parameter --row: did you mean --rows?\n"
    invalid = explain(file, "--", "--rows", "-1")
    assert invalid.exit_code == 1
    assert "error: vertex 'work' of job 'talkative' has -1 retries: use 0 to 100\n" in invalid.stderr
    missing = explain(str(tmp_path / "none.py"))
    assert missing.exit_code == 1
    assert "there is no job file" in str(missing.exception)


def test_a_script_is_one_vertex_and_is_not_run(tmp_path: Path) -> None:
    done = explain(str(write_job(tmp_path, TRIVIAL, "trivial.py")))
    assert done.stdout == "script trivial: 1 vertex in 1 task\n\ntask 1: trivial\n  trivial (script)\n"


def test_the_two_tasks_of_a_pipeline_with_a_blocking_edge(tmp_path: Path) -> None:
    done = explain(str(write_job(tmp_path, PIPELINE, "squares_job.py")), "--", "10", "out")
    assert "task 1: numbers -> squares\n" in done.stdout
    assert "    reads squares of task 1: forward, blocking\n" in done.stdout
