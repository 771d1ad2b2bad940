"""A planted next release: a copy of this one with a second feature level, at which it writes new versions of formats.

Its commands and processes are real. It differs from this release in its version and in the table of levels alone.
`make_environment` makes an environment for it, or for another release.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from runtime import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("actors", "blob", "conf", "runtime", "understudy")

VERSION = "0.99.0"
LEVEL = 2
_TABLE_ENDS = '"""Versions of the formats, by level:'
_SECOND_LEVEL = f"VERSIONS[{LEVEL}] = {{**VERSIONS[1], Format.JOB_GRAPH: 3, Format.EXECUTION: 2}}\n"


def make_next_release(directory: Path) -> Path:
    """Write the packages of the next release into a new directory, and return it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    _replace(directory / "runtime" / "__init__.py", f'"{__version__}"', f'"{VERSION}"')
    _replace(directory / "runtime" / "feature_level.py", _TABLE_ENDS, _SECOND_LEVEL + _TABLE_ENDS)
    return directory


def make_wheel(tree: Path, directory: Path) -> Path:
    """Build a wheel of the next release in *tree*, without the examples, and return it."""
    source = directory / "source"
    shutil.copytree(tree, source, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    settings, _, rest = (ROOT / "setup.cfg").read_text().partition("[options.data_files]")
    (source / "setup.cfg").write_text(
        f"{settings}[options.extras_require]{rest.partition('[options.extras_require]')[2]}"
    )
    _replace(source / "setup.cfg", f"version = {__version__}", f"version = {VERSION}")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(directory), str(source)], check=True, capture_output=True)
    [wheel] = directory.glob("*.whl")
    return wheel


def packages_of_this_environment(directory: Path) -> Path:
    """Make a directory of links to all packages of this environment except Understudy, for ``PYTHONPATH``.

    pip finds them there, and installs them nowhere else.
    """
    directory.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "understudy" not in entry.name:
            (directory / entry.name).symlink_to(entry)
    return directory


def make_environment(directory: Path, tree: Path | None) -> Path:
    """Make a virtual environment with the release in *tree*, and the other packages of this one; None: with nothing."""
    venv.create(directory, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    if tree is not None:
        (packages / "release.pth").write_text(f"{tree}\n{sysconfig.get_path('purelib')}\n")
    return directory


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, f"{file} does not have {before!r} once"
    file.write_text(text.replace(before, after))
