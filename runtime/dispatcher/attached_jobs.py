"""Cancels jobs whose clients have vanished (Flink's ``execution.attached`` and ``checkJobClientAliveness``).

The client of an attached job sends heartbeats. A client that was killed, or whose host is lost, cannot say that it
leaves. So its job is cancelled when no heartbeat has arrived for the time-out in the job's graph. Pure; times are
monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import JobID

LOOKS = 10
"""Number of checks of a job within its time-out."""


@dataclass(slots=True)
class _Client:
    timeout_s: float
    last_heard: float


class AttachedJobs:
    """Remembers the last heartbeats of the clients of attached jobs, and finds clients that have vanished.

    A new leader attaches its jobs again, so that their clients have a full time-out to find it. A leader that was
    suspended (SIGSTOP, a swapped-out process) received no heartbeats. Its next check is late, and that delay is left
    out of the time-out.
    """

    def __init__(self) -> None:
        self._clients: dict[JobID, _Client] = {}

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next check; None if no job is attached."""
        return min((client.timeout_s / LOOKS for client in self._clients.values()), default=None)

    def attach(self, now: float, job_id: JobID, timeout_s: float) -> None:
        """Watch the client of a job, as if its heartbeat had just arrived."""
        self._clients[job_id] = _Client(timeout_s, now)

    def heard(self, now: float, job_id: JobID) -> None:
        """Note a heartbeat; ignore that of a job that is not attached."""
        if (client := self._clients.get(job_id)) is not None:
            client.last_heard = now

    def detach(self, job_id: JobID) -> None:
        """Forget a job: it is over, or needs no client any more."""
        self._clients.pop(job_id, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._clients.clear()

    def look(self, now: float, due: float) -> dict[JobID, str]:
        """Return the jobs whose clients have vanished, with the reason to cancel each; forget them.

        Args:
            now: the time.
            due: the time at which this check was due.
        """
        late_s, vanished = max(0.0, now - due), {}
        for job_id, client in list(self._clients.items()):
            client.last_heard = min(client.last_heard + late_s, now)
            if now - client.last_heard >= client.timeout_s:
                vanished[job_id] = f"its client has not been heard of for {client.timeout_s:g} s"
                del self._clients[job_id]
        return vanished
