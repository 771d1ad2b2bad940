"""Submitting jobs: PySpark scripts are taken, what Flink's client sends is refused.

What that client sends is serialised by Java; it is thrown away unread.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import Response

from conf.options import RestOptions
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.savepoint import read_savepoint
from runtime.ids import JobID
from runtime.job_file import JobFileError, kind_of
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind, SavepointRestoreSettings
from runtime.rest.backend import JobFile
from runtime.rest.errors import RestError
from runtime.rest.messages import cluster as messages
from runtime.rest.routing import BODY_TIMEOUT_S, Rest, RestRoute, answer, now_ms
from runtime.rest.savepoint_paths import directory_of

MULTIPART = "multipart/form-data"
MAX_FILES = 100
MAX_FIELDS = 1000
MAX_FIELD_BYTES = 64 * 1024
HOW_TO_SUBMIT = (
    "this cluster runs PySpark, not Flink jobs: submit a script with `understudy job run FILE` or POST /v1/scripts"
)
_ROLES = {
    "script": ArtifactRole.MAIN,
    "py-file": ArtifactRole.PY_FILE,
    "package": ArtifactRole.PACKAGE,
    "requirements": ArtifactRole.REQUIREMENTS,
    "archive": ArtifactRole.ARCHIVE,
    "jar": ArtifactRole.JAR,
}
_TEXTS = ("name", "arg", "job-id", "priority", "savepoint", "allow-non-restored-state")
_TEXT = {"type": "string"}
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_FORM = {
    "type": "object",
    "required": ["script"],
    "properties": {
        **{key: {"type": "string", "format": "binary"} if key == "script" else _FILES for key in _ROLES},
        **{key: {"type": "array", "items": _TEXT} if key == "arg" else _TEXT for key in _TEXTS},
    },
    "additionalProperties": False,
}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!@=-]{0,199}")


async def get_jars(rest: Rest, request: Request) -> Response:
    return answer(messages.jars(rest.url))


async def refuse(rest: Rest, request: Request) -> Response:
    """Take all of it, so that the client reads the answer, and keep none of it."""
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


async def submit_script(rest: Rest, request: Request) -> Response:
    if not request.headers.get("content-type", "").lower().startswith(MULTIPART):
        raise RestError(415, f"send the script and its files as {MULTIPART}, the script in the field `script`")
    async with _form_of(request) as form:
        unknown = sorted({key for key in form if key not in (*_ROLES, *_TEXTS)})
        if unknown:
            fields = ", ".join((*_ROLES, *_TEXTS))
            raise RestError(400, f"there is no field {unknown[0][:40]!r}; there are {fields}")
        scripts = form.getlist("script")
        if len(scripts) != 1 or not isinstance(scripts[0], UploadFile):
            raise RestError(400, "send exactly one file in the field `script`")
        with tempfile.TemporaryDirectory(prefix="us-upload-") as directory:
            files = [
                await _keep(Path(directory), number, role, upload)
                for role, uploads in ((role, form.getlist(key)) for key, role in _ROLES.items())
                for number, upload in enumerate(uploads)
            ]
            await _require_script(files[0])
            graph = replace(_graph(form, files[0]), savepoint=await _restore_settings(rest, form))
            rest.snapshots.forget()
            try:
                job_id = await rest.backend.submit(graph, files)
            finally:
                rest.snapshots.forget()
    return answer({"jobid": job_id, "jobUrl": f"/v1/jobs/{job_id}"}, 202)


@asynccontextmanager
async def _form_of(request: Request) -> AsyncIterator[FormData]:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            form = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except TimeoutError:
        raise RestError(408, f"the request's body did not come within {BODY_TIMEOUT_S:g} s") from None
    except MultiPartException as error:
        raise RestError(400, f"the form cannot be read: {error.message}") from None
    try:
        yield form
    finally:
        await form.close()


async def _keep(directory: Path, number: int, role: ArtifactRole, upload: UploadFile | str) -> JobFile:
    """Put an uploaded file where the blob client finds it; its name stays what the job will see."""
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


async def _require_script(script: JobFile) -> None:
    try:
        kind = await asyncio.to_thread(kind_of, script.path)
    except (JobFileError, MemoryError, RecursionError):
        raise RestError(400, f"{script.name} is not valid Python") from None
    if kind is not JobKind.SCRIPT:
        raise RestError(400, f"{script.name} is a pipeline, which its own user's process builds: `understudy job run`")


async def _restore_settings(rest: Rest, form: FormData) -> SavepointRestoreSettings | None:
    """What the job begins from; read before anything is submitted. Raises RestError of status 400."""
    given, allows = form.get("savepoint"), form.get("allow-non-restored-state", "false")
    if allows not in ("true", "false"):
        raise RestError(400, "allow-non-restored-state must be true or false")
    if not isinstance(given, str) or not given:
        return None
    path = await asyncio.to_thread(directory_of, rest.configuration, given)
    try:
        await asyncio.to_thread(read_savepoint, path)
    except SavepointError as error:
        raise RestError(400, str(error)) from None
    return SavepointRestoreSettings(str(path), allows == "true")


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
    return replace(graph, priority=int(priority))


ROUTES = (
    RestRoute("GET", "/jars", get_jars, "Uploaded jars: none"),
    RestRoute("POST", "/jars/upload", refuse, "Refused: jobs are PySpark scripts", status=400),
    RestRoute("POST", "/jobs", refuse, "Refused: jobs are PySpark scripts", status=400),
    RestRoute(
        "POST",
        "/scripts",
        submit_script,
        "Submit a PySpark script with its files and arguments; answers when the job is persisted",
        status=202,
        body=MULTIPART,
        form=_FORM,
    ),
)
