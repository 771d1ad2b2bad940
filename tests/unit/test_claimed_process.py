"""A started process begins once it is noted: a starter that is killed in between leaves none that nobody knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.environment.directory import ClusterDirectory
from tests.cluster_harness import ROOT, await_value
from tests.waiting import PATIENCE_S

# Starts the module `noted` as a master starts a worker; `kill` dies when it would write down the process.
STARTER = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from runtime.cluster.supervisor import start_process
from runtime.environment.directory import ClusterDirectory

directory, how = ClusterDirectory(Path(sys.argv[1])), sys.argv[2]
context = SimpleNamespace(directory=directory, arguments=lambda: {"runtime_dir": str(directory.root)})

def note(pid):
    (directory.root / "pid").write_text(str(pid))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fail":
        raise OSError("no room to note it")

start_process(context, "noted", "noted", (), note)
"""
NOTED = """
import json, os, sys
from pathlib import Path
from runtime.cluster.supervisor import GATE_VARIABLE, await_gate

await_gate()
part = Path(sys.argv[1], "part")
part.write_text(json.dumps([GATE_VARIABLE in os.environ, os.listdir("/proc/self/fd")]))
part.rename(part.with_name("began"))
"""


@pytest.mark.parametrize("how", ["note", "kill", "fail"])
def test_a_process_begins_only_when_it_is_noted(tmp_path: Path, how: str) -> None:
    (tmp_path / "noted.py").write_text(NOTED)
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    starter = subprocess.run(
        [sys.executable, "-c", STARTER, str(directory.root), how],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert starter.returncode == {"note": 0, "kill": -signal.SIGKILL, "fail": 1}[how], starter.stderr
    pid = int((directory.root / "pid").read_text())
    await_value(lambda: not Path(f"/proc/{pid}").exists())
    began = directory.root / "began"
    assert began.exists() == (how == "note"), (directory.log / "noted.out").read_text()
    if began.exists():
        inherits_gate, descriptors = json.loads(began.read_text())
        assert not inherits_gate
        assert len(descriptors) <= 4, "what it starts inherits no gate: only the standard ones, and that of the listing"
