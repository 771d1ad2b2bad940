"""The real REST server, with a cluster that is made up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from conf.configuration import Configuration
from runtime.rest.access import AccessPolicy
from runtime.rest.app import RestApplication
from runtime.rest.context import Rest
from runtime.rest.listening import listen
from runtime.rest.server import RestServer
from runtime.rest.snapshots import Snapshots
from tests.browser.made_up_cluster import MadeUpCluster

TOKEN = "t" * 64
PATIENCE_MS = 120_000
MAX_CONTENT = 1_000_000
REFRESH_MS = 200


class Stage:
    """The REST server of a made-up cluster, on a thread of its own; it can die and come back at the same port."""

    def __init__(self, log_dir: Path) -> None:
        self.cluster = MadeUpCluster()
        self._log_dir = log_dir
        self.runtime_dir = log_dir / "runtime"
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Serve; returns when it does."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE_MS / 1000)

    def write_master_log(self, text: str) -> None:
        """What the master has logged."""
        (self._log_dir / "master.log").write_text(text)

    def freeze(self) -> threading.Event:
        """Do nothing at all, with every connection open, until what is returned is set."""
        thaw, frozen = threading.Event(), threading.Event()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: (frozen.set(), thaw.wait()))
        assert frozen.wait(PATIENCE_MS / 1000)
        return thaw

    def stop(self) -> None:
        """Serve no more; returns when every connection is closed."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(PATIENCE_MS / 1000)
            assert not self._thread.is_alive()
        self._loop = self._thread = None

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        settings = {"web.refresh-interval": f"{REFRESH_MS} ms", "cluster.runtime-dir": str(self.runtime_dir)}
        configuration = Configuration.from_dict(settings)
        listener = listen("127.0.0.1", [self._port], "rest.port")
        self._port = listener.getsockname()[1]
        snapshots = Snapshots(REFRESH_MS / 1000, self._loop.time)
        rest = Rest(self.cluster, snapshots, configuration, self._log_dir, self.url.rstrip("/"))
        server = RestServer(self._application(rest), listener, None, 256)
        await server.start()
        ready.set()
        await self._stopped.wait()
        rest.closing.set()
        await server.stop()

    def _application(self, rest: Rest) -> RestApplication:
        policy = AccessPolicy(TOKEN.encode(), [], "http", MAX_CONTENT)
        return RestApplication(rest, policy, MAX_CONTENT, with_token=True)
