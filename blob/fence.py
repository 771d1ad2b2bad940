"""Keeps leaders of the past from deleting what a later one has under its care."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from actors.errors import FencingError
from actors.rpc.gateway import FencingToken
from blob.errors import BlobServerError, BlobStoreError
from blob.store import BlobStore
from conf.files import write_private


class Fence:
    """The highest leadership that has ever commanded here; commands of a lower one are refused.

    It is kept in a file, so that a restarted server knows it, and in the store, so that servers which share one know
    it of each other. (Two servers that look into the store in the same instant may both pass; the ages of
    `BlobContents.sweep` still guard what they delete.)

    Args:
        path: the file.
        store: the store.
    """

    def __init__(self, path: Path, store: BlobStore) -> None:
        self._path = path
        self._store = store
        self._lock = threading.Lock()
        try:
            self._highest: FencingToken | None = _decode(path.read_bytes())
        except FileNotFoundError:
            self._highest = None
        except (OSError, ValueError) as error:
            raise BlobServerError(f"cannot read {path}: {error}; delete it if no earlier leader is alive") from error

    def pass_through(self, token: FencingToken) -> None:
        """Let a command of the leadership *token* pass, and from now on none of an earlier one.

        Raises:
            FencingError: a later leadership has commanded already, or another one of the same epoch.
            BlobStoreError: the store failed.
        """
        with self._lock:
            kept = self._store.read_mark()
            try:
                stored = None if kept is None else _decode(kept)
            except ValueError as error:
                raise BlobStoreError(f"the fence in the blob store is damaged: {error}; delete it") from error
            for known in (self._highest, stored):
                if known is not None and (token.epoch, token.session) != (known.epoch, known.session):
                    self._check(token, known)
            if token != stored:
                self._store.write_mark(_encode(token))
            if token != self._highest:
                write_private(self._path, _encode(token))
                self._highest = token

    @staticmethod
    def _check(token: FencingToken, known: FencingToken) -> None:
        if token.epoch <= known.epoch:
            raise FencingError(
                f"leadership {token.epoch} commands the blob server, which has heard of {known.epoch}: a leader of the "
                "past deletes nothing",
                known.epoch,
            )


def _encode(token: FencingToken) -> bytes:
    return json.dumps({"epoch": token.epoch, "session": token.session}).encode()


def _decode(data: bytes) -> FencingToken:
    values = json.loads(data)
    if not isinstance(values, dict) or not isinstance(values.get("epoch"), int):
        raise ValueError("it is no leadership")
    return FencingToken(values["epoch"], str(values.get("session")))
