"""What a running cluster holds: memory, descriptors, threads and processes by role, Redis' keys, files by directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from pathlib import Path

import psutil

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import HighAvailabilityOptions
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import HaError
from tests.cluster_harness import Cluster
from tests.faults.growth import ProcessSample, Sample

_SPARKS_PYTHON = ("pyspark.daemon", "pyspark.worker")


def take_sample(cluster: Cluster, at: float) -> Sample:
    """How the cluster stands now; *at* is the time that the sample shall bear, in seconds."""
    processes = tuple(filter(None, map(_process, cluster.processes())))
    return Sample(at, processes, asyncio.run(_redis(cluster)), _files(cluster.directory))


def _process(pid: int) -> ProcessSample | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory = process.memory_full_info()
            role = role_of(process.name(), process.cmdline())
            return ProcessSample(role, pid, memory.rss, memory.uss, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None  # it has ended


def role_of(name: str, command: list[str]) -> str:
    """What a process is, by its name and its command line: ``rest``, ``jobmaster``, ``zygote``, ..."""
    if name.startswith("us-"):
        role = name.removeprefix("us-").split("-")[0]
        return "resourcemanager" if "resourcemanager".startswith(role) else role  # the kernel cuts names
    if "-m" not in command:
        return name
    module = command[command.index("-m") + 1]
    return "python worker" if module.startswith(_SPARKS_PYTHON) else module.rpartition(".")[2]


async def _redis(cluster: Cluster) -> dict[str, int]:
    try:
        configuration = Configuration.read(cluster.directory / "configuration.json")
    except ConfigurationError:
        return {}  # a master is being started again
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    if url is None:
        return {}
    connection = RedisConnection(url.reveal())
    try:
        keys = int(await connection.command("DBSIZE"))
        memory = await connection.command("INFO", "memory")
        return {"keys": keys, "redis memory": int(memory["used_memory"])}
    except HaError:
        return {}  # it was killed, or what passes to it is harmed
    finally:
        await connection.close()


def _files(root: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for directory, _, names in os.walk(root):
        parts = Path(directory).relative_to(root).parts
        totals = found["/".join(parts[:2]) if parts and parts[0].startswith("tm-") else "/".join(parts[:1]) or "."]
        for name in names:
            with contextlib.suppress(OSError):  # it has gone
                totals[0] += 1
                totals[1] += os.lstat(os.path.join(directory, name)).st_blocks * 512  # noqa: PTH118 (many files)
    return {name: (files, size) for name, (files, size) in found.items()}
