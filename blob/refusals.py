"""Errors with which a server answers, and their texts."""

from __future__ import annotations

import errno

from blob.errors import BlobError, BlobNotFound, BlobRequestRefused, BlobServerError, NoSpaceLeft
from blob.key import BlobKey, BlobType


def storage_failure(error: OSError) -> BlobError:
    """Return the error for a failure of the server's own disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceLeft("the blob server's disk is full; free some space, or move the blob directory")
    return BlobServerError(f"the blob server cannot use its directory: {error}")


def require_job(blob_type: BlobType, job_id: str | None) -> None:
    """Raise BlobRequestRefused for a permanent blob without a job."""
    if blob_type is BlobType.PERMANENT and job_id is None:
        raise BlobRequestRefused("a permanent blob belongs to a job: give its job id")


def not_found(job_id: str | None, key: BlobKey) -> BlobNotFound:
    """Return the error for a blob that is neither here nor in the store."""
    owner = "without a job" if job_id is None else f"of job {job_id}"
    return BlobNotFound(
        f"there is no blob {key} {owner}: it was never uploaded, was deleted, or its time to live is over"
    )
