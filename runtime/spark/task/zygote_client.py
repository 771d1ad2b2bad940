"""`Zygote`: the owner's side of the zygote, for an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from actors.errors import AuthenticationError
from actors.rpc.security import check_peer_is_us
from runtime.jobgraph import codec
from runtime.spark.driver.launch import HASH_SEED, hash_seed, inherited_environment
from runtime.spark.errors import WireError, ZygoteError, ZygoteLostError
from runtime.spark.messages import (
    Answer,
    Ask,
    Cancel,
    EndHold,
    EndSession,
    FromTask,
    LeaseAnswer,
    Question,
    Run,
    ToTask,
    pack,
    unpack_from_task,
)
from runtime.spark.process import open_process
from runtime.spark.spec import PreparedSpec, TaskSpec
from runtime.spark.wire import FrameReader, Message, encode

logger = logging.getLogger(__name__)

HAND_OVER_S = 10.0
"""Longest time in seconds that a zygote may take for one step of a hand-over."""

HELD = "held-"
"""Beginning of the names of the sockets on which zygotes without an owner wait for one."""

_MAX_FDS = 64
_ZYGOTE = b"runtime.spark.task.zygote"


class TaskProcess:
    """A forked task process, for its TaskExecutor.

    Iterate over `messages()` for the task's messages; `wait()` for its exit status.
    """

    spec: TaskSpec
    """The task that it runs; unset while the process is only prepared."""

    def __init__(self, control: socket.socket, pid: int = 0) -> None:
        self.pid = pid
        self._control = control
        self._reader = FrameReader()
        self._received: deque[FromTask] = deque()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exit.add_done_callback(_retrieved)
        self._questions: dict[int, asyncio.Future[list[Any]]] = {}
        self._asked = 0
        self.can_hold = True
        """Whether it knows `Question.HOLD_STARTS`; a process of an earlier release does not."""

    async def messages(self) -> AsyncIterator[FromTask]:
        """Yield the task's messages until it closes its end."""
        while (message := await self._receive()) is not None:
            yield message

    async def _receive(self) -> FromTask | None:
        while True:
            message = await self._next()
            if not isinstance(message, Answer):
                return message
            # Only here, so that it comes after the messages that were sent before it.
            self._answered(message)

    async def _next(self) -> FromTask | None:
        while not self._received:
            await self._readable()
            # Read here and not before: a hand-over between two turns of the loop loses no byte.
            try:
                data = self._control.recv(65536)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.feed(data)
        return self._received.popleft()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._control, readable.set)
        try:
            await readable.wait()
        finally:
            if self._control.fileno() >= 0:
                loop.remove_reader(self._control)

    def feed(self, data: bytes) -> None:
        """Take bytes that the task has sent; a successor first takes the `unread` ones of its predecessor."""
        for plain in self._reader.feed(data):
            try:
                message = unpack_from_task(plain)
            except WireError as error:  # the job's code could have sent this
                logger.warning("task process %d has sent an invalid message: %s", self.pid, error)
                continue
            self._received.append(message)

    @property
    def unread(self) -> bytes:
        """Bytes that the task has sent and `messages` has not yielded, without those that are still in the socket."""
        return b"".join(encode(pack(message)) for message in self._received) + self._reader.incomplete

    @property
    def has_ended(self) -> bool:
        """Return whether the process is known to have ended."""
        return self._exit.done()

    @property
    def has_questions(self) -> bool:
        """Return whether a question to the task waits for its answer."""
        return bool(self._questions)

    @property
    def control(self) -> socket.socket:
        """The TaskExecutor's end of its control socket."""
        return self._control

    async def thread_dump(self) -> list[tuple[str, str]]:
        """Return the stack of each thread of the process, by name. Needs a concurrent iteration over `messages`.

        Waits for as long as the process does not answer. Raises `ZygoteError` when it ends during that time, OSError
        when it had ended before.
        """
        threads = await self._ask(Question.THREADS)
        return [(str(item[0]), str(item[1])) for item in threads if isinstance(item, list) and len(item) == 2]

    async def failed_queries(self) -> list[tuple[str, str, str]]:
        """Return run id, name and error of each streaming query that has failed and was not started again.

        Waits, and raises, as `thread_dump`.
        """
        found = await self._ask(Question.FAILED_QUERIES)
        return [
            (str(item[0]), str(item[1]), str(item[2])) for item in found if isinstance(item, list) and len(item) == 3
        ]

    async def hold_starts(self) -> list[str]:
        """Return the names of the streaming queries that are being started; if there are none, further starts wait.

        They wait for `end_hold`. Waits, and raises, as `thread_dump`.
        """
        return [str(name) for name in await self._ask(Question.HOLD_STARTS)]

    async def end_hold(self, *, stops: bool) -> None:
        """Let the starts that wait happen; *stops*: refuse them, and all later ones."""
        with contextlib.suppress(OSError):  # it has ended
            await self._tell(EndHold(self._asked, stops))

    async def _ask(self, question: Question) -> list[Any]:
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._asked += 1
        number = self._asked
        self._questions[number] = answer
        try:
            if self._exit.done():
                raise ZygoteError(f"the task process {self.pid} has ended")
            await self._tell(Ask(number, question))
            return await answer
        finally:
            del self._questions[number]

    def _answered(self, found: Answer) -> None:
        answer = self._questions.get(found.number)
        if answer is not None and not answer.done():
            answer.set_result(found.values)

    async def _tell(self, message: ToTask) -> None:
        """Send a message; raises OSError where the process has ended."""
        await asyncio.get_running_loop().sock_sendall(self._control, encode(pack(message)))

    async def ready(self) -> bool:
        """Wait until a process of `Zygote.prepare` is ready; return False if it ended before."""
        return await self._receive() is not None

    async def run(self, spec: TaskSpec) -> bool:
        """Let a ready process run its one task; return False if it had ended, so that the task was not started.

        `spec.work_dir` is as with `Zygote.fork`; the spec's endpoint is the one that the process was prepared for.
        """
        Path(spec.work_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await self._tell(Run(spec))
        except OSError:
            return False
        self.spec = spec
        return await self._receive() is not None

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Call *callback* in the loop when the process has ended."""
        self._exit.add_done_callback(lambda _: callback())

    async def answer_lease(self, number: int, error: str | None) -> None:
        """Answer a task's `LeaseRequest`: it has the lease, or *error* is the reason why not."""
        with contextlib.suppress(OSError):  # it has ended
            await self._tell(LeaseAnswer(number, error))

    async def cancel(self) -> None:
        """Ask the task to cancel itself: its Spark jobs end, then `TaskCancelled` is raised in the user's code."""
        with contextlib.suppress(OSError):  # it has ended
            await self._tell(Cancel())

    async def end_session(self) -> None:
        """Let a task that keeps a session open for a client finish."""
        with contextlib.suppress(OSError):  # it has ended
            await self._tell(EndSession())

    def kill(self) -> None:
        """Kill the task with all processes that it started."""
        if self.pid and not self._exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit status, negative for a signal.

        Raises `ZygoteLostError` if the zygote, and so the task, has died.
        """
        return await asyncio.shield(self._exit)

    def close(self) -> None:
        """Close the control socket; a task that still runs then ends, as on the loss of its TaskExecutor."""
        self._control.close()

    def ended(self, status: int) -> None:
        """Record the exit status; the zygote's reader calls this."""
        self._end_of_messages()
        if not self._exit.done():
            self._exit.set_result(status)

    def lost(self, error: ZygoteLostError) -> None:
        """Record the loss of the zygote; the zygote's reader calls this."""
        self._end_of_messages()
        if not self._exit.done():
            self._exit.set_exception(error)

    def _end_of_messages(self) -> None:
        """End `messages` after those already sent, even if a daemon that the task left holds the task's end open."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RD)
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(ZygoteError(f"the task process {self.pid} has ended"))


class Zygote:
    """The warm process that forks task processes; start it with `await Zygote.start()`, or adopt one (`HeldZygote`).

    Args:
        process: its process, if that is a child of this one.
        pid: its process id.
        sock: the owner's end of its socket.
        reader: has what was read from that before.
    """

    def __init__(
        self, process: subprocess.Popen[bytes] | None, pid: int, sock: socket.socket, reader: FrameReader | None = None
    ) -> None:
        self._process = process
        self.pid = pid
        self._sock = sock
        self._reader = reader or FrameReader()
        self._write_lock = asyncio.Lock()
        self._requests = 0
        self._forks: dict[int, tuple[TaskProcess, asyncio.Future[int]]] = {}
        self._tasks: dict[int, TaskProcess] = {}
        self._lost: ZygoteLostError | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(_retrieved)
        self._reading = asyncio.create_task(self._read(), name="zygote-reader")

    @classmethod
    async def start(cls, log_file: Path | None = None, timeout: float = 60.0) -> Zygote:
        """Start the zygote and wait until it is warm, 1 to 2 s. Raises `ZygoteError`."""
        ours, theirs = socket.socketpair()
        env = {
            **inherited_environment(),
            HASH_SEED: hash_seed(),
            # libraries that would start threads on import: a process with threads cannot fork safely
            "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "no_grpc_proxy": "localhost",
        }
        output = (
            subprocess.DEVNULL if log_file is None else os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        )
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 -- a vfork; its end is waited for on a thread
                [sys.executable, "-m", "understudy.runtime.spark.task.zygote", str(theirs.fileno())],
                env=env,
                cwd=Path(__file__).resolve().parents[3],  # so that the runtime is found where it is not installed
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ZygoteError(f"the zygote could not be started: {error}") from error
        finally:
            theirs.close()
            if output >= 0:
                os.close(output)
        ours.setblocking(False)
        zygote = cls(process, process.pid, ours)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(zygote._ready)
        except (TimeoutError, ZygoteLostError) as error:
            await zygote.stop()
            where = f"; see {log_file}" if log_file else ""
            raise ZygoteError(f"the zygote did not become ready within {timeout:.0f} s, or ended{where}") from error
        return zygote

    @property
    def alive(self) -> bool:
        """Return whether the zygote serves."""
        return self._lost is None

    async def fork(self, spec: TaskSpec) -> TaskProcess:
        """Fork a task process, which starts at once.

        `spec.work_dir` is created if missing (0700); the task's output goes to `stdout` and `stderr` in it.
        Raises `ZygoteError`, `ZygoteLostError`.
        """
        Path(spec.work_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        task = await self._fork({"spec": codec.encode(spec)})
        task.spec = spec
        return task

    async def prepare(self, spec: PreparedSpec) -> TaskProcess:
        """Fork a process that prepares itself for a task: wait for `TaskProcess.ready`, then let it `run` one.

        Raises `ZygoteError`, `ZygoteLostError`.
        """
        return await self._fork({"prepared": codec.encode(spec)})

    async def _fork(self, message: Message) -> TaskProcess:
        if self._lost is not None:
            raise self._lost
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        task = TaskProcess(ours)
        self._requests += 1
        request = self._requests
        forked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[request] = (task, forked)
        try:
            await self._send({"op": "fork", "id": request, **message}, theirs.fileno())
            task.pid = await forked
        except OSError as error:
            task.close()
            raise ZygoteLostError(f"the zygote is gone: {error}") from error
        except BaseException:
            task.close()
            raise
        finally:
            self._forks.pop(request, None)
            theirs.close()
        return task

    async def stop(self) -> None:
        """End the zygote and all its tasks."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._sock.close()
        self._lose("the zygote was stopped")
        process = self._process
        if process is None:
            return  # another process waits for its end
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, lambda: process.wait(5))
        except subprocess.TimeoutExpired:
            process.kill()
            await loop.run_in_executor(None, process.wait)

    # ---------------------------------------------------------------- a hand-over

    @property
    def is_busy(self) -> bool:
        """Return whether it is forking."""
        return bool(self._forks) or self._write_lock.locked()

    def hand_over(
        self,
        kept: Iterable[TaskProcess],
        state: bytes,
        until: float,
        driver: tuple[int, int],
        directory: Path,
    ) -> None:
        """Leave this zygote, and the tasks that it keeps, to the successor of this process. Blocks.

        When this returns, the end of this process does not end them any more. It has to end now: it must not read
        from them again. After an error they end with this process, or are left to a successor.

        Args:
            kept: the tasks that stay; all others end.
            state: what the successor has to know.
            until: when the tasks end, and their driver is killed, unless a successor has adopted them by then. In
                seconds of the clock that runs through suspend, which all processes of the machine share.
            driver: pid and start time of their Spark driver.
            directory: in which the successor looks for `HeldZygote`; this user's alone.

        Raises:
            OSError, WireError: the zygote has ended, or does not answer.
        """
        self._sock.settimeout(HAND_OVER_S)
        for task in kept:
            socket.send_fds(self._sock, [encode({"op": "keep", "pid": task.pid})], [task.control.fileno()])
        with _listening(directory, f"{HELD}{self.pid}") as listener:
            order = encode({"op": "hand_over", "state": state, "until": until, "driver": list(driver)})
            sent = socket.send_fds(self._sock, [order], [listener.fileno()])
            if sent < len(order):  # else the zygote may have ended by now, if it had no time to wait
                self._sock.sendall(memoryview(order)[sent:])
        while data := self._sock.recv(65536):
            if any(message.get("op") == "held" for message in self._reader.feed(data)):
                return
        raise WireError("the zygote has ended")

    async def __aenter__(self) -> Zygote:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def runs(self, task: TaskProcess) -> bool:
        """Return whether it has forked that task, which has not ended."""
        return self._tasks.get(task.pid) is task

    async def wait_until_idle(self) -> None:
        """Wait until all its tasks have ended."""
        for task in list(self._tasks.values()):
            with contextlib.suppress(ZygoteLostError):
                await task.wait()

    def take(self, tasks: Mapping[int, TaskProcess]) -> None:
        """Take the tasks of an adopted zygote, by pid: their ends are reported to them."""
        self._tasks.update(tasks)

    async def _send(self, message: Message, descriptor: int) -> None:
        frame = encode(message)
        async with self._write_lock:
            while True:
                try:
                    sent = socket.send_fds(self._sock, [frame], [descriptor])
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.001)  # the zygote reads whenever it is not forking
            if sent < len(frame):
                await asyncio.get_running_loop().sock_sendall(self._sock, memoryview(frame)[sent:])

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reason = "the zygote died"
        try:
            while data := await loop.sock_recv(self._sock, 65536):
                for message in self._reader.feed(data):
                    self._handle(message)
        except (OSError, WireError) as error:
            reason = f"the zygote died: {error}"
        logger.warning("%s, and its tasks with it", reason)
        self._lose(reason)

    def _handle(self, message: Message) -> None:
        match message:
            case {"op": "ready"}:
                if not self._ready.done():
                    self._ready.set_result(None)
            case {"op": "forked", "id": request, "pid": pid}:
                if request not in self._forks:  # the caller was cancelled, and does not wait for the task
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                    return
                task, forked = self._forks[request]
                self._tasks[pid] = task
                if not forked.done():
                    forked.set_result(pid)
            case {"op": "fork_failed", "id": request, "error": error} if request in self._forks:
                self._forks[request][1].set_exception(ZygoteError(f"no task process could be forked: {error}"))
            case {"op": "exit", "pid": pid, "status": status}:
                if (ended := self._tasks.pop(pid, None)) is not None:
                    ended.ended(status)
            case _:
                raise WireError(f"the zygote sent {message.get('op')!r}, which is unknown")

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = ZygoteLostError(reason)
        for _, forked in self._forks.values():
            if not forked.done():
                forked.set_exception(self._lost)
        for task in self._tasks.values():
            task.lost(self._lost)
        if not self._ready.done():
            self._ready.set_exception(self._lost)


class HeldZygote:
    """A zygote that its former owner has handed over, and what this process may adopt with it.

    Attributes:
        state: what the former owner has left to its successor.
        pids: the tasks that it keeps.
    """

    def __init__(self, sock: socket.socket, path: Path) -> None:
        self._sock = sock
        self._path = path
        self._reader = FrameReader()
        self._controls: dict[int, socket.socket] = {}
        self._ended: dict[int, int] = {}
        self._pid = int(path.name.removeprefix(HELD))
        self.state = b""

    @classmethod
    def find(cls, directory: Path) -> Iterator[HeldZygote]:
        """Yield the zygotes that wait in a directory; end those that do not answer, with their tasks. Blocks.

        So after this no task of a former owner runs, except those that can be adopted.
        """
        for path in sorted(directory.glob(f"{HELD}*")):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(HAND_OVER_S)
            held = cls(sock, path)
            try:
                with _short(directory) as short:
                    sock.connect(f"{short}/{path.name}")
                check_peer_is_us(sock)
                held._read()
            except AuthenticationError as error:
                logger.error("%s is not a socket of this user, and is ignored: %s", path, error)
                held.close()
            except (OSError, WireError) as error:
                logger.info("no tasks are adopted from %s: %s", path.name, error)
                held.end()
            else:
                yield held

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._controls)

    def _read(self) -> None:
        descriptors = deque[int]()
        try:
            while True:
                data, found, _, _ = socket.recv_fds(self._sock, 65536, _MAX_FDS)
                descriptors += found
                if not data:
                    raise WireError("the zygote has ended")
                for message in self._reader.feed(data):
                    match message:
                        case {"op": "held", "state": state}:
                            self.state = state
                        case {"op": "kept", "pid": pid} if descriptors:
                            self._controls[pid] = socket.socket(fileno=descriptors.popleft())
                        case {"op": "all"}:
                            return
                        case _:
                            raise WireError(f"a zygote without an owner sent {message.get('op')!r}, which is unknown")
        finally:
            for left in descriptors:
                os.close(left)

    def adopt(self) -> None:
        """Become its owner; `owned` has it then. Blocks.

        Raises:
            OSError, WireError: it has ended, or its time was over. Its tasks then end.
        """
        self._sock.sendall(encode({"op": "adopt"}))
        while data := self._sock.recv(65536):
            for message in self._reader.feed(data):
                if message.get("op") == "adopted":
                    self._ended = dict(message["ended"])
                    self._path.unlink(missing_ok=True)
                    return
        raise WireError("the zygote has ended")

    def owned(self) -> tuple[Zygote, dict[int, TaskProcess]]:
        """Return the zygote after `adopt`, and its tasks by pid; call it in the event loop."""
        self._sock.setblocking(False)
        tasks = {}
        for pid, control in self._controls.items():
            control.setblocking(False)
            tasks[pid] = TaskProcess(control, pid)
        zygote = Zygote(None, self._pid, self._sock, self._reader)
        zygote.take(tasks)
        for pid, status in self._ended.items():
            tasks[pid].ended(status)
        return zygote, tasks

    def discard(self) -> None:
        """End the zygote and its tasks. Blocks until they have ended."""
        with contextlib.suppress(OSError):
            self._sock.sendall(encode({"op": "discard"}))
            while self._sock.recv(65536):
                pass
        self.end()

    def end(self) -> None:
        """End the zygote by force; the kernel ends its tasks then. Blocks until it has ended."""
        # FileNotFoundError: it has just been reaped. PermissionError: its pid has become another user's process.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            process = open_process(self._pid)
            try:
                if _ZYGOTE in Path(f"/proc/{self._pid}/cmdline").read_bytes():  # not another one that got its pid
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    select.select([process], [], [])
            finally:
                os.close(process)
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave it to another successor."""
        for control in self._controls.values():
            control.close()
        self._sock.close()


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yield a short path of a directory: that of a Unix socket may have 107 bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _listening(directory: Path, name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener, _short(directory) as short:
        (directory / name).unlink(missing_ok=True)
        listener.bind(f"{short}/{name}")
        listener.listen(1)
        yield listener


def _retrieved(future: asyncio.Future[int] | asyncio.Future[None]) -> None:
    """Mark a future's exception as retrieved, since its reader may have been cancelled."""
    if not future.cancelled():
        future.exception()
