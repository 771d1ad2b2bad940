"""Which local copies a cache has, who uses them, and which have to go when there are too many: pure state."""

from __future__ import annotations

from blob.key import BlobKey

Entry = tuple[str | None, BlobKey]


class Residents:
    """The copies of one cache, the least recently used first.

    A copy is referenced, and never evicted, while it is pinned, or while its job is registered or was handed a file of
    its own by name.

    Args:
        maximum: most bytes to keep; None for no limit.
    """

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum
        self._sizes: dict[Entry, int] = {}
        self._unverified: set[Entry] = set()
        self._pins: dict[Entry, int] = {}
        self._jobs: dict[str, int] = {}
        self._holders: set[str] = set()
        self.total = 0

    def found(self, entry: Entry, size: int) -> None:
        """A copy was found that another process left, or made: its content is still to be verified."""
        if entry not in self._sizes:
            self.add(entry, size)
            self._unverified.add(entry)

    def add(self, entry: Entry, size: int) -> None:
        """A copy was made, of a verified content."""
        self.remove(entry)
        self._sizes[entry] = size
        self.total += size

    def verified(self, entry: Entry) -> None:
        """The content of a copy that was found is right."""
        self._unverified.discard(entry)

    def is_verified(self, entry: Entry) -> bool:
        """Whether the copy is known, and its content was verified by this process."""
        return entry in self._sizes and entry not in self._unverified

    def use(self, entry: Entry) -> None:
        """The copy is used now: it is the last to go."""
        size = self._sizes.pop(entry, None)
        if size is not None:
            self._sizes[entry] = size

    def remove(self, entry: Entry) -> None:
        """The copy is gone."""
        self.total -= self._sizes.pop(entry, 0)
        self._unverified.discard(entry)

    def pin(self, entry: Entry) -> None:
        """Somebody uses the copy; to be followed by `unpin`."""
        self._pins[entry] = self._pins.get(entry, 0) + 1

    def unpin(self, entry: Entry) -> None:
        """Somebody uses the copy no more."""
        left = self._pins.pop(entry) - 1
        if left:
            self._pins[entry] = left

    def hold(self, job_id: str) -> None:
        """The job was handed a path: all of its copies stay until `forget_job`."""
        self._holders.add(job_id)

    def register_job(self, job_id: str) -> None:
        """Count one more user of a job's copies."""
        self._jobs[job_id] = self._jobs.get(job_id, 0) + 1

    def release_job(self, job_id: str) -> bool:
        """Count one user of a job's copies out; returns whether none is left (or never was)."""
        left = self._jobs.pop(job_id, 1) - 1
        if left > 0:
            self._jobs[job_id] = left
        return left <= 0

    def forget_job(self, job_id: str) -> None:
        """All copies of a job are gone."""
        self._holders.discard(job_id)
        for entry in [entry for entry in self._sizes if entry[0] == job_id]:
            self.remove(entry)

    def surplus(self, coming: int = 0) -> list[Entry]:
        """What has to go for *coming* bytes more: unreferenced copies, the least recently used first.

        It may not be enough: what is referenced stays, and the limit is exceeded rather than a job hindered.
        """
        if self._maximum is None:
            return []
        chosen, total = [], self.total + coming
        for entry, size in self._sizes.items():
            if total <= self._maximum:
                break
            if not self._referenced(entry):
                chosen.append(entry)
                total -= size
        return chosen

    def _referenced(self, entry: Entry) -> bool:
        return entry in self._pins or entry[0] in self._jobs or entry[0] in self._holders
