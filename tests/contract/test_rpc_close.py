"""What a service leaves behind when it is closed: nothing; and what it says when it cannot listen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import socket
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.errors import ActorSystemError, EndpointStateError, RecipientUnreachable
from actors.rpc.service import RpcConfig, RpcService
from tests.contract.rpc_harness import SECRET, Probe, ProbeGateway, ProbeServer, patient_config, until


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="us-"))
    yield directory
    shutil.rmtree(directory)


def descriptors() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except FileNotFoundError:
            continue  # the descriptor of this listing itself
    return found


async def serve(config: RpcConfig) -> tuple[RpcService, Probe]:
    service = RpcService(asyncio.get_running_loop(), SECRET, config)
    await service.listen()
    probe = Probe(service, "probe")
    await service.start_server(probe)
    return service, probe


def other_tasks() -> set[str]:
    return {str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_close_leaves_no_tasks_sockets_or_files(socket_dir: Path) -> None:
    before, tasks = descriptors(), other_tasks()
    for use_unix in (True, False):
        directory = socket_dir if use_unix else None
        service, probe = await serve(patient_config(socket_dir=directory))
        client = RpcService(asyncio.get_running_loop(), SECRET, patient_config(socket_dir=directory))
        gateway = client.gateway(probe.address, ProbeGateway)
        asks = [gateway.never() for _ in range(5)]
        assert await gateway.echo(b"x") == b"x"
        probe.spawn(asyncio.Event().wait(), "a task of its own")
        probe.schedule_run_async(3600, lambda: None)
        await probe.run_blocking(os.getpid)

        await service.close()
        for ask in asks:
            with pytest.raises((EndpointStateError, RecipientUnreachable)):
                await ask
        assert probe.cancelled == 5
        await client.close()
    assert list(socket_dir.iterdir()) == []
    await until(lambda: other_tasks() <= tasks, "the end of all tasks")
    await until(lambda: descriptors() <= before, "the end of all descriptors")


async def test_close_of_a_client_that_is_still_connecting(socket_dir: Path) -> None:
    before, tasks = descriptors(), other_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        service, probe = await serve(patient_config(socket_dir=socket_dir))
        for turns in range(6):  # at every step of the way
            client = RpcService(asyncio.get_running_loop(), SECRET, patient_config(socket_dir=socket_dir))
            ask = client.gateway(probe.address, ProbeGateway).never()
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            with pytest.raises(RecipientUnreachable, match="closed"):
                await ask
        await until(lambda: not service.connections, "the end of the connections")
        await service.close()
        await until(lambda: other_tasks() <= tasks, "the end of all tasks")
        await until(lambda: descriptors() <= before, "the end of all descriptors")
        gc.collect()


async def test_a_closed_service_calls_nobody() -> None:
    service, probe = await serve(patient_config())
    client = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    gateway = client.gateway(probe.address, ProbeGateway)
    assert await gateway.echo(b"x") == b"x"
    await client.close()
    await client.close()
    with pytest.raises(RecipientUnreachable, match="closed"):
        await gateway.echo(b"x")
    gateway.add(1)
    assert not client._peers
    await service.close()
    assert probe.added == []


async def test_close_stops_the_endpoints_and_tells_who_is_waiting() -> None:
    service, probe = await serve(patient_config())
    client = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    ask = client.gateway(probe.address, ProbeGateway).never()
    await until(lambda: probe.waiting == 1, "the arrival")
    await service.close()
    assert probe.termination.done()
    with pytest.raises(EndpointStateError, match=r"/user/probe was stopped before it had answered never\(\)"):
        await ask
    await client.close()


class FailsToStop(Probe):
    async def on_stop(self) -> None:
        raise ValueError("cannot stop")


async def test_an_endpoint_that_fails_to_stop_does_not_keep_the_ports_open(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptors()
    service, probe = await serve(patient_config(socket_dir=socket_dir))
    failing = FailsToStop(service, "failing")
    await service.start_server(failing)
    await service.start_server(last := Probe(service, "last"))
    await service.close()
    assert "/user/failing" in caplog.text
    assert "cannot stop" in caplog.text
    assert probe.termination.done()
    assert last.termination.done()
    assert list(socket_dir.iterdir()) == []
    await until(lambda: descriptors() <= before, "the end of all descriptors")


# ------------------------------------------------------------------ listening


async def test_what_listens_is_loopback_and_0600(socket_dir: Path) -> None:
    service, _ = await serve(patient_config(socket_dir=socket_dir))
    (path,) = socket_dir.iterdir()
    assert path.name == f"rpc-{service.port}"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listening = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert ("127.0.0.1", service.port) in [(address.ip, address.port) for address in listening]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    await service.close()


async def test_the_umask_is_as_it_was(socket_dir: Path) -> None:
    previous = os.umask(0o027)
    try:
        service, _ = await serve(patient_config(socket_dir=socket_dir))
        await service.close()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(previous)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6() -> None:
    service, probe = await serve(patient_config(bind_host="::1"))
    client = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    assert str(probe.address).startswith("akka.tcp://understudy@[::1]:")
    assert await client.gateway(str(probe.address), ProbeGateway).echo(b"x") == b"x"
    await client.close()
    await service.close()


async def test_a_taken_port_is_named_with_the_remedy() -> None:
    before = descriptors()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ActorSystemError, match=rf"port {port} of 127\.0\.0\.1 is taken; .*jobmanager\.rpc\.port"):
            await serve(patient_config(port=port))
    await until(lambda: descriptors() <= before, "the end of all descriptors")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_this_machines_is_named(host: str) -> None:
    before = descriptors()
    with pytest.raises(ActorSystemError, match=f"cannot listen on {host}:0"):
        await serve(patient_config(bind_host=host))
    await until(lambda: descriptors() <= before, "the end of all descriptors")


@pytest.mark.parametrize("missing", [False, True], ids=["path too long", "no such directory"])
async def test_a_unix_socket_that_cannot_be_made_is_named_and_leaves_nothing(socket_dir: Path, missing: bool) -> None:
    directory = socket_dir / ("gone" if missing else "x" * 120)
    if not missing:
        directory.mkdir()
    before = descriptors()
    with pytest.raises(ActorSystemError, match=str(directory)):
        await serve(patient_config(socket_dir=directory))
    await until(lambda: descriptors() <= before, "the end of all descriptors")


async def test_a_port_can_be_listened_on_again_at_once() -> None:
    server = ProbeServer(None)
    client = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    assert await client.gateway(server.address, ProbeGateway).echo(b"x") == b"x"
    server.close()
    again, _ = await serve(patient_config(port=server.port))
    await again.close()
    await client.close()
