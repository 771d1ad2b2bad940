"""The files of the web page, which are the same for everybody and hold no secret: they are served without the token.

They are read once and found by their whole name, so that a request never becomes a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.responses import Response
from starlette.types import Scope

_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "/index.html"

# Nothing but the page's own files, no inline script or style, and no text may become markup (trusted types).
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # kept, and asked for anew: the answer is mostly 304
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media: str
    tag: str


class StaticFiles:
    """The files below a directory of this package.

    Args:
        root: the directory.
    """

    def __init__(self, root: Traversable | None = None) -> None:
        self._files: Mapping[str, _File] = dict(_read(root or files("runtime.rest") / "static", ""))

    def find(self, scope: Scope) -> Response | None:
        """The answer to a request for one of the files; None when it asks for something else."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        file = self._files.get(_INDEX if scope["path"] == "/" else scope["path"])
        if file is None:
            return None
        headers = {**_HEADERS, "etag": file.tag}
        if (b"if-none-match", file.tag.encode()) in scope["headers"]:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media, headers=headers)


def _read(directory: Traversable, path: str) -> Iterator[tuple[str, _File]]:
    for entry in directory.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _read(entry, name)
        elif media := _MEDIA.get("." + entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            yield name, _File(content, media, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
