"""Tasks in control groups of the machine's: what one may not take is the others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, started
from tests.job_files import TRIVIAL, write_job
from tests.processes import lives
from tests.temporary_cgroup import temporary_cgroup

# Each of its processes takes less than the limit.
FAMILY = """\
import os

children = [os.fork() for _ in range(3)]
held = b"x" * (100 << 20)
if 0 in children:
    os._exit(0)
for child in children:
    status = os.waitpid(child, 0)[1]
    if status:
        raise ChildProcessError(f"a child ended with {status}")
"""

DAEMON = """\
import subprocess
from pathlib import Path

quiet = subprocess.DEVNULL
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
print("daemon", daemon.pid)
print(Path("/proc/self/cgroup").read_text())
"""


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, list[Path]]]:
    """A cluster whose tasks are in groups, the given group's name and its directories."""
    with temporary_cgroup() as (name, directories):
        settings = (
            f"taskmanager.cgroup={name}",
            "taskmanager.task.cgroup.memory=256mb",
            "taskmanager.task.cgroup.cpus=1.5",
            "restart-strategy.type=none",
        )
        for cluster in started(tmp_path_factory.mktemp("grouped"), *settings):
            yield cluster, name, directories


def test_a_job_whose_processes_take_too_much_together_fails_and_says_why(
    grouped: tuple[Cluster, str, list[Path]], tmp_path: Path
) -> None:
    cluster, _, _ = grouped
    done = cluster.run("job", "run", str(write_job(tmp_path, FAMILY)), check=False)
    assert done.returncode == 1
    assert "the task's processes together have reached taskmanager.task.cgroup.memory (256 MB)" in done.stderr
    assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL, "next.py"))).stdout == "sum 499500\n"


def test_a_daemon_that_a_task_leaves_ends_with_it(grouped: tuple[Cluster, str, list[Path]], tmp_path: Path) -> None:
    cluster, name, directories = grouped
    said = cluster.run("job", "run", str(write_job(tmp_path, DAEMON))).stdout
    assert f"{name}/task-" in said
    assert not lives(int(said.split()[1]))
    assert [path for directory in directories for path in directory.iterdir() if path.is_dir()] == []
