from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.errors import ActorSystemError, AskTimeout, EndpointStateError, FencingError
from actors.rpc.codec import proxy_type
from actors.rpc.dispatch import method_table
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import (
    Ask,
    FencedRpcGateway,
    FencingToken,
    RpcGateway,
    gateway_methods,
    gateways_of,
    rpc,
    rpc_sync,
    rpc_tell,
)
from actors.rpc.service import RpcConfig, RpcService
from tests.waiting import PATIENCE_S

SECRET = b"0123456789abcdef"
ADDRESS = ActorAddress("s", "127.0.0.1", 1, "/user/a")


class BaseGateway(RpcGateway):
    def status(self) -> Ask[str]: ...


class GreeterGateway(BaseGateway):
    def greet(self, name: str, times: int = 1) -> Ask[str]: ...

    def note(self, text: str) -> None: ...


class CounterGateway(FencedRpcGateway):
    def count(self) -> Ask[int]: ...


class Greeter(RpcEndpoint, GreeterGateway):
    @rpc_sync
    def status(self) -> str:
        return "well"

    @rpc
    async def greet(self, name: str, times: int = 1) -> str:
        return f"hello {name}" * times

    @rpc_tell
    def note(self, text: str) -> None:
        pass


class Both(FencedRpcEndpoint, CounterGateway, BaseGateway):
    @rpc_sync
    def count(self) -> int:
        return 1

    @rpc_sync
    def status(self) -> str:
        return "well"


class Forgetful(RpcEndpoint, GreeterGateway):
    @rpc
    async def greet(self, name: str, times: int = 1) -> str:
        return name

    @rpc_tell
    def note(self, text: str) -> None:
        pass


class Unmarked(RpcEndpoint, BaseGateway):
    def status(self) -> str:  # type: ignore[override]
        return "not marked with @rpc"


async def make_service() -> RpcService:
    return RpcService(asyncio.get_running_loop(), SECRET, RpcConfig())


# ------------------------------------------------------------------ method tables


async def test_a_table_has_every_method_of_every_gateway() -> None:
    service = await make_service()
    table = method_table(Greeter(service, "g"))
    assert {name: is_coroutine for name, (_, _, is_coroutine) in table.items()} == {
        "status": False,
        "greet": True,
        "note": False,
    }
    assert set(method_table(Both(service, "b"))) == {"count", "status"}


async def test_a_table_dispatches_to_the_instance() -> None:
    service = await make_service()
    endpoint = Greeter(service, "g")
    _, handler, _ = method_table(endpoint)["greet"]
    assert await handler("ann", 2) == "hello annhello ann"


@pytest.mark.parametrize("endpoint_type", [Forgetful, Unmarked])
async def test_an_endpoint_that_lacks_a_method_is_refused_by_name(endpoint_type: type[RpcEndpoint]) -> None:
    service = await make_service()
    with pytest.raises(ActorSystemError, match=rf"{endpoint_type.__name__} does not implement \w+Gateway\.status"):
        method_table(endpoint_type(service, "x"))
    with pytest.raises(ActorSystemError):
        await service.start_server(endpoint_type(service, "x"))
    await service.start_server(good := Greeter(service, "x"))  # the name was not taken by the failure
    await service.stop_server(good)


def test_the_gateways_of_an_endpoint_are_its_interfaces_only() -> None:
    assert set(gateways_of(Greeter)) == {GreeterGateway, BaseGateway}
    assert set(gateways_of(Both)) == {CounterGateway, BaseGateway}


def test_gateway_methods_include_inherited_ones_and_no_private_ones() -> None:
    assert set(gateway_methods(GreeterGateway)) == {"status", "greet", "note"}
    assert gateway_methods(CounterGateway).keys() == {"count"}


# ------------------------------------------------------------------ proxies


class RecordingService:
    """Stands where a gateway expects its service."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def ask(self, *sent: Any) -> str:
        self.sent.append(("ask", *sent))
        return "the ask"

    def tell(self, *sent: Any) -> None:
        self.sent.append(("tell", *sent))


def test_a_remote_gateway_sends_bound_and_encoded_arguments() -> None:
    service, token = RecordingService(), FencingToken(3, "s")
    gateway = proxy_type(GreeterGateway)(service, ADDRESS, token, 2.5)
    assert isinstance(gateway, GreeterGateway)
    assert gateway.greet("ann") == "the ask"
    assert gateway.note(text="x") is None
    (ask, tell) = service.sent
    assert ask[:2] == ("ask", ADDRESS)
    assert ask[2].name == "greet"
    assert ask[3:] == (["ann"], token, 2.5)  # the receiver fills in the default
    assert tell == ("tell", ADDRESS, "note", ["x"], token)


def test_a_wrong_call_fails_at_the_caller_and_sends_nothing() -> None:
    service = RecordingService()
    gateway = proxy_type(GreeterGateway)(service, ADDRESS, None, 1.0)
    for call in (lambda: gateway.greet(), lambda: gateway.greet("a", 1, 2), lambda: gateway.note(wrong="x")):
        with pytest.raises(TypeError):
            call()
    assert service.sent == []


def test_a_remote_gateway_shows_its_interface_and_address() -> None:
    kind = proxy_type(GreeterGateway)
    assert kind is proxy_type(GreeterGateway)
    assert kind.__name__ == "RemoteGreeterGateway"
    assert repr(kind(None, ADDRESS, None, 1.0)) == f"<GreeterGateway to {ADDRESS}>"


# ------------------------------------------------------------------ Ask


async def test_an_ask_made_on_the_loop_is_awaited_and_never_blocks() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    ask = Ask(future, loop, 1.0)
    with pytest.raises(RuntimeError, match="await it instead"):
        ask.result()
    assert not ask.done()
    loop.call_soon(future.set_result, 7)
    assert await ask == 7
    assert ask.done()


async def test_an_ask_of_another_thread_must_not_block_the_loop_that_would_answer_it() -> None:
    ask: Ask[int] = Ask(concurrent.futures.Future(), asyncio.get_running_loop(), 1.0)
    with pytest.raises(RuntimeError, match="await it instead"):
        ask.result(timeout=PATIENCE_S)


def test_an_ask_of_a_plain_thread_blocks_until_the_reply() -> None:
    loop = asyncio.new_event_loop()
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    thread = threading.Timer(0.01, future.set_result, [7])
    thread.start()
    assert Ask(future, loop, 10.0).result() == 7
    thread.join()
    loop.close()


def test_waiting_too_long_is_an_ask_timeout_and_the_reply_can_still_be_had() -> None:
    loop = asyncio.new_event_loop()
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    ask = Ask(future, loop, 10.0)
    with pytest.raises(AskTimeout, match=r"within 0\.01 s"):
        ask.result(timeout=0.01)
    future.set_result(7)
    assert ask.result() == 7
    loop.close()


@pytest.mark.parametrize("error", [TimeoutError("the handler's own"), AskTimeout("of the gateway"), ValueError("v")])
def test_a_failed_ask_raises_what_it_failed_with(error: Exception) -> None:
    loop = asyncio.new_event_loop()
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_exception(error)
    with pytest.raises(type(error)) as caught:
        Ask(future, loop, 10.0).result(timeout=1)
    assert caught.value is error
    loop.close()


async def test_done_callbacks_get_the_outcome() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    seen: asyncio.Future[int] = loop.create_future()
    Ask(future, loop, 1.0).add_done_callback(lambda done: seen.set_result(done.result()))
    future.set_result(7)
    assert await asyncio.wait_for(seen, PATIENCE_S) == 7


# ------------------------------------------------------------------ endpoints


class Recorder(RpcEndpoint):
    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.events: list[str] = []
        self.errors: asyncio.Queue[tuple[str, BaseException]] = asyncio.Queue()

    async def on_start(self) -> None:
        self.events.append(f"start running={self.running}")

    async def on_stop(self) -> None:
        self.events.append(f"stop running={self.running}")

    def on_error(self, what: str, error: BaseException) -> None:
        self.errors.put_nowait((what, error))


async def test_life_of_an_endpoint() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    address = await service.start_server(endpoint)
    assert address.path == endpoint.path == "/user/r"
    assert endpoint.running
    assert not endpoint.termination.done()
    await service.stop_server(endpoint)
    await service.stop_server(endpoint)
    assert endpoint.events == ["start running=False", "stop running=False"]
    assert endpoint.termination.done()


async def test_a_name_is_unique_and_free_again_after_the_end() -> None:
    service = await make_service()
    first = Recorder(service, "r")
    await service.start_server(first)
    with pytest.raises(ActorSystemError, match="/user/r runs in this process already"):
        await service.start_server(Recorder(service, "r"))
    assert first.running
    await service.stop_server(first)
    await service.start_server(Recorder(service, "r"))
    await service.close()


class FailsToStart(Recorder):
    async def on_start(self) -> None:
        raise ValueError("no")


async def test_an_endpoint_that_fails_to_start_is_stopped_and_not_registered() -> None:
    service = await make_service()
    endpoint = FailsToStart(service, "r")
    with pytest.raises(ValueError, match="no"):
        await service.start_server(endpoint)
    assert endpoint.termination.done()
    assert endpoint.events == ["stop running=False"]
    await service.start_server(Recorder(service, "r"))
    await service.close()


async def test_stop_cancels_what_the_endpoint_spawned_and_scheduled() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    await service.start_server(endpoint)
    task = endpoint.spawn(asyncio.Event().wait(), "waits forever")
    timer = endpoint.schedule_run_async(0.0, lambda: endpoint.events.append("fired"))
    await service.stop_server(endpoint)
    assert task.cancelled()
    assert timer.cancelled()
    await asyncio.sleep(0)
    assert "fired" not in endpoint.events


async def test_failures_with_no_caller_reach_on_error() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    await service.start_server(endpoint)

    async def fail() -> None:
        raise ValueError("in a task")

    def fail_now() -> None:
        raise KeyError("in a timer")

    endpoint.spawn(fail(), "the work")
    what, error = await asyncio.wait_for(endpoint.errors.get(), PATIENCE_S)
    assert (what, str(error)) == ("the work", "in a task")
    endpoint.schedule_run_async(0.0, fail_now)
    what, error = await asyncio.wait_for(endpoint.errors.get(), PATIENCE_S)
    assert what.endswith("fail_now")
    assert isinstance(error, KeyError)
    await service.close()


async def test_call_async_brings_a_result_back_from_the_main_thread() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    await service.start_server(endpoint)

    def fail() -> None:
        raise KeyError("no")

    assert await endpoint.call_async(threading.get_ident) == threading.get_ident()
    from_a_thread = await endpoint.run_blocking(lambda: endpoint.call_async(threading.get_ident).result(PATIENCE_S))
    assert from_a_thread == threading.get_ident()
    with pytest.raises(KeyError):
        await endpoint.call_async(fail)
    late = endpoint.call_async(lambda: 1)
    await service.stop_server(endpoint)
    with pytest.raises(EndpointStateError, match="stopped"):
        await late
    with pytest.raises(EndpointStateError, match="has stopped"):
        await endpoint.call_async(lambda: 1)
    await service.close()


async def test_timers_are_the_main_threads_own() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    await service.start_server(endpoint)
    with pytest.raises(EndpointStateError, match="not its main thread"):
        await endpoint.run_blocking(endpoint.schedule_run_async, 0.0, lambda: None)
    await service.close()


class CountingGateway(FencedRpcGateway):
    def count(self) -> Ask[int]: ...


class Counting(FencedRpcEndpoint, CountingGateway):
    calls = 0

    @rpc_sync
    def count(self) -> int:
        self.calls += 1
        return self.calls


async def test_the_self_gateway_sends_messages_under_the_leadership_of_now() -> None:
    service = await make_service()
    await service.listen()
    endpoint = Counting(service, "counting")
    await service.start_server(endpoint)
    endpoint.fencing_token = FencingToken(1, "a")
    own = endpoint.self_gateway(CountingGateway)
    asked = own.count()
    assert endpoint.calls == 0, "it is a message, not a call"
    assert await asked == 1
    endpoint.fencing_token = FencingToken(2, "a")
    with pytest.raises(FencingError):
        await own.count()
    assert await endpoint.self_gateway(CountingGateway).count() == 2
    await service.close()


async def test_main_thread_is_asserted_and_reached_from_others() -> None:
    service = await make_service()
    endpoint = Recorder(service, "r")
    await service.start_server(endpoint)
    endpoint.validate_main_thread()
    with pytest.raises(EndpointStateError, match="not its main thread"):
        await endpoint.run_blocking(endpoint.validate_main_thread)
    ran: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_main_thread() -> None:
        endpoint.validate_main_thread()
        ran.set_result(threading.get_ident())

    await endpoint.run_blocking(endpoint.run_async, on_main_thread)
    assert await asyncio.wait_for(ran, PATIENCE_S) == threading.get_ident()
    await service.close()


@pytest.mark.parametrize(
    ("own", "carried", "refusal"),
    [
        (None, None, "not the leader"),
        (None, FencingToken(1, "a"), "not the leader"),
        (FencingToken(2, "b"), None, "another leadership"),
        (FencingToken(2, "b"), FencingToken(1, "a"), "another leadership"),
        (FencingToken(2, "b"), FencingToken(3, "c"), "another leadership"),
        (FencingToken(2, "b"), FencingToken(2, "x"), "another leadership"),
        (FencingToken(2, "b"), FencingToken(2, "b"), None),
    ],
)
async def test_fencing(own: FencingToken | None, carried: FencingToken | None, refusal: str | None) -> None:
    endpoint = Both(await make_service(), "f")
    endpoint.fencing_token = own
    check: Callable[[], None] = lambda: endpoint.check_token(carried)  # noqa: E731
    if refusal is None:
        check()
    else:
        with pytest.raises(FencingError, match=refusal):
            check()


async def test_an_unfenced_endpoint_takes_every_token() -> None:
    endpoint = Greeter(await make_service(), "g")
    endpoint.check_token(None)
    endpoint.check_token(FencingToken(1, "a"))
