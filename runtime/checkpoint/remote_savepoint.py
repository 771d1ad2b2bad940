"""Savepoints in remote file systems, and functions that take a savepoint's place: a local directory or a URL.

A savepoint has the same files there as in a local directory, so that any tool may copy it either way. A rename of a
directory is not a single step on an object store. So the manifest is written last, in one step, and makes the savepoint
complete: a directory without it is never taken for one. Files that the manifest does not name do no harm. A killed
writer may leave them; `dispose_at` removes them.

Spark reads state from local files. So whatever uses a remote savepoint copies it first, and compares all digests.

All functions block.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from conf.configuration import Configuration
from conf.files import make_private, remove_tree, rename_durably, write_private
from conf.options import CheckpointingOptions
from runtime.checkpoint.errors import CheckpointError, SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointFile, from_manifest
from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.checkpoint.retained import find_state, read_state, verify_state
from runtime.checkpoint.savepoint import (
    MANIFEST,
    PREFIX,
    ListedSavepoint,
    dispose_savepoint,
    list_savepoints,
    open_savepoint,
    read_savepoint,
)
from runtime.protocol.places import is_url, place_below

_QUERIES = "queries"


# ------------------------------------------------------------ a directory or a URL


def default_target(configuration: Configuration) -> str:
    """Return the directory of savepoints that are requested without one: local, or a URL."""
    url = configuration.get(CheckpointingOptions.SAVEPOINT_URL)
    return url or str(configuration.get(CheckpointingOptions.SAVEPOINT_DIR))


def read_at(place: str) -> Savepoint:
    """Return the savepoint at a place, by its manifest; its files are not checked.

    The snapshots of a remote one have paths below its URL, which only tell where they are.

    Raises:
        SavepointError: there is none, it cannot be read, or its manifest is damaged or has a later format.
    """
    if not is_url(place):
        return read_savepoint(Path(place))
    directory = RemoteDirectory(place)
    savepoint = _read(directory)
    queries = tuple(
        replace(query, snapshot=replace(query.snapshot, path=f"{directory.url}/{query.snapshot.path}"))
        for query in savepoint.queries
    )
    return replace(savepoint, queries=queries, path=directory.url)


def check_state_at(name: str, checkpoints_dir: Path) -> str:
    """Return the place of the savepoint or checkpoint that a user names; its files are not checked.

    Args:
        name: a URL of a savepoint, or as of `find_state`.
        checkpoints_dir: where the cluster's checkpoints are.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    if is_url(name):
        return read_at(name).path
    path = find_state(name, checkpoints_dir)
    read_state(path)
    return str(path)


def verify_at(place: str) -> list[str]:
    """Return the problems of a savepoint or checkpoint at a place, by its digests; none if it can be restored.

    Each file of a remote one is copied, read, and removed again.

    Raises:
        SavepointError: a remote file system cannot be used at all.
    """
    if not is_url(place):
        return verify_state(Path(place))
    directory = RemoteDirectory(place)
    try:
        savepoint = _read(directory)
        found = directory.files()
    except SavepointError as error:
        return [str(error)]
    problems = _wrong_sizes(savepoint, found)
    there = [name for name in savepoint.files if name in found]
    with tempfile.TemporaryDirectory(prefix="understudy-verify-") as scratch:

        def verify(name: str) -> None:
            local = Path(scratch) / secrets.token_hex(8)
            try:
                _fetch(directory, name, local, savepoint.files[name])
            except SavepointError as error:
                if savepoint.files[name].size == found[name]:  # otherwise it is among the problems already
                    problems.append(str(error))
            finally:
                local.unlink(missing_ok=True)

        directory.each(there, verify)
    return sorted(problems)


def list_at(place: str) -> list[ListedSavepoint]:
    """Return the savepoints in a directory, newest first; those that cannot be read come last.

    Local ones are verified. Of remote ones names and sizes are compared with the manifest, and no content is read.

    Raises:
        SavepointError: the directory cannot be read.
    """
    if not is_url(place):
        return list_savepoints(Path(place))
    parent, listed = RemoteDirectory(place), []
    for name, is_directory in sorted(parent.names().items()):
        if not is_directory or name.startswith("."):
            continue
        directory = RemoteDirectory(f"{parent.url}/{name}")
        try:
            found = directory.files()
            if MANIFEST in found or name.startswith(PREFIX):
                savepoint = read_at(directory.url)
                listed.append(ListedSavepoint(directory.url, savepoint, _wrong_sizes(savepoint, found)))
        except SavepointError as error:
            listed.append(ListedSavepoint(directory.url, None, [str(error)]))
    return sorted(listed, key=lambda one: -one.savepoint.created_ms if one.savepoint else 0)


def dispose_at(place: str) -> bool:
    """Remove the savepoint at a place, even a damaged or incomplete one; never another directory.

    Returns:
        whether there was one.

    Raises:
        SavepointError: the directory is not a savepoint, or cannot be removed.
    """
    if not is_url(place):
        return dispose_savepoint(Path(place))
    directory = RemoteDirectory(place)
    found = directory.files()
    if not found:
        return False
    foreign = [name for name in found if name != MANIFEST and not _is_own(name)]
    if foreign or not (PurePosixPath(directory.url).name.startswith(PREFIX) or MANIFEST in found):
        raise SavepointError(f"{directory.url} is not a savepoint: it is left alone")
    directory.remove(MANIFEST)  # so that a half-removed one is never found
    directory.remove("")
    return True


@contextlib.contextmanager
def local_copy(place: str) -> Iterator[Path]:
    """Return the local directory of a savepoint in a ``with``: its own, or a verified copy of a remote one.

    Raises:
        SavepointError: a remote one cannot be read, or is damaged.
    """
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="understudy-savepoint-") as scratch:
        yield fetch_savepoint(place, Path(scratch) / PurePosixPath(place.rstrip("/")).name)


def copy_savepoint(source: str, parent: str) -> str:
    """Copy a savepoint into a directory, where it gets the same name; return its place there.

    Both are local or URLs. The copy appears when it is complete and verified.

    Raises:
        CheckpointError: the savepoint is damaged, there is something at that place already, or a file cannot be read or
            written.
    """
    name = PurePosixPath(source.rstrip("/")).name if is_url(source) else Path(source).resolve().name
    target = place_below(parent, name)
    if not is_url(target):
        if Path(target).exists():
            raise SavepointError(f"{target} is there already", "copy it to another directory, or dispose of that one")
        if is_url(source):
            return str(fetch_savepoint(source, Path(target).absolute()))
        raise SavepointError(f"{source} and {parent} are both local", "copy the directory with any tool: `cp -r`")
    directory = RemoteDirectory(target)
    if directory.exists(MANIFEST):
        raise SavepointError(f"{target} is there already", "copy it to another directory, or dispose of that one")
    with local_copy(source) as local:
        open_savepoint(local)
        upload_files(local, directory.url)
        publish_manifest(local, directory.url)
    return directory.url


# ------------------------------------------------------------------- a URL alone


def check_target(url: str) -> None:
    """Check that savepoints can be written below a URL: write a small file there, read it, and remove it.

    Raises:
        SavepointError: they cannot.
    """
    directory, name, content = RemoteDirectory(url), f".probe-{secrets.token_hex(8)}", b"understudy"
    directory.make()
    directory.put_whole(name, content)
    try:
        if directory.read(name) != content:
            raise SavepointError(
                f"{directory.url} does not return what is written to it", "name another directory for the savepoint"
            )
    finally:
        directory.remove(name)


def upload_files(local: Path, url: str, wanted: Callable[[], bool] = lambda: True) -> None:
    """Copy all files of a local savepoint except its manifest to a URL, and compare their sizes there.

    Args:
        local: the savepoint.
        url: of its own directory.
        wanted: returns whether to continue; it is called before each file.

    Raises:
        SavepointError: a file cannot be written, or it is not *wanted* any more.
    """
    savepoint, directory = read_savepoint(local), RemoteDirectory(url)
    directory.make_parents(savepoint.files)

    def put(name: str) -> None:
        if not wanted():
            raise SavepointError(f"the copy to {directory.url} was stopped")
        directory.put(local / name, name)

    directory.each(savepoint.files, put)
    problems = _wrong_sizes(savepoint, directory.files())
    if problems:
        raise SavepointError(f"the copy to {directory.url} is not complete: {problems[0]}", "try again")


def publish_manifest(local: Path, url: str) -> None:
    """Write the manifest of a savepoint whose files are at a URL, which makes it complete there.

    If another manifest is there already, that one stays.

    Raises:
        SavepointError: it cannot be written, or that other manifest is damaged.
        OSError: the local manifest cannot be read.
    """
    content, directory = (local / MANIFEST).read_bytes(), RemoteDirectory(url)
    if not directory.exists(MANIFEST):
        directory.put_whole(MANIFEST, content)
    _read(directory)


def is_complete(url: str) -> bool:
    """Return whether there is a complete savepoint at a URL; its files are not checked.

    Raises:
        SavepointError: that cannot be found out, or its manifest is damaged.
    """
    directory = RemoteDirectory(url)
    if not directory.exists(MANIFEST):
        return False
    _read(directory)
    return True


def remove_files(local: Path, url: str) -> None:
    """Remove the files of a local savepoint from a URL, unless its manifest is there.

    Raises:
        SavepointError: they cannot be removed.
    """
    directory = RemoteDirectory(url)
    if directory.read(MANIFEST) == (local / MANIFEST).read_bytes():
        return
    for query in read_savepoint(local).queries:
        directory.remove(f"{_QUERIES}/{Path(query.snapshot.path).name}")


def fetch_savepoint(url: str, target: Path) -> Path:
    """Copy a remote savepoint into a local directory, which appears when it is complete and verified.

    Args:
        url: of the savepoint.
        target: the directory; its parents are made.

    Returns:
        *target*.

    Raises:
        SavepointError: the savepoint cannot be read, or is damaged, or *target* cannot be written, or exists.
    """
    directory = RemoteDirectory(url)
    savepoint = _read(directory)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        make_private(target.parent, durable=True)
        for parent in {Path(name).parent for name in (MANIFEST, *savepoint.files)}:
            make_private(part / parent)
        directory.each(savepoint.files, lambda name: _fetch(directory, name, part / name, savepoint.files[name]))
        content = directory.read(MANIFEST) or b""
        if from_manifest(directory.url, content) != savepoint:
            raise SavepointError(f"{directory.url} was replaced while it was copied", "try again")
        write_private(part / MANIFEST, content)
        rename_durably(part, target)
    except OSError as error:
        raise SavepointError(f"{directory.url} cannot be copied to {target}: {error}") from error
    finally:
        remove_tree(part)
    return target


def fetched_once(url: str, target: Path) -> Path:
    """Return *target*, a copy of a remote savepoint; fetch it unless a whole one is there; raises SavepointError."""
    if target.exists():
        try:
            read_savepoint(target)
        except CheckpointError:
            remove_tree(target)
        else:
            return target
    return fetch_savepoint(url, target)


def _read(directory: RemoteDirectory) -> Savepoint:
    content = directory.read(MANIFEST)
    if content is None:
        raise SavepointError(
            f"{directory.url} is not a savepoint: it has no {MANIFEST}, which is written last",
            "`understudy savepoint list URL` shows the savepoints in a directory",
        )
    return from_manifest(directory.url, content)


def _fetch(directory: RemoteDirectory, name: str, local: Path, expected: SavepointFile) -> None:
    """Copy one file, and compare it with the manifest; sync it to disk."""
    os.close(os.open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    directory.get(name, local)
    with local.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        actual = SavepointFile(file.tell(), digest)
        os.fsync(file.fileno())
    if actual.size != expected.size:
        raise SavepointError(f"{directory.url}: {name} has {actual.size} bytes in place of {expected.size}")
    if actual != expected:
        raise SavepointError(f"{directory.url}: {name} is damaged: its digest is another one")


def _wrong_sizes(savepoint: Savepoint, found: dict[str, int]) -> list[str]:
    missing = [f"{name} is missing" for name in sorted(savepoint.files) if name not in found]
    return missing + [
        f"{name} has {found[name]} bytes in place of {file.size}"
        for name, file in sorted(savepoint.files.items())
        if name in found and found[name] != file.size
    ]


def _is_own(name: str) -> bool:
    """Return whether a file is one of a savepoint's, or a manifest that was being written."""
    return name.startswith(f"{_QUERIES}/") or ("/" not in name and name.startswith(f".{MANIFEST}."))
