"""Flink as a peer, where `apache-flink-libraries` is installed: a session cluster of its own, and a trivial job on it.

pip's package has Flink's servers and `CliFrontend`, which is what bin/flink starts. It has no job, and its SQL client
lacks the gateway that it is made of; so the job is compiled here, by the Java compiler in Spark's jars (Janino).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.flink_package import OPENED, flink_home, flink_java
from tests.rest_client import RestClient

TOTAL = "499500"
# TableEnvironmentImpl, as Janino's class files are too old to call TableEnvironment.create, which is an interface's.
SOURCE = """\
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.internal.TableEnvironmentImpl;

public class Total {
    public static void main(String[] arguments) {
        TableEnvironmentImpl tables = TableEnvironmentImpl.create(EnvironmentSettings.inBatchMode());
        tables.executeSql("CREATE TEMPORARY TABLE numbers (x BIGINT) WITH ('connector' = 'datagen',"
            + " 'number-of-rows' = '1000', 'fields.x.kind' = 'sequence',"
            + " 'fields.x.start' = '0', 'fields.x.end' = '999')");
        if (arguments.length == 0) {
            tables.executeSql("SELECT SUM(x) AS total FROM numbers").print();
        } else {
            tables.executeSql("CREATE TEMPORARY TABLE printed (total BIGINT) WITH ('connector' = 'print')");
            tables.executeSql("INSERT INTO printed SELECT SUM(x) FROM numbers");
        }
    }
}
"""
CONFIGURATION = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: 127.0.0.1
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: 4
taskmanager.cpu.cores: 2.0
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 384m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
parallelism.default: 1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest}
io.tmp.dirs: {directory}
"""
SERVERS = {
    "jobmanager": "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    "taskmanager": "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
}
WARM_UP = 100
ASK_EVERY_S = 0.005
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class FlinkSession:
    """A session cluster with one TaskManager, which has run the job some times.

    Args:
        run_command: `flink run` of the job: its main runs in the client, and prints the total.
        environ: what that runs with.
        rest: the JobManager's REST API.
        jar_id: of the jar, uploaded.
        printed: what the TaskManager prints.
    """

    run_command: list[str]
    environ: dict[str, str]
    rest: RestClient
    jar_id: str
    printed: Path

    def finished_s(self) -> float:
        """The job by REST, from the request until it is known to have FINISHED; its main runs in the JobManager.

        Raises:
            RuntimeError: it failed, or the TaskManager did not print the total.
        """
        before = self.printed.read_text().count(TOTAL)
        began = time.perf_counter()
        reply = self.rest.ask("POST", f"/v1/jars/{self.jar_id}/run", b'{"programArgsList": ["print"]}')
        if reply.status != 200:
            raise RuntimeError(f"Flink does not run the job: {reply.status} {reply.body!r}")
        job = f"/v1/jobs/{reply.json['jobid']}"
        while (state := self.rest.get(f"{job}/status")["status"]) != "FINISHED":
            if state in ("FAILED", "CANCELED") or time.perf_counter() - began > PATIENCE_S:
                raise RuntimeError(f"Flink's job is {state}: {self.rest.get(f'{job}/exceptions')}")
            time.sleep(ASK_EVERY_S)
        took = time.perf_counter() - began
        if self.printed.read_text().count(TOTAL) != before + 1:
            raise RuntimeError(f"Flink's job has finished and {TOTAL} is not in {self.printed}")
        return took


@contextlib.contextmanager
def flink_session(directory: Path) -> Iterator[FlinkSession | None]:
    """A warm session cluster in a new directory, ended at the end; None where Flink is not installed."""
    home = flink_home()
    if home is None:
        yield None
        return
    directory.mkdir()
    with _ports(2) as (rpc, rest):
        (directory / "config.yaml").write_text(CONFIGURATION.format(rpc=rpc, rest=rest, directory=directory))
    jars = ":".join(map(str, sorted((home / "lib").glob("*.jar"))))
    opened = (f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED)
    java = [str(flink_java()), *opened, f"-Djava.io.tmpdir={directory}", "-Xmx768m", "-cp", jars]
    environ = {**os.environ, "FLINK_CONF_DIR": str(directory)}
    job = _compile(directory, jars)
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, main in SERVERS.items():
            output = stack.enter_context((directory / name).open("wb"))
            command = [*java, main, "--configDir", str(directory)]
            processes[name] = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
            stack.callback(_end, processes[name])
        asked = RestClient(f"http://127.0.0.1:{rest}", "")
        _await_slots(asked, directory, processes)
        uploaded = asked.post_form("/v1/jars/upload", ("jarfile", job.name, job.read_bytes()))
        if uploaded.status != 200:
            raise RuntimeError(f"Flink does not take the job's jar: {uploaded.status} {uploaded.body!r}")
        session = FlinkSession(
            run_command=[*java, "org.apache.flink.client.cli.CliFrontend", "run", str(job)],
            environ=environ,
            rest=asked,
            jar_id=Path(uploaded.json["filename"]).name,
            printed=directory / "taskmanager",
        )
        for _ in range(WARM_UP):
            session.finished_s()
        yield session


def _compile(directory: Path, jars: str) -> Path:
    source, job = directory / "Total.java", directory / "total.jar"
    source.write_text(SOURCE)
    spark = Path(pyspark.__file__).parent / "jars"
    compiler = ":".join(str(jar) for name in ("janino", "commons-compiler") for jar in spark.glob(f"{name}-*.jar"))
    janino = [str(flink_java()), "-cp", compiler, "org.codehaus.commons.compiler.samples.CompilerDemo"]
    command = [*janino, "-d", str(directory), "-classpath", jars, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Janino does not compile Flink's job: {done.stdout}{done.stderr}")
    compiled = source.with_suffix(".class")
    with zipfile.ZipFile(job, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nMain-Class: {compiled.stem}\n")
        jar.write(compiled, compiled.name)
    return job


@contextlib.contextmanager
def _ports(number: int) -> Iterator[list[int]]:
    """Free ones; Flink does not tell which it took when it was asked to take any."""
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        yield [one.getsockname()[1] for one in listening]


def _await_slots(rest: RestClient, directory: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(ConnectionError):
            overview = rest.ask("GET", "/v1/overview")
            if overview.status == 200 and overview.json["slots-available"]:
                return
        for name, process in processes.items():
            if process.poll() is not None:
                said = (directory / name).read_text(errors="replace")
                raise RuntimeError(f"Flink's {name} ended with status {process.returncode}:\n{said}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"Flink's TaskManager has not registered within {PATIENCE_S:.0f} s")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
