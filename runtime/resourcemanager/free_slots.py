"""Where there is room: TaskExecutors by host and by how many slots they have free. Pure.

A request must not look at every TaskExecutor: a thousand of them with four slots each would cost four million looks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from runtime.ids import InstanceID
from runtime.resourcemanager.locality import TaskManagerLocation

ANY_HOST = ""
"""TaskExecutors of all hosts together; no host has that name."""


@dataclass(frozen=True, slots=True)
class _Room:
    hosts: tuple[str, ...]
    number: int
    free: int


class FreeSlots:
    """The TaskExecutors that have a free slot."""

    def __init__(self) -> None:
        self._rooms: dict[InstanceID, _Room] = {}
        self._by_room: dict[tuple[str, int], list[tuple[int, InstanceID]]] = {}
        self._sizes: dict[str, list[int]] = {}

    def set(self, instance_id: InstanceID, location: TaskManagerLocation, number: int, free: int) -> None:
        """Note how many slots of a TaskExecutor are free.

        Args:
            number: of its registration; of those with as much room the one with the lowest is found.
            free: 0 where nothing may be given of it.
        """
        hosts = (ANY_HOST, location.host) if location.host else (ANY_HOST,)
        room = _Room(hosts, number, free)
        if self._rooms.get(instance_id) == room:
            return
        self.forget(instance_id)
        if free:
            self._rooms[instance_id] = room
            for host in hosts:
                found = self._by_room.get((host, free))
                if found is None:
                    found = self._by_room[host, free] = []
                    insort(self._sizes.setdefault(host, []), free)
                insort(found, (number, instance_id))

    def forget(self, instance_id: InstanceID) -> None:
        """Nothing may be given of this TaskExecutor; no error when that is known."""
        room = self._rooms.pop(instance_id, None)
        if room is None:
            return
        for host in room.hosts:
            found = self._by_room[host, room.free]
            del found[bisect_left(found, (room.number, instance_id))]
            if not found:
                del self._by_room[host, room.free]
                self._sizes[host].remove(room.free)
                if not self._sizes[host]:
                    del self._sizes[host]

    def roomiest(self, host: str = ANY_HOST) -> InstanceID | None:
        """The TaskExecutor with most free slots, of one host or of all; None where there is no free slot."""
        sizes = self._sizes.get(host)
        return self._by_room[host, sizes[-1]][0][1] if sizes else None
