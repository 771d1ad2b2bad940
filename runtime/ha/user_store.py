"""The store of users and API tokens: one map that is written under the Dispatcher's term and outlives the cluster.

Any component may read it, without a leader. Without Redis, the master keeps the map in a file (`UserFile`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from conf.files import write_private
from runtime.ha.errors import StateCorruptedError, StateHandleConflictError
from runtime.ha.fenced import Demand, FencedMaps
from runtime.ha.keys import ClusterKeys
from runtime.protocol.leader import LeaderTerm
from runtime.users.identities import Change, Identities

_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class StoredUsers:
    """The content of the file of users.

    Args:
        entries: the map, as Redis would hold it.
    """

    entries: dict[str, str]


class UserStore:
    """Users and tokens in one map. Every change compares the term and the former value of each field.

    Changes through one store follow each other. Only the leading Dispatcher has a term, and it uses one store.

    Args:
        maps: where the map is.
        keys: of the cluster.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys) -> None:
        self._maps = maps
        self._key = keys.users
        self._changing = asyncio.Lock()

    async def read(self) -> Identities:
        """Return all users and tokens. Raises `HaUnreachableError`."""
        return Identities(await self._maps.get_all(self._key))

    async def change(self, to: Callable[[Identities], list[Change]], term: LeaderTerm) -> list[Change]:
        """Write the changes that *to* makes of the present state, in their order, and return them.

        A call that was cut off may have written the first of them. Repeating it completes them.

        Args:
            to: pure; called again if another write was faster.
            term: of the Dispatcher.

        Raises:
            IdentityError: *to* raises it.
            LeadershipLostError: the term is over.
            HaUnreachableError: the outcome is unknown.
            StateHandleConflictError: other writes keep changing the same fields.
        """
        done: list[Change] = []
        async with self._changing:  # else a token could be added while its user is removed, and outlive that
            for _ in range(_ATTEMPTS):
                changes = to(await self.read())
                for change in changes:
                    if not await self._write(change, term):
                        break
                    done.append(change)
                else:
                    return done
        raise StateHandleConflictError("other writes keep changing the same users or tokens")

    async def _write(self, change: Change, term: LeaderTerm) -> bool:
        demand = Demand.ABSENT if change.before is None else change.before
        if change.after is None:
            write = await self._maps.hdel(self._key, change.field, term, demand=demand)
        else:
            write = await self._maps.hset(self._key, change.field, change.after, term, demand=demand)
        return write.done


class UserFile:
    """The map of users in a file of mode 0600, for a master without Redis.

    Args:
        path: the file; its directory exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, str]:
        """Return the map; an empty one if there is no file.

        Raises:
            StateCorruptedError: the file is damaged. It must not count as empty, since the next change would then
                replace it.
        """
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StateCorruptedError(f"the file of users {self._path} cannot be read: {error}") from error
        return decode_users(text, str(self._path)).entries

    def write(self, entries: dict[str, str]) -> None:
        """Replace the map, durably. Raises OSError."""
        write_private(self._path, encode_users(StoredUsers(entries)).encode())


def encode_users(users: StoredUsers) -> str:
    """Return a map of users as the text of its file."""
    return json.dumps(asdict(users), sort_keys=True, indent=1) + "\n"


def decode_users(text: str, where: str) -> StoredUsers:
    """Return the map of such a text; raises `StateCorruptedError`, which names *where* it is from."""
    damaged = f"{where} is not a file of users; restore it from a copy, or remove it to have no users"
    try:
        entries = json.loads(text)["entries"]
    except (ValueError, KeyError, TypeError) as error:
        raise StateCorruptedError(f"{damaged} ({error!r})") from None
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise StateCorruptedError(damaged)
    return StoredUsers(entries)
