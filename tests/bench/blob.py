"""PUT and GET of the blob service, small and large, beside the floors of plain programs that move the same bytes.

A `BlobServer` and sixteen clients, each a process of its own, over TCP on loopback; blobs are transient, files lie in a
temporary directory (``TMPDIR``) on a real disk, sources in the page cache. The floors do what must be done, and nothing
else, with one thread and buffers of 512 KiB:

- PUT: read the file, SHA-256, write a copy, fsync. (The service hashes twice, at the sender and at the receiver.)
- GET: one process sends the file with ``sendfile``, another receives it, SHA-256, writes it; no fsync, as
  `BlobClient.get_to_file` does none.

Rounds alternate the service and its floors; figures are medians of rounds. 1 MB is 2**20 bytes. Peaks are of resident
memory above that of the same process when it had just moved its first 10 KB, over all transfers of one blob at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.key import BlobKey, TransientBlobKey
from blob.server import BlobServer
from blob.settings import BlobServerOptions

MB = 1 << 20
SIZES = {"1mb": (MB, 20), "64mb": (64 * MB, 2), "512mb": (512 * MB, 1)}  # bytes, transfers in a round
SMALL = 10 * 1024
CLIENTS = 16
CACHES = 8
SECONDS = 1.0
CHUNK = 512 * 1024
JOB = "b" * 32
_spawn = multiprocessing.get_context("spawn")


class Worker:
    """A process that runs the functions of this module that it is told to, one after another."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))

    def result(self) -> Any:
        value = self._pipe.recv()
        if isinstance(value, Exception):
            raise value
        return value

    def ask(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.result()

    def stop(self) -> None:
        self._pipe.close()
        self._process.join()


def _obey(pipe: Connection, actions: object) -> None:
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(actions, name)(*arguments))
        except Exception as error:
            pipe.send(error)


class Process:
    """What every process can say of itself."""

    def rest(self) -> float:
        """Resident MB now."""
        return _memory("VmRSS")

    def peak(self) -> float:
        """Resident MB at the peak since the last `forget_peak`."""
        return _memory("VmHWM")

    def forget_peak(self) -> None:
        """Let `peak` begin anew."""
        Path("/proc/self/clear_refs").write_text("5")


class Serving(Process):
    """The server's process."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = BlobServer(directory, secret, options=BlobServerOptions(cleanup_interval=3600))
        self._do(self._server.start())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def address(self) -> tuple[str, int]:
        return self._server.address

    def forget(self) -> None:
        self._do(self._server.delete_job(JOB))

    def close(self) -> None:
        self._do(self._server.close())


class Client(Process):
    """A client's process, and a floor's."""

    def __init__(self, directory: Path, address: tuple[str, int], secret: bytes) -> None:
        self._directory = directory
        directory.mkdir()
        self._client = BlobClient(address, secret)
        self._connect = lambda: BlobClient(address, secret)

    def put(self, source: Path) -> tuple[float, str]:
        began = time.perf_counter()
        key = self._client.put_file(source, TransientBlobKey, JOB)
        return time.perf_counter() - began, str(key)

    def get(self, key: str) -> float:
        target = self._directory / "got"
        began = time.perf_counter()
        self._client.get_to_file(BlobKey.parse(key), target, JOB)
        took = time.perf_counter() - began
        target.unlink()
        return took

    def fetch(self, key: str) -> float:
        """Into an empty cache; seconds since the epoch of the machine when done."""
        cache = BlobCache(self._directory / "cache", self._connect)
        cache.get_file(JOB, BlobKey.parse(key))
        done = time.monotonic()
        cache.release_job(JOB)
        cache.close()
        return done

    def put_small(self, seconds: float) -> float:
        """PUTs a second."""
        data = os.urandom(SMALL)
        return self._rate(lambda: self._client.put_bytes(data, TransientBlobKey, JOB), seconds)

    def get_small(self, key: str, seconds: float) -> float:
        """GETs a second."""
        parsed = BlobKey.parse(key)
        return self._rate(lambda: self._client.get_bytes(parsed, JOB), seconds)

    @staticmethod
    def _rate(action: Callable[[], object], seconds: float) -> float:
        action()
        count, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            action()
            count += 1
        return count / took

    def floor_put(self, source: Path) -> float:
        target, buffer, hasher = self._directory / "copy", memoryview(bytearray(CHUNK)), hashlib.sha256()
        began = time.perf_counter()
        with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
            while size := reader.readinto(buffer):
                hasher.update(buffer[:size])
                writer.write(buffer[:size])
            os.fsync(writer.fileno())
        took = time.perf_counter() - began
        target.unlink()
        return took

    def floor_send(self, source: Path, listener: tuple[str, int], times: int) -> None:
        """The sender of `floor_get`."""
        with source.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for _ in range(times):
                with socket.create_connection(listener) as sock:
                    offset = 0
                    while offset < size:
                        offset += os.sendfile(sock.fileno(), file.fileno(), offset, CHUNK)

    def floor_listen(self) -> tuple[str, int]:
        self._listener = socket.create_server(("127.0.0.1", 0))
        address: tuple[str, int] = self._listener.getsockname()
        return address

    def floor_get(self) -> float:
        target, buffer, hasher = self._directory / "copy", memoryview(bytearray(CHUNK)), hashlib.sha256()
        sock, _ = self._listener.accept()
        began = time.perf_counter()
        with sock, target.open("wb", buffering=0) as writer:
            while size := sock.recv_into(buffer, 0, socket.MSG_WAITALL):
                hasher.update(buffer[:size])
                writer.write(buffer[:size])
        took = time.perf_counter() - began
        target.unlink()
        return took


def _server_process(pipe: Connection, directory: Path, secret: bytes) -> None:
    serving = Serving(directory, secret)
    try:
        _obey(pipe, serving)
    finally:
        serving.close()


def _client_process(pipe: Connection, directory: Path, address: tuple[str, int], secret: bytes) -> None:
    _obey(pipe, Client(directory, address, secret))


def _memory(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-blob-") as scratch:
        directory, secret = Path(scratch), secrets.token_hex(32).encode()
        sources = {name: directory / name for name in (*SIZES, "10kb")}
        _write(sources["10kb"], SMALL)
        for name, (size, _) in SIZES.items():
            _write(sources[name], size)
        server = Worker(_server_process, directory / "blob", secret)
        address = server.ask("address")
        clients = [Worker(_client_process, directory / f"client{n}", address, secret) for n in range(CLIENTS)]
        try:
            figures = _measure(rounds, server, clients, sources)
        finally:
            for worker in (*clients, server):
                worker.stop()
    return figures, _table(figures)


def _write(path: Path, size: int) -> None:
    block = os.urandom(min(size, MB))
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        os.fsync(file.fileno())


def _measure(rounds: int, server: Worker, clients: list[Worker], sources: dict[str, Path]) -> dict[str, float]:
    samples: dict[str, list[float]] = {}
    client, other = clients[0], clients[1]

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for worker in clients:  # connected, and warm
        worker.ask("get", worker.ask("put", sources["10kb"])[1])
    rests = [worker.ask("rest") for worker in (server, client)]
    # Not measured: the first to use the machine's memory pays for it where that is a virtual machine.
    _transfers(lambda *_: None, server, client, other, sources["512mb"], ("512mb", *SIZES["512mb"]), floors_first=False)
    for number in range(rounds):
        for name, (size, times) in SIZES.items():
            for worker in (server, client):
                worker.ask("forget_peak")
            _transfers(note, server, client, other, sources[name], (name, size, times), floors_first=number % 2 == 1)
            for role, worker, rest in zip(("server", "client"), (server, client), rests, strict=True):
                note(f"{role}_peak_mb", worker.ask("peak") - rest)
        key = client.ask("put", sources["10kb"])[1]
        for count in (1, CLIENTS):
            note(f"get_10kb_per_s_{count}", _rate(clients[:count], "get_small", key, SECONDS))
            note(f"put_10kb_per_s_{count}", _rate(clients[:count], "put_small", SECONDS))
            server.ask("forget")
            key = client.ask("put", sources["10kb"])[1]
        key = client.ask("put", sources["64mb"])[1]
        began = time.monotonic()
        for worker in clients[:CACHES]:
            worker.tell("fetch", key)
        note(f"fanout_64mb_{CACHES}_s", max([worker.result() for worker in clients[:CACHES]]) - began)
        server.ask("forget")
    peaks = {name: max(samples.pop(name)) for name in ("server_peak_mb", "client_peak_mb")}
    return {name: statistics.median(values) for name, values in samples.items()} | peaks


def _transfers(
    note: Callable[[str, float], None],
    server: Worker,
    client: Worker,
    other: Worker,
    source: Path,
    what: tuple[str, int, int],
    *,
    floors_first: bool,
) -> None:
    name, size, times = what

    def mbps(seconds: float) -> float:
        return size / MB / seconds

    def service() -> None:
        puts = [client.ask("put", source) for _ in range(times)]
        gets = [client.ask("get", key) for _, key in puts]
        server.ask("forget")
        note(f"put_{name}_mbps", mbps(statistics.median(seconds for seconds, _ in puts)))
        note(f"get_{name}_mbps", mbps(statistics.median(gets)))

    def floors() -> None:
        note(f"floor_put_{name}_mbps", mbps(statistics.median(client.ask("floor_put", source) for _ in range(times))))
        other.tell("floor_send", source, client.ask("floor_listen"), times)
        note(f"floor_get_{name}_mbps", mbps(statistics.median(client.ask("floor_get") for _ in range(times))))
        other.result()

    for part in (floors, service) if floors_first else (service, floors):
        part()


def _rate(workers: list[Worker], name: str, *arguments: Any) -> float:
    for worker in workers:
        worker.tell(name, *arguments)
    rates: list[float] = [worker.result() for worker in workers]
    return sum(rates)


def _table(figures: dict[str, float]) -> list[tuple[str, str]]:
    rows = []
    for name in SIZES:
        for verb in ("put", "get"):
            value, floor = figures[f"{verb}_{name}_mbps"], figures[f"floor_{verb}_{name}_mbps"]
            text = f"{value:10,.0f} MB/s   {value / floor:.2f} x the floor of {floor:,.0f} MB/s"
            rows.append((f"{verb.upper()} {name}", text))
    for verb in ("put", "get"):
        for count in (1, CLIENTS):
            who = "1 client" if count == 1 else f"{count} clients"
            rows.append((f"{verb.upper()} 10kb, {who}", f"{figures[f'{verb}_10kb_per_s_{count}']:10,.0f} /s"))
    rows.append(("64mb to 8 caches", f"{figures['fanout_64mb_8_s']:10.2f} s"))
    peaks = [(role, f"{figures[f'{role}_peak_mb']:10.1f} MB") for role in ("server", "client")]
    return rows + [(f"peak memory of the {role}, above idle", text) for role, text in peaks]
