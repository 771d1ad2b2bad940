"""A simulated operating system: processes with parents, zombies, signals, pidfds, pipes, ``/proc``, and `subprocess`.

    system = System(kernel)                   # before patches.installed
    system.files = world.files                # once the disks are mounted
    system.programs["redis-server"] = serve   # what runs for a command that is not ``python -m MODULE``
    client = system.start(host, "client", work)

`System` gives each `SimProcess` an `Entry` in the process table of its host: its parent, arguments, environment, and
whether it is a zombie. Pids are few and are reused, as on a busy machine. ``python -m MODULE ARGUMENTS`` runs the
real ``main`` of that module in a simulated thread of the new process.

What is like Linux: a child stays a zombie until its parent waits for it. Orphans go to the nearest subreaper, else to
init, which waits for them at once. A parent-death signal kills. A stopped process takes no signal but SIGKILL and
SIGCONT. A descriptor that was handed to a child is open until both have closed it. A forked child inherits all
descriptors and runs the functions of `os.register_at_fork`; a started one has only those of *pass_fds*.

Not simulated: the moment between fork and exec, signals at a system call (EINTR), threads in ``/proc``, other users.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from tests.simulation import disk as disks
from tests.simulation.kernel import (
    SECOND,
    Kernel,
    ProcessKilled,
    SimFile,
    SimHost,
    SimLoop,
    SimProcess,
    SimThread,
    SimulationError,
    installed_kernel,
)
from tests.simulation.network import SimSocket
from tests.simulation.patches import Patch, add_patches

FIRST_PID = 300
PIDS = 250
"""Number of pids of a host; small, so that they are reused."""
TICKS_PER_S = 100
_PIPE_SIZE = 65536
_FIRST_DESCRIPTOR = 10_000
_IGNORED = {signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH, signal.SIGURG}


class Entry:
    """A process in the table of its host.

    Attributes:
        sim: what runs.
        pid: its number.
        parent: the process that has to wait for it; None for init.
        children: in the order of their start.
        arguments: its command line.
        environ: its environment.
        directory: its working directory.
        status: its exit status as `subprocess` shows it; None while it runs.
        is_subreaper: whether it gets the orphans among its descendants.
        dies_with_parent: whether it gets SIGKILL when its parent ends.
        reaps: whether it waits for its children without code of ours, as Thespian's admin does.
        at_fork: functions that its forked children call first.
        output: descriptor of its standard output; None for none.
    """

    def __init__(self, sim: SimProcess, pid: int, parent: Entry | None, arguments: Sequence[str]) -> None:
        self.sim = sim
        self.pid = pid
        self.parent = parent
        self.children: list[Entry] = []
        self.arguments = list(arguments)
        self.environ: dict[str, str] = {}
        self.directory = "/"
        self.status: int | None = None
        self.is_reaped = False
        self.is_subreaper = False
        self.dies_with_parent = False
        self.reaps = False
        self.at_fork: list[Callable[[], object]] = []
        self.output: int | None = None
        self.pending: list[int] = []
        self.start_ticks = sim.kernel.now * TICKS_PER_S // SECOND
        self.watchers: list[PidFd] = []
        self.waiters: list[SimThread] = []

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    def __repr__(self) -> str:
        return f"{self.sim.name}[{self.pid}]"


class Machine:
    """The process table of one host."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.entries: dict[int, Entry] = {}
        self.boots = 0
        self._last = FIRST_PID - 1

    @property
    def boot_id(self) -> str:
        """Id of this start of the host."""
        return f"{self.host.number:08x}-0000-4000-8000-{self.boots:012x}"

    def new_pid(self) -> int:
        """Return the next free pid, as Linux does: it goes on behind the last one, and begins again at the end."""
        for _ in range(PIDS):
            self._last = FIRST_PID + (self._last + 1 - FIRST_PID) % PIDS
            if self._last not in self.entries:
                return self._last
        raise BlockingIOError(errno.EAGAIN, "no pid is free")


class System:
    """The operating systems of all hosts.

    Args:
        kernel: the world.

    Attributes:
        files: the disks, once they are mounted.
        programs: functions for commands by the last part of their first argument; each gets the arguments.
        start_s: least and largest seconds that a Python program takes to start.
        failing: number of the next starts of a program that fail, by its name.
        slow: factor of the seconds of a start, by host.
        on_end: called with the entry of each process that has ended.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.files: disks.Files | None = None
        self.programs: dict[str, Callable[[list[str]], int]] = {}
        self.start_s = 0.05, 0.25
        self.failing: dict[str, int] = {}
        self.slow: dict[str, float] = {}
        self.on_end: list[Callable[[Entry], object]] = []
        self.machines: dict[str, Machine] = {}
        self.random = kernel.random("system")
        self._parent: Entry | None = None
        self._arguments: Sequence[str] = ()
        kernel.devices["system"] = self
        kernel.on_start.insert(0, self._adopt)
        add_patches(_patches)

    # ------------------------------------------------------------------ the table

    def machine(self, host: SimHost) -> Machine:
        """Return the process table of a host."""
        found = self.machines.get(host.name)
        if found is None:
            found = self.machines[host.name] = Machine(host)
            host.on_crash.insert(0, lambda: self._crashed(found))
        return found

    def _crashed(self, machine: Machine) -> None:
        for entry in machine.entries.values():
            entry.is_reaped = True
        machine.entries.clear()
        machine.boots += 1

    def entry(self, process: SimProcess | None = None) -> Entry:
        """Return the entry of a process; by default of the current one."""
        process = process or self.kernel.current
        if process is None:
            raise SimulationError("no simulated process runs")
        found: Entry = process.local["entry"]
        return found

    def find(self, pid: int) -> Entry | None:
        """Return the entry of a pid on the current host, which may be a zombie."""
        process = self.kernel.current
        assert process is not None
        return self.machine(process.host).entries.get(pid)

    def running(self, host: SimHost | None = None) -> list[Entry]:
        """Return the processes that run, of one host or of all."""
        machines = self.machines.values() if host is None else [self.machine(host)]
        return [entry for machine in machines for entry in machine.entries.values() if entry.is_running]

    def zombies(self) -> list[Entry]:
        """Return the processes that have ended and that no parent has waited for."""
        return [
            entry for machine in self.machines.values() for entry in machine.entries.values() if not entry.is_running
        ]

    def _adopt(self, process: SimProcess) -> None:
        """Give a new process its pid and its place in the table."""
        machine = self.machine(process.host)
        process.pid = machine.new_pid()
        entry = Entry(process, process.pid, self._parent, self._arguments)
        machine.entries[entry.pid] = entry
        process.local["entry"] = entry
        if self._parent is not None:
            self._parent.children.append(entry)
        process.on_end.append(lambda silent: self._ended(entry, silent))

    def _new(
        self, parent: Entry | None, host: SimHost, name: str, arguments: Sequence[str], main: Callable[[], object]
    ) -> Entry:
        self._parent, self._arguments = parent, arguments
        try:
            process = host.start(name, main)
        finally:
            self._parent, self._arguments = None, ()
        self.kernel.trace("started", name, process.pid)
        return self.entry(process)

    # ------------------------------------------------------------------ starts

    def start(
        self, host: SimHost, name: str, main: Callable[[], object], environ: dict[str, str] | None = None
    ) -> Entry:
        """Start a process as a user's shell does: init is its parent."""
        entry = self._new(None, host, name, [name], main)
        entry.environ = dict(environ or {"HOME": "/root", "PATH": "/usr/bin"})
        return entry

    def spawn(
        self,
        arguments: Sequence[str],
        environ: dict[str, str],
        pass_fds: Sequence[int] = (),
        directory: str = "",
        output: int | None = None,
    ) -> Entry:
        """Start a program as a child of the current process."""
        parent = self.entry()
        parent.sim.effect()
        name, main = self._program(arguments)
        entry = self._new(parent, parent.sim.host, name, arguments, main)
        entry.environ = dict(environ)
        entry.directory = directory or parent.directory
        for descriptor in pass_fds:
            self._hand(descriptor, parent, entry)
        if output is not None and output >= 0:
            self._hand(output, parent, entry)
            entry.output = output
        return entry

    def _hand(self, descriptor: int, parent: Entry, child: Entry) -> None:
        file = self.kernel.files.get(descriptor)
        if isinstance(file, SharedFile):
            file.inherit(child.sim)
        elif self.files is not None and self.files.handles(descriptor):
            self.files.inherit(descriptor, _caller(parent.sim), _caller(child.sim))
        else:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def fork(self, name: str, main: Callable[[], object], parent: Entry | None = None, *, plain: bool = True) -> Entry:
        """Start a process that inherits all descriptors of its parent, and runs its functions for forked children.

        Args:
            name: its name.
            main: what it runs.
            parent: by default the current process.
            plain: whether those functions are called: the parent has not been forked itself since they were registered.
        """
        parent = parent or self.entry()
        entry = self._new(parent, parent.sim.host, name, parent.arguments, main)
        entry.environ, entry.directory = dict(parent.environ), parent.directory
        for file in list(parent.sim.files.values()):
            if isinstance(file, SharedFile):
                file.inherit(entry.sim)
        if self.files is not None:
            for descriptor in self.files.descriptors_of(_caller(parent.sim)):
                self.files.inherit(descriptor, _caller(parent.sim), _caller(entry.sim))
        if plain:
            before = self.kernel.current
            self.kernel.current = entry.sim
            try:
                for function in parent.at_fork:
                    _call_in_copy(function)
            finally:
                self.kernel.current = before
        return entry

    def _program(self, arguments: Sequence[str]) -> tuple[str, Callable[[], object]]:
        if "-m" in arguments:
            at = arguments.index("-m")
            module = arguments[at + 1]
            name = module.rpartition(".")[2]

            def run() -> None:
                self._start_up(name)
                self.entry().arguments = list(arguments)
                raise SystemExit(importlib.import_module(module).main())

            return name, run
        name = os.path.basename(arguments[0])  # noqa: PTH119
        program = self.programs.get(name)
        if program is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])

        def serve() -> None:
            self._start_up(name)
            raise SystemExit(program(list(arguments)))

        return name, serve

    def _start_up(self, name: str) -> None:
        """Let the time of a start pass, and end the process if its start fails."""
        thread = self.kernel.thread
        assert thread is not None
        low, high = self.start_s
        seconds = low + (high - low) * self.random.random() ** 2
        thread.sleep(seconds * self.slow.get(thread.process.host.name, 1.0))
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            self.kernel.trace("fails to start", name)
            raise SystemExit(1)

    # ------------------------------------------------------------------ the end

    def _ended(self, entry: Entry, silent: bool) -> None:
        code = entry.sim.exit_code
        entry.status = 0 if code is None else code
        if silent or self.kernel.closed:
            return
        for callback in list(self.on_end):
            callback(entry)
        orphans, entry.children = entry.children, []
        heir = entry.parent
        while heir is not None and not (heir.is_running and heir.is_subreaper):
            heir = heir.parent
        for child in orphans:
            child.parent = heir
            if heir is not None:
                heir.children.append(child)
            if not child.is_running:
                self._zombie(child)
            elif child.dies_with_parent:
                self.kernel.at(self.kernel.now + 1, self._kill, child)
        self._zombie(entry)
        for watcher in entry.watchers:
            watcher.changed()

    def _kill(self, entry: Entry) -> None:
        if entry.is_running:
            entry.sim.kill()

    def _zombie(self, entry: Entry) -> None:
        parent = entry.parent
        if parent is None or not parent.is_running:
            self.reap(entry)
        elif parent.reaps:
            self.kernel.after(0.001 + 0.02 * self.random.random(), self._reaped_by_parent, entry)
        else:
            waiters, parent.waiters = parent.waiters, []
            for thread in waiters:
                thread.unpark()

    def _reaped_by_parent(self, entry: Entry) -> None:
        if entry.parent is not None and entry.parent.sim.may_run:
            self.reap(entry)
        elif not entry.is_reaped:
            self.kernel.after(0.05, self._reaped_by_parent, entry)

    def reap(self, entry: Entry) -> None:
        """Remove a zombie from the table."""
        if entry.is_reaped:
            return
        entry.is_reaped = True
        table = self.machine(entry.sim.host).entries
        if table.get(entry.pid) is entry:
            del table[entry.pid]
        if entry.parent is not None and entry in entry.parent.children:
            entry.parent.children.remove(entry)

    def wait(self, pid: int, options: int) -> tuple[int, int]:
        """`os.waitpid` for one child."""
        me = self.entry()
        while True:
            child = next((child for child in me.children if child.pid == pid), None)
            if child is None:
                raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
            if child.status is not None:
                self.reap(child)
                return pid, -child.status if child.status < 0 else child.status << 8
            if options & os.WNOHANG:
                return 0, 0
            thread = self.kernel.thread
            if thread is None:
                raise SimulationError("waitpid() would block on a loop that the kernel drives")
            me.waiters.append(thread)
            thread.park(f"the end of {child}")
            if thread in me.waiters:
                me.waiters.remove(thread)

    # ------------------------------------------------------------------ signals

    def send(self, entry: Entry, number: int) -> None:
        """Send a signal; one that ends its target does so a moment later."""
        sender = self.kernel.current
        if sender is not None:
            sender.effect()
        if entry.status is not None or not number:
            return
        self.kernel.trace("signal", entry.sim.name, entry.pid, int(number))
        if entry.sim is sender and number == signal.SIGKILL:
            entry.sim.kill()
            raise ProcessKilled(-9)
        self.kernel.after(0.002 * self.random.random() ** 3, self.deliver, entry, int(number))

    def deliver(self, entry: Entry, number: int) -> None:
        """Let a signal take effect."""
        process = entry.sim
        if not process.alive:
            return
        if number == signal.SIGKILL:
            process.kill()
        elif number == signal.SIGSTOP:
            process.freeze()
            self._froze(entry)
        elif number == signal.SIGCONT:
            process.thaw()
            self._froze(entry)
            pending, entry.pending = entry.pending, []
            for one in pending:
                self.deliver(entry, one)
        elif process.frozen:
            if number not in entry.pending:
                entry.pending.append(number)
        else:
            handler = process.local.get("handlers", {}).get(number)
            if handler is not None and not handler[0].is_closed():  # a loop that closes restores the default
                loop, callback, arguments = handler
                loop.call_soon_threadsafe(callback, *arguments)
            elif number not in _IGNORED and number not in process.local.get("ignored", ()):
                process.end(-number)

    def _froze(self, entry: Entry) -> None:
        callback = entry.sim.local.get("on_freeze")
        if callback is not None:
            callback(entry.sim.frozen)

    # ------------------------------------------------------------------ /proc

    def proc(self, path: str) -> bytes | list[str] | None:
        """Return a file's content or a directory's names; None for what is not simulated.

        Raises:
            FileNotFoundError: there is no such process.
        """
        process = self.kernel.current
        assert process is not None
        machine = self.machine(process.host)
        parts = path.strip("/").split("/")[1:]
        if parts == []:
            return [str(pid) for pid in sorted(machine.entries)] + ["meminfo", "sys"]
        if parts == ["sys", "kernel", "random", "boot_id"]:
            return f"{machine.boot_id}\n".encode()
        if not (parts[0].isdigit() or parts[0] == "self"):
            return None
        entry = machine.entries.get(process.pid if parts[0] == "self" else int(parts[0]))
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        match parts[1:]:
            case ["stat"]:
                return self._stat(entry)
            case ["environ"]:
                text = "".join(f"{name}={value}\0" for name, value in entry.environ.items())
                return text.encode() if entry.is_running else b""
            case ["cmdline"]:
                return b"".join(part.encode() + b"\0" for part in entry.arguments) if entry.is_running else b""
            case ["task"]:
                return [str(entry.pid)]
            case ["task", _, "children"]:
                return " ".join(str(child.pid) for child in entry.children).encode()
        return None

    def _stat(self, entry: Entry) -> bytes:
        state = "Z" if not entry.is_running else "T" if entry.sim.frozen else "S"
        parent = 1 if entry.parent is None else entry.parent.pid
        fields = [state, str(parent), *["0"] * 15, "1", "0", str(entry.start_ticks), *["0"] * 20]
        return f"{entry.pid} ({entry.sim.name[:15]}) {' '.join(fields)}\n".encode()

    def link(self, path: str) -> str:
        """Return the target of a link below ``/proc``."""
        parts = path.strip("/").split("/")
        assert self.kernel.current is not None
        pid = self.kernel.current.pid if parts[1] == "self" else int(parts[1])
        entry = self.find(pid)
        if entry is None or not entry.is_running or parts[2:] != ["cwd"]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entry.directory


def _call_in_copy(function: Callable[[], object]) -> None:
    """Call a method as a forked child does: what it changes of its object is not changed in the parent's."""
    owner = getattr(function, "__self__", None)
    before = dict(vars(owner)) if hasattr(owner, "__dict__") else None
    try:
        function()
    finally:
        if before is not None:
            vars(owner).clear()
            vars(owner).update(before)


def _caller(process: SimProcess) -> disks.Caller:
    return disks.Caller(process.host.name, process.pid)


# ------------------------------------------------------------------ descriptors


class PidFd(SimFile):
    """A pidfd: readable once its process has ended."""

    def __init__(self, process: SimProcess, entry: Entry) -> None:
        super().__init__(process)
        self.entry = entry
        entry.watchers.append(self)

    def readable(self) -> bool:
        return self.entry.status is not None

    def forget(self) -> None:
        super().forget()
        if self in self.entry.watchers:
            self.entry.watchers.remove(self)


class SharedFile(SimFile):
    """An open file that several processes may have under one number."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process)
        self.owners: dict[SimProcess, None] = {process: None}

    def inherit(self, child: SimProcess) -> None:
        """Give a copy to a child."""
        self.owners[child] = None
        child.files[self.fd] = self

    def leave(self, process: SimProcess) -> None:
        """Close the copy of one process, and the file with the last copy."""
        if process not in self.owners:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        del self.owners[process]
        process.files.pop(self.fd, None)
        if not self.owners:
            self.kernel.files.pop(self.fd, None)
            self.closed()

    def owner_died(self, silent: bool) -> None:
        for process in [one for one in self.owners if not one.alive]:
            self.leave(process)

    def closed(self) -> None:
        """Handle that no process has it open any more."""


class PipeEnd(SharedFile):
    """One end of a pipe."""

    def __init__(self, process: SimProcess, writes: bool, data: bytearray) -> None:
        super().__init__(process)
        self.writes = writes
        self.data = data
        self.other: PipeEnd | None = None

    @property
    def is_open(self) -> bool:
        """Whether a process has it open."""
        return bool(self.owners)

    def readable(self) -> bool:
        return not self.writes and (bool(self.data) or not (self.other and self.other.is_open))

    def writable(self) -> bool:
        return self.writes and (len(self.data) < _PIPE_SIZE or not (self.other and self.other.is_open))

    def closed(self) -> None:
        if self.other is not None:
            self.other.changed()

    def read(self, size: int) -> bytes:
        """Wait for data, or for the end."""
        self.wait(self.readable, "read() of a pipe")
        data = bytes(self.data[:size])
        del self.data[:size]
        if self.other is not None:
            self.other.changed()
        return data

    def write(self, data: bytes) -> int:
        """Add data."""
        if self.other is None or not self.other.is_open:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self.data.extend(data)
        self.other.changed()
        return len(data)


class PipeReader(io.RawIOBase):
    """The reading end of a pipe as a file object."""

    def __init__(self, end: PipeEnd) -> None:
        super().__init__()
        self._end = end

    def fileno(self) -> int:
        return self._end.fd

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._end.read(_PIPE_SIZE if size < 0 else size)

    def close(self) -> None:
        if not self.closed:
            super().close()
            process = installed_kernel().current
            if process in self._end.owners:
                self._end.leave(process)


# ------------------------------------------------------------------ subprocess


class SimPopen:
    """`subprocess.Popen`."""

    def __init__(
        self,
        args: Sequence[Any],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        env: dict[str, str] | None = None,
        cwd: Any = None,
        **_: Any,
    ) -> None:
        system = _system()
        self.args = [os.fspath(part) for part in args]
        self._system = system
        output = stdout if isinstance(stdout, int) or stdout is None else stdout.fileno()
        environ = dict(system.entry().environ) if env is None else env
        directory = "" if cwd is None else os.fspath(cwd)
        if system.kernel.thread is not None:
            system.kernel.thread.sleep(0.001 + 0.004 * system.random.random())  # the fork
        self._entry = system.spawn(self.args, environ, tuple(pass_fds), directory, output)
        self.pid = self._entry.pid
        self.returncode: int | None = None

    def _collect(self, options: int) -> None:
        if self.returncode is not None:
            return
        try:
            pid, _ = self._system.wait(self.pid, options) if self._is_mine() else (0, 0)
        except ChildProcessError:
            self.returncode = 0  # as subprocess does
            return
        if pid:
            self.returncode = self._entry.status

    def _is_mine(self) -> bool:
        if self._entry.is_reaped:
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        return True

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        self._collect(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if timeout is None:
            self._collect(0)
        else:
            kernel = self._system.kernel
            deadline = kernel.now + int(timeout * SECOND)
            while self.poll() is None:
                if kernel.now >= deadline:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                assert kernel.thread is not None
                kernel.thread.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it was waited for."""
        if self.poll() is None:
            self._system.send(self._entry, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


# ------------------------------------------------------------------ what code of a process sees


def _system() -> System:
    system: System = installed_kernel().devices["system"]
    return system


class _Environ(MutableMapping[str, str]):
    """`os.environ` of the current process."""

    def _values(self) -> dict[str, str]:
        kernel = installed_kernel()
        return {} if kernel.current is None else _system().entry().environ

    def __getitem__(self, key: str) -> str:
        return self._values()[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._values()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values()))

    def __len__(self) -> int:
        return len(self._values())

    def copy(self) -> dict[str, str]:
        """Return a copy, as `os.environ` does."""
        return dict(self._values())


class _Arguments(list[str]):
    """`sys.argv` of the current process."""

    def _values(self) -> list[str]:
        kernel = installed_kernel()
        if kernel.current is None:
            return ["simulator"]
        found = _system().entry().arguments
        return found[found.index("-m") + 1 :] if "-m" in found else found

    def __getitem__(self, index: Any) -> Any:
        return self._values()[index]

    def __len__(self) -> int:
        return len(self._values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())


class _StandardError:
    """`sys.stderr` of the current process: its ``.out`` file."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, text: str) -> int:
        """Write to the process's output."""
        kernel = installed_kernel()
        if kernel.current is None or kernel.closed:
            return int(self._real.write(text))
        output = _system().entry().output
        if output is not None and kernel.current.alive:
            os.write(output, text.encode())
        return len(text)

    def flush(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _ProcEntry:
    """`os.DirEntry` below ``/proc``."""

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self.path = f"{directory.rstrip('/')}/{name}"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return True

    def is_symlink(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return self.path


class _ProcScan:
    """The iterator of `os.scandir` below ``/proc``."""

    def __init__(self, entries: list[_ProcEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_ProcEntry]:
        return self._entries

    def __next__(self) -> _ProcEntry:
        return next(self._entries)

    def __enter__(self) -> _ProcScan:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def _select(
    readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """`select.select` over simulated descriptors."""
    kernel = installed_kernel()

    def file_of(one: Any) -> SimFile:
        file = kernel.files.get(one if isinstance(one, int) else one.fileno())
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def ready() -> tuple[list[Any], list[Any], list[Any]]:
        return (
            [one for one in readers if file_of(one).readable()],
            [one for one in writers if file_of(one).writable()],
            [],
        )

    found = ready()
    thread = kernel.thread
    if thread is None or (timeout is not None and timeout <= 0):
        return found
    deadline = None if timeout is None else thread.deadline(timeout)
    while not (found[0] or found[1]):
        files = [file_of(one) for one in (*readers, *writers)]
        for file in files:
            file.waiters.append(thread)
        woken = thread.park(f"select() of {len(files)} files", deadline)
        for file in files:
            if thread in file.waiters:
                file.waiters.remove(thread)
        found = ready()
        if not woken:
            break
    return found


def _ignore(_unraisable: object) -> None:
    return None


def _patches(kernel: Kernel) -> list[Patch]:
    if "system" not in kernel.devices:
        return []
    system: System = kernel.devices["system"]

    # ------------------------------------------------------------------ processes

    def kill(pid: int, number: int) -> None:
        entry = system.find(pid)
        if entry is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        system.send(entry, number)

    def pidfd_open(pid: int, flags: int = 0) -> int:
        entry = system.find(pid)
        if entry is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        assert kernel.current is not None
        kernel.current.effect()
        return PidFd(kernel.current, entry).fd

    def pidfd_send_signal(descriptor: int, number: int, *_: Any) -> None:
        file = kernel.files.get(descriptor)
        if not isinstance(file, PidFd):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if file.entry.is_reaped:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        system.send(file.entry, number)

    def register_at_fork(*, before: Any = None, after_in_parent: Any = None, after_in_child: Any = None) -> None:
        if after_in_child is not None and kernel.current is not None:
            system.entry().at_fork.append(after_in_child)

    def end(code: int) -> None:
        process = kernel.current
        assert process is not None
        process.end(code)
        raise ProcessKilled(code)

    def add_signal_handler(self: SimLoop, number: int, callback: Any, *arguments: Any) -> None:
        self.process.local.setdefault("handlers", {})[int(number)] = (self, callback, arguments)

    def remove_signal_handler(self: SimLoop, number: int) -> bool:
        return self.process.local.get("handlers", {}).pop(int(number), None) is not None

    def set_signal(number: int, handler: Any) -> Any:
        if kernel.current is not None and handler is signal.SIG_IGN:
            kernel.current.local.setdefault("ignored", set()).add(int(number))
        return signal.SIG_DFL

    def run(args: Sequence[Any], **_: Any) -> subprocess.CompletedProcess[str]:
        name = os.path.basename(os.fspath(args[0]))  # noqa: PTH119
        if name in system.programs and list(args[1:]) == ["--version"]:
            return subprocess.CompletedProcess(list(args), 0, "Redis server v=7.2.0", "")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(args[0]))

    # ------------------------------------------------------------------ descriptors

    real_read, real_write, real_close, real_fdopen = os.read, os.write, os.close, os.fdopen
    real_inheritable, real_isatty = os.set_inheritable, os.isatty

    def pipe() -> tuple[int, int]:
        process = kernel.current
        assert process is not None
        process.effect()
        data = bytearray()
        reader, writer = PipeEnd(process, False, data), PipeEnd(process, True, data)
        reader.other, writer.other = writer, reader
        return reader.fd, writer.fd

    def check_alive() -> None:
        if kernel.current is not None and not kernel.current.alive:
            raise ProcessKilled(-9)

    def end_of(descriptor: int) -> PipeEnd:
        check_alive()
        file, process = kernel.files.get(descriptor), kernel.current
        if not isinstance(file, PipeEnd) or process not in file.owners:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def is_simulated(descriptor: int) -> bool:
        return descriptor >= _FIRST_DESCRIPTOR

    def read(descriptor: int, size: int) -> bytes:
        return end_of(descriptor).read(size) if is_simulated(descriptor) else real_read(descriptor, size)

    def write(descriptor: int, data: bytes) -> int:
        if not is_simulated(descriptor):
            return real_write(descriptor, data)
        assert kernel.current is not None
        kernel.current.effect()
        return end_of(descriptor).write(data)

    def close(descriptor: int) -> None:
        file = kernel.files.get(descriptor)
        if isinstance(file, SharedFile):
            check_alive()
            assert kernel.current is not None
            file.leave(kernel.current)
        elif isinstance(file, SimSocket):
            file.close()
        elif file is not None:
            closing = getattr(file, "close", file.forget)
            closing()
        elif is_simulated(descriptor):
            if kernel.closed:
                return  # a destructor, after the end of the world
            check_alive()
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            real_close(descriptor)

    def fdopen(descriptor: int, *arguments: Any, **keywords: Any) -> Any:
        if is_simulated(descriptor):
            return PipeReader(end_of(descriptor))
        return real_fdopen(descriptor, *arguments, **keywords)

    def set_inheritable(descriptor: int, inheritable: bool) -> None:
        if not is_simulated(descriptor):
            real_inheritable(descriptor, inheritable)

    def isatty(descriptor: int) -> bool:
        return False if is_simulated(descriptor) else real_isatty(descriptor)

    # ------------------------------------------------------------------ /proc

    real_open, real_listdir, real_scandir = io.open, os.listdir, os.scandir
    real_readlink, real_stat = os.readlink, os.stat

    def in_proc(path: Any) -> str | None:
        if kernel.current is None or isinstance(path, int):
            return None
        text = os.fsdecode(path)
        return text if text == "/proc" or text.startswith("/proc/") else None

    def open_file(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        path = in_proc(file)
        content = None if path is None else system.proc(path)
        if not isinstance(content, bytes):
            return real_open(file, mode, *arguments, **keywords)
        return io.BytesIO(content) if "b" in mode else io.StringIO(content.decode(errors="replace"))

    def listdir(path: Any = ".") -> list[str]:
        found = in_proc(path)
        names = None if found is None else system.proc(found)
        return names if isinstance(names, list) else real_listdir(path)

    def scandir(path: Any = ".") -> Any:
        found = in_proc(path)
        names = None if found is None else system.proc(found)
        if isinstance(names, list) and found is not None:
            return _ProcScan([_ProcEntry(name, found) for name in names])
        return real_scandir(path)

    def readlink(path: Any, **keywords: Any) -> str:
        found = in_proc(path)
        return real_readlink(path, **keywords) if found is None else system.link(found)

    def stat_of(path: Any, **keywords: Any) -> os.stat_result:
        found = in_proc(path)
        content = None if found is None else system.proc(found)
        if content is None:
            return real_stat(path, **keywords)
        kind = stat.S_IFDIR if isinstance(content, list) else stat.S_IFREG
        return os.stat_result((kind | 0o555, 1, 1, 1, 0, 0, 0, 0, 0, 0))

    # ------------------------------------------------------------------ Unix sockets have files

    real_bind, real_dial = SimSocket.bind, SimSocket._dial

    def bind(self: SimSocket, address: Any) -> None:
        if self.family == disks_family and system.files is not None and system.files.handles(address):
            self._effect()
            system.files.make_socket(os.fspath(address))
        real_bind(self, address)

    def dial(self: SimSocket, address: Any) -> None:
        if self.family == disks_family and system.files is not None and system.files.handles(address):
            system.files.inode_of(os.fspath(address))
        real_dial(self, address)

    import socket as sockets

    disks_family = sockets.AF_UNIX

    return [
        (os, "kill", kill),
        (os, "pidfd_open", pidfd_open),
        (signal, "pidfd_send_signal", pidfd_send_signal),
        (signal, "signal", set_signal),
        (signal, "getsignal", lambda number: signal.SIG_IGN),
        (signal, "set_wakeup_fd", lambda *_, **__: -1),
        (os, "waitpid", system.wait),
        (os, "register_at_fork", register_at_fork),
        (os, "_exit", end),
        (os, "environ", _Environ()),
        (sys, "argv", _Arguments()),
        (sys, "stderr", _StandardError(sys.stderr)),
        (os, "pipe", pipe),
        (os, "read", read),
        (os, "write", write),
        (os, "close", close),
        (os, "fdopen", fdopen),
        (os, "set_inheritable", set_inheritable),
        (os, "isatty", isatty),
        (io, "open", open_file),
        (builtins, "open", open_file),
        (os, "listdir", listdir),
        (os, "scandir", scandir),
        (os, "readlink", readlink),
        (os, "stat", stat_of),
        (select, "select", _select),
        (sys, "unraisablehook", _ignore),  # destructors of killed processes' coroutines
        (subprocess, "Popen", SimPopen),
        (subprocess, "run", run),
        (SimLoop, "add_signal_handler", add_signal_handler),
        (SimLoop, "remove_signal_handler", remove_signal_handler),
        (SimSocket, "bind", bind),
        (SimSocket, "_dial", dial),
    ]
