"""The gateway for Spark Connect clients over real gRPC, with a cluster and a Spark of its own making."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2, status_pb2
from pyspark.sql.connect.proto import base_pb2

from actors.errors import AskTimeout
from runtime.errors import PreflightError
from runtime.ha.errors import RedisUnreachableError
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.errors import JobNotFoundError, NoSuchSessionError, SubmissionLimitError
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.session import SessionAddress, own_network
from runtime.rest import authorization
from runtime.rest.access import AccessPolicy
from runtime.rest.authorization import KnownIdentities
from runtime.rest.connect import gateway as gateways
from runtime.rest.connect import named, reports
from runtime.rest.connect.gateway import ConnectGateway
from runtime.rest.connect.record import Stage
from runtime.rest.connect.record_files import RecordFiles
from runtime.rest.connect.requests import session_id_of
from runtime.rest.connect.sessions import SERVICE, job_of
from runtime.users.audit import AuditLog
from runtime.users.identities import Identities, Role, User, make_token
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S

SESSION = "00112233-4455-6677-8899-aabbccddeeff"
OWN = b"the-cluster's-own-token"
SPARKS = "sparks-token"
MOST_RECORDED = 100_000


class Spark:
    """A Connect server: answers with what it was sent, or as its `answer` says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, Any]], list[bytes]]] = []
        self.began = asyncio.Event()
        self.answer: Callable[[Any], Awaitable[None]] | None = None
        self.refuses_at = 0
        self.port = 0

    async def start(self) -> Any:
        spark = self

        class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: Any) -> Any:
                async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
                    messages = list[bytes]()
                    async for message in requests:
                        messages.append(message)
                        if len(messages) == spark.refuses_at:
                            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "another file of this name is there")
                    await context.read()  # cancels a call that its client has cut off
                    spark.calls.append((details.method, list(context.invocation_metadata()), messages))
                    spark.began.set()
                    if spark.answer is not None:
                        await spark.answer(context)
                        return
                    for message in messages:
                        await context.write(message)

                return grpc.stream_stream_rpc_method_handler(serve)

        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers((Handlers(),))
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server


class ClusterOfOne:
    """Stands for backend and TaskExecutor: jobs by their ids, whose session is open while they are RUNNING."""

    def __init__(self, spark: Spark) -> None:
        self.spark = spark
        self.jobs: dict[JobID, tuple[JobGraph, JobStatus]] = {}
        self.starts_as = JobStatus.RUNNING
        self.looks, self.beat = asyncio.Event(), asyncio.Event()
        self.heartbeats = list[JobID]()
        self.ended = list[JobID]()
        self.limit = ""

    async def submit_graph(self, graph: JobGraph) -> JobID:
        if self.limit:
            raise SubmissionLimitError(self.limit)
        self.jobs.setdefault(graph.job_id, (graph, self.starts_as))
        return graph.job_id

    def become(self, job_id: JobID, status: JobStatus) -> None:
        self.jobs[job_id] = self.jobs[job_id][0], status

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        self.looks.set()
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id)
        graph, status = self.jobs[job_id]
        state = ExecutionState.RUNNING if status is JobStatus.RUNNING else ExecutionState.SCHEDULED
        attempt = AttemptInfo(ExecutionAttemptID("a" * 32), 0, state, "tm-1", {state.value: 1}, None, None)
        task = TaskInfo(JobVertexID("b" * 32), "session", (), (attempt,), "")
        return ArchivedExecutionGraph(
            job_id,
            graph.name,
            JobKind.PIPELINE,
            status,
            {status.value: 1},
            (task,),
            (),
            None,
            (),
            0,
            "",
            owner=graph.owner,
        )

    async def task_executor(self, name: str, timeout_s: float | None = None) -> Self:
        return self

    async def request_session(self, job_id: JobID) -> SessionAddress:
        graph, status = self.jobs[job_id]
        if status is not JobStatus.RUNNING:
            raise NoSuchSessionError(job_id)
        return SessionAddress(self.spark.port, SPARKS, graph.session_id, graph.owner or "understudy", own_network())

    async def end_session(self, job_id: JobID) -> None:
        self.ended.append(job_id)
        self.become(job_id, JobStatus.FINISHED)

    async def cancel(self, job_id: JobID) -> None:
        self.become(job_id, JobStatus.CANCELED)

    async def ask(self, question: Callable[[Any], Any]) -> None:
        question(self)

    def report_job_client_heartbeat(self, job_id: JobID) -> None:
        self.heartbeats.append(job_id)
        self.beat.set()


class World:
    """A gateway, with what is around it, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spark = Spark()
        self.cluster = ClusterOfOne(self.spark)
        self.tokens: dict[str, str] = {}
        self.users: dict[str, str] = {}
        for number, (name, role) in enumerate((("ada", Role.USER), ("bob", Role.USER), ("eve", Role.VIEWER))):
            token, record = make_token(name, "laptop", 0, None, bytes([number]) * 40)
            self.tokens[name] = token
            self.users |= {f"user:{name}": User(name, role).to_json(), f"token:{record.token_id}": record.to_json()}
        self.gateway = self.another()
        self.port = 0
        self.authority: bytes | None = None
        self.read = asyncio.Event()
        self.is_store_away = False

    def another(self, idle_timeout_s: float = 60.0) -> ConnectGateway:
        policy, audit = AccessPolicy(OWN, [], "http", 1), AuditLog(self.directory / "audit.jsonl")
        backend: Any = self.cluster
        records = RecordFiles(self.directory / "ha" / "records", idle_timeout_s)
        identities = KnownIdentities(self._read)
        return ConnectGateway(backend, identities, policy, idle_timeout_s, audit, records, MOST_RECORDED)

    async def _read(self) -> Identities:
        self.read.set()
        if self.is_store_away:
            raise RedisUnreachableError("unix:redis.sock", "no answer")
        return Identities(self.users)

    async def read_again(self, times: int) -> None:
        """Wait until the store of users has been read so many times more."""
        for _ in range(times):
            self.read.clear()
            await self.read.wait()

    def channel(self) -> Any:
        options = [("grpc.max_receive_message_length", -1)]
        if self.authority is None:
            return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        trusted = grpc.ssl_channel_credentials(self.authority)
        return grpc.aio.secure_channel(f"localhost:{self.port}", trusted, options=options)

    def _authorization(self, user: str) -> tuple[tuple[str, str], ...]:
        """Return what a client shows: the token of a user, or any other text as one; nothing for an empty text."""
        return (("authorization", f"Bearer {self.tokens.get(user, user)}"),) if user else ()

    def call(self, method: str, *messages: bytes, user: str = "ada", metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        """Begin a call; `answers` gives what comes back."""
        shown = self._authorization(user)
        channel = self.channel()

        async def each() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        call = channel.stream_stream(f"/{SERVICE}/{method}")(each(), metadata=(*shown, *metadata), timeout=PATIENCE_S)
        return call, channel

    async def answers(self, method: str, *messages: bytes, **more: Any) -> list[bytes]:
        call, channel = self.call(method, *messages, **more)
        try:
            return [message async for message in call]
        finally:
            await channel.close()

    async def refusal(self, method: str, *messages: bytes, **more: Any) -> Any:
        question: Callable[..., Awaitable[Any]] = self.ask if len(messages) == 1 else self.upload
        with pytest.raises(grpc.RpcError) as caught:
            await question(method, *messages, **more)
        return caught.value

    async def upload(
        self, method: str, *messages: bytes, user: str = "ada", metadata: tuple[tuple[str, str], ...] = ()
    ) -> list[bytes]:
        """Call as PySpark does, by a client that blocks; that of grpc.aio may replace the status of a refusal."""
        shown = (*self._authorization(user), *metadata)

        def call() -> list[bytes]:
            with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
                stream = channel.stream_stream(f"/{SERVICE}/{method}")
                return list(stream(iter(messages), metadata=shown, timeout=PATIENCE_S))

        return await asyncio.to_thread(call)

    async def ask(
        self, method: str, message: bytes, user: str = "ada", metadata: tuple[tuple[str, str], ...] = ()
    ) -> Any:
        """Call as PySpark does, which sends one message and its end at once."""
        channel = self.channel()
        shown = (*self._authorization(user), *metadata)
        try:
            return await channel.unary_unary(f"/{SERVICE}/{method}")(message, metadata=shown, timeout=PATIENCE_S)
        finally:
            await channel.close()

    def audited(self) -> list[tuple[str, str, str]]:
        file = self.directory / "audit.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [(line["user"], line["action"], line["outcome"]) for line in lines]


def in_a_world(directory: Path, test: Callable[[World], Awaitable[None]]) -> None:
    """Run a test with a gateway that serves."""

    async def run() -> None:
        world = World(directory)
        server = await world.spark.start()
        world.port = await world.gateway.start("127.0.0.1", 0, None, directory)
        try:
            await test(world)
        finally:
            await world.gateway.stop()
            await server.stop(None)

    asyncio.run(run())


def request(session: str = SESSION, user: str = "root") -> bytes:
    context = base_pb2.UserContext(user_id=user)
    made = base_pb2.ExecutePlanRequest(session_id=session, user_context=context, client_type="x" * 1000)
    return bytes(made.SerializeToString())


def test_a_call_begins_a_session_and_passes_in_the_name_of_the_tokens_user(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (answer,) = await world.answers("ExecutePlan", request(), metadata=(("x-mine", "kept"),))
        got = base_pb2.ExecutePlanRequest.FromString(answer)
        assert (got.session_id, got.user_context.user_id, got.client_type) == (SESSION, "ada", "x" * 1000)
        assert answer.startswith(request())
        ((method, metadata, _),) = world.spark.calls
        assert method == f"/{SERVICE}/ExecutePlan"
        assert ("x-mine", "kept") in metadata
        shown = [value for key, value in metadata if key == "authorization"]
        assert shown == [f"Bearer {SPARKS}"], "Spark is shown its own token, not the user's"
        assert list(world.cluster.jobs) == [job_of("ada", SESSION)]
        await world.answers("Config", request())
        assert world.audited() == [("ada", "connect/begin", "done")]
        assert world.cluster.heartbeats == [job_of("ada", SESSION)]

    in_a_world(tmp_path, test)


def test_a_stream_passes_in_both_directions_and_every_message_of_it_is_the_users(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        big = base_pb2.AddArtifactsRequest(session_id=SESSION, client_type="y" * (5 << 20)).SerializeToString()
        answers = await world.answers("AddArtifacts", request(), big, request(user="bob"))
        users = [base_pb2.AddArtifactsRequest.FromString(each).user_context.user_id for each in answers]
        assert users == ["ada"] * 3
        other = request("ffffffff-4455-6677-8899-aabbccddeeff")
        assert "two sessions" in (await world.refusal("AddArtifacts", request(), other)).details()

    in_a_world(tmp_path, test)


def test_an_upload_that_spark_refuses_midway_has_sparks_status(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.spark.refuses_at = 2
        big = base_pb2.AddArtifactsRequest(session_id=SESSION, client_type="y" * 200_000).SerializeToString()
        for _ in range(30):  # gRPC's own `write` loses the status in a third of them
            error = await world.refusal("AddArtifacts", *[big] * 6)
            assert (error.code(), error.details()) == (
                grpc.StatusCode.ALREADY_EXISTS,
                "another file of this name is there",
            )

    in_a_world(tmp_path, test)


@pytest.mark.parametrize("name", [(), (("session_name", "etl"),)])
def test_an_upload_that_its_client_cuts_off_has_no_end_and_is_not_recorded(
    tmp_path: Path, name: tuple[tuple[str, str], ...]
) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=name)
        for _ in range(20):
            channel, shown = world.channel(), (("authorization", f"Bearer {world.tokens['ada']}"),)
            call = channel.stream_stream(f"/{SERVICE}/AddArtifacts")(metadata=shown + name, timeout=PATIENCE_S)
            for _ in range(3):
                await call.write(request())
            async with asyncio.timeout(PATIENCE_S):
                while not any(each.session_id for each in world.gateway._open.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                call.cancel()
                while world.gateway._open:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            await channel.close()
        await world.answers("AddArtifacts", request(), metadata=name)
        assert [method.rpartition("/")[2] for method, _, _ in world.spark.calls] == ["ExecutePlan", "AddArtifacts"]
        if name:
            assert [entry.method for entry in record_of(world).entries] == ["ExecutePlan", "AddArtifacts"]

    in_a_world(tmp_path, test)


def test_two_users_with_one_session_id_have_two_sessions(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for user in ("ada", "bob", OWN.decode()):
            await world.answers("ExecutePlan", request(user="ada"), user=user)
        assert set(world.cluster.jobs) == {job_of(user, SESSION) for user in ("ada", "bob", "")}
        seen = [base_pb2.ExecutePlanRequest.FromString(sent[0]) for _, _, sent in world.spark.calls]
        assert [each.user_context.user_id for each in seen] == ["ada", "bob", "understudy"]

    in_a_world(tmp_path, test)


def test_no_message_is_read_before_the_token_is_known(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for user in ("", "understudy_0123456789abcdef_" + "0" * 64, "Basic"):
            error = await world.refusal("ExecutePlan", user=user)  # not one message is sent
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "sc://HOST:PORT/;token=TOKEN" in error.details()
        token = ("authorization", f"Bearer {world.tokens['ada']}")
        assert (await world.refusal("ExecutePlan", metadata=(token,))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert not world.spark.calls
        assert not world.cluster.jobs
        assert set(world.audited()) == {("", "connect/identify", "refused")}

    in_a_world(tmp_path, test)


def test_a_viewer_gets_no_session(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        error = await world.refusal("ExecutePlan", request(), user="eve")
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "user eve has the role viewer; a Spark Connect session needs the role user" in error.details()
        assert not world.cluster.jobs
        assert world.audited() == [("eve", "connect/session", "refused")]

    in_a_world(tmp_path, test)


SETTINGS, PING, GOAWAY = 4, 6, 7
"""Types of HTTP/2 frames."""


async def answered_pings(port: int, times: int) -> int:
    """Ping over HTTP/2 as soon as the one before is answered; return how many were before the peer hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0)))
    count = 0
    try:
        for _ in range(times):
            writer.write(bytes((0, 0, 8, PING, 0, 0, 0, 0, 0)) + bytes(8))
            kind = SETTINGS
            while kind != PING:
                head = await asyncio.wait_for(reader.readexactly(9), PATIENCE_S)
                kind = head[3]
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind == GOAWAY:
                    return count
            count += 1
    finally:
        writer.close()
    return count


@pytest.mark.parametrize(("least_ms", "is_let"), [(0, True), (60_000, False)])
def test_a_client_may_ping_while_it_waits_though_not_without_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_ms: int, is_let: bool
) -> None:
    monkeypatch.setattr(gateways, "PING_MS", least_ms)

    async def test(world: World) -> None:
        assert (await answered_pings(world.port, 20) == 20) is is_let

    in_a_world(tmp_path, test)


def test_a_revoked_token_ends_an_open_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "ATTEND_S", 0.05)

    async def test(world: World) -> None:
        interrupted = asyncio.Event()

        async def hang(context: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()

        world.spark.answer = hang
        waiting = asyncio.create_task(world.refusal("ExecutePlan", request()))
        await world.spark.began.wait()
        world.users = {key: text for key, text in world.users.items() if "ada" not in text}
        overlooked = asyncio.create_task(world.read_again(3))
        await asyncio.wait({waiting, overlooked}, return_when=asyncio.FIRST_COMPLETED)
        assert not overlooked.done(), "the gateway has looked for the token, and the call goes on"
        overlooked.cancel()
        assert (await waiting).code() is grpc.StatusCode.UNAUTHENTICATED
        await interrupted.wait()

    in_a_world(tmp_path, test)


def test_a_call_that_is_ended_while_users_cannot_be_read_is_repeated_by_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "ATTEND_S", 0.05)

    async def test(world: World) -> None:
        async def hang(context: Any) -> None:
            world.is_store_away = True
            await asyncio.Event().wait()

        world.spark.answer = hang
        error = await world.refusal("ExecutePlan", request())
        assert error.code() is grpc.StatusCode.UNAVAILABLE, "PySpark repeats a call with this status only"
        assert "not valid" not in error.details()

    in_a_world(tmp_path, test)


def test_one_look_into_a_store_that_does_not_answer_ends_all_open_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "ATTEND_S", 0.05)

    async def test(world: World) -> None:
        looks = list[bool]()

        async def away() -> Identities:
            looks.append(True)
            raise RedisUnreachableError("unix:redis.sock", "no answer")

        async def hang(context: Any) -> None:
            if len(world.spark.calls) == 3:
                monkeypatch.setattr(world.gateway._identities, "_read", away)
            await asyncio.Event().wait()

        world.spark.answer = hang
        errors = await asyncio.gather(
            *(world.refusal("ExecutePlan", request(), user=user) for user in ("ada", "bob", "ada"))
        )
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert len(looks) == 1, "a look takes a second until it has failed"

    in_a_world(tmp_path, test)


@contextlib.asynccontextmanager
async def a_network(port: int, is_cut: asyncio.Event) -> AsyncIterator[int]:
    """A way to a port, which passes nothing on, not even that a connection is closed, once it is cut."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await reader.read(1 << 16)) and not is_cut.is_set():
            writer.write(data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        tasks = [asyncio.create_task(pass_on(*way)) for way in ((reader, far_writer), (far_reader, writer))]
        await ended.wait()
        for task in tasks:
            task.cancel()
        writer.close()
        far_writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        ended.set()
        server.close()


def test_an_open_call_of_a_client_that_is_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "PONG_MS", 200)

    async def test(world: World) -> None:
        other, is_cut = world.another(idle_timeout_s=1.0), asyncio.Event()
        port = await other.start("127.0.0.1", 0, None, tmp_path)

        async def hang(context: Any) -> None:
            await asyncio.Event().wait()

        world.spark.answer = hang
        async with a_network(port, is_cut) as world.port:
            call, channel = world.call("ExecutePlan", request())
            await world.spark.began.wait()
            is_cut.set()
            # As long as the call is open, there is one each 0.1 s.
            while other._open and len(world.cluster.heartbeats) < 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            is_over = not other._open
            assert not call.done(), "its client does not know"
            call.cancel()
        await channel.close()
        await other.stop()
        assert is_over

    in_a_world(tmp_path, test)


@contextlib.asynccontextmanager
async def held_call(world: World, go: asyncio.Event) -> AsyncIterator[Any]:
    """A call whose client is identified, and sends its first message when *go* is set."""

    async def each() -> AsyncIterator[bytes]:
        await go.wait()
        yield request()

    channel, metadata = world.channel(), (("authorization", f"Bearer {world.tokens['ada']}"),)
    call = channel.stream_stream(f"/{SERVICE}/ExecutePlan")(each(), metadata=metadata, timeout=PATIENCE_S)
    await world.read.wait()
    try:
        yield call
    finally:
        await channel.close()


def test_a_revoked_token_ends_a_call_that_has_sent_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "ATTEND_S", 0.05)
    monkeypatch.setattr(gateways, "FIRST_MESSAGE_S", LONGER_THAN_PATIENCE_S)

    async def test(world: World) -> None:
        async with held_call(world, asyncio.Event()) as call:
            world.users = {key: text for key, text in world.users.items() if "ada" not in text}
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

    in_a_world(tmp_path, test)


def test_a_first_message_after_the_end_of_its_token_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "ATTEND_S", LONGER_THAN_PATIENCE_S)
    monkeypatch.setattr(authorization, "MAX_AGE_S", 0.0)

    async def test(world: World) -> None:
        go = asyncio.Event()
        async with held_call(world, go) as call:
            world.users = {key: text for key, text in world.users.items() if "ada" not in text}
            go.set()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                assert not [message async for message in call]
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not world.cluster.jobs
        assert not world.spark.calls

    in_a_world(tmp_path, test)


def test_a_call_without_a_first_message_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "FIRST_MESSAGE_S", 0.05)

    async def test(world: World) -> None:
        async with held_call(world, asyncio.Event()) as call:
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "the request did not come within 0.05 s" in await call.details()

    in_a_world(tmp_path, test)


def test_an_open_call_keeps_its_session_alive(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async def work(context: Any) -> None:
            while len(world.cluster.heartbeats) < 3:
                await world.cluster.beat.wait()
                world.cluster.beat.clear()

        world.spark.answer = work
        gateway = world.another(idle_timeout_s=0.1)
        world.port = await gateway.start("127.0.0.1", 0, None, tmp_path)
        assert await world.answers("ExecutePlan", request()) == []
        assert set(world.cluster.heartbeats) == {job_of("ada", SESSION)}
        (graph, _) = world.cluster.jobs[job_of("ada", SESSION)]
        assert graph.client_heartbeat_timeout_s == 0.1
        await gateway.stop()

    in_a_world(tmp_path, test)


def test_tls_is_that_of_the_web_endpoint(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "rest.crt", tmp_path / "rest.key"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())

    async def test(world: World) -> None:
        gateway = world.another()
        world.port = await gateway.start("127.0.0.1", 0, (certificate, key), tmp_path)
        assert (await world.refusal("ExecutePlan", request())).code() is grpc.StatusCode.UNAVAILABLE, "no plain text"
        world.authority = authority.cert_pem.bytes()
        assert len(await world.answers("ExecutePlan", request())) == 1
        await gateway.stop()

    in_a_world(tmp_path, test)


def test_connections_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "MOST_CONNECTIONS", 2)

    async def test(world: World) -> None:
        gateway = world.another()
        port = await gateway.start("127.0.0.1", 0, None, tmp_path)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in held]
        done, _ = await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for _, writer in held:
            writer.close()
        await asyncio.gather(*ends, return_exceptions=True)
        await gateway.stop()

    in_a_world(tmp_path, test)


def test_silent_connections_make_room_and_a_client_does_not_notice_that_its_own_was_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gateways.IDLE_MS <= 10_000
    monkeypatch.setattr(gateways, "IDLE_MS", 300)

    async def test(world: World) -> None:
        gateway = world.another()
        world.port = await gateway.start("127.0.0.1", 0, None, tmp_path)
        channel, metadata = world.channel(), (("authorization", f"Bearer {world.tokens['ada']}"),)
        call = channel.unary_unary(f"/{SERVICE}/ExecutePlan")
        assert await call(request(), metadata=metadata, timeout=PATIENCE_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0)))
        await asyncio.wait_for(_goaway(reader), PATIENCE_S)
        writer.close()
        await asyncio.wait_for(_until_idle(channel), PATIENCE_S)
        assert await call(request(), metadata=metadata, timeout=PATIENCE_S)
        await channel.close()
        await gateway.stop()

    in_a_world(tmp_path, test)


async def _goaway(reader: asyncio.StreamReader) -> None:
    """Wait until the peer says that it closes the connection."""
    kind = SETTINGS
    while kind != GOAWAY:
        head = await reader.readexactly(9)
        kind = head[3]
        await reader.readexactly(int.from_bytes(head[:3], "big"))


async def _until_idle(channel: Any) -> None:
    """Wait until a client has no connection any more."""
    while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)


def test_a_call_waits_for_a_slot(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.cluster.starts_as = JobStatus.CREATED
        waiting = asyncio.create_task(world.answers("ExecutePlan", request()))
        while job_of("ada", SESSION) not in world.cluster.jobs:
            await world.cluster.looks.wait()
            world.cluster.looks.clear()
        world.cluster.looks.clear()
        await world.cluster.looks.wait()
        assert not world.spark.calls
        world.cluster.become(job_of("ada", SESSION), JobStatus.RUNNING)
        assert len(await waiting) == 1

    in_a_world(tmp_path, test)


def test_a_limit_is_told_and_not_retried(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.cluster.limit = "user ada has 3 waiting jobs and may have 3; submit again in 9 s"
        error = await world.refusal("ExecutePlan", request())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.cluster.limit in error.details()

    in_a_world(tmp_path, test)


def test_a_session_that_has_ended_is_not_called_any_more(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", request())
        world.cluster.become(job_of("ada", SESSION), JobStatus.CANCELED)
        error = await world.refusal("ExecutePlan", request())
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        status = status_pb2.Status.FromString(details)
        assert "is CANCELED (a user has cancelled it)" in status.message == error.details()
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert info.metadata["errorClass"] == "INVALID_HANDLE.SESSION_CHANGED"
        assert len(world.spark.calls) == 1

    in_a_world(tmp_path, test)


def test_a_call_that_fails_because_its_session_has_ended_says_so(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async def lost(context: Any) -> None:
            world.cluster.become(job_of("ada", SESSION), JobStatus.FAILED)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

        world.spark.answer = lost
        error = await world.refusal("ExecutePlan", request())
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION, "PySpark would repeat the call for ten minutes"
        assert "is FAILED" in error.details()

    in_a_world(tmp_path, test)


def test_sparks_own_errors_pass_with_their_details(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async def fail(context: Any) -> None:
            context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x0d"),))
            await context.abort(grpc.StatusCode.INTERNAL, "TABLE_OR_VIEW_NOT_FOUND")

        world.spark.answer = fail
        error = await world.refusal("AnalyzePlan", request())
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "TABLE_OR_VIEW_NOT_FOUND")
        assert dict(error.trailing_metadata())["grpc-status-details-bin"] == b"\x08\x0d"

    in_a_world(tmp_path, test)


def test_a_released_session_ends_its_job_before_the_client_has_the_answer(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", request())
        assert len(await world.answers("ReleaseSession", request())) == 1
        assert world.cluster.ended == [job_of("ada", SESSION)]
        assert world.audited()[-1] == ("ada", "connect/release", "done")
        # Again, and of a session that never began: neither is an error, and neither reaches Spark.
        for session in (SESSION, "ffffffff-4455-6677-8899-aabbccddeeff"):
            (answer,) = await world.answers("ReleaseSession", request(session))
            assert base_pb2.ReleaseSessionResponse.FromString(answer).session_id == session
        assert len(world.spark.calls) == 2
        assert len(world.cluster.jobs) == 1

    in_a_world(tmp_path, test)


@pytest.mark.parametrize("why", ["it does not answer", "it is forgotten"])
def test_a_released_session_whose_task_executor_is_not_reached_is_cancelled(tmp_path: Path, why: str) -> None:
    async def test(world: World) -> None:
        async def answer(context: Any) -> None:
            world.gateway._executors.clear()
            await context.write(b"")

        async def no_answer(job_id: JobID) -> None:
            raise AskTimeout("no answer")

        await world.answers("ExecutePlan", request())
        if why == "it is forgotten":
            world.spark.answer = answer
        else:
            world.cluster.end_session = no_answer  # type: ignore[method-assign]
        assert len(await world.answers("ReleaseSession", request())) == 1
        assert [status for _, status in world.cluster.jobs.values()] == [JobStatus.CANCELED]

    in_a_world(tmp_path, test)


def test_a_session_that_is_released_while_it_waits_is_cancelled(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.cluster.starts_as = JobStatus.CREATED
        call, channel = world.call("ExecutePlan", request())
        while not world.cluster.jobs:
            await world.cluster.looks.wait()
            world.cluster.looks.clear()
        call.cancel()
        await channel.close()
        await world.answers("ReleaseSession", request())
        assert [status for _, status in world.cluster.jobs.values()] == [JobStatus.CANCELED]

    in_a_world(tmp_path, test)


def report(operation: str, response: str = "") -> bytes:
    """Say that a response was read, or the whole answer."""
    made = base_pb2.ReleaseExecuteRequest(session_id=SESSION, operation_id=operation)
    if response:
        made.release_until.response_id = response
    else:
        made.release_all.SetInParent()
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("name", [(), (("session_name", "mine"),)])
def test_spark_gets_the_last_report_of_each_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: tuple[tuple[str, str], ...]
) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 3600.0)

    async def test(world: World) -> None:
        await world.answers("ExecutePlan", request(), metadata=name)
        sent = (report("a", "1"), report("a", "2"), report("b", "3"), report("a"), report("a", "4"))
        for message in sent:
            (answer,) = await world.answers("ReleaseExecute", message, metadata=name)
            released = base_pb2.ReleaseExecuteResponse.FromString(answer)
            assert released.session_id == SESSION
            assert released.operation_id in ("a", "b")
        assert len(world.spark.calls) == 1, "a report waits for later ones"
        await world.gateway.stop()
        passed = [base_pb2.ReleaseExecuteRequest.FromString(messages[0]) for _, _, messages in world.spark.calls[1:]]
        assert sorted((one.operation_id, one.WhichOneof("release")) for one in passed) == [
            ("a", "release_all"),
            ("b", "release_until"),
        ]
        assert {one.user_context.user_id for one in passed} == {"ada"}
        assert len({session_id_of(messages[0]) for _, _, messages in world.spark.calls}) == 1, "that of the driver"

    in_a_world(tmp_path, test)


def test_a_report_about_a_session_that_has_ended_is_acknowledged_and_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 3600.0)

    async def test(world: World) -> None:
        await world.answers("ExecutePlan", request())
        await world.answers("ReleaseExecute", report("a"))
        world.cluster.become(job_of("ada", SESSION), JobStatus.CANCELED)
        await world.answers("ReleaseExecute", report("b"))
        await world.gateway.stop()
        assert len(world.spark.calls) == 1
        assert len(world.cluster.jobs) == 1, "none begins for it"

    in_a_world(tmp_path, test)


@pytest.mark.parametrize(
    ("refusal", "is_logged"),
    [("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid", False), ("The driver has no memory", True)],
)
def test_a_report_that_comes_after_the_end_of_its_session_is_no_answer_that_spark_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: str, is_logged: bool
) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 3600.0)
    caplog.set_level("INFO")

    async def test(world: World) -> None:
        await world.answers("ExecutePlan", request())
        await world.answers("ReleaseExecute", report("a"))
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, refusal)
        await world.gateway.stop()
        assert len(world.spark.calls) == 2
        assert ("keeps an answer that was read" in caplog.text) == is_logged

    in_a_world(tmp_path, test)


def test_a_report_without_an_operation_is_refused(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        error = await world.refusal("ReleaseExecute", request())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "names no operation" in error.details()

    in_a_world(tmp_path, test)


def test_a_clone_would_be_a_session_without_a_job(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        error = await world.refusal("CloneSession", request())
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "CloneSession is not passed on" in error.details()
        assert not world.spark.calls

    in_a_world(tmp_path, test)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for messages in ((), (b"",), (b"\x0b",), (request("no-uuid"),)):
            error = await world.refusal("ExecutePlan", *messages)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not world.cluster.jobs

    in_a_world(tmp_path, test)


def test_a_driver_of_another_machine_is_not_mistaken_for_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        monkeypatch.setattr(world.gateway, "_network", "another kernel/1")
        assert "is on another machine" in (await world.refusal("ExecutePlan", request())).details()
        assert not world.spark.calls

    in_a_world(tmp_path, test)


def test_gateways_of_a_cluster_share_a_port_and_no_one_else_does(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for name in ("ours", "theirs"):
            (tmp_path / name).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            with pytest.raises(PreflightError, match="Address already in use"):
                await world.another().start("127.0.0.1", port, None, tmp_path / "ours")
        first, second = world.another(), world.another()
        assert await first.start("127.0.0.1", port, None, tmp_path / "ours") == port
        with pytest.raises(PreflightError, match="cannot listen") as caught:
            await world.another().start("127.0.0.1", port, None, tmp_path / "theirs")
        assert "connect.port=PORT" in caught.value.remedy
        assert await second.start("127.0.0.1", port, None, tmp_path / "ours") == port
        await first.stop()
        world.port = port
        assert len(await world.answers("ExecutePlan", request())) == 1
        await second.stop()

    in_a_world(tmp_path, test)


# ------------------------------------------------------------------ named sessions

NAMED = (("session_name", "etl"),)


def a_view(name: str = "v", of: str = "SELECT 1") -> bytes:
    made = base_pb2.ExecutePlanRequest(session_id=SESSION)
    view = made.plan.command.create_dataframe_view
    view.name, view.input.sql.query = name, of
    return bytes(made.SerializeToString())


def a_query(observed: str | None = None) -> bytes:
    made = base_pb2.ExecutePlanRequest(session_id=SESSION, client_observed_server_side_session_id=observed)
    made.plan.root.sql.query = "SELECT * FROM v"
    return bytes(made.SerializeToString())


def a_setting(value: str = "UTC") -> bytes:
    made = base_pb2.ConfigRequest(session_id=SESSION)
    made.operation.set.pairs.add(key="zone", value=value)
    return bytes(made.SerializeToString())


def parsed(method: str, message: bytes) -> Any:
    served = base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"].methods_by_name
    return getattr(base_pb2, served[method.rpartition("/")[2]].input_type.name).FromString(message)


def sessions_of(world: World, since: int = 0) -> list[tuple[str, str]]:
    """The calls that Spark has got, with their session."""
    calls = [(method.rpartition("/")[2], messages) for method, _, messages in world.spark.calls[since:]]
    return [(method, parsed(method, messages[0]).session_id) for method, messages in calls]


def lose_driver(world: World) -> JobID:
    (job_id,) = [job_id for job_id, (_, status) in world.cluster.jobs.items() if status is JobStatus.RUNNING]
    world.cluster.become(job_id, JobStatus.FAILED)
    return job_id


def losing(world: World) -> Callable[[Any], Awaitable[None]]:
    """An answer of Spark's during which its driver is lost."""

    async def lost(context: Any) -> None:
        lose_driver(world)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    return lost


def record_of(world: World, user: str = "ada") -> Any:
    return RecordFiles(world.directory / "ha" / "records", 60.0).read(user, "etl")


def refusing(code: grpc.StatusCode, text: str) -> Callable[[Any], Awaitable[None]]:
    async def refuse(context: Any) -> None:
        await context.abort(code, text)

    return refuse


def test_a_named_session_is_rebuilt_before_the_next_call_is_passed_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("Config", a_setting(), metadata=NAMED)
        chunk = base_pb2.AddArtifactsRequest.ArtifactChunk(data=b"x" * 9)
        parts = [base_pb2.AddArtifactsRequest(session_id=SESSION) for _ in range(2)]
        begin = parts[0].begin_chunk
        begin.name, begin.total_bytes, begin.num_chunks = "pyfiles/a.py", 18, 2
        begin.initial_chunk.CopyFrom(chunk)
        parts[1].chunk.CopyFrom(chunk)
        await world.answers("AddArtifacts", *(part.SerializeToString() for part in parts), metadata=NAMED)
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        (before,) = await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        lost = lose_driver(world)
        shown = base_pb2.ExecutePlanResponse.FromString(before).server_side_session_id
        (after,) = await world.answers("ExecutePlan", a_query(shown), metadata=NAMED)

        first, second = (graph.session_id for graph, _ in world.cluster.jobs.values())
        methods = ["Config", "AddArtifacts", "ExecutePlan", "ExecutePlan"]
        assert sessions_of(world) == [(each, first) for each in methods] + [(each, second) for each in methods]
        assert len({SESSION, first, second, shown}) == 4
        again = world.spark.calls[5][2]
        assert [base_pb2.AddArtifactsRequest.FromString(each).chunk.data for each in again] == [b"", b"x" * 9]
        for method, metadata, messages in world.spark.calls:
            assert "session_name" not in dict(metadata)
            for each in messages:
                got = parsed(method, each)
                assert (got.user_context.user_id, got.client_observed_server_side_session_id) == ("ada", "")
        for answer in (before, after):
            seen = base_pb2.ExecutePlanResponse.FromString(answer)
            assert (seen.session_id, seen.server_side_session_id) == (SESSION, shown), "PySpark checks both"
        assert [action for _, action, _ in world.audited()] == ["connect/begin", "connect/rebuild", "connect/begin"]
        assert job_of("ada", first) == lost

    in_a_world(tmp_path, test)


def test_a_client_of_another_process_has_the_session_by_its_name(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        other = "ffffffff-4455-6677-8899-aabbccddeeff"
        for session in (SESSION, other):
            (answer,) = await world.answers("ExecutePlan", request(session), metadata=NAMED)
            assert base_pb2.ExecutePlanResponse.FromString(answer).session_id == session
        assert len(world.cluster.jobs) == 1
        await world.answers("ExecutePlan", request(), metadata=(("session_name", "other"),))
        assert len(world.cluster.jobs) == 2
        error = await world.refusal("ExecutePlan", request(), metadata=(("session_name", "../etl"),))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    in_a_world(tmp_path, test)


def test_a_short_call_keeps_a_named_session_alive(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        await world.cluster.beat.wait()
        assert world.cluster.heartbeats == list(world.cluster.jobs)
        lose_driver(world)
        world.cluster.beat.clear()
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        await world.cluster.beat.wait()
        assert world.cluster.heartbeats == list(world.cluster.jobs)

    in_a_world(tmp_path, test)


def test_a_record_that_cannot_be_touched_costs_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: RecordFiles, user: str, name: str) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(RecordFiles, "touch", fails)

    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        await asyncio.wait_for(asyncio.gather(*world.gateway._ending, return_exceptions=True), PATIENCE_S)
        assert len(world.cluster.heartbeats) == 1

    in_a_world(tmp_path, test)


def test_a_name_is_no_way_to_another_users_session(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        await world.answers("ExecutePlan", a_query(), user="bob", metadata=NAMED)
        assert [graph.owner for graph, _ in world.cluster.jobs.values()] == ["ada", "bob"]
        assert record_of(world, "bob").entries == ()
        await world.answers("ReleaseSession", request(), user="bob", metadata=NAMED)
        assert record_of(world, "bob") is None
        assert len(record_of(world).entries) == 1
        # Even if he knows the session's id on its driver.
        theirs = record_of(world).session_id
        await world.answers("ExecutePlan", request(theirs), user="bob")
        assert [graph.owner for graph, _ in world.cluster.jobs.values()] == ["ada", "bob", "bob"]

    in_a_world(tmp_path, test)


def test_a_call_that_spark_refuses_is_not_recorded(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, "TABLE_OR_VIEW_NOT_FOUND")
        assert "NOT_FOUND" in (await world.refusal("ExecutePlan", a_view(), metadata=NAMED)).details()
        assert record_of(world).entries == ()
        world.spark.answer = refusing(grpc.StatusCode.UNAVAILABLE, "connection reset")
        await world.refusal("ExecutePlan", a_view(), metadata=NAMED)
        assert [entry.is_certain for entry in record_of(world).entries] == [False], "it may have been done"

    in_a_world(tmp_path, test)


def test_a_call_without_room_in_the_record_does_not_reach_spark(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        error = await world.refusal("ExecutePlan", a_view(of="x" * MOST_RECORDED), metadata=NAMED)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "raise connect.session.most-recorded" in error.details()
        data = base_pb2.AddArtifactsRequest.ArtifactChunk(data=b"x" * MOST_RECORDED)
        part = base_pb2.AddArtifactsRequest(session_id=SESSION, chunk=data).SerializeToString()
        error = await world.refusal("AddArtifacts", *[part] * 5, metadata=NAMED)
        assert "no room for the artifact" in error.details()
        assert not world.spark.calls
        await world.answers("ExecutePlan", a_view(of="x" * MOST_RECORDED))  # an unnamed session records nothing

    in_a_world(tmp_path, test)


def test_what_cannot_be_repeated_is_named_with_the_remedy(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        lose_driver(world)
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, "PATH_NOT_FOUND: /data/sales.\nSQLSTATE: 42K03")
        error = await world.refusal("ExecutePlan", a_query(), metadata=NAMED)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == (
            "the named session etl cannot be rebuilt, because the temporary view v fails: PATH_NOT_FOUND: /data/sales; "
            "repair the cause and repeat the call, or end the session with spark.stop()"
        )
        assert JobStatus.RUNNING not in [status for _, status in world.cluster.jobs.values()], "no slot is held"
        world.spark.answer = None
        before = len(world.spark.calls)
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        assert len(sessions_of(world, before)) == 2, "the view and the query"

    in_a_world(tmp_path, test)


def test_what_may_never_have_been_done_may_fail_when_it_is_repeated(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.spark.answer = refusing(grpc.StatusCode.UNAVAILABLE, "connection reset")
        await world.refusal("ExecutePlan", a_view(), metadata=NAMED)
        lose_driver(world)
        answers = 0

        async def refuse_once(context: Any) -> None:
            nonlocal answers
            answers += 1
            if answers == 1:
                await context.abort(grpc.StatusCode.INTERNAL, "PARSE_SYNTAX_ERROR")

        world.spark.answer = refuse_once
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        assert answers == 2
        assert record_of(world).entries == ()

    in_a_world(tmp_path, test)


def test_an_operation_that_was_lost_says_so_and_is_not_begun_again(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)

        world.spark.answer = losing(world)
        for method in ("ExecutePlan", "ReattachExecute", "ReattachExecute"):
            error = await world.refusal(method, request(), metadata=NAMED)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "driver of the named session etl was lost during this operation" in error.details()
            details = dict(error.trailing_metadata())["grpc-status-details-bin"]
            assert not status_pb2.Status.FromString(details).details, "PySpark goes on with the session"
            world.spark.answer = None
            if method == "ReattachExecute":  # the driver of the rebuilt session does not know the operation
                await world.answers("ExecutePlan", request(), metadata=NAMED)
                text = "[INVALID_HANDLE.OPERATION_NOT_FOUND] The handle is invalid"
                world.spark.answer = refusing(grpc.StatusCode.INTERNAL, text)

    in_a_world(tmp_path, test)


@pytest.mark.parametrize(
    "text",
    [
        "[CONNECT_INVALID_PLAN.DATAFRAME_NOT_FOUND] The Spark Connect plan is invalid. No DataFrame with id 1 is found",
        "[CONNECT_INVALID_PLAN.STREAMING_QUERY_NOT_FOUND] The Spark Connect plan is invalid. Streaming query 2 is gone",
        "[CONNECT_ML.CACHE_INVALID] Generic Spark Connect ML error. Cannot retrieve Summary object 3",
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `global_temp`.`x` cannot be found",
    ],
)
def test_what_only_the_lost_driver_had_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    """Whoever calls after the loss learns of it, though the session works."""

    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, text)
        error = await world.refusal("ExecutePlan", request(), metadata=NAMED)
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, text), "this driver never had it"
        world.spark.answer = None
        lose_driver(world)
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, text)
        error = await world.refusal("ExecutePlan", request(), metadata=NAMED)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "named session etl has moved to another driver since its former one was lost" in error.details()
        assert f"make them again ({text})" in error.details()
        world.spark.answer = refusing(grpc.StatusCode.INTERNAL, "[TABLE_OR_VIEW_NOT_FOUND] The table `x`")
        error = await world.refusal("ExecutePlan", request(), metadata=NAMED)
        assert error.details() == "[TABLE_OR_VIEW_NOT_FOUND] The table `x`"
        world.spark.answer = None
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)

    in_a_world(tmp_path, test)


def test_a_query_without_an_answer_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)

        async def lost(context: Any) -> None:
            world.spark.answer = None
            await losing(world)(context)

        async def lost_after_an_answer(context: Any) -> None:
            await context.write(b"")
            await lost(context)

        world.spark.answer = lost
        assert len(await world.answers("ExecutePlan", a_query(), metadata=NAMED)) == 1
        assert [method for method, _ in sessions_of(world)] == ["ExecutePlan"] * 4, "view, query; and both again"
        world.spark.answer = lost_after_an_answer
        error = await world.refusal("ExecutePlan", a_query(), a_query(), metadata=NAMED)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION

        # Its TaskExecutor does not know yet that the driver is lost.
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        looked, look = list[bool](), named._listens

        async def listens(port: int) -> bool:
            looked.append(await look(port) and len(looked) != 1)
            if not looked[-1]:
                lose_driver(world)
                world.spark.answer = None
            return looked[-1]

        monkeypatch.setattr(named, "_listens", listens)
        world.spark.answer = refusing(grpc.StatusCode.UNAVAILABLE, "connection reset")
        assert len(await world.answers("ExecutePlan", a_query(), metadata=NAMED)) == 1
        assert looked == [True, False, True]

    in_a_world(tmp_path, test)


def test_a_query_that_loses_each_driver_is_not_repeated_for_ever(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        lost = list[JobID]()

        async def answer(context: Any) -> None:
            (message,) = world.spark.calls[-1][2]
            if parsed("ExecutePlan", message).plan.HasField("root") and len(lost) < 10:
                lost.append(lose_driver(world))
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            await context.write(message)

        world.spark.answer = answer
        error = await world.refusal("ExecutePlan", a_query(), metadata=NAMED)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert len(set(lost)) == 3
        assert error.details() == (
            "3 Spark drivers of the named session etl were lost in turn during this query: it may take "
            f"more memory than a driver has; `understudy job info {lost[-1]}` says how the last one ended"
        )
        lost += [lost[-1]] * 10
        assert len(await world.answers("ExecutePlan", a_query(), metadata=NAMED)) == 1, "the session can be used"

    in_a_world(tmp_path, test)


def test_pyspark_repeats_by_itself_what_is_no_operation(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)

        world.spark.answer = losing(world)
        error = await world.refusal("AnalyzePlan", request(), metadata=NAMED)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        world.spark.answer = None
        assert len(await world.answers("AnalyzePlan", request(), metadata=NAMED)) == 1

    in_a_world(tmp_path, test)


def test_a_driver_that_is_dead_already_gets_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        looked, look = asyncio.Event(), named._listens

        async def listens(port: int) -> bool:
            answer = await look(port)
            looked.set()
            return answer

        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        with socket.create_server(("127.0.0.1", 0)) as free:
            dead = free.getsockname()[1]
        alive, world.spark.port = world.spark.port, dead  # its TaskExecutor does not know of it yet
        monkeypatch.setattr(named, "_listens", listens)
        waiting = asyncio.create_task(world.answers("ExecutePlan", a_view("w"), metadata=NAMED))
        looking = asyncio.create_task(looked.wait())
        await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
        assert not waiting.done()
        assert len(world.spark.calls) == 1
        lose_driver(world)
        world.spark.port = alive
        assert len(await waiting) == 1

    in_a_world(tmp_path, test)


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.FINISHED])
def test_a_named_session_that_somebody_has_ended_leaves_no_record(tmp_path: Path, status: JobStatus) -> None:
    async def test(world: World) -> None:
        (answer,) = await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        shown = base_pb2.ExecutePlanResponse.FromString(answer).server_side_session_id
        (job_id,) = world.cluster.jobs
        world.cluster.become(job_id, status)
        error = await world.refusal("ExecutePlan", a_query(shown), metadata=NAMED)
        assert f"is {status.value}" in error.details()
        assert record_of(world) is None
        error = await world.refusal("ExecutePlan", a_query(shown), metadata=NAMED)
        assert "the named session etl has ended" in error.details()
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        info = error_details_pb2.ErrorInfo()
        assert status_pb2.Status.FromString(details).details[0].Unpack(info)
        assert info.metadata["errorClass"] == "INVALID_HANDLE.SESSION_CHANGED", "getOrCreate() makes a new client"
        assert len(await world.answers("ExecutePlan", a_query(), metadata=NAMED)) == 1
        assert record_of(world).entries == ()

    in_a_world(tmp_path, test)


def test_a_released_named_session_leaves_no_record(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for how in ("open", "lost", "damaged", "never begun"):
            if how != "never begun":
                await world.answers("ExecutePlan", a_view(), metadata=NAMED)
            if how == "lost":
                lose_driver(world)
            if how == "damaged":
                (file,) = (tmp_path / "ha" / "records").rglob("record.json")
                file.write_text("{")
                assert (
                    "spark.stop() removes it"
                    in (await world.refusal("ExecutePlan", a_query(), metadata=NAMED)).details()
                )
            (answer,) = await world.answers("ReleaseSession", request(), metadata=NAMED)
            assert base_pb2.ReleaseSessionResponse.FromString(answer).session_id == SESSION
            assert [path.name for path in (tmp_path / "ha" / "records").iterdir()] == ["lock"], how

    in_a_world(tmp_path, test)


def test_a_rebuild_that_its_gateway_did_not_finish_is_begun_once_more(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        lose_driver(world)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def hang(context: Any) -> None:
            began.set()
            await go_on.wait()

        world.spark.answer = hang
        call, channel = world.call("ExecutePlan", a_query(), metadata=NAMED)
        await began.wait()
        assert record_of(world).stage is Stage.REPLAYING
        await world.gateway.stop()
        await channel.close()
        call.cancel()
        world.spark.answer = None
        go_on.set()
        other = world.another()
        world.port = await other.start("127.0.0.1", 0, None, tmp_path)
        before = len(world.spark.calls)
        assert len(await world.answers("ExecutePlan", a_query(), metadata=NAMED)) == 1
        assert len(set(sessions_of(world, before))) == 1
        assert [status for _, status in world.cluster.jobs.values()] == [
            JobStatus.FAILED,
            JobStatus.CANCELED,
            JobStatus.RUNNING,
        ]
        await other.stop()

    in_a_world(tmp_path, test)


def test_calls_at_once_through_two_gateways_rebuild_a_session_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.answers("ExecutePlan", a_view(), metadata=NAMED)
        lose_driver(world)
        other = world.another()
        ports = [world.port, await other.start("127.0.0.1", 0, None, tmp_path)]
        calls = []
        for number in range(6):
            world.port = ports[number % 2]
            calls.append(asyncio.create_task(world.answers("ExecutePlan", a_query(), metadata=NAMED)))
            await asyncio.sleep(0)  # until it has read the port
        await asyncio.gather(*calls)
        assert len(world.cluster.jobs) == 2
        assert len(world.spark.calls) == 1 + 1 + 6
        await other.stop()

    in_a_world(tmp_path, test)


def test_an_interrupted_first_call_keeps_its_place_for_the_next_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.cluster.starts_as = JobStatus.CREATED
        call, channel = world.call("ExecutePlan", a_query(), metadata=NAMED)
        while not world.cluster.jobs:
            await world.cluster.looks.wait()
            world.cluster.looks.clear()
        call.cancel()
        await channel.close()
        (job_id,) = world.cluster.jobs
        world.cluster.become(job_id, JobStatus.RUNNING)
        await world.answers("ExecutePlan", a_query(), metadata=NAMED)
        assert list(world.cluster.jobs) == [job_id]

    in_a_world(tmp_path, test)
