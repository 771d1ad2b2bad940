"""Savepoints in a remote file system: on a real FTP server, and on a real S3 server."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fsspec
import pytest
from click.testing import CliRunner
from fsspec.config import conf

from conf.configuration import Configuration
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import Savepoint, SavepointJob
from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.checkpoint.remote_savepoint import (
    check_target,
    copy_savepoint,
    dispose_at,
    is_complete,
    list_at,
    local_copy,
    publish_manifest,
    read_at,
    upload_files,
    verify_at,
)
from runtime.checkpoint.savepoint import MANIFEST, verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.cluster.savepoint_commands import savepoint as commands
from runtime.ids import TriggerID
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.jobmaster.savepoints import SavepointWriter
from runtime.protocol.checkpoints import CheckpointTrigger, SnapshotType
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.ftp_server import PASSWORD, USER, FtpServer
from tests.s3_server import BUCKET, SECRET, S3Server
from tests.streaming_files import StreamingFiles

JOB = SavepointJob("0123456789abcdef" * 2, "flights")


@pytest.fixture
def ftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[FtpServer]:
    """A server whose credentials are in fsspec's configuration, where users put them."""
    logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
    monkeypatch.setitem(conf, "ftp", {"username": USER, "password": PASSWORD})
    server = FtpServer(tmp_path / "ftp")
    yield server
    server.close()
    assert PASSWORD not in caplog.text


@pytest.fixture(params=["ftp", "s3"])
def url(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[str]:
    if request.param == "ftp":
        yield f"ftp://127.0.0.1:{request.getfixturevalue('ftp').port}/deep/savepoints"
        return
    server = S3Server()
    monkeypatch.setitem(conf, "s3", server.settings)
    yield f"s3://{BUCKET}/savepoints"
    server.close()
    assert SECRET not in caplog.text


@pytest.fixture
def snapshot(tmp_path: Path) -> QuerySnapshot:
    files = StreamingFiles(tmp_path / "live", "rocksdb", (("default",), ("left", "right")))
    files.run(4)
    return take_snapshot(files.query, tmp_path / "chk" / "counts")


@pytest.fixture
def local(snapshot: QuerySnapshot, tmp_path: Path) -> Savepoint:
    return write_savepoint(tmp_path / "savepoints", JOB, [snapshot])


def test_a_copy_is_the_same_savepoint_there_and_back(local: Savepoint, url: str, tmp_path: Path) -> None:
    place = copy_savepoint(local.path, url)
    assert place == f"{url}/{Path(local.path).name}"
    assert read_at(place).files == local.files
    assert read_at(place).path == place
    assert verify_at(place) == []
    (listed,) = list_at(url)
    assert (listed.path, listed.problems, listed.savepoint) == (place, [], read_at(place))
    back = Path(copy_savepoint(place, str(tmp_path / "back")))
    assert verify_savepoint(back) == []
    assert {name: (back / name).read_bytes() for name in list_files(back)} == {
        name: (Path(local.path) / name).read_bytes() for name in list_files(Path(local.path))
    }
    assert {stat.S_IMODE((back / name).stat().st_mode) for name in list_files(back)} == {0o600}
    for parent in (url, str(tmp_path / "back")):
        with pytest.raises(SavepointError, match="is there already"):
            copy_savepoint(place if parent != url else local.path, parent)
    assert dispose_at(place)
    assert (dispose_at(place), list_at(url)) == (False, [])


def _remove(directory: RemoteDirectory, name: str, content: bytes) -> None:
    directory.remove(name)


def _truncate(directory: RemoteDirectory, name: str, content: bytes) -> None:
    _replace(directory, name, content[:-1])


def _turn_a_bit(directory: RemoteDirectory, name: str, content: bytes) -> None:
    _replace(directory, name, bytes([content[0] ^ 1]) + content[1:])


def _replace(directory: RemoteDirectory, name: str, content: bytes) -> None:
    directory.remove(name)
    directory._do("write", name, lambda fs: fs.pipe_file(directory._path(name), content))


@pytest.mark.parametrize("damage", [_remove, _truncate, _turn_a_bit])
def test_damage_is_found_and_nothing_starts_from_it(
    local: Savepoint, url: str, tmp_path: Path, damage: Callable[[RemoteDirectory, str, bytes], None]
) -> None:
    place = copy_savepoint(local.path, url)
    directory, name = RemoteDirectory(place), next(one for one in sorted(local.files) if "offsets/" in one)
    damage(directory, name, (Path(local.path) / name).read_bytes())
    (problem,) = verify_at(place)
    assert name in problem
    assert bool(list_at(url)[0].problems) == (damage is not _turn_a_bit), "a list reads names and sizes"
    with pytest.raises(SavepointError, match="offsets/"):
        copy_savepoint(place, str(tmp_path / "back"))
    assert list((tmp_path / "back").iterdir()) == [], "nothing is left"
    told = CliRunner().invoke(commands, ["verify", place])
    assert (told.exit_code, name in told.output) == (1, True)
    # The manifest has a digest of itself.
    damage(directory, MANIFEST, (Path(local.path) / MANIFEST).read_bytes())
    with pytest.raises(SavepointError, match=r"not a savepoint|is damaged"):
        read_at(place)
    assert list_at(url)[0].savepoint is None
    assert dispose_at(place)


def test_an_interrupted_copy_is_not_complete_and_is_disposed(local: Savepoint, url: str) -> None:
    place = f"{url}/{Path(local.path).name}"
    upload_files(Path(local.path), place)
    assert not is_complete(place)
    with pytest.raises(SavepointError, match=r"not a savepoint: it has no manifest.json, which is written last"):
        read_at(place)
    with pytest.raises(SavepointError, match="not a savepoint"), local_copy(place):
        pass
    (listed,) = list_at(url)
    assert (listed.savepoint, "no manifest" in listed.problems[0]) == (None, True)
    assert copy_savepoint(local.path, url) == place, "the next try completes it"
    RemoteDirectory(place).remove(MANIFEST)
    assert dispose_at(place)
    assert list_at(url) == []


def test_a_file_that_is_cut_short_on_the_way_makes_no_savepoint(
    local: Savepoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = RemoteDirectory.put

    def put_less(directory: RemoteDirectory, source: Path, name: str) -> None:
        put(directory, source, name)
        if name.endswith("metadata"):
            _truncate(directory, name, source.read_bytes())

    monkeypatch.setattr(RemoteDirectory, "put", put_less)
    with pytest.raises(SavepointError, match=r"is not complete: .*metadata has \d+ bytes in place of"):
        copy_savepoint(local.path, url)
    assert not is_complete(f"{url}/{Path(local.path).name}")


def test_another_directory_is_left_alone(url: str, local: Savepoint) -> None:
    directory = RemoteDirectory(f"{url}/mine")
    directory.make()
    directory.put_whole("notes", b"1")
    with pytest.raises(SavepointError, match="is not a savepoint: it is left alone"):
        dispose_at(directory.url)
    assert directory.read("notes") == b"1"


def test_job_masters_of_two_epochs_share_no_file(snapshot: QuerySnapshot, url: str, tmp_path: Path) -> None:
    """The manifest decides: the first one stays, and the files of the other one go."""
    configuration = Configuration.from_dict({"execution.checkpointing.dir": str(tmp_path / "checkpoints")})
    writer, other = (SavepointWriter(graph, configuration) for graph in [JobGraph.for_script("job")] * 2)
    wanted = CheckpointTrigger(TriggerID.random(), SnapshotType.SAVEPOINT, url)
    metadata = cast(Any, SimpleNamespace(queries=(snapshot,)))
    second = other.copy(wanted, metadata, 2, lambda: True)
    first = writer.copy(wanted, metadata, 1, lambda: True)
    assert (writer.find(wanted), list_at(url)[0].savepoint) == ("", None), "neither is complete"
    place = other.publish(wanted, second)
    kept = read_at(place)
    assert writer.publish(wanted, first) == place
    assert (read_at(place), verify_at(place), writer.find(wanted)) == (kept, [], place)
    assert set(RemoteDirectory(place).files()) == {MANIFEST, *kept.files}, "nothing of the other is left"
    assert list((tmp_path / "checkpoints").rglob("*.part")) == []
    # One that nobody wants any more is removed, and so is one that fails.
    for unwanted in (iter([True] * 3 + [False] * 99), iter([False] * 99)):
        trigger = CheckpointTrigger(TriggerID.random(), SnapshotType.SAVEPOINT, url)
        with pytest.raises(SavepointError, match="was stopped"):
            writer.copy(trigger, metadata, 3, lambda unwanted=unwanted: next(unwanted))
        assert RemoteDirectory(writer.place_of(trigger)).files() == {}


def test_a_job_that_starts_from_one_copies_it_once(local: Savepoint, url: str, tmp_path: Path) -> None:
    place = copy_savepoint(local.path, url)
    checkpoints = tmp_path / "checkpoints"
    configuration = Configuration.from_dict({"execution.checkpointing.dir": str(checkpoints)})
    writer = SavepointWriter(JobGraph.for_script("job"), configuration)
    owner, restore = writer.read(SavepointRestoreSettings(place))
    assert (owner, restore.savepoint) == (JOB.id, place)
    (query,) = restore.queries
    assert Path(query.path).is_relative_to(checkpoints)
    dispose_at(place)
    assert writer.read(SavepointRestoreSettings(place)) == (owner, restore), "the copy is used by the next JobMaster"
    (Path(query.path).parents[1] / MANIFEST).unlink()
    with pytest.raises(SavepointError, match="is not a savepoint"):
        writer.read(SavepointRestoreSettings(place))


def test_what_cannot_be_written_is_refused_before_anything_is_taken(ftp: FtpServer) -> None:
    here = f"127.0.0.1:{ftp.port}"
    check_target(f"ftp://{here}/deep/new")
    assert list((ftp.directory / "deep" / "new").iterdir()) == [], "the probe is removed"
    (ftp.directory / "file").write_bytes(b"1")
    conf["ftp"] = {"username": USER, "password": "another"}
    with pytest.raises(SavepointError, match=f"^ftp://{here}/deep: cannot write it: .*530") as failed:
        check_target(f"ftp://{here}/deep")
    assert "credentials" in failed.value.remedy
    conf["ftp"] = {"username": USER, "password": PASSWORD}
    for target, why in (
        (f"ftp://{here}/file", "cannot write"),
        ("nosuch://host/x", "no file system for the scheme 'nosuch'"),
        (f"ftp://{USER}:{PASSWORD}@{here}/x", "has a password or parameters"),
        ("s3://bucket/x?secret=1", "has a password or parameters"),
        ("s3://bucket/a/../b", "does not name one directory"),
        ("simplecache::ftp://host/x", "does not name one directory"),
        ("memory://host/x", "no storage that other processes see"),
        ("s3:///x", "no storage that other processes see"),
    ):
        with pytest.raises(SavepointError, match=why) as refused:
            check_target(target)
        told = f"{refused.value} {refused.value.remedy}"
        assert ("\n" in told, PASSWORD in told, "secret" in told, bool(refused.value.remedy)) == (False,) * 3 + (True,)


def test_a_plug_in_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(scheme: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", fail)
    with pytest.raises(SavepointError, match="needs a package that is missing here: Install s3fs"):
        check_target("s3://bucket/x")


def test_a_storage_that_loses_what_is_written_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteDirectory, "read", lambda self, name: None)
    with pytest.raises(SavepointError, match="does not return what is written to it"):
        check_target(url)


def test_a_manifest_that_another_writer_has_published_stays(local: Savepoint, url: str) -> None:
    place = copy_savepoint(local.path, url)
    published = RemoteDirectory(place).read(MANIFEST)
    (Path(local.path) / MANIFEST).write_bytes(b"{}")
    publish_manifest(Path(local.path), place)
    assert RemoteDirectory(place).read(MANIFEST) == published


def test_commands_print_what_is_there_and_refuse_a_url_where_files_have_to_be_local(
    local: Savepoint, url: str, tmp_path: Path
) -> None:
    run = lambda *words: CliRunner().invoke(commands, words)  # noqa: E731
    copied = run("copy", local.path, url)
    place = copied.output.strip()
    assert (copied.exit_code, place) == (0, f"{url}/{Path(local.path).name}")
    assert "flights" in run("list", url).output
    assert place in run("info", place).output
    assert "is unchanged" in run("verify", place).output
    assert "fits" in run("check", place, str(tmp_path / "savepoints" / Path(local.path).name)).output
    refused = run("rescale", "--partitions", "2", "--to", str(tmp_path / "x"), place)
    assert (refused.exit_code != 0, "understudy savepoint copy" in refused.output) == (True, True)
    assert "is disposed" in run("dispose", place).output
    assert list_at(url) == []
