"""Takes the leases of an attempt's checkpointLocations; see `runtime.checkpoint.lease`."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

from runtime.checkpoint.lease import LeaseDecision, LeaseHolder, LocationInUseError, decide, lease_file, refusal
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.spark import SparkDriver, SparkVehicleError

POLL_S = 0.2

_FLOCK = "hhqqi0q"
"""The kernel's ``struct flock``: type, whence, start, length, process."""

log = logging.getLogger(__name__)


class LocationLeases:
    """The leases of one attempt.

    Args:
        driver: its Spark driver, which holds them.
        holder: the attempt.
        patience_s: seconds that an earlier attempt of the task has to end, before its driver is killed.
        tell_user: writes a line into the attempt's standard error.
    """

    def __init__(
        self, driver: SparkDriver, holder: LeaseHolder, patience_s: float, tell_user: Callable[[str], None]
    ) -> None:
        self._driver = driver
        self._holder = holder
        self._patience_s = patience_s
        self._tell_user = tell_user

    async def request(self, location: str) -> str | None:
        """`acquire` for the task process, which is answered whatever comes: None, or why it has no lease."""
        try:
            await self.acquire(location)
        except LocationInUseError as refused:
            return str(refused)
        except Exception as error:  # a defect of ours must end this attempt only, and be seen
            log.exception("no lease of %s could be taken", location)
            return f"no lease of the checkpointLocation {location} could be taken: {type(error).__name__}: {error}"
        return None

    async def acquire(self, location: str) -> None:
        """Have the lease of a location from now on, until the attempt has left its driver.

        Where the file system has no locks, or the directory is not to be written to, the query goes without, which the
        user is told.

        Raises:
            LocationInUseError: somebody else writes there.
        """
        path = lease_file(location)
        begun = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_own(path)
            while not await self._lock(path):
                named, locked_by = read_holder(path), lock_holder(path)
                if locked_by is None:
                    continue  # it has become free
                decision = decide(self._holder, named, locked_by, time.monotonic() - begun, self._patience_s)
                if decision is LeaseDecision.REFUSED:
                    raise refusal(location, self._holder, named, locked_by)
                if decision is LeaseDecision.FENCE:
                    self._fence(location, locked_by)
                await asyncio.sleep(POLL_S)
            path.write_bytes(self._holder.encode())
        except (OSError, SparkVehicleError) as error:
            self._tell_user(f"nothing keeps another job off the checkpointLocation {location}: {error}")

    async def _lock(self, path: Path) -> bool:
        locking = asyncio.ensure_future(self._driver.lock_file(path, self._holder.attempt_id))
        try:
            return await asyncio.shield(locking)
        except asyncio.CancelledError:
            await asyncio.wait((locking,))  # or it would be locked after the attempt has given up its locks
            raise

    def _fence(self, location: str, pid: int) -> None:
        what = f"an earlier attempt still writes to the checkpointLocation {location}"
        self._tell_user(f"{what}: its Spark driver, process {pid}, is killed")
        log.warning("Spark driver %d still holds the lease of %s, which is over: killed", pid, location)
        os.kill(pid, signal.SIGKILL)


def _make_own(path: Path) -> None:
    """Make the file where there is none. In a directory of many, its name could be another user's link or file."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        owner = os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(path))


def lease_holder(descriptor: TaskDeploymentDescriptor, driver: SparkDriver, host: str) -> LeaseHolder:
    """An attempt as the holder of a lease."""
    return LeaseHolder(
        descriptor.job_id,
        descriptor.job_name,
        descriptor.task_key,
        descriptor.attempt_id,
        descriptor.attempt_number,
        driver.info.pid,
        host,
    )


def read_holder(path: Path) -> LeaseHolder | None:
    """Whom a lease's file names."""
    return LeaseHolder.decode(path.read_bytes())


def lock_holder(path: Path) -> int | None:
    """The process that has a file locked, if it is not this one; None where none has."""
    with path.open("rb") as file:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid
