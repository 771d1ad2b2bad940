"""A cluster on several hosts, each of them a network namespace, with one configuration file for all."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from runtime.ha.redis_process import find_redis_server
from tests.cluster_harness import GROUPS, ROOT, await_value
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.network import Network
from tests.json_output import parsed

COMMAND_S = 600.0


class Hosts:
    """What is run on the hosts of a network.

    Args:
        network: the hosts.
        directory: for what they share, and for each host's own.
        redis: the host of the Redis.
        settings: of the cluster, beside what several hosts need.
    """

    def __init__(self, network: Network, directory: Path, redis: str, settings: dict[str, str]) -> None:
        self.network = network
        self._directory = directory
        self._conf = directory / "conf"
        self._conf.mkdir()
        secret = self._conf / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        password = secrets.token_hex(16)
        tls = CertificateAuthority(directory).issue()
        values = {
            "high-availability.redis.url": f"redis://:{password}@{network.addresses[redis]}:6379/0",
            "cluster.shared-dir": str(directory / "shared"),
            "security.secret-file": str(secret),
            "security.ssl.internal.enabled": "true",
            "security.ssl.internal.certificate": str(tls.certificate),
            "security.ssl.internal.key": str(tls.key),
            "security.ssl.internal.ca": str(tls.ca),
            **settings,
        }
        self.config = self._conf / "config.yaml"
        self.config.touch(mode=0o600)
        self.config.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items()))
        self._start_redis(redis, password)

    def _start_redis(self, host: str, password: str) -> None:
        settings = self._conf / "redis.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'bind {self.network.addresses[host]}\nport 6379\nrequirepass {password}\nsave ""\nappendonly no\n'
            f"maxmemory-policy noeviction\ndir {self._conf}\n"
        )
        command = self.network.command(host, str(find_redis_server()), str(settings))
        with (self._conf / "redis.log").open("ab") as log:
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def directory(self, host: str) -> Path:
        """A host's runtime directory."""
        return self._directory / host

    def command(self, host: str, *arguments: str) -> list[str]:
        """The command line of one command on a host; options follow the command's words."""
        words = [word for word in arguments if not word.startswith("-")][: 1 + (arguments[0] in GROUPS)]
        rest = list(arguments[len(words) :])
        given = ["--config", str(self.config), "-D", f"cluster.runtime-dir={self.directory(host)}"]
        return self.network.command(host, sys.executable, "-m", "runtime.cluster", *words, *given, *rest)

    def run(self, host: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one command on a host to its end."""
        done = subprocess.run(
            self.command(host, *arguments), capture_output=True, text=True, timeout=COMMAND_S, cwd=ROOT, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{arguments} on {host} ended with {done.returncode}:\n{done.stderr}\n{self.logs()}")
        return done

    def start(self, **roles: str) -> None:
        """Start roles by host, at the same time; returns when TaskExecutors are registered and the masters serve."""
        running = {
            host: subprocess.Popen(
                self.command(host, "start", "--role", role), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
            )
            for host, role in roles.items()
        }
        for host, process in running.items():
            output = process.communicate(timeout=COMMAND_S)[0].decode()
            assert process.returncode == 0, f"{host}: {output}\n{self.logs()}"

    def json(self, host: str, *arguments: str) -> Any:
        """What a command with ``--json`` says on a host."""
        return parsed(arguments, self.run(host, *arguments, "--json").stdout)

    def task_managers(self, host: str) -> dict[str, dict[str, Any]]:
        """The registered TaskExecutors as a host sees them, by the name of their host."""
        names = {address: name for name, address in self.network.addresses.items()}
        views = self.json(host, "status")["task_executors"]
        return {names[view["address"].split("@")[1].split(":")[0]]: view for view in views}

    def await_task_managers(self, host: str, *expected: str) -> dict[str, dict[str, Any]]:
        """Wait until exactly the TaskExecutors of these hosts are registered, with all their slots free or used."""

        def look() -> dict[str, dict[str, Any]] | None:
            found = self.task_managers(host)
            return found if set(found) == set(expected) else None

        views: dict[str, dict[str, Any]] = await_value(look, COMMAND_S)
        return views

    def logs(self) -> str:
        """The ends of all logs, for a failing test."""
        paths = [path for path in sorted(self._directory.glob("**/log/*")) if "spark" not in path.name]
        ends = {path: path.read_text(errors="replace").splitlines()[-25:] for path in paths if path.is_file()}
        return "\n".join(f"--- {path.relative_to(self._directory)}\n" + "\n".join(end) for path, end in ends.items())
