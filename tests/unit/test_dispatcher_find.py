"""What the Dispatcher says of a job that it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.rpc.gateway import FencingToken
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ids import JobID
from runtime.protocol.errors import JobNotFoundError, JobNotReachableError
from tests.dispatcher_arguments import dispatcher_arguments

JOB = JobID("a" * 32)


async def test_only_a_leader_says_that_there_is_no_such_job(tmp_path: Path) -> None:
    """A call that is under way when the leadership ends finds no jobs: that is not to say that there are none."""
    given = dispatcher_arguments(tmp_path)
    dispatcher = Dispatcher(**given)
    for ask in (dispatcher.request_job, dispatcher.request_job_status, dispatcher.cancel_job):
        dispatcher.fencing_token = FencingToken(1, "s")
        with pytest.raises(JobNotFoundError, match="`understudy job list`"):
            await ask(JOB)
        dispatcher.fencing_token = None
        with pytest.raises(JobNotReachableError, match="retry in a moment"):
            await ask(JOB)
    await given["service"].close()
