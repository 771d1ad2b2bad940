"""Calls of clients that only use HTTP: methods of the components' gateways, and blobs.

A call works as by RPC: arguments and result are MessagePack by the type hints of the gateway, and nothing is unpickled.
Clients can only call the methods in `runtime.protocol.http_gateways`, and only actors of this cluster. The endpoint
checks or replaces directories and machines in the arguments, since the caller has the token but not the cluster's
secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import msgpack
from starlette.requests import Request
from starlette.responses import Response

import runtime
from actors.address import ActorAddress
from actors.errors import ActorError, AddressError, UnknownActor, WireError
from actors.process.diagnostics import diagnostics_at
from actors.rpc.codec import MethodSpec, method_specs
from actors.rpc.gateway import FENCING_MARK, READS
from blob.errors import InvalidBlobKey
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from blob.offload import Inline
from conf.options import RestOptions
from runtime.checkpoint.remote_savepoint import read_at
from runtime.ids import JobID
from runtime.jobgraph.codec import decode_job_graph
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.errors import GatewayError, JobSubmissionError
from runtime.protocol.http_gateways import (
    DIAGNOSTICS,
    HTTP_GATEWAYS,
    MASTER,
    MOST_OF_A_CALL,
    MSGPACK,
    OCTETS,
    TASK_EXECUTOR,
    HttpGateway,
    error_type,
)
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER
from runtime.protocol.processes import process_addresses
from runtime.queues.admission import ALL_FILES
from runtime.rest.auditing import audited_of
from runtime.rest.authorization import (
    check_call,
    check_job_id,
    check_role,
    check_savepoint,
    owned,
    principal_of,
)
from runtime.rest.backend import SLOW_ASK_S
from runtime.rest.context import BODY_TIMEOUT_S, Rest, read_body
from runtime.rest.errors import RestError, error_body, retry_after, status_of
from runtime.rest.handlers.checkpoints import directory_of, place_of
from runtime.rest.routing import JSON, Parameter, RestRoute, answer

logger = logging.getLogger(__name__)

_ID_SCHEMA = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_OWNER = Parameter("job", "the job that the blob belongs to", schema=_ID_SCHEMA)
MOST_OF_SHORT_CALLS = 64 * 1024
"""Limit in bytes of all calls but those that hold a job graph. They are decoded first, because the audit log names what
a refused one was about."""
_NUMBER = re.compile(r"(chk-)?[0-9]{1,18}")

ROUTES: list[RestRoute] = []


def media_of(request: Request) -> str:
    """Return the media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _refused(error: Exception) -> Response:
    """Answer with an error of the cluster and its type, so that the client raises the same error."""
    kind = error_type(error)
    if kind is None:
        raise error
    status = status_of(error)
    if status == 500:
        logger.error("a client's call failed", exc_info=error)
    return Response(error_body(str(error), kind=kind), status, retry_after(error), JSON)


# ----------------------------------------------------------------------- calls


@RestRoute(
    "GET",
    "/gateways",
    "The methods of components that clients may call by HTTP",
    result={"version": str, "system": str, "max-content-length": int, "gateways": dict},
).on(ROUTES)
async def get_gateways(rest: Rest, request: Request) -> Response:
    return answer(
        {
            "version": runtime.__version__,
            "system": str(rest.backend.link.system),
            "max-content-length": rest.configuration.get(RestOptions.MAX_CONTENT_LENGTH),
            "gateways": {name: sorted(known.methods) for name, known in HTTP_GATEWAYS.items()},
        }
    )


@RestRoute(
    "POST",
    "/gateways/{gateway}/{method}",
    "Call a method of a component as by RPC: its arguments and its result are MessagePack",
    media=MSGPACK,
    query=(Parameter("address", "the actor to call, for components of which there are several"),),
    body=MSGPACK,
    form={"type": "array"},
).on(ROUTES)
async def call(rest: Rest, request: Request) -> Response:
    known, spec = _named(request)
    if media_of(request) != MSGPACK:
        raise RestError(415, f"send the arguments as an array of MessagePack, with Content-Type: {MSGPACK}")
    name = request.path_params["gateway"]
    changes = getattr(getattr(known.gateway_type, spec.name), FENCING_MARK, None) != READS
    most = MOST_OF_SHORT_CALLS
    if (name, spec.name) == (DISPATCHER, "submit_job"):
        audited_of(request).begin_call(f"{name}/{spec.name}", [], changes=changes)
        check_role(request, name, spec.name)  # to decode a long body costs much
        most = MOST_OF_A_CALL
    arguments = _arguments(spec, await read_body(request, most))
    audited_of(request).begin_call(f"{name}/{spec.name}", arguments, changes=changes)
    await check_call(rest, request, name, spec.name, arguments)
    if changes:
        rest.snapshots.forget()
    try:
        own = _OWN_CALLS.get(spec.name) if name == DISPATCHER else None
        if own is not None:
            result: Any = await own(rest, request, *arguments)
        else:
            result = await _call(rest, name, request.query_params.get("address"), spec, arguments)
    except RestError:
        raise
    except Exception as error:
        audited_of(request).reason = str(error)
        return _refused(error)
    finally:
        if changes:
            rest.identities.forget()
            rest.snapshots.forget()  # also answers to requests from during the call
    told = result if spec.encode_result is None else spec.encode_result(result)
    return Response(msgpack.packb(told, use_bin_type=True), media_type=MSGPACK)


def _named(request: Request) -> tuple[HttpGateway, MethodSpec]:
    """Return the gateway and the method that the path names; raises RestError of status 404 for unknown ones."""
    known = HTTP_GATEWAYS.get(request.path_params["gateway"])
    method = request.path_params["method"]
    if known is None or method not in known.methods:
        raise RestError(404, "clients call no such method by HTTP; GET /v1/gateways shows those that they call")
    return known, method_specs(known.gateway_type)[method]


def _arguments(spec: MethodSpec, data: bytes) -> list[Any]:
    """Decode the arguments of a call by their types; raises RestError of status 400."""
    try:
        values = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception:  # msgpack raises several unrelated types on malformed input
        raise RestError(400, f"the body is not MessagePack: {spec.name}() takes an array of its arguments") from None
    try:
        return spec.decode_arguments(values)
    except WireError as error:
        raise RestError(400, f"the arguments of {spec.name}() are wrong: {str(error)[:500]}") from None


async def _call(rest: Rest, name: str, address: str | None, spec: MethodSpec, arguments: list[Any]) -> Any:
    if name == DISPATCHER:
        special = _CALLS.get(spec.name)
        if special is not None:
            return await special(rest, *arguments)
    if name in (DISPATCHER, RESOURCE_MANAGER):
        return await rest.backend.call(
            name, HTTP_GATEWAYS[name].gateway_type, lambda gateway: getattr(gateway, spec.name)(*arguments)
        )
    if name == MASTER and address is None:
        gateway: Any = rest.backend.link.master()
    else:
        gateway = rest.backend.link.gateway(
            await _member(rest, name, address or ""), HTTP_GATEWAYS[name].gateway_type, SLOW_ASK_S
        )
    if spec.name == "request_file_upload":  # to the cluster's own BlobServer, whatever the caller says
        arguments = [arguments[0], await rest.backend.blob_server()]
    return await getattr(gateway, spec.name)(*arguments)


async def _member(rest: Rest, name: str, text: str) -> ActorAddress:
    """Return the address of an actor if it is one of this cluster's; raises RestError (400) and `UnknownActor`."""
    try:
        address = ActorAddress.parse(text)
    except AddressError:
        raise RestError(400, "the parameter address must be the address of an actor of the cluster") from None
    if address not in await _members(rest, name):
        raise UnknownActor(f"the cluster has no {name} at {address} (any more)")
    return address


async def _members(rest: Rest, name: str) -> set[ActorAddress]:
    if name == MASTER:
        masters = (await rest.backend.status()).masters
        return {ActorAddress.parse(master).with_path("/user/master") for master in masters}
    workers = await rest.backend.task_managers()
    if name == TASK_EXECUTOR:
        return {ActorAddress.parse(worker.registration.address) for worker in workers}
    assert name == DIAGNOSTICS
    return {diagnostics_at(address) for address in process_addresses(await rest.backend.status(), workers).values()}


# ------------------------------- calls that name what the caller may not choose


async def _submit(rest: Rest, request: Request, message: Any) -> JobID:
    if not isinstance(message, Inline):
        raise RestError(400, f"by HTTP a job graph travels in the call, and has at most {MOST_OF_A_CALL} bytes")
    graph: JobGraph = await asyncio.to_thread(_decoded_graph, message.data)
    if graph.savepoint is not None:
        path = await _place(rest, graph.savepoint.path)
        check_savepoint(request, await asyncio.to_thread(read_at, path))
        graph = replace(graph, savepoint=replace(graph.savepoint, path=path))
    return await rest.backend.submit_graph(await owned(rest, request, graph))


async def _announce_upload(
    rest: Rest, request: Request, job_id: JobID, upload_id: str, size: int, owner: str, name: str = ""
) -> None:
    await check_job_id(rest, request, job_id)
    await _admit_upload(rest, request, job_id, ALL_FILES, size, name)


async def _end_upload(rest: Rest, request: Request, job_id: JobID, owner: str) -> None:
    await check_job_id(rest, request, job_id)
    await rest.backend.end_upload(job_id, principal_of(request).name)


def _decoded_graph(data: bytes) -> JobGraph:
    try:
        return decode_job_graph(data)
    except WireError as error:
        raise RestError(400, f"this is not a job graph: {str(error)[:500]}") from None


async def _directory(rest: Rest, text: str) -> str:
    return str(await asyncio.to_thread(directory_of, rest.configuration, text))


async def _place(rest: Rest, text: str) -> str:
    return await asyncio.to_thread(place_of, rest.configuration, text)


async def _trigger_savepoint(rest: Rest, job_id: Any, trigger_id: Any, target: str, cancel_job: bool = False) -> Any:
    directory = await _place(rest, target) if target else ""
    return await rest.backend.ask(
        lambda dispatcher: dispatcher.trigger_savepoint(job_id, trigger_id, directory, cancel_job)
    )


async def _stop_with_savepoint(rest: Rest, job_id: Any, trigger_id: Any, target: str, drain: bool) -> Any:
    directory = await _place(rest, target) if target else ""
    return await rest.backend.ask(
        lambda dispatcher: dispatcher.stop_with_savepoint(job_id, trigger_id, directory, drain)
    )


async def _roll_back(rest: Rest, job_id: Any, trigger_id: Any, target: str, new_query_id: bool) -> Any:
    directory = target if _NUMBER.fullmatch(target) else await _place(rest, target)
    return await rest.backend.roll_back(job_id, trigger_id, directory, new_query_id)


async def _trigger_rescale(
    rest: Rest, job_id: Any, trigger_id: Any, partitions: int | None, query: str, target: str
) -> Any:
    directory = await _directory(rest, target) if target else ""
    return await rest.backend.trigger_rescale(job_id, trigger_id, partitions, query, directory)


async def _dispose_savepoint(rest: Rest, path: str) -> bool:
    return await rest.backend.dispose_savepoint(await _place(rest, path))


_OWN_CALLS: Mapping[str, Callable[..., Awaitable[Any]]] = {
    "submit_job": _submit,
    "admit_upload": _announce_upload,
    "end_upload": _end_upload,
}
"""Methods of the Dispatcher, by their names, with which a user becomes the owner of something."""

_CALLS: Mapping[str, Callable[..., Awaitable[Any]]] = {
    "trigger_savepoint": _trigger_savepoint,
    "stop_with_savepoint": _stop_with_savepoint,
    "roll_back": _roll_back,
    "trigger_rescale": _trigger_rescale,
    "dispose_savepoint": _dispose_savepoint,
}
"""By the names of the Dispatcher's methods."""


# ----------------------------------------------------------------------- blobs


@RestRoute(
    "POST",
    "/blobs",
    "Upload a file of a job that is to be submitted; answers with the blob's key",
    status=201,
    query=(replace(_OWNER, required=True),),
    body=OCTETS,
    form={"type": "string", "format": "binary"},
    result={"key": str},
).on(ROUTES)
async def put_blob(rest: Rest, request: Request) -> Response:
    """Keep the content in a file until it is complete, since an upload to the BlobServer begins with its length.

    The limits of the user are checked before that, with the length in the head of the request, if it is there.
    """
    owner = _owner_of(request)
    if owner is None:
        raise RestError(400, "name the job of the file in the parameter job")
    if media_of(request) != OCTETS:
        raise RestError(415, f"send the file as it is, with Content-Type: {OCTETS}")
    audited_of(request).target = owner
    await check_job_id(rest, request, owner)
    upload_id, size = uuid.uuid4().hex, int(request.headers.get("content-length", "0"))
    try:
        if size:
            await _admit_upload(rest, request, owner, upload_id, size)
    except Exception as error:
        return _closing(_refused(error))
    with tempfile.NamedTemporaryFile(prefix="us-upload-", buffering=0) as file:
        try:
            await _receive(request, file)
        except BaseException:
            if size:
                await _forget_file(rest, request, owner, upload_id)
            raise
        path, received = Path(file.name), os.fstat(file.fileno()).st_size
        try:
            if received != size:  # a body in chunks declares no length
                size = received
                await _admit_upload(rest, request, owner, upload_id, size)
            key = await rest.backend.with_blobs(lambda blobs: blobs.put_file(path, PermanentBlobKey, owner))
        except Exception as error:
            return _refused(error)
    try:
        # Once more: the user may have ended the upload meanwhile, so that this file was not counted any more.
        await _admit_upload(rest, request, owner, upload_id, size)
    except JobSubmissionError as error:
        await rest.backend.end_upload(owner, principal_of(request).name)
        return _refused(error)
    except Exception as error:
        return _refused(error)
    return answer({"key": str(key)}, 201)


async def _receive(request: Request, file: IO[bytes]) -> None:
    """Write the body of a request into a file; raises RestError of status 408 if it takes too long."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                await asyncio.to_thread(file.write, piece)
    except TimeoutError:
        raise RestError(408, f"the file did not come within {BODY_TIMEOUT_S:g} s") from None


async def _forget_file(rest: Rest, request: Request, job_id: JobID, upload_id: str) -> None:
    """Count a file no more whose content did not come. If the cluster does not answer, it counts until it expires."""
    try:
        await _admit_upload(rest, request, job_id, upload_id, 0)
    except (ActorError, GatewayError) as error:
        logger.warning("a file of job %s that did not come counts until it expires: %s", job_id, error)


async def _admit_upload(rest: Rest, request: Request, job_id: JobID, upload_id: str, size: int, name: str = "") -> None:
    """Have an upload of the principal of a request checked by its limits, and counted.

    Raises:
        JobSubmissionError: it is over a limit.
    """
    user = principal_of(request).name
    if user:
        await rest.backend.admit_upload(job_id, upload_id, size, user, name)


def _closing(response: Response) -> Response:
    """Return an answer after which the connection is closed: the rest of the body was not read."""
    response.headers["connection"] = "close"
    return response


@RestRoute("GET", "/blobs/{key}", "A blob", media=OCTETS, query=(_OWNER,)).on(ROUTES)
async def get_blob(rest: Rest, request: Request) -> Response:
    key, owner = _key_of(request), _owner_of(request)
    async with rest.fetching:
        try:
            content = await rest.backend.with_blobs(lambda blobs: blobs.get_bytes(key, owner))
        except Exception as error:
            return _refused(error)
    return Response(content, media_type=OCTETS)


@RestRoute("DELETE", "/blobs/{key}", "Delete a blob that was made for its reader", result={"deleted": bool}).on(ROUTES)
async def delete_blob(rest: Rest, request: Request) -> Response:
    key = _key_of(request)
    if not isinstance(key, TransientBlobKey):
        raise RestError(400, "a blob of a job is deleted with its job")
    try:
        return answer({"deleted": await rest.backend.with_blobs(lambda blobs: blobs.delete(key))})
    except Exception as error:
        return _refused(error)


def _key_of(request: Request) -> PermanentBlobKey | TransientBlobKey:
    try:
        return BlobKey.parse(request.path_params["key"])
    except InvalidBlobKey as error:
        raise RestError(400, str(error)) from None


def _owner_of(request: Request) -> JobID | None:
    shown = request.query_params.get("job")
    try:
        return None if shown is None else JobID(shown)
    except ValueError:
        raise RestError(400, "the parameter job must be the id of a job, 32 lower-case hexadecimal digits") from None
