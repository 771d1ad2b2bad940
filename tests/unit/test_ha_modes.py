"""What ``high-availability.type`` changes before anything is started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from runtime.cluster import session
from runtime.cluster.preflight import Check, CheckResult
from runtime.errors import ClusterError, ClusterNotRunning

NONE = "high-availability.type=none"


def configuration(directory: Path, *settings: str) -> Configuration:
    return Configuration.load(overrides=[f"cluster.runtime-dir={directory}", *settings], environ={})


def test_standbys_without_redis_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="2 masters cannot be started") as refused:
        session.start_cluster(configuration(tmp_path, NONE), lambda step: None, masters=2)
    assert "high-availability.type=redis" in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_further_master_is_refused_by_what_the_cluster_was_started_with(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotRunning):
        session.join_cluster(configuration(tmp_path, NONE))
    configuration(tmp_path, NONE).write(tmp_path / "configuration.json")
    with pytest.raises(ClusterError, match="has one master: high-availability"):
        session.join_cluster(configuration(tmp_path))


def test_the_preflight_looks_for_redis_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[list[str]] = []

    def require(checks: Iterable[Check]) -> list[CheckResult]:
        looked_at.append([check.name for check in checks])
        raise ClusterError("enough", "")

    monkeypatch.setattr(session, "require", require)
    for settings in ([], [NONE]):
        with pytest.raises(ClusterError, match="enough"):
            session.start_cluster(configuration(tmp_path, *settings), lambda step: None)
    assert ["Redis" in names for names in looked_at] == [True, False]


def test_a_start_says_who_may_run_code_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_master(*_: object) -> str:
        raise ClusterError("enough", "")

    monkeypatch.setattr(session, "require", lambda checks: [])
    monkeypatch.setattr(session, "_start_master", no_master)
    for setting in ("true", "false"):
        said: list[str] = []
        with pytest.raises(ClusterError, match="enough"):
            session.start_cluster(configuration(tmp_path, f"rest.authentication.enabled={setting}"), said.append)
        warnings = [line for line in said if line.startswith("WARNING: rest.authentication.enabled is false: every")]
        assert len(warnings) == (setting == "false")


def test_an_unknown_type_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="redis, none"):
        configuration(tmp_path, "high-availability.type=zookeeper")
