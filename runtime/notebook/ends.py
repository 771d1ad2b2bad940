"""Ends of jobs: one thread notices them for all jobs of a client, and callers wait for them as for futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import Future

from actors.errors import ClientClosed
from runtime.client import ClusterClient
from runtime.ids import JobID
from runtime.protocol.errors import GatewayError

ASKS = 16
"""Most requests for ends of jobs that wait at the cluster at a time; other jobs are looked up in the list of all."""
LOOK_S = 0.2
RETRY_S = 0.1


class JobEnds:
    """Notices the ends of a client's jobs, with one thread for all of them while a caller waits for any.

    Args:
        client: queries the cluster. Its requests wait there until a job ends, so few jobs need no polling.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._futures: dict[JobID, Future[None]] = {}
        self._thread: threading.Thread | None = None
        self._woken: queue.SimpleQueue[JobID | None] = queue.SimpleQueue()

    def of(self, job_id: JobID) -> Future[None]:
        """Return a future that is done when the job is over, or fails with why the cluster cannot be queried.

        Its callbacks run on the thread that notices the end.
        """
        with self._lock:
            future = self._futures.get(job_id)
            if future is None:
                future = self._futures[job_id] = Future()
                future.set_running_or_notify_cancel()  # one waiting caller cannot cancel it for the others
                self._woken.put(None)
            if self._thread is None or not self._thread.is_alive():  # also in the child of a fork
                self._thread = threading.Thread(target=self._watch, name="understudy-job-ends", daemon=True)
                self._thread.start()
        return future

    def close(self) -> None:
        """Fail the futures of all jobs, because the client was closed."""
        self._fail_all(ClientClosed())

    def _watch(self) -> None:
        asked: dict[JobID, float] = {}
        while True:
            with self._lock:
                waiting = list(self._futures)
                if not waiting:
                    self._thread = None
                    return
            asked = {job_id: since for job_id, since in asked.items() if job_id in waiting}
            try:
                for job_id in waiting:
                    if job_id not in asked and len(asked) < ASKS and self._ask(job_id):
                        asked[job_id] = time.monotonic()
                ended = self._look(waiting, asked)
            except Exception as error:  # the cluster does not answer: this concerns all jobs
                self._fail_all(error)
                continue
            for job_id in ended:
                asked.pop(job_id, None)
                self._settle(job_id, None)

    def _ask(self, job_id: JobID) -> bool:
        return self._client.on_end(job_id, lambda: self._woken.put(job_id))

    def _look(self, waiting: list[JobID], asked: dict[JobID, float]) -> list[JobID]:
        """Wait until a job may be over, and return the jobs that are over."""
        others = [job_id for job_id in waiting if job_id not in asked]
        woken: set[JobID] = set()
        with contextlib.suppress(queue.Empty):
            first = self._woken.get(timeout=LOOK_S if others else None)
            woken |= {first} if first is not None else set()
            while True:
                more = self._woken.get_nowait()
                woken |= {more} if more is not None else set()
        now, early = time.monotonic(), False
        ended = []
        for job_id in woken & asked.keys():
            if self._is_over(job_id):
                ended.append(job_id)
            else:
                early = early or now - asked[job_id] < RETRY_S
                del asked[job_id]
        if early:  # a leader has ended, and the next one is not ready: pause before the next request
            time.sleep(RETRY_S)
        return ended + self._over_of(others)

    def _over_of(self, others: list[JobID]) -> list[JobID]:
        if len(others) < ASKS:
            return [job_id for job_id in others if self._is_over(job_id)]
        states = {details.job_id: details.status for details in self._client.list_jobs()}
        listed = [job_id for job_id in others if job_id in states]
        return [
            *(job_id for job_id in listed if states[job_id].is_globally_terminal),
            *(job_id for job_id in others if job_id not in states and self._is_over(job_id)),
        ]

    def _is_over(self, job_id: JobID) -> bool:
        """Return whether the job has ended; if the cluster does not know it (any more), its future fails."""
        try:
            return self._client.status_of(job_id).is_globally_terminal
        except GatewayError as error:
            self._settle(job_id, error)
            return False

    def _settle(self, job_id: JobID, error: BaseException | None) -> None:
        with self._lock:
            future = self._futures.pop(job_id, None)
        if future is None:
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            job_ids = list(self._futures)
        for job_id in job_ids:
            self._settle(job_id, error)
