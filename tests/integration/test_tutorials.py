"""The tutorials, worked through as a reader would: every block of code is run, and prints what the page says.

A block with a title is a file of the reader's directory; other `bash` and `python` blocks are run there. A `text` block
is what the one before it has printed on standard output; a line of three dots stands for any lines, three dots in a
line for any text, and blanks for any number of them. A block in an HTML comment is run and not shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.spark.driver.java import find_java, launcher_home
from tests.cluster_harness import FEWER_READY, NO_FURTHER_WARM_UP, NO_WARM_UP, ROOT, Cluster
from tests.waiting import PATIENCE_S

TUTORIALS = ROOT / "docs" / "tutorials"
ON_ONE_CLUSTER = (
    "first-job",
    "your-project",
    "from-spark-submit-and-livy",
    "from-flink",
    "streaming-savepoints",
    "operating",
)
"""In this order: the first starts the cluster, the last stops it."""
SHORT = ("first-job",)
"""Of these, what is run when no long forms are asked for."""
ON_THEIR_OWN = ("high-availability", "embedding", "security")
TIMEOUT_S = PATIENCE_S
CHEAP = (NO_WARM_UP, NO_FURTHER_WARM_UP, FEWER_READY)

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title if it is a file, its text."""

    language: str
    title: str
    text: str


def blocks_of(tutorial: str) -> list[Block]:
    """The blocks of a page."""
    return [Block(*found) for found in _BLOCK.findall((TUTORIALS / f"{tutorial}.md").read_text())]


def as_yaml(setting: str) -> str:
    """A setting of a command line as one of a file."""
    return setting.replace("=", ": ", 1)


class Reader:
    """Works through tutorials, in a home and a directory of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._work = home / "work"
        bin_dir, conf_dir = home / "bin", home / "conf"
        for directory in (self._work, bin_dir, conf_dir):
            directory.mkdir(parents=True)
        java = f'export JAVA_HOME="{launcher_home(find_java(), home / "java")}"; '  # PySpark by itself brings none
        for name, line in (
            ("python", f'{java}exec "{sys.executable}"'),
            ("python3", f'{java}exec "{sys.executable}"'),
            ("understudy", f'exec "{sys.executable}" -m understudy'),
        ):
            program = bin_dir / name
            program.write_text(f'#!/bin/sh\n{line} "$@"\n')
            program.chmod(0o755)
        settings = ("rest.port: 0", "jobmanager.rpc.port: 0", "spark.driver.memory: 768m", *map(as_yaml, CHEAP))
        (conf_dir / "config.yaml").write_text("".join(f"{line}\n" for line in settings))
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # the archive of Spark's classes
        self._environment = os.environ | {
            "HOME": str(home),
            "XDG_CACHE_HOME": cache,
            "UNDERSTUDY_CONF_DIR": str(conf_dir),
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.cluster = Cluster(home / ".understudy" / "default")

    def read(self, tutorial: str) -> None:
        """Run each block of a page."""
        blocks = blocks_of(tutorial)
        assert blocks
        for number, block in enumerate(blocks):
            where = f"{tutorial}, block {number + 1}:\n{block.text}"
            if block.title:
                file = self._work / block.title
                file.parent.mkdir(exist_ok=True, parents=True)
                file.write_text(block.text)
            elif block.language in ("bash", "python"):
                program = ["bash", "-e", "-c", block.text] if block.language == "bash" else self._script(block.text)
                done = subprocess.run(
                    program,
                    cwd=self._work,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                said = f"{done.stdout}{done.stderr}"
                assert done.returncode == 0, f"{where}\n{said}\n{self.cluster.logs()}"
                following = blocks[number + 1] if number + 1 < len(blocks) else None
                if following is not None and following.language == "text":
                    assert matches(following.text, done.stdout), f"{where}\n{said}"
            else:
                assert block.language == "text", f"{where}\nnobody runs that"

    def _script(self, text: str) -> list[str]:
        script = self._work / "block.py"
        script.write_text(text)
        return [sys.executable, str(script)]

    def leave(self) -> None:
        """End what may be left when a block has failed."""
        subprocess.run(
            ["understudy", "stop"], env=self._environment, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert self.cluster.processes() == {}


def matches(shown: str, printed: str) -> bool:
    """Return whether an output is the one that is shown, in which three dots stand for any lines or text."""
    pattern = "".join("(.*\n)*" if line == "..." else f"{_pattern_of(line)} *\n" for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


def _pattern_of(line: str) -> str:
    words = (".*?".join(map(re.escape, word.split("..."))) for word in re.split(" +", line))
    return " +".join(words)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    missing = [tool for tool in ("curl", "openssl") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"a reader needs {' and '.join(missing)}")
    made = Reader(tmp_path / "home")
    yield made
    made.leave()


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {*ON_ONE_CLUSTER, *ON_THEIR_OWN}


def test_shown_output() -> None:
    assert matches("a\n...\nb\n", "a\nb\n")
    assert matches("a\n...\nb\n", "a\nx\ny\nb\n")
    assert not matches("a.c\n", "abc\n")
    assert not matches("a\n", "a\nb\n")
    assert matches("job ... is  FINISHED\n", "job 4711 is FINISHED\n")
    assert not matches("job ... is FINISHED\n", "job 4711 is FAILED\n")
    assert not matches("ab\n", "a b\n")


@pytest.mark.parametrize(
    "tutorials", [pytest.param(SHORT, id="short"), pytest.param(ON_ONE_CLUSTER, id="all", marks=pytest.mark.slow)]
)
def test_tutorials_on_one_cluster(tutorials: tuple[str, ...], reader: Reader) -> None:
    for tutorial in tutorials:
        reader.read(tutorial)


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", ON_THEIR_OWN)
def test_tutorial_with_a_cluster_of_its_own(tutorial: str, reader: Reader) -> None:
    reader.read(tutorial)
    assert reader.cluster.processes() == {}
