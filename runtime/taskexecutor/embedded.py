"""The TaskExecutor of an embedded cluster. Its one task is the program that started the cluster.

Other TaskExecutors have a zygote that forks task processes; this one forks nothing and connects to the program. The
program then speaks as a task process does (`runtime.spark.task`). At the end it is neither killed nor waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

from actors.rpc.service import RpcService
from runtime.spark.driver.adopted import AdoptedDriver
from runtime.spark.errors import ZygoteError
from runtime.spark.messages import Canceled, Failed, Finished, FromTask, Run, pack
from runtime.spark.spec import TaskSpec
from runtime.spark.task.run import EXIT_CANCELED
from runtime.spark.task.zygote_client import TaskProcess
from runtime.spark.wire import encode
from runtime.taskexecutor import endpoint
from runtime.taskexecutor.endpoint import TaskExecutor
from runtime.taskexecutor.services import TaskHost
from runtime.taskexecutor.worker_files import ProgramInfo

_LAST_WORDS = {Finished: 0, Canceled: EXIT_CANCELED, Failed: 1}
_LOST = -9


class AttachedProgram(TaskProcess):
    """The program as the process of a task."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        super().__init__(control)
        self.pid = pid
        self._status = _LOST

    async def _receive(self) -> FromTask | None:
        message = await super()._receive()
        if message is None:
            self.ended(self._status)
        else:
            self._status = _LAST_WORDS.get(type(message), self._status)
        return message

    def kill(self) -> None:
        """Close the connection only: the program belongs to its user."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


class ProgramHost:
    """The `TaskHost` of an embedded cluster: its one process is the program."""

    def __init__(self, program: ProgramInfo) -> None:
        self._program = program

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._program.pid

    async def fork(self, spec: TaskSpec) -> TaskProcess:
        """Give the program its task; raises `ZygoteError` if the program does not accept it."""
        Path(spec.work_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        control = socket.socket(socket.AF_UNIX)
        control.setblocking(False)
        try:
            await loop.sock_connect(control, self._program.socket)
            await loop.sock_sendall(control, encode(pack(Run(spec))))
        except OSError as error:
            control.close()
            raise ZygoteError(f"the program (process {self.pid}) takes no task: {error}") from error
        process = AttachedProgram(control, self.pid)
        process.spec = spec
        return process

    async def stop(self) -> None:
        """Do nothing: the program keeps running."""


async def _host(directory: Path) -> TaskHost:
    return ProgramHost(ProgramInfo.read(directory))


async def create(service: RpcService, name: str, **arguments: Any) -> TaskExecutor:
    """Factory for the actor's host; arguments as `runtime.taskexecutor.endpoint.create`."""
    own = {**arguments, "warm_up": False, "adopt": AdoptedDriver.adopt, "start_host": _host}
    return await endpoint.create(service, name, **own)
