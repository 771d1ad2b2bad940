"""Clients of a cluster that is found by its runtime directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationFileError
from conf.options import ClusterOptions
from runtime.cluster.discovery import connect_locally
from runtime.environment.descriptor import ClusterDescriptor
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterNotRunning


@pytest.fixture
def directory(tmp_path: Path) -> ClusterDirectory:
    """A runtime directory with a description of a cluster."""
    made = ClusterDirectory(tmp_path / "c")
    made.create()
    ClusterDescriptor("c", "akka.tcp://understudy@127.0.0.1:6123", 1, str(made.root), "", "", ()).write(
        made.cluster_json
    )
    return made


def test_a_cluster_whose_configuration_is_removed_meanwhile_does_not_run(directory: ClusterDirectory) -> None:
    configuration = Configuration().set(ClusterOptions.RUNTIME_DIR, directory.root)
    with directory.acquire(), pytest.raises(ClusterNotRunning, match="being stopped"):
        connect_locally(configuration)


def test_a_configuration_that_cannot_be_read_is_told_as_such(directory: ClusterDirectory) -> None:
    directory.configuration_file.write_text("{")
    configuration = Configuration().set(ClusterOptions.RUNTIME_DIR, directory.root)
    with directory.acquire(), pytest.raises(ConfigurationFileError, match="cannot read the configuration"):
        connect_locally(configuration)
