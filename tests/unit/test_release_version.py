"""The version of the release stands in several files: all have the same."""

from __future__ import annotations

import configparser
import re
import subprocess
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime import __version__
from runtime.cluster.cli import cli

ROOT = Path(__file__).resolve().parents[2]
_IMAGE = re.compile(r"understudy:(\d[\w.]*)")
_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
_RELEASE = re.compile(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)")


def other_images(text: str, version: str) -> list[str]:
    return [found for found in _IMAGE.findall(text) if found != version]


def is_in_work(version: str, released: str) -> bool:
    """Return whether a version comes after the latest release: its changes stand under "Unreleased"."""
    return tuple(map(int, version.split("."))) > tuple(map(int, released.split(".")))


def test_the_package_and_the_command_have_the_version() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output


def test_images_have_the_version() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a clone")
    texts = {
        name: (ROOT / name).read_text("utf-8")
        for name in listed.stdout.splitlines()
        if name == "Containerfile" or (name.endswith((".md", ".yaml", ".py")) and not name.startswith("tests/"))
    }
    found = {name: _IMAGE.findall(text) for name, text in texts.items() if _IMAGE.search(text)}
    assert {"Containerfile", "conf/kubernetes/60-master.yaml", "docs/kubernetes.md"} <= found.keys()
    assert {name: other for name, text in texts.items() if (other := other_images(text, __version__))} == {}
    assert other_images("image: understudy:0.0.9", __version__) == ["0.0.9"]


def test_changes_have_a_dated_section_for_the_version() -> None:
    unreleased, *released = _SECTION.findall((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert unreleased == "Unreleased"
    parsed = [_RELEASE.fullmatch(section) for section in released]
    assert all(parsed), released
    versions, dates = zip(*(match.groups() for match in parsed if match), strict=True)
    assert __version__ == versions[0] or is_in_work(__version__, versions[0])
    assert [date.fromisoformat(day) for day in dates] == sorted(map(date.fromisoformat, dates), reverse=True)


def test_a_version_in_work_comes_after_the_latest_release() -> None:
    assert is_in_work("0.10.0", "0.9.1")
    assert not is_in_work("0.1.0", "0.1.0")
    assert not is_in_work("0.1.9", "0.2.0")


def test_stored_formats_of_the_version_have_golden_files() -> None:
    assert any((ROOT / "tests" / "golden" / __version__).iterdir())
