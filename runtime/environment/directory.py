"""The runtime directory of a cluster: its paths, its lock, its sockets.

It contains:

    cluster.json    addresses and processes (0600)       log/       logs of every process
    cluster.lock    held while the cluster runs          blob/      blobs of the BlobServer
    secret          the cluster's secret (0600)          ha/        state whose handles are in Redis
    run/            sockets and process numbers          redis/     files of the embedded redis-server
    archive/        finished jobs                        jobs/      materialised results of running jobs
    history/        forgotten jobs and figures over time, for `understudy history`: `runtime.history.directory`
    claims/         which master supervises what         rest-token the token of the REST API (0600)
    checkpoints/    of running jobs, with their queries' live state
    audit/          audit log of the processes of this machine
    users.json      users and tokens of a cluster without Redis (0600)
    savepoints/     savepoints (the user's)
    warehouse/      data of managed tables          tables/     definitions of the tables: `runtime.spark.driver.tables`
    spark-events/   Spark's event logs of this machine's drivers: `runtime.spark.driver.event_logs`
    history-server  address of `understudy history-server`, and its lock (0600)
    hive/           metastore and warehouse of jobs with Hive's catalog
    tm-<n>/         files of a TaskManager               application/  the program of an application cluster

``.NAME.environments`` beside it has the virtual environments of `cluster upgrade --to WHEEL`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import struct
import tempfile
from pathlib import Path
from types import TracebackType

from conf.files import sync_directory, sync_names, write_private
from runtime.environment.claims import Claim
from runtime.environment.descriptor import ClusterDescriptor
from runtime.errors import ClusterAlreadyRunning, ClusterNotRunning, RuntimeDirectoryError
from runtime.feature_level import FeatureLevel

CLUSTER_DIR_VARIABLE = "UNDERSTUDY_CLUSTER_DIR"
"""Environment variable of every process of a cluster: `stop` finds the orphans of a killed process by it."""

EVENT_LOGS = "spark-events"
"""Name of the directory of Spark's event logs, as in Spark's own examples."""

SOCKET_PATH_LIMIT = 90  # bytes; the kernel's sun_path has 108, including the final NUL
SOCKET_NAME_ROOM = 40  # bytes reserved for the longest name of a socket

_MEMBERS, _GATE = 0, 1  # bytes of the lock file: the lock itself, and one that `ClusterLock.leave` takes
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


class ClusterDirectory:
    """The runtime directory of one cluster (``cluster.runtime-dir``). The constructor changes no file.

    Attributes:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster_json = root / "cluster.json"
        self.lock_file = root / "cluster.lock"
        self.configuration_file = root / "configuration.json"
        self.secret = root / "secret"
        self.audit_log = root / "audit" / "audit.jsonl"
        self.users = root / "users.json"
        self.run = root / "run"
        self.upgraded_from = self.run / "upgraded-from.json"
        self.log = root / "log"
        self.blob = root / "blob"
        self.ha = root / "ha"
        self.redis = root / "redis"
        self.archive = root / "archive"
        self.jobs = root / "jobs"
        self.checkpoints = root / "checkpoints"
        self.claims = root / "claims"
        self.event_logs = root / EVENT_LOGS
        self.tables = (root / "warehouse", root / "tables", root / "hive")
        self.application = root / "application"
        self.environments = root.with_name(f".{root.name}.environments")

    def taskmanager(self, index: int) -> Path:
        """Return the directory of a TaskManager of this machine, counted from 0."""
        return self.root / f"tm-{index}"

    def create(self) -> None:
        """Create the directory and its parts with mode 0700, and restrict existing ones to that mode.

        Raises:
            RuntimeDirectoryError: it cannot be created, is a link or a file, or belongs to another user.
        """
        parts = (self.run, self.log, self.blob, self.ha, self.redis, self.archive, self.jobs, self.claims)
        self._make(self.root, *parts, *self.tables)

    def make_environments(self) -> None:
        """Create the directory of `cluster upgrade --to WHEEL`, with mode 0700; it stays when the cluster is stopped.

        It is beside the runtime directory. No cluster has that name: an id begins with a letter or digit.

        Raises:
            RuntimeDirectoryError: see `create`.
        """
        self._make(self.environments)

    def _make(self, *directories: Path) -> None:
        try:
            for part in directories:
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
                _make_private(part)
            sync_names(*directories)  # job states, Redis's data and finished jobs in them outlive a loss of power
        except OSError as error:
            raise RuntimeDirectoryError(
                f"cannot make the runtime directory {self.root}: {error.strerror} ({error.filename})",
                "choose another with -D cluster.runtime-dir=DIR",
            ) from error

    def claim(self, name: str) -> Claim:
        """Return the claim on one process of this machine: ``redis``, ``taskmanager-0``, ``master-1``, ..."""
        return Claim(self.claims / name)

    def history_server_claim(self) -> Claim:
        """Return the claim that ``understudy history-server`` holds, with its address while it serves.

        It is not among the other claims: the command may begin before a cluster starts, and stay after its end.
        """
        return Claim(self.root / "history-server")

    def client_claim(self) -> Claim:
        """Return the claim that the client of a per-job or application cluster holds while it needs the cluster."""
        return self.claim("client")

    def masters(self) -> dict[int, str]:
        """Return the system addresses of the masters that use this directory and serve, by their numbers."""
        living = {path.name: Claim(path).living() for path in self.claims.glob("master-*")}
        found = {int(name.removeprefix("master-")): each[1] for name, each in living.items() if each and each[1]}
        return dict(sorted(found.items()))

    def heads(self, *, serving: bool = False) -> list[int]:
        """Return the process ids of the masters here, and of the process that runs a host's workers (``host``).

        Args:
            serving: whether to leave out processes that are still starting.
        """
        claims = [Claim(path) for path in (*self.claims.glob("master-*"), *self.claims.glob("host"))]
        living = [found for claim in claims if (found := claim.living()) is not None]
        return [process.pid for process, address in living if address or not serving]

    def acquire(self) -> ClusterLock:
        """Take the lock exclusively, to start a cluster here, or to clean up after one.

        It is held until it is released, or until this process and those that it was handed to have ended.
        `ClusterLock.share` lets other masters `join`. The root directory is created if it is missing.

        Raises:
            ClusterAlreadyRunning: a cluster runs here, or another command starts one or cleans up.
            RuntimeDirectoryError: the lock file cannot be created.
        """
        self._make(self.root)
        descriptor = self._try_lock(fcntl.F_WRLCK)
        if descriptor is None:
            raise self._refusal()
        lock = ClusterLock(self.lock_file, descriptor, exclusive=True)
        lock.sign(secrets.token_hex(8))
        return lock

    def join(self) -> ClusterLock:
        """Share the lock with the other masters of the cluster that runs here; see `acquire`.

        Raises:
            RuntimeDirectoryError: the lock file cannot be created, or another process holds the lock exclusively.
        """
        descriptor = self._try_lock(fcntl.F_RDLCK)
        if descriptor is None:
            raise RuntimeDirectoryError(
                f"{self.root} is being started or cleaned up (process {self._holder()})", "try again in a moment"
            )
        return ClusterLock(self.lock_file, descriptor, exclusive=False)

    def _refusal(self) -> ClusterAlreadyRunning:
        if self.is_held_alone():
            return ClusterAlreadyRunning(
                f"another command starts or stops the cluster in {self.root} (process {self._holder()})",
                "try again in a moment, or start another with -D cluster.id=NAME",
            )
        return ClusterAlreadyRunning(
            f"a cluster already runs in {self.root} (master: process {self._holder()})",
            "stop it with `understudy stop`, or start another with -D cluster.id=NAME",
        )

    def is_running(self) -> bool:
        """Return whether a process holds the lock. The check does not take the lock."""
        return self._conflicts_with(fcntl.F_WRLCK)

    def is_held_alone(self) -> bool:
        """Return whether a process holds the lock exclusively: to start a cluster, to stop it or to clean up."""
        return self._conflicts_with(fcntl.F_RDLCK)

    def _conflicts_with(self, kind: int) -> bool:
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return _lock(descriptor, fcntl.F_OFD_GETLK, kind, _MEMBERS) != fcntl.F_UNLCK
        finally:
            os.close(descriptor)

    def incarnation(self) -> str | None:
        """Return the id of the cluster start for which the lock is or was held; None without a lock file.

        Each `acquire` makes a new one.
        """
        signature = self._signature()
        return None if signature is None else signature[1]

    def write_descriptor(self, descriptor: ClusterDescriptor, level: FeatureLevel | None = None) -> None:
        """Write ``cluster.json``, in the format of the cluster's feature level. Raises OSError."""
        descriptor.write(self.cluster_json, level)

    def read_descriptor(self) -> ClusterDescriptor:
        """Return the content of ``cluster.json``, which a killed cluster may have left: ``is_running`` says whether.

        Raises:
            ClusterNotRunning: there is no such file.
            RuntimeDirectoryError: it cannot be read.
        """
        try:
            return ClusterDescriptor.read(self.cluster_json)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ClusterNotRunning(
                f"no cluster runs in {self.root}",
                "start one with `understudy start`, or name another with -D cluster.id=NAME",
            ) from error

    def socket_dir(self) -> Path:
        """Return the directory for Unix sockets, with mode 0700.

        It is ``run/``, or a short one in the temporary directory if paths in ``run/`` would exceed 90 bytes. A file in
        ``run/`` then names the short one, so that every process finds it.

        Raises:
            RuntimeDirectoryError: it cannot be created.
        """
        if len(os.fsencode(self.run)) + 1 + SOCKET_NAME_ROOM <= SOCKET_PATH_LIMIT:
            return self.run
        short = self._short_socket_dir()
        if short is not None:
            return short
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (mkdtemp makes it private and new)
            if len(os.fsencode(parent)) + len("/us-xxxxxxxx/") + SOCKET_NAME_ROOM > SOCKET_PATH_LIMIT:
                continue
            try:
                made = Path(tempfile.mkdtemp(prefix="us-", dir=parent))
                write_private(self._socket_note, os.fsencode(made))
            except OSError as error:
                raise RuntimeDirectoryError(
                    f"cannot make a directory for sockets in {parent}: {error.strerror}",
                    "set TMPDIR to one that can be",
                ) from error
            return made
        raise RuntimeDirectoryError(
            f"no directory with a path short enough for sockets: {self.run}",
            "choose a shorter one with -D cluster.runtime-dir=DIR",
        )

    def clean(self) -> None:
        """Remove the files that only a running cluster has: descriptor, configuration, sockets and claims.

        Call it with the lock held, when every process has ended. Logs, archive, blobs and state stay.

        The configuration goes first, and its removal is durable before the next one. Otherwise a kill or a loss of
        power could leave a cluster that `start-master` takes for a killed one, but without its sockets' directory. The
        descriptor goes last: as long as it exists, the next `stop` removes the rest.

        Raises:
            OSError: a file cannot be removed.
        """
        self.configuration_file.unlink(missing_ok=True)
        sync_directory(self.root)
        short = self._short_socket_dir()
        if short is not None:
            shutil.rmtree(short)
        if self.run.exists():
            shutil.rmtree(self.run)
        if self.claims.exists():
            shutil.rmtree(self.claims)
        self.cluster_json.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the files that only a further start would need, after `clean`: secrets, blobs, state, workers' files.

        Logs, Spark's event logs, the audit log, archive, checkpoints, savepoints and tables stay.

        Raises:
            OSError: a file cannot be removed.
        """
        for part in (
            self.ha,
            self.redis,
            self.jobs,
            self.application,
            *self.root.glob("blob*"),
            *self.root.glob("tm-*"),
        ):
            if part.is_dir():
                shutil.rmtree(part)
        for path in (self.secret, self.users, self.root / "rest-token"):
            path.unlink(missing_ok=True)
        for part in (self.archive, self.checkpoints, *self.tables):
            if part.is_dir() and not any(part.iterdir()):
                part.rmdir()

    @property
    def _socket_note(self) -> Path:
        return self.run / "socket-dir"

    def _short_socket_dir(self) -> Path | None:
        """Return the short directory that was created before, unless it is missing or others may access it."""
        try:
            noted = Path(os.fsdecode(self._socket_note.read_bytes()))
            status = noted.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        return noted if private else None

    def _try_lock(self, kind: int) -> int | None:
        """Return the open lock file after locking it; None if another process holds a conflicting lock."""
        while True:
            try:
                descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise RuntimeDirectoryError(
                    f"cannot open {self.lock_file}: {error.strerror}",
                    "choose another directory with cluster.runtime-dir",
                ) from error
            try:
                _lock(descriptor, fcntl.F_OFD_SETLK, kind, _MEMBERS)
                if _is_still(self.lock_file, descriptor):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # the last holder removed the file after it was opened here, before it was locked

    def _holder(self) -> str:
        signature = self._signature()
        return signature[0] if signature is not None and signature[0] else "unknown"

    def _signature(self) -> tuple[str, str] | None:
        try:
            text = self.lock_file.read_text("ascii", errors="replace")
        except FileNotFoundError:
            return None
        holder, _, incarnation = text.partition("\n")[0].partition(" ")
        return holder, incarnation


class ClusterLock:
    """The held lock of a runtime directory: exclusive, or shared by the masters of one cluster.

    It is an open file description lock (fcntl(2)):

    - A holder that shares it may request it exclusively, and keeps its share if that is refused.
    - A process can check whether it is held without taking it.
    - It can be handed to a started process. Other started processes and forked children do not inherit it.
    - It is free when its holders have ended, also if they were killed.

    Attributes:
        exclusive: whether this process holds it exclusively at present.
        incarnation: the cluster start for which it is held; see `ClusterDirectory.incarnation`.
    """

    def __init__(self, path: Path, descriptor: int, *, exclusive: bool) -> None:
        self.exclusive = exclusive
        self.incarnation = ""
        self._path = path
        self._descriptor: int | None = descriptor
        os.register_at_fork(after_in_child=self.hand_over)

    @classmethod
    def handed(cls, path: Path, descriptor: int, *, exclusive: bool) -> ClusterLock:
        """Return the lock that the parent process has handed to this one as *descriptor*."""
        os.set_inheritable(descriptor, False)
        lock = cls(path, descriptor, exclusive=exclusive)
        if exclusive:
            lock.sign(os.pread(descriptor, 1024, 0).decode("ascii").partition(" ")[2].strip())
        return lock

    @property
    def held(self) -> bool:
        """True if this process holds the lock."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> int:
        """The descriptor to hand to another process. Raises RuntimeError if the lock is no longer held."""
        if self._descriptor is None:
            raise RuntimeError(f"{self._path} is not held")
        return self._descriptor

    def sign(self, incarnation: str) -> None:
        """Write this process's id, for messages, and the incarnation into the file. Raises OSError."""
        self.incarnation = incarnation
        text = f"{os.getpid()} {incarnation}\n".encode()
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def share(self) -> None:
        """Let other masters of this cluster join; starting another cluster is still refused."""
        if self._descriptor is not None:
            _lock(self._descriptor, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, _MEMBERS)
            self.exclusive = False

    def is_alone(self) -> bool:
        """Take the lock exclusively if no other process shares it, so that none can join; return whether it worked."""
        if self._descriptor is None:
            return False
        try:
            _lock(self._descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _MEMBERS)
        except BlockingIOError:
            return False
        self.exclusive = True
        return True

    def leave(self) -> bool:
        """Release the share, unless this is the last holder: then take the lock exclusively.

        Returns:
            whether this was the last holder. If several leave at the same time, exactly one of them gets True.
        """
        if self._descriptor is None:
            return False
        _lock(self._descriptor, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _GATE)
        try:
            if not self.is_alone():
                _lock(self._descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _MEMBERS)
                return False
        finally:
            _lock(self._descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _GATE)
        return True

    def release(self) -> None:
        """Release the lock, and remove its file if no other process holds it; idempotent.

        A process that has left may be the last one to release. The file may be that of the next holder by then.
        """
        if self._descriptor is not None:
            if self.is_alone() and _is_still(self._path, self._descriptor):
                self._path.unlink(missing_ok=True)
            self.hand_over()

    def hand_over(self) -> None:
        """Close this process's copy; a process to which the lock was handed keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ClusterLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
        else:  # the file stays: the process that handed over the lock still holds it, and cleans up
            self.hand_over()


def _lock(descriptor: int, command: int, kind: int, byte: int) -> int:
    """Call fcntl(2) for one byte, and return the kind of lock in its answer. Raises BlockingIOError."""
    answer = fcntl.fcntl(descriptor, command, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
    return int(struct.unpack(_FLOCK, answer)[0])


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether the path still names this open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _make_private(directory: Path) -> None:
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link or a file, not a directory", str(directory))
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}", str(directory))
    if status.st_mode & 0o077:
        directory.chmod(0o700)
