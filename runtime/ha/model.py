"""The values that high availability speaks of: components, terms of office, what is known of a leader."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

DISPATCHER = "dispatcher"
RESOURCE_MANAGER = "resourcemanager"
REST_ENDPOINT = "rest"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def job_master(job_id: str) -> str:
    """The component name of the JobMaster of one job."""
    return checked_name("job id", f"jobmaster-{job_id}")


def checked_name(what: str, name: str) -> str:
    """``name`` if it may become part of a key or a file name.

    Raises:
        ValueError: it is empty, too long, or has other characters than letters, digits, dot, dash and underscore.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r} must be 1-128 letters, digits, dots, dashes or underscores")
    return name


def boottime() -> float:
    """Seconds on a clock that never goes back and runs on while the machine sleeps (``CLOCK_BOOTTIME``)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """One term of office of one contender; every write of a leader names it.

    It has the ``epoch`` and ``session`` of a fencing token and, beside them, whose latch vouches for it.
    """

    component: str
    epoch: int
    session: str


@dataclass(frozen=True, slots=True)
class LeaderInformation:
    """A confirmed leader (Flink's ``LeaderInformation``): who, where, in which term."""

    component: str
    address: str
    epoch: int
    session: str

    @property
    def term(self) -> LeaderTerm:
        """The term without the address."""
        return LeaderTerm(self.component, self.epoch, self.session)
