"""A proxy in the place of a cluster's embedded Redis: it harms what passes, and sees whose writes Redis accepts.

It takes the server's socket away and listens there itself, also after the server was restarted; nobody has to be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.environment.directory import ClusterDirectory
from runtime.ha import scripts
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import HaError
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.tasks import cancel_and_wait
from tests.fakes.redis_server import RedisProxy
from tests.fakes.resp import Exchange
from tests.faults.history import Reign
from tests.waiting import PATIENCE_S

LOOK_S = 0.05
START_S = 120.0
_SCRIPTS = [item for item in vars(scripts).values() if isinstance(item, scripts.Script) and item is not scripts.LEADERS]
_NAMES = {text: script.name for script in _SCRIPTS for text in (script.sha, script.source)}


def accepted(exchange: Exchange) -> Reign | None:
    """The term whose request Redis granted: a latch given or renewed, an address published, a write let through."""
    word, *rest = (part.decode(errors="replace") for part in exchange.command)
    if word.upper() not in ("EVALSHA", "EVAL") or rest[0] not in _NAMES:
        return None
    keys, arguments = rest[2 : 2 + int(rest[1])], rest[2 + int(rest[1]) :]
    component, session = keys[0].rpartition(":leader:")[2], arguments[0]
    reply = exchange.reply
    if _NAMES[rest[0]] == scripts.ACQUIRE.name:
        if not isinstance(reply, list) or reply[0] != 1 or not isinstance(reply[1], int):
            return None
        epoch = reply[1]
    elif reply == 1 or (isinstance(reply, list) and reply[0] != -1):
        epoch = int(arguments[1])
    else:
        return None
    return Reign(component, epoch, session, exchange.replied, exchange.sent, 1)


class RedisFront(threading.Thread):
    """The proxy, on a loop of its own, for as long as the cluster runs.

    Args:
        cluster: the runtime directory of a cluster that runs, with a Redis of its own.
        seed: decides which replies are lost.
    """

    def __init__(self, cluster: Path, seed: int) -> None:
        super().__init__(name="redis-front", daemon=True)
        directory = ClusterDirectory(cluster)
        self._server = EmbeddedRedis(directory.redis, socket_path=directory.socket_dir() / "redis.sock")
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._proxy: RedisProxy | None = None
        self._inode = 0
        self._reigns: dict[tuple[str, int, str], Reign] = {}
        self._there = threading.Event()
        self._stop_now = asyncio.Event()

    @property
    def reigns(self) -> list[Reign]:
        """What Redis accepted of every term."""
        return list(self._reigns.values())

    def begin(self) -> None:
        """Take the server's place; returns when everybody goes through the proxy."""
        self.start()
        if not self._there.wait(START_S):
            raise RuntimeError(f"the proxy did not get into the place of {self._server.socket_path}")

    def end(self) -> None:
        """Let everybody go; who comes now meets nobody."""
        self._loop.call_soon_threadsafe(self._stop_now.set)
        self.join()

    # ------------------------------------------------------------------ faults

    def delay(self, seconds: float, each: float) -> None:
        """Everything takes longer, each way."""
        self._during(seconds, lambda proxy, on: setattr(proxy, "delay", each if on else 0.0))

    def cut(self, seconds: float) -> None:
        """Nothing passes; what was on its way arrives afterwards."""
        self._during(seconds, lambda proxy, on: proxy.cut.clear() if on else proxy.cut.set())

    def drop(self, seconds: float) -> None:
        """What is sent is gone, and the connections are dead without saying so."""
        self._during(seconds, lambda proxy, on: setattr(proxy, "swallow", on))

    def mute(self, seconds: float) -> None:
        """What is asked is done, and nobody hears of it."""
        self._during(seconds, lambda proxy, on: setattr(proxy, "mute", on))

    def lose_replies(self, seconds: float) -> None:
        """Every other request of a leader is done, its reply lost, and the connection broken."""

        def lose(request: bytes) -> bool:
            return b"EVAL" in request and self._random.random() < 0.5

        self._during(seconds, lambda proxy, on: setattr(proxy, "lose", lose if on else lambda request: False))

    def reset(self, seconds: float) -> None:
        """Connections break, and none can be made."""

        def apply(proxy: RedisProxy, on: bool) -> None:
            proxy.refuse = on
            if on:
                proxy.reset()

        self._during(seconds, apply)

    def _during(self, seconds: float, apply: Callable[[RedisProxy, bool], None]) -> None:
        proxy = self._proxy
        assert proxy is not None
        self._loop.call_soon_threadsafe(apply, proxy, True)
        threading.Event().wait(seconds)
        self._loop.call_soon_threadsafe(apply, proxy, False)

    # --------------------------------------------------------------- the place

    def run(self) -> None:
        """The thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        keeper = asyncio.create_task(self._keep_place())
        await self._stop_now.wait()
        await cancel_and_wait(keeper)
        if self._proxy is not None:
            await self._proxy.stop()

    async def _keep_place(self) -> None:
        while True:
            with contextlib.suppress(OSError, HaError):  # it is being started
                if self._server.socket_path.stat().st_ino != self._inode:
                    await self._take_place()
                    self._there.set()
            await asyncio.sleep(LOOK_S)

    async def _take_place(self) -> None:
        path, before = self._server.socket_path, self._proxy
        real, front = path.with_name("redis-real.sock"), path.with_name("redis-front.sock")
        front.unlink(missing_ok=True)
        proxy = RedisProxy(self._server, front, real)
        proxy.on_exchange = self._note
        await proxy.start()
        path.rename(real)
        self._inode = front.stat().st_ino
        front.rename(path)
        self._proxy = proxy
        if before is not None:
            await before.stop()
        await self._send_everybody_through()

    async def _send_everybody_through(self) -> None:
        """Break the connections that were made before the proxy was there; its own break too, and are made again."""
        connection = RedisConnection(self._server.url, timeout=PATIENCE_S)
        try:
            for kind in ("normal", "pubsub"):
                await connection.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        finally:
            await connection.close()

    def _note(self, exchange: Exchange) -> None:
        new: Any = accepted(exchange)
        if new is not None:
            key = (new.component, new.epoch, new.session)
            old = self._reigns.get(key)
            self._reigns[key] = new if old is None else old.with_more(new)
