"""Environments of jobs: built once, leased, kept apart, removed when unused. pip is real; its packages are local."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule
from hypothesis.strategies import sampled_from

from runtime.ids import JobID
from runtime.librarycache import manager
from runtime.librarycache.builder import EnvironmentBuilder, _make_private, without_credentials
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.errors import EnvironmentBuildError, LeaseConflictError, LibraryCacheError
from runtime.librarycache.manager import EnvironmentLeases, LibraryCacheManager
from tests.waiting import PATIENCE_S

JOB, OTHER = JobID("a" * 32), JobID("b" * 32)
OFFLINE = ("--no-index", "--no-deps")


class Files:
    """Stands for the blob cache: files by digest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fetched: list[str] = []

    def add(self, name: str, kind: LibraryKind, content: bytes) -> Library:
        library = Library(name, kind, f"{hash((name, content)) & 0xFFFFFFFFFFFF:012x}")
        (self._directory / library.digest).write_bytes(content)
        return library

    def fetch(self, library: Library) -> Path:
        self.fetched.append(library.name)
        return self._directory / library.digest


@pytest.fixture
def files(tmp_path: Path) -> Files:
    directory = tmp_path / "blobs"
    directory.mkdir()
    return Files(directory)


@pytest.fixture
def builder() -> EnvironmentBuilder:
    return EnvironmentBuilder(OFFLINE)


def manager_in(tmp_path: Path, builder: EnvironmentBuilder, now: list[float] | None = None) -> LibraryCacheManager:
    clock = now or [0.0]
    return LibraryCacheManager(tmp_path / "environments", builder, retention_s=10.0, clock=lambda: clock[0])


def wheel(name: str, version: str, module: str) -> bytes:
    """A wheel with one module."""
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(zipfile.ZipInfo(f"{name}.py"), module)  # a time of its own would be another content
        packed.writestr(
            zipfile.ZipInfo(f"{info}/METADATA"), f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        packed.writestr(
            zipfile.ZipInfo(f"{info}/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return out.getvalue()


def value_in(environment: PythonEnvironment, expression: str) -> str:
    """What an interpreter with the environment's path makes of an expression."""
    code = f"import sys; sys.path[:0] = {list(environment.import_path)!r}; print({expression})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def package(files: Files, version: str) -> EnvironmentSpec:
    content = wheel("understudy_probe", version, f"version = {version!r}\n")
    return EnvironmentSpec((files.add(f"understudy_probe-{version}-py3-none-any.whl", LibraryKind.PACKAGE, content),))


def test_a_wheel_is_installed_and_imported(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    lease = manager_in(tmp_path, builder).register_lease(JOB)
    environment = lease.get_or_resolve(package(files, "1.0"), files.fetch)
    assert [path for path in environment.directory.rglob("*") if path.stat().st_mode & 0o077] == []
    assert value_in(environment, "__import__('understudy_probe').version") == "1.0"


def test_two_jobs_see_two_versions_at_once(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    manager = manager_in(tmp_path, builder)
    first = manager.register_lease(JOB).get_or_resolve(package(files, "1.0"), files.fetch)
    second = manager.register_lease(OTHER).get_or_resolve(package(files, "2.0"), files.fetch)
    assert value_in(first, "__import__('understudy_probe').version") == "1.0"
    assert value_in(second, "__import__('understudy_probe').version") == "2.0"


def test_py_files_archives_and_jars_have_their_places(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("unpacked_probe.py", "value = 'from the archive'")
    spec = EnvironmentSpec(
        (
            files.add("helper.py", LibraryKind.PY_FILE, b"value = 'first'"),
            files.add("helper.py", LibraryKind.PY_FILE, b"value = 'second'"),
            files.add("modules.zip", LibraryKind.ARCHIVE, archive.getvalue()),
            files.add("connector.jar", LibraryKind.JAR, b"PK"),
        )
    )
    environment = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    open_to_others = [path for path in environment.directory.rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert value_in(environment, "__import__('helper').value") == "first"
    assert value_in(environment, "__import__('unpacked_probe').value") == "from the archive"
    assert [path.name for path in environment.jars] == ["connector.jar"]
    assert environment.site is None


def test_a_packed_virtual_environment_gives_its_packages(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    home = tmp_path / "packed"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "venv_probe.py").write_text("value = 'from the environment'")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        packed.add(home, arcname=".")
    spec = EnvironmentSpec((files.add("env.tar.gz", LibraryKind.ARCHIVE, out.getvalue()),))
    environment = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    assert value_in(environment, "__import__('venv_probe').value") == "from the environment"


def test_an_environment_of_another_python_is_refused(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("lib/python2.7/site-packages/old.py", "")
    spec = EnvironmentSpec((files.add("env.zip", LibraryKind.ARCHIVE, out.getvalue()),))
    with pytest.raises(EnvironmentBuildError, match=r"python2\.7.*pack it with"):
        manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", "", "a/b.whl"])
def test_a_name_that_is_no_file_name_is_refused(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder, name: str
) -> None:
    spec = EnvironmentSpec((files.add(name, LibraryKind.PY_FILE, b""),))
    with pytest.raises(EnvironmentBuildError, match="not a file name"):
        manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("beside", [(), ("pyvenv.cfg",)], ids=["archive", "environment"])
def test_an_archive_does_not_leave_its_directory(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder, beside: tuple[str, ...]
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name in beside:
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
        member = tarfile.TarInfo("../../escaped.py")
        packed.addfile(member, io.BytesIO())
    spec = EnvironmentSpec((files.add("evil.tar", LibraryKind.ARCHIVE, out.getvalue()),))
    with pytest.raises(EnvironmentBuildError, match=r"evil\.tar cannot be unpacked"):
        manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    assert not list(tmp_path.rglob("escaped.py"))


@pytest.mark.parametrize("beside", [(), ("pyvenv.cfg",)], ids=["archive", "environment"])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE], ids=["hard link", "link"])
@pytest.mark.parametrize("through", ["link", "link/theirs"])
def test_an_archive_writes_through_no_link_to_what_is_outside(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder, beside: tuple[str, ...], kind: bytes, through: str
) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").chmod(0o640)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name in beside:
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("link")
        link.type = kind
        up = "../" * (3 if kind == tarfile.SYMTYPE else 4)
        link.linkname = f"{up}../theirs" if through == "link" else f"{up}.."
        packed.addfile(link)
        member = tarfile.TarInfo(through)
        member.size = 4
        packed.addfile(member, io.BytesIO(b"mine"))
    spec = EnvironmentSpec((files.add("evil.tar", LibraryKind.ARCHIVE, out.getvalue()),))
    for depth in range(2, 6):  # wherever it is unpacked
        with suppress(EnvironmentBuildError):
            manager_in(tmp_path.joinpath(*"x" * (depth - 2)), builder).register_lease(JOB).get_or_resolve(
                spec, files.fetch
            )
        assert (tmp_path / "theirs").read_bytes() == b"theirs"
        assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["../../escaped.py", "/tmp/understudy-escaped.py", "a/../../../escaped.py"])
def test_a_zip_does_not_leave_its_directory(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder, name: str
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(name, "")
    spec = EnvironmentSpec((files.add("evil.zip", LibraryKind.ARCHIVE, out.getvalue()),))
    built = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    escaped = [*tmp_path.rglob("*escaped.py"), *Path("/tmp").glob("understudy-escaped.py")]
    assert [path.is_relative_to(built.directory) for path in escaped] == [True]


def test_what_is_built_is_its_users_alone(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        member = tarfile.TarInfo("open/to_all.py")
        member.mode = 0o666
        packed.addfile(member, io.BytesIO())
    spec = EnvironmentSpec((files.add("open.tar", LibraryKind.ARCHIVE, out.getvalue()),))
    built = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    assert list(built.directory.rglob("to_all.py"))
    assert [path for path in built.directory.rglob("*") if path.stat().st_mode & 0o077] == []


def test_what_pip_refuses_is_said_and_nothing_is_left(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    manager = manager_in(tmp_path, builder)
    spec = EnvironmentSpec((files.add("broken-1.0-py3-none-any.whl", LibraryKind.PACKAGE, b"no zip"),))
    lease = manager.register_lease(JOB)
    with pytest.raises(EnvironmentBuildError, match=r"pip could not install.*broken"):
        lease.get_or_resolve(spec, files.fetch)
    assert list((tmp_path / "environments").iterdir()) == []
    good = package(files, "1.0")
    assert lease.get_or_resolve(good, files.fetch).site is not None, "a failed build does not bind the job"


def test_a_cancelled_job_ends_its_installation(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    manager = manager_in(tmp_path, builder)
    lease = manager.register_lease(JOB)
    with pytest.raises(EnvironmentBuildError, match="was cancelled"):
        lease.get_or_resolve(package(files, "1.0"), files.fetch, lambda: True)
    assert list((tmp_path / "environments").iterdir()) == []


def test_an_installation_has_its_time(tmp_path: Path, files: Files) -> None:
    manager = manager_in(tmp_path, EnvironmentBuilder(OFFLINE, timeout_s=0.0))
    with pytest.raises(EnvironmentBuildError, match=r"within 0 s; raise taskmanager\.python\.install-timeout"):
        manager.register_lease(JOB).get_or_resolve(package(files, "1.0"), files.fetch)


def test_credentials_of_an_index_are_on_no_command_line() -> None:
    options = [
        "-i",
        "https://me:pw1@host/simple",
        "--extra-index-url=https://me:pw2@b/",
        "--no-index",
        "--timeout",
        "5",
    ]
    options += ["--extra-index-url", "https://pw3@c/", "--find-links", "https://d/"]
    left, environment = without_credentials(options)
    assert left == ["--no-index", "--timeout", "5", "--find-links", "https://d/"]
    assert environment == {
        "PIP_INDEX_URL": "https://me:pw1@host/simple",
        "PIP_EXTRA_INDEX_URL": "https://me:pw2@b/ https://pw3@c/",
    }


def test_packages_that_bring_pyspark_are_refused(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("pyspark/__init__.py", "")
        packed.writestr("fake-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
        packed.writestr("fake-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("fake-1.0.dist-info/RECORD", "")
    spec = EnvironmentSpec((files.add("fake-1.0-py3-none-any.whl", LibraryKind.PACKAGE, out.getvalue()),))
    with pytest.raises(EnvironmentBuildError, match="bring pyspark"):
        manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)


def test_an_environment_is_built_once_however_many_ask(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    manager, spec = manager_in(tmp_path, builder), package(files, "1.0")
    ready = threading.Barrier(6)

    def ask(job: str) -> PythonEnvironment:
        lease = manager.register_lease(JobID(job * 32))
        ready.wait()
        return lease.get_or_resolve(spec, files.fetch)

    with ThreadPoolExecutor(6) as pool:
        environments = set(pool.map(ask, "aabbcd"))
    assert len(environments) == 1
    assert len(files.fetched) == 1


def test_a_conflicting_lease_is_an_error_that_names_both(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    manager = manager_in(tmp_path, builder)
    manager.register_lease(JOB).get_or_resolve(package(files, "1.0"), files.fetch)
    with pytest.raises(LeaseConflictError, match=r"probe-1\.0.*probe-2\.0"):
        manager.register_lease(JOB).get_or_resolve(package(files, "2.0"), files.fetch)


def test_unused_environments_go_after_the_retention_and_leased_ones_stay(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    now = [0.0]
    manager = manager_in(tmp_path, builder, now)
    first, second = manager.register_lease(JOB), manager.register_lease(JOB)
    environment = first.get_or_resolve(package(files, "1.0"), files.fetch)
    second.get_or_resolve(package(files, "1.0"), files.fetch)
    first.release()
    first.release()
    now[0] = 100.0
    assert manager.remove_unused() == []
    second.release()
    now[0] = 109.9
    assert manager.remove_unused() == []
    now[0] = 110.0
    assert manager.remove_unused() == [environment.directory.name]
    assert list((tmp_path / "environments").iterdir()) == []
    again = manager.register_lease(JOB).get_or_resolve(package(files, "1.0"), files.fetch)
    assert value_in(again, "__import__('understudy_probe').version") == "1.0"


def test_a_successor_uses_what_is_there_and_clears_what_is_half_built(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder
) -> None:
    spec = package(files, "1.0")
    manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    (tmp_path / "environments" / "incoming-xyz").mkdir()
    now = [0.0]
    successor = manager_in(tmp_path, builder, now)
    assert successor.register_lease(OTHER).get_or_resolve(spec, files.fetch).site is not None
    assert files.fetched == ["understudy_probe-1.0-py3-none-any.whl"]
    assert [path.name for path in (tmp_path / "environments").iterdir()] == [spec.key]


def test_an_environment_of_before_a_loss_of_power_is_built_anew(
    tmp_path: Path, files: Files, builder: EnvironmentBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were not synced, so they may be empty."""
    spec = EnvironmentSpec((files.add("m.py", LibraryKind.PY_FILE, b"x = 1"),))
    [module] = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch).py_files
    module.unlink()  # it may be linked to the blob cache's
    module.write_bytes(b"")
    same = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
    assert (same.py_files[0].read_bytes(), files.fetched) == (b"", ["m.py"]), "the worker alone was restarted"
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(manager, "BOOT_ID", tmp_path / "boot")
    for _ in range(2):
        again = manager_in(tmp_path, builder).register_lease(JOB).get_or_resolve(spec, files.fetch)
        assert (again.py_files[0].read_bytes(), files.fetched) == (b"x = 1", ["m.py", "m.py"])


def test_a_released_lease_gives_nothing(tmp_path: Path, files: Files, builder: EnvironmentBuilder) -> None:
    lease = manager_in(tmp_path, builder).register_lease(JOB)
    lease.release()
    with pytest.raises(LibraryCacheError, match="was released"):
        lease.get_or_resolve(package(files, "1.0"), files.fetch)


class HeldBuilder(EnvironmentBuilder):
    """Builds nothing but a directory; the first build fails once it is told to."""

    def __init__(self) -> None:
        super().__init__(OFFLINE)
        self.begun, self.fail = threading.Event(), threading.Event()

    def build(self, spec: EnvironmentSpec, directory: Path, fetch: object, cancelled: object = None) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.fail.wait(PATIENCE_S)
            raise EnvironmentBuildError("the task was cancelled")


def test_a_task_whose_build_fails_takes_the_environment_from_no_other_task_of_its_job(
    tmp_path: Path, files: Files
) -> None:
    now, builder = [1e6], HeldBuilder()
    manager, spec = manager_in(tmp_path, builder, now), package(files, "1.0")
    first, second = manager.register_lease(JOB), manager.register_lease(JOB)
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(first.get_or_resolve, spec, files.fetch)
        assert builder.begun.wait(PATIENCE_S)
        waiting = pool.submit(second.get_or_resolve, spec, files.fetch)
        builder.fail.set()
        with pytest.raises(EnvironmentBuildError):
            failing.result()
        environment = waiting.result()
    first.release()
    now[0] += 1e6
    assert manager.remove_unused() == []
    assert environment.directory.is_dir()
    with pytest.raises(LeaseConflictError):
        manager.register_lease(JOB).get_or_resolve(package(files, "2.0"), files.fetch)
    second.release()
    now[0] += 9.0
    assert manager.remove_unused() == []
    now[0] += 1.0
    assert manager.remove_unused() == [spec.key]


class LeasesMachine(RuleBasedStateMachine):
    """Whatever order leases are taken, built, failed and released in, none loses what it holds, and the rest goes."""

    JOBS = (JobID("a" * 32), JobID("b" * 32))
    SPECS = tuple(EnvironmentSpec((Library(name, LibraryKind.PY_FILE, name),)) for name in "xyz")
    RETENTION_S = 10.0
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = 5.0
        self.core = EnvironmentLeases(self.now)
        self.job_of: dict[int, JobID] = {}
        self.held: dict[int, EnvironmentSpec] = {}
        self.there: set[str] = {self.SPECS[0].key}  # a predecessor's
        self.unused_since = dict.fromkeys((spec.key for spec in self.SPECS), self.now)

    def _left(self, number: int) -> None:
        spec = self.held.pop(number, None)
        if spec is not None and spec not in self.held.values():
            self.unused_since[spec.key] = self.now

    @rule(target=leases, job=sampled_from(JOBS))
    def register(self, job: JobID) -> int:
        number = self.core.register(job)
        self.job_of[number] = job
        return number

    @rule(number=leases, spec=sampled_from(SPECS))
    def hold(self, number: int, spec: EnvironmentSpec) -> None:
        job = self.job_of.get(number)
        others = {held for other, held in self.held.items() if self.job_of[other] == job}
        if job is None or others - {spec}:
            with pytest.raises(LibraryCacheError):
                self.core.hold(number, spec)
        else:
            self.core.hold(number, spec)
            self.held[number] = spec

    @rule(number=leases)
    def built(self, number: int) -> None:
        if number in self.held:
            self.there.add(self.held[number].key)

    @rule(number=leases)
    def build_failed(self, number: int) -> None:
        self.core.build_failed(number, self.now)
        self._left(number)

    @rule(number=leases)
    def release(self, number: int) -> None:
        self.core.release(number, self.now)
        self._left(number)
        self.job_of.pop(number, None)

    @rule(passed=sampled_from([0.0, 4.0, 9.0, 20.0]))
    def sweep(self, passed: float) -> None:
        self.now += passed
        taken = set(self.core.take_unused(self.there, self.now, self.RETENTION_S))
        unheld = self.there - {spec.key for spec in self.held.values()}
        assert taken == {key for key in unheld if self.now - self.unused_since[key] >= self.RETENTION_S}
        self.there -= taken


TestLeases = LeasesMachine.TestCase


def test_an_environment_that_cannot_be_removed_keeps_no_worker_from_its_start(
    tmp_path: Path, builder: EnvironmentBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    environments = tmp_path / "environments"
    (environments / "of-an-earlier-boot").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        manager_in(tmp_path, builder)
    assert "cannot be removed, remove it by hand" in caplog.text
    assert not (environments / "of-an-earlier-boot").exists(), "it is not an environment any more"
    manager_in(tmp_path, builder)
    assert list(environments.iterdir()) == []


def test_directories_of_an_environment_can_be_removed_by_their_user(tmp_path: Path) -> None:
    read_only = tmp_path / "site" / "package"
    read_only.mkdir(parents=True)
    (read_only / "module.py").touch(0o444)
    read_only.chmod(0o555)
    _make_private(tmp_path)
    assert read_only.stat().st_mode & 0o777 == 0o700
    assert (read_only / "module.py").stat().st_mode & 0o777 == 0o400
