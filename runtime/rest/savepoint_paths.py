"""Which directories savepoints may be made in and removed from by whoever asks over HTTP."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from conf.configuration import Configuration
from conf.options import CheckpointingOptions, ClusterOptions
from runtime.checkpoint.files import path_of
from runtime.rest.errors import RestError

MOST_CHARACTERS = 4096


def directory_of(configuration: Configuration, text: str) -> Path:
    """The directory that a request names: an absolute local path, or a URI of the form ``file:/...`` of one.

    It may be any but those of the cluster itself: what the runtime directory and the directory of the checkpoints hold
    is no place for what others make, save for the directory of the savepoints. Links are followed before that is
    looked at. Blocks.

    Raises:
        RestError: of status 400, if it is none, or not allowed.
    """
    shown = repr(text[:100])
    parts = urlsplit(text) if text.startswith("file:") else None
    path = path_of(text) if len(text) <= MOST_CHARACTERS else Path()
    if parts is not None and (parts.netloc not in ("", "localhost") or parts.query or parts.fragment):
        raise RestError(400, f"{shown} is on another machine; give an absolute path of this one")
    if not path.is_absolute() or "\0" in str(path) or ".." in path.parts:
        raise RestError(400, f"{shown} is no absolute local path; give one without `..`, as /data/savepoints")
    try:
        path = path.resolve()
        savepoints = configuration.get(CheckpointingOptions.SAVEPOINT_DIR).resolve()
        own = (ClusterOptions.RUNTIME_DIR, ClusterOptions.SHARED_DIR, CheckpointingOptions.CHECKPOINTS_DIR)
        is_own = any(path.is_relative_to(configuration.get(option).resolve()) for option in own)
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is none
        raise RestError(400, f"{shown} cannot be used: {error}") from None
    if is_own and not path.is_relative_to(savepoints):
        raise RestError(400, f"{shown} is inside of the cluster's own directories; savepoints are under {savepoints}")
    return path
