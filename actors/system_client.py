"""A light client of a running actor system, for notebooks and scripts: no Thespian, no port, no actors of its own."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any, NoReturn

from actors.address import ActorAddress
from actors.errors import ActorSystemError, RecipientUnreachable
from actors.process.loops import LoopThread
from actors.props import Props
from actors.ref import ActorRef
from actors.remote.gateway import NodeGateway, NodeId
from actors.remote.remote import Remoting
from actors.rpc.gateway import Ask
from actors.rpc.security import load_secret
from actors.rpc.service import RpcConfig, RpcService
from actors.system_api import ActorSystemBase
from actors.system_config import SystemConfig


class ActorSystemClient(ActorSystemBase):
    """Selects, tells and asks actors of a system in another process; made by `ActorSystem.connect`.

    Replies arrive over the connections that it opens. It has no actors, so it receives no messages and watches no
    actors. It survives a restart of the system at the same address.

    Args:
        address: the system's address, with or without a path.
        secret_file: file with the system's secret.
        config: settings.

    Raises:
        AddressError: *address* is not an address.
        RecipientUnreachable: nothing listens there.
        AuthenticationError: the system has another secret, or the file cannot be read.
    """

    def __init__(
        self, address: str | ActorAddress, secret_file: Path | str, config: SystemConfig | None = None
    ) -> None:
        text = str(address).rstrip("/")
        system = ActorAddress.parse(text if text.count("/") > 2 else f"{text}/user")
        self._config = config or SystemConfig()
        secret = load_secret(Path(secret_file))
        self._thread = LoopThread(f"actors-client-{system.system}")
        try:
            self._thread.run(self._start(system, secret))
        except BaseException:
            self._thread.close()
            raise

    async def _start(self, system: ActorAddress, secret: bytes) -> None:
        uid = secrets.randbits(62) + 1
        config = self._config
        rpc = RpcConfig(
            system=system.system,
            frame_size=config.frame_size,
            ask_timeout_s=config.ask_timeout_s,
            tls=config.tls,
        )
        self._service = service = RpcService(asyncio.get_running_loop(), secret, rpc)
        me = NodeId(system.system, "", 0, uid, system.host, system.port, uid)
        self._remoting = remoting = Remoting(service, me, config, f"client-{uid:x}")
        self.node = remoting.node
        self.node.system = self
        try:
            await remoting.peers.link(me.root_address).ready()
        except RecipientUnreachable as error:
            await self._close()
            raise RecipientUnreachable(
                f"no actor system can be reached at {system.with_path('/user')}: {error}"
            ) from error
        except BaseException:
            await self._close()
            raise

    def actor_of(self, props: Props, name: str | None = None) -> NoReturn:
        """Raise `ActorSystemError`: a client has no actors of its own."""
        raise ActorSystemError("a client has no actors of its own; make them in the process of the ActorSystem")

    def graceful_stop(self, ref: ActorRef, timeout_s: float | None = None) -> Ask[bool]:
        """Stop an actor after the messages in its mailbox; see `ActorSystemBase.graceful_stop`."""
        limit_s = self._config.ask_timeout_s if timeout_s is None else timeout_s
        future = asyncio.run_coroutine_threadsafe(self._stop_gracefully(ref, limit_s), self._service.loop)
        return Ask(future, self._service.loop, limit_s)

    async def _stop_gracefully(self, ref: ActorRef, timeout_s: float) -> bool:
        route = await self._remoting.resolve(ref)
        gateway = self._service.gateway(route.node.address, NodeGateway, timeout_s=timeout_s + 1.0)
        return await gateway.graceful_stop(self.node.uid, ref.path, ref.uid, timeout_s)

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Close the connection; the system keeps running. Idempotent."""
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        if not self._service.loop.is_closed():
            self._thread.run(self._close())
            self._thread.close()

    async def _close(self) -> None:
        self.node.close()
        await self._service.close()

    def __enter__(self) -> Any:
        return self
