"""The feature level that a cluster stores; see `runtime.feature_level`."""

from __future__ import annotations

import runtime
from runtime.feature_level import FeatureLevel, Release, lowest_level, supported_levels
from runtime.ha.errors import FeatureLevelUnsupportedError, StateCorruptedError, StateHandleConflictError
from runtime.ha.fenced import Demand, FencedMaps
from runtime.ha.keys import ClusterKeys
from runtime.protocol.leader import LeaderTerm

_FIELD = "level"


def own_release() -> Release:
    """Return the release that this process runs."""
    return Release(runtime.__version__, supported_levels())


def encode_level(level: int) -> str:
    """Return the text to store. It stays a plain number: every release must be able to refuse a cluster by it."""
    return str(level)


def decode_level(text: str) -> int:
    """Return the level of such a text; raises `StateCorruptedError` for other texts."""
    if not (text.isascii() and text.isdecimal()):
        raise StateCorruptedError(f"not a feature level: {text[:200]!r}")
    return int(text)


class FeatureLevelStore:
    """The level in a map of its own. Only a leader writes it, and its fence refuses a former one.

    Every method raises `HaUnreachableError` if there is no reply; the outcome of a write is then unknown, and the write
    may be repeated.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys) -> None:
        self._maps = maps
        self._key = keys.feature_level

    async def find(self) -> int | None:
        """Return the level, which this release may not support; None if the cluster stores none."""
        text = await self._maps.get(self._key, _FIELD)
        return None if text is None else decode_level(text)

    async def current(self) -> FeatureLevel:
        """Return the level at which to write: the lowest of this release if the cluster stores none.

        Raises:
            FeatureLevelUnsupportedError: this release must not work for the cluster.
        """
        found = await self.find()
        return lowest_level() if found is None else checked(found)

    async def begin(self, level: int, term: LeaderTerm) -> int:
        """Store the level of a cluster that stores none, and return the one that is stored now.

        Raises:
            LeadershipLostError: the term is over.
        """
        write = await self._maps.hset(self._key, _FIELD, encode_level(level), term, demand=Demand.ABSENT)
        return level if write.done or write.found is None else decode_level(write.found)

    async def raise_to(self, level: int, before: int, term: LeaderTerm) -> None:
        """Replace the level *before* by a higher one; no effect if *level* is stored already.

        Raises:
            LeadershipLostError: the term is over.
            StateHandleConflictError: another level is stored.
        """
        if level < before:
            raise ValueError(f"feature level {before} cannot be lowered to {level}")
        write = await self._maps.hset(self._key, _FIELD, encode_level(level), term, demand=encode_level(before))
        if not write.done and write.found != encode_level(level):
            raise StateHandleConflictError(f"the feature level is {write.found}, not {before}: try again")


def checked(level: int) -> FeatureLevel:
    """Return a stored level for its use.

    Raises:
        FeatureLevelUnsupportedError: this release does not support it.
    """
    own = own_release()
    if level not in own.levels:
        raise FeatureLevelUnsupportedError(level, own)
    return FeatureLevel(level)
