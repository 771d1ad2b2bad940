"""Tasks in control groups of the machine's: what one may not take is the others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, await_value, started
from tests.integration.test_hand_over import NAME, hand_over
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

# It leaves a process, and works on when a file is there.
HELD = """\
import subprocess, sys, time
from pathlib import Path

quiet = subprocess.DEVNULL
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
here, go = map(Path, sys.argv[1:])
(here.parent / "daemon").write_text(str(daemon.pid))
here.touch()
while not go.exists():
    time.sleep(0.05)
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


def test_a_task_that_was_handed_over_is_still_in_its_group(
    grouped: tuple[Cluster, str, list[Path]], tmp_path: Path
) -> None:
    cluster, _, directories = grouped
    here, go = tmp_path / "here", tmp_path / "go"
    job_id = cluster.submit(write_job(tmp_path, HELD + FAMILY), str(here), str(go))
    await_value(here.exists)
    (task,) = cluster.tasks_of(job_id)
    cluster.await_status(job_id, "RUNNING")
    old = hand_over(cluster)
    await_value(lambda: cluster.pid_of(f"tm:{NAME}") not in (old, None))
    assert cluster.tasks_of(job_id) == [task]
    go.touch()
    failure = str(cluster.await_status(job_id, "FAILED")["failure"])
    assert "the task's processes together have reached taskmanager.task.cgroup.memory (256 MB)" in failure
    assert not lives(int((tmp_path / "daemon").read_text()))
    assert [path for directory in directories for path in directory.iterdir() if path.is_dir()] == []
