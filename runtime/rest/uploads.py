"""Forms that bring the files of a job: read within bounds, and kept until they are in the blob store."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from runtime.job_file import JobFileError, kind_of
from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.rest.backend import JobFile
from runtime.rest.errors import RestError
from runtime.rest.routing import BODY_TIMEOUT_S, MULTIPART

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


@asynccontextmanager
async def form_of(request: Request, known: Collection[str], what: str) -> AsyncIterator[FormData]:
    """The form that a request brings.

    Args:
        request: the request.
        known: the fields that there may be.
        what: what should be sent, for who sends something else.

    Raises:
        RestError: of status 415 where it is no form, 408 where it takes too long, and 400.
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
    """The one file of a field; raises RestError of status 400."""
    found = form.getlist(field)
    if len(found) != 1 or not isinstance(found[0], UploadFile):
        raise RestError(400, f"send exactly one file in the field `{field}`")
    return found[0]


async def kept_files(form: FormData, main: UploadFile, directory: Path) -> list[JobFile]:
    """The job's own file and its libraries, in a directory; their names stay what the job will see."""
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
    """Whether the job's own file is a script or a pipeline; raises RestError of status 400 where it is no Python."""
    try:
        return await asyncio.to_thread(kind_of, file.path)
    except (JobFileError, MemoryError, RecursionError):
        raise RestError(400, f"{file.name} is not valid Python") from None
