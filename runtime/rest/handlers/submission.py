"""Submission of jobs: forms with PySpark scripts or job graphs, and their files.

The size of forms is limited, and their files are kept until they are in the blob store. Flink's client sends Java's
serialisation, which is discarded unread and refused.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response

from conf.options import JobOptions, RestOptions
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.remote_savepoint import read_at
from runtime.client import JobFile
from runtime.ids import JobID
from runtime.job_file import JobFileError, kind_of
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind, SavepointRestoreSettings
from runtime.jobgraph.json_form import MAX_BYTES, from_json
from runtime.rest import forms
from runtime.rest.authorization import check_savepoint, owned
from runtime.rest.context import BODY_TIMEOUT_S, Rest
from runtime.rest.errors import RestError
from runtime.rest.handlers.checkpoints import place_of
from runtime.rest.handlers.cluster import jars
from runtime.rest.routing import MULTIPART, RestRoute, answer, now_ms

MAX_FILES = 100
MAX_FIELDS = 1000
MAX_FIELD_BYTES = 64 * 1024
LIBRARIES: Mapping[str, ArtifactRole] = {
    "py-file": ArtifactRole.PY_FILE,
    "package": ArtifactRole.PACKAGE,
    "requirements": ArtifactRole.REQUIREMENTS,
    "archive": ArtifactRole.ARCHIVE,
    "jar": ArtifactRole.JAR,
}
"""The fields of what a job may bring beside its own code."""

FILE: Mapping[str, Any] = {"type": "string", "format": "binary"}
LIBRARY_FIELDS: Mapping[str, Any] = {name: {"type": "array", "items": FILE} for name in LIBRARIES}

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!@=-]{0,199}")


HOW_TO_SUBMIT = (
    "this cluster runs PySpark, not Flink jobs: submit a script with `understudy job run FILE` or POST /v1/scripts"
)
_TEXTS = ("name", "kind", "arg", "job-id", "priority", "queue", "savepoint", "allow-non-restored-state", "new-query-id")
_TEXT = {"type": "string"}
_KINDS = tuple(kind.value for kind in (JobKind.SCRIPT, JobKind.PIPELINE))
_SCRIPT = {
    "type": "object",
    "required": ["script"],
    "properties": {
        "script": FILE,
        **LIBRARY_FIELDS,
        **{key: {"type": "array", "items": _TEXT} if key == "arg" else _TEXT for key in _TEXTS},
    },
    "additionalProperties": False,
}
_GRAPH = {
    "type": "object",
    "required": ["graph", "main"],
    "properties": {"graph": {**FILE, "maxLength": MAX_BYTES}, "main": FILE, **LIBRARY_FIELDS},
    "additionalProperties": False,
}

ROUTES: list[RestRoute] = []


@asynccontextmanager
async def form_of(request: Request, known: Collection[str], what: str) -> AsyncIterator[FormData]:
    """Read the form of a request.

    Args:
        request: the request.
        known: the fields that it may have.
        what: description of the right body, for the error.

    Raises:
        RestError: of status 415 if the body is not a form, 408 if it takes too long, and 400 if it is invalid.
    """
    if not request.headers.get("content-type", "").lower().startswith(MULTIPART):
        raise RestError(415, f"send {what}")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            form = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except TimeoutError:
        raise RestError(408, f"the request's body did not come within {BODY_TIMEOUT_S:g} s") from None
    except MultiPartException as error:
        raise RestError(400, f"the form cannot be read: {error.message}") from None
    try:
        unknown = sorted({key for key in form if key not in known})
        if unknown:
            raise RestError(400, f"there is no field {unknown[0][:40]!r}; there are {', '.join(known)}")
        yield form
    finally:
        await form.close()


def only_file(form: FormData, field: str) -> UploadFile:
    """Return the one file of a field; raises RestError of status 400."""
    found = form.getlist(field)
    if len(found) != 1 or not isinstance(found[0], UploadFile):
        raise RestError(400, f"send exactly one file in the field `{field}`")
    return found[0]


async def kept_files(form: FormData, main: UploadFile, directory: Path) -> list[JobFile]:
    """Write the job's own file and its libraries into a directory; the job sees their own names."""
    uploads = [(ArtifactRole.MAIN, 0, main)] + [
        (role, number, upload) for key, role in LIBRARIES.items() for number, upload in enumerate(form.getlist(key))
    ]
    return [await _keep(directory, number, role, upload) for role, number, upload in uploads]


async def _keep(directory: Path, number: int, role: ArtifactRole, upload: UploadFile | str) -> JobFile:
    if not isinstance(upload, UploadFile) or _FILE_NAME.fullmatch(upload.filename or "") is None:
        raise RestError(400, f"a file of the job ({role.value}) needs a plain file name without directories")
    name = upload.filename or ""
    path = directory / f"{role.value}-{number}"
    await asyncio.to_thread(_copy, upload, path)
    return JobFile(name, role, path)


def _copy(upload: UploadFile, path: Path) -> None:
    upload.file.seek(0)
    with path.open("wb") as target:
        shutil.copyfileobj(upload.file, target, 1024 * 1024)


async def kind_of_file(file: JobFile) -> JobKind:
    """Return whether the job's own file is a script or a pipeline; raises RestError (400) if it is not Python."""
    try:
        return await asyncio.to_thread(kind_of, file.path)
    except (JobFileError, MemoryError, RecursionError):
        raise RestError(400, f"{file.name} is not valid Python") from None


@RestRoute("GET", "/jars", "Uploaded jars: none", result={"address": str, "files": [dict]}).on(ROUTES)
async def get_jars(rest: Rest, request: Request) -> Response:
    return answer(jars(rest.url))


@RestRoute("POST", "/jars/upload", "Refused: jobs are PySpark scripts", status=400).on(ROUTES)
@RestRoute("POST", "/jobs", "Refused: jobs are PySpark scripts", status=400).on(ROUTES)
async def refuse(rest: Rest, request: Request) -> Response:
    """Read the whole body, so that the client reads the answer, and keep none of it."""
    left = rest.configuration.get(RestOptions.MAX_CONTENT_LENGTH)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    break
    except TimeoutError:
        raise RestError(408, f"the request's body did not come within {BODY_TIMEOUT_S:g} s") from None
    raise RestError(400, HOW_TO_SUBMIT)


@RestRoute(
    "POST",
    "/scripts",
    "Submit a PySpark script with its files and arguments; answers when the job is persisted",
    status=202,
    body=MULTIPART,
    form=_SCRIPT,
    result=forms.SUBMITTED,
).on(ROUTES)
async def submit_script(rest: Rest, request: Request) -> Response:
    what = f"the script and its files as {MULTIPART}, the script in the field `script`"
    async with form_of(request, ("script", *LIBRARIES, *_TEXTS), what) as form:
        upload = only_file(form, "script")
        with tempfile.TemporaryDirectory(prefix="us-upload-") as directory:
            files = await kept_files(form, upload, Path(directory))
            found, kind = await kind_of_file(files[0]), form.get("kind")
            if kind not in (None, *_KINDS):
                raise RestError(400, f"kind must be {' or '.join(_KINDS)}, or left out")
            if (kind or found.value) != JobKind.SCRIPT.value:
                raise RestError(
                    400,
                    f"{files[0].name} is a pipeline, which its own user's process builds: `understudy job run`, "
                    "or POST /v1/graphs",
                )
            graph = replace(_graph(form, files[0]), savepoint=await _found(rest, request, _restore_settings(form)))
            return await _submit(rest, request, graph, files)


@RestRoute(
    "POST",
    "/graphs",
    "Submit a job graph, as JSON, with the code that its vertices name; answers when the job is persisted",
    status=202,
    body=MULTIPART,
    form=_GRAPH,
    result=forms.SUBMITTED,
).on(ROUTES)
async def submit_graph(rest: Rest, request: Request) -> Response:
    """Check only that the code is Python: it runs in the job's tasks, never here."""
    what = f"the job graph and the job's files as {MULTIPART}, the graph in the field `graph`, its code in `main`"
    async with form_of(request, ("graph", "main", *LIBRARIES), what) as form:
        text, main = only_file(form, "graph"), only_file(form, "main")
        graph = await asyncio.to_thread(from_json, await text.read(MAX_BYTES + 1))
        graph = replace(graph, savepoint=await _found(rest, request, graph.savepoint))
        with tempfile.TemporaryDirectory(prefix="us-upload-") as directory:
            files = await kept_files(form, main, Path(directory))
            await kind_of_file(files[0])
            return await _submit(rest, request, graph, files)


async def _found(
    rest: Rest, request: Request, settings: SavepointRestoreSettings | None
) -> SavepointRestoreSettings | None:
    """Resolve and check the savepoint from which the job starts.

    Raises:
        RestError: of status 400 if there is none, and 403 if the principal may not start from it.
    """
    if settings is None:
        return None
    path = await asyncio.to_thread(place_of, rest.configuration, settings.path)
    try:
        check_savepoint(request, await asyncio.to_thread(read_at, path))
    except SavepointError as error:
        raise RestError(400, str(error)) from None
    return replace(settings, path=path)


async def _submit(rest: Rest, request: Request, graph: JobGraph, files: Iterable[JobFile]) -> Response:
    graph = await owned(rest, request, graph)
    if not graph.traceparent:
        graph = replace(graph, traceparent=request.headers.get("traceparent", ""))
    rest.snapshots.forget()
    try:
        job_id = await rest.backend.submit(graph, files)
    finally:
        rest.snapshots.forget()
    return answer({"jobid": job_id, "jobUrl": f"/v1/jobs/{job_id}"}, 202)


def _restore_settings(form: FormData) -> SavepointRestoreSettings | None:
    """Read from the form the savepoint from which the job starts; raises RestError of status 400."""
    given, allows = form.get("savepoint"), form.get("allow-non-restored-state", "false")
    if allows not in ("true", "false"):
        raise RestError(400, "allow-non-restored-state must be true or false")
    new_ids = form.get("new-query-id")
    if new_ids not in (None, "true", "false"):
        raise RestError(400, "new-query-id must be true or false, or left out")
    if not isinstance(given, str) or not given:
        return None
    return SavepointRestoreSettings(given, allows == "true", None if new_ids is None else new_ids == "true")


def _graph(form: FormData, script: JobFile) -> JobGraph:
    texts = {key: [value for value in form.getlist(key) if isinstance(value, str)] for key in form}
    job_id = None
    if texts.get("job-id"):
        try:
            job_id = JobID(texts["job-id"][0])
        except ValueError as error:
            raise RestError(400, str(error)) from None
    priority = (texts.get("priority") or ["0"])[0]
    if re.fullmatch(r"-?[0-9]{1,6}", priority) is None:
        raise RestError(400, f"priority must be a whole number, not {priority[:40]!r}")
    name = (texts.get("name") or [Path(script.name).stem])[0]
    if not name or len(name) > 200 or not name.isprintable():
        raise RestError(400, "name must have 1 to 200 printable characters")
    graph = JobGraph.for_script(name, job_id=job_id, argv=tuple(texts.get("arg", ())), created_ms=now_ms())
    settings = {JobOptions.QUEUE.key: texts["queue"][0]} if texts.get("queue") else {}
    return replace(graph, priority=int(priority), configuration=settings)
