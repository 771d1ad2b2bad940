"""Jobs that end when their clients vanish (Flink's ``execution.attached`` and ``checkJobClientAliveness``).

The client of an attached job reports that it is there. A killed client, or one whose host is lost, cannot say that it
leaves: its job is cancelled when nothing was heard of it for the time-out in the job's graph. Pure; times are monotonic
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import JobID

LOOKS = 10
"""How often a job is looked at within its time-out."""


@dataclass(slots=True)
class _Client:
    timeout_s: float
    last_heard: float


class AttachedJobs:
    """Remembers when the clients of attached jobs were heard of, and finds those that have vanished.

    A new leader attaches its jobs anew, so that their clients have a full time-out to find it. One that stood still
    (SIGSTOP, a swapped-out process) was deaf meanwhile: it comes late to its next look, and that time is left out.
    """

    def __init__(self) -> None:
        self._clients: dict[JobID, _Client] = {}

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next look; None where no job is attached."""
        return min((client.timeout_s / LOOKS for client in self._clients.values()), default=None)

    def attach(self, now: float, job_id: JobID, timeout_s: float) -> None:
        """Watch the client of a job, as if just heard."""
        self._clients[job_id] = _Client(timeout_s, now)

    def heard(self, now: float, job_id: JobID) -> None:
        """Note a sign of life; of a job that is not attached it means nothing."""
        if (client := self._clients.get(job_id)) is not None:
            client.last_heard = now

    def detach(self, job_id: JobID) -> None:
        """Forget a job: it is over, or needs no client any more."""
        self._clients.pop(job_id, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._clients.clear()

    def look(self, now: float, due: float) -> dict[JobID, str]:
        """Return the jobs whose clients have vanished, and why each is to be cancelled; they are forgotten.

        Args:
            now: the time.
            due: when this look was to be.
        """
        late_s, vanished = max(0.0, now - due), {}
        for job_id, client in list(self._clients.items()):
            client.last_heard = min(client.last_heard + late_s, now)
            if now - client.last_heard >= client.timeout_s:
                vanished[job_id] = f"its client has not been heard of for {client.timeout_s:g} s"
                del self._clients[job_id]
        return vanished
