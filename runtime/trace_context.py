"""W3C trace contexts, and the ids of a job's trace. Pure.

The ids follow from those of the job and its parts. So each JobMaster of a job continues the same trace, and a span that
two of them send is one span.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from runtime.ids import ExecutionAttemptID, JobID

TRACEPARENT = "TRACEPARENT"
"""Environment variable that holds the present context (OpenTelemetry's environment variable carriers)."""

SAMPLED = 1
_FORM = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span, as W3C's ``traceparent`` names it.

    Args:
        trace_id: 32 lower-case hexadecimal digits.
        span_id: 16 lower-case hexadecimal digits.
        flags: bits; `SAMPLED` says that the span is recorded.
    """

    trace_id: str
    span_id: str
    flags: int = SAMPLED

    @classmethod
    def parse(cls, text: str) -> TraceContext | None:
        """Return the context; None if the text is none, which W3C's recommendation says to ignore."""
        found = _FORM.match(text)
        if found is None or found["version"] == "ff" or not int(found["trace"], 16) or not int(found["span"], 16):
            return None
        rest = text[found.end() :]
        if rest and (found["version"] == "00" or not rest.startswith("-")):  # a later version may have more fields
            return None
        return cls(found["trace"], found["span"], int(found["flags"], 16))

    @property
    def is_sampled(self) -> bool:
        """Return whether the span is recorded, and so those below it are to be."""
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def span_id(*names: str) -> str:
    """Return the id of a span: a digest of the names of what it shows."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JobTrace:
    """The trace of a job.

    Args:
        job_id: of the job.
        parent: the client's span, under which the job was submitted; None if it named none.
        records: whether the cluster sends spans of the job.
    """

    job_id: JobID
    parent: TraceContext | None
    records: bool

    @classmethod
    def of(cls, job_id: JobID, traceparent: str, is_on: bool) -> JobTrace:
        """Return the trace of a job.

        Args:
            job_id: of the job.
            traceparent: as in `JobGraph`.
            is_on: whether the cluster sends traces. It sends none of a job whose client does not record its own.
        """
        parent = TraceContext.parse(traceparent)
        return cls(job_id, parent, is_on and (parent is None or parent.is_sampled))

    @property
    def trace_id(self) -> str:
        """Return the client's trace, else the job's id; empty if the job has no trace."""
        if self.parent is not None:
            return self.parent.trace_id
        return str(self.job_id) if self.records else ""

    @property
    def job_span(self) -> str:
        """Return the id of the job's span, above all others of the job."""
        return span_id(self.job_id)

    def attempt_span(self, attempt_id: ExecutionAttemptID) -> str:
        """Return the id of an attempt's span."""
        return span_id(self.job_id, attempt_id)

    def traceparent(self, attempt_id: ExecutionAttemptID) -> str:
        """Return the context for the code of an attempt: its span, or the client's own; empty if there is none."""
        if not self.records:
            return "" if self.parent is None else str(self.parent)
        flags = SAMPLED if self.parent is None else self.parent.flags
        return str(TraceContext(self.trace_id, self.attempt_span(attempt_id), flags))


def current_traceparent(environment: Mapping[str, str], modules: Mapping[str, ModuleType]) -> str:
    """Return the context of the calling code; empty if there is none.

    Args:
        environment: of the process. Its ``TRACEPARENT`` counts where no OpenTelemetry span is open.
        modules: those that the process has loaded; OpenTelemetry is used only if it is one of them.
    """
    api = modules.get("opentelemetry.trace")
    if api is not None and hasattr(api, "get_current_span"):
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            return str(TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}", int(span.trace_flags)))
    found = TraceContext.parse(environment.get(TRACEPARENT, ""))
    return "" if found is None else str(found)
