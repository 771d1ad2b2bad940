"""How much memory a task process may take beyond what it begins with."""

from __future__ import annotations

import resource
from pathlib import Path


def limit_memory(extra_bytes: int, *, for_good: bool = False) -> None:
    """Let this process take *extra_bytes* more than it has now: beyond that its allocations fail with `MemoryError`.

    It counts what the process may write to (the kernel's RLIMIT_DATA), not files that it maps and shares, nor (as
    RLIMIT_AS would) the address space that allocators and threads reserve and never write to. A limit that
    holds already and is lower stays. One that is imposed *for_good* cannot be raised again by the process itself.
    """
    status = Path("/proc/self/status").read_text()
    taken_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
    limit = taken_kb * 1024 + extra_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    for held in (soft, hard):
        if held != resource.RLIM_INFINITY:
            limit = min(limit, held)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if for_good else hard))
