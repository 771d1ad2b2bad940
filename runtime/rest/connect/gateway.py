"""The gRPC server for Spark Connect clients: identifies the user, finds or begins the session, and passes calls on.

It keeps nothing that cannot be found again, so the web endpoint of any master serves any session. Records of named
sessions are in files that all masters share. Messages are passed on as they came, with the user's name
appended (`requests`). The token is checked before the first message is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from actors.errors import ActorError, why_unreachable
from conf.options import ConnectOptions
from runtime.errors import PreflightError
from runtime.ids import JobID, ResourceID
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.errors import (
    GatewayError,
    JobNotFoundError,
    JobNotReachableError,
    JobSubmissionError,
    NoSuchSessionError,
    SubmissionLimitError,
    UnknownTaskExecutorError,
)
from runtime.protocol.session import SessionAddress, own_network
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.authorization import KnownIdentities
from runtime.rest.backend import ClusterBackend
from runtime.rest.connect.calls import Call, Caller, CallRefusedError, name_of
from runtime.rest.connect.channels import Channels
from runtime.rest.connect.named import NamedSessions, lost_during, lost_each_time
from runtime.rest.connect.record import ADD_ARTIFACTS, NAME_KEY, Entry, RecordError, SessionRecord, is_query
from runtime.rest.connect.record_files import RecordFiles
from runtime.rest.connect.reports import Metadata, Report, Reports
from runtime.rest.connect.requests import (
    InvalidRequestError,
    as_of,
    in_the_name_of,
    is_complete,
    observed_by,
    released_by,
    session_id_of,
    session_released,
    unobserved,
)
from runtime.rest.connect.sessions import (
    METHODS,
    RELEASE,
    REPORT,
    SERVICE,
    Beats,
    Begin,
    Over,
    Reach,
    Wait,
    next_step,
    session_graph,
)
from runtime.users.audit import AuditEntry, AuditLog, Floods, changed_nothing, outcome_of
from runtime.users.identities import Principal
from runtime.users.roles import SPARK_CONNECT, may, refusal

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.03, 0.5
"""Seconds between two looks at a job that does not run yet; each pause is half as long again as the one before."""
ATTEND_S = 5.0
"""Seconds between two checks of an open call: whether its token is still valid, and whether a heartbeat is due."""
FIRST_MESSAGE_S = 60.0
"""Longest wait for the first message of a call; PySpark sends it at once."""
END_S = 5.0
"""Longest wait for the reason why a session has ended, after a call to it has failed."""
ASK_S = 10.0
REPLAY_S = 120.0
"""Longest time for one recorded call of a named session that is repeated on another driver."""
STOP_S = 1.0
MOST_REPEATS = 2
"""How often a query of a named session is repeated whose driver is lost: it may be the query that ends the drivers."""
MOST_CALLS = 1000
MOST_CONNECTIONS = 1024
"""Limit of open connections, so that peers without a token cannot take the descriptors of the web endpoint."""
IDLE_MS, HANDSHAKE_MS = 10_000, 10_000
"""Milliseconds after which a connection without calls is closed, and one whose handshake does not end.

A client connects again for its next call. A short limit leaves peers without a token less of `MOST_CONNECTIONS`.
"""
PING_MS = 10_000
"""Shortest time between two pings of a client that sends no data; PySpark pings each 60 s.

gRPC's own limit is 5 minutes: it closes the connection of a client that waits for its answer for some minutes.
"""
LONGEST_SILENCE_MS = 7_200_000
"""Longest time without a sign of a client with an open call, after which the gateway pings it: gRPC's own limit.

A shorter idle time-out of sessions shortens it: the open call of a client that is gone keeps its session alive.
"""
PONG_MS = 60_000
"""Longest wait for the answer to that ping."""
MOST_MESSAGE = 128 << 20
"""Largest message of a client, in bytes: the limit of Spark's own Connect server."""
MOST_KNOWN = 4096
_PRIVATE = frozenset({"authorization", "user-agent", "te", "content-type", NAME_KEY})
_CLOSED = "INVALID_HANDLE.SESSION_CHANGED"
"""Spark's error class upon which PySpark's `getOrCreate` makes a new session."""
_NOTHING_KEPT = ("[INVALID_HANDLE.SESSION_CLOSED]", "[INVALID_HANDLE.SESSION_NOT_FOUND]")
"""Begin of Spark's answer to a report about a session that has ended: Spark keeps no answer of such a session."""
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class ConnectGateway:
    """The gateway of one web endpoint.

    Args:
        backend: the cluster.
        identities: users and their tokens.
        policy: the access rules of the web endpoint.
        idle_timeout_s: seconds without a call of its client after which a session is cancelled.
        audit: gets a line for each session that begins or is released, and for each refusal.
        records: of named sessions.
        most_recorded: limit of the record of a named session, in bytes.
    """

    def __init__(
        self,
        backend: ClusterBackend,
        identities: KnownIdentities,
        policy: AccessPolicy,
        idle_timeout_s: float,
        audit: AuditLog,
        records: RecordFiles,
        most_recorded: int,
    ) -> None:
        self._backend = backend
        self._identities = identities
        self._policy = policy
        self._idle_timeout_s = idle_timeout_s
        self._audit = audit
        self._floods = Floods()
        self._beats = Beats(idle_timeout_s)
        self._channels = Channels()
        self._executors: dict[JobID, TaskExecutorGateway] = {}
        self._named = NamedSessions(records, most_recorded, self._reach, self._replay, self._cancel, self._record)
        self._reports = Reports(self._report)
        self._network = own_network()
        self._ending = set[asyncio.Task[None]]()
        self._open: dict[asyncio.Task[Any], Call] = {}
        self._attendant: asyncio.Task[None] | None = None
        self._server: Any = None
        self._lock: int | None = None

    async def start(self, host: str, port: int, tls: tuple[Path, Path] | None, directory: Path) -> int:
        """Begin to serve; return the port.

        Args:
            host: the address to listen on.
            port: to listen on; 0 for a free one.
            tls: certificate and key; None for no TLS.
            directory: private, shared by the masters of the cluster on this machine.

        Raises:
            PreflightError: the port cannot be used.
        """
        if port:
            self._lock = share_port(host, port, directory)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MOST_MESSAGE),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", min(LONGEST_SILENCE_MS, int(self._idle_timeout_s * 1000))),
                ("grpc.http2.ping_timeout_ms", PONG_MS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
                ("grpc.so_reuseport", 1),
            ],
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        self._server.add_generic_rpc_handlers((_Handlers(self._serve),))
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                bound: int = self._server.add_insecure_port(where)
            else:
                certificate, key = (path.read_bytes() for path in tls)
                bound = self._server.add_secure_port(where, grpc.ssl_server_credentials([(key, certificate)]))
        except RuntimeError:
            raise _unusable(host, port, "gRPC cannot listen there") from None
        await self._server.start()
        self._attendant = asyncio.create_task(self._attend(), name="connect-calls")
        self._named.start()
        return bound

    async def stop(self) -> None:
        """End the open calls, whose clients connect again, and stop serving."""
        if self._server is not None:
            await self._server.stop(STOP_S)
        if self._attendant is not None:
            self._attendant.cancel()
            await asyncio.gather(self._attendant, return_exceptions=True)
        await self._reports.stop()
        await self._named.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._channels.close()
        if self._lock is not None:
            os.close(self._lock)

    # ------------------------------------------------------------------ one call

    async def _serve(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await self._answer(method, requests, context)
        except CallRefusedError as error:
            await _abort(context, error)
        except (ActorError, JobNotReachableError) as error:  # the client repeats the call
            await _abort(context, CallRefusedError(503, f"the cluster does not answer at present: {error}"))
        except (GatewayError, RecordError) as error:
            await _abort(context, CallRefusedError(409, str(error)))
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception:  # a defect of ours; the client gets one line, and the log the rest
            number = secrets.token_hex(4)
            logger.exception("%s failed (%s)", method, number)
            text = f"the gateway failed to answer; its log says more under {number}"
            await _abort(context, CallRefusedError(500, text))

    async def _answer(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        caller = await self._identify(context)
        if method not in METHODS:
            raise CallRefusedError(501, f"{method} is not passed on to Spark: begin another session instead")
        call = Call(caller, method, name=name_of(context.invocation_metadata()))
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = call
        try:
            first = await self._first(call, requests)
            if method == REPORT:
                await self._acknowledge(call, first, context)
                return
            if method == ADD_ARTIFACTS:
                requests = _to_their_end(requests, context)
            if call.name:
                repeats = 0
                while not await self._answer_named(call, first, requests, context, repeats):
                    repeats += 1
                    requests = _each(())  # they are read already
                return
            address = await self._reach(call, method)
            if address is None:
                await context.write(session_released(call.client_id))
                return
            await self._pass_on(call, (first, requests), address, context)
        except asyncio.CancelledError:
            if call.refused is not None:
                raise CallRefusedError(call.refused.status, call.refused.message) from None
            raise
        finally:
            del self._open[task]

    async def _first(self, call: Call, requests: AsyncIterator[bytes]) -> bytes:
        """Return the first message of a call, and note its session.

        Raises:
            CallRefusedError: it names no session or did not come in time, or the token became invalid before it came.
        """
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                first = await anext(requests)
            session_id = session_id_of(first)
        except TimeoutError:
            raise CallRefusedError(408, f"the request did not come within {FIRST_MESSAGE_S:g} s") from None
        except (StopAsyncIteration, InvalidRequestError) as error:
            raise CallRefusedError(400, str(error) or "the call has no request") from None
        refused = await self._identities.confirm_or_refuse(call.caller.principal)
        if refused is not None:
            raise CallRefusedError(refused.status, refused.message)
        call.begin(session_id)
        if not call.name:  # that of a named session is not found yet
            self._keep_alive(call)
        return first

    async def _answer_named(
        self, call: Call, first: bytes, requests: AsyncIterator[bytes], context: Any, repeats: int
    ) -> bool:
        """Answer a call of a named session; return False if it has to be repeated, because its driver was lost.

        Args:
            call: to answer.
            first: its first message.
            requests: the others.
            context: of the call.
            repeats: how often it was repeated already.
        """
        record, address = await self._named.reach(call, observed_by(call.method, first))
        if record is None or address is None:
            await context.write(session_released(call.client_id))
            return True
        self._keep_alive(call)
        messages = [first]
        if call.method == ADD_ARTIFACTS:  # the only changes that come in several messages
            size = len(first)
            async for message in requests:
                messages.append(message)
                size += len(message)
                if size > 2 * self._named.most_recorded:  # more than any record may have, and a margin for the rest
                    break
        entry = await self._named.note(call, record, messages)
        further = _each(messages[1:]) if call.method == ADD_ARTIFACTS else requests
        try:
            await self._pass_on(call, (first, further), address, context, record, entry)
        except CallRefusedError as error:
            if error.is_lost and not call.is_answered and is_query(call.method, first):
                if repeats < MOST_REPEATS:
                    return False
                raise lost_each_time(call, repeats + 1) from None
            raise
        return True

    async def _identify(self, context: Any) -> Caller:
        metadata = context.invocation_metadata() or ()
        shown = [value for key, value in metadata if key == "authorization"]
        authorization = shown[0].encode() if len(shown) == 1 and isinstance(shown[0], str) else b""
        verdict = self._policy.identify(authorization)
        if not isinstance(verdict, Principal | Refusal):
            verdict = await self._identities.identify_or_refuse(verdict.token)
        source = context.peer() or ""
        if isinstance(verdict, Refusal):
            self._audited(None, source, "identify", "", verdict.status, verdict.detail or verdict.message)
            hint = "; in a URL: sc://HOST:PORT/;token=TOKEN" if verdict.status == 401 else ""
            raise CallRefusedError(verdict.status, verdict.message + hint)
        if not may(verdict, SPARK_CONNECT):
            text = refusal(verdict, SPARK_CONNECT, "a Spark Connect session")
            self._audited(verdict, source, "session", "", 403, text)
            raise CallRefusedError(403, text)
        return Caller(verdict, source)

    async def _attend(self) -> None:
        """Keep the sessions of open calls alive, and end the calls whose token cannot be confirmed any more."""
        while True:
            await asyncio.sleep(min(ATTEND_S, self._beats.interval_s))
            calls = list(self._open.items())
            for _, call in calls:
                if call.session_id:
                    self._keep_alive(call)
            # At once, since they share one look into the store, and one that gets no answer takes its time.
            refusals = await asyncio.gather(*(self._confirm(call.caller.principal) for _, call in calls))
            for (task, call), refused in zip(calls, refusals, strict=True):
                call.refused = refused
                if refused is not None and task in self._open:
                    task.cancel()

    async def _confirm(self, principal: Principal) -> Refusal | None:
        try:
            return await self._identities.confirm_or_refuse(principal)
        except Exception:  # a defect of ours; further calls have to be attended to
            logger.exception("a token cannot be confirmed")
            return Refusal(500, "the token cannot be confirmed")

    def _keep_alive(self, call: Call) -> None:
        if self._beats.is_due(call.job_id, time.monotonic()):
            self._later(self._beat(call))

    async def _beat(self, call: Call) -> None:
        job_id = call.job_id
        if call.name:
            try:
                await self._named.touch(call)
            except OSError as error:
                logger.warning("the named session %s may end although it is in use: %s", call.name, error)
        try:
            await self._backend.ask(lambda dispatcher: dispatcher.report_job_client_heartbeat(job_id))
        except (ActorError, GatewayError) as error:
            logger.warning("session job %s: its heartbeat was lost: %s", job_id, error)

    # ------------------------------------------------------------------ the session

    async def _reach(self, call: Call, method: str, *, is_begun: bool = False) -> SessionAddress | None:
        """Return where a session is open; begin it, and wait for its slot, if the method does.

        Args:
            call: for which the session is needed.
            method: of the call, or that of another one that begins a session.
            is_begun: as for `next_step`.

        Returns:
            None if the method releases the session and it is not open.

        Raises:
            CallRefusedError: the session has ended, or cannot begin.
        """
        job_id, pause_s = call.job_id, FIRST_PAUSE_S
        while True:
            found = await self._open_at(job_id)
            if found is not None:
                return found
            step = next_step(await self._job(job_id), call.user, method, is_begun=is_begun)
            match step:
                case Begin():
                    await self._begin(call)
                case Reach(name):
                    with contextlib.suppress(UnknownTaskExecutorError):  # it has just been lost, or registers again
                        self._know(job_id, await self._backend.task_executor(ResourceID(name), ASK_S))
                        if (found := await self._open_at(job_id)) is not None:
                            return found
                case Over() if method == RELEASE:
                    return None
                case Over(reason, is_lost):
                    raise CallRefusedError(409, reason, is_over=True, is_lost=is_lost)
                case Wait() if method == RELEASE:
                    await self._cancel(job_id)
                    self._record(call.caller, "release", job_id, 200)
                    return None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)

    async def _cancel(self, job_id: JobID) -> None:
        with contextlib.suppress(JobNotFoundError):
            await self._backend.cancel(job_id)

    def _know(self, job_id: JobID, executor: TaskExecutorGateway) -> None:
        while len(self._executors) >= MOST_KNOWN:
            del self._executors[next(iter(self._executors))]
        self._executors[job_id] = executor

    async def _open_at(self, job_id: JobID) -> SessionAddress | None:
        """Return where the session of a job is open, if its TaskExecutor is known and says so.

        Raises:
            CallRefusedError: it is open where this gateway does not reach it.
        """
        executor = self._executors.get(job_id)
        if executor is None:
            return None
        try:
            address = await executor.request_session(job_id)
        except (NoSuchSessionError, ActorError):
            self._executors.pop(job_id, None)
            return None
        if address.network != self._network:
            raise CallRefusedError(
                409,
                f"the Spark driver of the session (job {job_id}) is on another machine than this gateway: connect to "
                "a master there",
            )
        return address

    async def _job(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        try:
            return await self._backend.job(job_id)
        except JobNotFoundError:
            return None

    async def _begin(self, call: Call) -> None:
        graph = session_graph(call.user, call.session_id, time.time_ns() // 1_000_000, self._idle_timeout_s)
        try:
            await self._backend.submit_graph(graph)
        except JobSubmissionError as error:
            status = 429 if isinstance(error, SubmissionLimitError) else 409
            self._record(call.caller, "begin", graph.job_id, status, str(error))
            raise CallRefusedError(status, f"the session cannot begin: {error}") from None
        self._record(call.caller, "begin", graph.job_id, 200)
        logger.info("job %s is a session of %s", graph.job_id, call.caller.principal.shown)

    async def _pass_on(
        self,
        call: Call,
        requests: tuple[bytes, AsyncIterator[bytes]],
        address: SessionAddress,
        context: Any,
        record: SessionRecord | None = None,
        entry: Entry | None = None,
    ) -> None:
        """Pass a call on to its driver, and the answers back.

        Args:
            call: to pass on.
            requests: the first one, and the others.
            address: of its session.
            context: of the call.
            record: of a named session.
            entry: of this call in the record; its client gets no answer before the entry is certain.
        """
        first, further = requests
        path, timeout_s = f"/{SERVICE}/{call.method}", context.time_remaining()
        metadata = (*_passing(context.invocation_metadata()), ("authorization", f"Bearer {address.token}"))
        held = list[bytes]()
        async with self._channels.use(address) as channel:
            if call.method == ADD_ARTIFACTS:
                spark = channel.stream_stream(path)(metadata=metadata, timeout=timeout_s)
            else:  # one request: its end goes along with it
                spark = channel.unary_stream(path)(
                    _for_spark(call, first, address), metadata=metadata, timeout=timeout_s
                )
            try:
                if call.method == ADD_ARTIFACTS:
                    await self._send(spark, call, first, further, address)
                async for message in spark:
                    if call.method == RELEASE:  # the client may be gone once it has the answer
                        await self._released(call)
                    answer = message
                    if record is not None:
                        answer = as_of(call.method, message, call.client_id, record.shown_id)
                    if entry is None:
                        call.is_answered = True
                        await context.write(answer)
                    else:
                        held.append(answer)
                context.set_trailing_metadata(tuple(await spark.trailing_metadata() or ()))
                if entry is not None and is_complete(first, held):
                    await self._named.certain(call, entry)
                for answer in held:
                    await context.write(answer)
            except grpc.aio.AioRpcError as error:
                await self._raise_if_over(call)
                if record is not None:
                    await self._named.failed(call, record, entry, error, address.port)
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
                await context.abort(error.code(), error.details() or "")
            finally:
                spark.cancel()

    async def _send(
        self, spark: Any, call: Call, first: bytes, further: AsyncIterator[bytes], address: SessionAddress
    ) -> None:
        """Send the requests of a call; returns early if the call has ended, which its answer then shows."""

        async def each() -> AsyncIterator[bytes]:
            yield _for_spark(call, first, address)
            async for message in further:
                try:
                    other = session_id_of(message)
                except InvalidRequestError as error:
                    raise CallRefusedError(400, str(error)) from None
                if other != call.client_id:
                    raise CallRefusedError(400, "the requests of one call name two sessions")
                yield _for_spark(call, message, address)

        await _write(spark, each())

    async def _acknowledge(self, call: Call, message: bytes, context: Any) -> None:
        try:
            released = released_by(message)
        except InvalidRequestError as error:
            raise CallRefusedError(400, str(error)) from None
        await self._reports.take(Report(call, message, released, _passing(context.invocation_metadata())))
        await context.write(released.answer)

    async def _report(self, report: Report) -> None:
        """Pass a report on; its client has its answer already, and Spark can do without the report."""
        call, job_id = report.call, report.call.job_id
        try:
            async with asyncio.timeout(ASK_S):
                if call.name and not await self._named.find(call):
                    return
                job_id = call.job_id
                address = await self._reach(call, call.method, is_begun=True)
                if address is None:
                    return
                metadata = (*report.metadata, ("authorization", f"Bearer {address.token}"))
                async with self._channels.use(address) as channel:
                    release = channel.unary_unary(f"/{SERVICE}/{call.method}")
                    await release(_for_spark(call, report.message, address), metadata=metadata)
        except CallRefusedError:
            pass  # the session has ended, and all of its answers with it
        except (ActorError, GatewayError, RecordError, OSError, grpc.aio.AioRpcError) as error:  # also the time-out
            why = str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)
            if why.startswith(_NOTHING_KEPT):
                return  # its client has stopped the session since it sent the report
            logger.info("session job %s: its driver keeps an answer that was read, until it expires: %s", job_id, why)
        except Exception:  # a defect of ours, in a task that no call waits for
            logger.exception("session job %s: a report of what its client has read is lost", job_id)

    async def _replay(self, address: SessionAddress, method: str, messages: Sequence[bytes]) -> None:
        """Repeat a recorded call in the session at *address*; raises `grpc.aio.AioRpcError`."""
        metadata = (("authorization", f"Bearer {address.token}"),)
        async with self._channels.use(address) as channel:
            spark = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=metadata, timeout=REPLAY_S)
            try:
                named = [in_the_name_of(message, address.session_id, address.user_id) for message in messages]
                await _write(spark, _each(named))
                async for _ in spark:
                    pass
            finally:
                spark.cancel()

    async def _released(self, call: Call) -> None:
        """Let the job of a released session finish, even if the client vanishes during this time."""
        await asyncio.shield(self._later(self._end(call)))

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something that the end of the call does not cancel."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _end(self, call: Call) -> None:
        job_id = call.job_id
        self._record(call.caller, "release", job_id, 200)
        if call.name:
            await self._named.remove(call)
        executor = self._executors.pop(job_id, None)
        if executor is not None:
            try:
                await executor.end_session(job_id)
                return
            except ActorError as error:
                logger.warning("session job %s: its TaskExecutor does not answer: %s", job_id, error)
        try:  # or it would hold its slot until the idle time-out
            await self._cancel(job_id)
        except (ActorError, GatewayError) as error:  # perhaps because it has ended
            logger.warning("session job %s cannot be cancelled: %s", job_id, error)

    async def _raise_if_over(self, call: Call) -> None:
        """Raise the reason, after a call has failed, if that is because its session has ended."""
        job_id, deadline = call.job_id, time.monotonic() + END_S
        while await self._open_at(job_id) is None and time.monotonic() < deadline:
            step = next_step(await self._job(job_id), call.user, call.method, is_begun=bool(call.name))
            if isinstance(step, Over) and step.is_lost and call.name:
                raise lost_during(call)
            if isinstance(step, Over):
                raise CallRefusedError(409, step.reason, is_over=True)
            if isinstance(step, Reach):
                with contextlib.suppress(UnknownTaskExecutorError):
                    self._know(job_id, await self._backend.task_executor(ResourceID(step.task_executor), ASK_S))
            await asyncio.sleep(FIRST_PAUSE_S)

    def _record(self, caller: Caller, action: str, target: str, status: int, reason: str = "") -> None:
        self._audited(caller.principal, caller.source, action, target, status, reason)

    def _audited(
        self, principal: Principal | None, source: str, action: str, target: str, status: int, reason: str = ""
    ) -> None:
        at_ms, suppressed = time.time_ns() // 1_000_000, 0
        if principal is None or changed_nothing(status):
            admitted = self._floods.admit(None if principal is None else principal.name, at_ms)
            if admitted is None:
                return
            suppressed = admitted
        known = ("", "", "") if principal is None else (principal.name, principal.role.value, principal.token_id)
        entry = AuditEntry(
            at_ms, *known, f"connect/{action}", target, source, outcome_of(status), status, reason, suppressed
        )
        try:
            self._audit.write(entry)
        except OSError as error:
            logger.error("the audit log misses connect/%s of %s: %s", action, source, error)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves every method of the service as a stream of bytes in both directions."""

    def __init__(self, serve: Callable[[str, AsyncIterator[bytes], Any], Awaitable[None]]) -> None:
        self._serve = serve

    def service(self, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != SERVICE:
            return None
        return grpc.stream_stream_rpc_method_handler(functools.partial(self._serve, method))


def _for_spark(call: Call, message: bytes, address: SessionAddress) -> bytes:
    """Return a request as one of the session at *address*, in its user's name."""
    sent = unobserved(call.method, message) if call.name else message
    return in_the_name_of(sent, address.session_id, address.user_id)


async def _to_their_end(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Yield the requests of a client; a client that hangs up is not an end of them, but cancels the call.

    gRPC ends the requests in both cases, and cancels the call a moment later. It has done so before it answers a
    further read.
    """
    async for message in requests:
        yield message
    await context.read()


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def _write(spark: Any, messages: AsyncIterator[bytes]) -> None:
    """Send the requests of a call; returns early if Spark has ended the call.

    This does not call `write` of grpc.aio (1.85). If Spark refuses the call at the same moment, `write` replaces
    Spark's status by INTERNAL, "Internal error from Core".

    Raises:
        grpc.aio.AioRpcError: Spark cannot be reached, or has refused the call before its first request.
    """
    await spark.wait_for_connection()
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.InternalError):
        async for message in messages:
            if spark.done():
                return
            await spark._cython_call.send_serialized_message(message)
        await spark.done_writing()


def _passing(metadata: Any) -> Metadata:
    """Return what the client has sent for Spark: neither its token, nor what belongs to its connection."""
    shown = ((key, value) for key, value in metadata or () if key not in _PRIVATE)
    return tuple((key, value) for key, value in shown if not key.startswith(("grpc-", ":")))


async def _abort(context: Any, error: CallRefusedError) -> None:
    """End a call with a status that PySpark shows as one line, and not as a dump of the gRPC call."""
    code, details = _CODES[error.status], list[Any]()
    if error.is_over:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason="understudy", metadata=_over()))
        details.append(packed)
    status = status_pb2.Status(code=code.value[0], message=str(error), details=details)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, str(error))


def _over() -> Mapping[str, str]:
    return {"errorClass": _CLOSED, "classes": "[]"}


def share_port(host: str, port: int, directory: Path) -> int:
    """Check that nothing but a gateway of this cluster listens on a port; return the descriptor of a shared lock.

    All gateways of a cluster on one machine listen on one port (SO_REUSEPORT), and the kernel distributes connections
    among those that live. The lock tells them from those of another cluster of the same user.

    Args:
        host: the address.
        port: the port.
        directory: shared by the masters of the cluster on this machine.

    Raises:
        PreflightError: the port is in use, or cannot be used.
    """
    lock = os.open(directory / f"connect-{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        problem = _problem_with(host, port)
        if problem:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = ""  # a gateway of this cluster holds it
        if problem:
            raise _unusable(host, port, problem)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _problem_with(host: str, port: int) -> str:
    """Return why this process cannot have a port for itself; empty if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except (OSError, UnicodeError) as error:
        return why_unreachable(error)
    return ""


def _unusable(host: str, port: int, problem: str) -> PreflightError:
    return PreflightError(
        f"the gateway for Spark Connect cannot listen on {host}:{port}: {problem}",
        f"choose another port with -D {ConnectOptions.PORT.key}=PORT (0: a free one), or leave the gateway out with "
        f"-D {ConnectOptions.ENABLED.key}=false",
    )
