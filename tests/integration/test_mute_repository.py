"""A Maven repository that accepts connections and never answers, with the real Ivy."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from runtime.environment.claims import Claim
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.packages import LOCK, PackageRequest
from runtime.spark.errors import PackagesError
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S


async def test_a_mute_repository_ends_the_fetch_with_one_line_and_frees_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is reached by a jump of the loop's clock, once Ivy waits for the answer."""
    loop, before = asyncio.get_running_loop(), {child.pid for child in psutil.Process().children()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        request = PackageRequest(
            "org.example:marker:1.0",
            tmp_path / "ivy",
            repositories=f"http://{address}",
            timeout_s=LONGER_THAN_PATIENCE_S,
        )
        options = DriverOptions(
            tmp_path / "d", tmp_path / "log", packages=request, die_with_parent=True, start_timeout=PATIENCE_S
        )
        start = asyncio.create_task(LocalDriver.start(options))
        connection, _ = await asyncio.to_thread(server.accept)
        with connection:
            assert await asyncio.to_thread(connection.recv, 4) == b"HEAD"
            (jvm,) = [child for child in psutil.Process().children() if child.pid not in before]
            other = Claim(request.directory / LOCK)
            assert not other.try_acquire()
            found = other.living()
            assert found is not None
            assert (found[0].pid, found[0].role) == (os.getpid(), "org.example:marker:1.0")
            monkeypatch.setattr(loop, "time", lambda: time.monotonic() + LONGER_THAN_PATIENCE_S)
            with pytest.raises(PackagesError) as late:
                await start
            assert "org.example:marker:1.0 not fetched within 3600 s" in str(late.value)
            assert f"Ivy still waited for {address}: name a repository that answers" in str(late.value)
    assert not jvm.is_running()
    assert other.try_acquire()
    other.release()
