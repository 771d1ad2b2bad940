"""Builds an environment in a directory: links files, installs packages with pip, unpacks archives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.errors import EnvironmentBuildError
from runtime.librarycache.packing import unpack_directory

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:  # the standard library's module has no filters before Python 3.11.4; Debian 12 has an older one
    from backports import tarfile

Fetch = Callable[[Library], Path]
Cancelled = Callable[[], bool]

_FILES, _SITE, _ARCHIVES, _WORKING = "files", "site", "archives", "working"
_TAIL = 2000
_LOOK_S = 0.2
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_LONG_NAMES = {"-i": "--index-url", "-f": "--find-links"}


def _never() -> bool:
    return False


class EnvironmentBuilder:
    """Builds and describes environments.

    Args:
        pip_options: passed to every ``pip install``, e.g. ``--no-index --find-links DIR`` without a network.
        timeout_s: seconds that one installation may take.
    """

    def __init__(self, pip_options: Sequence[str] = (), timeout_s: float = 600.0) -> None:
        self._pip_options = tuple(pip_options)
        self._timeout_s = timeout_s

    def build(self, spec: EnvironmentSpec, directory: Path, fetch: Fetch, cancelled: Cancelled = _never) -> None:
        """Fill *directory*, which exists and is empty.

        Args:
            spec: its files.
            directory: the target.
            fetch: returns the local copy of a library's file.
            cancelled: called repeatedly during the build, which ends once it returns True.

        Raises:
            EnvironmentBuildError: it was cancelled, pip failed, an archive is damaged or of another Python, or a name
                is not a file name.
            OSError: the files cannot be written.
        """
        files = directory / _FILES
        for number, library in enumerate(spec.libraries):
            # Each has its own directory: two files may have one name, and a module's directory goes onto the path.
            target = files / f"{number:03d}" / _file_name(library)
            target.parent.mkdir(parents=True, mode=0o700)
            _link_or_copy(fetch(library), target)
        installed = [path for library, path in _paths(spec, files) if library.kind is LibraryKind.PACKAGE]
        required = [path for library, path in _paths(spec, files) if library.kind is LibraryKind.REQUIREMENTS]
        if installed or required:
            self._install(directory / _SITE, installed, required, cancelled)
        for number, (library, path) in enumerate(_paths(spec, files)):
            if library.kind is LibraryKind.ARCHIVE:
                _unpack(path, directory / _ARCHIVES / f"{number:03d}")
            elif library.kind is LibraryKind.WORKING_DIRECTORY:
                _unpack_working_directory(path, directory / _WORKING)
        _make_private(directory)

    def describe(self, spec: EnvironmentSpec, directory: Path) -> PythonEnvironment:
        """Return the description of the environment that was built from *spec* in *directory*."""
        paths = list(_paths(spec, directory / _FILES))
        site = directory / _SITE
        return PythonEnvironment(
            directory=directory,
            py_files=tuple(path for library, path in paths if library.kind is LibraryKind.PY_FILE),
            site=site if site.is_dir() else None,
            archives=tuple(
                _import_directory(directory / _ARCHIVES / f"{number:03d}")
                for number, (library, _) in enumerate(paths)
                if library.kind is LibraryKind.ARCHIVE
            ),
            jars=tuple(path for library, path in paths if library.kind is LibraryKind.JAR),
            working_directory=working if (working := directory / _WORKING).is_dir() else None,
        )

    def _install(
        self, site: Path, packages: Iterable[Path], requirements: Iterable[Path], cancelled: Cancelled
    ) -> None:
        """Run one ``pip install`` for all packages, so that pip finds conflicts between them."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        options, environment = without_credentials(self._pip_options)
        command += ["--no-warn-script-location", "--target", str(site), *options]
        command += [str(path) for path in packages]
        for path in requirements:
            command += ["--requirement", str(path)]
        status, said = self._run(command, environment, cancelled)
        if status != 0:
            raise EnvironmentBuildError(f"pip could not install the job's packages: {_last_words(said)}")
        if (site / "pyspark").exists():
            raise EnvironmentBuildError(
                "the job's packages bring pyspark, which the cluster provides: leave it out of their requirements"
            )

    def _run(self, command: Sequence[str], environment: dict[str, str], cancelled: Cancelled) -> tuple[int, str]:
        """Run pip to its end; return its exit status and its standard error."""
        deadline = time.monotonic() + self._timeout_s
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            try:
                while True:
                    try:
                        status = process.wait(_LOOK_S)
                        break
                    except subprocess.TimeoutExpired as running:
                        if cancelled():
                            raise EnvironmentBuildError("the job was cancelled") from running
                        if time.monotonic() > deadline:
                            raise EnvironmentBuildError(
                                f"pip did not end within {self._timeout_s:g} s; raise "
                                "taskmanager.python.install-timeout, or send a packed virtual environment instead"
                            ) from running
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # also ends pip's child processes
                    process.wait()
            said.seek(0)
            return status, said.read().decode(errors="replace")


def without_credentials(options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split pip's options: those for a command line, which every user sees, and the rest as environment variables.

    An option whose value is a URL with a user or a password is given as pip's variable of the same name.
    """
    left, environment = list[str](), dict[str, str]()
    rest = list(options)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals and rest and _CREDENTIALS.search(rest[0]):
            equals, value = "=", rest.pop(0)
        if equals and _CREDENTIALS.search(value):
            variable = "PIP_" + _LONG_NAMES.get(name, name).lstrip("-").replace("-", "_").upper()
            environment[variable] = " ".join(filter(None, [environment.get(variable), value]))
        else:
            left.append(name + equals + value)
    return left, environment


def _paths(spec: EnvironmentSpec, files: Path) -> Iterable[tuple[Library, Path]]:
    for number, library in enumerate(spec.libraries):
        yield library, files / f"{number:03d}" / _file_name(library)


def _file_name(library: Library) -> str:
    name = Path(library.name).name
    if name != library.name or name in ("", ".", "..") or "\0" in name:
        raise EnvironmentBuildError(f"{library.name!r} is not a file name")
    return name


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _unpack(archive: Path, target: Path) -> None:
    target.mkdir(parents=True, mode=0o700)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(target)  # noqa: S202  # drops drive letters, leading slashes and ".."
        else:
            with tarfile.open(archive) as packed:
                if _is_environment(packed):
                    packed.extractall(target, filter=_environment_member)  # noqa: S202  # it has a filter
                else:
                    packed.extractall(target, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, KeyError) as error:  # a hard link to what is not in it
        raise EnvironmentBuildError(f"{archive.name} cannot be unpacked: {error}") from error
    _import_directory(target)


def _unpack_working_directory(packed: Path, target: Path) -> None:
    try:
        unpack_directory(packed, target)
    except zipfile.BadZipFile as error:
        raise EnvironmentBuildError(f"the job's working directory cannot be unpacked: {error}") from error


def _environment_member(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo:
    """Accept a member of an environment, unless it leaves the directory.

    A symbolic link may lead outside, to the interpreter, since no file is written through it. A hard link may not: it
    is the file itself, and a member of the same name would overwrite it.
    """
    return (tarfile.data_filter if member.islnk() else tarfile.tar_filter)(member, target)


def _is_environment(packed: tarfile.TarFile) -> bool:
    """Return whether it is a packed virtual environment, whose links to the interpreter the filter "data" rejects."""
    return any(member.name.lstrip("./") == "pyvenv.cfg" for member in packed.getmembers())


def _import_directory(unpacked: Path) -> Path:
    """Return the directory of an archive that goes onto the path: a virtual environment's packages, else its top."""
    found = [path for pattern in ("lib", "*/lib") for path in unpacked.glob(f"{pattern}/python*/site-packages")]
    if not found:
        return unpacked
    version = f"python{sysconfig.get_python_version()}"
    for path in found:
        if path.parent.name == version:
            return path
    raise EnvironmentBuildError(
        f"the packed environment is of {found[0].parent.name}, the cluster runs {version}: pack it with that one"
    )


def _make_private(directory: Path) -> None:
    """Remove the permissions of group and others that pip, archives and the umask have set."""
    for root, directories, files in os.walk(directory):
        for path in (Path(root, name) for name in (*directories, *files)):
            if not path.is_symlink():
                mode = path.stat().st_mode & 0o700
                path.chmod(mode | 0o700 if path.is_dir() else mode)  # else it could not be removed


def _last_words(text: str) -> str:
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    words = "; ".join(errors) if errors else text.strip()
    return words[-_TAIL:] or "it says nothing"
