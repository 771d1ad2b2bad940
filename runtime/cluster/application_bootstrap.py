"""The process that runs an application in its cluster (Flink's `ApplicationDispatcherBootstrap`).

    python -m runtime.cluster.application_bootstrap RUNTIME_DIR SYSTEM

Flink runs main() in the Dispatcher's process. Here user code has processes of its own. The master that holds this
process's claim keeps it running. The process sends requests to the cluster, and runs main() in a child with the limits
of a task and without the secret. If it is lost, the next one runs main() again, which finds the jobs that it executed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from actors.errors import ActorError, WireError
from actors.process.logs import configure_logging
from blob.errors import BlobConnectionError, BlobError, BlobServerError
from conf.configuration import Configuration
from conf.files import remove_tree
from conf.options import JobOptions
from runtime.application.client import ApplicationGateway
from runtime.application.program import ApplicationFiles, PackagedProgram
from runtime.application.state import (
    ApplicationResult,
    ApplicationState,
    CancelJobs,
    ExecuteIds,
    MainEnd,
    MainOutcome,
    RunMain,
    StopMain,
    Wait,
)
from runtime.client import ClusterClient, ClusterStoppedError, NoAnswerError
from runtime.cluster.discovery import connect_locally
from runtime.cluster.supervisor import await_gate
from runtime.environment.context import ComponentContext, log_config
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.ha.errors import HaError, HaUnreachableError
from runtime.ids import JobID
from runtime.job_logs import TASK_LOGS, write_job_log
from runtime.librarycache.packing import unpack_directory
from runtime.protocol.errors import PASSING, JobAlreadyTerminatedError, JobNotFoundError, JobNotReachableError
from runtime.protocol.execution_state import JobStatus
from runtime.spark.driver.launch import inherited_environment
from runtime.spark.wire import FrameReader, Message, encode
from runtime.taskexecutor.spark_options import task_limits

T = TypeVar("T")

MAIN = "understudy.runtime.application.main"
POLL_S = 0.2
RETRY_S = 0.5

_PASSING = (*PASSING, BlobConnectionError, BlobServerError)

logger = logging.getLogger(__name__)


class MainProcess:
    """One run of the user's main(), in a process of its own.

    Args:
        configuration: the cluster's; it has the limits of tasks.
        files: of the application.
        program: what to run.
        gateway: answers what main() asks.
    """

    def __init__(
        self,
        configuration: Configuration,
        files: ApplicationFiles,
        program: PackagedProgram,
        gateway: ApplicationGateway,
    ) -> None:
        self._gateway = gateway
        self._reader = FrameReader()
        self._end: MainEnd | None = None
        self._patience_s = configuration.get(JobOptions.CANCELLATION_TIMEOUT)
        self._socket, theirs = socket.socketpair()
        limits = task_limits(configuration)
        directory, shown, argv0 = files.work, program.file, program.file
        place = program.working_directory
        beside: tuple[str, ...] = ()
        if place is not None and place.caller is not None and place.caller.is_here():
            directory, argv0 = Path(place.caller.path), place.file
            shown = str(directory / place.file)
        elif files.packed.exists():
            remove_tree(files.work)  # of an earlier run
            unpack_directory(files.packed, files.work)
            beside = (str(files.work.resolve()),)
            if place is not None and place.shipped_file:
                shown, argv0 = str(files.work / place.shipped_file), place.shipped_file
        output, errors = (_new_file(path) for path in (files.stdout, files.stderr))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MAIN, str(theirs.fileno()), str(os.getpid())],
                env={**inherited_environment(), **program.environment},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            for descriptor in (output, errors):
                os.close(descriptor)
            theirs.close()
        self._send(
            {
                "file": program.file,
                "shown": shown,
                "argv": [argv0, *program.argv],
                "import_path": [*dict.fromkeys((str(Path(shown).resolve().parent), *beside)), *program.python_path],
                "memory_bytes": limits.memory_bytes,
                "cpu_s": limits.cpu_s,
            }
        )

    def serve(self, timeout_s: float) -> MainEnd | None:
        """Answer a request of main(), waiting at most *timeout_s*; return how main() ended, once it has."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            return None
        try:
            data = self._socket.recv(1 << 20)
            messages = self._reader.feed(data)
        except (ConnectionResetError, WireError) as error:
            logger.error("main() is killed: %s", error)
            self._process.kill()
            data, messages = b"", []
        for message in messages:
            self._take(message)
        return None if data else self._ended()

    def _take(self, message: Message) -> None:
        match message.get("op"):
            case "finished":
                self._end = MainEnd(MainOutcome.FINISHED)
            case "failed":
                cause = message.get("job_id")
                self._end = MainEnd(
                    MainOutcome.FAILED,
                    str(message.get("error")),
                    str(message.get("traceback")),
                    None if cause is None else JobID(cause),
                    message.get("exit_status"),
                )
            case _:
                self._send(self._gateway.answer(message))

    def _send(self, message: Message) -> None:
        try:
            frame = encode(message)
        except WireError as error:
            frame = encode({"error": "WireError", "text": str(error), "remedy": "use the command line instead"})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # reading notices the end
            self._socket.sendall(frame)

    def _ended(self) -> MainEnd:
        """Return how main() ended, after it has closed its end of the socket or its process has ended."""
        self._socket.close()
        code = self._await_exit()
        if self._end is not None:
            return self._end
        if code == 0:  # by os._exit
            return MainEnd(MainOutcome.FINISHED)
        if code > 0:
            return MainEnd(MainOutcome.FAILED, f"the process of main() ended with status {code}", exit_status=code)
        return MainEnd(MainOutcome.LOST, f"the process of main() ended by signal {-code}")

    def _await_exit(self) -> int:
        try:
            return self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def stop(self) -> MainEnd:
        """End it by SIGTERM, and after ``task.cancellation.timeout`` by SIGKILL."""
        self._process.terminate()
        self._await_exit()
        self._socket.close()
        return MainEnd(MainOutcome.LOST, "main() was cancelled")


def _new_file(path: Path) -> int:
    """Open a new file that replaces that of an earlier run; readers see that it is another file."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


class ApplicationBootstrap:
    """Runs an application to its end, and then ends the cluster.

    Args:
        client: of the cluster.
        configuration: the cluster's.
        directory: the cluster's.
    """

    def __init__(self, client: ClusterClient, configuration: Configuration, directory: ClusterDirectory) -> None:
        self._client = client
        self._configuration = configuration
        self._directory = directory
        self._files = ApplicationFiles(directory)
        self._program = self._files.program()
        self._main: MainProcess | None = None

    def run(self) -> None:
        """Run until the cluster has ended or its masters stop this process."""
        result = self._files.result()
        if result is None:
            result = self._to_its_end()
            self._keep_logs()
            self._files.write_result(result)
        logger.info("the application %s is %s %s", self._program.id, result.status.value, result.error)
        claim = self._directory.client_claim()
        while not claim.try_acquire():  # the client that started the cluster reads the result
            time.sleep(POLL_S)
        while True:  # until this process is stopped with the rest
            try:
                self._client.shut_down(result.status)
            except ActorError:
                if not self._directory.is_running():
                    return
            time.sleep(RETRY_S)

    def _to_its_end(self) -> ApplicationResult:
        book = ApplicationState()
        while True:
            if self._files.is_cancelled:
                book.cancel()
            instruction = book.next({} if self._main else self._jobs())
            match instruction:
                case ApplicationResult():
                    return instruction
                case RunMain():
                    logger.info("main() of %s is run", self._program.name)
                    self._main = self._new_main()
                    book.main_started()
                case StopMain() if self._main is not None:
                    book.main_ended(self._main.stop())
                    self._main = None
                case CancelJobs():
                    for job_id in instruction.job_ids:
                        self._cancel(job_id)
                    time.sleep(POLL_S)
                case Wait() if self._main is None:
                    time.sleep(POLL_S)
            if self._main is not None and (end := self._main.serve(POLL_S)) is not None:
                logger.info("main() of %s has %s %s", self._program.name, end.outcome.value, end.error)
                book.main_ended(end)
                self._main = None

    def _new_main(self) -> MainProcess:
        libraries = [(Path(path), role) for path, role in self._program.libraries]
        ids, environment = ExecuteIds(self._program.id), self._program.environment
        gateway = ApplicationGateway(self._client, ids, libraries, self._insist, environment)
        return MainProcess(self._configuration, self._files, self._program, gateway)

    def _jobs(self) -> dict[JobID, JobStatus]:
        return {job.job_id: job.status for job in self._insist(self._client.list_jobs)}

    def _cancel(self, job_id: JobID) -> None:
        with contextlib.suppress(JobAlreadyTerminatedError, JobNotFoundError):
            self._insist(lambda: self._client.cancel(job_id))

    def _insist(self, ask: Callable[[], T]) -> T:
        """Repeat a request until the cluster has answered: without a leader the state of the application is unknown."""
        while True:
            try:
                return ask()
            except (ActorError, BlobError, JobNotReachableError) as error:
                if type(error) not in (ActorError, NoAnswerError) and not isinstance(error, _PASSING):
                    raise
                logger.warning("the cluster does not answer, trying again: %s", error)
                time.sleep(RETRY_S)

    def _keep_logs(self) -> None:
        """Write the logs of the jobs' tasks next to the components' logs, where they outlive the cluster."""
        for job_id in self._jobs():
            try:
                for entry, content in self._insist(functools.partial(self._client.logs, job_id)):
                    if entry.name in TASK_LOGS and content:
                        write_job_log(self._directory.log, job_id, entry.task, entry.attempt, entry.name, content)
            except (BlobError, JobNotFoundError, OSError) as error:
                logger.error("the logs of job %s are lost with the cluster: %s", job_id, error)


def _connected(configuration: Configuration) -> ClusterClient:
    """Return a client, once the master has written the cluster's address; until then Redis may not answer either."""
    while True:
        try:
            return connect_locally(configuration)
        except ClusterNotRunning:
            time.sleep(POLL_S)
        except HaUnreachableError as error:
            logger.warning("the cluster is not found yet, trying again: %s", error)
            time.sleep(RETRY_S)


def main() -> int:
    """Run the application; return exit status 0 once it is over and its cluster has been stopped."""
    await_gate()
    context = ComponentContext.read(*sys.argv[1:3])
    configuration, directory = context.configuration, context.directory
    configure_logging(log_config(configuration, directory, "application"))
    try:
        with _connected(configuration) as client:
            ApplicationBootstrap(client, configuration, directory).run()
    except (ClusterError, ClusterStoppedError, HaError, WireError, OSError) as error:
        logger.critical("the application cannot continue: %s", error, exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
