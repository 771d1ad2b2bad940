"""The end of a cluster for one job."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.errors import WireError
from runtime.dispatcher.mini_dispatcher import MiniDispatcher
from runtime.ids import JobID

LOST, KEPT = JobID("a" * 32), JobID("b" * 32)


@pytest.mark.parametrize("error", [OSError("Input/output error"), WireError("it is damaged")])
async def test_an_archived_job_that_cannot_be_read_does_not_keep_the_cluster_from_ending(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[JobID] = []

    def get(job_id: JobID) -> None:
        read.append(job_id)
        if job_id == LOST:
            raise error

    archive = SimpleNamespace(details=lambda: [SimpleNamespace(job_id=job_id) for job_id in (LOST, KEPT)], get=get)
    dispatcher = SimpleNamespace(_archive=archive, run_blocking=asyncio.to_thread, log=logging.getLogger("dispatcher"))
    await MiniDispatcher._keep_logs(cast("Any", dispatcher))
    assert read == [LOST, KEPT]
    assert f"the logs of job {LOST} are lost with the cluster: {error}" in caplog.text
