"""The REST API: GET /jobs/overview on one connection, and requests per second on sixteen, with 5 jobs and with 100.

The jobs are real, and over. The asker is one process with sixteen sockets on the same machine, so what it takes is in
the figures.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from conf.configuration import Configuration
from conf.options import RestOptions
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect
from runtime.job_file import read_job_file

CONNECTIONS = 16
SERIAL_REQUESTS = 2000
SECONDS = 5.0
FEW, MANY = 5, 100
DEADLINE_S = 300.0


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch) / "c"
        setting = ["-D", f"cluster.runtime-dir={directory}", "-D", "jobmanager.rpc.port=0", "-D", "rest.port=0"]
        _command("start", *setting)
        try:
            configuration = Configuration.read(directory / "configuration.json")
            with connect(configuration) as client:
                values = _measure(client, configuration, Path(scratch), rounds)
        finally:
            _command("stop", *setting)
    rows = [
        (
            "GET /jobs/overview, 5 jobs, one connection, p50",
            f"{values['overview_p50_ms']:8.3f} ms  (to reach: 1 at most)",
        ),
        ("the same, p99", f"{values['overview_p99_ms']:8.3f} ms"),
        ("5 jobs, 16 connections", f"{values['overview_per_s_16']:8.0f} /s  (to reach: 5,000)"),
        ("100 jobs, 16 connections", f"{values['overview_100jobs_per_s_16']:8.0f} /s"),
    ]
    return values, rows


def _measure(client: ClusterClient, configuration: Configuration, scratch: Path, rounds: int) -> dict[str, float]:
    (url,) = [process.url for process in client.status().processes if process.url]
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    token = configuration.get(RestOptions.TOKEN_FILE).read_text().strip()
    request = (
        f"GET /v1/jobs/overview HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    _finish_jobs(client, scratch, FEW)
    _until_listed(address, request, FEW)
    times = [time_s for _ in range(rounds) for time_s in _serial(address, request)]
    few = max(_throughput(address, request) for _ in range(rounds))
    _finish_jobs(client, scratch, MANY - FEW)
    _until_listed(address, request, MANY)
    many = max(_throughput(address, request) for _ in range(rounds))
    return {
        "overview_p50_ms": statistics.median(times) * 1000,
        "overview_p99_ms": statistics.quantiles(times, n=100)[98] * 1000,
        "overview_per_s_16": few,
        "overview_100jobs_per_s_16": many,
    }


def _finish_jobs(client: ClusterClient, scratch: Path, count: int) -> None:
    file = scratch / "job.py"
    file.write_text("print('done')\n")
    for job_id in [client.submit(read_job_file(file, ()), file) for _ in range(count)]:
        client.result(job_id)


def _until_listed(address: tuple[str, int], request: bytes, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with socket.create_connection(address) as peer:
        while _ask(peer, request).count(b'"jid"') != count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the REST API does not list {count} jobs")
            time.sleep(0.05)


def _ask(peer: socket.socket, request: bytes) -> bytes:
    peer.sendall(request)
    received = b""
    while (length := _whole(received)) is None or len(received) < length:
        data = peer.recv(1 << 20)
        if not data:
            raise RuntimeError("the web endpoint closed the connection")
        received += data
    return received


def _whole(received: bytes) -> int | None:
    """How long the answer is with its head; None while that is not known."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    if not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received[:500].decode(errors="replace"))
    begin = received.index(b"content-length: ") + len(b"content-length: ")
    return end + 4 + int(received[begin : received.index(b"\r\n", begin)])


def _serial(address: tuple[str, int], request: bytes) -> list[float]:
    times = []
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(SERIAL_REQUESTS):
            began = time.perf_counter()
            _ask(peer, request)
            times.append(time.perf_counter() - began)
    return times


def _throughput(address: tuple[str, int], request: bytes) -> float:
    """Answers a second, each connection with one request on its way at any time."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        peers = [stack.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
        left = {peer.fileno(): 0 for peer in peers}
        buffer = memoryview(bytearray(256 * 1024))
        for peer in peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(peer, selectors.EVENT_READ, peer)
            peer.sendall(request)
        began, answers = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < SECONDS:
            for key, _ in selector.select(1.0):
                size = key.data.recv_into(buffer)
                if not left[key.fd]:
                    length = _whole(bytes(buffer[: min(size, 1024)]))
                    if length is None:
                        raise RuntimeError("the web endpoint sends the head of an answer in pieces")
                    left[key.fd] = length
                left[key.fd] -= size
                if not left[key.fd]:
                    answers += 1
                    key.data.sendall(request)
        return answers / (now - began)


def _command(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cluster", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
