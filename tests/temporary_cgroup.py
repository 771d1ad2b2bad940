"""A control group of the machine's for tests, as an administrator would make it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.taskexecutor.control_groups import ControlGroup

MOUNT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def temporary_cgroup() -> Iterator[tuple[str, list[Path]]]:
    """Its name and its directories; skips the test where none can be made. It has to be empty at the end."""
    name = f"understudy-test-{uuid.uuid4().hex[:8]}"
    is_v2 = (MOUNT / "cgroup.controllers").exists()
    directories = [MOUNT / name] if is_v2 else [MOUNT / controller / name for controller in ("memory", "cpu")]
    made: list[Path] = []
    try:
        for directory in directories:
            try:
                if is_v2:  # as systemd does where anybody asks for it
                    (MOUNT / "cgroup.subtree_control").write_text("+memory +cpu")
                directory.mkdir()
            except OSError as error:
                pytest.skip(f"no control group can be made here: {error}")
            made.append(directory)
        yield f"/{name}", made
        left = [path for directory in made for path in directory.iterdir() if path.is_dir()]
        assert left == [], "groups of tasks"
    finally:
        for directory in made:
            for path in [path for path in directory.iterdir() if path.is_dir()]:
                ControlGroup([(2 if is_v2 else 1, path)]).remove()
            directory.rmdir()
