"""Takes the leases of an attempt's checkpointLocations; see `runtime.checkpoint.lease`."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from conf.files import make_private
from runtime.checkpoint.lease import (
    LeaseDecision,
    LeaseHolder,
    LeaseUnknownError,
    LocationInUseError,
    decide,
    is_replaced,
    lease_file,
    lock_holder,
    read_holder,
    refusal,
)
from runtime.checkpoint.remote_files import is_remote
from runtime.process_signals import signal_process
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import SparkError

POLL_S = 0.2
PATIENCE_S = 10.0
"""Seconds for which a failing driver or file system is tried again."""

_UNSUPPORTED = frozenset(
    {
        *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL),  # no locks there
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG),  # the file is not accessible
    }
)
"""Errors that show that there can be no lease. Any other error leaves open whether another job writes there."""

logger = logging.getLogger(__name__)


class LocationLeases:
    """The leases of one attempt.

    Args:
        driver: its Spark driver, which holds them.
        holder: the attempt.
        patience_s: seconds that an earlier attempt of the task has to end, before its driver is killed.
        tell_user: writes a line into the attempt's standard error.
        give_up: ends the attempt, with the reason, if another writer cannot be ruled out.
    """

    def __init__(
        self,
        driver: SparkDriver,
        holder: LeaseHolder,
        patience_s: float,
        tell_user: Callable[[str], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._driver = driver
        self._holder = holder
        self._patience_s = patience_s
        self._tell_user = tell_user
        self._give_up = give_up

    async def request(self, location: str) -> str | None:
        """Run `acquire` for the task process, and always answer: None, or why it has no lease."""
        try:
            await self.acquire(location)
        except LocationInUseError as refused:
            return str(refused)
        except LeaseUnknownError as unknown:
            self._give_up(str(unknown))
            return str(unknown)
        except Exception as error:  # a defect of ours must end this attempt only, and be seen
            logger.exception("no lease of %s could be taken", location)
            text = f"no lease of the checkpointLocation {location} could be taken: {type(error).__name__}: {error}"
            self._give_up(text)
            return text
        return None

    async def acquire(self, location: str) -> None:
        """Acquire the lease of a location, and hold it until the attempt has left its driver.

        If the file system has no locks, or the directory is not writable, the query starts without a lease. The
        attempt's standard error says so.

        Raises:
            LocationInUseError: another job or user writes there, or a later attempt of the task has written there.
            LeaseUnknownError: neither the driver nor the file system shows whether another job writes there.
        """
        path = lease_file(location)
        begun = time.monotonic()
        failing_since: float | None = None
        while True:
            try:
                if await self._try(path, location, begun):
                    return
                failing_since = None
            except (OSError, SparkError) as error:
                cause = error if isinstance(error, OSError) else _lock_error(path)
                if cause is not None and cause.errno in _UNSUPPORTED:
                    self._tell_user(f"no lease protects the checkpointLocation {location} from other jobs: {cause}")
                    return
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= PATIENCE_S:
                    raise LeaseUnknownError(
                        f"another job may write to the checkpointLocation {location}. This could not be found out for "
                        f"{PATIENCE_S:g} s, so the query is not started: {error}"
                    ) from error
                logger.warning("the lease of %s is requested again: %s", location, error)
            await asyncio.sleep(POLL_S)

    async def _try(self, path: Path, location: str, begun: float) -> bool:
        """Take the lease if it is free; return whether it was."""
        if is_remote(location):
            make_private(path.parent)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        _make_own(path)
        self._check_order(path, location)
        if await self._lock(path):
            self._check_order(path, location)  # a later attempt may just have had it; this lock goes with the attempt
            path.write_bytes(self._holder.encode())
            return True
        named, locked_by = read_holder(path), lock_holder(path)
        if locked_by is not None:  # else it has become free since
            decision = decide(self._holder, named, locked_by, time.monotonic() - begun, self._patience_s)
            if decision is LeaseDecision.REFUSED:
                raise refusal(location, self._holder, named, locked_by)
            if decision is LeaseDecision.FENCE:
                self._fence(location, path, locked_by)
        return False

    def _check_order(self, path: Path, location: str) -> None:
        if is_replaced(self._holder, named := read_holder(path)):
            raise refusal(location, self._holder, named, None)

    async def _lock(self, path: Path) -> bool:
        locking = asyncio.ensure_future(self._driver.lock_file(path, self._holder.attempt_id))
        try:
            return await asyncio.shield(locking)
        except asyncio.CancelledError:
            # Otherwise the driver would lock it after the attempt has released its locks.
            await asyncio.gather(locking, return_exceptions=True)
            raise

    def _fence(self, location: str, path: Path, pid: int) -> None:
        what = f"an earlier attempt still writes to the checkpointLocation {location}"
        self._tell_user(f"{what}: its Spark driver, process {pid}, is killed")
        logger.warning("Spark driver %d still holds the lease of %s, which is over: killed", pid, location)
        signal_process(pid, signal.SIGKILL, lambda: lock_holder(path) == pid)


def _make_own(path: Path) -> None:
    """Make the file if it is missing. In a shared directory, its name could be another user's link or file."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        owner = os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(path))


def _lock_error(path: Path) -> OSError | None:
    """Return the kernel's error for locks of a file that the driver could not lock; None if locks work there."""
    try:
        lock_holder(path)
    except OSError as error:
        return error
    return None


def lease_holder(descriptor: TaskDeploymentDescriptor, driver: SparkDriver, host: str, epoch: int) -> LeaseHolder:
    """Return an attempt as the holder of a lease; *epoch* is that of the JobMaster that has deployed it."""
    return LeaseHolder(
        descriptor.job.job_id,
        descriptor.job.job_name,
        descriptor.attempt.task_key,
        descriptor.attempt.attempt_id,
        descriptor.attempt.attempt_number,
        driver.info.pid,
        host,
        epoch,
    )
