"""The simulated disk: what a crash loses and what it must not, what a kill leaves, and that it is a file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conf.files import make_private, remove_tree, rename_durably, sync_directory, write_private
from runtime.checkpoint.files import list_sizes, take_files
from runtime.checkpoint.lease import lock_holder
from tests.simulation.disk import ROOT, Caller, Disk, Files, Loss, installed

DATA = Path(ROOT, "data")


@pytest.fixture
def disk() -> Disk:
    return Disk("data", source=random.Random(1), clock=lambda: 1_000_000_000)


@pytest.fixture
def files(disk: Disk) -> Iterator[Files]:
    with installed(Files({"data": disk, "other": Disk("other")})) as files:
        yield files


def write(path: Path, content: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def kept(files: Files, disk: Disk, loss: Loss = Loss.EVERYTHING) -> list[str]:
    files.crashed(disk, loss)
    return [path for path, _ in disk.walk()]


def test_a_file_is_kept_if_it_and_its_name_were_synced(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=True)
    sync_directory(DATA)
    files.crashed(disk, Loss.EVERYTHING)
    assert (DATA / "a").read_bytes() == b"content"


def test_content_that_was_not_synced_is_lost(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=False)
    sync_directory(DATA)
    files.crashed(disk, Loss.EVERYTHING)
    assert (DATA / "a").read_bytes() == b""


def test_a_new_name_that_was_not_synced_is_lost(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=True)
    assert kept(files, disk) == []


def test_a_rename_that_was_not_synced_is_undone(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"new", sync=True)
    write(DATA / "b", b"old", sync=True)
    sync_directory(DATA)
    (DATA / "a").replace(DATA / "b")
    files.crashed(disk, Loss.EVERYTHING)
    assert (DATA / "b").read_bytes() == b"old"
    assert (DATA / "a").read_bytes() == b"new"


def test_a_removal_that_was_not_synced_is_undone(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=True)
    sync_directory(DATA)
    (DATA / "a").unlink()
    assert kept(files, disk) == ["a"]
    (DATA / "a").unlink()
    sync_directory(DATA)
    assert kept(files, disk) == []


def test_a_link_that_was_not_synced_is_lost(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=True)
    sync_directory(DATA)
    (DATA / "b").hardlink_to(DATA / "a")
    assert kept(files, disk) == ["a"]
    (DATA / "b").hardlink_to(DATA / "a")
    sync_directory(DATA)
    assert kept(files, disk) == ["a", "b"]


def test_names_in_a_directory_without_a_synced_name_are_lost_with_it(files: Files, disk: Disk) -> None:
    (DATA / "d").mkdir()
    write(DATA / "d" / "a", b"content", sync=True)
    sync_directory(DATA / "d")
    assert kept(files, disk) == []


def test_a_rename_is_one_step_even_between_directories(files: Files, disk: Disk) -> None:
    for loss in Loss:
        for name in ("d", "e"):
            (DATA / name).mkdir()
        write(DATA / "d" / "a", b"content", sync=True)
        for directory in (DATA, DATA / "d", DATA / "e"):
            sync_directory(directory)
        (DATA / "d" / "a").rename(DATA / "e" / "b")
        sync_directory(DATA / "d")  # of the two directories only one
        assert kept(files, disk, loss) == ["d", "e", "e/b"]
        remove_tree(DATA / "d")
        remove_tree(DATA / "e")
        sync_directory(DATA)


def test_an_earlier_change_of_a_name_comes_with_a_later_one(files: Files, disk: Disk) -> None:
    (DATA / "d").mkdir()
    sync_directory(DATA)
    write(DATA / "a", b"content", sync=True)
    (DATA / "a").rename(DATA / "d" / "a")
    sync_directory(DATA / "d")
    assert kept(files, disk) == ["d", "d/a"]


def test_a_crash_may_tear_a_write(files: Files, disk: Disk) -> None:
    old, new = b"o" * 2048, b"n" * 2048
    seen = set()
    for _ in range(200):
        write(DATA / "a", old, sync=True)
        sync_directory(DATA)
        write(DATA / "a", new, sync=False)
        files.crashed(disk, Loss.ANY)
        seen.add((DATA / "a").read_bytes())
    assert {old, new} < seen
    assert any(b"o" in content and b"n" in content for content in seen)


def test_a_crash_may_lose_any_of_several_names(files: Files, disk: Disk) -> None:
    seen = set()
    for _ in range(100):
        for name in ("a", "b"):
            write(DATA / name, b"content", sync=True)
        seen.add(tuple(kept(files, disk, Loss.ANY)))
        remove_tree(DATA / "a")
        remove_tree(DATA / "b")
        sync_directory(DATA)
    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_the_same_seed_loses_the_same() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        disk = Disk("data", source=random.Random(seed))
        with installed(Files({"data": disk})) as files:
            for number in range(20):
                write(DATA / str(number), bytes(range(250)) * 10, sync=number % 3 == 0)
            files.crashed(disk)
        return [(path, bytes(inode.data)) for path, inode in disk.walk()]

    assert run(5) == run(5)
    assert len({str(run(seed)) for seed in range(20)}) > 5


DURABLE: dict[str, Callable[[], object]] = {
    "write_private": lambda: write_private(DATA / "kept", b"new"),
    "make_private": lambda: make_private(DATA / "kept" / "below", durable=True),
    "rename_durably": lambda: _renamed_tree(),
}


def _renamed_tree() -> None:
    make_private(DATA / ".part" / "below")
    write_private(DATA / ".part" / "below" / "file", b"content")
    rename_durably(DATA / ".part", DATA / "kept")


@pytest.mark.parametrize("name", DURABLE)
def test_our_durable_functions_survive_a_crash(files: Files, disk: Disk, name: str) -> None:
    DURABLE[name]()
    before = {path: bytes(inode.data) for path, inode in disk.walk()}
    files.crashed(disk, Loss.EVERYTHING)
    assert {path: bytes(inode.data) for path, inode in disk.walk()} == before


@pytest.mark.parametrize("name", DURABLE)
def test_our_durable_functions_do_not_survive_it_without_their_syncs(
    files: Files, disk: Disk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    DURABLE[name]()
    assert kept(files, disk) == []


def test_a_kill_keeps_what_was_written_and_loses_buffers_and_locks() -> None:
    disk, first, second = Disk("data"), Caller("h", 1), Caller("h", 2)
    current = [first]
    with installed(Files({"data": disk}, lambda: current[0])) as files:
        buffered = (DATA / "buffered").open("wb")
        buffered.write(b"lost")
        descriptor = os.open(DATA / "written", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"content")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert files.lock_records(f"{DATA}/buffered", first)
        current[0] = second
        other = os.open(DATA / "written", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lock_holder(DATA / "buffered") == 1
        assert not files.lock_records(f"{DATA}/buffered", second)
        files.process_ended(first)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lock_holder(DATA / "buffered") is None
        assert files.lock_records(f"{DATA}/buffered", second)
        assert lock_holder(DATA / "buffered") is None  # its own
        os.close(other)
        assert files.open_files() == []
        del buffered
        gc.collect()
        assert (DATA / "written").read_bytes() == b"content"
        assert (DATA / "buffered").read_bytes() == b""


def test_a_record_lock_of_another_host_has_no_process_id_here() -> None:
    current = [Caller("a", 7)]
    with installed(Files({"data": Disk("data")}, lambda: current[0])) as files:
        (DATA / "lease").touch()
        assert files.lock_records(f"{DATA}/lease", current[0])
        current[0] = Caller("b", 7)
        assert lock_holder(DATA / "lease") == 0
        current[0] = Caller("a", 7)
        with (DATA / "lease").open("rb") as file:
            asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, fcntl.F_SETLK, asked)
        current[0] = Caller("b", 7)
        assert lock_holder(DATA / "lease") is None  # the other process has closed the file


def test_each_host_has_its_own_disk_and_all_share_one() -> None:
    current = [Caller("a", 1)]
    shared, of_host = Disk("shared"), {"a": {"local": Disk("a")}, "b": {"local": Disk("b")}}
    with installed(Files({"shared": shared}, lambda: current[0], of_host=of_host)):
        for host in "ab":
            current[0] = Caller(host, 1)
            Path(ROOT, "local", "name").write_text(host)
            assert sorted(os.listdir(ROOT)) == ["local", "shared"]  # noqa: PTH208
        Path(ROOT, "shared", "name").write_text("of b")
        current[0] = Caller("a", 1)
        assert Path(ROOT, "local", "name").read_text() == "a"
        assert Path(ROOT, "shared", "name").read_text() == "of b"


def test_a_full_disk_refuses_content_and_names(files: Files, disk: Disk) -> None:
    disk.capacity = 1000
    with pytest.raises(OSError, match="No space left") as refused:
        write(DATA / "a", bytes(2000), sync=True)
    assert refused.value.errno == errno.ENOSPC
    write(DATA / "a", bytes(900), sync=True)
    assert os.statvfs(DATA).f_bavail == 0
    (DATA / "a").unlink()
    write(DATA / "b", bytes(900), sync=True)
    disk.is_full = True
    with pytest.raises(OSError, match="No space left"):
        (DATA / "d").mkdir()
    (DATA / "b").unlink()


def test_a_failed_sync_leaves_content_off_the_medium(files: Files, disk: Disk) -> None:
    sync_directory(DATA)
    disk.error_rates["sync"] = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        write(DATA / "a", b"content", sync=True)
    disk.error_rates.clear()
    sync_directory(DATA)
    with (DATA / "a").open("rb") as file:
        assert file.read() == b"content"
    files.crashed(disk, Loss.NOTHING)  # the pages counted as clean
    assert (DATA / "a").read_bytes() == b""


def test_reads_may_fail_and_bits_may_flip(files: Files, disk: Disk) -> None:
    write(DATA / "a", b"content", sync=True)
    disk.error_rates["read"] = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        (DATA / "a").read_bytes()
    disk.error_rates.clear()
    assert disk.damage(files.inode_of(f"{DATA}/a"))
    assert (DATA / "a").read_bytes() != b"content"


def test_the_medium_has_a_name_until_its_removal_is_synced(files: Files, disk: Disk) -> None:
    (DATA / "a").mkdir()
    write(DATA / "a" / "b", b"content", sync=True)
    assert not disk.is_on_medium("a/b")
    sync_directory(DATA / "a")
    sync_directory(DATA)
    assert disk.is_on_medium("a/b")
    (DATA / "a" / "b").unlink()
    assert disk.is_on_medium("a/b")
    sync_directory(DATA / "a")
    assert not disk.is_on_medium("a/b")


def test_a_lock_that_a_child_inherits_is_found() -> None:
    disk = Disk("data")
    parent, child = Caller("h", 1), Caller("h", 2)
    with installed(Files({"data": disk}, lambda: parent)) as files:
        (DATA / "claims").mkdir()
        descriptor = os.open(DATA / "claims" / "a", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert disk.inherited_locks("claims") == []
        files.inherit(descriptor, parent, child)
        assert disk.inherited_locks("claims") == ["a"]
        files.process_ended(child)
        assert disk.inherited_locks("claims") == []


def test_removals_may_fail(files: Files, disk: Disk) -> None:
    (DATA / "a").mkdir()
    write(DATA / "b", b"content", sync=True)
    disk.error_rates["remove"] = 1.0
    for remove in ((DATA / "a").rmdir, (DATA / "b").unlink):
        with pytest.raises(OSError, match="Input/output error"):
            remove()
    disk.error_rates.clear()
    (DATA / "a").rmdir()
    (DATA / "b").unlink()


def test_each_operation_is_announced_before_its_effect() -> None:
    seen: list[tuple[str, str, bool]] = []
    disk = Disk("data")

    def before(operation: str, path: str, _: Disk) -> None:
        if operation != "stat":
            seen.append((operation, path, "a" in disk.root.entries))

    with installed(Files({"data": disk}, before=before)):
        write(DATA / "a", b"content", sync=True)
        (DATA / "a").rename(DATA / "b")
    assert seen == [
        ("open", f"{DATA}/a", False),
        ("write", f"{DATA}/a", True),
        ("fsync", f"{DATA}/a", True),
        ("rename", f"{DATA}/b", True),
    ]


def test_the_standard_library_works_on_it(files: Files) -> None:
    (DATA / "d" / "below").mkdir(parents=True)
    (DATA / "d" / "below" / "a").write_text("one\ntwo\n")
    (DATA / "d" / "link").symlink_to("below/a")
    assert (DATA / "d" / "link").read_text().splitlines() == ["one", "two"]
    assert (DATA / "d" / "link").resolve() == DATA / "d" / "below" / "a"
    shutil.copytree(DATA / "d", DATA / "copy", symlinks=True)
    assert sorted(str(path.relative_to(DATA)) for path in (DATA / "copy").rglob("*")) == [
        "copy/below",
        "copy/below/a",
        "copy/link",
    ]
    shutil.copy2(DATA / "d" / "below" / "a", Path(ROOT, "other", "a"))
    assert [path.name for path in DATA.glob("d*")] == ["d"]
    with tempfile.TemporaryDirectory(dir=DATA) as made:
        descriptor, name = tempfile.mkstemp(dir=made)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"content")
        assert Path(name).read_bytes() == b"content"
    with (DATA / "text").open("a+") as text:
        text.write("more")
        text.seek(0)
        assert text.read() == "more"
    assert [found for found, _, _ in os.walk(DATA / "copy")] == [f"{DATA}/copy", f"{DATA}/copy/below"]
    shutil.rmtree(DATA / "copy")
    shutil.rmtree(DATA / "d")
    assert list_sizes(DATA) == {"text": 4}


def test_a_link_to_another_disk_is_a_copy_instead(files: Files) -> None:
    (DATA / "a").write_text("content")
    with pytest.raises(OSError, match="cross-device"):
        os.link(DATA / "a", Path(ROOT, "other", "a"))
    Path(ROOT, "other", "copies").mkdir()
    assert take_files(DATA, ["a"], Path(ROOT, "other", "copies")).files == 1
    assert Path(ROOT, "other", "copies", "a").read_text() == "content"


def test_real_files_stay_real(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    with pytest.raises(OSError, match="cross-device"):
        (tmp_path / "a").rename(DATA / "a")
    shutil.copyfile(tmp_path / "a", DATA / "a")
    assert (DATA / "a").read_text() == "content"
    assert not os.path.lexists(f"/proc/self/root{DATA}")


def test_everything_is_as_before_after_a_simulation() -> None:
    before = os.open, os.stat, open, os.link, fcntl.flock, len(os.supports_dir_fd)
    with installed(Files({"data": Disk("data")})):
        assert DATA.exists()
        assert os.open is not before[0]
    assert (os.open, os.stat, open, os.link, fcntl.flock, len(os.supports_dir_fd)) == before
    assert not DATA.exists()


# ------------------------------------------------------------------ against a real file system

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "missing/a"])
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["write", "append", "mkdir", "rmdir", "unlink", "list", "read", "stat", "rmtree"]), NAMES
    ),
    st.tuples(st.sampled_from(["rename", "link", "copy", "symlink"]), NAMES, NAMES),
)


def do(root: Path, number: int, step: tuple[str, ...]) -> object:
    """Carry out one step; return what its caller sees."""
    name, path = step[0], root / step[1]
    other = root / step[2] if len(step) > 2 else root
    try:
        match name:
            case "write":
                path.write_bytes(b"%d" % number)
            case "append":
                with path.open("ab") as file:
                    file.write(b"%d" % number)
                    return file.tell()
            case "mkdir":
                path.mkdir()
            case "rmdir":
                path.rmdir()
            case "unlink":
                path.unlink()
            case "list":
                return sorted(entry.name for entry in path.iterdir())
            case "read":
                return path.read_bytes()
            case "stat":
                now = path.stat()
                return oct(now.st_mode), now.st_size if path.is_file() else 0, now.st_nlink if path.is_file() else 0
            case "rmtree":
                shutil.rmtree(path)
            case "rename":
                path.rename(other)
            case "link":
                os.link(path, other, follow_symlinks=False)
            case "copy":
                shutil.copyfile(path, other)
            case "symlink":
                other.symlink_to(path.name)
    except shutil.SameFileError:
        return "same file"
    except OSError as error:
        return "refused" if error.errno is None else errno.errorcode[error.errno]
    return None


def tree(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(root.rglob("*"))
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=25))
@example([("mkdir", "d"), ("write", "d/a"), ("rename", "d/a", "d")])
def test_without_a_crash_it_is_a_file_system_like_the_real_one(steps: list[tuple[str, ...]]) -> None:
    mask = os.umask(0)
    os.umask(mask)
    with contextlib.ExitStack() as stack:
        real = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(installed(Files({"data": Disk("data")})))
        stack.callback(os.umask, os.umask(0))
        for number, step in enumerate(steps):
            assert do(DATA, number, step) == do(real, number, step), step
        assert tree(DATA) == tree(real)


MOUNT_OF = {
    "3.11": """
def is_mount(path):
    if not (os.path.exists(path) and os.path.isdir(path)):
        return False
    return os.stat(path).st_dev != os.stat(os.path.dirname(path)).st_dev
""",
    "3.12": """
def is_mount(path):
    above = os.path.realpath(os.path.join(os.lstat(path) and path, ".."))
    return os.lstat(path).st_dev != os.lstat(above).st_dev
""",
}
"""What `Path.is_mount` does in two versions of Python: another number of looks, at other paths."""


def of_the_library(source: str, name: str) -> Callable[[str], object]:
    """Return a function as if a file of the standard library defined it."""
    names: dict[str, Callable[[str], object]] = {"os": os}  # type: ignore[dict-item]
    exec(compile(source, str(Path(os.__file__).with_name("pathlib.py")), "exec"), names)
    return names[name]


def announced(disk: Disk, program: Callable[[], object]) -> list[str]:
    seen: list[str] = []
    with installed(Files({"data": disk}, before=lambda operation, _path, _disk: seen.append(operation))):
        program()
    return seen


@pytest.mark.parametrize("version", MOUNT_OF)
def test_how_often_the_standard_library_looks_is_not_announced(disk: Disk, version: str) -> None:
    is_mount = of_the_library(MOUNT_OF[version], "is_mount")

    def program() -> None:
        (DATA / "a").mkdir(parents=True)
        is_mount(f"{DATA}/a")
        is_mount(f"{DATA}/a")
        (DATA / "b").touch()

    assert announced(disk, program) == ["mkdir", "stat", "stat", "open"]


def test_each_look_and_each_change_of_the_program_itself_is_announced(disk: Disk) -> None:
    def program() -> None:
        (DATA / "a").mkdir()
        for _ in range(2):
            os.stat(DATA)  # noqa: PTH116
        for name in ("b", "c"):
            (DATA / "a" / name).write_bytes(b"1")
        shutil.rmtree(DATA / "a")

    changes = ["unlink", "unlink", "rmdir"]
    seen = announced(disk, program)
    assert seen[:3] == ["mkdir", "stat", "stat"]
    assert seen[3:7] == ["open", "write"] * 2
    assert [operation for operation in seen[7:] if operation in changes] == changes


@pytest.mark.parametrize("lists_first", [False, True])
def test_it_is_not_announced_whether_the_standard_library_looks_before_the_program_does(
    disk: Disk, lists_first: bool
) -> None:
    source = """
def select(path):
    for name in os.listdir(path):
        os.stat(os.path.join(path, name))
        yield name
"""
    select: Any = of_the_library(source, "select")

    def program() -> None:
        for name in ("a", "b"):
            (DATA / name).mkdir()
        found = select(str(DATA))
        for name in list(found) if lists_first else found:
            os.rmdir(f"{DATA}/{name}")  # noqa: PTH106

    assert announced(disk, program) == ["mkdir", "mkdir", "rmdir", "rmdir"]


@pytest.fixture
def without_rmtree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 removes the names of a tree in another order than 3.12, and ignores those that vanish meanwhile."""
    monkeypatch.setattr(shutil, "rmtree", lambda *_: pytest.fail("the standard library removes a tree"))


def fill_tree() -> None:
    for name in ("a/b/1", "a/c/2", "a/3"):
        (DATA / name).parent.mkdir(parents=True, exist_ok=True)
        (DATA / name).touch()


@pytest.mark.usefixtures("without_rmtree")
def test_a_tree_is_removed_in_the_same_order_whatever_the_standard_library_does(disk: Disk) -> None:
    removed: list[str] = []

    def before(operation: str, path: str, _disk: Disk) -> None:
        if operation in ("unlink", "rmdir"):
            removed.append(Path(path).name)

    with installed(Files({"data": disk}, before=before)):
        fill_tree()
        shutil.rmtree(DATA / "a")
    assert removed == ["2", "c", "3", "1", "b", "a"]
    assert not list(disk.walk())


@pytest.mark.usefixtures("without_rmtree")
@pytest.mark.parametrize("ignores", [False, True])
def test_an_entry_that_vanishes_is_an_error_whatever_the_standard_library_does(disk: Disk, ignores: bool) -> None:
    expected = contextlib.nullcontext() if ignores else pytest.raises(FileNotFoundError)

    def before(operation: str, path: str, _disk: Disk) -> None:
        if operation == "unlink" and path.endswith("/1"):
            files.before = None
            (DATA / "a/b/1").unlink()

    with installed(Files({"data": disk})) as files:
        fill_tree()
        files.before = before
        with expected:
            shutil.rmtree(DATA / "a", ignore_errors=ignores)
    assert bool(list(disk.walk())) is not ignores
