from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.environment import directory as directory_module
from runtime.environment.descriptor import ClusterDescriptor, ProcessRecord
from runtime.environment.directory import SOCKET_NAME_ROOM, SOCKET_PATH_LIMIT, ClusterDirectory
from runtime.errors import ClusterAlreadyRunning, ClusterNotRunning, RuntimeDirectoryError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def directory(tmp_path: Path) -> ClusterDirectory:
    made = ClusterDirectory(tmp_path / "c")
    made.create()
    return made


def descriptor_of(directory: ClusterDirectory) -> ClusterDescriptor:
    return ClusterDescriptor(
        cluster_id="default",
        system_address="akka.tcp://understudy@127.0.0.1:6123",
        started_ms=1700000000000,
        runtime_dir=str(directory.root),
        log_dir=str(directory.log),
        socket_dir=str(directory.run),
        processes=(ProcessRecord.of("master", os.getpid()),),
        versions={"python": "3.11"},
    )


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = ClusterDirectory(tmp_path / "a" / "b")
        directory.create()
        directory.write_descriptor(descriptor_of(directory))
        with directory.acquire():
            assert mode(directory.lock_file) == 0o600
    finally:
        os.umask(before)
    for path in (directory.root, directory.run, directory.log, directory.blob, directory.ha, directory.archive):
        assert mode(path) == 0o700
    assert mode(directory.cluster_json) == 0o600


def test_an_open_directory_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o777)
    ClusterDirectory(tmp_path / "c").create()
    assert mode(tmp_path / "c") == 0o700


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RuntimeDirectoryError, match=f"belongs to user {owner}"):
        ClusterDirectory(tmp_path / "c").create()


def test_links_files_and_bad_parents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for bad in (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "c"):
        with pytest.raises(RuntimeDirectoryError) as caught:
            ClusterDirectory(bad).create()
        assert "cluster.runtime-dir" in caught.value.remedy


def test_descriptor_is_read_back(directory: ClusterDirectory) -> None:
    descriptor = descriptor_of(directory)
    directory.write_descriptor(descriptor)
    assert directory.read_descriptor() == descriptor
    assert directory.read_descriptor().processes[0].is_alive()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "processes": [], "extra": 1}'])
def test_descriptor_of_another_version(directory: ClusterDirectory, content: str) -> None:
    directory.cluster_json.write_text(content)
    with pytest.raises(RuntimeDirectoryError, match=r"cluster\.json"):
        directory.read_descriptor()


def test_no_descriptor(directory: ClusterDirectory) -> None:
    with pytest.raises(ClusterNotRunning) as caught:
        directory.read_descriptor()
    assert "start" in caught.value.remedy
    assert not ClusterDirectory(directory.root / "nowhere").is_running()


def test_process_records_tell_processes_apart() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = ProcessRecord.of("x", child.pid)
    assert record.is_alive()
    assert not ProcessRecord("x", child.pid, record.start_ticks + 1, record.boot_id).is_alive()
    assert not ProcessRecord("x", child.pid, record.start_ticks, "another").is_alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not record.is_alive(), "dead, though not waited for"
    child.communicate()
    assert not record.is_alive()
    with pytest.raises(ProcessLookupError):
        ProcessRecord.of("x", child.pid)


def test_one_cluster_at_a_time(directory: ClusterDirectory) -> None:
    assert not directory.is_running()
    with directory.acquire() as lock:
        assert directory.is_running()
        with pytest.raises(ClusterAlreadyRunning, match=f"process {os.getpid()}"):
            directory.acquire()
        lock.release()
        lock.release()
    assert not directory.is_running()
    assert not directory.lock_file.exists()
    directory.acquire().release()


def test_a_killed_holder_leaves_no_lock(directory: ClusterDirectory) -> None:
    code = (
        "import sys, pathlib; from runtime.environment.directory import ClusterDirectory\n"
        "lock = ClusterDirectory(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ClusterAlreadyRunning, match=f"process {holder.pid}"):
            directory.acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        directory.acquire().release()


def test_a_lock_on_a_file_that_is_gone_is_none(directory: ClusterDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its last holder has removed the file between the opening and the lock of it."""
    lock, removed = directory_module._lock, []

    def lock_and_lose(descriptor: int, command: int, kind: int, byte: int) -> int:
        answer = lock(descriptor, command, kind, byte)
        if not removed:
            directory.lock_file.unlink()
            removed.append(descriptor)
        return answer

    monkeypatch.setattr(directory_module, "_lock", lock_and_lose)
    with directory.acquire() as held:
        assert os.path.samestat(os.fstat(held.descriptor), directory.lock_file.stat())
        with pytest.raises(ClusterAlreadyRunning):
            directory.acquire()


def test_what_a_stopped_cluster_leaves(directory: ClusterDirectory) -> None:
    for path in (directory.secret, directory.users, directory.root / "rest-token"):
        path.touch(mode=0o600)
    for part in (
        directory.ha,
        directory.redis,
        directory.jobs,
        directory.blob,
        directory.taskmanager(0),
        directory.log,
    ):
        part.mkdir(exist_ok=True)
        (part / "file").touch()
    directory.clean()
    directory.discard()
    assert {path.name for path in directory.root.iterdir()} == {"log"}


def test_the_configuration_of_a_stopped_cluster_is_durably_gone_before_its_sockets(
    directory: ClusterDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.configuration_file.touch()
    directory.write_descriptor(descriptor_of(directory))
    found = []

    def sync(path: Path) -> None:
        found.append((path, directory.configuration_file.exists(), directory.run.exists()))

    def lose_power(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(directory_module, "sync_directory", sync)
        patched.setattr("shutil.rmtree", lose_power)
        with pytest.raises(KeyboardInterrupt):
            directory.clean()
    assert found == [(directory.root, False, True)]
    assert directory.cluster_json.exists()  # by which the next `stop` removes the rest
    directory.clean()
    assert not directory.run.exists()
    assert not directory.cluster_json.exists()


def test_forked_children_do_not_keep_the_lock(directory: ClusterDirectory) -> None:
    context = multiprocessing.get_context("fork")
    lock = directory.acquire()
    ours, theirs = context.Pipe()
    child = context.Process(target=theirs.recv)
    child.start()
    lock.release()
    try:
        assert child.is_alive()
        directory.acquire().release()
    finally:
        ours.send(None)
        child.join()


def test_a_forked_child_does_not_release_its_parents_lock(directory: ClusterDirectory) -> None:
    with directory.acquire() as lock:
        child = multiprocessing.get_context("fork").Process(target=lock.release)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert directory.is_running()
        assert directory.lock_file.exists()


def test_sockets_are_in_run_when_its_path_is_short(
    directory: ClusterDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ClusterDirectory(Path("/s"))
    assert short.socket_dir() == Path("/s/run")


def test_sockets_of_a_long_path(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / ("x" * 80))
    directory.create()
    made = directory.socket_dir()
    try:
        assert len(os.fsencode(made)) + 1 + SOCKET_NAME_ROOM <= SOCKET_PATH_LIMIT
        assert mode(made) == 0o700
        assert directory.socket_dir() == made, "every process finds the same"
        made.chmod(0o755)
        other = directory.socket_dir()
        assert other != made, "one that others may enter is not used"
        (other / "dispatcher.sock").touch()
        directory.write_descriptor(descriptor_of(directory))
        directory.clean()
        assert not other.exists()
        assert not directory.cluster_json.exists()
        assert directory.log.exists()
        directory.clean()
    finally:
        made.rmdir()


def test_temporary_directory_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long_one = tmp_path / ("y" * 80)
    long_one.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long_one))
    directory = ClusterDirectory(long_one / "c")
    directory.create()
    made = directory.socket_dir()
    assert made.parent == Path("/tmp")
    directory.clean()
    assert not made.exists()


def test_descriptor_holds_plain_values(directory: ClusterDirectory) -> None:
    directory.write_descriptor(descriptor_of(directory))
    values = json.loads(directory.cluster_json.read_text())
    assert values["processes"][0]["role"] == "master"
    assert [path.name for path in directory.root.glob(".*")] == []
