"""The session cluster of Flink that the benchmarks set ours beside, where Flink is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.bench import flink
from tests.flink_package import flink_dist


@pytest.mark.slow  # the peer of a benchmark
def test_it_runs_the_job_by_its_client_and_by_rest_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flink_dist()
    monkeypatch.setattr(flink, "WARM_UP", 1)
    directory = tmp_path / "flink"
    with flink.flink_session(directory) as session:
        assert session is not None
        assert session.finished_s() > 0
        said = subprocess.run(session.run_command, env=session.environ, capture_output=True, text=True, check=True)
        assert flink.TOTAL in said.stdout
        assert session.printed.read_text().count(flink.TOTAL) == 2, "by REST; the client prints where it is"
        servers = [child for child in psutil.Process().children() if _told_of(child, directory)]
        assert len(servers) == len(flink.SERVERS)
        listening = [one.laddr.ip for server in servers for one in server.net_connections() if one.status == "LISTEN"]
        assert listening
        assert all(ip.rpartition(":")[2] == "127.0.0.1" for ip in listening)
    assert not any(server.is_running() for server in servers)


def _told_of(child: psutil.Process, directory: Path) -> bool:
    """Whether *directory* is in its command line; a child that has ended and is not yet reaped has none."""
    try:
        return str(directory) in child.cmdline()
    except psutil.ZombieProcess:
        return False
