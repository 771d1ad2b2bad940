"""History of the rescales of one job. Pure: the caller gives the time.

Only one rescale of a job is under way (`runtime.cluster.rescaling`, `runtime.dispatcher.endpoint`). So an entry that is
in progress while another rescale begins is of a process that has ended without a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from runtime.ids import TriggerID
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.rescales import MOST_RESCALES, VANISHED, Rescale

MOST_CHARACTERS = 1000
"""Longest error and reason that are kept."""

_JOB_ENDED = "the job has ended before it was done"


class RescaleHistory:
    """The last rescales of a job.

    Args:
        known: those that a former JobMaster has recorded, the oldest first.
    """

    def __init__(self, known: Iterable[Rescale] = ()) -> None:
        self._rescales = deque(known, maxlen=MOST_RESCALES)

    @property
    def all(self) -> tuple[Rescale, ...]:
        """The rescales, the oldest first."""
        return tuple(self._rescales)

    def report(self, rescale: Rescale, now_ms: int) -> None:
        """Record the beginning of a rescale, what is known of it since, or its failure.

        An outcome is final. Who asked for a rescale, and when, is as in its first report.

        Args:
            rescale: as its reporter knows it, without number and times.
            now_ms: the time, in milliseconds since the epoch.
        """
        known = next((one for one in self._rescales if one.trigger_id == rescale.trigger_id), None)
        ended_ms = now_ms if rescale.is_over else None
        error = rescale.error[:MOST_CHARACTERS]
        if known is None:
            self._end_all(VANISHED, now_ms)
            number = self._rescales[-1].number + 1 if self._rescales else 1
            reason = rescale.reason[:MOST_CHARACTERS]
            begun = replace(
                rescale, number=number, started_ms=now_ms, ended_ms=ended_ms, error=error, reason=reason, savepoint=""
            )
            self._rescales.append(begun)
        elif not known.is_over:
            changed = replace(
                known,
                partitions=known.partitions if rescale.partitions is None else rescale.partitions,
                before=rescale.before or known.before,
                state=rescale.state,
                ended_ms=ended_ms,
                error=error,
            )
            self._replace(known, changed)

    def rolled_back(self, trigger_id: TriggerID, path: str, now_ms: int) -> None:
        """Record that a rescale has succeeded, if *trigger_id* is that of one: the tasks restart from *path*."""
        for one in tuple(self._rescales):
            if one.trigger_id == trigger_id:
                done = replace(one, state=OperationState.COMPLETED, ended_ms=now_ms, error="", savepoint=path)
                self._replace(one, done)

    def job_ended(self, now_ms: int) -> None:
        """Record that the job has ended."""
        self._end_all(_JOB_ENDED, now_ms)

    def _end_all(self, error: str, now_ms: int) -> None:
        for one in tuple(self._rescales):
            if not one.is_over:
                self._replace(one, replace(one, state=OperationState.FAILED, ended_ms=now_ms, error=error))

    def _replace(self, old: Rescale, new: Rescale) -> None:
        self._rescales[self._rescales.index(old)] = new
