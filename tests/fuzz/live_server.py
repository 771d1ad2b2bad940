"""The server that `tests.fuzz.live` torments: a real `RpcService` on the loop that actors have, in its own process.

It says on its output where it listens, and on its error output whatever nobody should ever cause from outside: an error
in the log, an exception that reached the event loop, a log record of undue length. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.process.loops import EmbeddedLoop
from actors.rpc.config import RpcConfig
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import Ask, FencedRpcGateway, FencingToken, RpcGateway, rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from actors.rpc.tls import TlsConfig

SECRET = b"0123456789abcdef0123456789abcdef"
FRAME_SIZE = 256 * 1024
LONGEST_RECORD = 4000
LARGEST_REPLY = 64 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    count: int = 0


class TargetGateway(RpcGateway):
    def echo(self, value: bytes) -> Ask[bytes]: ...

    def double(self, number: int) -> Ask[int]: ...

    def rename(self, item: Item, name: str) -> Ask[Item]: ...

    def anything(self, value: Any) -> Ask[Any]: ...

    def zeros(self, size: int) -> Ask[bytes]: ...

    def fail(self, text: str) -> Ask[None]: ...

    def note(self, text: str) -> None: ...


class Target(RpcEndpoint, TargetGateway):
    """Does a little of everything, and keeps nothing."""

    @rpc_sync
    def echo(self, value: bytes) -> bytes:
        return value

    @rpc
    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @rpc_sync
    def rename(self, item: Item, name: str) -> Item:
        return Item(name, item.count)

    @rpc_sync
    def anything(self, value: Any) -> Any:
        return value

    @rpc_sync
    def zeros(self, size: int) -> bytes:
        return bytes(max(0, min(size, LARGEST_REPLY)))

    @rpc
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @rpc_tell
    def note(self, text: str) -> None:
        pass


class LedGateway(FencedRpcGateway):
    def lead(self) -> Ask[str]: ...


class Led(FencedRpcEndpoint, LedGateway):
    @rpc_sync
    def lead(self) -> str:
        return "led"


class _Surprises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or len(text) > LONGEST_RECORD:
            print(record.name, record.levelname, len(text), text[:200], record.exc_info, file=sys.stderr, flush=True)


async def serve(directory: Path, tls: TlsConfig) -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: print("LOOP", str(context)[:2000], file=sys.stderr, flush=True))
    services = {
        "plain": RpcService(loop, SECRET, RpcConfig(socket_dir=directory, frame_size=FRAME_SIZE)),
        "tls": RpcService(loop, SECRET, RpcConfig(frame_size=FRAME_SIZE, tls=tls)),
    }
    for service in services.values():
        await service.listen()
        await service.start_server(Target(service, "target"))
        led = Led(service, "led")
        led.fencing_token = FencingToken(7, "session")
        await service.start_server(led)
    print(json.dumps({name: service.port for name, service in services.items()}), flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    for service in services.values():
        await service.close()


def main() -> None:
    """``live_server DIRECTORY CERTIFICATE KEY CA``."""
    directory, certificate, key, authority = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO, handlers=[_Surprises()])
    embedded = EmbeddedLoop()
    with embedded.outside_thespian():
        embedded.loop.run_until_complete(serve(directory, TlsConfig(certificate, key, authority)))


if __name__ == "__main__":
    main()
