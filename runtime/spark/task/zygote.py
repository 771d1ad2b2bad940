"""The zygote: a warm process that forks task processes in 4 to 18 ms.

Run it as `python -m understudy.runtime.spark.task.zygote FD`, with the package's name in front: a job may have modules
named like Understudy's.

The zygote has imported pyspark, pandas, pyarrow and gRPC, but has opened no channel and started no thread, so that it
can fork safely. Its owner uses an inherited Unix socket pair. The owner sends `fork`, with the task's control socket
and the task to run or to prepare for. The zygote sends `forked` and `exit`. When the owner closes its end, or dies, the
zygote kills its tasks and ends. When the zygote dies, the kernel kills its tasks, by the parent-death signal of its
only thread.

An owner that is exchanged hands the zygote over instead. It sends `keep` with the control socket of each task that is
to stay. Then it sends `hand_over`, with the socket on which a successor connects, and with a state for the successor.
From the answer `held` on, the end of the owner ends nothing. The zygote then kills its tasks, and their Spark driver,
unless a successor adopts them in time. So the zygote decides alone which process owns its tasks:

1. A successor that connects gets the state and a copy of each control socket. Nothing is its own yet: if it ends now,
   the next one gets the same.
2. It sends `adopt`. From that moment it is the owner, whose end ends the tasks. The zygote answers `adopted`, with the
   exit status of each task that has ended during the wait. Or it sends `discard`, and everything ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

from actors.errors import AuthenticationError
from actors.own_modules import import_own
from actors.rpc.codec import prepare
from actors.rpc.security import check_peer_is_us
from runtime.jobgraph.codec import decode
from runtime.protocol.leader import boottime
from runtime.spark.errors import WireError
from runtime.spark.messages import Ready, Run, pack, prepare_messages, unpack_to_task
from runtime.spark.process import ProcessHandle, die_with
from runtime.spark.spec import PreparedSpec, TaskSpec
from runtime.spark.task.run import run_task
from runtime.spark.wire import BlockingChannel, FrameReader, Message, encode

WARM_MODULES = (
    "pyspark",
    "pyspark.accumulators",
    "pyspark.cloudpickle",
    "pyspark.pandas.utils",
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.classic.column",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.session",
    "pyspark.sql.pandas.conversion",
    "pyspark.sql.streaming",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.parquet",
    "grpc",
    "grpc._channel",
)
OWN_WARM_MODULES = ("runtime.api", "runtime.spark.task.pipeline", "runtime.spark.task.classic")

WARM_MODULES_IF_INSTALLED = ("ipykernel",)
"""PySpark imports these at the first column function, to name a notebook's cell in errors: 50 ms in every task."""

_MAX_FDS = 64
_LOOK_S = 1.0
"""Longest wait in seconds for a successor before the clock is read again, since the machine may be suspended."""

_ENDED = 1000
"""Number of ended tasks whose exit status is remembered, for an owner that hands them over before it has read it."""


@dataclass(slots=True)
class _Held:
    """Tasks that a zygote keeps for the successor of its owner.

    Args:
        state: from the former owner, for the successor.
        until: the end of the wait, in seconds of the clock that runs through suspend.
        listener: on which the successor connects.
        driver: the tasks' Spark driver; None if that has ended.
        controls: control sockets of the tasks, by pid.
    """

    state: bytes
    until: float
    listener: socket.socket
    driver: ProcessHandle | None
    controls: dict[int, int]


class _Zygote:
    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._reader = FrameReader()
        self._descriptors: list[int] = []
        self._children: set[int] = set()
        self._ended: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._held: _Held | None = None
        self._wake_reading, self._wake_writing = os.pipe()

    def serve(self) -> None:
        """Fork and reap until the owner has ended."""
        for descriptor in (self._wake_reading, self._wake_writing):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_writing, warn_on_full_buffer=False)
        try:
            self._serve_owner({"op": "ready", "pid": os.getpid()})
            while self._held is not None and (found := self._await_successor(self._held)) is not None:
                self._serve_owner(found)
        finally:
            self._kill_all()

    def _serve_owner(self, first: Message) -> None:
        """Say *first* to the owner, then do what it says until it has ended."""
        with contextlib.suppress(OSError):
            self._send(first)
            while self._turn():
                pass

    def _turn(self) -> bool:
        held = self._held
        if held is not None and held.until <= boottime():
            return False  # the owner stands still, and its jobs count it as lost
        readable, _, _ = select.select(
            [self._owner.fileno(), self._wake_reading], [], [], None if held is None else _LOOK_S
        )
        if self._wake_reading in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reading, 4096)
            self._reap()
        if self._owner.fileno() in readable:
            data, descriptors, _, _ = socket.recv_fds(self._owner, 65536, _MAX_FDS)
            if not data:
                return False
            self._descriptors += descriptors
            for message in self._reader.feed(data):
                self._handle(message)
        return True

    def _handle(self, message: Message) -> None:
        if message.get("op") not in ("fork", "keep", "hand_over") or not self._descriptors:
            raise WireError(f"the zygote got {message.get('op')!r}, which it does not know, or no socket with it")
        descriptor = self._descriptors.pop(0)
        match message["op"]:
            case "fork":
                self._fork(message, descriptor)
            case "keep":
                self._kept[message["pid"]] = descriptor
            case "hand_over":
                self._hold(message, descriptor)

    def _fork(self, message: Message, control: int) -> None:
        zygote = os.getpid()  # the child cannot ask for it: this process may have been killed by then
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"op": "fork_failed", "id": message["id"], "error": str(error)})
            return
        if pid == 0:
            self._become_task(message, control, zygote)
        os.close(control)
        self._children.add(pid)
        self._send({"op": "forked", "id": message["id"], "pid": pid})

    def _become_task(self, message: Message, control: int, zygote: int) -> NoReturn:
        status = 1
        try:
            os.setsid()
            die_with(zygote)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._owner.close()
            for descriptor in (self._wake_reading, self._wake_writing, *self._descriptors):
                os.close(descriptor)
            channel = BlockingChannel(socket.socket(fileno=control))
            if "prepared" in message:
                status = run_prepared(decode(message["prepared"], PreparedSpec), channel)
            else:
                status = run_task(decode(message["spec"], TaskSpec), channel)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Reap ended tasks, after killing their process groups, whose ids stay reserved until then."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            _kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid in self._children:
                self._children.discard(ended.si_pid)
                self._ended[ended.si_pid] = exit_status = os.waitstatus_to_exitcode(status)
                if len(self._ended) > _ENDED:
                    del self._ended[next(iter(self._ended))]
                if self._held is None:
                    self._send({"op": "exit", "pid": ended.si_pid, "status": exit_status})

    # ---------------------------------------------------------------- a hand-over

    def _hold(self, order: Message, listener: int) -> None:
        """Keep the tasks that the owner has named for its successor, and end the others."""
        for pid in self._children - self._kept.keys():
            _kill_group(pid)
        driver: ProcessHandle | None = None
        with contextlib.suppress(ProcessLookupError):
            driver = ProcessHandle(*order["driver"])
        self._held = _Held(
            order["state"],
            order["until"],
            socket.socket(fileno=listener),
            driver,
            self._kept,
        )
        self._kept = {}
        self._send({"op": "held"})

    def _await_successor(self, held: _Held) -> Message | None:
        """Wait until the owner that has just ended has a successor; return the first message to it.

        None: there is none, and everything has to end.
        """
        self._owner.close()
        candidate: socket.socket | None = None
        waiting: deque[Message] = deque()
        while (left := held.until - boottime()) > 0 and held.driver is not None:
            asked = held.listener if candidate is None else candidate
            readable, _, _ = select.select(
                [asked.fileno(), self._wake_reading, held.driver.fileno()], [], [], min(left, _LOOK_S)
            )
            if self._wake_reading in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reading, 4096)
                self._reap()
            if held.driver.fileno() in readable:
                return None  # it has ended, and no task can continue without it
            if asked.fileno() not in readable:
                continue
            if candidate is None:
                candidate, reader = self._introduce(held, left), FrameReader()
                continue
            data = _received(candidate)
            waiting.extend(reader.feed(data))
            if not data:
                candidate.close()
                candidate = None
            elif waiting:
                if waiting.popleft().get("op") != "adopt":
                    return None
                return self._become_adopted(held, candidate)
        if held.driver is not None:
            # Queries of the tasks run there. They would continue while the job runs elsewhere.
            held.driver.send_signal(signal.SIGKILL)
        return None

    def _introduce(self, held: _Held, left: float) -> socket.socket | None:
        """Accept a successor, and tell it what it may adopt; None if it has ended, or is another user's process."""
        candidate, _ = held.listener.accept()
        try:
            check_peer_is_us(candidate)
            candidate.settimeout(left)
            candidate.sendall(encode({"op": "held", "state": held.state}))
            for pid, control in held.controls.items():
                socket.send_fds(candidate, [encode({"op": "kept", "pid": pid})], [control])
            candidate.sendall(encode({"op": "all"}))
        except (AuthenticationError, OSError):
            candidate.close()
            return None
        return candidate

    def _become_adopted(self, held: _Held, owner: socket.socket) -> Message:
        ended = [[pid, self._ended[pid]] for pid in held.controls if pid in self._ended]
        for descriptor in held.controls.values():
            os.close(descriptor)
        if held.driver is not None:
            held.driver.close()
        held.listener.close()
        owner.settimeout(None)
        self._owner, self._reader, self._held = owner, FrameReader(), None
        return {"op": "adopted", "ended": ended}

    def _kill_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)

    def _send(self, message: Message) -> None:
        self._owner.sendall(encode(message))


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _received(candidate: socket.socket) -> bytes:
    """Return what a successor has sent; nothing if it has ended."""
    try:
        return candidate.recv(65536)
    except OSError:
        return b""


def warm_up() -> None:
    """Import the modules that tasks need."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    for name in OWN_WARM_MODULES:
        import_own(name)
    for name in WARM_MODULES_IF_INSTALLED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    """Warm up, then serve the owner whose socket's descriptor is the first argument."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    sys.path.append(sys.path.pop(0))  # the directory that `-m` put first has to come after a job's modules
    warm_up()
    prepare(TaskSpec, PreparedSpec)
    prepare_messages()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page it looks at
    _Zygote(owner).serve()
    return 0


def run_prepared(spec: PreparedSpec, channel: BlockingChannel) -> int:
    """Connect this freshly forked process to Spark, and run the task that it then gets; return its exit status."""
    opened = _open(spec)
    channel.send(pack(Ready()))
    message = channel.receive()
    if message is None:
        return 0  # no task came
    order = unpack_to_task(message)
    if not isinstance(order, Run):
        raise WireError(f"a process that is ready got {type(order).__name__}")
    channel.send(pack(Ready()))
    return run_task(order.spec, channel, opened)


def _open(spec: PreparedSpec) -> Any:
    if spec.connect is not None:
        from runtime.spark.task.pipeline import open_session

        session = open_session(spec.connect)
        session.sql("VALUES (1)").collect()  # runs no Spark job, so it needs none of the cores that tasks may hold
        return session
    if spec.classic is None:
        raise ValueError("a process is to be made ready for neither way into Spark")
    from runtime.spark.task.classic import connect

    gateway = connect(spec.classic)
    # This runs no Spark job, which would wait for cores that tasks hold, and count as one of the task's.
    gateway.entry_point.get(0).sql("VALUES (1)").collect()
    return gateway
