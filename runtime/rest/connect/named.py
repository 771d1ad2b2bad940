"""Named sessions: found by user and name, recorded while they change, and rebuilt on another driver by their record.

`record` decides what is recorded. A session is rebuilt under a lock that all masters share, so only once for each lost
driver. A master that dies meanwhile leaves a record that is not ready, whose session the next call begins once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc

from runtime.ids import JobID
from runtime.protocol.session import SessionAddress
from runtime.rest.connect.calls import Call, Caller, CallRefusedError
from runtime.rest.connect.record import (
    Entry,
    RecordError,
    SessionRecord,
    Stage,
    change_of,
    messages_in,
)
from runtime.rest.connect.record_files import RecordFiles
from runtime.rest.connect.requests import InvalidRequestError
from runtime.rest.connect.sessions import BEGINNING, RELEASE

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.03, 0.5
_BEGIN = "ExecutePlan"
"""A method that begins a session."""
_REPEATED = BEGINNING - {_BEGIN}
"""Methods of calls that PySpark may repeat by itself, whatever they have done before their driver was lost."""
_UNKNOWN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
_UNKNOWN |= {grpc.StatusCode.UNKNOWN}
"""Statuses after which a call may have taken effect."""
_GONE = re.compile(
    r"\[CONNECT_INVALID_PLAN\.(?:DATAFRAME|STREAMING_QUERY)_NOT_FOUND\]|\[CONNECT_ML\.CACHE_INVALID\]"
    r"|\[TABLE_OR_VIEW_NOT_FOUND\].*\bglobal_temp\b",
    re.DOTALL,
)
"""Errors of Spark for what a driver holds and no record has."""
_CAUSE = 300
_DYING_S = 1.0


class Reach(Protocol):
    """`ConnectGateway._reach`."""

    def __call__(self, call: Call, method: str, *, is_begun: bool = False) -> Awaitable[SessionAddress | None]:
        """Return where the session of a call is open."""


Replay = Callable[[SessionAddress, str, Sequence[bytes]], Awaitable[None]]
Audit = Callable[[Caller, str, str, int], None]


def lost_during(call: Call) -> CallRefusedError:
    """Return the refusal of a call during which the driver of its named session was lost."""
    if call.method in _REPEATED:
        return CallRefusedError(503, f"the Spark driver of the named session {call.name} was lost: repeat the call")
    return CallRefusedError(
        409,
        f"the Spark driver of the named session {call.name} was lost during this operation, which may have taken "
        "effect in part: check, and run it again; the next call finds settings, temporary views, artifacts and "
        "functions again, but no cached data and no streaming queries",
        is_lost=True,
    )


def lost_each_time(call: Call, drivers: int) -> CallRefusedError:
    """Return the refusal of a query that was repeated, and whose driver was lost each time."""
    return CallRefusedError(
        409,
        f"{drivers} Spark drivers of the named session {call.name} were lost in turn during this query: it "
        f"may take more memory than a driver has; `understudy job info {call.job_id}` says how the last one ended",
        is_lost=True,
    )


def gone(call: Call, details: str) -> CallRefusedError:
    """Return the refusal of a call for what only a former driver of its named session had; *details* are Spark's."""
    return CallRefusedError(
        409,
        f"the named session {call.name} has moved to another driver since its former one was lost; checkpointed "
        "DataFrames, models, streaming queries and global temporary views are gone: make them again "
        f"({_line(details)})",
    )


class NamedSessions:
    """The named sessions that a gateway serves.

    Args:
        files: the records.
        most_recorded: limit of a record, in bytes.
        reach: returns where the session of a call is open, and begins it.
        replay: repeats a call in a session.
        cancel: cancels a job, if there is one.
        audit: writes a line to the audit log.
    """

    def __init__(
        self,
        files: RecordFiles,
        most_recorded: int,
        reach: Reach,
        replay: Replay,
        cancel: Callable[[JobID], Awaitable[None]],
        audit: Audit,
    ) -> None:
        self.most_recorded = most_recorded
        self._files = files
        self._reach = reach
        self._replay = replay
        self._cancel = cancel
        self._audit = audit
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remove the records of idle sessions."""
        self._sweeping = asyncio.create_task(self._sweep(), name="connect-records")

    async def stop(self) -> None:
        """Stop removing records."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            try:
                wait_s = await asyncio.to_thread(self._files.sweep)
            except OSError as error:
                logger.error("records of named sessions cannot be removed: %s", error)
                wait_s = 0.0
            await asyncio.sleep(max(1.0, wait_s))

    # ------------------------------------------------------------------ finding and rebuilding

    async def reach(self, call: Call, observed: str) -> tuple[SessionRecord | None, SessionAddress | None]:
        """Return the record of a call's session, and where it is open; begin or rebuild it if necessary.

        Args:
            call: gets the id of the session on its driver.
            observed: the id that the client expects the session to have; empty if it expects none.

        Returns:
            None and None if the call releases the session and it is not open.

        Raises:
            CallRefusedError: the session has ended, or cannot begin or be rebuilt.
            RecordError: the record is damaged.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            record = await self._found(call, observed)
            if record is None:
                return None, None
            call.session_id = record.session_id
            if call.method == RELEASE:
                return await self._reach_to_release(call, record)
            lost = False
            if record.stage is Stage.READY:
                try:
                    address = await self._reach(call, call.method, is_begun=True)
                except CallRefusedError as error:
                    lost = error.is_lost
                    if error.is_over and not lost:
                        await self.remove(call)
                    if not lost:
                        raise
                    if call.method not in BEGINNING:
                        raise lost_during(call) from None
                else:
                    if address is not None and await _listens(address.port):
                        return record, address
            if lost or record.stage is not Stage.READY:
                with self._files.rebuilding(call.user, call.name) as may:
                    if may:
                        await self._rebuild(call, record)
                        continue
            await asyncio.sleep(pause_s)  # another call rebuilds it, or the loss of the driver is not known yet
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)

    async def find(self, call: Call) -> bool:
        """Give a call the id of its session on the driver; return False if the session is not ready."""
        record = await asyncio.to_thread(self._files.read, call.user, call.name)
        if record is None or record.stage is not Stage.READY:
            return False
        call.session_id = record.session_id
        return True

    async def _found(self, call: Call, observed: str) -> SessionRecord | None:
        """Return the record of a session, a new one if the call begins it; None if it releases none."""
        try:
            record = await asyncio.to_thread(self._files.read, call.user, call.name)
        except RecordError:
            if call.method != RELEASE:
                raise
            await self.remove(call, whatever=True)
            return None
        if call.method == RELEASE:
            return record
        if (observed and (record is None or record.shown_id != observed)) or (
            record is None and call.method not in BEGINNING
        ):
            raise self._ended(call)
        if record is not None:
            return record
        new = SessionRecord(call.user, call.name, str(uuid.uuid4()), str(uuid.uuid4()))
        return await self._changed(call, lambda found: found or new)

    @staticmethod
    def _ended(call: Call) -> CallRefusedError:
        return CallRefusedError(
            409,
            f"the named session {call.name} has ended, by spark.stop(), a cancellation or its idle time-out: "
            "SparkSession.builder.remote(...).getOrCreate() starts it again, with an empty record",
            is_over=True,
        )

    async def _reach_to_release(
        self, call: Call, record: SessionRecord
    ) -> tuple[SessionRecord | None, SessionAddress | None]:
        if record.stage is Stage.READY:
            address = await self._reach(call, RELEASE, is_begun=True)
            if address is not None and await _listens(address.port):
                return record, address
        await self._cancel(call.job_id)
        await self.remove(call)
        return None, None

    async def _rebuild(self, call: Call, seen: SessionRecord) -> None:
        """Begin the session of a record on a driver, and repeat its calls there."""
        record = await asyncio.to_thread(self._files.read, call.user, call.name)
        if record is None:
            raise self._ended(call)
        if record.stage is Stage.READY and (record.session_id, record.stage) != (seen.session_id, seen.stage):
            return  # another call has rebuilt it
        if record.stage is not Stage.WAITING:
            if record.stage is Stage.REPLAYING:
                call.session_id = record.session_id
                await self._cancel(call.job_id)  # left by a gateway that was killed, or that failed
            record = await self._on_another_driver(call)
            self._audit(call.caller, "rebuild", call.job_id, 200)
        call.session_id = record.session_id
        try:
            address = await self._reach(call, _BEGIN)
        except CallRefusedError as error:
            if error.is_lost:
                await self._on_another_driver(call)
                raise CallRefusedError(409, f"the named session {call.name} cannot begin: {error}") from None
            if error.is_over or not record.entries:
                await self.remove(call)
            raise
        assert address is not None
        if record.entries:
            logger.info("job %s: %d calls of a named session are repeated", call.job_id, len(record.entries))
            await self._changed(call, lambda found: found and found.at(Stage.REPLAYING))
            try:
                await self._repeat(call, record, address)
            except (CallRefusedError, RecordError):
                await self._cancel(call.job_id)
                raise
        await self._changed(call, lambda found: found and found.at(Stage.READY))

    async def _on_another_driver(self, call: Call) -> SessionRecord:
        session_id = str(uuid.uuid4())
        record = await self._changed(call, lambda found: found and found.on_another_driver(session_id))
        call.session_id = record.session_id
        return record

    async def _repeat(self, call: Call, record: SessionRecord, address: SessionAddress) -> None:
        missing = set[tuple[str, str]]()
        for entry in record.entries:
            makes = {(entry.kind, name) for name in entry.names}
            if entry.removes and makes <= missing:
                continue
            messages = messages_in(await asyncio.to_thread(self._files.content, record, entry))
            try:
                await self._replay(address, entry.method, messages)
            except grpc.aio.AioRpcError as error:
                if error.code() in _UNKNOWN:
                    text = f"the named session {call.name} is being rebuilt, and its driver does not answer"
                    raise CallRefusedError(503, text) from None
                if entry.is_certain:
                    raise CallRefusedError(
                        409,
                        f"the named session {call.name} cannot be rebuilt, because {entry.shown} fails: "
                        f"{_line(error.details())}; repair the cause and repeat the call, or end the session with "
                        "spark.stop()",
                    ) from None
                logger.info("job %s: %s had failed before", call.job_id, entry.shown)
                missing |= makes
                await self.refused(call, entry)
            else:
                missing -= makes
                await self.certain(call, entry)

    # ------------------------------------------------------------------ recording

    async def note(self, call: Call, record: SessionRecord, requests: Sequence[bytes]) -> Entry | None:
        """Record a call before it is passed on; return its entry, None if it changes nothing that is recorded.

        Raises:
            CallRefusedError: the record has no room, or another call has rebuilt the session.
        """
        noted: Entry | None = None

        def noting(found: SessionRecord | None) -> SessionRecord:
            nonlocal noted
            if found is None or found.session_id != record.session_id:
                raise lost_during(call)
            assert change is not None
            after, noted = found.with_change(call.method, change, self.most_recorded)
            return after

        try:
            change = change_of(call.method, requests)
            if change is None:
                return None
            await self._changed(call, noting, change.content)
        except InvalidRequestError as error:
            raise CallRefusedError(400, str(error)) from None
        except RecordError as error:
            raise CallRefusedError(429, str(error)) from None
        return noted

    async def certain(self, call: Call, entry: Entry) -> None:
        """Note that Spark has answered a call."""
        if not entry.is_certain:
            await self._changed(call, lambda found: found and found.certain(entry.number))

    async def refused(self, call: Call, entry: Entry) -> None:
        """Note that Spark has refused a call."""
        await self._changed(call, lambda found: found and found.without(entry.number))

    async def failed(self, call: Call, record: SessionRecord, entry: Entry | None, error: Any, port: int) -> None:
        """Note that a call has failed, whose session is open as far as its TaskExecutor knows.

        Args:
            call: the call.
            record: of its session.
            entry: of the call in the record.
            error: of the call.
            port: of the driver.

        Raises:
            CallRefusedError: the operation of the call, or what it names, was lost with a driver.
        """
        if error.code() is grpc.StatusCode.UNAVAILABLE and await _stops_listening(port):
            raise lost_during(call)
        if entry is not None and error.code() not in _UNKNOWN:
            await self.refused(call, entry)
        details = error.details() or ""
        if call.method == "ReattachExecute" and record.rebuilt and "OPERATION_NOT_FOUND" in details:
            raise lost_during(call)
        if record.rebuilt and _GONE.search(details):
            raise gone(call, details)

    async def touch(self, call: Call) -> None:
        """Note that a session is in use."""
        await asyncio.to_thread(self._files.touch, call.user, call.name)

    async def remove(self, call: Call, *, whatever: bool = False) -> None:
        """Remove the record of a session that has ended, unless the name has another one by now.

        Args:
            call: to the session.
            whatever: whether to remove a damaged record too.
        """
        await asyncio.to_thread(self._files.remove, call.user, call.name, "" if whatever else call.session_id)

    async def _changed(
        self,
        call: Call,
        to: Callable[[SessionRecord | None], SessionRecord | None],
        content: bytes | None = None,
    ) -> SessionRecord:
        try:
            record = await asyncio.to_thread(self._files.change, call.user, call.name, to, content)
        except OSError as error:
            raise CallRefusedError(
                409, f"the record of the named session {call.name} cannot be written: {error}; free space, and repeat"
            ) from None
        if record is None:
            raise self._ended(call)
        return record


def _line(text: str | None) -> str:
    """Return the first line of an error of Spark's, without its full stop."""
    return ((text or "").strip().splitlines() or ["no reason given"])[0].rstrip(".")[:_CAUSE]


async def _stops_listening(port: int) -> bool:
    """Return whether a driver that has broken a connection is dead; its port closes within moments then."""
    deadline = time.monotonic() + _DYING_S
    while await _listens(port):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(FIRST_PAUSE_S)
    return True


async def _listens(port: int) -> bool:
    """Return whether a driver listens at its port, which a killed one does not any more."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
