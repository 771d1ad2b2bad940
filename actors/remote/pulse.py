"""The heartbeat's answering side: a thread of its own in each process of an actor system.

An actor may compute for minutes, and the event loop of its process stands still meanwhile. The process is alive all the
same, and is not to be declared dead (Akka answers heartbeats on another dispatcher than the actors'). What stops the
thread too is what a failure detector is meant to see: a stopped, swapped-out or lost process.
"""

from __future__ import annotations

import asyncio
import threading

from actors.remote.gateway import PulseGateway
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcConfig, RpcService
from actors.rpc.tls import TlsConfig

PATH = "/system/pulse"


class PulseEndpoint(RpcEndpoint, PulseGateway):
    """Answers heartbeats.

    Args:
        service: the service at the port that the heartbeats come to.
        uid: uid of the node whose pulse this is.
    """

    parent_path = None

    def __init__(self, service: RpcService, uid: int) -> None:
        super().__init__(service, "pulse")
        self._uid = uid

    @rpc_sync
    def beat(self) -> int:
        return self._uid


class Pulse:
    """Answers heartbeats until `close`.

    Args:
        secret: the cluster secret.
        system: name of the actor system.
        host: address to listen on.
        uid: uid of the node whose pulse this is.
        tls: certificates for TLS, as for the node's own port.

    Raises:
        ActorSystemError: no port can be opened.
    """

    def __init__(self, secret: bytes, system: str, host: str, uid: int, tls: TlsConfig | None = None) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        config = RpcConfig(system=system, bind_host=host, tls=tls)
        self._thread = threading.Thread(target=self._run, args=(secret, config, uid), name="actors-pulse", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _run(self, secret: bytes, config: RpcConfig, uid: int) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        service = RpcService(loop, secret, config)

        async def start() -> None:
            await service.listen()
            await service.start_server(PulseEndpoint(service, uid))
            self.port = service.port

        try:
            loop.run_until_complete(start())
        except BaseException as error:  # it is raised again in the thread that waits for the start
            self._error = error
            return
        finally:
            self._ready.set()
        loop.run_forever()
        loop.run_until_complete(service.close())
        loop.close()

    def close(self) -> None:
        """Stop answering and end the thread; idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
