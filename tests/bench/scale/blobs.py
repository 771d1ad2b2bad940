"""A BlobServer and ten thousand blobs: put, got, swept past, and deleted with their jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actors.rpc.gateway import FencingToken
from blob.client import BlobClient
from blob.gateway import BlobServerGateway
from blob.key import PermanentBlobKey
from tests.bench.scale.growth import Figures, growth
from tests.bench.scale.surroundings import PATIENCE_S, Surroundings, progress

JOBS_BLOBS = 10
BYTES = 1024
SWEEPS = 5
TOKEN = FencingToken(1, "bench")


async def measure(cluster: Surroundings, sizes: list[int]) -> Figures:
    """The figures of a BlobServer with as many blobs as *sizes* say, one after the other."""
    component, address = await cluster.blob_server()
    gateway = cluster.service.gateway(component.actor.address, BlobServerGateway, timeout_s=PATIENCE_S)
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in ("put", "get", "sweep", "delete")}
    keys: list[tuple[str, PermanentBlobKey]] = []
    empty_bytes = component.resident_bytes()

    async def cost(name: str, size: int, work: Callable[[], Awaitable[object]], before_s: float = 0.0) -> float:
        before = component.cpu_s()
        await work()
        spent_s = before_s + max(component.cpu_s() - before, 0.01)  # what the kernel counts in
        points[name].append((size, spent_s))
        progress(f"BlobServer, {size} blobs: {name} {spent_s:.3f} s of processor time")
        return spent_s

    async def sweep() -> None:
        live = sorted({job_id for job_id, _ in keys})
        for _ in range(SWEEPS):
            await gateway.sweep_orphans(live, TOKEN)

    async def delete(jobs: list[str]) -> None:
        for job_id in jobs:
            await gateway.cleanup_job(job_id, TOKEN)

    put_s = get_s = delete_s = 0.0
    with BlobClient((address.host, address.port), cluster.secret) as client:
        for size in sizes:
            numbers = range(len(keys), size)
            put_s = await cost("put", size, lambda: asyncio.to_thread(_put, client, numbers, keys), put_s)  # noqa: B023
            new = keys[numbers.start :]
            get_s = await cost("get", size, lambda: asyncio.to_thread(_get, client, new), get_s)  # noqa: B023
            await cost("sweep", size, sweep)
    most, grown_bytes = len(keys), component.resident_bytes() - empty_bytes
    jobs, done = list(dict.fromkeys(job_id for job_id, _ in keys)), 0
    for size in sizes:
        part = jobs[done : -(-size // JOBS_BLOBS)]
        done += len(part)
        delete_s = await cost("delete", size, lambda: delete(part), delete_s)  # noqa: B023  # is run here
    last = {name: points_of[-1][1] for name, points_of in points.items()}
    figures = {
        "blob_cpu_ms_per_put": last["put"] / most * 1000,
        "blob_cpu_ms_per_get": last["get"] / most * 1000,
        f"blob_cpu_ms_per_sweep_of_{most}": last["sweep"] / SWEEPS * 1000,
        "blob_cpu_ms_per_deleted": last["delete"] / most * 1000,
        "blob_server_bytes_per_blob": grown_bytes / most,
    }
    for name, found in points.items():
        figures |= growth(f"blob_{name}", found)
    return figures


def _put(client: BlobClient, numbers: range, keys: list[tuple[str, PermanentBlobKey]]) -> None:
    for number in numbers:
        job_id = f"{number // JOBS_BLOBS:032x}"
        keys.append((job_id, client.put_bytes(f"{number:<{BYTES}}".encode(), PermanentBlobKey, job_id)))


def _get(client: BlobClient, keys: list[tuple[str, PermanentBlobKey]]) -> None:
    for job_id, key in keys:
        client.get_bytes(key, job_id)
