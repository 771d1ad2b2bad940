"""Running uploads, and uploads interrupted by a broken connection, which can resume where they broke."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from blob.key import BlobType

MOST_PARKED = 64
PARKED_FROM = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UploadName:
    """Identity of an upload; the client repeats it with every attempt."""

    blob_type: BlobType
    job_id: str | None
    random: bytes
    length: int


class Upload:
    """A running upload: a context manager that leaves no trace unless it was committed or parked.

    Args:
        name: its identity.
        descriptor: the temporary file, open; closed with the upload.
        temporary: the path of that file.
        abandoned: called when the upload ends without a commit; removes its file.

    Attributes:
        hasher: hash of the received bytes.
        received: number of received bytes, all of them in the file.
    """

    def __init__(self, name: UploadName, descriptor: int, temporary: Path, abandoned: Callable[[Upload], None]) -> None:
        self.name = name
        self.descriptor = descriptor
        self.temporary = temporary
        self.hasher = hashlib.sha256()
        self.received = 0
        self.committed = False
        self.parked = False
        self._abandoned = abandoned

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.parked:
            self.end()

    def end(self) -> None:
        """Close the file; abandon it unless it was committed."""
        os.close(self.descriptor)
        if not self.committed:
            self._abandoned(self)


class ParkedUploads:
    """The interrupted uploads, longest parked first. Not thread-safe; it does no I/O.

    Args:
        window: seconds for which an upload is kept; 0 keeps none.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._parked: OrderedDict[UploadName, tuple[Upload, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, upload: Upload, now: float) -> list[Upload]:
        """Keep an upload and set its *parked*, if it is large enough; return displaced ones to `Upload.end`."""
        if not self._window or upload.received < PARKED_FROM:
            return []
        before = self._parked.pop(upload.name, None)
        self._parked[upload.name] = (upload, now)
        upload.parked = True
        dropped = [before[0]] if before is not None else []
        if len(self._parked) > MOST_PARKED:
            dropped.append(self._parked.popitem(last=False)[1][0])
        return dropped

    def resume(self, name: UploadName) -> Upload | None:
        """Take out the upload of that name to resume it; return None when there is none."""
        upload, _ = self._parked.pop(name, (None, 0.0))
        if upload is not None:
            upload.parked = False
        return upload

    def take(self, matches: Callable[[UploadName, float], bool]) -> list[Upload]:
        """Take out the uploads whose name and parking time *matches* accepts, to `Upload.end` them."""
        names = [name for name, (_, since) in self._parked.items() if matches(name, since)]
        return [self._parked.pop(name)[0] for name in names]

    def expired(self, now: float) -> list[Upload]:
        """Take out the expired uploads."""
        return self.take(lambda _, since: now - since >= self._window)
