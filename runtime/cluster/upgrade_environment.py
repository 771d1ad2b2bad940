"""The Python environments of an upgrade: that of the other release, the former one, and those made from wheels.

`cluster upgrade --to WHEEL` makes a virtual environment in a directory beside the runtime directory
(`ClusterDirectory.environments`). It is named after the version and the digest of the wheel. Its last file says that it
is complete; without that file it is remade. Its packages follow from those of the cluster (`contents_for`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from email.parser import BytesHeaderParser
from pathlib import Path

import runtime
from conf.files import remove_tree, write_private
from runtime.cluster.upgrade_plan import ClusterState, PlannedProcess, Target, UpgradeRefusedError, runs_from
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.feature_level import FeatureLevels, Release, supported_levels
from runtime.protocol.hand_over import READABLE, python_version

PROJECT, SPARK = "understudy-spark", "pyspark"
TOOLS = frozenset({"pip", "setuptools", "wheel"})
COMPLETE = "understudy-complete.json"
"""File of an environment that was made from a wheel, written last: the digest of the wheel, and the PySpark."""
VENV = ("-m", "venv")
PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
PROBE_S = 60.0
_PROBE = """
import importlib.metadata, json, runtime, sys
from runtime.feature_level import supported_levels
from runtime.protocol.resource_manager import ResourceManagerGateway
try:
    spark = importlib.metadata.version("pyspark")
except importlib.metadata.PackageNotFoundError:
    spark = ""
levels = supported_levels()
drains = hasattr(ResourceManagerGateway, "drain_task_manager")
try:
    from runtime.protocol.hand_over import READABLE as adopts
except ImportError:
    adopts = ()
python = ".".join(map(str, sys.version_info[:2]))
print(json.dumps([runtime.__version__, levels.oldest, levels.newest, spark, drains, python, adopts]))
"""
"""Program that prints the release of an environment; its packages may be of any release since 0.1.0."""
_PACKAGES = """
import importlib.metadata, json

def described(each):
    origin = json.loads(each.read_text("direct_url.json") or "{}").get("url", "")
    return each.metadata["Name"], each.version, each.requires or [], origin

found = map(described, importlib.metadata.distributions())

print(json.dumps([package for package in found if package[0]]))
"""
"""Program that prints the distributions of an environment."""
_ROOT = str(Path(__file__).resolve().parents[2])


def _pyspark() -> str:
    """Return the version of this environment's PySpark; empty if there is none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment with Understudy: this process's own, or another one.

    Args:
        python: its interpreter.
        path: directories of packages, as in ``PYTHONPATH``.
        is_own: whether this process runs in it.
    """

    python: Path
    path: str = ""
    is_own: bool = False

    @classmethod
    def of(cls, venv: Path | None) -> Environment:
        """Return the environment in a directory; None: that of this process.

        The packages of this process are on the path only in its own environment.

        Raises:
            UpgradeRefusedError: the directory is not a virtual environment.
        """
        path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != _ROOT]
        if venv is None:
            return cls(Path(sys.executable), os.pathsep.join([_ROOT, *path]), is_own=True)
        python = venv.absolute() / "bin" / "python"
        if not os.access(python, os.X_OK):
            raise UpgradeRefusedError(
                f"{venv} is not a virtual environment: it has no program bin/python",
                "name the directory that `python -m venv` has made",
            )
        return cls(python, os.pathsep.join(path))

    @classmethod
    def of_process(cls, pid: int) -> Environment:
        """Return the environment of a running master. Raises OSError if it has ended."""
        process = Path(f"/proc/{pid}")
        program = os.fsdecode((process / "cmdline").read_bytes().split(b"\0")[0])
        lines = os.fsdecode((process / "environ").read_bytes()).split("\0")
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        if os.sep not in program:
            program = shutil.which(program, path=variables.get("PATH")) or program
        return cls((process / "cwd").readlink() / program, variables.get("PYTHONPATH", ""))

    def run(self, arguments: list[str], timeout_s: float | None) -> subprocess.CompletedProcess[str]:
        """Run its Python with arguments, and return what that has printed.

        Raises:
            OSError, subprocess.TimeoutExpired: it cannot be run, or does not end.
        """
        return subprocess.run(
            [str(self.python), "-P", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": self.path},
            timeout=timeout_s,
            check=False,
        )

    def packages(self) -> list[Package]:
        """Return the distributions that it has, in the order of its path.

        Raises:
            UpgradeRefusedError: its Python cannot be run.
        """
        try:
            done = self.run(["-c", _PACKAGES], PROBE_S)
            if done.returncode != 0:
                raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
            return [Package(name, version, tuple(needs), url) for name, version, needs, url in json.loads(done.stdout)]
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise UpgradeRefusedError(
                f"the packages of {self.python}, which runs the cluster, cannot be listed: {error}",
                "make a virtual environment, and name that with --to",
            ) from error

    def target(self) -> Target:
        """Return the release that is installed there.

        Raises:
            UpgradeRefusedError: there is none, or it cannot be imported.
        """
        if self.is_own:
            release = Release(runtime.__version__, supported_levels())
            return Target(release, _pyspark(), str(self.python), python_version=python_version(), adopts=READABLE)
        try:
            done = self.run(["-c", _PROBE], PROBE_S)
            if done.returncode != 0:
                raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
            version, oldest, newest, spark, drains, python, adopts = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise UpgradeRefusedError(
                f"{self.python} has no Understudy that a cluster could run: {error}",
                f"install it there: {self.python} -m pip install understudy-spark",
            ) from error
        release = Release(version, FeatureLevels(oldest, newest))
        return Target(release, spark, str(self.python), drains, python, tuple(adopts))


@dataclass(frozen=True, slots=True)
class FormerEnvironment:
    """The environment to which `--rollback` returns, as a file in the runtime directory names it.

    Args:
        version: of Understudy that the cluster ran there.
        python: its interpreter.
        path: directories of packages, as in ``PYTHONPATH``.
    """

    version: str
    python: str
    path: str

    @classmethod
    def read(cls, directory: ClusterDirectory) -> FormerEnvironment | None:
        """Return the environment before the last upgrade; None if there was no upgrade since the cluster's start."""
        try:
            return cls.decode(directory.upgraded_from.read_bytes())
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def decode(cls, data: bytes) -> FormerEnvironment:
        """Return an environment from its stored form; raises ValueError, KeyError or TypeError."""
        values = json.loads(data)
        return cls(*(str(values[name]) for name in ("version", "python", "path")))

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def keep(cls, directory: ClusterDirectory, step: PlannedProcess, state: ClusterState) -> None:
        """Write the environment of a master that is about to be exchanged.

        The file stays as it is if a process still runs its release: then an upgrade was interrupted. It also stays if
        the cluster returns to its release. A master that has just ended tells nothing; the next one does.

        Raises:
            OSError: the file cannot be written.
        """
        former = cls.read(directory)
        if former is not None and (former.version == step.target_version or runs_from(former.version, state)):
            return
        try:
            environment = Environment.of_process(step.pid)
        except OSError:
            return
        noted = cls(step.version, str(environment.python), environment.path)
        write_private(directory.upgraded_from, noted.encode())

    @classmethod
    def required(cls, directory: ClusterDirectory) -> tuple[Environment, Target]:
        """Return the environment before the last upgrade, and its release.

        Raises:
            UpgradeRefusedError: no upgrade is known, or the environment has another release by now.
        """
        former = cls.read(directory)
        if former is None:
            raise UpgradeRefusedError(
                "there is no upgrade to undo: the cluster was not upgraded since its start, or its upgrade was undone",
                "name the environment of the earlier release with --to",
            )
        environment = Environment(Path(former.python), former.path)
        target = environment.target()
        if target.release.version != former.version:
            raise UpgradeRefusedError(
                f"the cluster ran Understudy {former.version} before, and {former.python} has {target.release} now",
                f"install {former.version} into a virtual environment, and name that with --to",
            )
        return environment, target


# ------------------------------------------------------------------------ wheels


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that an environment has.

    Args:
        name: as it is published.
        version: of it.
        requires: its requirements, as its metadata has them.
        origin: URL or directory that it was installed from; empty for an index.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of Understudy.

    Args:
        path: of the file.
        version: of Understudy.
        digest: SHA-256 of the file, in hexadecimal digits.
        requires: its requirements, as its metadata has them.
    """

    path: Path
    version: str
    digest: str
    requires: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of an environment that is made from it."""
        return f"{self.version}-{self.digest[:12]}"

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Return the wheel in a file.

        Raises:
            UpgradeRefusedError: the file cannot be read, or is not a wheel of Understudy.
        """
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            with zipfile.ZipFile(path) as archive:
                [metadata] = [each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)]
                described = BytesHeaderParser().parsebytes(archive.read(metadata))
            name, version = str(described["Name"]), str(described["Version"])
            if _normalized(name) != PROJECT or not re.fullmatch(r"[0-9A-Za-z.+!_-]+", version):
                raise ValueError(f"it has {name} {version}")
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise UpgradeRefusedError(
                f"{path} is not a wheel of Understudy: {getattr(error, 'strerror', None) or error}",
                "name a file understudy_spark-VERSION-py3-none-any.whl, or the directory of a virtual environment",
            ) from error
        return cls(path.absolute(), version, digest, tuple(described.get_all("Requires-Dist") or ()))


@dataclass(frozen=True, slots=True)
class Contents:
    """The packages of an environment that is made from a wheel, as pip's requirements.

    Args:
        understudy: with its extras, from the wheel.
        spark: PySpark.
        others: packages that jobs may import.
        left_out: packages of the cluster's environment that no index has, with their origins.
    """

    understudy: str
    spark: str
    others: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """All of them, as arguments of ``pip install``."""
        return (self.understudy, self.spark, *self.others)

    def warning(self) -> tuple[str, str]:
        """Return what the environment lacks, and the remedy; both are empty for nothing."""
        if not self.left_out:
            return "", ""
        return (
            f"the environment of the cluster has packages that no index has: {', '.join(self.left_out)}; jobs that "
            "import them would fail",
            "make a virtual environment with them and name that with --to, or accept this with --yes",
        )


def contents_for(wheel: Wheel, packages: Iterable[Package]) -> Contents:
    """Return what has to be installed so that a cluster's jobs find what they find now.

    Args:
        wheel: of Understudy. It gets each of its extras whose packages the cluster's environment has.
        packages: of the cluster's environment. Those that Understudy does not need are installed in the same version.

    Raises:
        UpgradeRefusedError: that environment has no PySpark.
    """
    here: dict[str, Package] = {}
    for package in packages:
        here.setdefault(_normalized(package.name), package)  # the first one on the path is imported
    if SPARK not in here:
        raise UpgradeRefusedError(
            "the environment of the cluster has no PySpark", "make a virtual environment, and name that with --to"
        )
    needs: dict[str, set[str]] = {}
    for requirement in map(_Requirement.parse, wheel.requires):
        if requirement.of_extra:
            needs.setdefault(requirement.of_extra, set()).add(requirement.name)
    extras = frozenset(extra for extra, names in needs.items() if PROJECT not in names and names <= here.keys())
    own = _needed(wheel.requires, extras, here)
    others = [package for name, package in sorted(here.items()) if name not in own | TOOLS | {PROJECT, SPARK}]
    chosen = f"[{','.join(sorted(extras))}]" if extras else ""
    return Contents(
        f"{PROJECT}{chosen} @ {wheel.path.as_uri()}",
        f"{SPARK}=={here[SPARK].version}",
        tuple(f"{package.name}=={package.version}" for package in others if not package.origin),
        tuple(f"{package.name} (from {package.origin})" for package in others if package.origin),
    )


@dataclass(frozen=True, slots=True)
class _Requirement:
    """A requirement of a distribution: the name, the extras that it wants, and the extra to which it belongs."""

    name: str
    extras: frozenset[str]
    of_extra: str

    @classmethod
    def parse(cls, text: str) -> _Requirement:
        head, _, marker = text.partition(";")
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?", head)
        if match is None:
            raise UpgradeRefusedError(
                f"{text!r} is not a requirement of a package", "make a virtual environment, and name that with --to"
            )
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        wanted = frozenset(_normalized(each) for each in (match[2] or "").split(",") if each.strip())
        return cls(_normalized(match[1]), wanted, _normalized(extra[1]) if extra else "")


def _needed(requires: Iterable[str], extras: frozenset[str], here: dict[str, Package]) -> frozenset[str]:
    """Return the names of packages that a distribution needs with extras of it, directly or not."""
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ = [(requires, extras)]
    while open_:
        texts, chosen = open_.pop()
        for each in map(_Requirement.parse, texts):
            found = (each.name, each.extras)
            if found not in seen and (not each.of_extra or each.of_extra in chosen):
                seen.add(found)
                if each.name in here:
                    open_.append((here[each.name].requires, each.extras))
    return frozenset(name for name, _ in seen)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@dataclass(frozen=True, slots=True)
class WheelEnvironment:
    """The virtual environment of a wheel, which exists or will be made.

    Args:
        wheel: that is installed there.
        path: of the environment.
        base: the environment of the cluster, whose Python makes it, and whose packages it gets.
    """

    wheel: Wheel
    path: Path
    base: Environment

    @classmethod
    def of(cls, wheel: Wheel, directory: ClusterDirectory) -> WheelEnvironment:
        """Return the environment of a wheel for the cluster of a runtime directory."""
        base = Environment.of(None)
        for pid in directory.heads():
            try:
                base = Environment.of_process(pid)
                break
            except OSError:  # it has just ended
                continue
        return cls(wheel, directory.environments / wheel.name, base)

    def contents(self) -> Contents:
        """Return what it has to contain. Raises UpgradeRefusedError: the cluster's environment cannot be read."""
        return contents_for(self.wheel, self.base.packages())

    def is_complete(self, contents: Contents) -> bool:
        """Return whether it exists, with everything that it has to contain."""
        try:
            noted = json.loads((self.path / COMPLETE).read_bytes())
            return bool(noted["wheel"] == self.wheel.digest and noted["pyspark"] == contents.spark)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def target(self, contents: Contents) -> Target:
        """Return the release of the wheel, and change nothing: Python imports it from the file.

        Raises:
            UpgradeRefusedError: it cannot be imported with the packages of the cluster's environment.
        """
        python = str(self.path / "bin" / "python")
        if self.is_complete(contents):
            return Environment.of(self.path).target()
        inside = replace(self.base, path=os.pathsep.join([str(self.wheel.path), self.base.path]), is_own=False)
        try:
            return replace(inside.target(), python=python)
        except UpgradeRefusedError as error:
            raise UpgradeRefusedError(
                f"{self.wheel.path} cannot be examined before it is installed: {error}",
                "make a virtual environment, install it there, and name that with --to",
            ) from error

    def make(self, directory: ClusterDirectory, contents: Contents, say: Callable[[str], None]) -> None:
        """Make it anew.

        Raises:
            ClusterError: Python or pip fails, or an interrupted upgrade still installs into it.
            RuntimeDirectoryError: its directory cannot be made.
        """
        directory.make_environments()
        if pids := list(_users(self.path)):
            raise ClusterError(
                f"{self.path} is incomplete or has another PySpark, and process {pids[0]} uses it",
                "wait for its end: an interrupted upgrade may still be installing there; then run the upgrade again",
            )
        say(f"installing {PROJECT} {self.wheel.version} into {self.path}")
        try:
            remove_tree(self.path)
            self._do([*VENV, str(self.path)], self.base, "python -m venv", "on Debian, install python3-venv")
            made = Environment.of(self.path)
            self._do([*PIP, *contents.requirements], made, "pip", "see the messages of `pip install` with this wheel")
            noted = {"wheel": self.wheel.digest, "pyspark": contents.spark}
            write_private(self.path / COMPLETE, json.dumps(noted).encode())
        except OSError as error:
            raise ClusterError(
                f"cannot make {self.path}: {error.strerror or error}",
                "free space there, or make a virtual environment elsewhere and name that with --to",
            ) from error

    def _do(self, words: list[str], environment: Environment, what: str, hint: str) -> None:
        done = environment.run(words, None)
        if done.returncode != 0:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines
            raise ClusterError(
                f"cannot make {self.path}: {what} ended with {(told or [f'status {done.returncode}'])[-1]}",
                f"{hint}; or make a virtual environment yourself and name that with --to",
            )


def remove_unused(directory: ClusterDirectory, say: Callable[[str], None]) -> None:
    """Remove the environments that were made from wheels, except the former one and those that a process uses."""
    former = FormerEnvironment.read(directory)
    kept = None if former is None else Path(former.python)
    for path in sorted(directory.environments.glob("*")):
        if (kept is not None and kept.is_relative_to(path)) or any(_users(path)):
            continue
        try:
            remove_tree(path)
        except OSError as error:
            say(f"warning: cannot remove {path}, which nothing uses: {error.strerror or error}")
        else:
            say(f"removed {path}, which nothing uses")


def _users(path: Path) -> Iterator[int]:
    """Yield the processes whose program, arguments or open files are in a directory.

    A Spark driver that runs on after an upgrade names its jars in none of its arguments, but has them open.
    """
    prefix = os.fsencode(f"{path}{os.sep}")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if prefix in words or os.fsencode(path) in words.split(b"\0") or _has_open(process, path):
            yield int(process.name)


def _has_open(process: Path, path: Path) -> bool:
    """Return whether a process, by its directory in ``/proc``, has a file of a directory open."""
    directory = path.resolve()
    with contextlib.suppress(OSError):  # it has just ended, or is another user's
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if descriptor.readlink().is_relative_to(directory):
                    return True
    return False
