"""`masters` and `workers`, and what ssh is told."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from conf.configuration import Configuration
from runtime.cluster.cli import cli
from runtime.cluster.roles import Role
from runtime.cluster.ssh import (
    HostFileError,
    HostRole,
    Master,
    parse_hosts,
    parse_masters,
    read_host_files,
    remote_command,
    ssh_command,
)
from runtime.errors import ClusterError


def test_masters_and_workers_are_read_as_flinks(tmp_path: Path) -> None:
    (tmp_path / "masters").write_text("# the masters\nnode1:8081\n\nme@node2   # standby\n[2001:db8::7]:8082\n::1\n")
    (tmp_path / "workers").write_text("node3\n node4 # large\n#node5\nnode3\n")
    masters, workers = read_host_files(tmp_path / "config.yaml")
    assert masters == [Master("node1", 8081), Master("me@node2"), Master("[2001:db8::7]", 8082), Master("::1")]
    assert workers == ["node3", "node4"]
    assert read_host_files(None, {"UNDERSTUDY_CONF_DIR": str(tmp_path)}) == (masters, workers)


@pytest.mark.parametrize("line", ["-oProxyCommand=x", "two words", "node;rm", "$(x)", "a/b", "@"])
def test_what_is_no_host_is_refused_by_line(line: str) -> None:
    with pytest.raises(HostFileError, match=r"workers:2: .* is not a host"):
        parse_hosts(f"# hosts\n{line}\n", "workers")


@pytest.mark.parametrize("line", ["node:", "node:x", "node:0", "node:70000"])
def test_a_port_is_a_port(line: str) -> None:
    with pytest.raises(HostFileError, match="has no port after its colon"):
        parse_masters(line, "masters")


def test_missing_and_empty_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(HostFileError, match="UNDERSTUDY_CONF_DIR is not set"):
        read_host_files(None, {})
    (tmp_path / "masters").write_text("# nobody\n")
    with pytest.raises(HostFileError, match="workers cannot be read: No such file"):
        read_host_files(tmp_path / "config.yaml")
    (tmp_path / "workers").write_text("node3")
    with pytest.raises(HostFileError, match="masters names no host"):
        read_host_files(tmp_path / "config.yaml")


def test_what_a_host_is_told_passes_two_shells_unchanged() -> None:
    settings = {
        "env.ssh.python": "/opt/p/bin/python",
        "env.ssh.directory": "/srv/with blank",
        "env.ssh.opts": "-p 2222",
    }
    configuration = Configuration.from_dict(settings)
    target = HostRole("node1", Role.MASTER, ("--host", "node1"))
    told = remote_command(configuration, "start", target, "/etc/u s/config.yaml", ["spark.x=$(touch /tmp/y) 'z'"])
    prefix, _, rest = told.partition(" && ")
    assert shlex.split(prefix) == ["cd", "/srv/with blank"]
    words = ["exec", "/opt/p/bin/python", "-m", "runtime.cluster", "start", "--role", "master", "--host", "node1"]
    words += ["--config", "/etc/u s/config.yaml", "-D", "spark.x=$(touch /tmp/y) 'z'"]
    assert shlex.split(rest) == words
    assert "--host" not in shlex.split(remote_command(configuration, "stop", target, None, []))
    command = ssh_command(configuration, "node1", told)
    assert command[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert command[-5:] == ["-p", "2222", "--", "node1", told]


def test_no_secret_reaches_the_command_lines_of_hosts(tmp_path: Path) -> None:
    for name in ("config.yaml", "masters", "workers"):
        (tmp_path / name).write_text("" if name == "config.yaml" else "192.0.2.7\n")
    for secret in (
        "high-availability.redis.url=redis://:word@192.0.2.1/0",
        "spark.my.password=word",
        "spark.sql.catalog.pg.url=jdbc:postgresql://me:word@192.0.2.1/db",
        "env.java.opts=-Djavax.net.ssl.keyStorePassword=word",
    ):
        given = ["start", "--hosts", "--config", str(tmp_path / "config.yaml"), "-D", secret]
        done = CliRunner().invoke(cli, given)
        assert isinstance(done.exception, ClusterError)
        assert "would be seen on the hosts' command lines" in str(done.exception)
        assert "word@" not in str(done.exception)
