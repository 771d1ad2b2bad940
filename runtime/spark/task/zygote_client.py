"""`Zygote`: the owner's side of the zygote, for an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from runtime.jobgraph import codec
from runtime.spark.driver.launch import HASH_SEED, hash_seed, inherited_environment
from runtime.spark.errors import WireError, ZygoteError, ZygoteLostError
from runtime.spark.messages import (
    Answer,
    Ask,
    Cancel,
    EndSession,
    FromTask,
    LeaseAnswer,
    Question,
    Run,
    ToTask,
    pack,
    unpack_from_task,
)
from runtime.spark.spec import PreparedSpec, TaskSpec
from runtime.spark.wire import FrameReader, Message, encode

logger = logging.getLogger(__name__)


class TaskProcess:
    """A forked task process, for its TaskExecutor.

    Iterate over `messages()` for the task's messages; `wait()` for its exit status.
    """

    spec: TaskSpec
    """The task that it runs; unset while the process is only prepared."""

    def __init__(self, control: socket.socket) -> None:
        self.pid = 0
        self._control = control
        self._reader = FrameReader()
        self._received: deque[FromTask] = deque()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exit.add_done_callback(_retrieved)
        self._questions: dict[int, asyncio.Future[list[Any]]] = {}
        self._asked = 0

    async def messages(self) -> AsyncIterator[FromTask]:
        """Yield the task's messages until it closes its end."""
        while (message := await self._receive()) is not None:
            yield message

    async def _receive(self) -> FromTask | None:
        loop = asyncio.get_running_loop()
        while not self._received:
            try:
                data = await loop.sock_recv(self._control, 65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            for plain in self._reader.feed(data):
                try:
                    message = unpack_from_task(plain)
                except WireError as error:  # the job's code could have sent this
                    logger.warning("task process %d has sent an invalid message: %s", self.pid, error)
                    continue
                if isinstance(message, Answer):
                    self._answered(message)
                else:
                    self._received.append(message)
        return self._received.popleft()

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
    """The warm process that forks task processes; start it with `await Zygote.start()`."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._sock = sock
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
        zygote = cls(process, ours)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(zygote._ready)
        except (TimeoutError, ZygoteLostError) as error:
            await zygote.stop()
            where = f"; see {log_file}" if log_file else ""
            raise ZygoteError(f"the zygote did not become ready within {timeout:.0f} s, or ended{where}") from error
        return zygote

    @property
    def pid(self) -> int:
        """Return the process id of the zygote."""
        return self._process.pid

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
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, lambda: self._process.wait(5))
        except subprocess.TimeoutExpired:
            self._process.kill()
            await loop.run_in_executor(None, self._process.wait)

    async def __aenter__(self) -> Zygote:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

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
        reader = FrameReader()
        reason = "the zygote died"
        try:
            while data := await loop.sock_recv(self._sock, 65536):
                for message in reader.feed(data):
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


def _retrieved(future: asyncio.Future[int] | asyncio.Future[None]) -> None:
    """Mark a future's exception as retrieved, since its reader may have been cancelled."""
    if not future.cancelled():
        future.exception()
