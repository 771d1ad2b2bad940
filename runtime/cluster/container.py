"""The foreground process of a container.

    python -m runtime.cluster.container master | task-executor | probe

Makes the runtime directory of the pod, and becomes the process of a master or of a worker. The configuration is read
from ``$UNDERSTUDY_CONF_DIR``; the cluster's secret and the URL of Redis are files of a mounted Secret.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from actors.rpc.security import load_or_create_secret
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.files import write_private
from conf.options import (
    ClusterOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    RestOptions,
    SecurityOptions,
)
from conf.secret import SecretStr
from runtime.cluster.host_processes import MASTER, MEMBER
from runtime.environment.context import system_address
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.errors import ClusterError

SECRETS_VARIABLE = "UNDERSTUDY_SECRETS_DIR"
SECRETS_DIR = "/etc/understudy/secret"
SECRET, REDIS_URL = "secret", "redis-url"
PROBE_S = 5.0


def pod_configuration(environ: dict[str, str]) -> Configuration:
    """Return the configuration of this pod's processes.

    Args:
        environ: of the container: ``POD_IP``, and where configuration and secrets are mounted.

    Raises:
        ConfigurationError: a file, a key or a value is not valid.
        ClusterError: the pod's address is missing, or there is no Redis that several pods can share.
    """
    address = environ.get("POD_IP")
    if not address:
        raise ClusterError("POD_IP is not set", "take it from the pod's status.podIP, as conf/kubernetes does")
    configuration = Configuration.load(environ=environ).set(JobManagerOptions.RPC_ADDRESS, address)
    url = _secrets(environ) / REDIS_URL
    if url.exists():
        configuration = configuration.set(
            HighAvailabilityOptions.REDIS_URL, SecretStr(url.read_text(encoding="utf-8").strip())
        )
    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:
        raise ClusterError(
            "the cluster has no Redis that its pods could share",
            f"put its URL into the Secret, as {REDIS_URL}, or set {HighAvailabilityOptions.REDIS_URL.key}",
        )
    return configuration


def prepare(configuration: Configuration, environ: dict[str, str]) -> ClusterDirectory:
    """Make the pod's runtime directory, with configuration and secret in it. Raises ClusterError, OSError."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    directory.create()
    mounted = _secrets(environ) / SECRET
    if mounted.exists():  # a mounted file is readable for its group too, and never has mode 0600
        write_private(configuration.get(SecurityOptions.SECRET_FILE), mounted.read_bytes())
    load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))
    configuration.write(directory.configuration_file)
    return directory


def command_of(
    role: str, configuration: Configuration, directory: ClusterDirectory, environ: dict[str, str]
) -> list[str]:
    """Return the command line of the process that the container becomes."""
    if role == "master":
        # The report goes to the container's log. When a member ends, it leaves the jobs to the other masters.
        report = os.dup(1)
        os.set_inheritable(report, True)
        lock = directory.acquire().descriptor
        os.set_inheritable(lock, True)
        return [sys.executable, "-m", MASTER, str(directory.root), str(report), str(lock), MEMBER]
    system = system_address(configuration, configuration.get(JobManagerOptions.RPC_PORT))
    name = environ.get("POD_NAME") or "taskmanager-0"
    directory.taskmanager(0).mkdir(mode=0o700, exist_ok=True)
    return [sys.executable, "-m", "runtime.cluster.worker", str(directory.root), str(system), "0", name]


def probe(configuration: Configuration) -> str:
    """Send a request to the pod's own web endpoint; return what is wrong with it, or an empty text."""
    port, token = configuration.get(RestOptions.PORT), configuration.get(RestOptions.TOKEN_FILE)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/overview")
    try:
        if configuration.get(RestOptions.TOKEN_ENABLED):
            request.add_header("Authorization", f"Bearer {token.read_text(encoding='ascii').strip()}")
        with urllib.request.urlopen(request, timeout=PROBE_S):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"the web endpoint answers {error.code}"
    except OSError as error:
        return f"the web endpoint does not answer: {error}"


def _secrets(environ: dict[str, str]) -> Path:
    return Path(environ.get(SECRETS_VARIABLE, SECRETS_DIR))


def main() -> int:
    """Become the process of the container's role; return only on an error, with exit status 1."""
    role, environ = sys.argv[1], dict(os.environ)
    try:
        configuration = pod_configuration(environ)
        if role == "probe":
            why = probe(configuration)
            sys.stdout.write(why + "\n" * bool(why))
            return 1 if why else 0
        configuration.report_warnings(lambda warning: sys.stderr.write(f"warning: {warning}\n"))
        directory = prepare(configuration, environ)
        command = command_of(role, configuration, directory, environ)
        os.execve(command[0], command, {**environ, CLUSTER_DIR_VARIABLE: str(directory.root)})  # noqa: S606
    except (ClusterError, ConfigurationError, OSError) as error:
        remedy = getattr(error, "remedy", "")
        sys.stderr.write(f"error: {error}{'; ' if remedy else ''}{remedy}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
