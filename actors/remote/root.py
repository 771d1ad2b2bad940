"""Work of the root node: host processes, the placement of actors, and the handling of processes that end.

Thespian starts and stops the processes (`actors.process.system`); pidfds of the kernel report their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, ActorSystemError, RecipientUnreachable
from actors.event_stream import Table
from actors.process.host import HostSpec
from actors.process.loops import LoopThread
from actors.process.system import HostedActor, ProcessActorSystem
from actors.props import CreateOrder, Placement
from actors.remote.gateway import NodeGateway, NodeId, Route
from actors.remote.link import Link, Notice
from actors.remote.remote import CREATION_TIMEOUT_S, Remoting

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXPECTED_S = 1.0
EXPECTED_LIMIT = 10_000
GONE_LIMIT = 10_000


@dataclass(slots=True, eq=False)
class Host:
    """A host process.

    Args:
        name: its name, as process listings show it.
        uid: uid of its node.
        shared: whether actors share it; otherwise it has a single actor.
        hosted: the process; None while it starts.
    """

    name: str
    uid: int
    shared: bool
    hosted: HostedActor | None = None
    pidfd: int | None = field(default=None, repr=False)
    ending: bool = False
    killed_because: str = ""

    @property
    def address(self) -> ActorAddress:
        """Address of its node gateway; raises `ActorSystemError` while it starts."""
        if self.hosted is None:
            raise ActorSystemError(f"{self.name} has not started yet")
        return self.hosted.address


class Hosts:
    """Starts host processes, one after the other, in a thread of its own, and reports their end.

    Args:
        loop: the root node's loop.
        processes: starts and stops them.
        on_exit: called on the loop with the host and the reason of its end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: ProcessActorSystem,
        on_exit: Callable[[Host, str], None],
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._on_exit = on_exit
        # Thespian's calls block, and must come from one thread at a time. An executor takes no more work while the
        # interpreter exits.
        self._thread = LoopThread("actors-hosts")
        self._hosts: dict[int, Host] = {}

    def __iter__(self) -> Iterator[Host]:
        return iter(list(self._hosts.values()))

    def get(self, uid: int) -> Host | None:
        """Return the running host with this uid, or None."""
        return self._hosts.get(uid)

    async def start(self, host: Host, spec: HostSpec) -> None:
        """Start a host process.

        Raises:
            ActorSystemError: it does not start.
        """
        hosted = await self._in_thread(self._processes.start, spec)
        host.hosted = hosted
        try:
            host.pidfd = os.pidfd_open(hosted.pid)
        except (ProcessLookupError, FileNotFoundError):  # newer kernels: the latter while it is reaped
            raise ActorSystemError(f"{host.name} (process {hosted.pid}) ended right after its start") from None
        self._hosts[host.uid] = host
        self._loop.add_reader(host.pidfd, self._exited, host)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call *function* in the thread, after all earlier calls."""

        async def call() -> T:
            return function(*arguments)

        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._thread.loop)))

    def _exited(self, host: Host) -> None:
        if host.pidfd is None:
            return
        self._loop.remove_reader(host.pidfd)
        os.close(host.pidfd)
        host.pidfd = None
        del self._hosts[host.uid]
        pid = 0 if host.hosted is None else host.hosted.pid
        if host.ending:
            reason = f"process {pid} was stopped"
        elif host.killed_because:
            reason = f"process {pid} was killed: {host.killed_because}"
        else:
            reason = f"process {pid} ended"
            logger.warning("the actor host %s (process %d) has ended unexpectedly", host.name, pid)
        self._on_exit(host, reason)

    def kill(self, host: Host, reason: str) -> None:
        """Kill a host: a process that was declared dead must not keep running."""
        if host.pidfd is not None and host.hosted is not None:
            logger.error("the actor host %s (process %d) is killed: %s", host.name, host.hosted.pid, reason)
            host.killed_because = reason
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(host.pidfd, signal.SIGKILL)

    async def stop(self, host: Host, deadline_s: float | None = None) -> None:
        """Stop a host; its actors stop first."""
        if host.ending or host.hosted is None:
            return
        host.ending = True
        arguments = (host.hosted,) if deadline_s is None else (host.hosted, deadline_s)
        try:
            await self._in_thread(self._processes.stop, *arguments)
        except (ActorError, OSError) as error:
            logger.warning("the actor host %s was not stopped in order: %s", host.name, error)

    def close(self) -> None:
        """End the thread and forget the processes; those that still run end with Thespian's admin."""
        self._thread.close()
        for host in self:
            if host.pidfd is not None:
                self._loop.remove_reader(host.pidfd)
                os.close(host.pidfd)
                host.pidfd = None
        self._hosts.clear()


@dataclass(slots=True)
class _Entry:
    uid: int
    node: NodeId | None
    """None while the actor is being created."""


class RouteTable:
    """Table of a system's root node, from paths to the processes that host them. Pure: no I/O, no clock.

    It contains the paths that were placed in a process of their own or in a shared one. All other paths are in the
    process of their nearest ancestor in the table.

    Args:
        root: the root node itself, which hosts all paths without such an ancestor.
    """

    def __init__(self, root: NodeId) -> None:
        self._root = root
        self._entries: dict[str, _Entry] = {}

    def begin(self, path: str, uid: int) -> None:
        """Add an entry for actor *uid*, which will be created at *path*; replace that of an earlier incarnation."""
        self._entries[path] = _Entry(uid, None)

    def settle(self, path: str, uid: int, node: NodeId) -> bool:
        """Record that the actor lives in *node*; return False when its entry was removed or replaced before."""
        entry = self._entries.get(path)
        if entry is None or entry.uid != uid:
            return False
        entry.node = node
        return True

    def remove(self, path: str, uid: int) -> NodeId | None:
        """Remove an actor that has stopped or could not be created; return its node, None when that is unknown."""
        entry = self._entries.get(path)
        if entry is None or entry.uid != uid:
            return None
        del self._entries[path]
        return entry.node

    def find(self, path: str, uid: int) -> Route | tuple[str, int]:
        """Find the process that hosts *path*, by its longest prefix in the table.

        Args:
            path: the path to find.
            uid: the incarnation, 0 for any; an entry of another incarnation at *path* itself does not count.

        Returns:
            The route, or path and uid of the creation that has to end before the route is known.
        """
        prefix = path
        while prefix:
            entry = self._entries.get(prefix)
            if entry is not None and (prefix != path or uid in (0, entry.uid)):
                if entry.node is None:
                    return prefix, entry.uid
                return Route(entry.node, prefix == path)
            prefix = prefix.rpartition("/")[0]
        return Route(self._root)

    def drop_node(self, uid: int) -> list[tuple[str, int]]:
        """Remove all paths of a process that has ended; return them, each with its incarnation."""
        gone = [
            (path, entry.uid)
            for path, entry in self._entries.items()
            if entry.node is not None and entry.node.uid == uid
        ]
        for path, _ in gone:
            del self._entries[path]
        return gone

    def __len__(self) -> int:
        return len(self._entries)


class RootPlacing:
    """Places actors in host processes, and finds them.

    Args:
        remoting: the root node's remoting.
        processes: starts host processes.
        make_spec: returns the order to start a host, given its name and uid.
        host_here: creates an actor in this process, for the node that is its first argument.
        shared_hosts: number of processes for shared actors.
    """

    def __init__(
        self,
        remoting: Remoting,
        processes: ProcessActorSystem,
        make_spec: Callable[[str, int], HostSpec],
        host_here: Callable[[NodeId, CreateOrder], Awaitable[None]],
        shared_hosts: int,
    ) -> None:
        self._remoting = remoting
        self._peers = remoting.peers
        self._peers.on_host_silent = self._host_silent
        self._loop = remoting.service.loop
        self._make_spec = make_spec
        self._host_here = host_here
        self._table = RouteTable(remoting.me)
        self._hosts = Hosts(self._loop, processes, self._host_ended)
        self._creations: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._shared: list[asyncio.Task[Host] | None] = [None] * shared_hosts
        self._shared_hosts: list[Host | None] = [None] * shared_hosts
        self._load = [0] * shared_hosts
        self._expected: dict[tuple[str, int], asyncio.Future[bool]] = {}
        self._gone: dict[tuple[str, int], None] = {}
        self._slot_of: dict[tuple[str, int], int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[int, Table] = {}
        self._names = 0
        self._closing = False

    # ------------------------------------------------------------------ where actors are

    async def resolve(self, path: str, uid: int) -> Route:
        """Return the process that hosts *path*; wait while the actor or an ancestor is being created."""
        while True:
            found = self._table.find(path, uid)
            if not isinstance(found, Route):
                await asyncio.shield(self._creations[found])
            elif found.exact or not await self._is_on_its_way(path, uid, found):
                return found

    async def _is_on_its_way(self, path: str, uid: int, route: Route) -> bool:
        """Wait for the order to create an actor for another system, if a message to its ref came first.

        Within one system, the process of the actor's parent forwards such a message. An actor for another system has no
        parent in this one.

        Returns:
            Whether the order came within `EXPECTED_S` seconds.
        """
        key = path, uid
        if not (uid and path.startswith("/remote/") and route.node.uid == self._remoting.me.uid):
            return False
        if key in self._gone or path in self._remoting.node.cells or len(self._expected) >= EXPECTED_LIMIT:
            return False
        expected = self._expected.get(key)
        if expected is None:
            expected = self._expected[key] = self._loop.create_future()
            self._loop.call_later(EXPECTED_S, self._expect_no_more, key)
        return await asyncio.shield(expected)

    def _expect_no_more(self, key: tuple[str, int]) -> None:
        expected = self._expected.pop(key, None)
        if expected is not None:
            expected.set_result(False)

    # ------------------------------------------------------------------ creation

    async def create(self, creator: NodeId, order: CreateOrder) -> Route:
        """Place and create an actor.

        Raises:
            ActorSystemError: its process cannot be started, or cannot load its class.
            RecipientUnreachable: its process died during the creation.
        """
        key = (order.path, order.uid)
        self._table.begin(*key)
        done = self._creations[key] = self._loop.create_future()
        expected = self._expected.pop(key, None)
        if expected is not None:
            expected.set_result(True)
        try:
            node = await self._place(creator, order)
            if not self._table.settle(*key, node):
                raise ActorSystemError(f"another actor was created at {order.path} meanwhile")
            return Route(node, exact=True)
        except BaseException:
            self._table.remove(*key)
            self._unload(key)
            raise
        finally:
            del self._creations[key]
            done.set_result(None)

    async def _place(self, creator: NodeId, order: CreateOrder) -> NodeId:
        if self._closing:
            raise ActorSystemError("the actor system is being terminated")
        placement = Placement(order.placement)
        if placement is Placement.LOCAL:
            await self._host_here(creator, order)
            return self._remoting.me
        host = await (self._shared_host(order) if placement is Placement.SHARED else self._start(order.path, False))
        try:
            link = self._peers.link(host.address)
            await link.ready()
            gateway = self._remoting.service.gateway(link.address, NodeGateway, timeout_s=CREATION_TIMEOUT_S)
            await gateway.host(creator, self._remoting.node.serializer.dumps(order))
        except ActorError:
            if not host.shared:
                self._end(host)
            raise
        if link.node is None or link.dead is not None:
            raise RecipientUnreachable(f"the process of {order.path} ended while it was created")
        return link.node

    async def _shared_host(self, order: CreateOrder) -> Host:
        """Return the shared host with the fewest actors; start it at its first use."""
        slot = min(range(len(self._load)), key=self._load.__getitem__)
        self._load[slot] += 1
        self._slot_of[order.path, order.uid] = slot
        start = self._shared[slot]
        if start is None:
            start = self._shared[slot] = self._loop.create_task(self._start(f"/shared-{slot}", True))
        try:
            host = await asyncio.shield(start)
        except ActorError:
            if self._shared[slot] is start:
                self._shared[slot] = None  # the next one tries again
            raise
        if self._shared[slot] is start:
            self._shared_hosts[slot] = host
        return host

    def _unload(self, key: tuple[str, int]) -> None:
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            self._load[slot] -= 1

    async def _start(self, path: str, shared: bool) -> Host:
        self._names += 1
        name = f"{path.rpartition('/')[2]}-{self._names}"
        host = Host(name, secrets.randbits(62) + 1, shared)
        await self._hosts.start(host, self._make_spec(name, host.uid))
        try:
            if self._closing:
                raise ActorSystemError("the actor system is being terminated")
            link = self._peers.link(host.address)
            await link.ready()
        except ActorError:
            self._end(host)
            raise
        if link.node is None:
            raise RecipientUnreachable(f"{host.name} ended right after its start")
        self._peers.heartbeats.watch(link.node)
        self._tell_subscriptions(link)
        temp = temp_path(host.uid)
        self._table.begin(temp, host.uid)
        self._table.settle(temp, host.uid, link.node)
        return host

    # ------------------------------------------------------------------ the event stream

    def subscribed(self, origin: int, table: Table) -> None:
        """Take the subscriptions of a node of this system, and send them to all other nodes."""
        if table:
            self._subscriptions[origin] = table
        else:
            self._subscriptions.pop(origin, None)
        me = self._remoting.me.uid
        if origin != me:
            self._remoting.node.event_stream.replace(self._elsewhere(me))
        for host in self._hosts:
            if host.uid != origin:
                self._tell_subscriptions(self._peers.link(host.address))

    def _elsewhere(self, uid: int) -> Table:
        tables = [table for origin, table in self._subscriptions.items() if origin != uid]
        return {ref: names for table in tables for ref, names in table.items()}

    def _tell_subscriptions(self, link: Link) -> None:
        if link.node is not None:
            self._remoting.send_subscriptions(link, self._elsewhere(link.node.uid))

    # ------------------------------------------------------------------ ends

    def stopped(self, path: str, uid: int) -> None:
        """Free the name of a placed actor that has stopped for good, and end its process if that is not shared."""
        self._unload((path, uid))
        self._remember_gone((path, uid))
        node = self._table.remove(path, uid)
        host = None if node is None else self._hosts.get(node.uid)
        if host is not None and not host.shared:
            self._end(host)

    def _end(self, host: Host) -> None:
        task = self._loop.create_task(self._hosts.stop(host))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _host_ended(self, host: Host, reason: str) -> None:
        for slot, known in enumerate(self._shared_hosts):
            if known is host:
                self._shared_hosts[slot] = self._shared[slot] = None
        self.forget(host.uid)
        if host.uid in self._subscriptions:
            self.subscribed(host.uid, {})
        self._peers.node_down(host.uid, reason)
        news = Notice(lambda other: other.node_down(host.uid, reason), f"the end of {host.name}")
        for other in self._hosts:
            if not other.ending:
                self._peers.link(other.address).send(news)

    def forget(self, uid: int) -> None:
        """Forget all actors of a process that has ended."""
        for key in self._table.drop_node(uid):
            self._unload(key)
            self._remember_gone(key)

    def _remember_gone(self, key: tuple[str, int]) -> None:
        if len(self._gone) >= GONE_LIMIT:
            del self._gone[next(iter(self._gone))]
        self._gone[key] = None

    def _host_silent(self, uid: int, reason: str) -> None:
        """Kill a host that does not answer, so that it really is dead when the other nodes learn that."""
        host = self._hosts.get(uid)
        if host is not None:
            self._hosts.kill(host, reason)

    async def close(self, deadline_s: float) -> None:
        """Stop all hosts; their actors stop first."""
        self._closing = True
        await asyncio.gather(*self._ending, *(self._hosts.stop(host, deadline_s) for host in self._hosts))
        self._hosts.close()

    @property
    def processes(self) -> dict[str, int]:
        """Pids of the host processes, by name."""
        return {host.name: host.hosted.pid for host in self._hosts if host.hosted is not None}


def temp_path(uid: int) -> str:
    """Return the path above the asks of a host's actors, by which replies find that process."""
    return f"/temp/{uid:x}"
