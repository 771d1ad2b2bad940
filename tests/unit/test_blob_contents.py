"""The server's blobs with a clock of the test's: what is deleted when, and what never is."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blob.contents import BlobContents, KeyedLocks
from blob.errors import BlobNotFound, BlobServerError
from blob.file_store import FileSystemBlobStore
from blob.key import KEY_TYPES, BlobKey, BlobType
from blob.limits import StorageBudget
from blob.storage import BlobDirectory
from blob.store import BlobStore, VoidBlobStore
from blob.uploads import UploadName
from tests.waiting import PATIENCE_S

AGE = 100.0
JOBS = [character * 32 for character in "abc"]
LIVE, DEAD, OTHER = JOBS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Contents(BlobContents):
    """As the server's, and with shorthands."""

    def __init__(self, root: Path, store: BlobStore, clock: Clock) -> None:
        super().__init__(
            BlobDirectory(root, exclusive=True), store, StorageBudget(), AGE, AGE, resume_window=10.0, clock=clock
        )

    def put(self, data: bytes, job_id: str | None, blob_type: BlobType = BlobType.PERMANENT) -> BlobKey:
        name = UploadName(blob_type, job_id, os.urandom(16), len(data))
        key = KEY_TYPES[blob_type].create(hashlib.sha256(data).digest(), name.random)
        with self.begin(name) as upload:
            os.write(upload.descriptor, data)
            self.commit(upload, key)
        return key

    def get(self, job_id: str | None, key: BlobKey) -> bytes:
        descriptor, size = self.open(job_id, key)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read()
        assert len(data) == size
        return data


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contents(tmp_path: Path, clock: Clock) -> Iterator[Contents]:
    made = Contents(tmp_path / "blob", FileSystemBlobStore(tmp_path / "store"), clock)
    yield made
    made.close()


def test_a_transient_blob_lives_from_its_last_use(contents: Contents, clock: Clock) -> None:
    forgotten, used = (contents.put(b"x", None, BlobType.TRANSIENT) for _ in range(2))
    kept = contents.put(b"x", LIVE)
    clock.now = 60.0
    contents.get(None, used)
    clock.now = AGE
    assert contents.delete_expired() == 1
    assert contents.get(None, used) == b"x"
    with pytest.raises(BlobNotFound):
        contents.get(None, forgotten)
    clock.now = 5 * AGE
    assert contents.delete_expired() == 1
    assert contents.get(LIVE, kept) == b"x"


def test_a_job_uploaded_and_never_submitted_is_swept_at_its_age(contents: Contents, clock: Clock) -> None:
    dead, live = contents.put(b"x", DEAD), contents.put(b"x", LIVE)
    contents.put(b"x", DEAD, BlobType.TRANSIENT)
    clock.now = AGE - 1
    assert contents.sweep([LIVE]) == []
    clock.now = AGE
    assert contents.sweep([LIVE]) == [DEAD]
    assert contents.get(LIVE, live) == b"x"
    with pytest.raises(BlobNotFound):
        contents.get(DEAD, dead)
    assert contents.total_bytes == 1
    assert contents.sweep([LIVE]) == []


def test_what_is_used_between_the_leaders_look_and_the_sweep_is_spared(contents: Contents, clock: Clock) -> None:
    key, other = contents.put(b"x", DEAD), contents.put(b"y", OTHER)
    clock.now = 2 * AGE
    # The leader said that neither was alive; both are submitted at this moment.
    contents.get(DEAD, key)
    contents.use_job(OTHER)
    assert contents.sweep([]) == []
    clock.now += AGE
    assert contents.sweep([OTHER]) == [DEAD]
    assert contents.get(OTHER, other) == b"y"


def test_what_only_the_store_has_is_swept_at_its_age_from_now(tmp_path: Path, clock: Clock) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    before = Contents(tmp_path / "one", store, clock)
    key, live = before.put(b"x", DEAD), before.put(b"x", LIVE)
    before.close()
    clock.now = 1000 * AGE
    after = Contents(tmp_path / "two", store, clock)
    assert after.sweep([LIVE]) == []
    clock.now += AGE
    assert after.sweep([LIVE]) == [DEAD]
    assert store.jobs() == {LIVE}
    assert after.get(LIVE, live) == b"x"
    with pytest.raises(BlobNotFound):
        after.get(DEAD, key)
    after.close()


def test_a_restarted_server_begins_the_ages_anew(tmp_path: Path, clock: Clock) -> None:
    before = Contents(tmp_path / "blob", VoidBlobStore(), clock)
    before.put(b"x", DEAD)
    before.close()
    clock.now = 1000 * AGE
    after = Contents(tmp_path / "blob", VoidBlobStore(), clock)
    assert after.sweep([]) == []
    clock.now += AGE
    assert after.sweep([]) == [DEAD]
    after.close()


def test_the_end_of_a_job_ends_its_interrupted_uploads(contents: Contents, clock: Clock) -> None:
    for job_id in (DEAD, LIVE):
        with contents.begin(UploadName(BlobType.PERMANENT, job_id, bytes(16), 10_000_000)) as upload:
            upload.received = 5_000_000
            contents.park(upload)
    assert (contents.parked_uploads, contents.total_bytes) == (2, 20_000_000)
    contents.delete_job(DEAD)
    assert (contents.parked_uploads, contents.total_bytes) == (1, 10_000_000)
    clock.now = 10.0
    contents.delete_expired()
    assert (contents.parked_uploads, contents.total_bytes) == (0, 0)
    assert list((contents.directory.root / "incoming").iterdir()) == []


def test_a_job_is_not_deleted_in_the_middle_of_a_put(tmp_path: Path, clock: Clock) -> None:
    copying, go_on = threading.Event(), threading.Event()

    class SlowStore(FileSystemBlobStore):
        def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
            copying.set()
            assert go_on.wait(PATIENCE_S)
            return super().put(local, job_id, key)

    store = SlowStore(tmp_path / "store")
    contents = Contents(tmp_path / "blob", store, clock)
    with ThreadPoolExecutor(2) as pool:
        put = pool.submit(contents.put, b"x", DEAD)
        assert copying.wait(PATIENCE_S)
        deletion = pool.submit(contents.delete_job, DEAD)
        go_on.set()
        put.result(PATIENCE_S)
        assert deletion.result(PATIENCE_S)
    # Without the lock the copy could have come into the store after the job had been deleted there.
    assert (store.jobs(), contents.total_bytes) == (set(), 0)
    contents.close()


STEPS = st.one_of(
    st.tuples(st.sampled_from(["put", "get", "submit", "submit unknown to a sweep"]), st.sampled_from(JOBS)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, AGE / 2, AGE])),
    st.tuples(st.sampled_from(["sweep", "restart", "restart elsewhere"]), st.just("")),
)


@given(st.lists(STEPS, max_size=25))
def test_nothing_of_a_running_job_is_ever_touched(steps: list[tuple[str, str | float]]) -> None:
    """A leader may know late of a submission (its list is from before it), but not of the life of a job."""
    with tempfile.TemporaryDirectory() as scratch:
        root, clock, servers = Path(scratch), Clock(), 1
        store = FileSystemBlobStore(root / "store")
        contents = Contents(root / "blob-1", store, clock)
        blobs: dict[str, list[BlobKey]] = {job_id: [] for job_id in JOBS}
        live: set[str] = set()
        for action, argument in steps:
            job_id, known = str(argument), set(live)
            match action:
                case "put":
                    blobs[job_id].append(contents.put(b"x", job_id))
                case "get" if job_id in live:
                    assert is_whole(contents, job_id, blobs)
                case "submit" | "submit unknown to a sweep" if is_whole(contents, job_id, blobs):
                    contents.use_job(job_id)
                    live.add(job_id)
                    if action != "submit":
                        contents.sweep(known)
                case "wait":
                    clock.now += float(argument)
                case "sweep":
                    contents.sweep(live)
                case "restart" | "restart elsewhere":
                    contents.close()
                    servers += action != "restart"
                    contents = Contents(root / f"blob-{servers}", store, clock)
            assert store.jobs() >= live
        assert all(is_whole(contents, job_id, blobs) for job_id in live)
        # What a server has never heard of gets its age from the first sweep on.
        for _ in range(2):
            clock.now += AGE
            contents.sweep(live)
        assert store.jobs() == live
        contents.close()


def is_whole(contents: Contents, job_id: str, blobs: dict[str, list[BlobKey]]) -> bool:
    """Whether all of a job's blobs are there; if not (they were swept), its client has to upload all of them again."""
    try:
        for key in blobs[job_id]:
            contents.get(job_id, key)
    except BlobNotFound:
        blobs[job_id].clear()
    return bool(blobs[job_id])


def test_a_blob_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = Contents(tmp_path / "blobs", VoidBlobStore(), Clock())
    contents.put(b"the first one makes the directory of its job", LIVE)
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name.partition('-')[0]}")

    replace = Path.replace

    def replaced(path: Path, target: Path) -> None:
        steps.append("rename")
        replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    contents.put(b"x", LIVE)
    assert steps == ["sync temp", "rename", f"sync job_{LIVE}"]
    contents.close()


def _note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return synced


def test_the_names_of_its_directories_are_on_the_disk_when_a_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cluster" / "blobs"
    (root / f"job_{LIVE}").mkdir(parents=True)  # by a server that was killed before it had synced a name
    synced = _note_syncs(monkeypatch)
    BlobDirectory(root, exclusive=True).close()
    assert {root, root.parent, tmp_path} <= set(synced)
    synced.clear()
    BlobDirectory(tmp_path / "cache", exclusive=False).close()
    assert synced == [], "a cache needs to survive nothing"


def test_the_directory_of_a_job_whose_name_the_disk_did_not_take_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = Contents(tmp_path / "blobs", VoidBlobStore(), Clock())

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path / "blobs":
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(BlobServerError, match="Input/output"):
            contents.put(b"x", LIVE)
    synced = _note_syncs(monkeypatch)
    contents.put(b"x", LIVE)
    assert tmp_path / "blobs" in synced
    contents.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_directories_of_jobs_without_blobs_are_swept(tmp_path: Path, clock: Clock, restarted: bool) -> None:
    contents = Contents(tmp_path / "blobs", VoidBlobStore(), clock)
    deleted = contents.put(b"x", LIVE, BlobType.TRANSIENT)
    contents.put(b"x", DEAD, BlobType.TRANSIENT)
    kept = contents.put(b"x", OTHER)
    contents.delete(LIVE, deleted)
    clock.now = AGE
    contents.get(OTHER, kept)
    contents.delete_expired()
    if restarted:
        contents.close()
        contents = Contents(tmp_path / "blobs", VoidBlobStore(), clock)
    contents.sweep([LIVE, OTHER])
    assert [path.name for path in (tmp_path / "blobs").glob("job_*")] == [f"job_{OTHER}"]
    assert contents.get(LIVE, contents.put(b"y", LIVE)) == b"y"
    contents.close()


def test_an_upload_that_comes_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "blobs", VoidBlobStore(), Clock())
    with contents.begin(UploadName(BlobType.PERMANENT, LIVE, os.urandom(16), 5)) as upload:
        os.write(upload.descriptor, b"half")
        assert (contents.total_bytes, upload.temporary.exists()) == (5, True)
    assert (contents.total_bytes, upload.temporary.exists()) == (0, False)
    contents.close()


def test_what_a_failing_disk_does_not_remove_counts_until_it_is_removed(
    contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = tmp_path / "blob" / "incoming"
    contents.put(b"12345", DEAD)
    key = contents.put(b"123", None, BlobType.TRANSIENT)
    upload = contents.begin(UploadName(BlobType.PERMANENT, LIVE, os.urandom(16), 20))
    with monkeypatch.context() as failing:
        for function in ("unlink", "rmdir"):
            failing.setattr(os, function, _fail)
        upload.end()
        assert contents.delete_job(DEAD, from_store=False)
        assert contents.delete(None, key)
        contents.delete_expired()
    with pytest.raises(BlobNotFound):
        contents.get(None, key)
    assert (contents.total_bytes, len(list(incoming.iterdir()))) == (28, 3)
    contents.delete_expired()
    assert (contents.total_bytes, list(incoming.iterdir())) == (0, [])


def _fail(*_arguments: object, **_keywords: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_what_is_used_when_the_sweep_comes_to_it_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    contents = Contents(tmp_path / "blobs", VoidBlobStore(), clock)
    key = contents.put(b"x", DEAD)
    clock.now = AGE
    exclusive = KeyedLocks.exclusive

    def used_first(locks: KeyedLocks[str | None], job_id: str) -> AbstractContextManager[None]:
        contents.use_job(job_id)
        return exclusive(locks, job_id)

    with monkeypatch.context() as patch:
        patch.setattr(KeyedLocks, "exclusive", used_first)
        assert contents.sweep([]) == []
    assert contents.get(DEAD, key) == b"x"
    clock.now += AGE
    assert contents.sweep([]) == [DEAD]
    contents.close()
