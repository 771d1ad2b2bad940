"""What an attacker finds of a running cluster: on the same machine as another user, and without any token."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import re
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from runtime.job_logs import TASK_LOGS
from tests.cluster_harness import Cluster, await_value, paths_below
from tests.integration.test_actor_system import DEADLINE_S, Bomb
from tests.integration.test_actors_ports import as_nobody
from tests.job_files import write_job
from tests.rest_client import RestClient

# Uses whatever opens a port: Python workers, accumulators, broadcasts, the JVM's calls into the script. Its module is
# compiled where its environment is.
JOB = """\
import sys
from pyspark.sql import SparkSession, functions as F

sys.dont_write_bytecode = False
import helper

spark = SparkSession.builder.getOrCreate()
count = spark.sparkContext.accumulator(0)
spark.sparkContext.parallelize(range(4), 2).foreach(count.add)
assert count.value == 6

def note(batch, number):
    with open(sys.argv[1], "a") as file:
        file.write(f"{number}\\n")

rows = spark.readStream.format("rate").load()
rows.writeStream.foreachBatch(note).trigger(processingTime="200 milliseconds").start().awaitTermination()
"""
REFUSED_S = 1.0
"""What answers at all answers at once; a silence is no answer."""
CALLBACK = b"c\np%d\n__str__\ne\n"
"""In Py4J, as the JVM says it: call a function that waits for its calls."""


@pytest.fixture(scope="module")
def batches(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The job runs; the file that grows by a line with each of its batches."""
    directory = tmp_path_factory.mktemp("attacked")
    path = directory / "batches"
    module = directory / "library" / "helper.py"  # not beside the script, where it would be found first
    module.parent.mkdir()
    module.write_text("begun = True\n")
    job_id = cluster.submit(write_job(directory, JOB), str(path), options=("--py-files", str(module)))
    await_value(lambda: path.exists() and path.read_text())
    yield path
    cluster.run("job", "cancel", job_id)


def listening(cluster: Cluster) -> dict[tuple[str, int], int]:
    """The process of each address at which one of the cluster's listens."""
    found = {}
    for pid in cluster.processes():
        with suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                    found[connection.laddr.ip, connection.laddr.port] = pid
    return found


def driver_of(cluster: Cluster) -> dict[str, Any]:
    """What the worker notes of its Spark driver."""
    return dict(json.loads(next(cluster.directory.glob("tm-*/spark/driver.json")).read_text()))


def secrets_of(cluster: Cluster) -> dict[str, str]:
    """Every secret of the cluster, by what it is."""
    root = cluster.directory
    driver = driver_of(cluster)
    password = re.search(r"^requirepass (\S+)$", (root / "redis/redis.conf").read_text(), re.MULTILINE)
    assert password is not None
    return {
        "cluster": (root / "secret").read_text().strip(),
        "rest": (root / "rest-token").read_text().strip(),
        "redis": password[1],
        "gateway": driver["gateway_secret"],
        "connect": driver["connect_token"],
    }


def answer(address: tuple[str, int], *sent: bytes) -> bytes:
    """What a peer says to who sends that and has shown nothing."""
    said = b""
    with suppress(OSError), socket.create_connection(address, timeout=REFUSED_S) as sock:
        sock.sendall(b"".join(sent))
        while len(said) < 65536 and (piece := sock.recv(65536)):
            said += piece
    return said


def test_every_port_is_on_loopback_and_every_socket_in_a_private_directory(cluster: Cluster, batches: Path) -> None:
    addresses = listening(cluster)
    assert len(addresses) > 10, "all of them were found"
    assert driver_of(cluster)["connect_port"] in {port for _, port in addresses}, "Spark's too"
    assert {host.removeprefix("::ffff:") for host, _ in addresses} == {"127.0.0.1"}
    sockets = set()
    for pid in cluster.processes():
        with suppress(psutil.Error):
            connections = psutil.Process(pid).net_connections("unix")
            sockets |= {str(connection.laddr) for connection in connections if str(connection.laddr).startswith("/")}
    assert len(sockets) > 5
    for path in map(Path, sockets):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


def test_no_port_serves_who_has_shown_nothing(cluster: Cluster, batches: Path, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    secrets = [value.encode() for value in secrets_of(cluster).values()]
    tries = [
        b"GET /v1/jobs/overview HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        CALLBACK % 0 + CALLBACK % 1 + CALLBACK % 2,
        b"c\nz:java.lang.System\ngetenv\ne\n",
        (64).to_bytes(4, "big") + b"x" * 64 + bomb,
    ]
    addresses = list(listening(cluster))
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda pair: (pair, answer(*pair)), itertools.product(addresses, tries)))
    for (address, tried), said in found:
        assert not [secret for secret in secrets if secret in said], (address, tried)
        assert not said.startswith(b"!y"), f"Py4J calls for strangers at {address}"
        assert b"unknown" not in said, f"Py4J looks for what strangers name at {address}"
        assert b"200 OK" not in said, address
    assert grpc_status(driver_of(cluster)["connect_port"]) is grpc.StatusCode.UNAUTHENTICATED
    assert not (tmp_path / "executed").exists()
    seen = batches.read_text()
    await_value(lambda: batches.read_text() != seen)
    numbers = [int(line) for line in batches.read_text().split()]
    assert numbers == list(range(len(numbers))), "each batch came once, from Spark"


def grpc_status(port: int) -> grpc.StatusCode:
    """What Spark Connect says to who shows no token."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/spark.connect.SparkConnectService/ReleaseSession")
        try:
            call(b"", timeout=DEADLINE_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
            return code
    raise AssertionError("it serves strangers")


def test_no_secret_is_on_a_command_line_or_in_a_log(cluster: Cluster, batches: Path) -> None:
    secrets = secrets_of(cluster)
    for pid, name in cluster.processes().items():
        with suppress(OSError):
            shown, kept = (Path(f"/proc/{pid}/{file}").read_bytes().decode() for file in ("cmdline", "environ"))
            for what, secret in secrets.items():
                assert secret not in shown, f"{what} on the command line of {name}"
                # Spark takes its Connect token from there, and gives its environment to its Python workers.
                assert secret not in kept or what == "connect", f"{what} in the environment of {name}"
    holders = set()
    for path in paths_below(cluster.directory):
        with suppress(OSError):  # it has gone, or is a socket
            if path.is_file() and path.stat().st_size < 10_000_000:
                content, name = path.read_bytes(), path.relative_to(cluster.directory).as_posix()
                holders |= {(what, name) for what, secret in secrets.items() if secret.encode() in content}
    driver = next(cluster.directory.glob("tm-*/spark/driver.json")).relative_to(cluster.directory).as_posix()
    printed = {(what, name) for what, name in holders if what == "connect" and name.endswith("-spark.out")}
    assert holders - {("redis", "configuration.json")} - printed == {
        ("cluster", "secret"),
        ("rest", "rest-token"),
        ("redis", "redis/redis.conf"),
        ("gateway", driver),
        ("connect", driver),
    }, "Spark's Connect workers may have printed their token besides"
    for _, name in holders:
        assert stat.S_IMODE((cluster.directory / name).stat().st_mode) == 0o600, name
    configuration = RestClient.of(cluster).ask("GET", "/v1/jobmanager/config").body.decode()
    assert not [what for what, secret in secrets.items() if secret in configuration]


SPARKS = ("spark", "jobs", "checkpoints", "savepoints", "warehouse", "hive")
"""Directories in which Spark writes, by the user's umask: data of jobs, below directories of mode 0700."""
ATTEMPTS = ("attempt.json", *TASK_LOGS, "files")
"""Names that the runtime writes into the working directory of a task; the job's code writes the others."""


def is_by_a_job(*parts: str) -> bool:
    """Whether Spark or a job's Python wrote a path of a cluster's directory, given by its *parts*."""
    in_working_directory = len(parts) > 4 and parts[1] == "tasks"
    compiled = parts[1:2] == ("environments",) and "__pycache__" in parts
    return bool(set(SPARKS) & set(parts[:-1])) or compiled or (in_working_directory and parts[4] not in ATTEMPTS)


def test_what_the_runtime_writes_is_its_users_alone(cluster: Cluster, batches: Path) -> None:
    assert stat.S_IMODE(cluster.directory.stat().st_mode) == 0o700
    seen = set()
    for path in paths_below(cluster.directory):
        if not is_by_a_job(*path.relative_to(cluster.directory).parts):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                assert stat.S_ISLNK(mode) or not mode & 0o077, f"{path}: {mode:o}"
                seen.add(path.name)
    assert seen >= {"secret", "configuration.json", "helper.py", *ATTEMPTS}
    assert list(cluster.directory.glob("tm-*/environments/*/files/*/__pycache__")), "and jobs write beside it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_no_file_and_looks_into_no_process(cluster: Cluster, batches: Path, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents, *cluster.directory.parents):
        if parent != Path("/") and parent != Path("/tmp") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o001)  # what keeps others out is the runtime directory itself
    files = [path for path in paths_below(cluster.directory) if not path.is_dir()]
    ports = sorted(port for _, port in listening(cluster))
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    arguments = (sender, ports, files, list(cluster.processes()), bomb)
    intruder = multiprocessing.get_context("fork").Process(target=as_nobody, args=arguments)
    intruder.start()
    sender.close()
    told = receiver.recv()
    intruder.join()
    assert told["open"] == []
    assert told["answers"] > 2 * len(ports), "of which few have gone meanwhile"
    assert not (tmp_path / "executed").exists()
    assert (cluster.directory / "secret").read_text(), "and its owner reads them"
