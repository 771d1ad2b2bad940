"""What the Dispatcher says of a job that it does not have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from blob.gateway import BlobAddress
from runtime.dispatcher.archive import MemoryArchivedExecutionGraphStore, Retention
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ids import JobID
from runtime.protocol.errors import JobNotFoundError, JobNotReachableError

JOB = JobID("a" * 32)


async def test_only_a_leader_says_that_there_is_no_such_job(tmp_path: Path) -> None:
    """A call that is under way when the leadership ends finds no jobs: that is not to say that there are none."""
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    dispatcher = Dispatcher(
        service,
        "dispatcher",
        ha=MagicMock(),
        receptionist=MagicMock(),
        master_address="akka.tcp://x@127.0.0.1:1/user/master",
        blob=BlobAddress("127.0.0.1", 1),
        blobs=MagicMock(),
        archive=MemoryArchivedExecutionGraphStore(Retention(10, 1 << 20, 60.0)),
        log_dir=tmp_path,
        savepoint_dir=tmp_path,
        sweep_interval_s=60.0,
        starts_at_once=1,
    )
    for ask in (dispatcher.request_job, dispatcher.request_job_status, dispatcher.cancel_job):
        dispatcher.fencing_token = FencingToken(1, "s")
        with pytest.raises(JobNotFoundError, match="`understudy job list`"):
            await ask(JOB)
        dispatcher.fencing_token = None
        with pytest.raises(JobNotReachableError, match="ask again"):
            await ask(JOB)
    await service.close()
