"""The contracts of ``setup.cfg`` on imports catch what they are to catch: each of them is broken once in a copy."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("conf", "actors", "blob", "runtime", "understudy")

PLANTED = {
    "layers": ("blob/key.py", "import runtime.ids"),
    "runtime": ("runtime/jobmaster/metrics.py", "import runtime.dispatcher.endpoint"),
    "thespian": ("runtime/ids.py", "import thespian.actors"),
    "redis": ("runtime/dispatcher/endpoint.py", "import redis"),
    "pyspark": ("runtime/taskexecutor/diagnostics.py", "import pyspark"),
    "web": ("runtime/client.py", "import starlette"),
    "kubernetes": ("runtime/kubernetes/pod.py", "import kubernetes"),
    "grpc": ("runtime/rest/app.py", "import grpc"),
    "airflow": ("runtime/client.py", "import airflow"),
    "jwt": ("runtime/rest/access.py", "import jwt"),
}


def names_of_contracts() -> dict[str, str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    prefix = "importlinter:contract:"
    return {section.removeprefix(prefix): config[section]["name"] for section in config if section.startswith(prefix)}


def test_each_contract_is_broken_by_an_import_that_it_forbids(tmp_path: Path) -> None:
    names = names_of_contracts()
    assert set(names) == set(PLANTED), "a contract without a planted fault"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    for file, line in PLANTED.values():
        path = tmp_path / file
        path.write_text(f"{path.read_text()}\n{line}\n")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{len(names)} broken" in done.stdout, done.stdout
