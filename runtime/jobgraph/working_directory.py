"""The directory in which a job's code runs: its caller's current directory, or a copy of one that the job ships."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK_FILE_SYSTEM = re.compile(r"nfs\d?|cifs|smb3|ceph|lustre|afs|9p|virtiofs|beegfs|fuse\.(?!fuse-overlayfs).+")
"""File systems that several machines may have mounted."""

_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([^#;\n]+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CallerDirectory:
    """A directory of the caller, described so that another process can check whether it sees the same one.

    Args:
        path: absolute, without symbolic links.
        boot_id: identifies the caller's machine: its kernel chooses it at each start.
        device: number of the file system on that machine.
        inode: number of the directory in its file system.
    """

    path: str
    boot_id: str
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> CallerDirectory:
        """Describe a directory of this machine; raises OSError."""
        found = path.resolve(strict=True)
        stat = found.stat()
        return cls(str(found), _boot_id(), stat.st_dev, stat.st_ino)

    def is_here(self) -> bool:
        """Return whether this process sees the same directory, and may use it.

        On the caller's machine, device and inode have to be the same. On another machine, the inode has to be the same,
        in a network file system. The same path alone is not enough.
        """
        try:
            here = CallerDirectory.of(Path(self.path))
        except OSError:
            return False
        if here.inode != self.inode or not os.access(self.path, os.R_OK | os.X_OK):
            return False
        if here.boot_id == self.boot_id:
            return here.device == self.device
        return _NETWORK_FILE_SYSTEM.fullmatch(file_system_of(here.device, _MOUNTS.read_text())) is not None


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """The directories of a job.

    Args:
        caller: the current directory of the client that submitted the job; None: the job runs in a copy of the
            directory that it ships.
        script: the directory of the job's file on the client's machine.
        file: the job's file as the user named it: ``sys.argv[0]``.
        imports_beside: whether the file imports modules beside it, which Spark's Python workers need, too.
        shipped_file: the job's file in the directory that it ships; empty if it is not there.
    """

    caller: CallerDirectory | None
    script: CallerDirectory | None
    file: str
    imports_beside: bool = False
    shipped_file: str = ""

    @classmethod
    def of_caller(cls, file: Path) -> WorkingDirectory:
        """Describe this process's directory, if it exists, for a job whose code is in *file*; raises OSError."""
        caller = None
        with contextlib.suppress(FileNotFoundError):
            caller = CallerDirectory.of(Path())
        return cls(caller, CallerDirectory.of(file.resolve().parent), str(file), imports_beside(file))


def imports_beside(file: Path) -> bool:
    """Return whether a program imports a module beside it, as far as its text shows."""
    text = file.read_text("utf-8", "replace")
    names: set[str] = set()
    for found in _IMPORT.finditer(text):
        names.update(part.split()[0].partition(".")[0] for part in (found[1] or found[2]).split(",") if part.split())
    beside = file.resolve().parent
    return any(name.isidentifier() and _is_module(beside, name) for name in names if name != file.stem)


def _is_module(directory: Path, name: str) -> bool:
    if (directory / f"{name}.py").is_file():
        return True
    package = directory / name
    return package.is_dir() and next(package.glob("*.py"), None) is not None


def file_system_of(device: int, mounts: str) -> str:
    """Return the type of a file system.

    Args:
        device: its number.
        mounts: text of ``/proc/self/mountinfo``.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 4 and words[2] == wanted and "-" in words:
            return words[words.index("-") + 1]
    return ""


def _boot_id() -> str:
    return _BOOT_ID.read_text("ascii").strip()
