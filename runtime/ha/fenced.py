"""Writes that take effect only while the writer is the leader.

Every durable write of a leader goes through here. One Lua script compares the latch of the writer's component with the
(session, epoch) of its term, and writes or refuses. So a leader that was paused beyond its lease can change nothing,
even if it still believes to lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from runtime.ha.connection import Argument, RedisConnection
from runtime.ha.errors import LeadershipLostError
from runtime.ha.keys import ClusterKeys
from runtime.ha.scripts import FENCED_DEL, FENCED_HDEL, FENCED_HSET, Script
from runtime.protocol.leader import LeaderTerm


class Demand(Enum):
    """Condition of a write on the field that it changes, in addition to the leadership."""

    ANY = "any"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class HashWrite:
    """The outcome of a conditional write to a hash.

    Args:
        done: whether the field was as demanded and the write took effect.
        found: if it was not: the value that the field has (None: it is absent).
    """

    done: bool
    found: str | None = None


class FencedMaps(Protocol):
    """Maps of text to text, by key. Writes raise `LeadershipLostError` if the term is over.

    Every method raises `HaUnreachableError` if there is no reply; the outcome of a write is then unknown.
    """

    async def get(self, key: str, field: str) -> str | None:
        """Return the value of ``field`` in the map ``key``; None if there is none."""

    async def get_all(self, key: str) -> dict[str, str]:
        """Return the whole map ``key``."""

    async def fields(self, key: str) -> list[str]:
        """Return the fields of the map ``key``."""

    async def hset(self, key: str, field: str, value: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        """Set ``field`` of the map ``key``, if it is as demanded (a str: if it equals that)."""

    async def hdel(self, key: str, field: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        """Delete ``field`` of the map ``key``, if it is as demanded (a str: if it equals that)."""

    async def depose(self, component: str, term: LeaderTerm) -> None:
        """End the current term of ``component`` on behalf of ``term``: writes of that term are refused from now on."""


class FencedWriter:
    """`FencedMaps` in the hashes of Redis, for one cluster.

    Every method with a term raises `LeadershipLostError` if the term is over. All raise `RedisUnreachableError` if the
    outcome is unknown.
    """

    def __init__(self, connection: RedisConnection, keys: ClusterKeys) -> None:
        self._connection = connection
        self._keys = keys

    async def get(self, key: str, field: str) -> str | None:
        text: str | None = await self._connection.command("HGET", key, field)
        return text

    async def get_all(self, key: str) -> dict[str, str]:
        return dict(await self._connection.command("HGETALL", key))

    async def fields(self, key: str) -> list[str]:
        return list(await self._connection.command("HKEYS", key))

    async def hset(self, key: str, field: str, value: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        reply = await self._run(FENCED_HSET, key, term, field, *in_words(demand), value)
        return _hash_write(reply)

    async def hdel(self, key: str, field: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        reply = await self._run(FENCED_HDEL, key, term, field, *in_words(demand))
        return _hash_write(reply)

    async def depose(self, component: str, term: LeaderTerm) -> None:
        await self._run(FENCED_DEL, self._keys.leader(component), term)

    async def _run(self, script: Script, key: str, term: LeaderTerm, *arguments: Argument) -> list[Any]:
        latch = self._keys.leader(term.component)
        reply: list[Any] = await self._connection.run(script, (latch, key), (term.session, term.epoch, *arguments))
        if reply[0] == -1:
            raise refusal(script.name, term, reply[1])
        return reply


def refusal(what: str, term: LeaderTerm, epoch: str | int | None) -> LeadershipLostError:
    """Return the error of a write whose term is over; ``epoch`` is that of the leader, if there is one."""
    leader = f"epoch {epoch} leads now" if epoch else "no leader is known"
    return LeadershipLostError(
        f"{what} by {term.component} of epoch {term.epoch} was refused: its leadership is over, {leader}"
    )


def in_words(demand: Demand | str) -> tuple[str, str]:
    """Return a demand as two texts: its kind, and the value of ``equals``."""
    return (demand.value, "") if isinstance(demand, Demand) else ("equals", demand)


def _hash_write(reply: list[Any]) -> HashWrite:
    return HashWrite(True) if reply[0] == 1 else HashWrite(False, reply[1])
