"""What is given on the command line."""

from __future__ import annotations

from runtime.errors import ClusterError
from runtime.ids import JobID


def job_id_of(text: str) -> JobID:
    """The id of a job; raises ClusterError."""
    try:
        return JobID(text)
    except ValueError as error:
        raise ClusterError(str(error), "`python -m runtime.cluster job list` shows the ids of jobs") from error
