"""Control groups of tasks, in this machine's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import Configuration
from runtime.cluster.preflight import standard_checks
from runtime.spark.errors import TaskLimitError
from runtime.spark.task.program import enter
from runtime.taskexecutor.control_groups import ControlGroupError, ControlGroups, GroupLimits, _find, _mounts
from tests.processes import lives
from tests.temporary_cgroup import temporary_cgroup
from tests.waiting import PATIENCE_S

LIMITS = GroupLimits(memory_bytes=64 << 20, cpus=0.5)
PROGRAM = """\
import subprocess, sys, time
from runtime.spark.task.program import enter

enter(tuple(sys.argv[2:]))
daemon = ["sleep", "600"]
quiet = subprocess.DEVNULL
print(subprocess.Popen(daemon, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet).pid, flush=True)
exec(sys.argv[1])
"""
BOTH = """
import os, socket
ends = socket.socketpair()
is_child = os.fork() == 0
ends[not is_child].close()
held = b"x" * (40 << 20)
for _ in range(2):  # the one that has held its own and is killed for the other's sake does not come to the second
    ends[is_child].sendall(b"x")
    answer = ends[is_child].recv(1)
print("both" if answer else "alone", flush=True)
"""
"""Two processes, of which each says whether the other held what it took when it held its own."""


@pytest.fixture
def given() -> Iterator[tuple[str, list[Path]]]:
    with temporary_cgroup() as group:
        yield group


def run(entries: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a group, with a daemon beside it whose pid is what is printed first."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, code, *entries], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_what_all_processes_of_a_group_take_together_is_bounded(given: tuple[str, list[Path]]) -> None:
    wide = ControlGroups.open(given[0], GroupLimits(memory_bytes=256 << 20), "tm-0").create("a" * 32)
    assert run(wide.entries, BOTH).stdout.count("both") == 2
    assert not wide.out_of_memory()
    wide.remove()
    narrow = ControlGroups.open(given[0], GroupLimits(memory_bytes=64 << 20), "tm-0").create("b" * 32)
    assert run(narrow.entries, BOTH).stdout.count("both") == 0
    assert narrow.out_of_memory()
    narrow.remove()


THROTTLED = """
import pathlib
used = time.process_time()
while time.process_time() < used + 1.0:
    for _ in range(100_000):
        pass
    if any("nr_throttled 0" not in pathlib.Path(path).read_text() for path in {paths}):
        print("throttled")
        break
else:
    print("never")
"""
"""Takes processor time until the kernel holds it back, and counts that."""


def test_a_group_gets_no_more_processor_than_its_limit(given: tuple[str, list[Path]]) -> None:
    little = GroupLimits(cpus=0.02)  # less than a process gets of a busy machine
    group = ControlGroups.open(given[0], little, "tm-0").create("a" * 32)
    paths = [str(path) for directory in given[1] for path in directory.glob("*/cpu.stat")]
    assert paths
    assert run(group.entries, THROTTLED.format(paths=paths)).stdout.split()[1:] == ["throttled"]
    group.remove()


def test_what_runs_on_in_a_group_ends_with_it(given: tuple[str, list[Path]]) -> None:
    group = ControlGroups.open(given[0], LIMITS, "tm-0").create("a" * 32)
    daemon = int(run(group.entries, "").stdout)
    assert lives(daemon)
    group.remove()
    assert not lives(daemon)
    group.remove()  # it may be done twice


def test_what_a_killed_task_executor_left_is_removed_by_the_next_of_its_name(given: tuple[str, list[Path]]) -> None:
    name, directories = given
    left = ControlGroups.open(name, LIMITS, "tm-0").create("a" * 32)
    others = ControlGroups.open(name, LIMITS, "tm-1").create("b" * 32)
    daemon = int(run(left.entries, "").stdout)
    ControlGroups.open(name, LIMITS, "tm-0")
    assert not lives(daemon)
    found = {path.name for directory in directories for path in directory.iterdir() if path.is_dir()}
    assert [entry.rpartition("-")[2] for entry in found] == ["b" * 32]
    others.remove()


def test_a_group_that_is_not_there_cannot_be_used_or_lacks_a_limit_is_said_at_once(
    given: tuple[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, directories = given

    def check(settings: dict[str, str]) -> str:
        checks = standard_checks(Configuration.from_dict(settings))
        return next((check.run() for check in checks if check.name == "control groups"), "none")

    limit = {"taskmanager.task.cgroup.memory": "1gb"}
    assert check({}) == "none"
    assert check({"taskmanager.cgroup": name, **limit}) == f"tasks have control groups in {name}"
    with pytest.raises(ControlGroupError, match=f"there is no control group .*{name}/other"):
        check({"taskmanager.cgroup": f"{name}/other", **limit})
    with pytest.raises(ControlGroupError, match=r"taskmanager.cgroup is not"):
        check(limit)
    with pytest.raises(ControlGroupError, match=r"taskmanager.cgroup is set, and neither"):
        check({"taskmanager.cgroup": name})
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may do everything
    with pytest.raises(ControlGroupError, match=f"{directories[0]} .*is not writable"):
        check({"taskmanager.cgroup": name, **limit})


def test_a_tree_is_found_whatever_its_name(tmp_path: Path) -> None:
    """The kernel writes white space, backslashes and hashes as octal numbers."""
    for name in ("plain", "with space", "tab\tline\nback\\slash\\040", "#first", "größe", "no\u00a0break\u2028line"):
        group = tmp_path / name / "group"
        group.mkdir(parents=True)
        (group.parent / "cgroup.controllers").write_text("memory")
        (group / "cgroup.controllers").write_text("memory")
        (group / "cgroup.subtree_control").write_text("memory")
        escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in str(group.parent))
        mounts = f"proc /proc proc rw 0 0\ncgroup2 {escaped} cgroup2 rw 0 0\n"
        assert _find("memory", "/group", _mounts(mounts)) == (2, group)


def test_a_machine_without_control_groups_says_so(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n")
    with pytest.raises(ControlGroupError, match=r"this machine has no control groups for memory"):
        ControlGroups.open("/understudy", LIMITS, "tm-0", mounts)


def test_a_group_that_cannot_be_entered_is_an_error_of_the_task(tmp_path: Path) -> None:
    with pytest.raises(TaskLimitError, match=r"cannot enter its control group .*: No such file or directory"):
        enter((str(tmp_path / "gone" / "cgroup.procs"),))
