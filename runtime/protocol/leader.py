"""Values of high availability: component names, terms of office, and a leader's address."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from actors.rpc.fencing import Leadership

DISPATCHER = "dispatcher"
RESOURCE_MANAGER = "resourcemanager"
REST_ENDPOINT = "rest"
JOB_MASTER = "jobmaster"
"""Prefix of the component names of JobMasters: each job has its own component, see `job_master`."""

_COMPONENTS = ("master", "blobserver", DISPATCHER, RESOURCE_MANAGER, REST_ENDPOINT)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def job_master(job_id: str) -> str:
    """Return the component name of the JobMaster of one job."""
    return checked_name("job id", f"{JOB_MASTER}-{job_id}")


def is_component(name: str) -> bool:
    """Return whether *name* is that of a component of every cluster, or of a JobMaster.

    While its leader changes or its process is restarted, no master lists it.
    """
    return name in _COMPONENTS or job_of(name) is not None


def job_of(name: str) -> str | None:
    """Return the job id in the component name of a JobMaster; None for other names. It may be no valid id."""
    prefix, dash, job_id = name.partition("-")
    return job_id if dash and prefix == JOB_MASTER else None


def checked_name(what: str, name: str) -> str:
    """Return *name* if it may become part of a key or a file name.

    Raises:
        ValueError: it is empty, too long, or has other characters than letters, digits, dot, dash and underscore.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r} must be 1-128 letters, digits, dots, dashes or underscores")
    return name


def boottime() -> float:
    """Return seconds of a clock that never goes back and also runs while the machine sleeps (``CLOCK_BOOTTIME``)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


LeaderTerm = Leadership
"""One term of office of one contender, granted by its latch; every write and every call of a leader names it."""


@dataclass(frozen=True, slots=True)
class LeaderInformation:
    """A confirmed leader: its component, its address and its term (Flink's ``LeaderInformation``)."""

    component: str
    address: str
    epoch: int
    session: str

    @property
    def term(self) -> LeaderTerm:
        """Return the term without the address."""
        return LeaderTerm(self.component, self.epoch, self.session)
