"""The runtime directory of a cluster: its paths, its lock, its sockets.

cluster.json    where everything is (0600)           log/       logs of every process
cluster.lock    held while the cluster runs          blob/      blobs of the BlobServer
secret          the cluster's secret (0600)          ha/        state whose handles are in Redis
run/            sockets and process numbers          redis/     files of the embedded redis-server
archive/        finished jobs                        jobs/      materialised results of running jobs
claims/         which master looks after what        rest-token the token of the REST API (0600)
checkpoints/    of running jobs, with their queries' live state
savepoints/     savepoints (the user's)
tm-<n>/         a TaskManager's own               application/  the program of an application cluster
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType

from conf.files import write_private
from runtime.environment.claims import Claim
from runtime.environment.descriptor import ClusterDescriptor
from runtime.environment.errors import ClusterAlreadyRunning, ClusterNotRunning, RuntimeDirectoryError

CLUSTER_DIR_VARIABLE = "UNDERSTUDY_CLUSTER_DIR"
"""In the environment of every process of a cluster: by it `stop` finds those that a killed parent left behind."""

SOCKET_PATH_LIMIT = 90  # bytes; the kernel's sun_path takes 108 with the closing NUL
SOCKET_NAME_ROOM = 40  # bytes kept for the longest name of a socket

_PROBE_PATIENCE = 0.25  # seconds: a probe holds the lock shared for some microseconds, which a start must not mistake


class ClusterDirectory:
    """The runtime directory of one cluster (``cluster.runtime-dir``). Making the object touches nothing.

    Attributes:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster_json = root / "cluster.json"
        self.lock_file = root / "cluster.lock"
        self.configuration_file = root / "configuration.json"
        self.secret = root / "secret"
        self.run = root / "run"
        self.log = root / "log"
        self.blob = root / "blob"
        self.ha = root / "ha"
        self.redis = root / "redis"
        self.archive = root / "archive"
        self.jobs = root / "jobs"
        self.checkpoints = root / "checkpoints"
        self.claims = root / "claims"
        self.application = root / "application"

    def taskmanager(self, index: int) -> Path:
        """The directory of a TaskManager of this machine, counted from 0."""
        return self.root / f"tm-{index}"

    def create(self) -> None:
        """Makes the directory and its parts with mode 0700, and tightens those that are already there.

        Raises:
            RuntimeDirectoryError: it cannot be made, is a link or a file, or belongs to another user.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (
                self.root,
                self.run,
                self.log,
                self.blob,
                self.ha,
                self.redis,
                self.archive,
                self.jobs,
                self.claims,
            ):
                part.mkdir(mode=0o700, exist_ok=True)
                _make_private(part)
        except OSError as error:
            raise RuntimeDirectoryError(
                f"cannot make the runtime directory {self.root}: {error.strerror} ({error.filename})",
                "choose another with -D cluster.runtime-dir=DIR",
            ) from error

    def claim(self, name: str) -> Claim:
        """The claim of one process of this machine: ``redis``, ``taskmanager-0``, ``master-1``, ..."""
        return Claim(self.claims / name)

    def client_claim(self) -> Claim:
        """Held by the client for which a per-job or application cluster was started, while it needs the cluster."""
        return self.claim("client")

    def masters(self) -> dict[int, str]:
        """The living masters that use this directory: the address of each one's system, by its number."""
        found = {}
        for path in self.claims.glob("master-*"):
            living = Claim(path).living()
            if living is not None and living[1]:
                found[int(path.name.removeprefix("master-"))] = living[1]
        return dict(sorted(found.items()))

    def heads(self) -> list[int]:
        """The processes that everything here belongs to: masters, or that of a host's workers (``host``)."""
        claims = [Claim(path) for path in (*self.claims.glob("master-*"), *self.claims.glob("host"))]
        return [living[0].pid for claim in claims if (living := claim.living()) is not None]

    def join(self) -> ClusterLock:
        """Takes the lock together with the other masters of the cluster that runs here; see `acquire`.

        Raises:
            RuntimeDirectoryError: the lock file cannot be made, or somebody has it for himself.
        """
        deadline = time.monotonic() + _PROBE_PATIENCE
        while (descriptor := self._try_lock(fcntl.LOCK_SH)) is None:
            if time.monotonic() >= deadline:
                raise RuntimeDirectoryError(
                    f"{self.root} is being started or cleaned up (process {self._holder()})", "try again in a moment"
                )
            time.sleep(0.01)
        return ClusterLock(self.lock_file, descriptor, exclusive=False)

    def acquire(self) -> ClusterLock:
        """Takes the lock that says that a cluster runs here; held until it is released or this process ends.

        `ClusterLock.share` lets other masters `join`.

        Raises:
            ClusterAlreadyRunning: another process has it.
            RuntimeDirectoryError: the lock file cannot be made.
        """
        deadline = time.monotonic() + _PROBE_PATIENCE
        while (descriptor := self._try_lock(fcntl.LOCK_EX)) is None:
            if time.monotonic() >= deadline:
                raise ClusterAlreadyRunning(
                    f"a cluster already runs in {self.root} (master: process {self._holder()})",
                    "stop it with `python -m runtime.cluster stop`, or start another with -D cluster.id=NAME",
                )
            time.sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return ClusterLock(self.lock_file, descriptor, exclusive=True)

    def is_running(self) -> bool:
        """Whether some process holds the lock."""
        if not self.lock_file.exists():
            return False
        descriptor = self._try_lock(fcntl.LOCK_EX)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def write_descriptor(self, descriptor: ClusterDescriptor) -> None:
        """Says where everything is. Raises OSError."""
        descriptor.write(self.cluster_json)

    def read_descriptor(self) -> ClusterDescriptor:
        """Where everything of the cluster is; it may be that of a cluster that died: ``is_running`` knows.

        Raises:
            ClusterNotRunning: no cluster says anything here.
            RuntimeDirectoryError: what it says cannot be read.
        """
        try:
            return ClusterDescriptor.read(self.cluster_json)
        except FileNotFoundError as error:
            raise ClusterNotRunning(
                f"no cluster runs in {self.root}",
                "start one with `python -m runtime.cluster start`, or name another with -D cluster.id=NAME",
            ) from error

    def socket_dir(self) -> Path:
        """The directory for Unix sockets, with mode 0700: ``run/``, or a short one under the temporary directory when
        the paths would exceed 90 bytes. The short one is written down in ``run/``, so that every process finds it.

        Raises:
            RuntimeDirectoryError: it cannot be made.
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
        """Removes what only a running cluster has: the descriptor, the handed-over configuration, the sockets.

        Call it with the lock held and every process ended. Logs, archive, blobs and state stay.

        Raises:
            OSError: something cannot be removed.
        """
        short = self._short_socket_dir()
        if short is not None:
            shutil.rmtree(short)
        if self.run.exists():
            shutil.rmtree(self.run)
        if self.claims.exists():
            shutil.rmtree(self.claims)
        self.configuration_file.unlink(missing_ok=True)
        self.cluster_json.unlink(missing_ok=True)

    def discard(self) -> None:
        """After `clean`, removes what only a further start would need: secrets, blobs, state, the workers' own files.

        Logs, archive, checkpoints and savepoints stay.

        Raises:
            OSError: something cannot be removed.
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
        for path in (self.secret, self.root / "rest-token"):
            path.unlink(missing_ok=True)
        for part in (self.archive, self.checkpoints):
            if part.is_dir() and not any(part.iterdir()):
                part.rmdir()

    @property
    def _socket_note(self) -> Path:
        return self.run / "socket-dir"

    def _short_socket_dir(self) -> Path | None:
        """The short directory made earlier, unless it is gone or no longer ours alone."""
        try:
            noted = Path(os.fsdecode(self._socket_note.read_bytes()))
            status = noted.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        return noted if private else None

    def _try_lock(self, kind: int) -> int | None:
        """The open lock file, locked; None when another process has it."""
        while True:
            try:
                descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise RuntimeDirectoryError(
                    f"cannot open {self.lock_file}: {error.strerror}",
                    "choose another directory with cluster.runtime-dir",
                ) from error
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                if _is_still(self.lock_file, descriptor):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            os.close(descriptor)  # its last holder removed the file between our open and our lock

    def _holder(self) -> str:
        try:
            return self.lock_file.read_text("ascii").strip() or "unknown"
        except (FileNotFoundError, UnicodeDecodeError):
            return "unknown"


class ClusterLock:
    """The held lock of a runtime directory.

    A forked child of the holder does not keep it (its copy is closed in the child), and neither does a spawned one, so
    that it goes free when the holder ends, however that comes.

    Attributes:
        exclusive: whether it was taken by the first master of a cluster, or by one that joined.
    """

    def __init__(self, path: Path, descriptor: int, *, exclusive: bool) -> None:
        self.exclusive = exclusive
        self._path = path
        self._descriptor: int | None = descriptor
        os.register_at_fork(after_in_child=self._forget)

    def share(self) -> None:
        """Let other masters of this cluster in; whoever wants to start another one is still refused."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Whether nobody else has it; nobody can come in from then on."""
        if self._descriptor is None:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A conversion that fails may have dropped the lock that was there.
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            return False
        return True

    def release(self) -> None:
        """Gives the lock up, and removes its file where nobody else has it. Doing it twice does nothing."""
        if self._descriptor is not None:
            if self.is_alone():
                self._path.unlink(missing_ok=True)
            self._forget()

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ClusterLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one that the path names now."""
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
