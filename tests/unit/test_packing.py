"""Directories that a job brings along: what is packed, and how it is unpacked."""

from __future__ import annotations

import errno
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runtime.ids import JobID
from runtime.job_file import JobFileError, pack_py_files, ship_directory
from runtime.jobgraph.job_graph import ArtifactRole
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.librarycache import packing
from runtime.librarycache.builder import EnvironmentBuilder
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind
from runtime.librarycache.errors import DirectoryNotPackedError, EnvironmentBuildError
from runtime.librarycache.manager import LibraryCacheManager
from runtime.librarycache.packing import pack_directory, unpack_directory

MB = 1 << 20
FILES = {
    "job.py": "print(1)",
    "data/rows.csv": "1\n",
    "data/big.bin": "x",
    "data/keep.bin": "x",
    "src/.gitignore": "!*.bin\n/made/\n",
    "src/part.bin": "x",
    "src/made/out.txt": "x",
    "src/deep/made/out.txt": "x",
    ".gitignore": "*.bin\n!keep.bin\n*.log\n",
    "run.log": "x",
    ".git/config": "x",
    ".venv/bin/python": "x",
    "src/__pycache__/part.pyc": "x",
    ".env": "x",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "job.py").chmod(0o755)
    return directory


def names_in(packed: Path) -> list[str]:
    with zipfile.ZipFile(packed) as zipped:
        return zipped.namelist()


def test_what_is_ignored_does_not_travel(project: Path, tmp_path: Path) -> None:
    os.mkfifo(project / "pipe")
    pack_directory(project, tmp_path / "p.zip", MB)
    assert names_in(tmp_path / "p.zip") == [
        ".env", ".gitignore", "data/keep.bin", "data/rows.csv", "job.py",
        "src/.gitignore", "src/deep/made/out.txt", "src/part.bin",
    ]  # fmt: skip


def test_the_same_content_is_the_same_file(project: Path, tmp_path: Path) -> None:
    pack_directory(project, tmp_path / "one.zip", MB)
    for path in project.rglob("*"):
        os.utime(path, (1, 1))
    pack_directory(project, tmp_path / "two.zip", MB)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    (project / "data" / "rows.csv").write_text("2\n")
    pack_directory(project, tmp_path / "three.zip", MB)
    assert (tmp_path / "one.zip").read_bytes() != (tmp_path / "three.zip").read_bytes()


def test_what_is_unpacked_is_what_was_packed(project: Path, tmp_path: Path) -> None:
    (project / "data" / "link").symlink_to("rows.csv")
    (project / "all").symlink_to(project / "data")
    pack_directory(project, tmp_path / "p.zip", MB)
    unpack_directory(tmp_path / "p.zip", copy := tmp_path / "copy")
    assert (copy / "all" / "link").read_text() == "1\n"
    assert (copy / "all").readlink() == Path("data")
    assert stat.S_IMODE((copy / "job.py").stat().st_mode) == 0o700
    assert (copy / "job.py").read_text() == "print(1)"


@pytest.mark.parametrize("end", ["../secret", "/etc/hostname", ".."])
def test_a_link_that_leaves_the_directory_is_refused(end: str, project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (project / "out").symlink_to(end)
    with pytest.raises(DirectoryNotPackedError, match=r"the symbolic link out of .*project leads out of it"):
        pack_directory(project, tmp_path / "p.zip", MB)
    with (project / ".gitignore").open("a") as rules:
        rules.write("/out\n")
    pack_directory(project, tmp_path / "p.zip", MB)


@pytest.mark.parametrize("end", ["../../secret", "/etc/hostname", "b/top/../secret"])
def test_a_link_that_leaves_it_is_not_unpacked(end: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
        for name, target in (("a/link", end), ("a/b/top", "../..")):
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(entry, target)
    with pytest.raises(zipfile.BadZipFile, match="the symbolic link a/link leads out of the directory"):
        unpack_directory(tmp_path / "evil.zip", tmp_path / "copy")


def test_a_directory_that_is_too_large_names_its_largest_files(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "data" / "rows.csv").write_text("x" * 5000)
    with pytest.raises(DirectoryNotPackedError, match=r"the largest are data/rows\.csv \(5,000 bytes\), ") as caught:
        pack_directory(project, tmp_path / "p.zip", 4000)
    assert "client.working-dir.max-size" in caught.value.remedy
    monkeypatch.setattr(packing, "_MOST_FILES", 3)
    with pytest.raises(DirectoryNotPackedError, match="has 4 files or more"):
        pack_directory(project, tmp_path / "p.zip", MB)


def test_a_file_that_vanishes_or_cannot_be_read_is_one_readable_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = packing._measured

    def measured_then_gone(*args: Any) -> list[str]:
        found = measured(*args)
        (project / "data" / "rows.csv").unlink()
        return found

    def forbidden(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_measured", measured_then_gone)
        with pytest.raises(
            DirectoryNotPackedError, match=r"project changed while it was packed: data/rows\.csv is gone$"
        ):
            pack_directory(project, tmp_path / "p.zip", MB)
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(DirectoryNotPackedError, match=r"^\.env of .*project cannot be read: Permission denied$"):
        pack_directory(project, tmp_path / "p.zip", MB)
    with pytest.raises(OSError, match="no-directory"):
        pack_directory(project, tmp_path / "no-directory" / "p.zip", MB)


def test_a_package_and_a_directory_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, modules = tmp_path / "pack_of_ours", tmp_path / "lib"
    for directory in (package, modules):
        directory.mkdir()
        (directory / "one_of_ours.py").write_text(f"NAME = {directory.name!r}\n")
    (package / "__init__.py").touch()
    (tmp_path / "x.py").touch()
    packed = pack_py_files([package, modules, tmp_path / "x.py"], tmp_path / "scratch", MB)
    assert [path.name for path in packed] == ["pack_of_ours.zip", "lib.zip", "x.py"]
    monkeypatch.setattr(sys, "path", [*map(str, packed[:2]), *sys.path])
    import one_of_ours  # type: ignore[import-not-found]
    import pack_of_ours.one_of_ours  # type: ignore[import-not-found]

    assert (one_of_ours.NAME, pack_of_ours.one_of_ours.NAME) == ("lib", "pack_of_ours")
    (modules / "fast.so").touch()
    with pytest.raises(JobFileError, match=r"lib has a native extension, fast\.so"):
        pack_py_files([modules], tmp_path / "again", MB)


def test_a_shipped_directory_knows_the_jobs_file(project: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (project / "src" / "job.py").write_text("import part\n")
    place, (packed, role) = ship_directory(project, project / "src" / "job.py", tmp_path / "scratch", MB)
    assert place == WorkingDirectory(None, None, str(project / "src" / "job.py"), False, "src/job.py")
    assert role is ArtifactRole.WORKING_DIRECTORY
    assert "src/job.py" in names_in(packed)
    caller = WorkingDirectory.of_caller(project / "job.py")
    place, _ = ship_directory(project / "src", project / "job.py", tmp_path / "scratch", MB, caller)
    assert place == caller
    with pytest.raises(JobFileError, match="may have 50,000 of 1"):
        ship_directory(project, project / "job.py", tmp_path / "scratch", 1)


def test_it_is_unpacked_once_for_each_worker(project: Path, tmp_path: Path) -> None:
    packed, fetched = tmp_path / "p.zip", []
    pack_directory(project, packed, MB)
    spec = EnvironmentSpec((Library("working-directory.zip", LibraryKind.WORKING_DIRECTORY, "d1"),))
    manager = LibraryCacheManager(tmp_path / "environments")

    def fetch(library: Library) -> Path:
        fetched.append(library)
        return packed

    for job_id in ("a" * 32, "b" * 32):
        environment = manager.register_lease(JobID(job_id)).get_or_resolve(spec, fetch)
        assert environment.working_directory is not None
        assert (environment.working_directory / "data" / "rows.csv").read_text() == "1\n"
        assert environment.import_path == ()
    assert len(fetched) == 1
    packed.write_bytes(b"no zip")
    damaged = EnvironmentSpec((Library("working-directory.zip", LibraryKind.WORKING_DIRECTORY, "d2"),))
    (tmp_path / "build").mkdir()
    with pytest.raises(EnvironmentBuildError, match="working directory cannot be unpacked"):
        EnvironmentBuilder().build(damaged, tmp_path / "build", fetch)
