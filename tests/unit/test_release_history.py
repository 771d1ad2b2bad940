"""The latest release before a checkout: by its tag, or else by the commit that is recorded for it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from runtime import __version__
from tests import release


class Clone:
    """A small repository.

    Args:
        directory: which is made.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.git("init", "--quiet")

    def git(self, *words: str) -> str:
        """Run git there, and return what it prints."""
        author = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(["git", *author, *words], cwd=self.directory, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self) -> str:
        """Make a commit, and return its hash."""
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "--message=x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A repository with one commit."""
    made = Clone(tmp_path / "clone")
    made.commit()
    return made


def test_a_clone_without_tags_finds_the_latest_release_by_its_commit(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = clone.commit(), clone.commit()
    clone.commit()
    monkeypatch.setattr(release, "RELEASES", {"v0.1.0": first})
    assert release.latest_release(clone.directory) == first
    monkeypatch.setattr(release, "RELEASES", {"v0.1.0": first, "v0.2.0": second})
    assert release.latest_release(clone.directory) == second
    clone.git("tag", "v0.1.0", first)
    assert release.latest_release(clone.directory) == "v0.1.0"  # the tag wins


def test_no_release_is_found_where_neither_its_tag_nor_its_commit_is(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert release.latest_release(clone.directory) is None  # the commits of this project are not there
    clone.git("checkout", "--quiet", "-b", "other")
    later = clone.commit()
    clone.git("checkout", "--quiet", "-")
    monkeypatch.setattr(release, "RELEASES", {"v0.1.0": later})
    assert release.latest_release(clone.directory) is None  # it is there, and the checkout does not come from it


def test_the_commit_of_each_release_is_recorded() -> None:
    dated = re.findall(r"^## (\d+\.\d+\.\d+) \(", (release.ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    missing = {f"v{version}" for version in dated} - release.RELEASES.keys()
    assert missing <= {f"v{__version__}"}, "the commit of the present one is not known before it is made"
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in release.RELEASES.values())


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of files that two directories do not have alike."""
    found, recorded = ({file.name: file.read_bytes() for file in root.iterdir()} for root in (one, other))
    return sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))


@pytest.mark.parametrize("tag", release.RELEASES)
def test_golden_files_of_a_release_are_those_of_its_commit(tag: str, tmp_path: Path) -> None:
    commit, golden = release.RELEASES[tag], Path("tests", "golden", tag.removeprefix("v"))
    if not release.has_commit(commit):
        pytest.skip("the commit of the release is not in this clone")
    recorded = release.export(commit, tmp_path / "release") / golden
    assert differences(release.ROOT / golden, recorded) == []
    # The comparison sees a changed, a missing and a further file.
    with (recorded / "user.json").open("a") as file:
        file.write(" ")
    (recorded / "lease.json").unlink()
    (recorded / "other.json").touch()
    assert differences(release.ROOT / golden, recorded) == ["lease.json", "other.json", "user.json"]
