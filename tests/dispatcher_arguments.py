"""The arguments of a Dispatcher whose services are mocks, for unit tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from actors.rpc.service import RpcConfig, RpcService
from blob.gateway import BlobAddress
from runtime.dispatcher.archive import MemoryArchivedExecutionGraphStore, Retention


def dispatcher_arguments(directory: Path) -> dict[str, Any]:
    """Return them, with an archive in memory; call it in an event loop."""
    return {
        "service": RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig()),
        "name": "dispatcher",
        "ha": MagicMock(),
        "receptionist": MagicMock(),
        "master_address": "akka.tcp://x@127.0.0.1:1/user/master",
        "blob": BlobAddress("127.0.0.1", 1),
        "blobs": MagicMock(),
        "archive": MemoryArchivedExecutionGraphStore(Retention(10, 1 << 20, 60.0)),
        "log_dir": directory,
        "savepoint_dir": directory,
        "sweep_interval_s": 60.0,
        "starts_at_once": 1,
    }
